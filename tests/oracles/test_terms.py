"""Terms: a session pays for what it was registered for, and for nothing else."""

from dataclasses import replace

import pytest
import torch

import tacita
from tacita.accounting import FullBatchGaussianEvent
from tacita.errors import LedgerError
from tacita.oracles.terms import Terms

FIRST, SECOND = (part.part for part in tacita.split((torch.zeros(10),), [5, 5]))
SETTINGS = {"lr": 0.1}


def gaussian(noise_std):
    return FullBatchGaussianEvent(relation="replace_one", max_contribution=(1.0,), noise_std=(noise_std,))


@pytest.fixture
def terms():
    return Terms(
        payee="oracle",
        event=gaussian(1.0),
        planned_queries=3,
        part=FIRST,
        randomness=tacita.Randomness.system(),
    )


@pytest.fixture
def session(terms):
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    return terms.register(ledger, "train", SETTINGS)


def test_a_session_meets_the_terms_that_it_was_registered_on(terms, session):
    assert terms.met_by(session, SETTINGS)
    assert terms.met_by(session, {"lr": 0.2}, SETTINGS)
    assert session.purpose == "train"
    assert session.registration.secure_randomness


@pytest.mark.parametrize(
    "other", [{"event": gaussian(1.1)}, {"planned_queries": 2}, {"part": SECOND}, {"part": None}], ids=str
)
def test_another_session_does_not(terms, session, other):
    assert not replace(terms, **other).met_by(session, SETTINGS)


def test_nor_one_for_other_settings(terms, session):
    assert not terms.met_by(session, {"lr": 0.2}, {})


def test_secure_randomness_is_not_given_up(terms, session):
    insecure = replace(terms, payee="test", randomness=tacita.Randomness.insecure(0))
    with pytest.raises(LedgerError, match="was registered for secure randomness, and this test's is not"):
        insecure.met_by(session, SETTINGS)


def test_printing_terms_shows_no_secret(terms):
    assert "<secret>" in repr(terms)
