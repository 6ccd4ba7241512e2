"""Proximal operators: reference values, minimality, sums against the alternating scheme."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from tacita.convex import L1, Ball, Box, ElasticNet, GroupLasso, L1Ball, NuclearNorm, ProximalSum, Simplex
from tacita.convex.projections import alternating, on_two_balls

Z = torch.tensor([1.5, -0.3, 0.2, -2.0], dtype=torch.float64)


def at(operator, z, step=1.0):
    return operator({"w": torch.as_tensor(z, dtype=torch.float64)}, step)["w"].tolist()


# -- V16, the specification's reference values


def test_v16_soft_thresholding():
    assert at(L1(weight=0.5), Z) == [1.0, 0.0, 0.0, -1.5]
    assert at(L1(weight=0.25), Z, 2.0) == [1.0, 0.0, 0.0, -1.5]  # only weight x step matters


def test_v16_soft_thresholding_then_the_unit_ball():
    assert at(L1(weight=0.5) + Ball(radius=1.0), Z) == pytest.approx([0.554700, 0, 0, -0.832050], abs=5e-7)
    wrong = at(L1(weight=0.5), at(Ball(radius=1.0), Z))
    assert wrong != pytest.approx([0.554700, 0, 0, -0.832050], abs=0.1)  # the other order is another point


def test_v16_ridge_and_elastic_net():
    assert at(ElasticNet(l1=0.0, l2=0.5), Z) == pytest.approx((Z / 1.5).tolist())
    assert at(ElasticNet(l1=0.5, l2=0.5), Z) == pytest.approx([0.666667, 0, 0, -1.0], abs=5e-7)


def test_v16_group_lasso():
    assert at(GroupLasso(weight=1.0, groups=((0, 1),)), [3.0, 4.0]) == pytest.approx([2.4, 3.2])
    assert at(GroupLasso(weight=6.0, groups=((0, 1),)), [3.0, 4.0, 7.0]) == [0.0, 0.0, 7.0]  # 7 is in no group


def test_v16_simplex_and_l1_ball():
    assert at(Simplex(), [0.5, 1.2, -0.3]) == pytest.approx([0.15, 0.85, 0.0])
    assert at(L1Ball(radius=2.0), Z) == pytest.approx([0.75, 0.0, 0.0, -1.25])


def test_v16_two_balls():
    a, b = Ball(radius=1.0), Ball(radius=0.5, center={"w": torch.tensor([1.0, 0.0])})
    point = [2.0, 2.0]
    assert at(a + b, point) == pytest.approx([0.875, 0.484123], abs=5e-7)
    assert at(b + a, point) == pytest.approx([0.875, 0.484123], abs=5e-7)
    assert at(b, at(a, point)) == pytest.approx([0.808658, 0.461940], abs=5e-7)  # composing them is wrong


# -- every operator minimises what it says


OPERATORS = {
    "l1": L1(weight=0.4),
    "elastic net": ElasticNet(l1=0.2, l2=0.7),
    "group lasso": GroupLasso(weight=0.6, groups=((0, 2), (1,), (3, 4))),
    "nuclear": NuclearNorm(weight=0.5, shape=(2, 3)),
    "ball": Ball(radius=0.8),
    "ball elsewhere": Ball(radius=0.8, center={"w": torch.tensor([1.0, 0, 0, -1, 0, 0.5])}),
    "box": Box(low=-0.3, high=0.4),
    "orthant": Box(low=0.0, high=math.inf),
    "simplex": Simplex(total=0.7),
    "l1 ball": L1Ball(radius=0.9),
    "lasso in a ball": L1(weight=0.3) + Ball(radius=0.7),
    "elastic net in a ball": ElasticNet(l1=0.3, l2=1.0) + Ball(radius=0.4),
    "groups in a ball": GroupLasso(weight=0.3, groups=((0, 1, 2), (3, 4, 5))) + Ball(radius=0.6),
    "nuclear in a ball": NuclearNorm(weight=0.3, shape=(3, 2)) + Ball(radius=0.6),
    "positive lasso in a ball": L1(weight=0.2) + Box(low=0.0, high=math.inf) + Ball(radius=0.6),
    "lasso in a box": L1(weight=0.3) + Box(low=-0.2, high=0.5),
    "ball, then lasso": Ball(radius=0.7) + L1(weight=0.3),
    "ball and box": Ball(radius=0.8) + Box(low=-0.3, high=0.4),
    "simplex and ball": Simplex() + Ball(radius=0.6),
    "groups in a box": GroupLasso(weight=0.3, groups=((0, 1, 2), (3, 4, 5))) + Box(low=-0.2, high=0.5),
    "two balls": Ball(radius=0.8) + Ball(radius=0.9, center={"w": torch.full((6,), 0.3)}),
    "lasso in a ball elsewhere": L1(weight=0.3) + Ball(radius=0.5, center={"w": torch.full((6,), 0.2)}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_the_minimiser(name):
    """No point near the proximal one, and none on the way from a random feasible one, has a smaller objective."""
    operator, generator = OPERATORS[name], torch.Generator().manual_seed(7)
    for trial in range(12):
        z = torch.randn(6, dtype=torch.float64, generator=generator) * (0.3 if trial % 2 else 1.5)
        step = (0.5, 1.0, 2.0)[trial % 3]
        found = operator({"w": z}, step)["w"]

        def objective(y, z=z, step=step):
            return step * operator.value({"w": y}) + float((y - z).square().sum()) / 2

        least = objective(found)
        assert math.isfinite(least)
        for _ in range(10):
            other = operator({"w": torch.randn(6, dtype=torch.float64, generator=generator)}, step)["w"]
            for share in (1e-3, 0.1, 1.0):
                assert least <= objective(found + share * (other - found)) + 1e-8
            near = found + 1e-3 * torch.randn(6, dtype=torch.float64, generator=generator)
            assert least <= objective(near) + 2e-6  # value() lets a point be outside of a set by rounding


@pytest.mark.parametrize(
    "name", ["lasso in a ball", "elastic net in a ball", "positive lasso in a ball", "two balls", "ball and box"]
)
def test_closed_forms_agree_with_the_alternating_scheme(name):
    operator, generator = OPERATORS[name], torch.Generator().manual_seed(3)
    for _ in range(10):
        z = torch.randn(6, dtype=torch.float64, generator=generator)
        slow = alternating(lambda y: operator.first.on_vector(y, 1.0), lambda y: operator.second.on_vector(y, 1.0), z)
        assert torch.allclose(operator({"w": z}, 1.0)["w"], slow, atol=1e-8)


def test_the_simplex_against_a_solver():
    z = np.array([0.9, -0.2, 0.4, 0.1])
    found = scipy.optimize.minimize(
        lambda y: ((y - z) ** 2).sum(), np.full(4, 0.25), bounds=[(0, None)] * 4,
        constraints={"type": "eq", "fun": lambda y: y.sum() - 1}, options={"ftol": 1e-14},
    )  # fmt: skip
    assert at(Simplex(), z) == pytest.approx(found.x, abs=1e-6)


# -- several parameters


def test_one_ball_is_of_all_parameters_together():
    point = {"a": torch.tensor([3.0]), "b": torch.tensor([[0.0], [4.0]])}
    found = Ball(radius=1.0)(point, 1.0)
    assert found["a"].tolist() == pytest.approx([0.6])
    assert found["b"].flatten().tolist() == pytest.approx([0.0, 0.8])
    assert found["b"].shape == (2, 1)


def test_named_parameters_alone_are_penalised():
    point = {"weight": torch.tensor([2.0, -0.1]), "bias": torch.tensor([5.0])}
    found = (L1(weight=0.5, names=("weight",)) + Ball(radius=1.0, names=("bias",)))(point, 1.0)
    assert found["weight"].tolist() == pytest.approx([1.5, 0.0])
    assert found["bias"].tolist() == [1.0]
    both = (L1(weight=0.5, names=("weight",)) + Ball(radius=1.0))(point, 1.0)
    assert torch.cat([both["weight"], both["bias"]]).norm().item() == pytest.approx(1.0)
    assert both["weight"][1] == 0


def test_a_sum_without_a_closed_form_needs_the_same_parameters():
    with pytest.raises(ValueError, match="names must be the same in both"):
        ElasticNet(l1=0.1, l2=0.1, names=("weight",)) + Ball(radius=1.0)
    with pytest.raises(ValueError, match="names must be parameters, got bias"):
        L1(weight=0.1, names=("bias",))({"weight": torch.zeros(1)}, 1.0)


def test_the_point_is_not_written_to():
    point = {"w": Z.clone()}
    (GroupLasso(weight=1.0, groups=((0, 1),)) + Ball(radius=0.1))(point, 1.0)
    assert torch.equal(point["w"], Z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPERATORS)
def test_dtypes_are_kept_and_large_numbers_stay_finite(name, dtype):
    found = OPERATORS[name]({"w": torch.tensor([1e20, -1e20, 0, 3, 1e-30, 0], dtype=dtype)}, 0.5)["w"]
    assert found.dtype == dtype
    assert bool(found.isfinite().all())


def test_an_infinite_ball_is_the_whole_space():
    assert at(Ball(radius=math.inf), Z) == Z.tolist()
    assert at(Ball(radius=1.0) + Ball(radius=math.inf, center={"w": Z}), Z) == pytest.approx((Z / Z.norm()).tolist())


def test_balls_that_do_not_meet_are_refused():
    with pytest.raises(ValueError, match="the balls must meet"):
        on_two_balls(Z, (torch.zeros_like(Z), 1.0), (torch.full_like(Z, 5.0), 1.0))


def test_sets_without_a_common_point_are_refused():
    apart = Simplex() + Ball(radius=0.1)
    with pytest.raises(ValueError, match="the sets must have a point in common"):
        apart({"w": Z}, 1.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: L1(weight=-1.0), "l1 must be"),
        (lambda: Ball(radius=0.0), "radius must be > 0"),
        (lambda: Box(low=1.0, high=0.0), "low must be at most high"),
        (lambda: Simplex(total=0.0), "total must be"),
        (lambda: GroupLasso(weight=1.0, groups=((0, 1), (1,))), "groups must hold each position once"),
        (lambda: GroupLasso(weight=1.0, groups=((0, 9),))({"w": Z}, 1.0), "groups must hold positions below"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_plus_is_a_sum_of_values():
    both = L1(weight=2.0) + ElasticNet(l1=0.0, l2=2.0)
    assert isinstance(both, ProximalSum)
    assert both.value({"w": torch.tensor([1.0, -2.0])}) == 6.0 + 5.0
