"""The noise that clients add in a simulated round: one draw of the variance of all messages, or every client's own.

Place: mechanisms -> [federated.round_noise] -> released sums.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacita.accounting import Event
from tacita.mechanisms.paid_noise import check_gaussian_noise

Blocks = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Asked:
    """Who takes part in a round, and whose message arrives. Private under a trusted server that samples."""

    clients: Tensor | None  # numbers, ascending; None for all
    arrived: Tensor  # bool, one a client that takes part

    @property
    def all_arrived(self) -> bool:
        return bool(self.arrived.all())


class RoundNoise:
    """Adds the clients' noise: one draw of the variance of all messages that arrived, or every client's own.

    Args:
        by_client: Whether every client has a stream of its own, and values come one row a client.
    """

    in_stretches: ClassVar[bool] = False

    def __init__(self, by_client: bool) -> None:
        self.by_client = by_client
        self._numbers: list[int] = []  # clients whose message arrived
        self._scale = 0.0
        self.sent: dict[str, Tensor] = {}  # the noisy messages of the last round, if each has noise of its own

    def prepare(self, asked: Asked) -> None:
        """Take over who sends noise: every client whose message arrives."""
        numbers = torch.arange(len(asked.arrived)) if asked.clients is None else asked.clients
        self._numbers = numbers[asked.arrived].tolist()
        self.sent = {}
        self._scale = math.sqrt(len(self._numbers))

    def check_paid(
        self, event: Event, noise_std: Mapping[str, float], contribution: Mapping[str, float] | None
    ) -> None:
        """Raise ``LedgerError`` if ``noise_std``, of one message or of the sum, is less than ``event`` promises."""
        check_gaussian_noise(event, noise_std, contribution)

    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Any) -> dict[str, dict[str, Tensor]]:
        if self.by_client:
            return {block: self._one_by_one(block, x, noise_std[block], normals) for block, x in values.items()}
        found = {}
        for block, tensors in values.items():
            draws = normals(block, tensors)
            found[block] = {n: torch.add(x, draws[n], alpha=noise_std[block] * self._scale) for n, x in tensors.items()}
        return found

    def _one_by_one(self, block: str, messages: Mapping[str, Tensor], std: float, normals: Any) -> dict[str, Tensor]:
        """Add the noisy messages up in the order of the clients' numbers."""
        total = {name: torch.zeros_like(message[0]) for name, message in _or_empty(messages).items()}
        each: dict[str, list[Tensor]] = {name: [] for name in messages}
        for place, client in enumerate(self._numbers):
            stream, given = normals.stream(f"{block}/client-{client}"), 0
            for name, message in messages.items():
                draw = stream.normals(tuple(message.shape[1:]), dtype=message.dtype, offset=given)
                each[name].append(torch.add(message[place], draw, alpha=std))
                total[name] = total[name] + each[name][-1]
                given += draw.numel()
        self.sent |= {name: torch.stack(found) if found else messages[name] for name, found in each.items()}
        return total


def _or_empty(messages: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return messages of at least one row, so that a sum over none has its shape."""
    return {name: x if len(x) else x.new_zeros(1, *x.shape[1:]) for name, x in messages.items()}
