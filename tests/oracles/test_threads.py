"""Many threads on one oracle, one test, one ledger: each query has its own number, noise, line and state."""

import sys
import threading
import time

import pytest
import torch

import tacita
from tacita.oracles import trainable
from tests.second_order.test_stationary_test import build

THREADS, EACH = 8, 12


@pytest.fixture(autouse=True)
def often_switched():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work):
    """What ``work(thread, time)`` gave in each of the threads, and every exception."""
    found, errors, start = [], [], threading.Barrier(THREADS)

    def run(thread):
        start.wait()
        for time_asked in range(EACH):
            try:
                found.append((thread, work(thread, time_asked)))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, errors


def slow(oracle):
    """Let other threads in between the values of a query and its payment, and between the payment and the noise."""
    commit, noisy = oracle.gate.commit, oracle.gate.release

    def committing(query, values, seen):
        time.sleep(1e-4)
        return commit(query, values, seen)

    def adding(dtypes=None):
        time.sleep(1e-4)
        return noisy(dtypes)

    oracle.gate.commit, oracle.gate.release = committing, adding
    return oracle


def points(problem):
    """A point for each thread; taken now, since a query puts its own into the model while it runs."""
    return [{name: p.detach() + thread for name, p in trainable(problem[0]).items()} for thread in range(THREADS)]


def test_no_number_has_its_noise_on_two_values(problem, make_oracle):
    """Each release is the value at its own thread's point with the noise of its own number, as one thread gets it."""
    planned, at = THREADS * EACH, points(problem)
    oracle = slow(make_oracle(planned_queries=planned))
    found, errors = in_threads(lambda thread, _: oracle.query(at[thread]))
    assert not errors
    assert sorted(release.query for _, release in found) == list(range(planned))
    alone = make_oracle(planned_queries=planned)
    for thread, release in sorted(found, key=lambda one: one[1].query):
        expected = alone.query(at[thread])
        assert all(torch.equal(release.gradient[name], expected.gradient[name]) for name in expected.gradient)
    assert oracle.session.queries_made == planned


def test_a_ratchet_waits_for_the_query(problem, make_oracle):
    """Noise of one generation on a batch and under a tag of another would be drawn anew by a redo, free of charge."""
    oracle = make_oracle(planned_queries=1)
    drawn, paid = [], threading.Event()
    commit, normals = oracle.gate.commit, oracle.gate._normals

    def committing(query, values, seen):
        outcome = commit(query, values, seen)
        paid.set()
        time.sleep(0.05)
        return outcome

    def drawing(query):
        drawn.append(oracle.randomness.generation)
        return normals(query)

    oracle.gate.commit, oracle.gate._normals = committing, drawing
    other = threading.Thread(target=lambda: (paid.wait(), oracle.randomness.ratchet()))
    other.start()
    oracle.query(trainable(problem[0]))
    other.join()
    assert drawn == [0]
    assert oracle.randomness.generation == 1


def test_a_state_counts_every_query(problem, make_oracle, monkeypatch):
    """A state that counts what it saw has seen every query once."""

    oracle = make_oracle(planned_queries=THREADS * EACH)
    look = oracle.estimator.bound

    def counting(engine, state):
        values, _ = look(engine, None)
        time.sleep(1e-4)
        return values, state + 1

    monkeypatch.setattr(type(oracle.estimator), "bound", lambda self, engine, state: counting(engine, state))
    monkeypatch.setattr(type(oracle.estimator), "apply", lambda self, state, seen: time.sleep(1e-3) or seen)
    oracle.gate._state, at = 0, points(problem)
    found, errors = in_threads(lambda thread, _: oracle.query(at[thread]))
    assert not errors
    assert len(found) == oracle.gate._state == THREADS * EACH


def test_a_query_from_within_a_query_is_refused(problem, make_oracle):
    oracle = make_oracle(sampler=tacita.FullBatchSampler(num_records=60), method="loop")
    loss_fn = oracle.source.loss_fn
    oracle.source.loss_fn = lambda model, batch: (oracle.query(trainable(problem[0])), loss_fn(model, batch))[1]
    with pytest.raises(RuntimeError, match="from within one"):
        oracle.query(trainable(problem[0]))
    oracle.source.loss_fn = loss_fn
    assert oracle.query(trainable(problem[0])).query == oracle.session.queries_made - 1


def test_a_stationary_test_answers_one_thread_at_a_time():
    """Answers to many threads are those of one: number k has the noise of number k, and the session ends once."""
    test = build(max_tests=THREADS * EACH, epsilon=400.0)
    far = {name: torch.full_like(p, 0.9) for name, p in trainable(test.source.model).items()}
    numbers, begin = [], test._gate.begin

    def beginning():
        number = begin()
        numbers.append(number)
        time.sleep(1e-4)
        return number

    test._gate.begin = beginning
    found, errors = in_threads(lambda *_: test.test(far))
    refused = [error for error in errors if not isinstance(error, tacita.BudgetExceededError)]
    assert not refused
    assert numbers == list(range(len(numbers)))
    assert sum(answer for _, answer in found) <= 1


def test_sessions_of_many_threads_stand_in_one_intact_ledger(tmp_path, make_oracle):
    ledger = tacita.Ledger(tmp_path / "l.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = make_oracle().event
    append = ledger._journal._file.write

    def appending(data):
        time.sleep(1e-4)
        append(data)

    ledger._journal._file.write = appending
    sessions, errors = in_threads(lambda *_: ledger.register(event, planned_queries=3))
    assert not errors
    assert len({session.id for _, session in sessions}) == THREADS * EACH == len(ledger.sessions)
    shared = ledger.sessions[0]
    shared.open()
    in_threads(lambda thread, asked: shared.reserve(shared.reserved_queries, shared.reserved_queries))
    assert shared.reserved_queries == 3
    in_threads(lambda thread, asked: shared.spend(asked % 3))
    assert shared.queries_made == 3
    ledger.close()
    assert tacita.Ledger.load(tmp_path / "l.jsonl").verify().ok


def test_reading_goes_on_while_sessions_are_added(make_oracle):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = make_oracle().event

    def work(thread, _):
        return ledger.register(event, planned_queries=3) if thread % 2 else (ledger.conditions, ledger.spends())

    assert not in_threads(work)[1]
