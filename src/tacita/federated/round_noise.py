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
LOUD = "How loud a round is: "


@dataclass(frozen=True)
class Asked:
    """Who takes part in a round, and whose message arrives. Private under a trusted server that samples."""

    clients: Tensor | None  # numbers, ascending; None for all
    arrived: Tensor  # bool, one a client that takes part

    @property
    def all_arrived(self) -> bool:
        return bool(self.arrived.all())


def loudness(
    noise_std: Mapping[str, float],
    thresholds: Mapping[str, float],
    sizes: Mapping[str, int],
    messages: float,
    *,
    of_sum: bool = False,
) -> str:
    r"""Say how loud a round is: the noise in the mean of its messages, beside the most that the clipped mean can be.

    Of k messages with noise s each the mean has noise :math:`s / \sqrt k` in each of d coordinates, hence one of norm
    :math:`s \sqrt{d / k}` (root mean square); noise that is added once, to their sum, is :math:`s / k`.

    Args:
        noise_std: The noise s, by block: of each message, or of their sum.
        thresholds: The clipping threshold of a message, by block.
        sizes: The number of coordinates, by block.
        messages: The number k of messages in a round, or its mean.
        of_sum: Whether a trusted server adds the noise, once.

    Example:
        >>> print(loudness({"all": 0.8}, {"all": 0.1}, {"all": 100}, 4))
        How loud a round is: the noise in the mean of its 4 messages has ... 0.4 in each coordinate and a norm of ...
    """
    share = 1 / messages if of_sum else 1 / math.sqrt(messages)
    norm = share * math.sqrt(sum(noise_std[block] ** 2 * size for block, size in sizes.items()))
    lowest, highest = share * min(noise_std.values()), share * max(noise_std.values())
    std = f"{highest:.3g}" if lowest == highest else f"up to {highest:.3g}"
    most = math.hypot(*thresholds.values())
    return (
        f"{LOUD}the noise in the mean of its {messages:.6g} messages has a standard deviation of {std} "
        f"in each coordinate and a norm of about {norm:.3g}. That is {norm / most:.3g} times the most that the mean of "
        f"clipped messages can be, {most:.3g}. If that is much, the model may be no better than chance: more clients "
        "or fewer weights help, fewer rounds hardly; in a simulation, one record as the unit or a trusted server."
    )


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
