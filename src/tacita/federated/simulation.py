"""Simulate a federation on one machine: all clients of a round at once, one record of the ledger a round.

Place: algorithms, problems, privacy -> [federated.simulation] -> released models. Gradients, messages without noise and
the clients' states are private; :attr:`Simulation.server` is a function of releases.

The noises of a round's messages are independent, so the server, which adds the messages up, sees one Gaussian of their
joint variance: that one is drawn. Where clients feed back what they sent, every client's own noise is drawn instead,
and the clients are taken one by one, which is slow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita.federated.algorithms import FederatedAlgorithm, ServerState
from tacita.federated.client_weights import ClientWeights
from tacita.federated.clipped_difference import State, finite_or_zero
from tacita.federated.privacy import FederatedPrivacy, TrustedServer
from tacita.federated.problems import ClientProblem, check_record_sampling
from tacita.federated.round_noise import Asked, RoundNoise
from tacita.ledger import Ledger, Session
from tacita.ledger.session import BLOCK
from tacita.oracles.gate import ReleaseGate, answer
from tacita.oracles.payment import Payment
from tacita.random import Randomness
from tacita.runs import checkpoint


@dataclass(frozen=True)
class Round:
    """What a round released.

    Attributes:
        query: Its number in the session.
        total: The noisy sum of the messages that arrived, by parameter name.
        divisor: The public divisor of the sum.
        arrived: Number of messages that arrived; ``None`` if a trusted server draws who takes part.
    """

    query: int
    total: dict[str, Tensor]
    divisor: float
    arrived: int | None


class Simulation:
    """Runs a federated algorithm on the clients of a problem, with noise that is paid for in the ledger.

    Args:
        problem: The data of all clients. Private.
        algorithm: What clients and server do.
        privacy: :class:`LocalPrivacy` or :class:`TrustedServer`.
        ledger: Pays; its privacy unit should name a client's data.
        rounds: Number of rounds that the guarantee covers.
        params: The first model; zeros by default. It must not depend on the data.
        loss_rate: Chance that a message is lost on its way, in [0, 1), by a public coin. Its client keeps the state it
            had; the noise of a lost message is charged.
        weights: Weights of the clients' messages, (n,), 1 by default. Private: each is taken into [0, 1], so that a
            message stays within its threshold; one that is no number is 0.
        total_weight: Public divisor in place of the number of clients, such as a guess of the sum of weights.
        purpose, settings, session, randomness, reservation: As in :class:`~tacita.GradientOracle`.

    Example:
        >>> from tacita import FlatClipper, GaussianMechanism, Ledger
        >>> from tacita.federated import Clip21SGDM, LocalPrivacy, QuadraticClients
        >>> simulation = Simulation(
        ...     QuadraticClients(torch.tensor([[3.0], [-3.0]])),
        ...     Clip21SGDM(clipper=FlatClipper(max_grad_norm=1.0), lr=0.1, momentum_weight=0.5),
        ...     privacy=LocalPrivacy(mechanism=GaussianMechanism(noise_multiplier=4.0)), rounds=4,
        ...     ledger=Ledger(neighboring_relation="replace_one", privacy_unit="all data of one client"))
        >>> simulation.run()["x"].shape, simulation.remaining_rounds, round(simulation.ledger.epsilon(1e-5), 4)
        (torch.Size([1]), 0, 1.9931)
    """

    def __init__(
        self,
        problem: ClientProblem,
        algorithm: FederatedAlgorithm,
        *,
        privacy: FederatedPrivacy,
        ledger: Ledger,
        rounds: int,
        params: Mapping[str, Tensor] | None = None,
        loss_rate: float = 0.0,
        weights: Tensor | None = None,
        total_weight: float | None = None,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        self.problem, self.ledger = problem, ledger
        self._algorithm, self._privacy = algorithm, privacy
        self.rounds = _validate.count("rounds", rounds)
        self.loss_rate = _validate.below_one("loss_rate", loss_rate)
        self.randomness = randomness or Randomness.system()
        self._weights = ClientWeights.of(weights, total_weight, problem.num_clients)
        expected = privacy.expected_clients(problem.num_clients)
        self.divisor = algorithm.divisor(problem.num_clients, expected) * self._weights.share
        self.mechanism, self.noise_std, event = privacy.resolved(
            algorithm,
            ledger,
            shapes=problem.shapes,
            num_clients=problem.num_clients,
            rounds=self.rounds,
            session=session,
        )
        if privacy.sampling is not None:
            check_record_sampling(problem, privacy.sampling, self.loss_rate, weights)
        if algorithm.feeds_back and weights is not None:
            raise ValueError(f"weights must be None with {type(algorithm).__name__}: shifts move by what is sent.")
        if algorithm.feeds_back and isinstance(privacy, TrustedServer):
            raise ValueError(
                f"{type(algorithm).__name__} needs LocalPrivacy, because each client feeds back its own noise: a "
                "trusted server adds its own, once."
            )
        self._draws = privacy.draws(problem.num_clients) if isinstance(privacy, TrustedServer) else None
        self._noise = RoundNoise(by_client=algorithm.feeds_back)
        payment = Payment(ledger, purpose, settings, session, None, self.randomness, reservation=reservation)
        paying = payment.session_for("simulation", event, planned_queries=self.rounds, part=None, bound=self.settings)
        adds_noise = self.mechanism if isinstance(privacy, TrustedServer) else self._noise
        self._gate = ReleaseGate(paying, adds_noise, self.noise_std, self.randomness, reservation)
        first = {name: torch.zeros(shape, dtype=problem.dtype) for name, shape in problem.shapes.items()}
        given = {name: x.detach().clone().to(problem.dtype) for name, x in (params or first).items()}
        if {name: x.shape for name, x in given.items()} != dict(problem.shapes):
            raise ValueError(f"params must have the problem's names and shapes, got {list(given)}.")
        self.server = algorithm.start(given)
        self._clients = algorithm.client_start(problem.shapes, (problem.num_clients,), problem.dtype)
        self._message_shapes = algorithm.message_shapes(problem.shapes)
        self._groups = algorithm.clipper.groups(self._message_shapes)

    @property
    def algorithm(self) -> FederatedAlgorithm:
        """The clients' and the server's part of a round. It was charged for, and cannot be changed."""
        return self._algorithm

    @property
    def privacy(self) -> FederatedPrivacy:
        """Who is trusted with what. It was charged for, and cannot be changed."""
        return self._privacy

    @property
    def settings(self) -> dict[str, Any]:
        """The public settings that decide the privacy and the bits of a run."""
        return {
            "problem": repr(self.problem),
            "algorithm": repr(self.algorithm),
            "privacy": repr(self.privacy),
            "noise_multiplier": self.mechanism.noise_multiplier,
            "rounds": self.rounds,
            "loss_rate": self.loss_rate,
            "total_weight": self._weights.total,
            "shapes": {name: list(shape) for name, shape in self.problem.shapes.items()},
        }

    @property
    def session(self) -> Session:
        """The session of the ledger that pays."""
        return self._gate.session

    @property
    def params(self) -> dict[str, Tensor]:
        """The server's model, a function of releases."""
        return self.server.params

    @property
    def remaining_rounds(self) -> int:
        """Number of planned rounds that are left."""
        return self._gate.remaining_queries

    def run(
        self, rounds: int | None = None, *, progress: Callable[[float], None] = lambda share: None
    ) -> dict[str, Tensor]:
        """Make ``rounds`` rounds, by default all that are left, and return the server's model.

        Args:
            rounds: Number of rounds.
            progress: Called after each round with the share of the plan that is done.
        """
        for _ in range(self.remaining_rounds if rounds is None else _validate.count("rounds", rounds, at_least=0)):
            self.step()
            progress(1 - self.remaining_rounds / self.rounds)
        return self.params

    def step(self) -> Round:
        """Make one round: broadcast, messages, ledger, noise, the server's step.

        Raises:
            BudgetExceededError: The plan is used up.
        """
        with self._gate.lock, self._gate.turn():
            server = self.algorithm.broadcast(self.server)

            def bounded(query: int) -> tuple[dict[str, Any], tuple[Asked, State]]:
                asked = self._asked(query)
                messages, following = self._messages(server, asked, query)
                weighted = self._weights.times(messages, asked.clients)
                arrived = {name: _rows(message, asked) for name, message in weighted.items()}
                self._noise.prepare(asked)
                return self._values(arrived), (asked, following)

            query, released, (asked, following) = answer(self._gate, bounded)
            self._clients = self._acknowledged(self._fed_back(following, asked), asked)
        # ---- below the line: may be logged, reused, published ----
        total = {name: noisy for block in released.values() for name, noisy in block.items()}
        self.server = self.algorithm.receive(server, {name: x / self.divisor for name, x in total.items()})
        return Round(query, total, self.divisor, None if self._draws is not None else int(asked.arrived.sum()))

    def _asked(self, query: int) -> Asked:
        """Draw who takes part, and whose message is lost. Nobody else's message is made, in this round or later."""
        n, clients = self.problem.num_clients, None
        if self._draws is not None:
            drawn = self._draws.mask(query, self._gate.coins, n)  # each client once, whatever the sampler returns
            clients = torch.from_numpy(np.flatnonzero(drawn))
        elif self.privacy.expected_clients(n) < n:
            asked = self._gate.query_stream("clients", query).choice(n, int(self.privacy.expected_clients(n)))
            clients = torch.from_numpy(asked)
        taking_part = n if clients is None else len(clients)
        lost = self._gate.query_stream("lost", query).bernoulli(taking_part, self.loss_rate)
        return Asked(clients, torch.from_numpy(~lost))

    def _messages(self, server: ServerState, asked: Asked, query: int) -> tuple[dict[str, Tensor], State]:
        """Return the messages of the clients that take part, without noise, and their next states."""
        drawn = self._drawn(query)
        state = _taken(self._clients, asked.clients)
        if not self._noise.by_client:
            return self._of(asked.clients, state, server, drawn)
        numbers = torch.arange(self.problem.num_clients) if asked.clients is None else asked.clients
        each = [
            self._of(client, _taken(state, torch.tensor([place])), server, drawn)
            for place, client in enumerate(numbers.split(1))
        ]
        if not each:
            return self._of(numbers, state, server, drawn)
        messages = {name: torch.cat([message[name] for message, _ in each]) for name in self._message_shapes}
        following = {
            kind: {name: torch.cat([one[kind][name] for _, one in each]) for name in tensors}
            for kind, tensors in state.items()
        }
        return messages, following

    def _drawn(self, query: int) -> Tensor | None:
        """Draw the rows of every client: by secret coins if these count for the guarantee."""
        stream, sampling = self._gate.query_stream("batch", query), self.privacy.sampling
        if sampling is None:
            return self.problem.draw(torch.Generator().manual_seed(stream.seed() % 2**63))
        clients, rows = self.problem.num_clients, self.problem.num_rows
        coins = stream.bernoulli(clients * rows, sampling.sample_rate)
        return torch.from_numpy(coins).reshape(clients, rows)

    def _of(
        self, clients: Tensor | None, state: State, server: ServerState, drawn: Tensor | None
    ) -> tuple[dict[str, Tensor], State]:
        shapes = self.problem.shapes

        def gradient(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
            sampling = self.privacy.sampling
            if sampling is None or drawn is None:
                return finite_or_zero(self.problem.gradients(params, clients, drawn), shapes)
            return finite_or_zero(self.problem.clipped_gradients(params, clients, drawn, sampling), shapes)

        return self.algorithm.message(state, server.params, gradient, shapes)

    def _values(self, messages: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the bounded values by block: the sum of messages, or all of them if every client has its noise."""
        total = messages if self._noise.by_client else {name: message.sum(dim=0) for name, message in messages.items()}
        return {block: {name: total[name] for name in names} for block, names in self._groups.items()}

    def _fed_back(self, following: State, asked: Asked) -> State:
        """Return the next states of the clients that take part, given what those whose message arrived have sent."""
        if not self.algorithm.feeds_back:
            return following
        places = asked.arrived.nonzero().squeeze(1)
        taking_part = len(asked.arrived)
        sent = {
            name: x.new_zeros(taking_part, *x.shape[1:]).index_copy(0, places, x)
            for name, x in self._noise.sent.items()
        }
        return self.algorithm.after(following, sent)

    def _acknowledged(self, following: State, asked: Asked) -> State:
        """Return the clients' states: those whose message arrived have moved, all others are as they were."""
        if asked.clients is None and asked.all_arrived:
            return following
        moved = asked.arrived.nonzero().squeeze(1)
        places = moved if asked.clients is None else asked.clients[moved]
        return {
            kind: {name: x.index_copy(0, places, following[kind][name][moved]) for name, x in tensors.items()}
            for kind, tensors in self._clients.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs. ``clients`` is private: never share it."""
        return {
            **self._gate.state_dict(),
            "params": self.server.params,
            "estimate": self.server.estimate,
            "memory": {kind: dict(tensors) for kind, tensors in self.server.memory.items()},
            "clients": self._clients,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`: rounds that were made since are redone, bit for bit and at no charge.

        Raises:
            ResumeError: The state is one of another session, or of another key.
        """
        self._gate.load_state_dict(state)
        self.server = ServerState(dict(state["params"]), dict(state["estimate"]), dict(state["memory"]))
        self._clients = {kind: dict(tensors) for kind, tensors in state["clients"].items()}

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, whole or not at all. It is private; the key is saved by ``randomness.save``."""
        self.session.flush()
        checkpoint.save(Path(path), self.state_dict(), {})

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint that :meth:`save` wrote."""
        self.load_state_dict(checkpoint.load(Path(path))[0])

    def __repr__(self) -> str:
        return f"Simulation({self.problem!r}, {self.algorithm!r}, privacy={self.privacy!r}, rounds={self.rounds})"


def _rows(message: Tensor, asked: Asked) -> Tensor:
    return message if asked.all_arrived else message[asked.arrived]


def _taken(state: State, clients: Tensor | None) -> State:
    if clients is None:
        return state
    return {kind: {name: x[clients] for name, x in tensors.items()} for kind, tensors in state.items()}
