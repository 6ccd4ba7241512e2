"""The server of a federation: broadcasts, messages that are checked and added up in the order of clients, one step.

Place: a transport -> [federated.coordinator] -> federated.algorithms. It sees noisy messages alone, so that all of its
state is released; it trusts no client to be well-behaved. It knows no transport.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacita import _validate
from tacita.errors import ResumeError
from tacita.federated.algorithms import FederatedAlgorithm, ServerState
from tacita.federated.wire import Answer, Broadcast, WireError, from_wire, tensors_of, to_wire, wire_tensors
from tacita.runs import checkpoint


def longest_honest_message(threshold: float, noise_std: float, size: int, false_refusals: float) -> float:
    r"""Return a bound that an honest client's noisy message exceeds with probability at most ``false_refusals``.

    .. math:: C + s \left(\sqrt d + \sqrt{2 \ln (1/p)}\right)

    The message is at most C long, and the norm of the noise is a function with Lipschitz constant s of d standard
    normals, whose mean is at most :math:`s \sqrt d`; it is further above its mean than :math:`s k` with probability at
    most :math:`e^{-k^2/2}`. A bound of C alone would refuse every private message.

    Args:
        threshold: The clipping threshold C of the message.
        noise_std: The noise s of one coordinate.
        size: The number d of coordinates.
        false_refusals: The probability p, in (0, 1).

    Source: Boucheron, Lugosi and Massart (2013), Concentration Inequalities, Theorem 5.6.

    Example:
        >>> round(longest_honest_message(1.0, 2.0, 100, 1e-9), 3)
        33.876
    """
    size = _validate.count("size", size)
    apart = math.sqrt(size) + math.sqrt(2 * math.log(1 / _validate.inside("false_refusals", false_refusals)))
    bound = _validate.non_negative("threshold", threshold) + _validate.non_negative("noise_std", noise_std) * apart
    return bound * (1 + 1e-9)  # rounding of the message, of its norm and of this bound


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round of a real federation. All of it is public.

    Attributes:
        number: The number of the round.
        asked: The clients that were asked.
        accepted: The clients whose messages were added up.
        refused: Why a client's message was refused, by client. A client that sent nothing is not in it.
        seconds: From the broadcasts to the end of the round.
    """

    number: int
    asked: tuple[int, ...]
    accepted: tuple[int, ...]
    refused: dict[int, str]
    seconds: float


class Coordinator:
    r"""Runs the server's part of an algorithm over clients that may be late, silent or wrong.

    A round is :meth:`broadcasts`, the transport, :meth:`receive`. Messages are added up in float64 in the order of the
    clients' numbers, whatever the order they arrive in, and divided by a public constant. A broadcast names the
    client's last message that was added up (two phases, see :class:`Client`).

    A message is refused, and its client told so, unless it is readable, of this client, newer than every message seen
    of it, of the right names and shapes, finite, and in every block no longer than :func:`longest_honest_message`. An
    honest message is refused with probability at most ``false_refusals``.

    Args:
        algorithm: What the clients run, too.
        federation: The id of the federation.
        params: The first model.
        rounds: Number of rounds.
        num_clients: Number of clients of the federation, which is public: their numbers are 0, ..., n - 1.
        noise_std: Standard deviation of the noise of a client's message, by block.
        false_refusals: Probability that an honest message is refused.
        path: File of the server's state. It is written before the next broadcast, and continued from if it exists.

    Attributes:
        round: The number of the next round.
        rounds_of_nobody: How many of the last rounds, in a row, added up no message.

    Raises:
        ResumeError: The file is of another federation.
        TypeError: Clients of the algorithm send more than the parameters' shapes.
    """

    def __init__(
        self,
        algorithm: FederatedAlgorithm,
        *,
        federation: str,
        params: Mapping[str, Tensor],
        rounds: int,
        num_clients: int,
        noise_std: Mapping[str, float],
        false_refusals: float = 1e-9,
        path: Path | None = None,
    ) -> None:
        self.algorithm, self.federation, self.path = algorithm, federation, path
        self.rounds = _validate.count("rounds", rounds)
        self.num_clients = _validate.count("num_clients", num_clients)
        self._server = algorithm.start({name: x.detach().double().clone() for name, x in params.items()})
        self._shapes = {name: x.shape for name, x in params.items()}
        if algorithm.message_shapes(self._shapes) != self._shapes:
            raise TypeError(
                f"algorithm must be one whose messages have the parameters' shapes, got {type(algorithm).__name__}, "
                "whose clients send more: simulate it."
            )
        self._groups = algorithm.clipper.groups(self._shapes)
        self._divisor = algorithm.divisor(num_clients, float(num_clients))
        self._longest = self._bounds(noise_std, false_refusals)
        self._accepted: dict[int, int] = {}  # by client, the number of the last message that was added up
        self._seen: dict[int, int] = {}  # by client, the highest number of a message that was read
        self._refused: dict[int, str] = {}
        self._under_way: tuple[tuple[int, ...], ServerState, float] | None = None  # who was asked, what, and when
        self.round = self.rounds_of_nobody = 0
        if path is not None and path.exists():
            self._load(path)

    def _bounds(self, noise_std: Mapping[str, float], false_refusals: float) -> dict[str, float]:
        thresholds = self.algorithm.clipper.max_contribution(self._shapes)
        if noise_std.keys() != thresholds.keys():
            raise ValueError(f"noise_std must name the blocks {sorted(thresholds)}, got {sorted(noise_std)}.")
        share = _validate.inside("false_refusals", false_refusals) / len(thresholds)
        sizes = {block: sum(self._shapes[name].numel() for name in names) for block, names in self._groups.items()}
        return {
            block: longest_honest_message(bound, noise_std[block], sizes[block], share)
            for block, bound in thresholds.items()
        }

    @property
    def params(self) -> dict[str, Tensor]:
        """The server's model, a function of noisy messages."""
        return self._server.params

    @property
    def remaining_rounds(self) -> int:
        """Number of rounds that are left."""
        return self.rounds - self.round

    def broadcasts(self, clients: Iterable[int]) -> dict[int, bytes]:
        """Begin a round, and return what to send to each of ``clients``, by number.

        Raises:
            ValueError: A number is not that of a client, or all rounds are done.
        """
        asked = tuple(sorted(set(clients)))
        if self.remaining_rounds < 1:
            raise ValueError(f"rounds must be more than {self.rounds}: all of them are done.")
        if any(not 0 <= client < self.num_clients for client in asked):
            raise ValueError(f"clients must be numbers from 0 to {self.num_clients - 1}, got {asked}.")
        server = self.algorithm.broadcast(self._server)
        self._under_way, tensors = (asked, server, time.monotonic()), wire_tensors(server.params)
        return {
            client: to_wire(
                Broadcast(
                    self.federation, self.round, self._accepted.get(client), self._refused.get(client, ""), tensors
                )
            )
            for client in asked
        }

    def receive(self, replies: Mapping[int, bytes]) -> RoundReport:
        """End a round with the replies that arrived, by client; no bytes are no message.

        The new state is on disk when this returns, so that no broadcast names a message that a crash would forget.
        """
        if self._under_way is None:
            raise RuntimeError("receive() ends a round: call broadcasts() first.")
        (asked, server, begun), self._under_way = self._under_way, None
        total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self._shapes.items()}
        taken, refused = dict[int, int](), dict[int, str]()
        for client in asked:  # in the order of their numbers
            if not replies.get(client):
                continue
            try:
                number, values = self._message(client, replies[client])
            except WireError as error:
                refused[client] = str(error)
                continue
            taken[client] = number
            total = {name: x + values[name] for name, x in total.items()}
        self._server = self.algorithm.receive(server, {name: x / self._divisor for name, x in total.items()})
        self._accepted |= taken
        self._refused = refused
        self.round += 1
        self.rounds_of_nobody = 0 if taken else self.rounds_of_nobody + 1
        if self.path is not None:
            self._save(self.path)
        return RoundReport(self.round - 1, asked, tuple(taken), refused, time.monotonic() - begun)

    def _message(self, client: int, reply: bytes) -> tuple[int, dict[str, Tensor]]:
        """Return number and values of a client's message; raise :class:`WireError` with the reason of a refusal."""
        try:
            record = from_wire(reply)
        except WireError:
            raise WireError("unreadable") from None
        if not isinstance(record, Answer) or (record.federation, record.client) != (self.federation, client):
            raise WireError("not of this client")
        if not self._seen.get(client, -1) < record.number < 2**53:
            raise WireError("an old number")
        self._seen[client] = record.number
        try:
            values = tensors_of(record.values, self._shapes)
        except WireError:
            raise WireError("names or shapes") from None
        norms = {
            block: math.hypot(*(float(values[name].norm()) for name in names)) for block, names in self._groups.items()
        }
        if not all(math.isfinite(norm) for norm in norms.values()):
            raise WireError("not finite")
        if any(norm > self._longest[block] for block, norm in norms.items()):
            raise WireError("too long")
        return record.number, values

    def _save(self, path: Path) -> None:
        tree: dict[str, Any] = {
            "round": self.round,
            "rounds_of_nobody": self.rounds_of_nobody,
            "params": self._server.params,
            "estimate": self._server.estimate,
            "memory": {kind: dict(tensors) for kind, tensors in self._server.memory.items()},
            "accepted": self._accepted,
            "seen": self._seen,
            "refused": self._refused,
        }
        checkpoint.save(path, tree, {"federation": self.federation})

    def _load(self, path: Path) -> None:
        tree, head = checkpoint.load(path)
        try:
            shapes = {name: x.shape for name, x in tree["params"].items()}
            if head.get("federation") != self.federation or shapes != self._shapes:
                raise ResumeError(f"{path.name} is of another federation: choose another folder.")
            self._server = ServerState(dict(tree["params"]), dict(tree["estimate"]), dict(tree["memory"]))
            self._accepted, self._seen, self._refused = (
                dict(tree["accepted"]),
                dict(tree["seen"]),
                dict(tree["refused"]),
            )
            self.round = tree["round"]
            self.rounds_of_nobody = tree.get("rounds_of_nobody", 0)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ResumeError(f"{path.name} is not the state of a federation's server: restore it.") from error

    def __repr__(self) -> str:
        return f"Coordinator(federation={self.federation!r}, round={self.round} of {self.rounds})"
