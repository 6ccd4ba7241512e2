"""Private moments: clipped to public lengths, noisy as stated, and followed by a training."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacita
from tacita.accounting.gaussian import gaussian_epsilon
from tacita.errors import BudgetExceededError, LedgerError, ResumeError
from tacita.tables.moments import FixedNormalization

RELATION = "add_or_remove_one"


def ledger_of(**settings) -> tacita.Ledger:
    return tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row", **settings)


def oracle_of(features, *, noise_multiplier: float = 1e-6, num_records: int | None = None, **settings: Any):
    wanted = {"ledger": ledger_of(), "max_mean_norm": 10.0, "max_square_norm": 100.0, **settings}
    return tacita.MomentsOracle(
        features,
        num_records=num_records or len(features),
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise_multiplier),
        **wanted,
    )


@pytest.mark.parametrize("shape", [(300, 3), (300, 3, 4), (300, 3, 2, 5)])
@pytest.mark.parametrize("form", ["tensor", "float16 array"])
def test_without_noise_they_are_the_mean_and_the_standard_deviation(shape, form):
    x = torch.randn(shape) * torch.tensor([1.0, 2.0, 0.5]).view(3, *[1] * (len(shape) - 2)) + 1
    x = x.half().float()
    oracle = oracle_of(x if form == "tensor" else x.half().numpy())
    found = oracle.query()
    axes = [axis for axis in range(len(shape)) if axis != 1]
    torch.testing.assert_close(found.mean, x.mean(axes), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.std, x.std(axes, correction=0), atol=1e-3, rtol=1e-3)
    normal = oracle.layer(x)
    torch.testing.assert_close(normal.mean(axes), torch.zeros(3), atol=5e-3, rtol=0)


SCALE = torch.tensor([1.0, 0.25, 0.001])


def test_a_scale_gives_small_channels_the_same_precision():
    """With noise, each channel is as wrong as its scale is large; without a scale the smallest drowns."""
    x = torch.randn(4000, 3, 2) * SCALE.view(3, 1) + SCALE.view(3, 1)
    thresholds = {"max_mean_norm": 4.0, "max_square_norm": 20.0}
    with_scale = oracle_of(x, noise_multiplier=2.0, scale=SCALE, ledger=ledger_of(), **thresholds)
    found = with_scale.query()
    drowned = oracle_of(x, noise_multiplier=2.0, ledger=ledger_of(), **thresholds).query()
    torch.testing.assert_close(found.mean / SCALE, x.mean((0, 2)) / SCALE, atol=6 * found.mean_noise, rtol=0)
    torch.testing.assert_close(found.std / SCALE, x.std((0, 2)) / SCALE, atol=0.1, rtol=0)
    assert with_scale.layer.mean.equal(found.mean)
    assert drowned.std[2] > 10 * SCALE[2]


def test_thresholds_bound_a_record_over_its_scale():
    """The record is 10 scales long in each channel, and counts as one of length 2."""
    oracle = oracle_of(10 * SCALE[None], scale=SCALE, max_mean_norm=2.0, num_records=1)
    assert (oracle.query().mean / SCALE).norm().item() == pytest.approx(2.0, rel=1e-4)


def test_the_scale_is_not_the_callers_memory():
    lent = SCALE.clone()
    oracle = oracle_of(torch.ones(5, 3) * SCALE, scale=lent)
    lent.fill_(100.0)
    torch.testing.assert_close(oracle.query().mean, SCALE, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "wrong", [[1.0, 1.0], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [1.0, 1e-45, 1.0]]
)
def test_a_wrong_scale_is_named(wrong):
    with pytest.raises(ValueError, match="scale must be 3"):
        oracle_of(torch.zeros(5, 3), scale=torch.tensor(wrong))


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_the_smallest_and_the_largest_scale_can_be_released(scale):
    """A setting that is wrong must not come out after the query, when it is paid for."""
    found = oracle_of(torch.zeros(5, 3), scale=torch.full((3,), scale)).query()
    assert found.mean.isfinite().all()
    assert (found.std > 0).all()


def test_a_session_is_bound_to_the_scale():
    """A query that is redone with another scale would show other values under the same noise."""
    ledger, features = ledger_of(), torch.randn(50, 3)
    session = oracle_of(features, ledger=ledger, scale=SCALE).oracle.session
    for other in ({"scale": 2 * SCALE}, {}):
        with pytest.raises(ResumeError, match="other settings"):
            oracle_of(features, ledger=ledger, session=session, **other)
    oracle_of(features, ledger=ledger, session=session, scale=SCALE)


@pytest.mark.parametrize("value", [1e4, -1e4, float("nan"), float("inf")])
def test_a_record_moves_the_sums_by_at_most_the_thresholds(value):
    x = torch.randn(50, 3, 2)
    hostile = torch.cat([x, torch.full((1, 3, 2), value)])
    settings = {"max_mean_norm": 0.5, "max_square_norm": 0.25, "num_records": 50}
    means, squares = [], []
    for features in (x, hostile):
        oracle = oracle_of(features, **settings)
        release = oracle.oracle.query(dict(oracle.oracle.source.model.named_parameters()))
        means.append(0.5 * release.released["mean"]["mean"])
        squares.append(0.25 * release.released["square"]["square"])
    assert (means[1] - means[0]).norm() <= 0.5 + 1e-4
    assert (squares[1] - squares[0]).norm() <= 0.25 + 1e-4


def test_the_noise_is_the_stated_one():
    """2 x 20,000 draws: the standard error of the estimated scale is 0.5 %, and 4 % are off with probability 1e-15."""
    channels = 20_000
    oracle = oracle_of(np.zeros((5, channels), np.float16), noise_multiplier=3.0, num_records=40, max_mean_norm=2.0)
    found = oracle.query()
    assert found.mean_noise == pytest.approx(math.sqrt(2) * 3.0 * 2.0 / 40)
    assert found.square_noise == pytest.approx(math.sqrt(2) * 3.0 * 100.0 / 40)
    assert found.mean.square().mean().sqrt().item() == pytest.approx(found.mean_noise, rel=0.04)
    assert found.std.square().min().item() == pytest.approx(found.square_noise, rel=1e-5)  # the floor


def test_the_session_is_that_of_one_gaussian_query():
    oracle = oracle_of(torch.randn(100, 4), noise_multiplier=5.0)
    assert oracle.oracle.ledger.epsilon(1e-5) == pytest.approx(gaussian_epsilon(mu=1 / 5.0, delta=1e-5), rel=1e-6)
    oracle.query()
    with pytest.raises(BudgetExceededError):
        oracle.query()
    (session,) = oracle.oracle.ledger.sessions
    assert (session.purpose, session.closed, session.queries_made) == ("moments", True, 1)


def linear(layer: nn.Module) -> nn.Module:
    head = nn.Linear(6, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(layer, nn.Flatten(), head)


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data(rows: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(rows) % 2
    return torch.randn(rows, 3, 2) + 30 + y[:, None, None], y


def training(model, x, y, ledger, mechanism, **settings) -> tacita.ClippedGradientOracle:
    return tacita.ClippedGradientOracle(
        model,
        cross_entropy,
        (x, y),
        ledger=ledger,
        sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=len(x)),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=mechanism,
        planned_queries=20,
        **settings,
    )


def test_a_training_registered_before_the_query_is_calibrated_with_it():
    """Both together spend the target, not the sum of two targets; and the training sees the layer as it was set."""
    (x, y), ledger = data(), ledger_of()
    moments = oracle_of(x, noise_multiplier=4.0, ledger=ledger, max_mean_norm=60.0, max_square_norm=2000.0)
    model = linear(moments.layer)
    target = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-4)
    oracle = training(model, x, y, ledger, target)
    assert 1.9 < ledger.epsilon(1e-4) <= 2.0
    before = oracle.source.engine(dict(model.named_parameters()), np.arange(4)).norms({"all": ("2.weight",)})
    moments.layer.set(torch.full((3,), 30.5), torch.ones(3))
    after = oracle.source.engine(dict(model.named_parameters()), np.arange(4)).norms({"all": ("2.weight",)})
    assert (after < before / 5).all()  # centred features are short
    moments.query()
    oracle.backward()
    assert not any(name.startswith("0.") for name, _ in model.named_parameters())


def test_moments_are_paid_from_their_share_too():
    ledger = ledger_of()
    share = ledger.register_share(1.5, 5e-5)
    assert oracle_of(data()[0], noise_multiplier=10.0, ledger=ledger, share=share).oracle.session.share == share.id
    with pytest.raises(BudgetExceededError, match="share-1, set aside"):
        oracle_of(data()[0], noise_multiplier=0.1, ledger=ledger, share=share)


def test_a_later_training_is_refused_and_the_way_out_is_taken():
    (x, y), ledger = data(), ledger_of()
    share = ledger.register_share(1.5, 5e-5)
    moments = oracle_of(x, noise_multiplier=10.0, ledger=ledger)
    moments.query()
    mechanism = tacita.CalibratedGaussian(target_epsilon=1.5, target_delta=5e-5)
    with pytest.raises(LedgerError, match="share="):
        training(linear(moments.layer), x, y, ledger, mechanism)
    oracle = training(linear(moments.layer), x, y, ledger, mechanism, share=share)
    assert oracle.session.share == share.id
    oracle.backward()
    words = tacita.statement(ledger, 1e-4).text
    assert "share-1" in words
    assert "moments-1" in words
    assert "train-1 (train, open, paid from share-1)" in words
    assert ledger.epsilon(1e-4) <= 1.5 + gaussian_epsilon(mu=0.1, delta=5e-5) + 1e-6


@pytest.mark.parametrize("name", ["max_mean_norm", "max_square_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_threshold_is_named(name, value):
    with pytest.raises(ValueError, match=name):
        oracle_of(torch.zeros(5, 2), **{name: value})


def test_features_need_a_channel():
    with pytest.raises(ValueError, match="channels"):
        oracle_of(torch.zeros(5))


def test_the_thresholds_are_bound_to_the_session():
    ledger = ledger_of()
    first = oracle_of(torch.zeros(5, 2), ledger=ledger)
    with pytest.raises(ResumeError, match="other settings"):
        oracle_of(torch.zeros(5, 2), ledger=ledger, max_mean_norm=1.0, session=first.oracle.session)


def test_a_layer_refuses_numbers_that_divide_by_nothing():
    layer = FixedNormalization(2)
    for mean, std in (([0.0, 0.0], [1.0, 0.0]), ([0.0, float("nan")], [1.0, 1.0]), ([0.0], [1.0])):
        with pytest.raises(ValueError, match="mean"):
            layer.set(torch.tensor(mean), torch.tensor(std))


def test_a_session_is_bound_to_both_thresholds():
    ledger, features = ledger_of(), torch.randn(50, 3)
    session = oracle_of(features, ledger=ledger).oracle.session
    for other in ({"max_mean_norm": 5.0}, {"max_square_norm": 50.0}):
        with pytest.raises(ResumeError, match="other settings"):
            oracle_of(features, ledger=ledger, session=session, **other)
    oracle_of(features, ledger=ledger, session=session)


def test_a_query_whose_session_has_ended_is_redone(tmp_path):
    features, found, state = torch.randn(20, 2, 3), [], {}
    tacita.Randomness.system().save(tmp_path / "key")
    for _ in range(2):
        ledger = tacita.Ledger(tmp_path / "book", neighboring_relation="add_or_remove_one", privacy_unit="one row")
        asking = tacita.MomentsOracle(
            features, num_records=20, max_mean_norm=2.0, max_square_norm=5.0, ledger=ledger,
            mechanism=tacita.GaussianMechanism(noise_multiplier=10.0),
            randomness=tacita.Randomness.load(tmp_path / "key"),
            **({"session": ledger.sessions[0]} if ledger.sessions else {}),
        )  # fmt: skip
        state = state or asking.oracle.state_dict()
        asking.oracle.load_state_dict(state)
        found.append(asking.query())
        ledger.close()
    assert torch.equal(found[0].mean, found[1].mean)
    assert ledger.sessions[0].queries_made == 1
