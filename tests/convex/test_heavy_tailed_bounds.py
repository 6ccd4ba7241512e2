"""The bounds hold in simulation: the solvers run against biased, noisy oracles, many runs at once as coordinates."""

import math

import numpy as np
import pytest
import torch

import tacita
from tacita.convex import AcceleratedSGD, Ball, Box, ProximalSGD, RegularizedSubgradient, WeightedSGD
from tacita.convex.heavy_tailed import (
    HeavyTailedSetting,
    accelerated_bound,
    accelerated_risk,
    last_iterate_risk,
    plan_heavy_tailed,
    regularized_distance,
    strongly_convex_schedule,
    weighted_risk,
)
from tests.convex.exact import ExactOracle

RUNS = 400
INSTANCES = 60


class BiasedOracle(ExactOracle):
    """``gradient`` of every coordinate alone, a bias, and a noise of +-1 times ``spread``: a run a coordinate."""

    def __init__(self, gradient, bias, spread, seed):
        super().__init__(gradient)
        self.bias, self.spread, self.random = bias, spread, torch.Generator().manual_seed(seed)

    def query(self, params, /):
        release = super().query(params)
        exact = release.gradient["w"]
        signs = torch.randint(0, 2, exact.shape, generator=self.random, dtype=exact.dtype) * 2 - 1
        bias = self.bias * torch.sign(params["w"] - 0.3)  # it may depend on the point
        return tacita.Release(**{**vars(release), "gradient": {"w": exact + bias + self.spread * signs}})


def worlds():
    """Random curvatures, minima, biases and noises."""
    for seed in range(INSTANCES):
        random = np.random.default_rng(seed)
        yield (
            seed,
            {
                "curvature": random.choice([0.0, 10 ** random.uniform(-1.5, 0.5)]),
                "slope": random.uniform(-1, 1),
                "steps": int(random.integers(1, 30)),
                "bias": random.choice([0.0, 10 ** random.uniform(-2, 0)]),
                "spread": 10 ** random.uniform(-1.5, 1),
                "start": random.uniform(-1, 1),
            },
        )


def setting(curvature, strong=0.0, gap=None):
    return HeavyTailedSetting(
        num_records=10, dim=1, rho=0.5, diameter=2, smoothness=curvature, strong_convexity=strong, initial_gap=gap,
        moment_bounds={2: 1.0},
    )  # fmt: skip


def excess(w, curvature, slope):
    """F(w) - min F on [-1, 1] for F = curvature w^2 / 2 + slope w."""
    least = np.clip(-slope / curvature, -1, 1) if curvature else -np.sign(slope)
    values = curvature * w**2 / 2 + slope * w
    return values - (curvature * least**2 / 2 + slope * least)


def mean_and_error(values):
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def start(at):
    return {"w": torch.full((RUNS,), at, dtype=torch.float64)}


UNIT = Box(low=-1.0, high=1.0)


def test_v22_proposition_30_with_the_sharp_constants():
    worst = 0.0
    for seed, world in worlds():
        curved, slope, steps = world["curvature"], world["slope"], world["steps"]
        v = world["spread"] ** 2 + world["bias"] ** 2
        eta = max(2 * curved, math.sqrt((2 * steps + 1) * steps * (steps + 1) * v / 12) / 2, 1e-6)
        oracle = BiasedOracle(
            lambda params, c=curved, s=slope: {"w": c * params["w"] + s}, world["bias"], world["spread"], seed
        )
        solver = AcceleratedSGD(oracle, start(world["start"]), steps=steps, lr=1 / (2 * eta), domain=UNIT)
        mean, error = mean_and_error(excess(solver.run()["w"].numpy(), curved, slope))
        bound = accelerated_risk(
            setting(curved), steps=steps, lr=1 / (2 * eta), bias=world["bias"], variance=world["spread"] ** 2
        )
        assert mean - 3 * error <= bound
        worst = max(worst, mean / bound)
    assert 0.3 < worst <= 1  # the bound is not idle: the specification's worst of 3000 is 0.92


def test_proposition_46_is_reached_by_a_constant_bias():
    """Its constant 1/2 cannot be smaller, and a larger one makes plans look worse than they are."""
    steps, bias, curved = 200, 0.3, 2.0
    oracle = BiasedOracle(lambda params: {"w": curved * params["w"]}, bias, 0.0, 0)
    free = Ball(radius=math.inf)
    w = ProximalSGD(oracle, start(0.0), steps=steps, lr=1 / (2 * curved), penalty=free).run()["w"].numpy()
    bound = last_iterate_risk(setting(curved, curved, 1e-9), steps=steps, bias=bias, variance=0.0)
    assert float((curved / 2 * w**2).max()) == pytest.approx(bound, rel=1e-9)


def test_v22_proposition_46_with_constant_one_half():
    worst = 0.0
    for seed, world in worlds():
        curved, slope, steps = world["curvature"] or 0.5, world["slope"], world["steps"]
        start_gap = excess(np.array(world["start"]), curved, slope) + 1e-9
        oracle = BiasedOracle(
            lambda params, c=curved, s=slope: {"w": c * params["w"] + s}, world["bias"], world["spread"], seed
        )
        free = Ball(radius=math.inf)  # strongly convex everywhere: the inequality holds with mu = beta
        solver = ProximalSGD(oracle, start(world["start"]), steps=steps, lr=1 / (2 * curved), penalty=free)
        w = solver.run()["w"].numpy()
        mean, error = mean_and_error(curved / 2 * (w + slope / curved) ** 2)
        gap = max(float(start_gap), curved / 2 * (world["start"] + slope / curved) ** 2)
        bound = last_iterate_risk(
            setting(curved, curved, gap), steps=steps, bias=world["bias"], variance=world["spread"] ** 2
        )
        assert mean - 3 * error <= bound
        worst = max(worst, mean / bound)
    assert 0.1 < worst <= 1


def test_v22_proposition_32_and_its_schedule():
    worst = 0.0
    for seed, world in worlds():
        beta, slope, steps = world["curvature"] or 0.5, world["slope"], world["steps"]
        at = setting(beta, beta / 2)  # declared half as convex as it is
        schedule = strongly_convex_schedule(at, steps=steps)
        oracle = BiasedOracle(
            lambda params, c=beta, s=slope: {"w": c * params["w"] + s}, world["bias"], world["spread"], seed
        )
        solver = WeightedSGD(
            oracle, start(world["start"]), lrs=schedule.lrs.tolist(), weights=schedule.weights.tolist(), domain=UNIT
        )
        mean, error = mean_and_error(excess(solver.run()["w"].numpy(), beta, slope))
        bound = weighted_risk(at, steps=steps, bias=world["bias"], variance=world["spread"] ** 2)
        assert mean - 3 * error <= bound
        worst = max(worst, mean / bound)
    assert 0.01 < worst <= 1


def test_v22_lemma_14_without_the_diameter():
    worst = 0.0
    for seed, world in worlds():
        steps, reg = 3 * world["steps"], 10 ** np.random.default_rng(seed).uniform(-1, 1)
        lr = 1 / (8 * reg)
        oracle = BiasedOracle(lambda params: {"w": torch.sign(params["w"] - 0.4)}, world["bias"], world["spread"], seed)
        solver = RegularizedSubgradient(
            oracle, start(world["start"]), steps=steps, lr=lr, reg_strength=reg, domain=UNIT
        )
        w = solver.run()["w"].numpy()
        # the minimum of |w - 0.4| + reg/2 (w - w_0)^2
        target = world["start"] + np.clip(0.4 - world["start"], -1 / reg, 1 / reg)
        mean, error = mean_and_error((w - target) ** 2)
        bound = regularized_distance(
            steps=steps, lr=lr, reg_strength=reg, distance=abs(world["start"] - target), second_moment_bound=1.0,
            bias=world["bias"], variance=world["spread"] ** 2,
        )  # fmt: skip
        assert mean - 3 * error <= bound
        worst = max(worst, mean / bound)
    assert 0.01 < worst <= 1  # the specification's worst of 300 is 0.55


def test_the_check_can_fail():
    """Without its noise term the bound of proposition 30 does not hold."""
    beaten = 0
    for seed, world in worlds():
        if world["curvature"] or world["bias"]:
            continue
        steps, slope = world["steps"], 0.01 * world["slope"]
        eta = 0.01 * math.sqrt((2 * steps + 1) * steps * (steps + 1)) * world["spread"] / math.sqrt(12) / 2
        oracle = BiasedOracle(
            lambda params, s=slope: {"w": torch.full_like(params["w"], s)}, 0.0, world["spread"], seed
        )
        solver = AcceleratedSGD(oracle, start(0.0), steps=steps, lr=1 / (2 * eta), domain=UNIT)
        mean, error = mean_and_error(excess(solver.run()["w"].numpy(), 0.0, slope))
        at = {"steps": steps, "lr": 1 / (2 * eta), "bias": 0.0}
        none = accelerated_risk(setting(0.0), variance=0.0, **at)
        beaten += mean - 3 * error > none
    assert beaten


# -- V23: the hard instance


class HardInstance:
    """f = -<w, x>: x is 0, or q^(-1/k) v with probability q; only the number of records that are not 0 matters."""

    def __init__(self, n, d, k, rho, seed):
        self.q = min(1.0, math.sqrt(d) / (n * math.sqrt(rho)))
        self.length, self.n, self.d, self.k = self.q ** (-1 / k), n, d, k
        self.random = np.random.default_rng(seed)

    def excess(self, setting, bound):
        """One run of Algorithm 2 with one step on the ball of radius 1."""
        c, v = bound["max_grad_norm"], torch.full((self.d,), 1 / math.sqrt(self.d), dtype=torch.float64)

        def query(params):
            count = self.random.binomial(self.n, self.q)
            noise = torch.from_numpy(self.random.standard_normal(self.d)) * 2 * c / (self.n * setting.mu)
            return {"w": -count / self.n * min(self.length, c) * v + noise}

        found = accelerated_bound(setting, steps=1, order=self.k, **bound)
        solver = AcceleratedSGD(
            ExactOracle(query), {"w": torch.zeros(self.d, dtype=torch.float64)}, steps=1, lr=found.lr,
            domain=Ball(radius=1.0),
        )  # fmt: skip
        mean = self.q * self.length
        return mean - mean * float(solver.run()["w"] @ v)


@pytest.mark.parametrize(("k", "slope"), [(2, -0.50), (4, -0.75)])
def test_v23_the_excess_falls_as_the_theory_says(k, slope):
    d, eps, sizes = 2000, 0.2, [2**e for e in range(14, 23)]
    means = []
    for n in sizes:
        at = HeavyTailedSetting(num_records=n, dim=d, rho=eps**2 / 2, diameter=2, moment_bounds={k: 1.0})
        c = (eps * n / math.sqrt(d)) ** (1 / k)
        found = [HardInstance(n, d, k, at.rho, seed).excess(at, {"max_grad_norm": c}) for seed in range(20)]
        means.append(np.mean(found))
    assert np.polyfit(np.log(sizes), np.log(means), 1)[0] == pytest.approx(slope, abs=0.05)


# -- V24: one record, whatever it holds


def test_v24_hostile_gradients_leave_a_finite_mean():
    c, s = 1.5, 8
    rows = torch.randn(s, 6, generator=torch.Generator().manual_seed(0))
    rows[0], rows[1], rows[2], rows[3] = math.inf, math.nan, 1e30, 1e-300
    rows[4] = torch.tensor([1e30, -1e30, math.nan, 0, 0, 1])
    engine = tacita.gradients.given.GivenEngine(rows)
    values, _ = tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=c))(engine, None)
    mean = values["all"]["theta"].double() / s
    assert bool(mean.isfinite().all())
    assert mean.norm() <= c


def test_v24_one_replaced_record_moves_the_mean_by_two_thresholds_over_s():
    c, s, generator = 0.7, 5, torch.Generator().manual_seed(1)
    hostile = [math.nan, math.inf, 1e30, -1e30, 1e-300, 0.0]
    estimator = tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=c))
    rows = torch.randn(1000, s, 4, generator=generator) * torch.logspace(-3, 30, 1000)[:, None, None]
    other = rows.clone()
    other[:, 0] = torch.randn(1000, 4, generator=generator) * torch.logspace(30, -3, 1000)[:, None]
    for at, value in enumerate(hostile):
        other[at::17, 0] = value
    means = [
        estimator(tacita.gradients.given.GivenEngine(batch), None)[0]["all"]["theta"].double() / s
        for batch in (rows, other)
    ]
    moved = (means[0] - means[1]).norm(dim=1)
    assert bool((moved <= 2 * c / s * (1 + 1e-6)).all())
    assert moved.max() > 1.9 * c / s


# -- the plan, carried out


def test_the_planned_run_keeps_its_bound():
    """Mean estimation in a ball, with Student-t records: excess 1/2 |w - E x|^2, smoothness 1."""
    d, n = 5, 4000
    at = HeavyTailedSetting(
        num_records=n, dim=d, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: math.sqrt(d) + 1.5}
    )
    plan = plan_heavy_tailed(at)
    assert not plan.is_vacuous
    x = 0.3 + torch.from_numpy(np.random.default_rng(2).standard_t(5, (plan.num_records, d)) * math.sqrt(3 / 5))
    oracle = tacita.GradientOracle(
        tacita.gradients.given.GivenSource(-x),  # the gradient of |w - x|^2 / 2 is w - x; w is added below the line
        estimator=tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=plan.max_grad_norm)),
        mechanism=tacita.GaussianMechanism(noise_multiplier=plan.noise_multiplier),
        sampler=tacita.DisjointSampler(num_batches=plan.num_queries, num_records=plan.num_records),
        ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"),
        planned_queries=plan.num_queries,
    )
    assert oracle.noise_std["all"] / oracle.divisor == pytest.approx(plan.mean_noise_std, rel=1e-6)

    class Shifted:
        def query(self, params, /):
            release = oracle.query(params)
            return tacita.Release(
                **{**vars(release), "gradient": {"theta": release.gradient["theta"] + params["theta"]}}
            )

    solver = AcceleratedSGD(
        Shifted(), {"theta": torch.zeros(d, dtype=torch.float64)}, steps=plan.steps, lr=plan.lr, domain=Ball(radius=1.0)
    )
    found = (solver.run()["theta"] - 0.3).square().sum().item() / 2
    assert found < plan.bound
    assert oracle.ledger.epsilon(1e-5) == pytest.approx(4.37718, rel=5e-6)  # V2: rho = 1/2
