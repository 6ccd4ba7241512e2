"""Reservations: how many flushes a run makes, what a kill over-reports, and that neither tells of the records."""

import json

import pytest

from tacita.accounting import FullBatchLaw, GaussianSumEvent, Spend, accountant
from tacita.errors import BudgetExceededError, LedgerError
from tacita.ledger import Ledger, Reservations
from tacita.ledger.hash_chain import canonical
from tacita.ledger.journal import read_file
from tacita.ledger.session import BLOCK, FIRST

EVENT = GaussianSumEvent(
    sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
)


class Counted:
    """A session that remembers what was reserved."""

    def __init__(self, planned_queries):
        ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        self.session = ledger.register(EVENT, planned_queries=planned_queries)
        self.session.open()
        self.blocks = []

    def __getattr__(self, name):
        return getattr(self.session, name)

    def reserve(self, first, last, *, ahead):
        self.blocks.append((first, last))
        self.session.reserve(first, last, ahead=ahead)


def run(planned_queries, queries=None, size=BLOCK):
    session = Counted(planned_queries)
    ahead = Reservations(session, size)
    for query in range(queries if queries is not None else planned_queries):
        ahead.prepare(query)
        assert session.is_reserved(query)
    return session


GROWING = [(0, 15), (16, 31), (32, 63), (64, 127), (128, 255), (256, 511), (512, 1023)]


def test_as_many_are_reserved_as_were_made():
    assert run(BLOCK).blocks == GROWING
    assert run(1).blocks == [(0, 0)]
    assert run(400).blocks == [*GROWING[:5], (256, 399)]


def test_a_long_run_is_a_flush_a_block():
    later = [(BLOCK, 2 * BLOCK - 1), (2 * BLOCK, 2 * BLOCK + 6)]
    assert run(2 * BLOCK + 7).blocks == [*GROWING, *later]


def test_each_query_has_its_own_flush_where_that_is_asked_for():
    assert run(20, size=1).blocks == [(k, k) for k in range(20)]


@pytest.mark.parametrize("made", [1, 5, 17, 100, 700, BLOCK + 5])
def test_a_kill_over_reports_no_more_than_was_made_and_at_most_one_block(made):
    session = run(10 * BLOCK, queries=made)
    assert session.reserved_queries - made < min(max(FIRST, made), BLOCK)


def test_numbers_left_behind_are_reserved_without_a_gap():
    session = run(10 * BLOCK, queries=3)
    Reservations(session).prepare(2 * BLOCK + 1)
    assert session.blocks[-1] == (FIRST, 3 * BLOCK - 1)


def test_past_the_plan_is_refused():
    session = run(5)
    with pytest.raises(BudgetExceededError, match="planned 5 queries"):
        Reservations(session).prepare(5)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_size_is_a_public_number(size):
    assert run(8, size=size).blocks == [(first, min(first + size, 8) - 1) for first in range(0, 8, size)]


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match="size must be"):
        Reservations(Counted(5).session, size)


# --- given back ----------------------------------------------------------------------------------------------------

WORDS = {"neighboring_relation": "add_or_remove_one", "privacy_unit": "one row = one patient"}
PLANNED = 3000


def session_in(path, made, *, unreleased=0, size=BLOCK):
    """An open session that made so many queries, and began more without releasing them; its ledger is open."""
    ledger = Ledger(path, **WORDS)
    session = ledger.sessions[0] if ledger.sessions else ledger.register(EVENT, planned_queries=PLANNED)
    if not session.opened:
        session.open()
    ahead = Reservations(session, size)
    for query in range(session.last_query + 1, session.last_query + 1 + made):
        ahead.prepare(query)
        session.spend(query)
    for query in range(session.last_query + 1, session.last_query + 1 + unreleased):
        ahead.prepare(query)
    return ledger, session


def spent(path):
    return Ledger.load(path).sessions[0].queries_spent


def test_a_clean_close_gives_back_what_was_not_begun(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for rounds in range(1, 4):  # a client that lives for one query at a time
        ledger, _ = session_in(path, 1)
        ledger.close()
        assert spent(path) == rounds
        loaded = Ledger.load(path)
        assert loaded.verify().ok
        assert loaded.epsilon_spent(1e-5) == accountant_epsilon(rounds)


def accountant_epsilon(queries):
    return accountant.epsilon([Spend(EVENT, queries)], 1e-5).epsilon


def test_without_a_close_all_that_was_reserved_counts(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger, _ = session_in(path, 1)
    assert spent(path) == FIRST
    ledger.close()


def test_what_was_begun_is_not_given_back(tmp_path):
    """Its batch may be drawn: whether its noise is, nobody wrote down."""
    path = tmp_path / "ledger.jsonl"
    ledger, _ = session_in(path, 2, unreleased=1)
    ledger.close()
    assert spent(path) == 3


def test_what_a_killed_process_reserved_is_not_given_back(tmp_path):
    path, copy = tmp_path / "ledger.jsonl", tmp_path / "killed" / "ledger.jsonl"
    ledger, _ = session_in(path, 1)
    copy.parent.mkdir()
    for name in ("ledger.jsonl", "ledger.head.json"):
        (copy.parent / name).write_bytes((tmp_path / name).read_bytes())
    ledger.close()
    later, _ = session_in(copy, 3)
    later.close()
    assert spent(copy) == FIRST


def test_a_number_given_back_is_reserved_again_before_it_is_drawn(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger, session = session_in(path, 2)
    session.give_back()
    assert (session.is_reserved(1), session.is_reserved(2), session.reserved_queries) == (True, False, 2)
    with pytest.raises(LedgerError, match="is not reserved"):
        session.spend(2)
    with pytest.raises(LedgerError, match="is not reserved"):
        session.begin(2)
    Reservations(session).prepare(2)
    assert session.is_reserved(2)
    session.give_back()
    session.give_back()  # nothing left to give
    ledger.close()
    kinds = [json.loads(line)["kind"] for line in read_file(path).lines]
    assert kinds.count("give_back") == 2
    assert spent(path) == 3


def test_numbers_reserved_by_hand_are_not_given_back(tmp_path):
    """Whoever reserves a number without saying that it is not drawn yet may draw it at once."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=PLANNED)
    session.open()
    session.reserve(0, 4)
    ledger.close()
    assert spent(path) == 5


def test_a_closed_session_and_one_in_memory_give_nothing_back(tmp_path):
    ledger, session = session_in(tmp_path / "ledger.jsonl", 2)
    session.close()
    ledger.close()
    assert "give_back" not in (tmp_path / "ledger.jsonl").read_text()
    memory, session = session_in(None, 2)
    memory.close()
    assert session.reserved_queries == FIRST


@pytest.mark.parametrize("change", [dict(first=1), dict(first=0), dict(last=2), dict(first=2000), dict(last=5000)])
def test_a_line_that_gives_back_what_was_used_is_no_ledger(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    ledger, _ = session_in(path, 2)
    ledger.close()
    *lines, last = path.read_bytes().splitlines()
    assert json.loads(last)["kind"] == "give_back"
    lines.append(canonical({**json.loads(last), **change}))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.raises(LedgerError, match="cannot give back"):
        Ledger.load(path)


def test_an_interrupt_while_a_ledger_is_closed_leaves_no_lock(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger, session = session_in(path, 1)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "give_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.close()
    Ledger(path, **WORDS).close()
    assert spent(path) == FIRST
