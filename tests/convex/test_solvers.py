"""Accelerated, weighted, regularised and proximal SGD: traces by hand, what is asked, resumed runs, real oracles."""

import math

import numpy as np
import pytest
import torch

import tacita
from tacita.convex import L1, AcceleratedSGD, Ball, Box, ProximalSGD, RegularizedSubgradient, WeightedSGD
from tacita.convex.heavy_tailed import HeavyTailedSetting, strongly_convex_schedule
from tacita.errors import ResumeError
from tests.convex.exact import ExactOracle, quadratic, start

SOLVERS = {
    "accelerated": lambda oracle, w: AcceleratedSGD(oracle, w, steps=6, lr=0.1, domain=Ball(radius=2.0)),
    "weighted": lambda oracle, w: WeightedSGD(
        oracle, w, lrs=[0.5, 0.4, 0.3, 0.2, 0.1, 0.1], weights=[0, 0, 1, 2, 3, 4], domain=Ball(radius=2.0)
    ),
    "regularised": lambda oracle, w: RegularizedSubgradient(
        oracle, w, steps=6, lr=0.2, reg_strength=1.5, domain=Ball(radius=2.0)
    ),
    "proximal": lambda oracle, w: ProximalSGD(oracle, w, steps=6, lr=0.2, penalty=L1(weight=0.1) + Ball(radius=2.0)),
}  # fmt: skip


# -- V6: the trace of Algorithm 2


def test_v6_the_trace_of_accelerated_sgd():
    """f = w^2 / 2 on [-1, 1] from 1, eta = 2, so lr = 1 / (2 eta) = 1/4."""
    oracle = ExactOracle(quadratic)
    solver = AcceleratedSGD(oracle, start(1.0), steps=5, lr=0.25, domain=Box(low=-1.0, high=1.0))
    seen = []
    for _ in range(5):
        solver.step()
        seen.append((solver._iterate["w"].item(), solver.solution["w"].item()))
    assert [value for pair in seen for value in pair] == pytest.approx(
        [0.75, 0.75, 0.375, 0.5, 0.046875, 0.2734375, -0.1359375, 0.1096875, -0.170703125, 0.016223958], abs=5e-10
    )
    assert oracle.asked[2]["w"].item() == 0.4375  # w_3^md
    assert seen[2][1] ** 2 / 2 == pytest.approx(0.0373840, abs=5e-8)
    assert seen[2][1] ** 2 / 2 <= 4 * 2 * 2**2 / (3 * 4)  # Proposition 30 without noise and bias


def test_v6_the_weights_of_accelerated_sgd_are_those_of_its_recursion():
    """gamma_t = (1 - alpha_t) gamma_(t-1) with gamma_1 = 1 is 2 / (t (t+1)): 1, 1/3, 1/6, 1/10."""
    gamma, found = 1.0, [1.0]
    for t in range(2, 5):
        gamma *= 1 - 2 / (t + 1)
        found.append(gamma)
    assert found == pytest.approx([1, 1 / 3, 1 / 6, 1 / 10])
    points = [1.0, -2.0, 5.0, 0.5]
    answers = iter(points)
    solver = AcceleratedSGD(
        ExactOracle(lambda params: {"w": torch.zeros(1, dtype=torch.float64)}), start(0.0), steps=4, lr=1.0,
        domain=None,
    )  # fmt: skip
    solver._within = lambda point, step: start(next(answers))  # the iterates are these
    solver.run()
    weights = [2 * t / (4 * 5) for t in range(1, 5)]  # alpha_t prod_(s > t) (1 - alpha_s)
    assert solver.solution["w"].item() == pytest.approx(np.dot(weights, points))


def test_one_step_of_accelerated_sgd_is_legal():
    solver = AcceleratedSGD(ExactOracle(quadratic), start(1.0), steps=1, lr=0.25, domain=None)
    assert solver.run()["w"].item() == 0.75


# -- Algorithm 6


def test_weighted_sgd_averages_the_iterates_after_the_steps():
    setting = HeavyTailedSetting(
        num_records=100, dim=2, rho=0.5, diameter=2, smoothness=1, strong_convexity=1, moment_bounds={2: 1.0}
    )
    for steps in (0, 1, 4, 7):
        schedule = strongly_convex_schedule(setting, steps=max(steps, 1))
        lrs, weights = schedule.lrs.tolist(), schedule.weights.tolist()
        w, iterates = 1.0, []
        for lr in lrs:
            w = min(1.0, max(-1.0, w - lr * (3 * w - 1)))
            iterates.append(w)
        oracle = ExactOracle(lambda params: {"w": 3 * params["w"] - 1})
        solver = WeightedSGD(oracle, start(1.0), lrs=lrs, weights=weights, domain=Box(low=-1.0, high=1.0))
        assert solver.run()["w"].item() == pytest.approx(np.average(iterates, weights=weights), abs=1e-14)
        assert solver.steps == len(oracle.asked) == len(lrs)


def test_before_a_weight_counts_the_solution_is_the_iterate():
    solver = SOLVERS["weighted"](ExactOracle(quadratic), start(1.0))
    assert solver.solution["w"].item() == 1.0
    solver.step()
    assert solver.solution["w"].item() == 0.5


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], []])
def test_weights_that_fit_no_schedule(weights):
    with pytest.raises(ValueError, match="weights must be"):
        WeightedSGD(ExactOracle(quadratic), start(1.0), lrs=[0.1, 0.1], weights=weights, domain=None)


# -- Algorithms 3 and 8


def test_regularised_subgradient_by_hand():
    """w - eta (g + lambda (w - w_0)), from 1: the first step has no pull."""
    solver = RegularizedSubgradient(ExactOracle(quadratic), start(1.0), steps=2, lr=0.5, reg_strength=2.0, domain=None)
    solver.step()
    assert solver.solution["w"].item() == 0.5
    solver.step()
    assert solver.solution["w"].item() == 0.5 - 0.5 * (0.5 + 2.0 * (0.5 - 1.0))


def test_a_step_of_the_regulariser_that_overshoots_is_refused():
    with pytest.raises(ValueError, match="lr must be at most 2 / reg_strength"):
        RegularizedSubgradient(ExactOracle(quadratic), start(1.0), steps=2, lr=1.5, reg_strength=2.0, domain=None)


def test_proximal_sgd_converges_to_the_soft_thresholded_minimum():
    """min |w - a|^2 / 2 + weight |w|_1 has the minimum soft(a, weight)."""
    a = torch.tensor([1.0, -0.05, 0.3, -2.0], dtype=torch.float64)
    oracle = ExactOracle(lambda params: {"w": params["w"] - a})
    solver = ProximalSGD(oracle, {"w": torch.zeros(4, dtype=torch.float64)}, steps=80, lr=0.5,
                         penalty=L1(weight=0.1) + Ball(radius=5.0))  # fmt: skip
    assert solver.run()["w"].tolist() == pytest.approx([0.9, 0.0, 0.2, -1.9], abs=1e-12)
    assert solver.solution["w"][1] == 0  # exactly


# -- all of them


@pytest.mark.parametrize("name", SOLVERS)
def test_the_start_is_projected_and_not_written_to(name):
    w = start(3.0, 4.0)
    solver = SOLVERS[name](ExactOracle(quadratic), w)
    assert solver.solution["w"].norm().item() <= 2.0 + 1e-12
    solver.run()
    assert w["w"].tolist() == [3.0, 4.0]
    assert solver.made == solver.steps == 6
    with pytest.raises(RuntimeError, match="all 6 planned steps were made"):
        solver.step()
    solver.copy_to(w)
    assert torch.equal(w["w"], solver.solution["w"])


@pytest.mark.parametrize("name", SOLVERS)
def test_every_iterate_stays_in_the_domain(name):
    pushed = ExactOracle(lambda params: {"w": torch.tensor([-50.0, 30.0], dtype=torch.float64)})
    solver = SOLVERS[name](pushed, start(0.0, 0.0))
    solver.run()
    assert solver.solution["w"].norm().item() <= 2.0 + 1e-12


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("broken_off", [0, 1, 4, 6])
def test_a_resumed_run_is_the_uninterrupted_one(name, broken_off):
    def rough(params):
        return {"w": torch.sin(7 * params["w"]) + params["w"].roll(1)}

    whole = SOLVERS[name](ExactOracle(rough), start(1.0, -0.7))
    whole.run()
    first = SOLVERS[name](ExactOracle(rough), start(1.0, -0.7))
    for _ in range(broken_off):
        first.step()
    again = SOLVERS[name](ExactOracle(rough), start(0.0, 0.0))
    again.load_state_dict(first.state_dict())
    again.run()
    assert torch.equal(again.solution["w"], whole.solution["w"])
    assert again.made == 6


def test_a_run_of_another_length_is_not_continued():
    state = SOLVERS["proximal"](ExactOracle(quadratic), start(1.0)).state_dict()
    other = ProximalSGD(ExactOracle(quadratic), start(1.0), steps=7, lr=0.2, penalty=Ball(radius=2.0))
    with pytest.raises(ResumeError, match="steps must be"):
        other.load_state_dict(state)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_solution_shares_no_memory(name):
    solver = SOLVERS[name](ExactOracle(quadratic), start(1.0))
    solver.step()
    kept = solver.solution["w"].clone()
    solver.solution["w"].fill_(9.0)
    assert torch.equal(solver.solution["w"], kept)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AcceleratedSGD(ExactOracle(quadratic), start(1.0), steps=0, lr=0.1, domain=None), "steps must be"),
        (lambda: AcceleratedSGD(ExactOracle(quadratic), start(1.0), steps=1, lr=math.nan, domain=None), "lr must be"),
        (lambda: WeightedSGD(ExactOracle(quadratic), start(1.0), lrs=[0.0], weights=[1.0], domain=None), "lrs must be"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# -- with a real oracle, one pass


def regression(records, *, batches, queries=None, multiplier=1.0, ledger=None):
    """A linear regression with heavy-tailed rows, its minimum at 0.4 in each coordinate."""
    generator = np.random.default_rng(5)
    x = torch.from_numpy(generator.standard_t(5, (records, 4)) * math.sqrt(3 / 5))
    y = x @ torch.full((4,), 0.4, dtype=torch.float64) + 0.1 * torch.from_numpy(generator.standard_normal(records))
    ledger = ledger or tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    oracle = tacita.ClippedGradientOracle(
        torch.nn.Linear(4, 1, bias=False).double(),
        lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square() / 2,
        (x, y),
        ledger=ledger,
        sampler=tacita.DisjointSampler(num_batches=batches, num_records=records),
        clipper=tacita.FlatClipper(max_grad_norm=4.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=multiplier),
        planned_queries=queries or batches,
    )
    return oracle, {"weight": torch.zeros(1, 4, dtype=torch.float64)}


REAL = {
    "accelerated": lambda oracle, w: AcceleratedSGD(oracle, w, steps=10, lr=0.1, domain=Ball(radius=2.0)),
    "weighted": lambda oracle, w: WeightedSGD(
        oracle, w, lrs=[0.5] * 10, weights=[0] * 5 + [1] * 5, domain=Ball(radius=2.0)
    ),
    "proximal": lambda oracle, w: ProximalSGD(
        oracle, w, steps=10, lr=0.4, penalty=L1(weight=0.001) + Ball(radius=2.0)
    ),
    "regularised": lambda oracle, w: RegularizedSubgradient(
        oracle, w, steps=10, lr=0.4, reg_strength=0.01, domain=Ball(radius=2.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_one_private_pass_finds_the_minimum_and_costs_one_query(name):
    oracle, w = regression(8000, batches=10)
    solver = REAL[name](oracle, w)
    solver.run()
    assert (solver.solution["weight"] - 0.4).norm().item() < 0.12  # from 0.8
    assert oracle.remaining_queries == 0
    one = tacita.accounting.gaussian_epsilon(1.0, 1e-5)
    assert oracle.ledger.epsilon(1e-5) == pytest.approx(one, rel=1e-9)


def test_releases_alone_enter_the_iterates():
    """Replayed on the same releases, a solver goes the same way: the data are not asked again."""
    oracle, w = regression(500, batches=10)
    releases = []

    class Recorded:
        def query(self, params, /):
            releases.append(oracle.query(params))
            return releases[-1]

    first = REAL["accelerated"](Recorded(), w).run()
    replayed = iter(releases)

    class Replayed:
        def query(self, params, /):
            return next(replayed)

    assert torch.equal(REAL["accelerated"](Replayed(), w).run()["weight"], first["weight"])


# -- V11 and V25: every record in one batch


def test_v11_the_batches_of_algorithm_6_hold_every_record_once():
    """1000 records and T = 9 are 10 batches of 100: 9 batches for 10 queries are refused."""
    oracle, w = regression(1000, batches=10)
    sizes = [len(oracle.draws.batch(query)) for query in range(10)]
    assert sizes == [100] * 10
    assert sorted(np.concatenate([oracle.draws.batch(query) for query in range(10)])) == list(range(1000))
    with pytest.raises(ValueError, match="planned_queries must be <= 9"):
        regression(1000, batches=9, queries=10)
    del w


def test_v25_sessions_add_up_unless_no_record_is_in_two():
    def spent(parts, queries):
        ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
        x = torch.zeros(100, 2)
        pieces = tacita.split((x,), [50, 50]) if parts == 2 else [tacita.Records(dataset=(x,))]
        for piece in pieces:
            rows = 100 if piece.rows is None else len(piece.rows)
            tacita.ClippedGradientOracle(
                torch.nn.Linear(2, 1), lambda model, batch: model(batch[0]).squeeze(1), piece, ledger=ledger,
                sampler=tacita.FullBatchSampler(num_records=rows), clipper=tacita.FlatClipper(max_grad_norm=1.0),
                mechanism=tacita.GaussianMechanism(noise_multiplier=2.0), planned_queries=queries,
            )  # fmt: skip
        return ledger.epsilon(1e-6)

    once = tacita.accounting.gaussian_epsilon(0.5, 1e-6)  # rho = 1/8
    assert spent(1, 1) == pytest.approx(once)
    assert spent(2, 1) == pytest.approx(once)  # two disjoint batches: the maximum
    assert spent(1, 3) == pytest.approx(tacita.accounting.gaussian_epsilon(0.5 * math.sqrt(3), 1e-6))  # 3 rho


def test_v25_batches_by_index_are_refused_where_a_record_may_be_absent():
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    with pytest.raises(tacita.UnsupportedEventError):
        regression(100, batches=10, ledger=ledger)
