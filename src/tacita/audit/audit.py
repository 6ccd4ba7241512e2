"""The audit: try every adversary and statistic on a few runs, then measure with the best on many.

Place: simulator, sessions, statistics, bounds -> [audit.audit] -> the command line, contract. Runs that explore and
runs that measure are different ones, so that the choice costs no confidence.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Ledger, NeighboringRelation, SamplingLaw
from tacita.audit import bounds
from tacita.audit.adversaries import ADVERSARIES, Adversary
from tacita.audit.claims import FEW, MANY, Claim
from tacita.audit.result import AuditResult
from tacita.audit.sessions import Asking, MakeOracle, Queryable, in_memory, looped, remade, sessions
from tacita.audit.simulator import Parts, Trace, Worlds, gradients_of, parts_of, simulate, worlds_of
from tacita.audit.statistics import STATISTICS, LikelihoodRatio, Pilot, Score, Statistic

PILOT, EXPLORED = 1000, 4000  # runs a world
LOOPED_PILOT, LOOPED_EXPLORED, LOOPED_RUNS = 50, 100, 1000  # where each run is asked query by query
KEPT = ("residual", "shift", "drawn", "others")  # of a trace, in order
FPRS = (1e-1, 1e-2, 1e-3)
Progress = Callable[[int], None]  # so many runs more are done
Gain = Callable[[np.ndarray, np.ndarray, Claim], tuple]  # (scores with the canary, without, claim) -> to be large


@dataclass(frozen=True)
class Arena:
    """An oracle on the two data sets of one adversary, and a way to run it in either.

    Attributes:
        adversary: Whose data sets they are.
        claim: What the ledger says.
        oracles: On the data set with the canary, and without.
        ledgers: Theirs.
        asking: Asks them.
        parts: For runs many at once; ``None`` if they have to be asked one by one.
        worlds: The rows' gradients, if there are parts.
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
        """In a run."""
        return self.asking.queries

    @property
    def vectorised(self) -> bool:
        """Whether runs are made many at once."""
        return self.parts is not None

    @property
    def law(self) -> SamplingLaw | None:
        """How records are drawn, if that is known."""
        return None if self.parts is None else self.parts.sampler.law

    @property
    def remembers(self) -> bool:
        """Whether the estimator has a state."""
        if self.parts is None or self.worlds is None:
            return True
        shapes = {name: g.shape[-1:] for name, g in self.worlds.present.items()}
        return self.parts.estimator.initial_state(shapes, lead=(2, 1)) is not None

    def releases_noise_alone(self, present: bool) -> bool:
        """Whether every row in this world is zero."""
        gone = self.ledgers[0].neighboring_relation != "replace_one" and not present
        return gone and self.adversary.others == 0

    def runs(self, present: bool, runs: int, seed: int) -> Iterator[Trace]:
        """Traces of so many runs in the world with or without the canary."""
        if self.parts is not None and self.worlds is not None:
            yield from simulate(self.parts, self.worlds, present=present, runs=runs, seed=seed)
        else:
            yield looped(self.sessions(present, runs))

    def sessions(self, present: bool, runs: int) -> Iterator[Any]:
        """So many real sessions."""
        which = 0 if present else 1
        oracle, ledger = self.oracles[which], self.ledgers[which]
        if any(session.queries_made for session in ledger.sessions):
            ledger = in_memory(ledger.neighboring_relation)
            oracle = self.make(present, ledger)
        remake = remade(oracle, lambda ledger: self.make(present, ledger))
        return sessions((oracle, ledger), remake, runs, self.asking)


@dataclass(frozen=True)
class Candidate:
    """An adversary and a statistic, and what a few runs spoke for them.

    Attributes:
        arena: The adversary's.
        statistic: Its name and kind.
        score: Fitted on pilot runs.
        refutes: Whether the few runs refuted the claim.
        gain: What they showed.
    """

    arena: Arena
    statistic: Statistic
    score: Score
    refutes: bool
    gain: tuple

    @property
    def exact(self) -> bool:
        """Whether no other statistic can beat this one, but by luck, if the oracle does what it says."""
        return isinstance(self.statistic, LikelihoodRatio)


def audit_oracle(
    make_oracle: MakeOracle,
    *,
    relation: NeighboringRelation,
    delta: float,
    runs: int = 100_000,
    adversaries: Iterable[Adversary] | None = None,
    columns: int = 2,
    confidence: float = 0.95,
    false_alarm: float = 1e-6,
    seed: int = 0,
    name: str = "",
    claim: Claim | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Measure a lower bound on the epsilon of an oracle, and hold it against what its ledger claims.

    Whole runs on two neighbouring data sets, chosen by an adversary: a linear problem, in which a row is its own
    gradient. Runs are made many at once by the oracle's own estimator, mechanism and sampler where it has them, and
    asked query by query, fewer of them, where not: any object with ``query(params)`` will do.

    Guarantee: the bound on epsilon exceeds the true value with a chance of at most 1 - ``confidence``; a true claim is
    refuted with a chance of at most ``false_alarm``. Nothing follows from "consistent" but that these adversaries, with
    so many runs, have shown no more.

    Args:
        make_oracle: ``(rows, ledger) -> oracle``: rows (n, d), the loss of a row is its inner product with the
            parameters. What is claimed is read from the ledger; every session is one run.
        relation: How the two data sets differ.
        delta: In (0, 1). At 1e-2 a bound comes within 10 % with 10^6 runs; far below, runs are too few to see it.
        runs: In each of the two worlds; one-by-one runs are at most 1000.
        adversaries: To choose from; by default all that the relation has.
        columns: d.
        confidence: Of the reported bounds.
        false_alarm: Of the verdict.
        seed: Of the simulated runs. Real sessions draw from the system.
        name: Of what is audited.
        claim: Instead of what the ledger says.
        progress: Called with the number of runs done since it was last called.

    Raises:
        UnsupportedEventError: The oracle has no guarantee under ``relation``.
        ValueError: A setting is out of range.

    Example:
        >>> from tacita import ClippedSum, FlatClipper, FullBatchSampler, GaussianMechanism, GradientOracle
        >>> from tacita.gradients.given import GivenSource
        >>> def make_oracle(rows, ledger):
        ...     return GradientOracle(
        ...         GivenSource(rows), estimator=ClippedSum(FlatClipper(max_grad_norm=1.0)), ledger=ledger,
        ...         sampler=FullBatchSampler(num_records=4), mechanism=GaussianMechanism(noise_multiplier=1.0),
        ...         planned_queries=1)
        >>> found = audit_oracle(make_oracle, relation="add_or_remove_one", delta=1e-2, runs=20_000)
        >>> found.verdict, 0.7 < found.epsilon_lower_bound / found.claim.epsilon < 1
        ('consistent', True)
    """
    _validate.delta("delta", delta)
    _validate.count("runs", runs, at_least=2 * bounds.LEAST_RUNS)
    arenas = arenas_of(make_oracle, relation, delta, adversaries, columns=columns, claim=claim, multiples=MANY)
    tried = explore(arenas, _shown, seed, false_alarm=false_alarm)
    chosen = max(tried, key=lambda candidate: (candidate.refutes, candidate.exact, candidate.gain))
    runs = runs if chosen.arena.vectorised else min(runs, LOOPED_RUNS)
    present, absent = (measure(chosen, world, runs, seed, progress) for world in (True, False))
    found = judged(chosen, (present, absent), confidence=confidence, false_alarm=false_alarm)
    return replace(found, name=name, explored=len(tried))


def judged(
    chosen: Candidate, scores: tuple[np.ndarray, np.ndarray], *, confidence: float, false_alarm: float
) -> AuditResult:
    """What the scores of runs that took no part in the choice say: with the canary, and without."""
    arena, (present, absent) = chosen.arena, scores
    bound = bounds.epsilon_lower_bound(present, absent, arena.claim.delta, confidence)
    positive = (present, absent) if bound.event.direction == "present" else (-absent, -present)
    return AuditResult(
        relation=arena.ledgers[0].neighboring_relation,
        claim=arena.claim,
        bound=bound,
        mu=bounds.mu_lower_bound(present, absent, confidence),
        excess=bounds.excess(present, absent, arena.claim.allowed, false_alarm / 2),
        strict=bounds.epsilon_lower_bound(present, absent, arena.claim.delta, 1 - false_alarm / 2),
        false_alarm=false_alarm,
        adversary=arena.adversary.name,
        statistic=chosen.statistic.name,
        runs=len(present),
        queries=arena.queries,
        vectorised=arena.vectorised,
        auc=bounds.auc(present, absent),
        tpr_at_fpr={fpr: bounds.tpr_at_fpr(*positive, fpr) for fpr in FPRS},
        roc=bounds.roc(*positive, confidence),
    )


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
    """An arena for each adversary that the relation has.

    Raises:
        AssertionError: What is claimed differs between the two data sets.
    """
    known: dict[Any, Claim] = {}
    suitable = [a for a in adversaries or ADVERSARIES.values() if relation in a.relations]
    if not suitable:
        raise ValueError(f"adversaries must hold one for {relation}, got none.")
    found = []
    for adversary in suitable:
        pair = adversary.pair(relation, columns)
        rows = {True: pair.present, False: pair.absent}

        def make(present: bool, ledger: Ledger, rows: dict[bool, Tensor] = rows) -> Queryable:
            return make_oracle(rows[present], ledger)

        ledgers = in_memory(relation), in_memory(relation)
        oracles = make(True, ledgers[0]), make(False, ledgers[1])
        plans = [tuple((s.event, s.planned_queries) for s in ledger.sessions) for ledger in ledgers]
        check_same_claim(adversary, *plans)
        key = plans[0]
        if key not in known:
            known[key] = claim or Claim.of(ledgers[0], delta, multiples)
        queries = ledgers[0].sessions[-1].planned_queries
        parts = parts_of(oracles[0], queries)
        worlds = None
        if parts is not None:
            worlds = worlds_of(adversary, relation, parts, gradients_of(oracles[0]), gradients_of(oracles[1]))
        found.append(Arena(adversary, known[key], oracles, ledgers, make, Asking(columns, queries), parts, worlds))
    return found


def check_same_claim(adversary: Adversary, plan: tuple, other: tuple) -> None:
    """Fail unless events and numbers of queries are the same with the canary and without."""
    assert plan == other, f"{adversary.name}: what is claimed depends on the data: {plan} and {other}."


def explore(
    arenas: Sequence[Arena],
    gain: Gain,
    seed: int,
    *,
    false_alarm: float,
    sizes: tuple[int, int] = (PILOT, EXPLORED),
    looped_sizes: tuple[int, int] = (LOOPED_PILOT, LOOPED_EXPLORED),
    look: Callable[[Arena, Trace], None] = lambda arena, trace: None,
) -> list[Candidate]:
    """Every adversary with every statistic, on runs that measure nothing.

    Args:
        arenas: To choose from.
        gain: (scores with the canary, without, claim) -> what is to be large.
        seed: Of these runs.
        false_alarm: At which a claim counts as refuted here.
        sizes: Runs, in each world, that fit statistics and that compare them.
        looped_sizes: The same where runs are made one by one.
        look: Is shown every trace.
    """
    found = []
    for number, arena in enumerate(arenas):
        fitted, compared = sizes if arena.vectorised else looped_sizes
        pilot = _pilot(arena, fitted, _seed(seed, 1, number))
        few = [list(arena.runs(world, compared, _seed(seed, 2, number))) for world in (True, False)]
        for trace in (pilot.present, pilot.absent, *few[0], *few[1]):
            look(arena, trace)
        for statistic in STATISTICS:
            score = statistic.fit(pilot)
            if score is None:
                continue
            present, absent = (np.concatenate([score(trace) for trace in traces]) for traces in few)
            refutes = bounds.excess(present, absent, arena.claim.allowed, false_alarm).value > 0
            found.append(Candidate(arena, statistic, score, refutes, gain(present, absent, arena.claim)))
    return found


def measure(chosen: Candidate, present: bool, runs: int, seed: int, progress: Progress | None = None) -> np.ndarray:
    """Scores of so many new runs in one world."""
    scores = []
    for trace in chosen.arena.runs(present, runs, _seed(seed, 3, 0)):
        scores.append(chosen.score(trace))
        if progress is not None:
            progress(len(trace))
    return np.concatenate(scores)


def _pilot(arena: Arena, runs: int, seed: int) -> Pilot:
    present, absent = (_joined(list(arena.runs(world, runs, seed))) for world in (True, False))
    return Pilot(
        present=present,
        absent=absent,
        law=arena.law,
        copies=arena.adversary.copies,
        coins_known=arena.parts is not None and arena.parts.coins_known,
        remembers=arena.remembers,
    )


def _joined(traces: list[Trace]) -> Trace:
    if len(traces) == 1:
        return traces[0]
    return Trace(*(_stacked([getattr(trace, kept) for trace in traces]) for kept in KEPT))


def _stacked(parts: list[Tensor | None]) -> Any:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def _shown(present: np.ndarray, absent: np.ndarray, claim: Claim) -> tuple[float, float]:
    """What an audit wants large: epsilon at delta; where that is 0, mu."""
    return bounds.epsilon_lower_bound(present, absent, claim.delta).value, bounds.mu_lower_bound(present, absent).value


def _seed(seed: int, stage: int, number: int) -> int:
    """Stages and arenas never share coins or noise."""
    return (seed * 4 + stage) * 2**16 + number
