"""Error feedback on a network: what is released, remembered, charged; killed and resumed; hostile rows."""

import math

import pytest
import safetensors
import torch

import tacita
from tacita import accounting as acc
from tacita import error_feedback
from tacita.error_feedback import InterleavedEvent
from tacita.errors import BudgetExceededError, ResumeError, UnsupportedEventError
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.training.loop import Checkpoints, train
from tests.devices import gpu, on_each_device

device = on_each_device

PRIVATE = tacita.PrivateFeedback(max_feedback_norm=0.5)
BOUNDED = tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)
RELEASED = tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)
FEEDBACKS = [PRIVATE, BOUNDED, RELEASED]


@pytest.fixture
def make(make_oracle):
    """``make(feedback, **changes)``: an oracle on the problem, with test streams."""

    def build(feedback, *relation, **changes):
        return make_oracle(*relation, kind=tacita.ErrorFeedbackOracle, feedback=feedback, **changes)

    return build


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# --- the algorithm on a network --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["loop", "program"])
@pytest.mark.parametrize("height", [None, 7])
def test_hidden_feedback_without_noise_is_the_paper_line_by_line(make, problem, device, method, height):
    model, loss_fn, data = problem
    x, y = (tensor.to(device) for tensor in data)
    silent = tacita.GaussianMechanism(noise_multiplier=0.0)
    oracle = make(PRIVATE, mechanism=silent, method=method, max_physical_batch_size=height)
    error = torch.zeros(5, dtype=torch.float64, device=device)
    for query in range(4):
        rows = oracle.sampler.draw(query, oracle.gate.coins, 60)
        grads = torch.stack([row_gradient(model, loss_fn, (x[i : i + 1], y[i : i + 1])) for i in rows])
        clipped = grads * (1.0 / grads.norm(dim=1, keepdim=True)).clamp(max=1.0)
        feedback = error * min(1.0, 0.5 / max(error.norm().item(), 1e-300))
        update = clipped.sum(0) / 18 + feedback
        release = oracle.query(dict(model.named_parameters()))
        found = torch.cat([release.gradient["weight"].flatten(), release.gradient["bias"]])
        torch.testing.assert_close(found, update, rtol=1e-6, atol=1e-9)
        error = error + grads.sum(0) / 18 - update
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.sub_(0.1 * release.gradient[name])
    remembered = oracle.state_dict()["estimator_state"]["error"]
    flat = torch.cat([remembered["weight"].flatten(), remembered["bias"]]) / 18
    torch.testing.assert_close(flat, error, rtol=1e-6, atol=1e-8)


def row_gradient(model, loss_fn, row):
    grads = torch.autograd.grad(loss_fn(model, row).sum(), list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


def test_released_feedback_has_two_blocks_and_a_public_state(make, problem):
    model, _, _ = problem
    oracle = make(RELEASED)
    release = oracle.query(dict(model.named_parameters()))
    assert set(release.released) == {"gradient", "residual"}
    assert release.noise_std["residual"] ** 2 / release.noise_std["gradient"] ** 2 == pytest.approx(2.0)
    assert 1 / release.noise_std["gradient"] ** 2 + 4 / release.noise_std["residual"] ** 2 == pytest.approx(1.0)
    for name in release.gradient:
        assert torch.equal(release.gradient[name], release.released["gradient"][name] / 18)
        assert torch.equal(oracle.public_state["error"][name], release.released["residual"][name])


def test_the_gradient_is_the_noisy_block_with_the_error_in_it(make, problem):
    """Two oracles of the same coins and noise, one that injects nothing."""
    model, _, _ = problem
    quiet = tacita.ReleasedFeedback(max_feedback_norm=0.0, max_residual_norm=2.0)
    first, second = make(RELEASED), make(quiet)
    params = dict(model.named_parameters())
    error = first.query(params).released["residual"]
    second.query(params)
    norm = math.sqrt(sum(e.square().sum().item() for e in error.values()))
    share = min(1.0, 0.5 * 18 / norm)
    with_error, without = first.query(params), second.query(params)
    for name in params:
        expected = without.gradient[name] + share * error[name] / 18
        torch.testing.assert_close(with_error.gradient[name], expected, rtol=1e-9, atol=1e-12)


def test_residuals_are_asked_for_every_mth_query(make, problem):
    model, _, _ = problem
    oracle = make(tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0, every=3))
    asked = ["residual" in oracle.query(dict(model.named_parameters())).released for _ in range(7)]
    assert asked == [False, False, True, False, False, True, False]
    assert isinstance(oracle.event, InterleavedEvent)


@pytest.mark.parametrize("feedback", [PRIVATE, BOUNDED], ids=repr)
def test_a_hidden_error_is_never_public(make, problem, feedback):
    oracle = make(feedback)
    oracle.query(dict(problem[0].named_parameters()))
    assert oracle.public_state is None
    assert "error" not in repr(oracle).replace("ErrorFeedback", "").replace("ErrorSum", "")


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_any_optimizer_goes_below_the_line(make, problem, feedback):
    model, _, _ = problem
    oracle, before = make(feedback), weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(oracle.planned_queries):
        oracle.backward()
        optimizer.step()
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    with pytest.raises(BudgetExceededError):
        oracle.backward()


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
@pytest.mark.parametrize("hostile", [math.nan, math.inf, 1e30])
def test_hostile_rows_leave_releases_and_error_finite(make, problem, feedback, hostile):
    model, _, (x, y) = problem
    poisoned = x.clone()
    poisoned[::5] = hostile
    oracle = make(feedback, dataset=(poisoned, y))
    for _ in range(4):
        release = oracle.query(dict(model.named_parameters()))
        assert all(g.isfinite().all() for g in release.gradient.values())
    assert all(e.isfinite().all() for e in oracle.state_dict()["estimator_state"]["error"].values())


def test_rows_of_nan_are_rows_that_are_not_there(make, problem):
    model, _, (x, y) = problem
    params = dict(model.named_parameters())
    poisoned, absent = x.clone(), torch.ones(60, dtype=torch.bool)
    poisoned[7] = math.nan
    absent[7] = False

    class Without:
        """What an oracle would draw if the row were not there."""

        def draw(self, query, coins, num_rows):
            drawn = second.sampler.draw(query, coins, num_rows)
            return drawn[absent[torch.from_numpy(drawn)].numpy()]

    first, second = make(PRIVATE, dataset=(poisoned, y)), make(PRIVATE)
    second.draws.sampler = Without()
    for _ in range(5):
        one, two = first.query(params), second.query(params)
        for name in params:
            torch.testing.assert_close(one.gradient[name], two.gradient[name], rtol=1e-12, atol=1e-12)


# --- what is charged -------------------------------------------------------------------------------------------------


def test_each_feedback_is_charged_by_its_own_event(make):
    for feedback, kind in (
        (PRIVATE, error_feedback.HiddenErrorEvent),
        (BOUNDED, error_feedback.BoundedResidualEvent),
        (RELEASED, acc.GaussianSumEvent),
    ):
        event = make(feedback).event
        assert type(event) is kind
        assert isinstance(event.sampling, acc.PoissonLaw)
    assert make(PRIVATE).event.amplified
    assert not make(PRIVATE, relation="replace_one").event.amplified
    first = tacita.PrivateFeedback(max_feedback_norm=0.5, first_draw=True)
    assert isinstance(make(first).event, error_feedback.FirstDrawEvent)
    shuffled = tacita.ShuffledEpochsSampler(batches_per_epoch=4, num_records=60)
    event = make(BOUNDED, relation="zero_out_one", sampler=shuffled).event
    assert isinstance(event, error_feedback.BoundedResidualEvent)
    assert event.sampling.queries_per_epoch == 4
    assert event.guarantee(10).mu == pytest.approx(
        (math.sqrt(3) + 3 * 2) / 3.0
    )  # three epochs begun, noise 1 x (C1 + C3)


def test_numbers_of_the_event_are_at_the_level_of_the_sum(make):
    event = make(PRIVATE).event
    assert event.max_contribution == 1.0
    assert event.max_error_change == 2 * 18 * 0.5
    assert event.noise_std == 1 + 18
    assert event.query_mu == 1.0


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_calibrated_noise_meets_the_target(make, feedback):
    oracle = make(feedback, mechanism=tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5))
    assert 2.0 * 0.995 <= oracle.ledger.epsilon(1e-5) <= 2.0


def test_released_feedback_costs_what_one_threshold_costs(make):
    """Least power: the noise of both blocks together is that of plain clipping at C1 + C3."""
    target = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5)
    oracle = make(RELEASED, mechanism=target)
    power = math.hypot(*oracle.noise_std.values())
    assert power == pytest.approx(oracle.noise_multiplier * 3.0)
    assert make(
        tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0, allocation="single"), mechanism=target
    ).noise_std["gradient"] == pytest.approx(oracle.noise_multiplier * math.sqrt(5), rel=1e-3)


def test_refused_when_built(make):
    fixed = tacita.FixedSizeSampler(batch_size=18, num_records=60)
    with pytest.raises(UnsupportedEventError, match="no guarantee is proved for bounded residuals"):
        make(BOUNDED, relation="replace_one", sampler=fixed)
    with pytest.raises(UnsupportedEventError, match="replace_one and zero_out_one"):
        make(PRIVATE, sampler=fixed)
    with pytest.raises(
        TypeError, match=r"feedback must be a PrivateFeedback.*got float\. For example feedback=tacita\.Rel"
    ):
        make(0.5)
    with pytest.raises(TypeError, match="sampler must be a tacita sampler"):
        make(PRIVATE, sampler=32)


# --- killed and resumed ----------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def trained(make, problem, tmp_path, feedback, kill_at=None):
    """Train in ``tmp_path`` from fresh weights, or go on there; the weights and the error at the end."""
    model, _, _ = problem
    folder = RunFolder(tmp_path)
    again = folder.checkpoint.exists()
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    randomness = tacita.Randomness.load(folder.key) if again else tacita.Randomness.insecure(5)
    oracle = make(feedback, ledger=ledger, randomness=randomness, session=ledger.sessions[0] if again else None)
    if not again:
        folder.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        randomness.save(folder.key)
    state = TrainingState(model, torch.optim.Adam(model.parameters(), lr=0.05), oracle)

    def on_step(made):
        if made == kill_at:
            raise Killed

    try:
        train(state, checkpoints=Checkpoints(folder=folder, every=3, binding="x"), on_step=on_step)
    finally:
        ledger.close()
    return weights(model), oracle.state_dict()["estimator_state"]


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_killed_and_resumed_is_uninterrupted_bit_for_bit(make, problem, tmp_path, feedback):
    model, _, _ = problem
    fresh = weights(model)
    expected, remembered = trained(make, problem, tmp_path / "whole", feedback)
    for kill_at in (4, 8):
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(fresh[name])
        folder = tmp_path / f"killed-{kill_at}"
        with pytest.raises(Killed):
            trained(make, problem, folder, feedback, kill_at)
        found, state = trained(make, problem, folder, feedback)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert state["query"] == remembered["query"] == 10
        assert torch.equal(state["norm"], remembered["norm"])
        for name, error in remembered["error"].items():
            assert error.abs().sum() > 0
            assert torch.equal(state["error"][name], error)
            assert state["error"][name].dtype == error.dtype


def test_no_exported_model_holds_the_error(make, problem, tmp_path):
    """Names of what a model's file holds are the model's own."""
    model, _, _ = problem
    oracle = make(PRIVATE)
    oracle.query(dict(model.named_parameters()))
    safetensors.torch.save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    with safetensors.safe_open(str(tmp_path / "model.safetensors"), framework="pt") as file:
        assert set(file.keys()) == set(dict(model.named_parameters()))
    assert not [p for p in model.parameters() if hasattr(p, "error")]


def test_a_session_charged_as_a_whole_cannot_be_continued_beside_itself(make, problem):
    """Bounded residuals: a second branch from a restored error is outside the proof. Charged by query: it may."""
    params = dict(problem[0].named_parameters())
    moved = {name: p + 1 for name, p in params.items()}
    for feedback, outcome in ((BOUNDED, pytest.raises(ResumeError)), (PRIVATE, None)):
        oracle = make(feedback)
        oracle.query(params)
        saved = oracle.state_dict()
        oracle.query(params)
        oracle.load_state_dict(saved)
        if outcome is not None:
            with outcome:
                oracle.query(moved)
        else:
            assert oracle.query(moved).query == 2


# --- statement -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_the_statement_names_what_it_rests_on(make, feedback):
    oracle = make(feedback)
    words = tacita.statement(oracle.ledger, delta=1e-5)
    fields = words.to_json()
    assert fields["max_grad_norm"] in (1.0, [1.0, 2.0])
    assert fields["sample_rate"] == 0.3
    assert fields["noise_multiplier"] == pytest.approx(1.0)
    assert fields["epsilon"] == oracle.ledger.epsilon(1e-5)
    assert "divisor" in words.text
    assert ("never released" in words.text) == (feedback is not RELEASED)


# --- on a device -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["simulated", pytest.param("cuda", marks=gpu)], indirect=True)
@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_the_error_follows_the_parameters(make, problem, device, feedback):
    model = problem[0].cpu()
    on_cpu = make(feedback)
    expected = [on_cpu.query(dict(model.named_parameters())).gradient for _ in range(3)]
    model.to(device)
    on_device = make(feedback)
    for gradient in expected:
        found = on_device.query(dict(model.named_parameters())).gradient
        for name, value in gradient.items():
            assert found[name].device.type == device.type
            torch.testing.assert_close(found[name].cpu(), value, rtol=1e-6, atol=1e-8)
    saved = on_device.state_dict()["estimator_state"]
    assert all(e.device.type == device.type for e in saved["error"].values())
