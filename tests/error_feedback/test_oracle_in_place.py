"""The error lies in memory once and changes in place: when it changes, and what a failure on the way leaves."""

import copy
import weakref

import pytest
import torch

import tacita
from tacita.error_feedback import feedback as feedback_module
from tacita.errors import ResumeError
from tacita.oracles import trainable
from tests.around_mechanism import Spying
from tests.devices import on_each_device

device = on_each_device

PRIVATE = tacita.PrivateFeedback(max_feedback_norm=0.5)
BOUNDED = tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)
RELEASED = tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)
FEEDBACKS = [PRIVATE, BOUNDED, RELEASED]


class Broken(Exception):
    pass


@pytest.fixture
def make(problem):
    """``make(feedback)``: an oracle on the problem; two of them draw the same."""

    def build(feedback):
        model, loss_fn, data = problem
        return tacita.ErrorFeedbackOracle(
            model,
            loss_fn,
            data,
            feedback=feedback,
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=60),
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=10,
            randomness=tacita.Randomness.insecure(0),
        )

    return build


def remembered(oracle):
    return oracle.state_dict()["estimator_state"]


def same(first, second):
    return first["query"] == second["query"] and all(
        torch.equal(first["error"][name], second["error"][name]) for name in first["error"]
    )


def fails(*_args, **_more):
    raise Broken


# --- what is shared --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_no_later_query_changes_what_was_saved_loaded_or_published(make, problem, feedback):
    params, oracle = trainable(problem[0]), make(feedback)
    for _ in range(2):
        oracle.query(params)
    saved, public = oracle.state_dict(), oracle.public_state
    kept = copy.deepcopy((saved, public))
    expected = oracle.query(params).gradient
    for loaded in range(2):  # what is loaded is not changed either: it can be loaded again
        assert same(saved["estimator_state"], kept[0]["estimator_state"]), loaded
        assert (public is None) == (feedback is not RELEASED)
        assert public is None or same(public, kept[1])
        oracle.load_state_dict(saved)
        again = oracle.query(params).gradient
        assert all(torch.equal(again[name], expected[name]) for name in params)
    assert remembered(oracle)["query"] == 3


@pytest.mark.parametrize("feedback", [PRIVATE, BOUNDED], ids=repr)
def test_the_error_lies_in_memory_once(make, problem, feedback):
    oracle = make(feedback)
    oracle.query(trainable(problem[0]))
    places = [e.data_ptr() for e in oracle.gate.state["error"].values()]
    for _ in range(3):
        oracle.query(trainable(problem[0]))
        assert [e.data_ptr() for e in oracle.gate.state["error"].values()] == places


def test_each_block_is_freed_once_it_has_its_noise(make, problem):
    oracle, alive, given = make(RELEASED), [], []

    def watching(values):
        alive.append([reference() is not None for reference in given])
        given.extend(weakref.ref(x) for block in values.values() for x in block.values())

    oracle.gate._mechanism = Spying(oracle.gate._mechanism, watching)
    release = oracle.query(trainable(problem[0]))
    assert alive == [[], [False, False]]  # two parameters in the first block
    assert [reference() for reference in given] == [None] * 4
    assert list(release.released) == ["gradient", "residual"]


# --- a failure on the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
@pytest.mark.parametrize("place", ["the gradients", "the ledger"])
def test_a_query_that_fails_before_it_counts_leaves_everything_as_it_was(make, problem, monkeypatch, feedback, place):
    params, oracle, other = trainable(problem[0]), make(feedback), make(feedback)
    for _ in range(2):
        oracle.query(params), other.query(params)
    before = remembered(oracle)
    with monkeypatch.context() as patch:
        patch.setattr(*((oracle.source, "engine") if place == "the gradients" else (oracle.session, "spend")), fails)
        for _ in range(2):
            with pytest.raises(Broken):
                oracle.query(params)
    assert same(remembered(oracle), before)
    one, two = oracle.query(params), other.query(params)
    assert one.query == two.query == 2
    assert all(torch.equal(one.gradient[name], two.gradient[name]) for name in params)
    assert same(remembered(oracle), remembered(other))


@pytest.mark.parametrize("feedback", [PRIVATE, BOUNDED], ids=repr)
def test_a_query_that_counts_is_remembered_though_its_noise_fails(make, problem, monkeypatch, feedback):
    """It has its line, so it is not made again: as if its release had been thrown away."""
    params, oracle, other = trainable(problem[0]), make(feedback), make(feedback)
    oracle.query(params), other.query(params)
    with monkeypatch.context() as patch:
        patch.setattr(oracle.gate, "_mechanism", Spying(oracle.gate._mechanism, fails))
        with pytest.raises(Broken):
            oracle.query(params)
    other.query(params)
    assert same(remembered(oracle), remembered(other))
    one, two = oracle.query(params), other.query(params)
    assert one.query == two.query == 2
    assert all(torch.equal(one.gradient[name], two.gradient[name]) for name in params)


@pytest.mark.parametrize("feedback", [PRIVATE, BOUNDED], ids=repr)
def test_nothing_is_built_on_half_a_change(make, problem, monkeypatch, feedback):
    """Interrupted while the error changes: one parameter has the residual, the other has not."""
    params, oracle, other = trainable(problem[0]), make(feedback), make(feedback)
    oracle.query(params), other.query(params)
    saved = oracle.state_dict()
    whole = feedback_module.succeeding

    def half(residuals, error, kept, max_norm):
        whole({"weight": residuals["weight"]}, {"weight": error["weight"]}, kept, max_norm)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(feedback_module, "succeeding", half)
        with pytest.raises(KeyboardInterrupt):
            oracle.query(params)
    for use in (lambda: oracle.query(params), oracle.state_dict, lambda: oracle.public_state):
        with pytest.raises(ResumeError, match="load the last checkpoint"):
            use()
    oracle.load_state_dict(saved)
    for number in (1, 2):  # number 1 has its line, and is the identical release
        one, two = oracle.query(params), other.query(params)
        assert one.query == two.query == number
        assert all(torch.equal(one.gradient[name], two.gradient[name]) for name in params)


@pytest.mark.parametrize("feedback", [PRIVATE, BOUNDED], ids=repr)
def test_a_query_that_counts_and_is_not_remembered_is_the_last(make, problem, monkeypatch, feedback):
    """Interrupted between the line and the change: without this step the error would be another than the proof's."""
    params, oracle = trainable(problem[0]), make(feedback)
    oracle.query(params)
    with monkeypatch.context() as patch:
        patch.setattr(type(oracle.estimator), "apply", fails)
        with pytest.raises(Broken):
            oracle.query(params)
    with pytest.raises(ResumeError, match="load the last checkpoint"):
        oracle.query(params)


def test_noise_is_added_to_nothing_but_what_was_committed(make_oracle):
    """``commit`` writes the line of one set of values; they get their noise once, and nothing else does."""
    gate, same_gate = make_oracle().gate, make_oracle().gate

    def filled(x):
        return {"all": {"w": torch.full((3,), x)}}

    with pytest.raises(RuntimeError, match="no query waits for its noise"):
        gate.release()
    values = filled(1.0)
    assert gate.commit(gate.begin(), values)
    values["all"] = filled(9.0)["all"]  # too late
    assert same_gate.commit(same_gate.begin(), filled(1.0))
    expected = same_gate.release()
    assert torch.equal(gate.release()["all"]["w"], expected["all"]["w"])
    with pytest.raises(RuntimeError, match="released once"):
        gate.release()
    assert not gate.commit(0, filled(2.0))
    with pytest.raises(RuntimeError, match="no query waits for its noise"):
        gate.release()
    for made in (2, 3):
        assert gate.commit(gate.begin(), filled(3.0))
        assert gate.session.queries_made == made
