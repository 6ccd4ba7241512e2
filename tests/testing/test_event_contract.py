"""Every event keeps the contract; events that lose a field, shrink or do not compose do not."""

import math
from dataclasses import dataclass

import pytest

from tacita.accounting import (
    Event,
    FullBatchLaw,
    GaussianSumEvent,
    PoissonLaw,
    Proof,
    SampledEvent,
    Spend,
    epsilon,
    gaussian_guarantee,
    gaussian_mu,
)
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.testing import check_event
from tests.accounting.conftest import Events

EVERY = Events.one_of_each()


@pytest.mark.parametrize("event", EVERY, ids=[f"{type(event).__name__}{k}" for k, event in enumerate(EVERY)])
def test_every_event_keeps_the_contract(event):
    check_event(event)


@dataclass(frozen=True, kw_only=True)
class EventWithABug(Event):
    """One Gaussian query of mu 1 a query, with at most one bug."""

    bug: str = ""

    @property
    def sampler(self):
        return "" if self.bug == "no words" else "every record"

    def describe(self):
        return "two\nlines" if self.bug == "two lines" else f"a test, {self.bug or 'no bug'}"

    def _guarantee(self, queries):
        mu = math.sqrt(queries)
        if self.bug == "cheaper for more":
            mu = 1 / queries if queries else 0.0
        if self.bug == "rdp only to order 2":
            return gaussian_guarantee(mu, rdp=lambda orders: mu**2 / 2 * orders[:2])
        if self.bug == "rdp is NaN":
            return gaussian_guarantee(mu, rdp=lambda orders: math.nan * orders)
        if self.bug == "negative":
            return gaussian_guarantee(mu, additive_delta=-1e-9)
        return gaussian_guarantee(mu)


def test_the_event_without_a_bug_keeps_the_contract():
    check_event(EventWithABug(relation="replace_one"))


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("no words", "words must be a text"),
        ("two lines", "stand on one line"),
        ("cheaper for more", "2 queries cost"),
        ("rdp only to order 2", "one value an order"),
        ("rdp is NaN", "must not be NaN"),
        ("negative", "additive_delta must be >= 0"),
    ],
)
def test_one_bug_is_seen(bug, message):
    with pytest.raises(AssertionError, match=message):
        check_event(EventWithABug(relation="replace_one", bug=bug))


def test_an_event_that_a_ledger_reads_back_as_another_is_seen():
    @dataclass(frozen=True, kw_only=True)
    class Halved(EventWithABug):
        rate: float = 1.0

        def to_dict(self):
            return {**super().to_dict(), "rate": self.rate / 2}

    with pytest.raises(AssertionError, match="a ledger reads back"):
        check_event(Halved(relation="replace_one"))


def test_an_event_that_can_be_changed_is_seen():
    @dataclass(frozen=True, kw_only=True)
    class Open(EventWithABug):
        pass

    Open.__setattr__ = object.__setattr__
    with pytest.raises(AssertionError, match="its fields can be changed"):
        check_event(Open(relation="zero_out_one"))


# -- what an event of one's own is built from


@dataclass(frozen=True, kw_only=True)
class OneRowASession(SampledEvent):
    """A third party's kind of release, proved for full batches alone."""

    released = "a test's release"

    @property
    def private(self):
        return True

    def describe(self):
        return "a test's release"


OneRowASession.proofs = {
    FullBatchLaw: Proof({"replace_one": "every query"}, lambda event, queries: gaussian_guarantee(math.sqrt(queries)))
}


def test_an_event_of_ones_own_costs_what_its_proof_says_and_composes_like_the_gaussian():
    event = OneRowASession(relation="replace_one", sampling=FullBatchLaw())
    check_event(event)
    beside = GaussianSumEvent(
        relation="replace_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(1.0,)
    )
    total = epsilon([Spend(event, 4), Spend(beside, 3)], 1e-5).epsilon  # mu^2: 4 of its own, 3 * 2^2 beside it
    assert gaussian_mu(total, 1e-5) == pytest.approx(4.0, rel=1e-9)


def test_a_law_that_only_one_sampler_has_is_named_without_a_list():
    with pytest.raises(UnsupportedEventError, match=r"any relation; there is one with FullBatchSampler\.$"):
        OneRowASession(relation="replace_one", sampling=PoissonLaw(0.1))


def test_a_ledger_with_an_event_of_ones_own_says_how_it_can_be_read():
    line = OneRowASession(relation="replace_one", sampling=FullBatchLaw()).to_dict()
    with pytest.raises(LedgerError, match="import its module before you read the ledger"):
        Event.from_dict({**line, "event": "OfSomeoneElse"})
