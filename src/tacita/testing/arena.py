"""Arenas: an oracle on the two data sets of one adversary, and the means to run it on either."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tacita.accounting import NeighboringRelation, SamplingLaw
from tacita.ledger import Ledger
from tacita.oracles import Queryable
from tacita.testing.adversaries import ADVERSARIES, Adversary
from tacita.testing.claims import FEW, Claim
from tacita.testing.sessions import Asking, MakeOracle, check_as_charged, in_memory, looped, remade, sessions
from tacita.testing.simulator import Parts, Trace, Worlds, gradients_of, parts_of, simulate, worlds_of


@dataclass(frozen=True)
class Arena:
    """An oracle on the two data sets of one adversary, and the means to run it on either.

    Attributes:
        adversary: The adversary that chose the data sets.
        claim: The ledger's claim.
        oracles: The oracles on the data sets with and without the canary.
        ledgers: Their ledgers.
        make: ``(present, ledger) -> oracle``.
        asking: Queries the oracles.
        parts: The oracle's parts, to simulate many runs at once; ``None`` if sessions must be queried one by one.
        worlds: The rows' gradients; ``None`` without parts.
    """

    adversary: Adversary
    claim: Claim
    oracles: tuple[Queryable, Queryable] = field(repr=False)
    ledgers: tuple[Ledger, Ledger] = field(repr=False)
    make: Callable[[bool, Ledger], Queryable] = field(repr=False)
    asking: Asking = field(repr=False)
    parts: Parts | None = field(repr=False)
    worlds: Worlds | None = field(repr=False)

    @property
    def queries(self) -> int:
        """Number of queries in a run."""
        return self.asking.queries

    @property
    def vectorised(self) -> bool:
        """Whether many runs are simulated at once."""
        return self.parts is not None

    @property
    def law(self) -> SamplingLaw | None:
        """The sampling law, if it is known."""
        return None if self.parts is None else self.parts.sampler.law

    @property
    def remembers(self) -> bool:
        """Whether the estimator has a state."""
        if self.parts is None or self.worlds is None:
            return True
        shapes = {name: g.shape[-1:] for name, g in self.worlds.present.items()}
        return self.parts.estimator.initial_state(shapes, lead=(2, 1)) is not None

    def releases_noise_alone(self, present: bool) -> bool:
        """Return whether every row in this world is zero or missing, so that only noise is released."""
        gone = self.ledgers[0].neighboring_relation != "replace_one" and not present
        return gone and self.adversary.others == 0

    def runs(self, present: bool, runs: int, seed: int) -> Iterator[Trace]:
        """Yield traces of ``runs`` runs in the world with or without the canary."""
        if self.parts is not None and self.worlds is not None:
            yield from simulate(self.parts, self.worlds, present=present, runs=runs, seed=seed)
        else:
            yield looped(self.sessions(present, runs))

    def sessions(self, present: bool, runs: int) -> Iterator[Any]:
        """Yield ``runs`` real sessions, each with its oracle."""
        which = 0 if present else 1
        oracle, ledger = self.oracles[which], self.ledgers[which]
        if any(session.queries_made for session in ledger.sessions):
            ledger = in_memory(ledger.neighboring_relation)
            oracle = self.make(present, ledger)
        remake = remade(oracle, lambda ledger: self.make(present, ledger))
        return sessions((oracle, ledger), remake, runs, self.asking)


def arenas_of(
    make_oracle: MakeOracle,
    relation: NeighboringRelation,
    delta: float,
    adversaries: Iterable[Adversary] | None = None,
    *,
    columns: int,
    claim: Claim | None = None,
    multiples: tuple[float, ...] = FEW,
) -> list[Arena]:
    """Build an arena for each adversary that suits the relation.

    Raises:
        AssertionError: The claim differs between the two data sets, or is not that of the oracle that was made.
    """
    known: dict[Any, Claim] = {}
    suitable = [a for a in adversaries or ADVERSARIES.values() if relation in a.relations]
    if not suitable:
        raise ValueError(f"adversaries must include one for {relation}, got none.")
    found = []
    for adversary in suitable:
        pair = adversary.pair(relation, columns)
        rows = {True: pair.present, False: pair.absent}

        def make(present: bool, ledger: Ledger, rows: dict[bool, Tensor] = rows) -> Queryable:
            return make_oracle(rows[present], ledger)

        ledgers = in_memory(relation), in_memory(relation)
        oracles = make(True, ledgers[0]), make(False, ledgers[1])
        for oracle, ledger in zip(oracles, ledgers, strict=True):
            check_as_charged(oracle, ledger)
        plans = [tuple((s.event, s.planned_queries) for s in ledger.sessions) for ledger in ledgers]
        check_same_claim(adversary, *plans)
        key = plans[0]
        if key not in known:
            known[key] = claim or Claim.of(ledgers[0], delta, multiples)
        queries = ledgers[0].sessions[-1].planned_queries
        parts = parts_of(oracles[0], queries, relation)
        worlds = None
        if parts is not None:
            worlds = worlds_of(adversary, parts, gradients_of(oracles[0]), gradients_of(oracles[1]))
        found.append(Arena(adversary, known[key], oracles, ledgers, make, Asking(columns, queries), parts, worlds))
    return found


def check_same_claim(adversary: Adversary, plan: tuple, other: tuple) -> None:
    """Raise ``AssertionError`` unless events and numbers of queries are the same with and without the canary."""
    assert plan == other, f"{adversary.name}: what is claimed depends on the data: {plan} and {other}."
