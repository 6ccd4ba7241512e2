"""Correlated noise on the oracle: the same noise through checkpoints, crashes and processes, and what is refused."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
import torch

import tacita
from tacita.correlated import strategy
from tacita.errors import LedgerError, ResumeError, UnsupportedEventError
from tacita.oracles import trainable
from tacita.testing.fidelity import check_noise
from tacita.testing.simulator import Worlds, parts_of, simulate
from tests.oracles.test_gate import crashed, resumed, same

BANDS = 3


def correlated(bands=BANDS, noise_multiplier=2.0, banded_matrix=False):
    return tacita.CorrelatedGaussian(
        noise_multiplier=noise_multiplier, bands=bands, power=0.6, banded_matrix=banded_matrix
    )


CYCLIC = dict(
    sampler=tacita.CyclicSampler(batches_per_cycle=4, num_records=60, assignment="coin"), mechanism=correlated()
)
BANDED = dict(CYCLIC, mechanism=correlated(banded_matrix=True))
SAMPLED = dict(
    sampler=tacita.CyclicSampler(batches_per_cycle=3, num_records=60, assignment="coin", turn_rate=0.75),
    mechanism=correlated(banded_matrix=True),
)


@pytest.fixture(params=[CYCLIC, BANDED, SAMPLED], ids=["inverse", "matrix", "sampled"])
def cyclic(request):
    return request.param


@pytest.fixture(params=[CYCLIC, BANDED], ids=["inverse", "matrix"])
def whole_groups(request):
    """Batches that no checkpoint draws anew."""
    return request.param


@pytest.fixture
def asked(problem, make_oracle):
    """``asked(oracle, n)``: n releases at the model's parameters."""

    def ask(oracle, count):
        return [oracle.query(trainable(problem[0])) for _ in range(count)]

    return ask


def all_same(some, others):
    return len(some) == len(others) and all(map(same, some, others))


def noise_and_draws(problem, make_oracle, asked, settings):
    """Ten releases without records, and the draws of each query's own noise, while the key moves on in between."""
    x, y = problem[2]
    empty, released, draws = make_oracle(dataset=(x[:0], y[:0]), **settings), [], []
    for query in range(10):
        released += [release.released["all"]["weight"].flatten() for release in asked(empty, 1)]
        own = empty.randomness.noise_key("train-1", query).stream("all", "weight")
        draws.append(empty.noise_std["all"] * own.normals((4,), dtype=torch.float64))
        for _ in range({0: 1, 3: 2, 5: 1}.get(query, 0)):
            empty.ratchet()
    return torch.stack(released), draws


def test_the_first_differences_of_releases_are_those_of_the_coefficients(problem, make_oracle, asked):
    """The noise of the oracle, without records, is that of the mechanism's own strategy."""
    released, draws = noise_and_draws(problem, make_oracle, asked, CYCLIC)
    weights = strategy.coefficients(BANDS, 0.6)
    for query in range(10):
        expected = sum(w * draws[query - lag] for lag, w in enumerate(weights[: query + 1]))
        assert torch.allclose(released[query], torch.as_tensor(expected), rtol=1e-12)


def test_the_noise_of_a_banded_matrix_is_its_recursion(problem, make_oracle, asked):
    released, draws = noise_and_draws(problem, make_oracle, asked, BANDED)
    matrix = strategy.column(BANDS, 0.6, 10, True)
    for query in range(10):  # C w = z
        shown = sum(matrix[lag] * released[query - lag] for lag in range(query + 1))
        assert torch.allclose(torch.as_tensor(shown), draws[query], rtol=1e-10, atol=1e-12)


def test_a_thief_of_the_key_file_opens_a_banded_matrix_until_the_session_has_ended(make_oracle, asked, tmp_path):
    """What the threat model says."""
    oracle = make_oracle(**BANDED)
    asked(oracle, 6)
    keys = [oracle.randomness.noise_key("train-1", query)._secret.hex() for query in range(6)]
    checkpointed(oracle, tmp_path, "key")
    kept = json.loads((tmp_path / "key").read_text())
    assert kept["noise"] == {"train-1": [6, keys]}
    oracle.session.close()
    checkpointed(oracle, tmp_path, "key")
    assert not json.loads((tmp_path / "key").read_text())["noise"]


def test_a_checkpoint_drops_the_keys_of_noise_of_sessions_that_ended(make_oracle, asked, tmp_path, cyclic):
    """Also where another session goes on in the same run."""
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    paying = dict(cyclic, ledger=ledger, randomness=tacita.Randomness.insecure(0))
    oracle, again = make_oracle(**paying), make_oracle(**paying)
    asked(oracle, 3)
    ended = [oracle.randomness.noise_key("train-1", query)._secret.hex() for query in range(3)]
    oracle.session.close()
    asked(again, 2)
    checkpointed(again, tmp_path, "key")
    secrets = (tmp_path / "key").read_text()
    assert [*json.loads(secrets)["noise"]] == ["train-2"]
    assert not any(one in secrets for one in ended)
    asked(again, 2)


def test_a_session_that_ended_is_taken_up_after_its_noise_is_forgotten(make_oracle, asked, tmp_path, cyclic):
    """What follows in the run, such as a score or the seal, was killed: twice, with a checkpoint in between."""
    tacita.Randomness.system().save(tmp_path / "key")
    ledger, state = None, None
    for _ in range(3):
        ledger = tacita.Ledger(tmp_path / "book", neighboring_relation="add_or_remove_one", privacy_unit="one row")
        given = {"session": ledger.sessions[0]} if ledger.sessions else {}
        oracle = make_oracle(**cyclic, **given, ledger=ledger, randomness=tacita.Randomness.load(tmp_path / "key"))
        if state is not None:
            oracle.load_state_dict(state)
        asked(oracle, oracle.remaining_queries)
        if not oracle.session.closed:
            oracle.session.close()
        state = checkpointed(oracle, tmp_path, "key")
        ledger.close()
    assert oracle.remaining_queries == 0


def test_a_crashed_run_redoes_its_queries_bit_for_bit(problem, make_oracle, asked, tmp_path, cyclic):
    state, releases = crashed(make_oracle, problem, tmp_path, 5, **cyclic)
    oracle = resumed(make_oracle, tmp_path, state, **cyclic)
    assert all_same(asked(oracle, 5), releases)
    assert oracle.session.queries_made == 5
    assert all_same(asked(oracle, 5), asked(make_oracle(**cyclic), 10)[5:])


def test_other_values_under_a_used_number_are_refused(problem, make_oracle, tmp_path, cyclic):
    state, _ = crashed(make_oracle, problem, tmp_path, 3, **cyclic)
    oracle = resumed(make_oracle, tmp_path, state, **cyclic)
    elsewhere = {name: p.detach() + 1.0 for name, p in trainable(problem[0]).items()}
    oracle.query(elsewhere) if not oracle.draws.batch(0).size else None
    with pytest.raises(ResumeError, match="cannot be continued"):
        oracle.query(elsewhere)


def checkpointed(oracle, tmp_path, name):
    """Save a run as fit does; return the checkpoint's state."""
    kept = []
    oracle.checkpoint(kept.append, tmp_path / name)
    return kept[0]


def with_checkpoints(make_oracle, asked, tmp_path, settings, *places):
    """The ten releases of a run that nothing interrupts, with a checkpoint after so many."""
    oracle, released = make_oracle(**settings), []
    for place in (*places, 10):
        released += asked(oracle, place - len(released))
        checkpointed(oracle, tmp_path, "another key")
    return released


@pytest.mark.parametrize("crash", [*itertools.product([1, 2, 5], [False, True])])
def test_a_run_resumes_from_any_checkpoint(make_oracle, asked, tmp_path, crash, whole_groups):
    """Also where the process was killed after the checkpoint and before the new key was saved."""
    made, killed_before_the_key = crash
    expected = with_checkpoints(make_oracle, asked, tmp_path, whole_groups, 1, made)
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    randomness = tacita.Randomness.insecure(0)
    randomness.save(tmp_path / "key")  # before there is any session
    oracle = make_oracle(ledger=ledger, randomness=randomness, **whole_groups)
    asked(oracle, 1)
    checkpointed(oracle, tmp_path, "key")
    asked(oracle, made - 1)
    state = checkpointed(oracle, tmp_path, "newer" if killed_before_the_key else "key")
    asked(oracle, 2)  # after the checkpoint, and lost
    oracle.session.flush()
    ledger.close()
    again = resumed(make_oracle, tmp_path, state, randomness=tacita.Randomness.load(tmp_path / "key"), **whole_groups)
    assert all_same(asked(again, 10 - made), expected[made:])


def test_a_step_back_to_the_last_checkpoint_draws_the_same(make_oracle, asked, tmp_path, whole_groups):
    oracle = make_oracle(**whole_groups)
    expected = with_checkpoints(make_oracle, asked, tmp_path, whole_groups, 3)
    asked(oracle, 3)
    state = checkpointed(oracle, tmp_path, "key")
    asked(oracle, 4)
    oracle.load_state_dict(state)
    assert all_same(asked(oracle, 7), expected[3:])


def test_a_checkpoint_keeps_the_keys_of_the_last_noise_and_no_others(make_oracle, asked, tmp_path):
    oracle = make_oracle(**CYCLIC)
    asked(oracle, 6)
    checkpointed(oracle, tmp_path, "key")
    after, kept = json.loads((tmp_path / "key").read_text())["noise"]["train-1"]
    assert (after, len(kept)) == (6, BANDS - 1)
    stolen = tacita.Randomness.load(tmp_path / "key")
    assert stolen.noise_key("train-1", 4) == oracle.randomness.noise_key("train-1", 4)
    for opened in (stolen, oracle.randomness):
        with pytest.raises(ResumeError, match="keys of earlier noise are gone"):
            opened.noise_key("train-1", 3)
    before = tacita.Randomness.insecure(0)
    secrets = (tmp_path / "key").read_text()
    assert not any(before.noise_key("train-1", query)._secret.hex() in secrets for query in range(4))


def test_the_noise_of_a_session_that_ended_is_forgotten(make_oracle, asked, tmp_path):
    oracle = make_oracle(**CYCLIC)
    asked(oracle, 3)
    oracle.ratchet()
    oracle.randomness.end_noise(["train-1"])
    oracle.randomness.save(tmp_path / "key")
    assert json.loads((tmp_path / "key").read_text())["noise"] == {}


def test_a_key_file_of_a_later_query_cannot_go_back(problem, make_oracle, asked, tmp_path, cyclic):
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=ledger, **cyclic)
    early = oracle.state_dict()
    asked(oracle, 5)
    checkpointed(oracle, tmp_path, "key")
    ledger.close()
    with pytest.raises(ResumeError):
        resumed(make_oracle, tmp_path, early, randomness=tacita.Randomness.load(tmp_path / "key"), **cyclic)


def test_a_newer_key_takes_no_query_back_even_without_its_records(problem, make_oracle, asked, tmp_path, cyclic):
    """As after a loss of power: the key was saved, and the ledger's last records were not on disk."""
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=ledger, **cyclic)
    early = oracle.state_dict()
    oracle.ratchet()
    with pytest.raises(ResumeError, match="cannot go back behind its private key file"):
        oracle.load_state_dict(early)
    assert asked(oracle, 1)


def test_a_load_that_fails_changes_nothing(make_oracle, asked, tmp_path, whole_groups):
    oracle = make_oracle(**whole_groups)
    early = oracle.state_dict()
    asked(oracle, 5)
    oracle.ratchet()
    with pytest.raises(ResumeError):
        oracle.load_state_dict(early)
    assert oracle.gate.position == 5
    assert all_same(asked(oracle, 5), with_checkpoints(make_oracle, asked, tmp_path, whole_groups, 5)[5:])


@pytest.mark.parametrize("stale", [False, True])
def test_an_older_key_does_not_take_back_other_noise(problem, make_oracle, asked, tmp_path, stale):
    """The key file of before the last query but one was made is put back beside a checkpoint of after it."""
    (tmp_path / "run").mkdir()
    ledger = {"neighboring_relation": "add_or_remove_one", "privacy_unit": "one row"}
    tacita.Randomness.system().save(tmp_path / "run" / "key")
    state = {}
    for _ in range(2):  # the second process draws under a key of its own
        key = tacita.Randomness.load(tmp_path / "run" / "key")
        with tacita.Ledger(tmp_path / "run" / "ledger.jsonl", **ledger) as book:
            session = {"session": book.sessions[0]} if book.sessions else {}
            oracle = make_oracle(ledger=book, randomness=key, **session, **CYCLIC)
            oracle.load_state_dict(state) if state else None
            shutil.copy(tmp_path / "run" / "key", tmp_path / ("stale" if not state else "new"))
            asked(oracle, 3)
            oracle.session.flush()
            state = oracle.state_dict()
    with tacita.Ledger(tmp_path / "run" / "ledger.jsonl", **ledger) as book:
        key = tacita.Randomness.load(tmp_path / ("stale" if stale else "new"))
        again = make_oracle(ledger=book, session=book.sessions[0], randomness=key, **CYCLIC)
        if stale:
            with pytest.raises(ResumeError, match="was begun with another key"):
                again.load_state_dict(state)
        else:
            again.load_state_dict(state)


@pytest.mark.parametrize(
    "sampler",
    [
        CYCLIC["sampler"],
        tacita.AllocatedSampler(batches_per_epoch=10, num_records=60),
        tacita.AllocatedSampler(batches_per_epoch=5, num_records=60),
    ],
)
def test_other_rows_in_mid_session_would_deal_the_groups_anew(problem, make_oracle, asked, sampler):
    x, y = problem[2]
    state = make_oracle(sampler=sampler).state_dict()
    make_oracle(sampler=sampler).load_state_dict(state)
    with pytest.raises(ResumeError, match="and the same records"):
        make_oracle(sampler=sampler, dataset=(x[1:], y[1:])).load_state_dict(state)


def test_an_interrupted_query_takes_its_noise_with_it(make_oracle, asked, problem, cyclic):
    """It is paid and never released, and the next query takes back what it would have had."""
    expected = asked(make_oracle(**cyclic), 3)
    oracle = make_oracle(**cyclic)
    asked(oracle, 1)
    gate = oracle.gate
    with gate.lock, gate.turn():
        query, rows, seed = oracle.draws.planned(gate.begin(), trainable(problem[0]))
        engine = oracle.source.engine(trainable(problem[0]), rows, query=query, seed=seed)
        gate.commit(query, *oracle.estimator.bound(engine, gate.state))
    assert same(asked(oracle, 1)[0], expected[2])


def test_blocks_have_noise_of_their_own(make_oracle, cyclic):
    oracle = make_oracle(**cyclic)
    normals = oracle.gate._normals(0)
    like = {"weight": torch.zeros(9)}
    first, second = (normals.lagged(0, block, like)["weight"] for block in ("a", "b"))
    assert not (first == second).any()


def test_sessions_of_one_run_have_other_noise(problem, make_oracle, asked, cyclic):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    randomness = tacita.Randomness.insecure(0)
    x, y = problem[2]
    no_rows = (x[:0], y[:0])  # so that noise alone is released
    first, second = (make_oracle(ledger=ledger, randomness=randomness, dataset=no_rows, **cyclic) for _ in range(2))
    for one, other in zip(asked(first, 3), asked(second, 3), strict=True):
        assert not (one.released["all"]["weight"] == other.released["all"]["weight"]).any()


def test_the_statement_says_what_the_noise_is(make_oracle, asked):
    oracle = make_oracle(**CYCLIC)
    asked(oracle, 2)
    statement = tacita.statement(oracle.ledger, 1e-5)
    assert "Cyclic batches, 4 a cycle" in str(statement)
    assert "correlated: 3 bands, power 0.6" in str(statement)
    assert "Correlated noise takes back" in str(statement)
    assert statement.to_json()["noise_multiplier"] is None  # of one query, which says nothing here
    assert statement.to_json()["noise_std"] == pytest.approx(2.0)


def test_simulated_sessions_are_whitened(make_oracle, cyclic):
    """What audits of many runs compare with a normal law is the noise without its correlation."""
    oracle = make_oracle(**cyclic)
    x = torch.zeros(4, 3)
    parts = parts_of(oracle, 10, "add_or_remove_one")
    worlds = Worlds({"weight": x}, None, torch.arange(4) == 3, False, lambda query: 1.0)
    traces = list(simulate(parts, worlds, present=True, runs=400, seed=0))
    check_noise(torch.cat([trace.residual - trace.shift for trace in traces]), 1e-6)


def test_simulated_shifts_show_in_later_queries(make_oracle):
    oracle = make_oracle(**CYCLIC)
    worlds = Worlds({"weight": torch.ones(1, 1)}, None, torch.ones(1, dtype=torch.bool), False, lambda query: 1.0)
    (trace,) = simulate(parts_of(oracle, 10, "add_or_remove_one"), worlds, present=True, runs=30, seed=0)
    columns = torch.from_numpy(strategy.column(BANDS, 0.6, 10)).float()
    for drawn, shift in zip(trace.drawn, trace.shift.squeeze(-1), strict=True):
        expected = sum(torch.nn.functional.pad(columns, (int(turn), 0))[:10] for turn in drawn.nonzero()) / 2.0
        assert torch.allclose(shift, torch.as_tensor(expected).expand(10), atol=1e-6)


def test_a_calibrated_oracle_meets_its_target(make_oracle, cyclic):
    target = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5, form=cyclic["mechanism"])
    oracle = make_oracle(**{**cyclic, "mechanism": target})
    assert 1.98 <= oracle.ledger.epsilon(1e-5) <= 2.0
    assert oracle.mechanism == replace(cyclic["mechanism"], noise_multiplier=oracle.mechanism.noise_multiplier)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=60)), UnsupportedEventError, "in a row"),
        (
            dict(sampler=tacita.AllocatedSampler(batches_per_epoch=4, num_records=60)),
            UnsupportedEventError,
            "in a row",
        ),
        (dict(sampler=SAMPLED["sampler"]), UnsupportedEventError, "two turns of a record overlap"),
        (
            {**SAMPLED, "mechanism": correlated(4, banded_matrix=True)},
            UnsupportedEventError,
            "a banded matrix of at most 3 bands",
        ),
        (
            dict(sampler=tacita.CyclicSampler(batches_per_cycle=4, num_records=60, assignment="index")),
            UnsupportedEventError,
            "there is one under",
        ),
        (
            dict(
                sampler=tacita.AllocatedSampler(batches_per_epoch=10, num_records=60),
                kind=tacita.ErrorFeedbackOracle,
                feedback=tacita.PrivateFeedback(max_feedback_norm=0.2),
            ),
            UnsupportedEventError,
            "clipped sums of records",
        ),
    ],
)
def test_what_is_not_proved_is_refused_when_the_oracle_is_built(make_oracle, changes, error, message):
    with pytest.raises(error, match=message):
        make_oracle(**{**CYCLIC, **changes})


def test_another_strategy_than_the_one_that_is_paid_for_is_refused(problem, make_oracle, asked):
    for other in (correlated(2), correlated(banded_matrix=True)):
        oracle = make_oracle(**CYCLIC)
        oracle.gate._mechanism = other
        with pytest.raises(LedgerError, match="promises other noise"):
            asked(oracle, 1)
