"""The contract test of every sampler: draws are pure functions of the coins, and have the law that the sampler states.

Place: sampling -> [audit.sampler_contract] -> tests, ours and third parties'. Coins come from fixed seeds, so that a
sampler passes always or never.
"""

import copy
import itertools
from collections.abc import Iterator

import numpy as np
from scipy import stats

from tacita.accounting import CyclicLaw, CyclicPoissonLaw, FixedSizeLaw, FullBatchLaw, SamplingLaw
from tacita.accounting.sampling_laws import AssignedLaw, GroupedLaw
from tacita.random import QueryCoins, Randomness
from tacita.sampling import Sampler, as_sampler
from tacita.testing.simulator import masks_of

FALSE_ALARM = 1e-6  # of one call, over all frequencies that are compared
SESSIONS, RUNS = 1500, 20_000  # drawn one by one; drawn at once by a sampler that has its own ``masks``
QUERIES = 3  # of a session whose frequencies are counted
EPOCHS = 2  # of a session whose assignments are counted
LEAST_SESSIONS, MOST_DRAWS = 150, 30_000  # fewer sessions where each has many queries
MOST_ROWS, MOST_QUERIES = 200, 200
COUNTED_ROWS = 5  # whose joint frequencies are counted


def check_sampler(sampler: Sampler) -> None:
    """Check that a sampler keeps its contract: how it draws is what its ``law`` says, and nothing else decides it.

    The checks are:

    * A draw holds ascending row numbers, each once, and ``batch`` names the same rows. It depends on the coins, the
      query and the number of rows alone: queries may be drawn again, in another order and between those of another
      session, by the sampler or by a copy.
    * No rows at all are ordinary, and one row less moves no other (or lets one in, where a law has a largest batch and
      it was full), unless the number of records is public; then another number is refused, as is a query that the
      session does not have.
    * No row is in more queries of a session than the law says, nor in two that are nearer than its separation.
    * Unless records are assigned to batches, rows enter each query with the law's chance, or else with the sampler's
      ``sample_rate``, and independently of one another unless the law says that a record's absence moves others; if the
      law has a chance, also independently in two queries. Many runs drawn at once by ``masks`` have the same law.
    * Batches of all records, or that records are assigned to, are together over one epoch as large as the divisor says.
    * Where each record draws its batch of an epoch by its own coin, all batches have the same chance, and a record's
      batch does not depend on another's, nor on its own of another epoch. In cyclic batches it is the same in each.

    A sampler that states a law it does not have is charged for another session than the one that runs, and
    :func:`tacita.testing.check_oracle` cannot see every such case.

    Args:
        sampler: Any sampler, with at most 200 records and at most 200 queries an epoch, so that this takes seconds.

    Raises:
        AssertionError: Names what is broken. A correct sampler fails with a chance of at most 1e-6 over the choice of
            the seeds, which are fixed.

    Example:
        >>> from tacita import PoissonSampler
        >>> check_sampler(PoissonSampler(sample_rate=0.3, num_records=20))
    """
    as_sampler(sampler)
    rows, law = sampler.num_records, sampler.law
    assert isinstance(law, SamplingLaw), f"law must be a SamplingLaw, got {type(law).__name__}."
    assert hasattr(law, "words"), (
        'law must name its kind of sampling in a class attribute: words = "Poisson sampling", say.'
    )
    if rows > MOST_ROWS or sampler.queries_per_epoch > MOST_QUERIES:
        raise ValueError("sampler must have at most 200 records and 200 queries an epoch to be checked.")
    _check_settings(sampler)
    _check_draws(sampler, rows)
    _check_other_rows(sampler, rows)
    _check_queries(sampler, rows)
    _check_epochs(sampler, rows)
    batches = law.batches if isinstance(law, AssignedLaw) and law.own_coin else None
    kinds = [("draw", _drawn_one_by_one)]
    kinds += [("masks", _drawn_at_once)] if type(sampler).masks is not Sampler.masks else []
    for name, drawn in kinds:
        if not isinstance(law, GroupedLaw):
            found = np.stack(list(drawn(sampler, rows, _some(sampler, QUERIES))), axis=1)
            _check_law(name, found, law, sampler.sample_rate, FALSE_ALARM / len(kinds))
        if isinstance(law, CyclicPoissonLaw):
            found = np.stack(list(drawn(sampler, rows, 2 * law.batches_per_cycle)), axis=1)
            _check_turns(name, found, law, FALSE_ALARM / len(kinds))
        if batches is not None:
            assert sampler.queries_per_epoch == batches, "queries_per_epoch must be the law's number of batches."
            queries = _some(sampler, batches if isinstance(law, CyclicLaw) else EPOCHS * batches)
            _check_coins(name, drawn(sampler, rows, queries), batches, FALSE_ALARM / len(kinds))


def _check_settings(sampler: Sampler) -> None:
    copied = copy.deepcopy(sampler)
    assert repr(copied) == repr(sampler), (
        "repr must show the settings and nothing else: a session is bound to it. Make the sampler a frozen dataclass."
    )
    rate = sampler.expected_batch_size / sampler.num_records
    assert abs(rate - sampler.sample_rate) <= 1e-9, (
        f"expected_batch_size must be sample_rate * num_records, and is {sampler.expected_batch_size}."
    )
    assert sampler.max_rows_per_unit == sampler.law.rows_per_unit, "max_rows_per_unit must be that of the law."


def _check_draws(sampler: Sampler, rows: int) -> None:
    coins, queries = _coins(0), range(_some(sampler, 8))
    forward = [sampler.draw(query, coins, rows) for query in queries]
    for drawn in forward:
        assert isinstance(drawn, np.ndarray), f"draw must give an array, got {type(drawn).__name__}."
        assert drawn.dtype == np.int64, f"draw must give int64, got {drawn.dtype}."
        assert drawn.ndim == 1, "draw must give one axis of row numbers."
        assert not drawn.size or (drawn[0] >= 0 and drawn[-1] < rows), "draw must give rows that there are."
        assert (np.diff(drawn) > 0).all(), "draw must give ascending rows, each once."
    before = [drawn.tolist() for drawn in forward]
    for drawn in forward:
        drawn[:] = -1  # a caller may change what it was given
    other, copied = _coins(1), copy.deepcopy(sampler)
    for query in reversed(queries):
        sampler.draw(query, other, rows)
        for again in (sampler.draw(query, _coins(0), rows), copied.draw(query, coins, rows)):
            assert again.tolist() == before[query], (
                f"draw must depend on coins, query and number of rows alone: query {query} was drawn again and differs."
            )
        batch = np.asarray(sampler.batch(query, coins, rows))
        assert batch.tolist() == before[query], "batch must be what draw gives."
        masked = np.flatnonzero(sampler.mask(query, coins, rows))
        assert masked.tolist() == before[query], "mask must be what draw gives."


def _check_other_rows(sampler: Sampler, rows: int) -> None:
    limit = getattr(sampler.law, "max_batch_size", None)  # where one other row may take a place
    moves = sampler.law.absence_moves_others and limit is None
    assert sampler.requires_public_count or not moves, (
        "requires_public_count must be true where the law says that a record's absence moves others."
    )
    for query in range(_some(sampler, 8)):
        whole = sampler.draw(query, _coins(0), rows)
        if sampler.requires_public_count:
            _check_refused(sampler, query, rows - 1, "another number of rows than num_records")
            continue
        fewer = sampler.draw(query, _coins(0), rows - 1)
        others = whole[whole < rows - 1]
        entered = np.setdiff1d(fewer, others) if len(whole) == limit and len(others) < len(whole) else []
        assert len(entered) <= 1, f"one row less lets {len(entered)} others into query {query}."
        assert np.setdiff1d(fewer, entered).tolist() == others.tolist(), (
            f"one row less moves another one in query {query}. State a law whose absence_moves_others is true, and "
            "requires_public_count."
        )
        assert sampler.draw(query, _coins(0), 0).tolist() == [], "no rows must be an ordinary, empty draw."


def _check_queries(sampler: Sampler, rows: int) -> None:
    outside = [-1] if sampler.max_queries is None else [-1, sampler.max_queries]
    for query in outside:
        _check_refused(sampler, query, rows, f"query {query}, which the session does not have")


def _check_refused(sampler: Sampler, query: int, rows: int, what: str) -> None:
    try:
        sampler.draw(query, _coins(0), rows)
    except ValueError:
        return
    raise AssertionError(f"draw must raise ValueError for {what}. Let it begin with self._check_draw(query, num_rows).")


def _check_epochs(sampler: Sampler, rows: int) -> None:
    law, queries = sampler.law, _some(sampler, 2 * sampler.queries_per_epoch)
    for seed in range(3):
        member = np.stack([sampler.mask(query, _coins(seed), rows) for query in range(queries)])
        assert member.sum(axis=0).max() <= law.most_draws(queries), (
            f"a row is in {member.sum(axis=0).max()} of {queries} queries, and its law says {law.most_draws(queries)} "
            "at most."
        )
        limit = getattr(law, "max_batch_size", rows)
        assert member.sum(axis=1).max() <= limit, f"a batch has more than {limit} rows, and its law says no more."
        for first in range(0, queries, law.queries_per_epoch if law.queries_per_epoch > 1 else queries + 1):
            times = member[first : first + law.queries_per_epoch].sum(axis=0).max()
            assert times <= 1, f"a row is in {times} queries of one epoch, and its law says 1 at most."
        if isinstance(law, CyclicLaw):
            cycle = law.batches_per_cycle
            assert (member[cycle:] == member[:-cycle]).all(), "a row must stay in its group for the whole session."
        if isinstance(law, FixedSizeLaw):
            assert (member.sum(axis=1) == law.batch_size).all(), "a batch has not the size that its law says."
        if isinstance(law, CyclicPoissonLaw):
            cycles = member[: len(member) // law.batches_per_cycle * law.batches_per_cycle]
            groups = cycles.reshape(-1, law.batches_per_cycle, rows).any(axis=0).sum(axis=0)
            assert groups.max() <= 1, "a row must stay in its group for the whole session."
        apart = law.separation(queries)
        near = [member[first : first + apart].sum(axis=0).max() for first in range(queries)] if apart else [0]
        assert max(near) <= 1, f"a row is in two queries that are nearer than {apart}, the separation of its law."
        if isinstance(law, AssignedLaw | FullBatchLaw):
            total = member[: sampler.queries_per_epoch].sum()
            expected = sampler.expected_batch_size * sampler.queries_per_epoch
            assert abs(total - expected) <= 1e-6 * expected, (
                f"an epoch has {total} rows, and the divisor says {expected}."
            )


def _drawn_one_by_one(sampler: Sampler, rows: int, queries: int) -> Iterator[np.ndarray]:
    """Yield the batches of each query in many sessions, (sessions, rows)."""
    sessions = [_coins(seed) for seed in range(min(SESSIONS, max(LEAST_SESSIONS, MOST_DRAWS // queries)))]
    for first in range(0, queries, sampler.queries_per_epoch):
        here = range(first, min(first + sampler.queries_per_epoch, queries))
        yield from np.stack([[sampler.mask(query, coins, rows) for query in here] for coins in sessions], axis=1)


def _drawn_at_once(sampler: Sampler, rows: int, queries: int) -> Iterator[np.ndarray]:
    """Yield the batches of each query in many runs, (runs, rows)."""
    draw = masks_of(sampler)
    return (draw(query, _coins(0), rows, RUNS) for query in range(queries))


def _check_coins(name: str, drawn: Iterator[np.ndarray], batches: int, false_alarm: float) -> None:
    """Check that every record's batch of every epoch is uniform and depends on no other: ``drawn`` is by query."""
    found = []
    while epoch := list(itertools.islice(drawn, batches)):
        masks = np.stack(epoch)
        assert (masks.sum(axis=0) == 1).all(), f"{name}: a row must be in one batch of every epoch."
        found.append(masks.argmax(axis=0))
    trials, rows = found[0].shape
    of_batches = [np.bincount(batch.ravel(), minlength=batches) for batch in found]
    of_rows = [np.bincount(column, minlength=batches) for batch in found for column in batch.T]
    places = [batch[:, row] for batch in found for row in range(min(rows, COUNTED_ROWS))]
    pairs = [(one + sign * other) % batches for one, other in itertools.combinations(places, 2) for sign in (1, -1)]
    share = false_alarm / 3
    _check_frequencies(f"{name}: rows are in a batch of an epoch", of_batches, trials * rows, 1 / batches, share)
    _check_frequencies(f"{name}: a row is in a batch of an epoch", of_rows, trials, 1 / batches, share)
    if pairs:
        counts = [np.bincount(pair, minlength=batches) for pair in pairs]
        _check_frequencies(f"{name}: two batches by coin differ or add up,", counts, trials, 1 / batches, share)


def _check_law(name: str, found: np.ndarray, law: SamplingLaw, sample_rate: float, false_alarm: float) -> None:
    """Compare how often rows, and pairs of rows, were drawn with the law: ``found`` is (sessions, queries, rows)."""
    chance = sample_rate if law.query_chance is None else law.query_chance
    _check_frequencies(f"{name}: rows enter a query", found.sum(axis=0).ravel(), len(found), chance, false_alarm / 2)
    pairs = list(_pairs(found[:, :, :COUNTED_ROWS], law))
    if pairs:
        _check_frequencies(
            f"{name}: two rows enter, or one row enters two queries,", pairs, len(found), chance**2, false_alarm / 2
        )


def _check_turns(name: str, found: np.ndarray, law: CyclicPoissonLaw, false_alarm: float) -> None:
    """Compare how often rows enter, once and again, with the law; ``found``: (sessions, queries of 2 cycles, rows)."""
    once, again = found[:, : law.batches_per_cycle], found[:, law.batches_per_cycle :]
    turn: np.ndarray = once.sum(axis=0) > 0  # by coin, every query is some session's turn of a row
    chance = law.turn_rate / (law.batches_per_cycle if law.own_coin else 1)
    two_rows = itertools.combinations(range(min(COUNTED_ROWS, found.shape[2])), 2)
    pairs = [((once[..., i] & once[..., j]).sum(axis=0)[turn[:, i] & turn[:, j]]) for i, j in two_rows]
    for words, counts, law_says in (
        ("rows enter in a turn", once.sum(axis=0)[turn], chance),
        ("a row enters in two turns", (once & again).sum(axis=0)[turn], chance * law.turn_rate),
        ("two rows enter together", np.concatenate(pairs), chance**2),
    ):
        _check_frequencies(f"{name}: {words}", counts, len(found), law_says, false_alarm / 3)


def _pairs(found: np.ndarray, law: SamplingLaw) -> Iterator[int]:
    """Return how often both of two entries were drawn, for every two entries that the law calls independent."""
    places = list(itertools.product(range(found.shape[1]), range(found.shape[2])))
    for (query, row), (later, other) in itertools.combinations(places, 2):
        if not law.absence_moves_others if query == later else law.query_chance is not None:
            yield int((found[:, query, row] & found[:, later, other]).sum())


def _check_frequencies(words: str, counts: object, trials: int, chance: float, false_alarm: float) -> None:
    """Fail unless every count is Binomial(trials, chance): exact tails, the false alarm shared out over the counts."""
    law, found = stats.binom(trials, chance), np.ravel(np.asarray(counts))
    tails = 2 * np.minimum(law.cdf(found), law.sf(found - 1))
    worst = int(tails.argmin())
    assert tails[worst] > false_alarm / found.size, (
        f"{words} with the frequency {found[worst] / trials:.4g}, and the law says {chance:.4g}: the sampler does not "
        "draw by the law that it states."
    )


def _some(sampler: Sampler, queries: int) -> int:
    return queries if sampler.max_queries is None else min(queries, sampler.max_queries)


def _coins(seed: int) -> QueryCoins:
    return QueryCoins(Randomness.insecure(seed), "train-1")
