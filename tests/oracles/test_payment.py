"""Payment: a session pays for what it was registered for, and for nothing else."""

import re
from dataclasses import dataclass, replace

import pytest
import torch

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import LedgerError, ResumeError
from tacita.oracles.payment import Payment, _changes

FIRST, SECOND = (part.part for part in tacita.split((torch.zeros(10),), [5, 5]))
OWN, SETTINGS = {"shapes": [3]}, {"lr": 0.1}


def gaussian(noise_std):
    return GaussianSumEvent(
        sampling=FullBatchLaw(), relation="replace_one", max_contribution=(1.0,), noise_std=(noise_std,)
    )


@pytest.fixture
def options():
    return Payment(new_ledger(), "train", SETTINGS)


def new_ledger():
    return tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")


def session_of(options, payee="oracle", event=None, **changes):
    wanted = {"planned_queries": 3, "part": FIRST, "bound": OWN, **changes}
    return replace(options, ledger=new_ledger()).session_for(payee, event or gaussian(1.0), **wanted)


def test_a_session_that_was_registered_for_the_same_pays(options):
    session = session_of(options)
    assert session.purpose == "train"
    assert session.registration.secure_randomness
    assert session_of(replace(options, session=session)) is session


def test_a_session_may_be_bound_to_all_settings_by_its_caller(options):
    session = session_of(options)
    whole = replace(options, settings={**OWN, **SETTINGS}, session=session)
    assert session_of(whole, bound={"names": ["w"]}, or_to_these_alone=True) is session
    with pytest.raises(ResumeError, match="other settings than this oracle's"):
        session_of(whole, bound={"names": ["w"]})


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"event": gaussian(1.1)}, ["noise_std"]),
        ({"planned_queries": 2}, ["planned_queries"]),
        ({"part": SECOND}, ["index", "start", "stop"]),
        ({"part": None}, ["part"]),
    ],
    ids=["another event", "more queries", "another part", "no part"],
)
def test_another_session_does_not(options, other, named):
    """And the message names what differs, not all there is."""
    handed_in = replace(options, session=session_of(options))
    for payee in ("oracle", "test"):
        with pytest.raises(
            LedgerError, match=f"another event, number of queries or part of the records than this {payee}'s"
        ) as refusal:
            session_of(handed_in, payee, **other)
        assert re.findall(r"(\w+) was (?!registered)", str(refusal.value)) == named


@dataclass(eq=False)
class EqualInItsFields:
    noise_std: float = 1.0


def test_what_differs_in_no_field_is_another_all_the_same():
    assert _changes("event", EqualInItsFields(), EqualInItsFields())
    assert not _changes("event", gaussian(1.0), gaussian(1.0))


@pytest.mark.parametrize("settings", [{"lr": 0.2}, {}, None])
@pytest.mark.parametrize("alone", [False, True])
def test_nor_one_for_other_settings(options, settings, alone):
    other = replace(options, settings=settings, session=session_of(options))
    with pytest.raises(ResumeError, match="other settings than this oracle's"):
        session_of(other, or_to_these_alone=alone)


def test_secure_randomness_is_not_given_up(options):
    insecure = replace(options, session=session_of(options), randomness=tacita.Randomness.insecure(0))
    with pytest.raises(LedgerError, match="was registered for secure randomness, and this test's is not"):
        session_of(insecure, "test")


def test_options_are_checked(options):
    with pytest.raises(ValueError, match="reservation"):
        replace(options, reservation=0)


def test_printing_options_shows_no_secret(options):
    assert "<secret>" in repr(options)


# ---- shares


def shared(options):
    """A ledger with a share whose records were queried already, and options that pay from the share."""
    ledger = new_ledger()
    share = ledger.register_share(2.0, 1e-6)
    before = ledger.register(gaussian(20.0), planned_queries=1)
    before.open()
    before.reserve(0, 0)
    return ledger, share, replace(options, ledger=ledger, share=share)


def registered(options, ledger, noise_std=20.0, **changes):
    wanted = {"planned_queries": 3, "part": None, "bound": OWN, **changes}
    return replace(options, ledger=ledger).session_for("oracle", gaussian(noise_std), **wanted)


def test_a_session_is_paid_from_the_share(options):
    ledger, share, paying = shared(options)
    with pytest.raises(LedgerError, match="pass it as share="):
        registered(options, ledger)
    session = registered(paying, ledger)
    assert session.share == share.id
    assert registered(replace(paying, session=session), ledger) is session


def test_a_share_is_a_limit(options):
    ledger, _, paying = shared(options)
    with pytest.raises(tacita.BudgetExceededError, match="share-1, set aside"):
        registered(paying, ledger, noise_std=1.0)


def test_another_session_than_one_of_the_share_is_refused(options):
    ledger = new_ledger()
    share = ledger.register_share(2.0, 1e-6)
    outside = registered(options, ledger)
    with pytest.raises(LedgerError, match="not paid from share-1"):
        replace(options, session=outside, share=share)


def test_a_share_is_what_register_share_returned(options):
    with pytest.raises(TypeError, match="share must be what register_share returned"):
        replace(options, share="share-1")


def test_calibration_adds_to_what_is_in_the_share_alone(options):
    ledger, _, paying = shared(options)
    assert paying.spends(None) == []
    first = registered(paying, ledger)
    (spend,) = paying.spends(None)
    assert (spend.event, spend.queries) == (first.event, 3)
    assert replace(paying, session=first).spends(None) == []  # a resumed session is not beside itself
    assert replace(options, ledger=ledger, session=first).spends(None) == []
    with pytest.raises(LedgerError, match="pass it as share="):
        replace(options, ledger=ledger).spends(None)
