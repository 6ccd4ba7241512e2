"""The localized subgradient method: phases by hand, parallel sessions, small batches, the strongly convex reduction."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import tacita
from tacita.accounting import gaussian_epsilon
from tacita.convex import Ball, Box, LocalizedSubgradient
from tacita.convex.heavy_tailed import HeavyTailedSetting, plan_localized
from tacita.errors import ResumeError
from tests.convex.exact import ExactOracle, start

DELTA = 1e-6


@dataclass(frozen=True)
class Terms:
    """The settings of one phase, as a caller may write them."""

    steps: int
    lr: float
    reg_strength: float
    radius: float = math.inf


def towards(target):
    return lambda part, phase: ExactOracle(lambda params: {"w": params["w"] - target})


def test_each_phase_starts_and_pulls_back_to_the_end_of_the_last():
    phases = [Terms(2, 0.5, 1.0), Terms(1, 0.5, 0.5)]
    solver = LocalizedSubgradient(towards(1.0), ["a", "b"], phases, start(0.0), domain=None)
    w = 0.0 - 0.5 * (-1.0)
    w -= 0.5 * ((w - 1.0) + 1.0 * (w - 0.0))
    first = w
    w -= 0.5 * (w - 1.0)  # the second phase's first step has no pull, whatever its strength
    for expected in (0.5, first, w):
        solver.step()
        assert solver.solution["w"].item() == pytest.approx(expected)
    assert solver.made == solver.steps == 3
    with pytest.raises(RuntimeError, match="planned steps were made"):
        solver.step()


def test_a_phase_stays_near_its_start_and_in_the_domain():
    far = LocalizedSubgradient(
        towards(torch.tensor([100.0, 0.0])), ["a", "b"], [Terms(5, 0.5, 0.1, 0.75)] * 2, start(0.0, 0.0),
        domain=Ball(radius=1.0),
    )  # fmt: skip
    for _ in range(5):
        far.step()
    assert far.solution["w"].norm().item() == pytest.approx(0.75)
    far.run()
    assert far.solution["w"].tolist() == pytest.approx([1.0, 0.0])  # 1.5 without the domain


def test_any_domain_serves():
    boxed = LocalizedSubgradient(
        towards(torch.tensor([100.0, 100.0])), ["a"], [Terms(20, 0.5, 0.1, 0.75)], start(0.0, 0.0),
        domain=Box(low=0.0, high=0.5),
    )  # fmt: skip
    assert boxed.run()["w"].tolist() == pytest.approx([0.5, 0.5])


def test_a_start_outside_the_domain_is_moved_into_it():
    """The first query is made there, and the first phase is pulled back to it, within its radius of it."""
    oracle, given = ExactOracle(lambda params: {"w": 0 * params["w"]}), start(3.0, 4.0)
    LocalizedSubgradient(
        lambda part, phase: oracle, ["a"], [Terms(2, 0.5, 1.0, 0.25)], given, domain=Ball(radius=1.0)
    ).run()
    assert oracle.asked[0]["w"].tolist() == oracle.asked[1]["w"].tolist() == pytest.approx([0.6, 0.8])
    assert given["w"].tolist() == [3.0, 4.0]


def test_parts_are_one_a_phase():
    with pytest.raises(ValueError, match="parts must be one a phase, 2, got 1"):
        LocalizedSubgradient(towards(1.0), ["a"], [Terms(1, 0.5, 0.0)] * 2, start(0.0), domain=None)


def test_all_oracles_are_built_before_the_first_query():
    made = []

    def make_oracle(part, phase):
        assert not any(oracle.asked for oracle in made), "an oracle was built after a query"
        made.append(ExactOracle(lambda params: params))
        return made[-1]

    LocalizedSubgradient(make_oracle, [1, 2, 3], [Terms(2, 0.5, 0.0)] * 3, start(1.0), domain=None).run()
    assert [len(oracle.asked) for oracle in made] == [2, 2, 2]


@pytest.mark.parametrize("broken_off", [0, 2, 3, 5, 7])
def test_a_resumed_run_is_the_uninterrupted_one(broken_off):
    phases = [Terms(3, 0.4, 0.5, 2.0), Terms(2, 0.3, 0.7, 0.5), Terms(2, 0.2, 0.9)]

    def build(w):
        def rough(part, phase):
            return ExactOracle(lambda params: {"w": torch.sin(5 * params["w"]) + part})

        return LocalizedSubgradient(rough, [1.0, -2.0, 0.5], phases, w, domain=Ball(radius=1.0))

    whole, first, again = build(start(0.3, 0.9)), build(start(0.3, 0.9)), build(start(0.0, 0.0))
    whole.run()
    for _ in range(broken_off):
        first.step()
    again.load_state_dict(first.state_dict())
    assert again.made == broken_off
    again.run()
    assert torch.equal(again.solution["w"], whole.solution["w"])


def test_other_phases_are_not_continued():
    state = LocalizedSubgradient(towards(1.0), ["a"], [Terms(3, 0.5, 0.0)], start(0.0), domain=None).state_dict()
    with pytest.raises(ResumeError, match="phases must be"):
        LocalizedSubgradient(towards(1.0), ["a"], [Terms(4, 0.5, 0.0)], start(0.0), domain=None).load_state_dict(state)


# -- with real oracles on the parts of one split


def table(records):
    """Absolute-loss regression with heavy tails; the minimum is 0.3 in each of the four coordinates."""
    generator = np.random.default_rng(1)
    x = torch.from_numpy(generator.standard_t(5, (records, 4)) * math.sqrt(3 / 5))
    noise = 0.3 * torch.from_numpy(generator.standard_t(2.5, records))
    return x, x @ torch.full((4,), 0.3, dtype=torch.float64) + noise


def absolute(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).abs()


def planned(records, **more):
    return plan_localized(
        HeavyTailedSetting(
            num_records=records, dim=4, rho=2.0, diameter=2.0, moment_bounds={2: 2.1},
            uniform_moment_bounds={2: 2.1, 4: 2.6}, **more,
        )
    )  # fmt: skip


def solve(plan, data, ledger, sampler, mechanism):
    model = torch.nn.Linear(4, 1, bias=False).double()

    def make_oracle(part, phase):
        return tacita.ClippedGradientOracle(
            model, absolute, part, ledger=ledger, sampler=sampler(phase),
            clipper=tacita.FlatClipper(max_grad_norm=phase.max_grad_norm), mechanism=mechanism(phase),
            planned_queries=phase.steps,
        )  # fmt: skip

    parts = tacita.split(data, plan.sizes)[: len(plan.phases)]
    solver = LocalizedSubgradient(
        make_oracle, parts, plan.phases, {"weight": torch.zeros(1, 4, dtype=torch.float64)}, domain=Ball(radius=1.0)
    )
    found = solver.run()["weight"]
    assert all(oracle.remaining_queries == 0 for oracle in solver.oracles)
    return found


def full_batch(phase):
    return tacita.FullBatchSampler(num_records=phase.num_records)


def test_all_phases_together_cost_one_of_them():
    plan = planned(300)
    plan = replace(plan, phases=tuple(replace(p, steps=min(p.steps, 9)) for p in plan.phases))
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    mu = plan.setting.mu
    solve(
        plan, table(300), ledger, full_batch,
        lambda phase: tacita.GaussianMechanism(noise_multiplier=math.sqrt(phase.steps) / mu),
    )  # fmt: skip
    assert len(ledger.sessions) == len(plan.phases) == 8
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)


def test_the_economy_schedule_finds_the_minimum():
    plan = planned(1024)
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    found = solve(
        plan, table(1024), ledger, full_batch,
        lambda phase: tacita.GaussianMechanism(noise_multiplier=phase.noise_multiplier),
    )  # fmt: skip
    assert (found - 0.3).norm().item() < 0.35  # from 0.6
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(plan.setting.mu, DELTA), rel=1e-9)


def test_small_random_batches_are_charged_by_the_accountant():
    """Remark 13: batches of about the root of the part, noise by calibration; each phase has the whole budget."""
    plan = planned(64)
    phases = tuple(replace(p.with_minibatches, steps=min(p.steps, 5)) for p in plan.phases)
    assert [p.batch_size for p in phases] == [6, 4, 3, 2, 2, 1]
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    solve(
        replace(plan, phases=phases), table(64), ledger,
        lambda phase: tacita.FixedSizeSampler(batch_size=phase.batch_size, num_records=phase.num_records),
        lambda phase: tacita.CalibratedGaussian(target_epsilon=3.0, target_delta=DELTA),
    )  # fmt: skip
    assert 2.9 < ledger.epsilon(DELTA) <= 3.0


def test_the_strongly_convex_reduction_is_a_longer_list_of_phases():
    plan = planned(256, strong_convexity=0.2)
    assert plan.sizes == (8, 4, 2, 1, 16, 8, 4, 2, 1, 32, 16, 8, 4, 2, 1, 147)
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    plan = replace(plan, phases=tuple(replace(p, steps=min(p.steps, 5)) for p in plan.phases))
    mu = plan.setting.mu
    solve(
        plan, table(256), ledger, full_batch,
        lambda phase: tacita.GaussianMechanism(noise_multiplier=math.sqrt(phase.steps) / mu),
    )  # fmt: skip
    assert ledger.epsilon(DELTA) == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)
