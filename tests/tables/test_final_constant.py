"""The constant of a trained linear or additive model: a mean for a median, and a rare class held back by clipping."""

import numpy as np
import pytest
import torch
from scipy.special import expit

import tacita
from tacita.tables import train_table
from tacita.tables.encoding import Encoder
from tacita.tables.features import CategoryPiece, ClassTarget
from tacita.tables.final_constant import OF_A_RARE_CLASS, clipping_shift, mean_shift
from tacita.tables.models import ModelSpec
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.survey import Facts, Survey
from tests.tables.test_shapes import LOG, preprocessing

COLUMNS = ("a", "b", "c")
VALUES = (("u", 500.0), ("v", 300.0), ("w", 200.0))
TARGET = ClassTarget(column="y", classes=("no", "yes"))


def of_classes():
    facts = tuple(Facts(column=name, kind="category", missing=0.0, values=VALUES) for name in COLUMNS)
    survey = Survey(rows=1000.0, columns=facts, noise_std=1.0, threshold=5.0)
    pieces = tuple(CategoryPiece(column=name, values=tuple(value for value, _ in VALUES)) for name in COLUMNS)
    encoder = Encoder(pieces=pieces, target=TARGET, missing=("",))
    return Preprocessing(encoder=encoder, survey=survey, model=ModelSpec.of("linear", None, encoder), rows=1000.0)


def trained(features, chance, max_grad_norm):
    """Weights at which the mean clipped gradient of the log loss is zero, for rows whose labels are 1 by ``chance``."""
    x, weight = np.concatenate([features, np.ones((len(features), 1))], 1), np.zeros(features.shape[1] + 1)
    for _ in range(4000):
        p, length = expit(x @ weight), np.sqrt(2) * np.linalg.norm(x, axis=1)
        own = [np.minimum(1, max_grad_norm / (np.abs(p - label) * length)) * (p - label) for label in (0, 1)]
        weight -= 2 * ((1 - chance) * own[0] + chance * own[1]) @ x / len(x)
    halves = torch.from_numpy(np.stack([-weight, weight]) / 2)
    return {"weight": halves[:, :-1], "bias": halves[:, -1]}, p


@pytest.mark.parametrize(("max_grad_norm", "before"), [(0.3, 0.4), (1.0, 0.7)])
def test_a_rare_class_gets_back_what_clipping_took(max_grad_norm, before):
    made = of_classes()
    cells = np.random.default_rng(1).choice(3, size=(4000, 3), p=[0.5, 0.3, 0.2])
    features = np.eye(3)[cells].reshape(4000, 9)
    chance = expit(features @ np.tile([1.0, 0.0, -1.0], 3) - 4.0)
    weights, p = trained(features, chance, max_grad_norm)
    odds = np.log(p / (1 - p)) + clipping_shift(made, weights, max_grad_norm)
    assert p.mean() < before * chance.mean()
    assert expit(odds).mean() == pytest.approx(chance.mean(), rel=0.1)


def test_where_nothing_is_clipped_nothing_is_corrected():
    weights = {"weight": torch.randn(2, 9, dtype=torch.float64), "bias": torch.tensor([1.0, -2.0])}
    assert clipping_shift(of_classes(), weights, 5.0) == pytest.approx(0.0, abs=1e-6)
    assert clipping_shift(of_classes(), weights, 0.1) != pytest.approx(0.0, abs=0.1)


def test_weights_that_are_no_numbers_or_far_out_end_no_run():
    far = {"weight": torch.full((2, 9), 1e6), "bias": torch.tensor([0.0, 1e6])}
    lost = {"weight": torch.full((2, 9), float("nan")), "bias": torch.zeros(2)}
    assert clipping_shift(of_classes(), lost, 1.0) == 0.0
    assert abs(clipping_shift(of_classes(), far, 1.0)) < 90


@pytest.mark.parametrize(("model", "balanced"), [("linear", False), ("linear", True), ("additive", False)])
def test_a_model_of_a_rare_class_has_its_rate(table, settings, model, balanced):
    """Without the correction its mean chance is about half of the rate, or less."""
    generator = np.random.default_rng(2)
    x, z = generator.normal(size=(2, 6000))
    labels = generator.random(6000) < expit(1.2 * x - 4.2)
    rows = (f"{a:.3f},{b:.3f},{'yes' if label else 'no'}\n" for a, b, label in zip(x, z, labels, strict=True))
    table.write_text("x,z,label\n" + "".join(rows))
    changes = {"epsilon": 8.0, "delta": 1e-5, "queries": 300, "sample_rate": 0.1, "max_grad_norm": 0.5}
    run = train_table(settings(**changes, drop=(), model=model, balanced=balanced))
    mean = tacita.load("run").predict_proba({"x": x.tolist(), "z": z.tolist()})[:, 1].mean()
    corrected = OF_A_RARE_CLASS in " ".join(run.statement.split())
    assert corrected != balanced
    assert balanced or mean == pytest.approx(labels.mean(), rel=0.35)


@pytest.mark.parametrize("factor", [0.0, 0.5, 10.0])
def test_the_mean_of_a_log_normal_is_above_its_median(factor):
    """With nothing explained the shift is half of the variance of the logarithms; with all of it there is none."""
    weights = {"weight": factor * torch.tensor([[0.0, 0.0, 1.0, -1.0]])}
    variance = factor**2 * (0.8 - 0.2**2)
    assert mean_shift(preprocessing(LOG), weights) == pytest.approx(max(1 - variance, 0) * 0.5 / 2)
