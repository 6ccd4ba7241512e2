"""Every sampler keeps the contract; samplers that draw by another law than they state, or remember, do not."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from tacita.accounting import (
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    TruncatedPoissonLaw,
)
from tacita.sampling import Sampler
from tacita.testing import check_sampler
from tests.sampling.test_sampler import CASES

ROWS, RATE, POISSON = 6, 0.25, PoissonLaw(0.25)
TURNS = itertools.count()


@pytest.mark.parametrize("sampler", [case[0] for case in CASES], ids=repr)
def test_every_sampler_keeps_the_contract(sampler):
    check_sampler(sampler)


@dataclass(frozen=True, kw_only=True, repr=False)
class OneBug(Sampler):
    """Poisson sampling by hand, with at most one bug."""

    bug: str = ""
    num_records: int = ROWS
    sample_rate: float = RATE
    law: SamplingLaw = POISSON
    expected_batch_size: float = RATE * ROWS
    requires_public_count: bool = False

    def draw(self, query, coins, num_rows):
        if not (self.bug == "any query" and query < 0):
            self._check_draw(query, num_rows)
        query = max(query, 0) + (next(TURNS) if self.bug == "counts its draws" else 0)
        stream = coins.for_session() if self.bug == "one draw for all queries" else coins.for_query(query)
        rate = {"too often": 1.2 * RATE, "too rarely": 0.8 * RATE}.get(self.bug, RATE)
        member = stream.bernoulli(num_rows, rate)
        if self.bug == "one coin for all rows":
            member = np.repeat(member[:1], num_rows)
        if self.bug == "from the last row":
            member = member[::-1]
        if self.bug == "never empty" and not member.any():
            member[:1] = True
        rows = np.flatnonzero(member)
        if self.bug == "descending":
            return rows[::-1].copy()
        return rows.astype(np.int32) if self.bug == "narrow" else rows

    def masks(self, query, coins, num_rows, runs):
        rate = 1.1 * RATE if self.bug == "masks" else RATE
        return coins.for_query(query).bernoulli(runs * num_rows, rate).reshape(runs, num_rows)

    def __repr__(self):
        return object.__repr__(self) if self.bug == "an address" else f"OneBug(bug={self.bug!r})"


def test_the_sampler_without_a_bug_keeps_the_contract():
    check_sampler(OneBug())


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("too often", "does not draw by the law"),
        ("too rarely", "does not draw by the law"),
        ("one coin for all rows", "two rows enter"),
        ("one draw for all queries", "two rows enter, or one row enters two queries"),
        ("from the last row", "one row less moves another"),
        ("never empty", "one row less moves another|no rows must be"),
        ("descending", "ascending"),
        ("narrow", "int64"),
        ("any query", "query -1"),
        ("counts its draws", "depend on coins, query and number of rows alone"),
        ("masks", "masks: rows enter a query"),
        ("an address", "frozen dataclass"),
    ],
)
def test_one_bug_is_seen(bug, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(OneBug(bug=bug))


@dataclass(frozen=True)
class OtherLaw(SamplingLaw):
    """A law that the library does not know."""

    apart: int
    words = "Another law"

    def describe(self):
        return self.words

    def assumptions(self, relation):
        return ()

    def separation(self, queries):
        return min(queries, self.apart)


@dataclass(frozen=True)
class NamelessLaw(SamplingLaw):
    describe = OtherLaw.describe
    assumptions = OtherLaw.assumptions


def test_a_law_has_words():
    with pytest.raises(AssertionError, match="law must name its kind of sampling"):
        check_sampler(OneBug(law=NamelessLaw()))


def test_a_law_that_the_library_does_not_know_is_held_to_its_separation():
    check_sampler(OneBug(law=OtherLaw(1)))
    with pytest.raises(AssertionError, match="nearer than 2"):
        check_sampler(OneBug(law=OtherLaw(2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"law": PoissonLaw(0.2)}, "the law says 0.2"),
        ({"law": FullBatchLaw()}, "the divisor says"),
        ({"law": DisjointLaw(own_coin=True)}, "its law says 1 at most"),
        ({"law": ShuffledEpochsLaw(4, own_coin=True)}, "law says 2 at most"),
        ({"law": CyclicLaw(4, own_coin=True)}, "law says 2 at most"),
        ({"law": FixedSizeLaw(3, ROWS)}, "requires_public_count"),
        ({"law": FixedSizeLaw(3, ROWS), "requires_public_count": True}, "size that its law says"),
        ({"expected_batch_size": 2.0}, "expected_batch_size"),
    ],
)
def test_another_law_than_the_one_that_is_stated_is_seen(settings, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(OneBug(**settings))


@dataclass(frozen=True, kw_only=True)
class AtMost(Sampler):
    """Poisson sampling with a largest batch, by hand, with at most one bug."""

    bug: str = ""
    num_records: int = ROWS
    sample_rate: float = 0.5
    requires_public_count: bool = False

    @property
    def law(self):
        return TruncatedPoissonLaw(self.sample_rate, 3, self.num_records)

    def draw(self, query, coins, num_rows):
        self._check_draw(query, num_rows)
        words = coins.for_query(query).words(num_rows)
        rows = np.flatnonzero(words < np.uint64(2**63))
        if self.bug == "no limit" or len(rows) <= 3:
            return rows
        if self.bug == "none at all":
            return rows[:0]
        if self.bug == "by position":
            return rows[:3]
        return np.sort(rows[np.argsort(words[rows])[: 2 if self.bug == "one too few" else 3]])


def test_a_largest_batch_keeps_the_contract():
    check_sampler(AtMost())


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("no limit", "more than 3 rows"),
        ("none at all", "one row less|does not draw by the law"),
        ("by position", "does not draw by the law"),
        ("one too few", "one row less|does not draw by the law"),
    ],
)
def test_another_cut_at_the_largest_batch_is_seen(bug, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(AtMost(bug=bug))


@dataclass(frozen=True, kw_only=True)
class OwnCoins(Sampler):
    """Epochs of batches by own coins, by hand, with at most one bug."""

    bug: str = ""
    num_records: int = ROWS
    batches: int = 4
    cyclic: bool = False
    requires_public_count: bool = False

    @property
    def law(self):
        return (CyclicLaw if self.cyclic else ShuffledEpochsLaw)(self.batches, own_coin=True)

    @property
    def sample_rate(self):
        return 1 / self.batches

    @property
    def expected_batch_size(self):
        return self.num_records / self.batches

    @property
    def queries_per_epoch(self):
        return self.batches

    def draw(self, query, coins, num_rows):
        self._check_draw(query, num_rows)
        epoch, batch = divmod(query, self.batches)
        again = 0 if self.bug in ("once for all epochs", "there and back") else epoch
        stream = coins.for_session()
        drawn = stream.integers(num_rows, self.batches, 1000 * again)
        if self.bug == "not uniform":
            drawn = np.minimum(drawn, stream.integers(num_rows, 10, 1000 * again + 500))
        if self.bug == "one coin for all rows":
            drawn = stream.integers(1, self.batches, 1000 * again).repeat(num_rows)
        if self.bug == "one after the other":
            drawn = (stream.integers(1, self.batches, 1000 * again) + np.arange(num_rows)) % self.batches
        if self.bug == "there and back" and epoch % 2:
            drawn = self.batches - 1 - drawn
        return np.flatnonzero(drawn == batch)


def test_own_coins_without_a_bug_keep_the_contract():
    check_sampler(OwnCoins())
    check_sampler(OwnCoins(cyclic=True, bug="once for all epochs"))


@dataclass(frozen=True, kw_only=True)
class Turns(Sampler):
    """Groups that take turns, whose records enter by coin: by hand, with at most one bug."""

    bug: str = ""
    num_records: int = ROWS
    groups: int = 3
    requires_public_count: bool = False

    @property
    def law(self):
        return CyclicPoissonLaw(self.groups, 0.6, own_coin=True)

    @property
    def sample_rate(self):
        return 0.6 / self.groups

    def draw(self, query, coins, num_rows):
        self._check_draw(query, num_rows)
        group = coins.for_session().integers(
            num_rows, self.groups, 5000 * (query // self.groups) * (self.bug == "new groups")
        )
        if self.bug == "one group":
            group[:] = coins.for_session().integers(1, self.groups)
        stream = coins.for_session() if self.bug == "one coin for all turns" else coins.for_query(query)
        enters = stream.bernoulli(num_rows, 0.8 if self.bug == "other rate" else 0.6, 1000)
        if self.bug == "one coin for all rows":
            enters[:] = enters[:1]
        return np.flatnonzero((group == query % self.groups) & enters)


def test_turns_without_a_bug_keep_the_contract():
    check_sampler(Turns())


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("new groups", "stay in its group"),
        ("one group", "two rows enter together"),
        ("one coin for all turns", "a row enters in two turns"),
        ("other rate", "rows enter in a turn"),
        ("one coin for all rows", "two rows enter together"),
    ],
)
def test_turns_of_another_law_are_seen(bug, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(Turns(bug=bug))


def test_groups_that_are_drawn_again_are_seen():
    with pytest.raises(AssertionError, match="stay in its group"):
        check_sampler(OwnCoins(cyclic=True))


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("not uniform", "rows are in a batch of an epoch"),
        ("one coin for all rows", "rows are in a batch|two batches by coin"),
        ("one after the other", "two batches by coin"),
        ("once for all epochs", "two batches by coin"),
        ("there and back", "two batches by coin"),
    ],
)
def test_coins_that_are_not_uniform_or_depend_on_others_are_seen(bug, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(OwnCoins(bug=bug))


def test_what_is_no_sampler_or_too_large_is_refused():
    with pytest.raises(TypeError, match="must be a tacita sampler"):
        check_sampler(32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 200 records"):
        check_sampler(OneBug(num_records=10_000))
