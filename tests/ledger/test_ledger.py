"""The ledger: what sessions add up to, what may be added, and what is refused."""

import json
import secrets

import pytest

from tacita.accounting import (
    ConditionalEvent,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    GaussianSumEvent,
    LaplaceEvent,
    Part,
    PoissonLaw,
    ShuffledEpochsLaw,
    Spend,
    StableCountsEvent,
    delta,
    epsilon,
    gaussian_epsilon,
)
from tacita.errors import BudgetExceededError, LedgerError, UnsupportedEventError
from tacita.federated import ClippedSamplesEvent
from tacita.ledger import Ledger, Session, settings_sha256

DELTA = 1e-5
UNIT = "one row = one patient"


def full_batch(noise_std=5.0, relation="add_or_remove_one"):
    return GaussianSumEvent(sampling=FullBatchLaw(), relation=relation, max_contribution=(1.0,), noise_std=(noise_std,))


def poisson(noise_std=1.0, rate=0.02, relation="add_or_remove_one"):
    return GaussianSumEvent(
        relation=relation, max_contribution=(1.0,), noise_std=(noise_std,), sampling=PoissonLaw(rate)
    )


def one_pass():
    return GaussianSumEvent(
        sampling=DisjointLaw(own_coin=True), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(2.0,)
    )


def conditional(inner):
    return ConditionalEvent(relation=inner.relation, inner=inner, condition_text="the Hessian is at most 3")


def book(path=None, relation="add_or_remove_one", **cap):
    return Ledger(path, neighboring_relation=relation, privacy_unit=UNIT, **cap)


def coin(index, split="phases"):
    return Part(split=split, kind="coin", index=index)


def make(session, queries, reserve=None):
    """Open, reserve and make queries."""
    if session.state == "registered":
        session.open()
    first = session.last_query + 1
    session.reserve(first, (reserve or first + queries) - 1)
    for query in range(first, first + queries):
        session.spend(query, "aa")


# --- sessions ------------------------------------------------------------------------------------------------------


def test_ids_count_within_a_purpose():
    ledger = book()
    ids = [ledger.register(full_batch(), planned_queries=1, purpose=p).id for p in ("train", "score", "train")]
    assert ids == ["train-1", "score-1", "train-2"]
    assert [session.id for session in ledger.sessions] == ids


def test_a_query_needs_a_reservation_and_has_one_line():
    session = book().register(full_batch(), planned_queries=10)
    with pytest.raises(LedgerError, match="registered"):
        session.reserve(0, 1)
    session.open()
    with pytest.raises(LedgerError, match="not reserved"):
        session.spend(0, "aa")
    session.reserve(0, 1)
    assert session.lookup(0) is None
    session.spend(0, "aa")
    assert session.lookup(0) == "aa"
    with pytest.raises(LedgerError, match="already has a line"):
        session.spend(0, "bb")
    with pytest.raises(LedgerError, match="not reserved"):
        session.spend(2, "aa")
    assert (session.queries_made, session.last_query, session.remaining_queries) == (1, 0, 9)


def test_a_query_without_a_fingerprint_still_has_a_line():
    session = book().register(full_batch(), planned_queries=2)
    session.open()
    session.reserve(0, 1)
    session.spend(0)
    assert session.lookup(0) == ""
    assert session.lookup(1) is None


def test_the_plan_is_the_end():
    session = book().register(full_batch(), planned_queries=3)
    make(session, 3)
    with pytest.raises(BudgetExceededError, match="planned 3 queries"):
        session.reserve(3, 3)
    with pytest.raises(BudgetExceededError, match="planned 3 queries"):
        session.spend(3, "aa")
    assert session.remaining_queries == 0


def test_reservations_leave_no_gap_and_are_free_twice():
    ledger = book()
    session = ledger.register(full_batch(), planned_queries=30)
    session.open()
    with pytest.raises(LedgerError, match="do not follow"):
        session.reserve(1, 3)
    session.reserve(0, 9)
    lines = ledger.anchor.count
    session.reserve(3, 7)
    assert ledger.anchor.count == lines
    session.reserve(5, 12)  # what was reserved may be named again
    assert (session.reserved_queries, session.is_reserved(12), session.is_reserved(13)) == (13, True, False)
    with pytest.raises(ValueError, match="last must be"):
        session.reserve(5, 4)


def test_numbers_may_be_left_out_but_not_used_twice():
    session = book().register(full_batch(), planned_queries=10)
    session.open()
    session.reserve(0, 9)
    session.spend(4, "aa")
    session.spend(2, "aa")
    assert (session.last_query, session.queries_made, session.remaining_queries) == (4, 2, 5)


@pytest.mark.parametrize("call", ["open", "withdraw", "close"])
def test_a_closed_session_stays_closed(call):
    session = book().register(full_batch(), planned_queries=3)
    make(session, 1)
    session.close()
    with pytest.raises(LedgerError, match="is closed"):
        getattr(session, call)()
    with pytest.raises(LedgerError, match="is closed"):
        session.spend(1, "aa")
    assert session.closed
    assert session.opened


def test_a_line_without_a_place_is_refused_by_its_session():
    session = book().register(full_batch(), planned_queries=3)
    with pytest.raises(LedgerError, match="needs one that is open"):
        session.close()
    session.withdraw()
    with pytest.raises(LedgerError, match="is withdrawn"):
        session.open()


def test_settings_stand_as_a_hash():
    session = book().register(full_batch(), planned_queries=1, settings={"b": [1, 2.5], "a": "x"})
    assert session.registration.settings_sha256 == settings_sha256({"a": "x", "b": [1, 2.5]})
    assert session.registration.settings_sha256 != settings_sha256({"a": "x", "b": [1, 2.25]})
    with pytest.raises(ValueError, match="plain JSON"):
        book().register(full_batch(), planned_queries=1, settings={"model": object()})


@pytest.mark.parametrize("purpose", ["share", "", "two words", "x" * 65, "a/b"])
def test_a_purpose_is_one_word(purpose):
    with pytest.raises(ValueError, match="purpose must be"):
        book().register(full_batch(), planned_queries=1, purpose=purpose)


def test_what_is_printed_shows_settings_only():
    ledger = book()
    session = ledger.register(full_batch(), planned_queries=4)
    assert repr(session) == "Session('train-1', registered, 0 of 4 queries)"
    assert UNIT in repr(ledger)


# --- the plan and what is spent ------------------------------------------------------------------------------------


def test_the_plan_counts_from_registration_and_spending_from_the_first_query():
    ledger = book()
    assert ledger.epsilon(DELTA) == ledger.epsilon_spent(DELTA) == 0
    session = ledger.register(full_batch(5.0), planned_queries=10)
    plan = gaussian_epsilon(10**0.5 / 5, DELTA)
    assert ledger.epsilon(DELTA) == pytest.approx(plan)
    make(session, 4)
    assert ledger.epsilon(DELTA) == pytest.approx(plan)
    assert ledger.epsilon_spent(DELTA) == pytest.approx(gaussian_epsilon(4**0.5 / 5, DELTA))
    assert ledger.delta(plan) == pytest.approx(DELTA)
    session.close()
    assert ledger.epsilon(DELTA) == pytest.approx(plan)


def test_sessions_registered_together_compose_as_one():
    ledger = book()
    ledger.register(poisson(), planned_queries=150)
    ledger.register(full_batch(20.0), planned_queries=1, purpose="bounds")
    together = epsilon([Spend(poisson(), 150), Spend(full_batch(20.0), 1)], DELTA)
    assert ledger.bound(DELTA) == together
    assert (
        ledger.delta(together.epsilon)
        == delta([Spend(poisson(), 150), Spend(full_batch(20.0), 1)], together.epsilon).delta
    )


def test_the_numbers_of_the_specification():
    ledger = book()
    ledger.register(poisson(), planned_queries=150)
    assert ledger.epsilon(DELTA) == pytest.approx(1.6543, rel=5e-3)


def test_a_running_session_counts_lines_a_closed_one_queries_made_and_a_lost_one_its_reservation(tmp_path):
    ledger = book(tmp_path / "ledger.jsonl")
    session = ledger.register(full_batch(), planned_queries=20)
    make(session, 3, reserve=8)
    assert session.queries_spent == 3
    assert Ledger.load(ledger.path).sessions[0].queries_spent == 8
    session.close()
    assert Ledger.load(ledger.path).sessions[0].queries_spent == 3


def test_a_continued_session_keeps_what_may_have_been_released(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with book(path) as ledger:
        make(ledger.register(full_batch(), planned_queries=20), 3, reserve=8)
    with book(path) as ledger:
        (session,) = ledger.sessions
        assert (session.state, session.last_query, session.lookup(1), session.queries_spent) == ("open", 2, "aa", 8)
        session.spend(3, "aa")
        assert session.queries_spent == 8  # the redo of a reserved number costs nothing more
        session.reserve(8, 15)
        for query in range(4, 10):
            session.spend(query, "aa")
        assert session.queries_spent == 10
        session.close()
    assert Ledger.load(path).sessions[0].queries_spent == 10


def test_closing_after_a_crash_does_not_give_back_what_was_reserved(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with book(path) as ledger:
        make(ledger.register(full_batch(), planned_queries=20), 3, reserve=8)
    with book(path) as ledger:
        ledger.sessions[0].close()
    (session,) = Ledger.load(path).sessions
    assert (session.state, session.queries_made, session.queries_spent) == ("closed", 3, 8)


def test_a_session_that_is_one_guarantee_counts_in_full_from_its_first_query():
    ledger = book()
    session = ledger.register(one_pass(), planned_queries=50)
    session.open()
    assert ledger.epsilon_spent(DELTA) == 0
    session.reserve(0, 9)
    session.spend(0, "aa")
    assert ledger.epsilon_spent(DELTA) == ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(0.5, DELTA))


def assigned(relation="replace_one"):
    law = ShuffledEpochsLaw(10, own_coin=True)
    return GaussianSumEvent(relation=relation, max_contribution=(1.0,), noise_std=(5.0,), sampling=law)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_epochs_have_spent_what_a_session_of_the_queries_made_spends(relation):
    epochs = assigned(relation)
    ledger = book(relation=relation)
    session = ledger.register(epochs, planned_queries=30)
    session.open()
    for made in (1, 10, 11, 30):
        session.reserve(0, made - 1)
        for query in range(session.queries_made, made):
            session.spend(query, f"{query:02x}")
        assert ledger.epsilon_spent(DELTA) == epsilon([Spend(epochs, made)], DELTA).epsilon
    assert ledger.epsilon_spent(DELTA) == ledger.epsilon(DELTA)


def test_numbers_below_the_last_one_count_even_without_a_line():
    """As where the records of some queries were lost."""
    ledger = book(relation="replace_one")
    session = ledger.register(assigned(), planned_queries=30)
    session.open()
    session.reserve(0, 20)
    session.spend(20, "aa")
    assert session.queries_spent == 1
    assert ledger.epsilon_spent(DELTA) == epsilon([Spend(assigned(), 21)], DELTA).epsilon


def test_a_session_without_a_proof_for_its_prefixes_counts_as_planned():
    moments = ClippedSamplesEvent(
        relation="replace_one",
        sampling=ShuffledEpochsLaw(10, own_coin=True),
        max_message_norm=1.0,
        max_sample_norm=1.0,
        momentum_weight=0.1,
        divisor=1.0,
        noise_std=5.0,
    )
    ledger = book(relation="replace_one")
    make(ledger.register(moments, planned_queries=30), 1)
    assert not moments.costs_by_prefix
    assert ledger.epsilon_spent(DELTA) == ledger.epsilon(DELTA) > epsilon([Spend(moments, 1)], DELTA).epsilon


def test_no_noise_is_infinite_and_no_error():
    ledger = book()
    make(ledger.register(full_batch(0.0), planned_queries=2), 1)
    assert ledger.epsilon(DELTA) == ledger.epsilon_spent(DELTA) == float("inf")
    assert ledger.delta(3.0) == 1.0


def test_a_condition_takes_the_unconditional_epsilon_away():
    ledger = book()
    session = ledger.register(conditional(full_batch()), planned_queries=4)
    assert ledger.epsilon(DELTA) == float("inf")
    assert ledger.delta(1.0) == 1.0
    assert ledger.conditional_bound(DELTA).epsilon == pytest.approx(gaussian_epsilon(2 / 5, DELTA))
    assert ledger.epsilon_spent(DELTA) == 0
    make(session, 1)
    assert ledger.epsilon_spent(DELTA) == float("inf")
    assert ledger.spent_bound(DELTA).epsilon == pytest.approx(gaussian_epsilon(1 / 5, DELTA))


@pytest.mark.parametrize("wrong", [0.0, 1.0, -1e-5, float("nan"), True])
def test_delta_is_always_asked_for_and_checked(wrong):
    with pytest.raises(ValueError, match="delta must be"):
        book().epsilon(wrong)
    with pytest.raises(TypeError):
        book().epsilon()


# --- withdrawing ---------------------------------------------------------------------------------------------------


def test_a_session_withdrawn_in_time_does_not_count(tmp_path):
    ledger = book(tmp_path / "ledger.jsonl")
    ledger.register(full_batch(), planned_queries=4)
    before = ledger.epsilon(DELTA)
    ledger.register(full_batch(), planned_queries=9, purpose="score").withdraw()
    assert ledger.epsilon(DELTA) == before
    assert Ledger.load(ledger.path).epsilon(DELTA) == before
    assert ledger.register(full_batch(), planned_queries=1, purpose="score").id == "score-2"


def test_a_session_withdrawn_after_a_release_stays_in_the_plan(tmp_path):
    """Whether it is run may depend on what was seen: like stopping early, that is the plan's to cover."""
    ledger = book(tmp_path / "ledger.jsonl")
    first = ledger.register(full_batch(), planned_queries=4)
    second = ledger.register(full_batch(), planned_queries=9)
    both = ledger.epsilon(DELTA)
    make(first, 4)
    second.withdraw()
    assert ledger.epsilon(DELTA) == both > ledger.epsilon_spent(DELTA)
    assert Ledger.load(ledger.path).epsilon(DELTA) == both


def test_an_opened_session_cannot_be_withdrawn():
    session = book().register(full_batch(), planned_queries=4)
    session.open()
    with pytest.raises(LedgerError, match="is open"):
        session.withdraw()


# --- after the first release: shares and filters -------------------------------------------------------------------


def test_a_session_after_a_release_is_refused_and_both_ways_out_are_named():
    ledger = book()
    first = ledger.register(full_batch(), planned_queries=4)
    first.open()
    ledger.register(full_batch(), planned_queries=1)  # nothing is reserved yet
    first.reserve(0, 0)
    with pytest.raises(LedgerError, match=r"register_share.*filter_order"):
        ledger.register(full_batch(), planned_queries=1)
    with pytest.raises(LedgerError, match="register_share"):
        ledger.register_share(0.1, 1e-7)


def test_a_share_pays_for_sessions_chosen_later(tmp_path):
    ledger = book(tmp_path / "ledger.jsonl")
    first = ledger.register(full_batch(), planned_queries=4)
    share = ledger.register_share(0.5, 1e-6)
    plan = ledger.epsilon(DELTA)
    assert plan > gaussian_epsilon(2 / 5, DELTA) + 0.3
    make(first, 4)
    with pytest.raises(BudgetExceededError, match="share-1"):
        ledger.register(full_batch(5.0), planned_queries=4, share=share)
    later = ledger.register(full_batch(40.0), planned_queries=2, share=share)
    assert ledger.epsilon(DELTA) == plan  # what is inside is covered
    assert ledger.spends(share=share) == [Spend(full_batch(40.0), 2)]
    with pytest.raises(BudgetExceededError, match="share-1"):  # the two together
        ledger.register(full_batch(40.0), planned_queries=60, share=share)
    before = ledger.epsilon_spent(DELTA)
    make(later, 1)
    assert ledger.epsilon_spent(DELTA) > before + 0.3  # a share counts in full
    with pytest.raises(LedgerError, match="registered together"):
        ledger.register(full_batch(400.0), planned_queries=1, share=share)
    again = Ledger.load(ledger.path)
    assert again.shares == ledger.shares == (share,)
    assert again.epsilon(DELTA) == plan


def test_what_is_inside_a_share_adds_up():
    ledger = book()
    share = ledger.register_share(gaussian_epsilon(5**0.5 / 40, 1e-6) * (1 + 1e-9), 1e-6)
    ledger.register(full_batch(40.0), planned_queries=3, share=share)
    with pytest.raises(BudgetExceededError, match="share-1"):
        ledger.register(full_batch(40.0), planned_queries=3, share=share)
    ledger.register(full_batch(40.0), planned_queries=2, share=share)


def test_a_share_belongs_to_its_ledger():
    share = book().register_share(0.5, 1e-6)
    with pytest.raises(LedgerError, match="no share of this ledger"):
        book().register(full_batch(), planned_queries=1, share=share)


def test_a_share_of_a_part_pays_for_that_part():
    ledger = book()
    share = ledger.register_share(0.5, 1e-6, part=coin(0))
    with pytest.raises(LedgerError, match="set aside for one part"):
        ledger.register(full_batch(40.0), planned_queries=1, share=share)
    with pytest.raises(LedgerError, match="set aside for one part"):
        ledger.register(full_batch(40.0), planned_queries=1, share=share, part=coin(1))
    ledger.register(full_batch(40.0), planned_queries=1, share=share, part=coin(0))


def test_a_cap_takes_no_condition_whoever_pays():
    ledger = book(max_epsilon=2.0, max_delta=DELTA)
    share = ledger.register_share(0.5, 1e-6)
    for payer in (None, share):
        with pytest.raises(BudgetExceededError, match="guarantees nothing unless"):
            ledger.register(conditional(full_batch(40.0)), planned_queries=1, share=payer)


def test_a_filter_compares_the_records_that_are_charged_most():
    """Sessions on two parts of a split cost their maximum, and one on all records beside both costs more."""
    ledger = filtered(order=20.0)
    budget = ledger._registry.filter.budget
    for part, share in ((coin(0), 0.9), (coin(1), 0.2)):
        ledger.register(full_batch((10 / (share * budget)) ** 0.5), planned_queries=1, part=part)
    with pytest.raises(BudgetExceededError, match=r"epsilon .* would exceed the cap: epsilon .* filter"):
        ledger.register(full_batch((10 / (0.2 * budget)) ** 0.5), planned_queries=1)
    ledger.register(full_batch((10 / (0.2 * budget)) ** 0.5), planned_queries=1, part=coin(1))


def filtered(order=20.0, cap=2.0):
    return book(max_epsilon=cap, max_delta=DELTA, filter_order=order)


def test_a_filter_takes_later_sessions_until_its_budget_is_spent():
    ledger = filtered()
    session = ledger.register(full_batch(10.0), planned_queries=1)
    budget = 2.0 - ledger._registry.filter._price(DELTA)
    count = int(budget / (20 / 2 / 100))  # order mu^2 / 2 each
    assert count > 5
    for _ in range(count - 1):
        make(session, 1)
        session = ledger.register(full_batch(10.0), planned_queries=1)
    make(session, 1)
    with pytest.raises(BudgetExceededError, match=r"epsilon .* would exceed the cap: epsilon .* filter"):
        ledger.register(full_batch(10.0), planned_queries=1)
    assert ledger.epsilon(DELTA) == pytest.approx(2.0)  # the cap's, not the sum's
    assert 1.8 < ledger.epsilon_spent(DELTA) <= 2.0
    assert ledger.delta(2.0) == pytest.approx(DELTA)


def test_the_filter_never_promises_less_than_the_composition_of_what_it_let_through():
    ledger = filtered()
    for noise in (10.0, 7.0, 30.0, 9.0):
        make(ledger.register(full_batch(noise), planned_queries=1), 1)
    spent = epsilon([Spend(full_batch(noise), 1) for noise in (10.0, 7.0, 30.0, 9.0)], DELTA).epsilon
    assert spent <= ledger.epsilon_spent(DELTA) <= ledger.epsilon(DELTA)


def test_a_filter_refuses_what_has_no_curve():
    stable = StableCountsEvent(
        relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,), failure_probability=1e-7
    )
    with pytest.raises(UnsupportedEventError, match="register_share"):
        filtered().register(stable, planned_queries=1)
    with pytest.raises(UnsupportedEventError, match="register_share"):
        filtered().register_share(0.1, 1e-7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_epsilon": 1.0},
        {"max_delta": 1e-5},
        {"max_epsilon": 0.0, "max_delta": 1e-5},
        {"max_epsilon": 1.0, "max_delta": 1.0},
        {"filter_order": 8.0},
        {"max_epsilon": 1.0, "max_delta": 1e-5, "filter_order": 1.0},
        {"max_epsilon": 1.0, "max_delta": 1e-5, "filter_order": 2.0},  # no budget left
        {"privacy_unit": " "},
        {"privacy_unit": "two\nlines"},
        {"neighboring_relation": "swap"},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|give both|needs a cap|leaves no budget"):
        Ledger(**{"neighboring_relation": "replace_one", "privacy_unit": UNIT, **wrong})


# --- caps ----------------------------------------------------------------------------------------------------------


def test_a_cap_refuses_the_session_that_would_pass_it_and_nothing_else():
    cap = gaussian_epsilon(3 / 5, DELTA) * (1 + 1e-9)
    ledger = book(max_epsilon=cap, max_delta=DELTA)
    ledger.register(full_batch(), planned_queries=8)
    with pytest.raises(BudgetExceededError, match="would exceed the cap"):
        ledger.register(full_batch(), planned_queries=2)
    assert len(ledger.sessions) == 1
    ledger.register(full_batch(), planned_queries=1)


def test_a_withdrawn_session_makes_room_under_the_cap():
    ledger = book(max_epsilon=gaussian_epsilon(3 / 5, DELTA) * (1 + 1e-9), max_delta=DELTA)
    ledger.register(full_batch(), planned_queries=9).withdraw()
    ledger.register(full_batch(), planned_queries=9)
    assert [session.state for session in ledger.sessions] == ["withdrawn", "registered"]
    assert ledger.epsilon(DELTA) <= ledger.max_epsilon


def test_a_cap_takes_no_condition():
    with pytest.raises(BudgetExceededError, match="the Hessian is at most 3"):
        book(max_epsilon=100.0, max_delta=DELTA).register(conditional(full_batch()), planned_queries=1)
    with pytest.raises(BudgetExceededError, match="the Hessian"):
        filtered().register(conditional(full_batch(100.0)), planned_queries=1)


# --- parallel ------------------------------------------------------------------------------------------------------


def test_disjoint_parts_cost_the_most_expensive_of_them():
    ledger = book()
    for index, queries in enumerate((4, 9, 1)):
        ledger.register(full_batch(), planned_queries=queries, part=coin(index))
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(3 / 5, DELTA))
    ledger.register(full_batch(), planned_queries=7, purpose="bounds")  # all records
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(4 / 5, DELTA))
    assert ledger.delta(1.0) == delta([Spend(full_batch(), 16)], 1.0).delta


def test_the_same_part_twice_adds_up_and_so_do_two_splits():
    ledger = book()
    ledger.register(full_batch(), planned_queries=4, part=coin(0))
    ledger.register(full_batch(), planned_queries=5, part=coin(0))
    ledger.register(full_batch(), planned_queries=7, part=coin(1, "other"))
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(4 / 5, DELTA))


def test_a_later_session_on_untouched_records_needs_no_share():
    """Its settings may depend on releases, but on none that its records are in."""
    ledger = book()
    make(ledger.register(full_batch(), planned_queries=4, part=coin(0)), 4)
    later = ledger.register(full_batch(), planned_queries=9, part=coin(1))
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(3 / 5, DELTA))
    for part in (coin(0), coin(0, "other"), None):
        with pytest.raises(LedgerError, match="register_share"):
            ledger.register(full_batch(), planned_queries=1, part=part)
    make(later, 9)
    assert ledger.epsilon_spent(DELTA) == pytest.approx(gaussian_epsilon(3 / 5, DELTA))


def test_ranges_are_parts_where_the_number_of_rows_is_public():
    rows = [Part(split="s", kind="range", index=i, start=10 * i, stop=10 * i + 10) for i in range(2)]
    for relation in ("replace_one", "zero_out_one"):
        ledger = book(relation=relation)
        alone = book(relation=relation)
        alone.register(full_batch(relation=relation), planned_queries=4)
        for part in rows:
            ledger.register(full_batch(relation=relation), planned_queries=4, part=part)
        assert ledger.epsilon(DELTA) == alone.epsilon(DELTA)
    with pytest.raises(UnsupportedEventError, match="Split by coin"):
        book().register(full_batch(), planned_queries=4, part=rows[0])


def test_a_part_is_read_back(tmp_path):
    ledger = book(tmp_path / "ledger.jsonl")
    ledger.register(full_batch(), planned_queries=4, part=coin(0))
    ledger.register(full_batch(), planned_queries=9, part=coin(1))
    again = Ledger.load(ledger.path)
    assert [session.part for session in again.sessions] == [coin(0), coin(1)]
    assert again.epsilon(DELTA) == ledger.epsilon(DELTA)


def test_calibration_stands_beside_what_shares_records():
    ledger = book()
    ledger.register(full_batch(4.0), planned_queries=4, part=coin(0))
    ledger.register(full_batch(5.0), planned_queries=5, part=coin(1))
    ledger.register(full_batch(6.0), planned_queries=6)
    ledger.register(full_batch(7.0), planned_queries=7).withdraw()
    spends = [Spend(full_batch(float(k)), k) for k in (4, 5, 6)]
    assert ledger.spends(coin(0)) == [spends[0], spends[2]]
    assert ledger.spends(coin(2)) == [spends[2]]
    assert ledger.spends() == spends


# --- relation, unit, file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_a_session_of_another_relation_is_refused(relation):
    with pytest.raises(LedgerError, match=f"under {relation} does not fit a ledger under add_or_remove_one"):
        book().register(full_batch(relation=relation), planned_queries=1)


def test_a_ledger_of_other_terms_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with book(path) as ledger:
        ledger.register(full_batch(), planned_queries=1)
    with pytest.raises(LedgerError, match="another neighboring_relation"):
        book(path, relation="replace_one")
    with pytest.raises(LedgerError, match="another privacy_unit"):
        Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row = one hospital")
    with pytest.raises(LedgerError, match="another max_epsilon, max_delta"):
        book(path, max_epsilon=3.0, max_delta=1e-5)
    book(path).close()


def test_load_takes_the_terms_from_the_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with book(path, relation="replace_one", max_epsilon=9.0, max_delta=1e-6, filter_order=12.0) as ledger:
        ledger.register(full_batch(50.0, "replace_one"), planned_queries=1, secure_randomness=False)
    again = Ledger.load(path)
    terms = (again.neighboring_relation, again.privacy_unit, again.max_epsilon, again.max_delta, again.filter_order)
    assert terms == ("replace_one", UNIT, 9.0, 1e-6, 12.0)
    assert again.sessions[0].registration == ledger.sessions[0].registration
    assert again.head == ledger.head
    assert not again.sessions[0].registration.secure_randomness


def test_an_empty_ledger_cannot_be_loaded_since_it_states_no_terms(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book(path).close()
    with pytest.raises(LedgerError, match="holds no session yet"):
        Ledger.load(path)


@pytest.mark.parametrize(
    "event",
    [
        full_batch(),
        full_batch(0.0),
        poisson(),
        one_pass(),
        conditional(poisson()),
        LaplaceEvent(relation="add_or_remove_one", l1_sensitivity=1.0, scale=3.0),
    ],
)
def test_every_event_is_read_back(tmp_path, event):
    ledger = book(tmp_path / "ledger.jsonl")
    ledger.register(event, planned_queries=3)
    assert Ledger.load(ledger.path).sessions[0].event == event


def test_a_ledger_in_memory_says_what_one_in_a_file_says(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)  # one name for both
    results = []
    for path in (None, tmp_path / "ledger.jsonl"):
        ledger = book(path)
        session = ledger.register(poisson(), planned_queries=150, settings={"a": 1})
        make(session, 30, reserve=50)
        session.flush()
        session.close()
        results.append((ledger.head, ledger.anchor, ledger.epsilon(DELTA), ledger.epsilon_spent(DELTA)))
        assert ledger.verify().ok
    assert results[0] == results[1]
    assert book().verify().anchor == "memory"


def test_the_lines_are_those_of_the_design(tmp_path):
    ledger = book(tmp_path / "ledger.jsonl")
    session = ledger.register(full_batch(), planned_queries=4, part=coin(0), settings={"a": 1})
    ledger.register(full_batch(), planned_queries=4).withdraw()
    make(session, 1, reserve=2)
    session.close()
    lines = [json.loads(line) for line in ledger.path.read_bytes().splitlines()]
    assert [line["kind"] for line in lines] == ["register", "register", "withdraw", "open", "reserve", "query", "close"]
    assert {line["session"] for line in lines} == {"train-1", "train-2"}
    register = {name: lines[0][name] for name in ("neighboring_relation", "privacy_unit", "planned_queries", "purpose")}
    assert register == {
        "neighboring_relation": "add_or_remove_one",
        "privacy_unit": UNIT,
        "planned_queries": 4,
        "purpose": "train",
    }
    assert lines[0]["event"]["event"] == "GaussianSumEvent"
    assert lines[0]["part"] == {"split": "phases", "kind": "coin", "index": 0}
    assert lines[0]["settings_sha256"] == settings_sha256({"a": 1})
    assert (lines[4]["first"], lines[4]["last"]) == (0, 1)
    assert (lines[5]["number"], lines[5]["fingerprint"]) == (0, "aa")
    assert lines[6]["queries_made"] == 1


def test_a_session_of_fixed_size_batches_stands_beside_one_of_poisson_batches():
    ledger = book(relation="replace_one")
    ledger.register(poisson(4.0, relation="replace_one"), planned_queries=10)
    fixed = GaussianSumEvent(
        relation="replace_one", max_contribution=(1.0,), noise_std=(8.0,), sampling=FixedSizeLaw(10, 1000)
    )
    before = ledger.epsilon(DELTA)
    assert isinstance(ledger.register(fixed, planned_queries=10), Session)
    assert before < ledger.epsilon(DELTA) < 3


def book_of_one(event):
    ledger = book()
    ledger.register(event, planned_queries=10)
    return ledger


def test_a_session_that_was_not_needed_stays_in_the_plan():
    ledger = book()
    session, other = (ledger.register(one_pass(), planned_queries=10) for _ in range(2))
    planned = ledger.epsilon(DELTA)
    make(session, 10)
    other.withdraw()
    assert ledger.epsilon(DELTA) == planned
    unused = book()
    _, other = (unused.register(one_pass(), planned_queries=10) for _ in range(2))
    other.withdraw()  # before anything was released
    assert unused.epsilon(DELTA) == book_of_one(one_pass()).epsilon(DELTA)
