"""The picture of an audit in one run: what the claim allows, and files of every kind."""

import math

import numpy as np
import pytest

from tacita.accounting import gaussian_delta
from tacita.report.one_run import allowed, plot_one_run, save_one_run
from tacita.testing.membership import membership
from tacita.testing.one_run.bound import one_run_bound
from tacita.testing.one_run.report import OneRunAudit

imread = pytest.importorskip("matplotlib.image").imread


def audit(scores, included, claimed=1.0):
    return OneRunAudit(
        epsilon_claimed=claimed,
        bound=one_run_bound(scores, included, delta=1e-5),
        strict=one_run_bound(scores, included, delta=1e-11, confidence=1 - 1e-6),
        strict_claim=claimed,
        membership=membership(scores, included),
        adversary="planted canaries, likelihood ratio",
        relation="add_or_remove_one",
        ledger_epsilon=claimed,
        scores=scores,
        included=included,
    )


def drawn(claimed=1.0, shift=2.0):
    rng = np.random.default_rng(0)
    included = rng.random(500) < 0.5
    return audit(rng.normal(shift * included), included, claimed)


def test_the_curve_of_the_claim():
    fpr = np.linspace(0, 1, 101)
    curve = allowed(fpr, 1.0, 0.01)
    assert curve[0] == pytest.approx(0.01)
    assert (np.diff(curve) >= 0).all()
    assert (curve >= fpr).all()
    np.testing.assert_allclose(curve[1], math.e * 0.01 + 0.01)
    np.testing.assert_allclose(1 - allowed(1 - curve, 1.0, 0.01), fpr, atol=0.02)  # the same both ways
    assert (allowed(fpr, math.inf, 0.0) == 1).all()


def test_a_gaussian_mechanism_keeps_to_the_curve_of_its_claim():
    from scipy.stats import norm

    fpr = np.geomspace(1e-6, 1, 200)
    tpr = norm.sf(norm.isf(fpr) - 1.0)
    for epsilon in (0.5, 1.0, 2.0):
        assert (tpr <= allowed(fpr, epsilon, gaussian_delta(1.0, epsilon)) + 1e-12).all()
        assert not (tpr <= allowed(fpr, epsilon, 0.5 * gaussian_delta(1.0, epsilon))).all()


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_files(tmp_path, ending, begins):
    path = tmp_path / f"audit.{ending}"
    save_one_run(drawn(), path)
    assert path.read_bytes().startswith(begins)


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"plot must end in \.png, \.svg or \.pdf"):
        save_one_run(drawn(), tmp_path / "audit.txt")


def test_it_says_what_was_measured():
    figure = plot_one_run(drawn(claimed=0.1))
    assert figure.get_suptitle().startswith("Refuted: ε ≥ ")
    left, right = figure.axes
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    words = [text.get_text() for axes in (left, right) for text in axes.get_legend().get_texts()]
    assert words[0] == "limit of the claim"
    assert words[2].startswith("measured, AUC 0.9")
    assert words[-2].startswith("left out: ")


@pytest.mark.parametrize(
    "scores", [np.zeros(500), np.full(500, np.nan), np.where(np.arange(500) % 7 == 0, np.inf, 1.0), np.arange(500.0)]
)
def test_odd_scores_are_drawn(scores, tmp_path):
    for claimed in (1.0, math.inf, 0.0):
        picture = tmp_path / f"odd-{claimed}.png"
        save_one_run(audit(scores, np.arange(500) % 2 == 0, claimed), picture)
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert np.ptp(imread(picture)) == 1  # it has black and white, so that something is drawn
