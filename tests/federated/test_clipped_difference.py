"""A client's clipped difference: the paper's numbers, two worlds as far apart as can be, what is refused."""

import math
import os

import numpy as np
import pytest
import torch

import tacita
from tacita.federated import ClippedDifference, ClippedMean
from tacita.federated.clipped_difference import clipped_message
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.testing import check_oracle
from tacita.testing.adversaries import FLIPS_STATE
from tacita.testing.audit import audit_oracle
from tests.testing.linear import full, given, poisson

BALL = tacita.FlatClipper(max_grad_norm=1.0)
HOSTILE = [0.0, 1e30, -1e30, 1e-30, math.inf, -math.inf, math.nan]
SHAPES = {"theta": torch.Size([1])}


def difference(clipper=BALL, **change):
    return ClippedDifference(**{"clipper": clipper, "momentum_weight": 0.5, "divisor": 1.0, **change})


def transcript(estimator, gradients):
    """The noiseless messages of a client whose only record has these gradients, (queries, size), and its last state."""
    size = torch.as_tensor(gradients[0]).numel()
    state, sent = estimator.initial_state({"theta": torch.Size([size])}), []
    for gradient in gradients:
        row = torch.as_tensor(gradient, dtype=torch.float64).reshape(1, size)
        values, state = estimator(GivenEngine(row), state)
        sent.append(torch.cat([x for block in values.values() for x in block.values()]))
    return torch.stack(sent), state


# -- what it computes


def test_layers_of_clipped_samples_are_charged_by_the_least_noise_and_the_whole_message():
    clipper = tacita.PerLayerClipper(max_grad_norm={"a": 3.0, "b": 4.0})
    estimator = difference(clipper, sample_clipper=BALL)
    shapes = {"a.w": torch.Size([2]), "b.w": torch.Size([2])}
    event = estimator.event(full(10), {"a": 2.0, "b": 5.0}, "zero_out_one", shapes)
    assert event.noise_std == 2.0
    assert event.max_message_norm >= 5.0
    assert event.max_message_norm == pytest.approx(5.0)


def test_a_message_is_a_projection():
    """Oracle 1."""
    for vector, bound, expected in [((3, 4), 1, (0.6, 0.8)), ((3, 4), 10, (3, 4)), ((0, 0), 1, (0, 0))]:
        given_vector = {"x": torch.tensor(vector, dtype=torch.float64)}
        found = clipped_message(given_vector, tacita.FlatClipper(max_grad_norm=bound), {"x": torch.Size([2])})["x"]
        assert found.tolist() == pytest.approx(expected, rel=1e-12)
        assert found.norm() <= bound
    layers = {"a.w": torch.tensor([3.0, 4.0]), "b.w": torch.tensor([0.0, 12.0])}
    shapes = {name: x.shape for name, x in layers.items()}
    found = clipped_message(layers, tacita.PerLayerClipper(max_grad_norm={"a": 1.0, "b": 1.0}), shapes)
    assert torch.cat([*found.values()]).tolist() == pytest.approx([0.6, 0.8, 0.0, 1.0], rel=1e-6)
    estimator = difference(tacita.PerLayerClipper(max_grad_norm={"a": 1.0, "b": 1.0}))
    assert math.hypot(*estimator.sensitivity("add_or_remove_one", shapes).values()) == pytest.approx(2.82843, rel=5e-6)


def test_the_state_moves_without_noise():
    """Steps 2a to 2d by NumPy, in two dimensions."""
    grads = 3 * np.random.default_rng(0).standard_normal((20, 2))
    sent, state = transcript(difference(), torch.from_numpy(grads))
    v = g = np.zeros(2)
    for gradient, found in zip(grads, sent.numpy(), strict=True):
        v = 0.5 * v + 0.5 * gradient
        u = (v - g) * min(1.0, 1 / np.linalg.norm(v - g))
        g = g + u
        assert found == pytest.approx(u, abs=1e-12)
    assert state["shift"]["theta"].numpy() == pytest.approx(g, abs=1e-12)


def test_a_weight_of_one_is_clip21_sgd_bit_for_bit():
    """Oracle 17: no momentum is kept."""
    grads = torch.from_numpy(3 * np.random.default_rng(1).standard_normal((20, 2)))
    sent, _ = transcript(difference(momentum_weight=1.0), grads)
    g = torch.zeros(2, dtype=torch.float64)
    for gradient, found in zip(grads, sent, strict=True):
        u = clipped_message({"x": gradient - g}, BALL, {"x": torch.Size([2])})["x"]
        assert torch.equal(found, u)
        g = g + u


def test_clip_sgd_sends_the_clipped_mean():
    found, state = ClippedMean(clipper=BALL, divisor=2.0)(GivenEngine(torch.tensor([[3.0, 0.0], [3.0, 8.0]])), None)
    assert state is None
    assert found["all"]["theta"].tolist() == pytest.approx([0.6, 0.8])


def test_clipped_samples_have_a_fixed_divisor():
    estimator = difference(sample_clipper=BALL, divisor=4.0, momentum_weight=1.0)
    found, _ = estimator(GivenEngine(torch.tensor([[5.0], [-0.5], [9.0]])), estimator.initial_state(SHAPES))
    assert found["all"]["theta"].item() == pytest.approx(1.5 / 4, rel=1e-6)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_rows_leave_a_bounded_message_and_a_finite_state(hostile):
    rows = torch.tensor([[hostile, 1.0], [1.0, 1.0]])
    estimator = difference()
    state = estimator.initial_state({"theta": torch.Size([2])})
    for _ in range(3):
        values, state = estimator(GivenEngine(rows), state)
        assert values["all"]["theta"].norm() <= 1
        assert all(x.isfinite().all() for kind in state.values() for x in kind.values())
    empty, _ = estimator(GivenEngine(rows[:0]), estimator.initial_state({"theta": torch.Size([2])}))
    assert not empty["all"]["theta"].any()


def test_an_overflowing_mean_counts_as_zero():
    """Two finite gradients whose sum is infinite: the momentum must stay a number."""
    most = torch.finfo(torch.float32).max
    sent, state = transcript(difference(divisor=1.0), [[1.0]])
    values, state = difference()(GivenEngine(torch.tensor([[most], [most]])), state)
    assert state["momentum"]["theta"].item() == 0.25  # the average of 0.5 and 0
    assert values["all"]["theta"].item() == 0.25 - sent.item()


# -- how far two data sets are apart


def far(estimator, plus, minus):
    return float((transcript(estimator, plus)[0] - transcript(estimator, minus)[0]).norm())


@pytest.mark.parametrize("relation", tacita.accounting.RELATIONS)
@pytest.mark.parametrize("bounds", [{"": 1.0}, {"theta": 0.25}])
def test_the_saturating_canary_reaches_the_charge(relation, bounds):
    """Canary 8.1: all messages are C apart on each side, so the charge is exact: neither less nor more."""
    queries, beta = 100, 0.1
    clipper = tacita.PerLayerClipper(max_grad_norm=bounds)
    bound = next(iter(bounds.values()))
    estimator = difference(clipper, momentum_weight=beta)
    canary = queries * bound / (1 - (1 - beta) ** queries)
    apart = far(estimator, [[canary]] * queries, [[-canary]] * queries)
    noise = {block: 74.6126 * bound for block in clipper.groups(SHAPES)}
    event = estimator.event(tacita.FullBatchSampler(num_records=1), noise, relation, SHAPES)
    assert event.guarantee(queries).mu == pytest.approx(apart / (74.6126 * bound), rel=1e-12)
    assert event.guarantee(queries).mu == pytest.approx(0.268051, rel=5e-6)


def test_the_saturating_canary_measures_mu():
    """Canary 8.1 with noise: mu_hat within 4 standard errors; half the noise is seen."""
    runs, queries, noise = 20_000, 100, 74.6126
    sent, _ = transcript(difference(momentum_weight=0.1), [[100.003]] * queries)
    assert sent.flatten().tolist() == pytest.approx([1.0] * queries)
    normals = torch.randn(2, runs, generator=torch.Generator().manual_seed(7), dtype=torch.float64)

    def mu_hat(share):
        signal = float(sent.sum()) / (math.sqrt(queries) * share * noise)
        return float((signal + normals[0]).mean() - (-signal + normals[1]).mean())

    error = math.sqrt(2 / runs)
    assert abs(mu_hat(1.0) - 0.268051) < 4 * error
    assert mu_hat(0.5) > 0.268051 + 4 * error  # calibrated to C in place of 2 C
    assert mu_hat(0.1) > 0.268051 + 4 * error  # the root of T forgotten


def test_one_draw_saturates_every_message():
    """Canary 8.2: no amplification. A record of the first query alone is in all messages."""
    queries, beta = 100, 0.1
    canary = 1.0001 * queries / (beta * (1 - beta) ** (queries - 1))
    assert canary == pytest.approx(3.38871e7, rel=5e-6)
    sent, _ = transcript(difference(momentum_weight=beta), [[canary]] + [[0.0]] * (queries - 1))
    assert float(sent.sum()) == pytest.approx(100.0)
    charged = difference().event(poisson(1000), {"all": 1.0}, "add_or_remove_one", SHAPES)
    assert charged.guarantee(queries).mu == pytest.approx(2 * math.sqrt(queries))


def test_layers_saturate_together():
    """Canary 8.4: mu = 2 sqrt(T sum (C_l / s_l)^2)."""
    bounds, noise, queries = {"a": 1.0, "b": 0.5}, {"a": 3.0, "b": 4.0}, 10
    estimator = difference(tacita.PerLayerClipper(max_grad_norm=bounds), momentum_weight=1.0)
    shapes = {"a": torch.Size([1]), "b": torch.Size([2])}
    worlds = []
    for sign in (1, -1):
        state, sent = estimator.initial_state(shapes), []
        for _ in range(queries):
            rows = {"a": torch.tensor([[sign * 1e4]]), "b": torch.tensor([[3e4, sign * 4e4]])}
            values, state = estimator(GivenEngine(rows), state)
            sent.append(torch.cat([values["a"]["a"] / 3.0, values["b"]["b"] / 4.0]))
        worlds.append(torch.stack(sent))
    event = estimator.event(full(1), noise, "zero_out_one", shapes)
    assert event.guarantee(queries).mu == pytest.approx(2 * math.sqrt(queries * (1 / 9 + 0.25 / 16)))
    assert float((worlds[0] - worlds[1]).norm()) <= event.guarantee(queries).mu


@pytest.mark.parametrize("unclipped", [False, True])
def test_one_occurrence_of_a_clipped_sample_moves_all_messages_by_its_charge(unclipped):
    """Oracle 19: at most 2 beta D; with beta 1 and no clipping the square is exactly 2 D^2."""
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(1 if unclipped else 12):
        beta, bound = (1.0, 1e6) if unclipped else (rng.uniform(0.05, 1), float(np.exp(rng.uniform(-3, 1))))
        grads = rng.standard_normal((40, 2)) * 0.3
        canary, when = rng.standard_normal(2) * 3, int(rng.integers(0, 20))
        estimator = difference(
            tacita.FlatClipper(max_grad_norm=bound), momentum_weight=beta, sample_clipper=BALL, divisor=2.0
        )
        worlds = []
        for present in (True, False):
            state, sent = estimator.initial_state({"theta": torch.Size([2])}), []
            for t, gradient in enumerate(grads):
                rows = [gradient, canary] if present and t == when else [gradient]
                values, state = estimator(GivenEngine(torch.from_numpy(np.array(rows))), state)
                sent.append(values["all"]["theta"])
            worlds.append(torch.stack(sent))
        moved = float((worlds[0] - worlds[1]).norm())
        sampler = tacita.AllocatedSampler(batches_per_epoch=40, num_records=40)
        charge = estimator.event(sampler, {"all": 1.0}, "add_or_remove_one", {"theta": torch.Size([2])})
        limit = charge.guarantee(40).mu
        assert moved <= limit
        largest = max(largest, moved / limit)
        if unclipped:
            assert moved**2 == pytest.approx(2 * 0.5**2, rel=1e-6)
    assert largest > 0.3


# -- as an oracle


def client(data, relation="replace_one", declared=100, *, rows=None, part=None, **change):
    return tacita.GradientOracle(
        GivenSource(data),
        rows=rows,
        part=part,
        estimator=difference(divisor=float(declared), **change),
        mechanism=tacita.GaussianMechanism(noise_multiplier=2.0),
        sampler=tacita.FullBatchSampler(num_records=declared),
        ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="all data of one client"),
        planned_queries=3,
        reservation=1,
    )


@pytest.mark.parametrize("relation", tacita.accounting.RELATIONS)
def test_the_number_of_rows_is_not_public(relation):
    """99, 100 or no rows where 100 were declared: the same public fields, and no error."""
    releases = [client(torch.ones(n, 3), relation).query({"theta": torch.zeros(3)}) for n in (0, 99, 100)]
    assert len({(r.divisor, *r.noise_std.items(), r.query) for r in releases}) == 1
    assert releases[0].noise_std == {"all": 4.0}  # twice 2 C, under every relation


def test_a_part_of_a_split_is_refused():
    """All data of a client is in every part of it: two parts must not be charged in parallel."""
    for sizes, relation in (([50, 50], "zero_out_one"), ([0.5, 0.5], "add_or_remove_one")):
        first = tacita.split((torch.ones(100, 3),), sizes)[0]
        with pytest.raises(ValueError, match="records must not be a part of a split"):
            client(torch.ones(100, 3), relation, rows=first.rows, part=first.part, declared=50)


def test_clipped_samples_protect_records_so_their_number_is_public():
    with pytest.raises(ValueError, match="num_records must be the number of records"):
        client(torch.ones(99, 3), sample_clipper=BALL)


@pytest.mark.parametrize("relation", tacita.accounting.RELATIONS)
def test_a_client_that_lives_one_round_pays_for_one(relation):
    oracle = client(torch.ones(5, 3), relation)
    oracle.query({"theta": torch.zeros(3)})
    once = tacita.accounting.gaussian_epsilon(0.5, 1e-5)
    assert oracle.ledger.epsilon_spent(1e-5) == pytest.approx(once)
    assert oracle.session.reserved_queries == 1


def test_an_audit_nearly_reaches_the_claim_and_refutes_that_of_one_threshold():
    """An adversary that flips the state shows mu = 2 C sqrt(T) / s: the full-batch event with C is refuted."""
    make = given(full, noise_multiplier=2.0, queries=4, estimator=difference)
    found = audit_oracle(make, relation="add_or_remove_one", adversaries=[FLIPS_STATE], delta=1e-2, runs=20_000, seed=1)
    assert found.verdict == "consistent"
    assert found.claim.epsilon == pytest.approx(tacita.accounting.gaussian_epsilon(1.0, 1e-2))
    assert found.mu.value > 0.9  # the true one is 1
    assert found.strict.value > tacita.accounting.gaussian_epsilon(0.5, 1e-2)  # with probability 1 - 1e-6


@pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="make audit; the suite checks one relation")
@pytest.mark.parametrize("estimator", [lambda c: ClippedMean(clipper=c, divisor=2.0), difference])
def test_the_contract_under_every_relation(estimator):
    check_oracle(given(poisson, noise_multiplier=2.0, queries=4, estimator=estimator))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"clipper": tacita.AutomaticClipper(max_grad_norm=1.0, gamma=0.1)}, TypeError, "clipper must be a FlatClip"),
        ({"momentum_weight": 0.0}, ValueError, "momentum_weight must be in"),
        ({"momentum_weight": 1.1}, ValueError, "momentum_weight must be in"),
        ({"divisor": 0}, ValueError, "divisor must be"),
        ({"sample_clipper": 1.0}, TypeError, "sample_clipper must be a FlatClipper"),
    ],
)
def test_settings_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        difference(**change)
