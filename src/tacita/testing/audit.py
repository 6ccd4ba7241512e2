"""The audit: try every adversary and statistic on a few runs, then measure with the best on many.

The runs that explore and the runs that measure are different ones, so the choice costs no confidence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.testing import bounds
from tacita.testing.adversaries import Adversary
from tacita.testing.arena import Arena, arenas_of
from tacita.testing.claims import MANY, Claim
from tacita.testing.result import AuditResult
from tacita.testing.roc import auc, roc, tpr_at_fpr
from tacita.testing.sessions import MakeOracle, is_plain
from tacita.testing.simulator import Trace
from tacita.testing.statistics import STATISTICS, LikelihoodRatio, Pilot, Score, Statistic

PILOT, EXPLORED = 1000, 4000  # runs in each world
LOOPED_PILOT, LOOPED_EXPLORED, LOOPED_RUNS = 50, 100, 1000  # if each run is queried one by one
KEPT = ("residual", "shift", "drawn", "others")  # the fields of a trace, in order
FPRS = (1e-1, 1e-2, 1e-3)
Progress = Callable[[int], None]  # called with the number of further runs that are done
Gain = Callable[[np.ndarray, np.ndarray, Claim], tuple]  # (scores with the canary, without, claim) -> value to maximise


@dataclass(frozen=True)
class Candidate:
    """An adversary with a statistic, and how well they did on a few runs.

    Attributes:
        arena: The adversary's arena.
        statistic: The statistic.
        score: The statistic, fitted on pilot runs.
        refutes: Whether the few runs refuted the claim.
        gain: The value by which candidates are compared.
    """

    arena: Arena
    statistic: Statistic
    score: Score
    refutes: bool
    gain: tuple

    @property
    def exact(self) -> bool:
        """Whether no other statistic is better for this adversary if the oracle does what it states."""
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
    """Measure a lower bound on the epsilon of an oracle, and compare it with the ledger's claim.

    The oracle runs many times on two neighbouring data sets that an adversary chose (a linear problem, in which a row
    is its own gradient). An oracle with an estimator, a mechanism and a sampler of this library is simulated by these
    parts, many runs at once. Any other object with ``query(params)`` is queried session by session, for fewer runs.

    Guarantee: the bound exceeds the true epsilon with probability at most 1 - ``confidence``; a true claim is refuted
    with probability at most ``false_alarm``. "Consistent" only means that these adversaries, with so many runs, have
    not shown more.

    Args:
        make_oracle: ``(rows, ledger) -> oracle``: rows (n, d), the loss of a row is its inner product with the
            parameters. The claim is read from the ledger; every session is one run.
        relation: How the two data sets differ.
        delta: In (0, 1). At 1e-2 a bound comes within 10 % with 10^6 runs; far smaller deltas need more runs.
        runs: Number of runs in each of the two worlds; at most 1000 if sessions are queried one by one.
        adversaries: The adversaries to choose from; by default all that suit the relation.
        columns: d.
        confidence: Of the reported bounds.
        false_alarm: Of the verdict.
        seed: Seed of the simulated runs. Real sessions are seeded by the system.
        name: Name of the audited oracle, for reports.
        claim: The claim to test, instead of the ledger's.
        progress: Called with the number of runs done since its last call.

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
    arenas = [arena if is_plain(arena.oracles[0]) else replace(arena, parts=None, worlds=None) for arena in arenas]
    tried = explore(arenas, _shown, seed, false_alarm=false_alarm)
    chosen = max(tried, key=lambda candidate: (candidate.refutes, candidate.exact, candidate.gain))
    runs = runs if chosen.arena.vectorised else min(runs, LOOPED_RUNS)
    present, absent = (measure(chosen, world, runs, seed, progress) for world in (True, False))
    found = judged(chosen, (present, absent), confidence=confidence, false_alarm=false_alarm)
    return replace(found, name=name, explored=len(tried))


def judged(
    chosen: Candidate, scores: tuple[np.ndarray, np.ndarray], *, confidence: float, false_alarm: float
) -> AuditResult:
    """Return the result from scores (with the canary, without) of runs that took no part in the choice."""
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
        auc=auc(present, absent),
        tpr_at_fpr={fpr: tpr_at_fpr(*positive, fpr) for fpr in FPRS},
        roc=roc(*positive, confidence),
    )


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
    """Try every adversary with every statistic, on runs that are not used to measure.

    Args:
        arenas: The arenas to choose from.
        gain: (scores with the canary, without, claim) -> value to maximise.
        seed: Seed of these runs.
        false_alarm: False alarm at which a claim counts as refuted here.
        sizes: Number of runs in each world to fit statistics, and to compare them.
        looped_sizes: The same where sessions are queried one by one.
        look: Called with every trace.
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
    """Return the scores of ``runs`` new runs in one world."""
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
    """Return the value that an audit maximises: the bound on epsilon at delta and, to break ties at 0, that on mu."""
    return bounds.epsilon_lower_bound(present, absent, claim.delta).value, bounds.mu_lower_bound(present, absent).value


def _seed(seed: int, stage: int, number: int) -> int:
    """Derive a seed for each stage and arena, so that they never share coins or noise."""
    return (seed * 4 + stage) * 2**16 + number
