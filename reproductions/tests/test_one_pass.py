"""Error feedback in one pass: its claim holds and can fail; its noise is what is proved, its rows what is sampled."""

import json
import math

import pytest
import torch

from tacita.accounting import gaussian_mu
from tacita_reproductions import find, one_pass
from tacita_reproductions.one_pass import DELTA, METHODS, PLAIN, POISSON, SMALL, Method, Regression
from tacita_reproductions.result_files import as_json, as_record

BY_NAME = {method.name: method for method in METHODS}


def std(method, threshold=1.0, epsilon=1.0):
    sampler = method.sampler(1000, 50)
    estimator = method.estimator(threshold, sampler.expected_batch_size)
    return one_pass.noise_std(estimator, sampler, 20, epsilon, 20)


@pytest.fixture(scope="module")
def experiment():
    return find("error-feedback-one-pass")


@pytest.fixture(scope="module")
def result(experiment):
    return experiment()


def test_its_claim_holds(result):
    assert [check.held for check in result.checks] == [True]
    assert [row["method"] for row in result.rows] == [method.name for method in METHODS]


def test_its_claim_fails_where_feedback_pays_as_plain_clipping_does(experiment, monkeypatch):
    """The twin: the same feedback with the noise of plain clipping wins nothing."""
    whole = one_pass.noise_std
    plain = Method(PLAIN).estimator(1.0, 1.0)

    def as_plain(estimator, sampler, dim, epsilon, queries):
        if not hasattr(estimator, "feedback"):
            return whole(estimator, sampler, dim, epsilon, queries)
        threshold = estimator.clipper.max_grad_norm + estimator.feedback.max_residual_norm
        return threshold * whole(plain, sampler, dim, epsilon, queries)

    monkeypatch.setattr(one_pass, "noise_std", as_plain)
    assert not experiment().holds


def test_noise_of_feedback_is_that_of_plain_clipping_times_the_root_of_half_the_share():
    plain = std(BY_NAME[PLAIN], threshold=3.0)
    assert plain == pytest.approx(3.0 / gaussian_mu(1.0, DELTA), rel=1e-3)
    for method in METHODS:
        if method.share is not None:
            assert std(method, threshold=3.0) == pytest.approx(plain * math.sqrt(method.share / 2), rel=1e-3)
    assert std(BY_NAME[POISSON], threshold=3.0) < plain


def test_batches_of_one_pass_hold_every_row_once():
    generator = torch.Generator().manual_seed(0)
    batches = list(one_pass._batches(BY_NAME[PLAIN], 2, 40, 10, generator))
    assert torch.cat([rows for rows, _ in batches], dim=1).equal(torch.arange(40).expand(2, -1))
    assert all(present.all() for _, present in batches)


def test_poisson_batches_hold_each_row_by_its_own_coin():
    """Sizes are binomial, rows alike: 4 standard errors of 4000 draws (and the seed is fixed)."""
    generator, held, sizes = torch.Generator().manual_seed(1), torch.zeros(40), []
    for rows, present in (b for _ in range(50) for b in one_pass._batches(BY_NAME[POISSON], 20, 40, 10, generator)):
        assert all(len(set(run.tolist())) == len(run) for run in rows)
        held += torch.bincount(rows[present], minlength=40)
        sizes.append(present.sum(1))
    sizes = torch.cat(sizes).double()
    assert sizes.mean() == pytest.approx(10, abs=4 * math.sqrt(7.5 / len(sizes)))
    assert sizes.var() == pytest.approx(7.5, rel=4 * math.sqrt(2 / len(sizes)))
    assert held.max() - held.min() < 8 * math.sqrt(len(sizes) * 0.25 * 0.75)


def test_the_optimum_has_no_excess_risk():
    problem = Regression()
    assert problem.excess_risk(problem.optimum) == 0
    x, y = problem.draw(2, 20_000, torch.Generator().manual_seed(2))
    least = torch.linalg.lstsq(x[0], y[0].unsqueeze(1)).solution.squeeze(1)
    assert problem.excess_risk(least) < 0.05


def test_its_record_and_figure(experiment, result, tmp_path):
    json.loads(as_json(as_record(experiment, result, full=False, seed=0)))
    pytest.importorskip("matplotlib")
    figure = result.draw()
    assert len(figure.axes[0].get_yticks()) == len(METHODS)
    assert len(figure.axes[0].lines) == len(SMALL.epsilons)
    figure.savefig(tmp_path / "figure.png")
