"""Ctrl-C at any point of a query: the next one works, and the ledger says no less than what was released."""

import os
import sys
import threading

import pytest
import torch

import tacita
from tacita.estimators import ClippedSum
from tacita.gradients import GivenSource
from tacita.ledger import Ledger
from tacita.oracles import GradientOracle

STEP = 1 if os.environ.get("TACITA_AUDIT") else 4  # make audit asks every line, make test each fourth
ENDING = 30  # lines at the end of a query, where it lets go of what it held: each of them
OF_A_QUERY = ("tacita/oracles/", "tacita/ledger/", "tacita/_files", "tacita/random", "contextlib")


class Interrupts:
    """Raise ``KeyboardInterrupt`` where a line of a query's files is run for the first time: the ``nth`` such line."""

    def __init__(self, nth=None):
        self.nth, self.lines = nth, set()

    def __call__(self, frame, event, arg):
        if not any(name in frame.f_code.co_filename for name in OF_A_QUERY):
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in self.lines:
            self.lines.add(place)
            if len(self.lines) == self.nth:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def run(self, call):
        """Call ``call`` under this tracer; return what it returned, or ``None`` if it was interrupted.

        It runs in a thread of its own: an interrupt between two lines of a context manager can leave a thread with an
        exception that later ones name as their context.
        """
        returned = []

        def traced():
            sys.settrace(self)
            try:
                returned.append(call())
            except KeyboardInterrupt:
                returned.clear()

        thread = threading.Thread(target=traced)
        thread.start()
        thread.join()
        return returned[0] if returned else None


def oracle_of(path):
    return GradientOracle(
        GivenSource(torch.ones(20, 3)),
        estimator=ClippedSum(tacita.FlatClipper(max_grad_norm=1.0)),
        ledger=Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=20),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=6,
        randomness=tacita.Randomness.insecure(0),
        reservation=2,
    )


def query(oracle):
    return oracle.query({"theta": torch.zeros(3)})


def lines_of(path, before):
    """How many lines a query runs that comes after ``before`` others."""
    oracle = oracle_of(path)
    for _ in range(before):
        query(oracle)
    counting = Interrupts()
    counting.run(lambda: query(oracle))
    oracle.ledger.close()
    return len(counting.lines)


@pytest.mark.parametrize("before", [0, 1])
def test_a_query_recovers_from_an_interrupt_at_any_line(tmp_path, before):
    """The first query opens the session and reserves; the second uses what is reserved."""
    lines = lines_of(tmp_path / "count.jsonl", before)
    assert lines > 50
    for nth in sorted({*range(1 + before, lines + 1, STEP), *range(lines - ENDING, lines + 1)}):
        path = tmp_path / f"{nth}.jsonl"
        oracle = oracle_of(path)
        released = [query(oracle) for _ in range(before)]
        tracer = Interrupts(nth)
        released.append(tracer.run(lambda oracle=oracle: query(oracle)))
        released += [query(oracle), query(oracle)]
        made = [one for one in released if one is not None]
        assert len({one.query for one in made}) == len(made), f"line {nth}: a number is released twice"
        session = oracle.session
        assert all(session.lookup(one.query) is not None for one in made), (
            f"line {nth}: released, and not in the ledger"
        )
        assert session.queries_made >= len(made)
        assert oracle.ledger.verify().ok, f"line {nth}: {oracle.ledger.verify().reason}"
        oracle.ledger.close()
        again = Ledger.load(path)
        assert again.verify().ok
        assert again.sessions[0].queries_made == session.queries_made
        assert again.sessions[0].reserved_queries >= max(one.query for one in made) + 1


def test_a_query_within_a_query_is_still_refused(tmp_path, monkeypatch):
    oracle = oracle_of(tmp_path / "ledger.jsonl")
    monkeypatch.setattr(oracle.source, "engine", lambda *args, **settings: query(oracle))
    with pytest.raises(RuntimeError, match="from within one"):
        query(oracle)


def test_registering_recovers_from_an_interrupt_at_any_line(tmp_path):
    event, counting = oracle_of(None).event, Interrupts()
    ledger = Ledger(tmp_path / "count.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    counting.run(lambda: ledger.register(event, planned_queries=3))
    for nth in range(1, len(counting.lines) + 1, STEP):
        ledger = Ledger(tmp_path / f"{nth}.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
        Interrupts(nth).run(lambda ledger=ledger: ledger.register(event, planned_queries=3))
        session = ledger.register(event, planned_queries=3)
        session.open()
        assert session in ledger.sessions
        assert ledger.verify().ok
        ledger.close()
        assert [one.id for one in Ledger.load(tmp_path / f"{nth}.jsonl").sessions] == [s.id for s in ledger.sessions]
