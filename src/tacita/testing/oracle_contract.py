"""The contract test of gradient oracles: the claim survives every adversary, and queries do what the parts state."""

import math
from dataclasses import replace

import numpy as np
import torch

from tacita import _validate
from tacita.accounting import RELATIONS, NeighboringRelation
from tacita.errors import UnsupportedEventError
from tacita.testing import bounds
from tacita.testing.adversaries import ADVERSARIES, CONSTANT, COORDINATE, EMPTY, HOSTILE, HUGE
from tacita.testing.arena import Arena, arenas_of
from tacita.testing.audit import explore, judged, measure
from tacita.testing.claims import Claim
from tacita.testing.fidelity import (
    check_every_query,
    check_fresh,
    check_noise,
    check_noise_or_dropped,
    check_precision,
    in_whole_steps,
)
from tacita.testing.sessions import Asking, MakeOracle, has_parts, is_plain, released_in, replayed, source_of
from tacita.testing.simulator import Trace, simulate

FALSE_ALARM = 1e-6  # of one call, over all relations and checks
SIZES = (300, 800)  # runs in each world to fit statistics, and to compare them
LOOPED_SIZES = (40, 60)
RUNS, LOOPED_RUNS = 100_000, 400  # runs in each world to measure
SIMULATED = 40  # simulated runs whose noise is looked at
COLUMNS = 4
SEED = 0  # of simulated runs; real sessions are seeded by the system
ASKED = 4  # most queries of a real session that is not a whole one
WHOLE = 3  # sessions through all planned queries, in each world
REAL_QUERIES = {CONSTANT: 60}  # real queries in each world; HOSTILE_QUERIES for the other adversaries
HOSTILE_QUERIES = 12
FIRST_HAND = (CONSTANT, *HOSTILE)  # the adversaries on whose data sets real sessions are queried
LOOPED = (CONSTANT, EMPTY, COORDINATE, *HOSTILE)


def check_oracle(make_oracle: MakeOracle, *, delta: float = 1e-2) -> None:
    """Check a gradient oracle against its claim, under every relation for which it has a guarantee.

    An oracle of this library must still have the estimator, sampler, mechanism, noise and plan with which its session
    was registered. For each relation, real queries are made. Each must be in the ledger under the session and number
    that its release names; the release must be finite, and its public fields must not depend on the data. The further
    checks depend on the kind of oracle:

    1. A :class:`~tacita.GradientOracle` with a Gaussian mechanism. Its releases must be the estimator's values on the
       batch that was drawn, with noise of the stated standard deviation, and no noise may be used twice (exact
       chi-square tests). In some sessions this is checked for every planned query, made by ``query`` and, for a model,
       by ``backward``. Its ``gradient`` must be what the estimator makes of ``released`` and the sampler's divisor, bit
       for bit, and ``backward`` must assign exactly that. Then tens of thousands of whole runs are simulated by these
       parts, with every adversary.
    2. A subclass that overrides a method or property, or an instance on which one was replaced (the oracle's, its
       gate's or a part's). What it does may differ from what its parts do. So ``make_oracle`` builds the oracle of
       every session, and the checks of 1 and of 3 are made. Whatever it computes from a release beyond the estimator's
       gradient belongs outside ``query``.
    3. Any other object with ``query(params)``, and oracles whose estimator needs its own engine (capped sums of rounded
       noise on a network). Some hundred runs of at most four queries are made and judged by the released values and
       the gradient, which only reveals gross errors. Later queries are only checked not to be the same in every
       session.

    The first kind takes about five seconds on a free core if few queries are planned. The others need about ten
    thousand real queries: a few seconds for cheap ones, a minute or two for a network's.

    A correct oracle fails with probability at most 1e-6. An audit cannot see much of a large epsilon: choose the noise
    so that the claim is about 1 to 3, and plan few queries.

    Args:
        make_oracle: ``(rows, ledger) -> oracle`` for a linear problem: ``rows`` are float32 of shape (n, d), possibly
            empty, and the loss of a row is its inner product with the parameters. The in-memory ledger has the
            neighboring relation. Under add_or_remove_one, declare a constant number of records; under the other
            relations, and for a sampler that needs the true number, use ``len(rows)``. Relations for which it raises
            ``UnsupportedEventError`` are skipped.
        delta: The delta at which epsilon is claimed.

    Raises:
        AssertionError: The oracle fails a check; the message names the adversary, the claim and the measured bound. Or
            no relation is supported, or the claimed epsilon is infinite.

    Example:
        >>> from tacita import ClippedSum, FlatClipper, FullBatchSampler, GaussianMechanism, GradientOracle
        >>> from tacita.gradients.given import GivenSource
        >>> def make_oracle(rows, ledger):
        ...     known = len(rows) if ledger.neighboring_relation != "add_or_remove_one" else 10
        ...     return GradientOracle(
        ...         GivenSource(rows), estimator=ClippedSum(FlatClipper(max_grad_norm=1.0)), ledger=ledger,
        ...         sampler=FullBatchSampler(num_records=known), mechanism=GaussianMechanism(noise_multiplier=2.0),
        ...         planned_queries=2)
        >>> check_oracle(make_oracle)
    """
    _validate.delta("delta", delta)
    refused = {}
    for relation in RELATIONS:
        try:
            arenas = arenas_of(make_oracle, relation, delta, [CONSTANT], columns=COLUMNS)
        except UnsupportedEventError as error:
            refused[relation] = error
            continue
        _check(arenas, make_oracle, relation, delta)
    assert len(refused) < len(RELATIONS), (
        "make_oracle raises UnsupportedEventError under every relation: there is nothing to check. "
        + " ".join(f"{relation}: {error}" for relation, error in refused.items())
    )


def _check(arenas: list[Arena], make_oracle: MakeOracle, relation: NeighboringRelation, delta: float) -> None:
    claimed = arenas[0].claim.epsilon
    assert math.isfinite(claimed), f"{relation}: the ledger claims epsilon {claimed} at delta {delta:g}."
    false_alarm = FALSE_ALARM / len(RELATIONS) / 5
    by_parts = arenas[0].vectorised and has_parts(arenas[0].oracles[0])
    one_by_one = not (by_parts and is_plain(arenas[0].oracles[0]))
    others = [
        a for a in (ADVERSARIES.values() if by_parts else LOOPED) if a is not CONSTANT and relation in a.relations
    ]
    arenas += arenas_of(make_oracle, relation, delta, others, columns=COLUMNS)
    if by_parts:
        _check_first_hand([arena for arena in arenas if arena.adversary in FIRST_HAND], false_alarm)
        _check_whole_sessions(arenas[0], false_alarm)
        _check_simulated(arenas[0], false_alarm)
        _attack(arenas, RUNS, false_alarm)
    else:
        _check_fresh(next((arena for arena in arenas if arena.adversary is EMPTY), arenas[0]))
    if one_by_one:
        _attack([_one_by_one(arena) for arena in arenas if arena.adversary in LOOPED], LOOPED_RUNS, false_alarm)


def _check_first_hand(arenas: list[Arena], false_alarm: float) -> None:
    """Compare real queries with the noiseless values of the parts."""
    noise = []
    for arena in map(_asked_less, arenas):
        parts, worlds = arena.parts, arena.worlds
        assert parts is not None, "only oracles with parts are compared with them"
        assert worlds is not None, "parts come with worlds"
        for present in (True, False):
            found = arena.sessions(present, _sessions(arena))
            trace = replayed(replace(parts, queries=arena.queries), worlds, present, found)
            _check_finite(arena, trace)
            if arena.releases_noise_alone(present) and not in_whole_steps(arena.oracles[0]):
                check_precision(trace.residual)
            if arena.adversary is HUGE:
                check_noise_or_dropped(trace.residual, trace.shift, false_alarm / 4)
            else:
                noise.append(trace.residual - trace.shift)
    check_noise(torch.cat(noise), false_alarm / 2)


def _check_whole_sessions(arena: Arena, false_alarm: float) -> None:
    """Compare every planned query with the noiseless values of the parts; by ``backward`` too if there is a model."""
    parts, worlds = arena.parts, arena.worlds
    assert parts is not None, "only oracles with parts are compared with them"
    assert worlds is not None, "parts come with worlds"
    source = source_of(arena.oracles[0])
    ways = [True] if source is not None and source.model is not None else []
    ways += [False] if arena.queries > ASKED else []  # _check_first_hand made shorter sessions in full
    for backward in ways:
        whole = replace(arena, asking=Asking(COLUMNS, arena.queries, backward=backward))
        traces = [replayed(parts, worlds, present, whole.sessions(present, WHOLE)) for present in (True, False)]
        for trace in traces:
            _check_finite(arena, trace)
        check_every_query(torch.cat([trace.residual - trace.shift for trace in traces]), false_alarm / len(ways))


def _check_simulated(arena: Arena, false_alarm: float) -> None:
    """Check the noise of simulated runs, of which the mechanism makes many in one call: each must have its own."""
    assert arena.parts is not None, "only oracles with parts are simulated"
    assert arena.worlds is not None, "parts come with worlds"
    traces = list(simulate(arena.parts, arena.worlds, present=False, runs=SIMULATED, seed=SEED))
    check_noise(torch.cat([trace.residual - trace.shift for trace in traces]), false_alarm)


def _check_fresh(arena: Arena) -> None:
    """Check that queries have noise, in whole sessions on one data set (without rows if possible)."""
    whole = replace(arena, parts=None, worlds=None, asking=Asking(COLUMNS, arena.queries))
    check_fresh(torch.stack([released_in(session) for _, session in whole.sessions(False, WHOLE)]))


def _attack(arenas: list[Arena], runs: int, false_alarm: float) -> None:
    """Raise ``AssertionError`` if the best candidate, or the best exact one, refutes the claim."""
    tried = explore(
        arenas, _promise, SEED, false_alarm=false_alarm, sizes=SIZES, looped_sizes=LOOPED_SIZES, look=_check_finite
    )
    exact = [candidate for candidate in tried if candidate.exact]
    best = [max(group, key=lambda candidate: candidate.gain) for group in (exact, tried) if group]
    for chosen in best[:1] if best[0] is best[-1] else best:
        present, absent = (measure(chosen, world, runs, SEED) for world in (True, False))
        found = judged(chosen, (present, absent), confidence=0.95, false_alarm=false_alarm / 2)
        assert found.verdict == "consistent", (
            f"{found.relation}, adversary {found.adversary!r} scored by {found.statistic}, {found.runs} runs a world: "
            f"{found.words()}"
        )


def _promise(present: np.ndarray, absent: np.ndarray, claim: Claim) -> tuple[float]:
    return (bounds.promise(present, absent, claim.allowed),)


def _one_by_one(arena: Arena) -> Arena:
    return replace(_asked_less(arena), parts=None, worlds=None)


def _asked_less(arena: Arena) -> Arena:
    return replace(arena, asking=Asking(COLUMNS, min(arena.queries, ASKED)))


def _sessions(arena: Arena) -> int:
    return max(4, REAL_QUERIES.get(arena.adversary, HOSTILE_QUERIES) // arena.queries)


def _check_finite(arena: Arena, trace: Trace) -> None:
    assert bool(trace.residual.isfinite().all()), f"adversary {arena.adversary.name!r}: a release is not finite."
