"""The rounding margins of ghost norms: parameters with several uses, and no term of the derivation left out."""

import copy

import pytest
import torch
from torch import nn

from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import trainable
from tacita.gradients.loop import LoopEngine
from tacita.gradients.program import ProgramEngine
from tacita.gradients.rules.normalization import GROUP_NORM
from tacita.gradients.rules.outer import direct_squares, gram_squares, radius
from tacita.gradients.rules.rounding import RowNorms, gamma, held, measure, totals, unit
from tacita.gradients.rules.rule import LayerUse, RowWeights
from tacita.gradients.rules.uses import row_weights
from tests.gradients.program.test_engine import engine

ROWS = 100


class Twice(nn.Module):
    """One layer, called for two inputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.stack([self.layer(part) for part in x.unbind(dim=1)], dim=1)


class Tied(nn.Module):
    """An embedding whose table is the matrix of a linear layer, too."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
        self.head.weight = self.layer.weight
        nn.init.normal_(self.layer.weight, std=30.0)

    def forward(self, x):
        rows = self.layer(x)
        return torch.cat([rows, self.head(rows.detach())], dim=-1)


def inner_product(model, batch):
    x, grad = batch
    return (model(x) * grad).flatten(1).sum(dim=1)


def cancelling(shape, out, offset):
    """Two inputs that differ little, with nearly opposite output gradients."""
    x = offset + torch.randn(ROWS, 1, *shape) + 1e-2 * torch.randn(ROWS, 2, *shape)
    grad = torch.randn(ROWS, 1, *out)
    return x, torch.cat([grad, 1e-3 * torch.randn_like(grad) - grad], dim=1)


def tied_data():
    """One token at every position, with output gradients of the embedding that cancel."""
    grad = torch.randn(ROWS, 12, 7)
    grad[:, :, :4] = 1e3 * (1.0 - 2.0 * (torch.arange(12) % 2)).view(1, -1, 1) * grad[:, :1, :4]
    return torch.ones(ROWS, 12, dtype=torch.long), grad


SHARED = {
    "conv": lambda: (Twice(nn.Conv2d(3, 4, 3, padding=1)), cancelling((3, 6, 6), (4, 6, 6), 1e3)),
    "conv_by_kernel": lambda: (Twice(nn.Conv2d(8, 8, 3, padding=1)), cancelling((8, 6, 6), (8, 6, 6), 1e3)),
    "group_norm": lambda: (Twice(nn.GroupNorm(2, 6)), cancelling((6, 20, 20), (6, 20, 20), 0.0)),
    "layer_norm": lambda: (Twice(nn.LayerNorm(6)), cancelling((7, 6), (7, 6), 0.0)),
    "linear": lambda: (Twice(nn.Linear(6, 5)), cancelling((7, 6), (7, 5), 1e3)),
    "tied": lambda: (Tied(), tied_data()),
}

HELD = {"group_norm", "layer_norm", "linear"}  # as rounded in float32, and added as they are held


def shortest(name, margin):
    """The smallest (norm / exact norm, norm / what the row adds) of any row and parameter, in float32."""
    torch.manual_seed(0)
    model, (x, grad) = SHARED[name]()
    groups = {n: (n,) for n, _ in model.named_parameters()}
    exact_data = (x.double() if x.is_floating_point() else x, grad.double())
    exact = engine(LoopEngine, copy.deepcopy(model).double(), exact_data, loss_fn=inner_product).norms(groups)
    whole, least = engine(ProgramEngine, model, (x, grad), loss_fn=inner_product, margin=margin), torch.inf
    found = whole.norms(groups)
    for k in range(20):
        one = engine(ProgramEngine, model, (x[k : k + 1], grad[k : k + 1]), loss_fn=inner_product, margin=margin)
        one.programs = whole.programs  # traced once
        sums = one.weighted_sums(torch.ones_like, groups)
        added = torch.stack([sums.values[0][n].double().norm() for n in groups])
        least = min(least, (sums.norms[0] / added).min().item())
    return (found / exact).min().item(), least


@pytest.mark.parametrize("name", SHARED)
def test_norms_of_a_shared_parameter_are_upper_bounds_where_its_uses_cancel(name):
    of_exact, of_added = shortest(name, margin=True)
    assert of_added >= 1
    assert of_exact >= 1 or name in HELD


@pytest.mark.parametrize("name", SHARED)
def test_without_the_margin_they_are_not(name):
    assert min(shortest(name, margin=False)) < 1


# -- the terms of docs/derivations/ghost_norms.md, each from a formula of its own


def uses_of(module, x, grad):
    engine = ProgramEngine(module, inner_product, trainable(module), [], torch.arange(len(x)))
    return engine.uses(Chunk((x, grad), len(x), 0)).found


def recorded(module, x, grad):
    """The one use of a layer whose output has the gradient ``grad``."""
    (named,) = uses_of(module, x, grad)
    return named.rule, named.use


USES = {
    "linear": (nn.Linear(5, 4), torch.randn(6, 9, 5), torch.randn(6, 9, 4)),
    "conv": (nn.Conv2d(2, 3, 3), torch.randn(6, 2, 7, 7), torch.randn(6, 3, 5, 5)),
    "embedding": (nn.Embedding(4, 3), torch.randint(0, 4, (6, 8)), torch.randn(6, 8, 3)),
}


@pytest.mark.parametrize("name", USES)
def test_the_radius_pays_for_the_norms_sum_of_products_and_for_the_sums(name):
    """gamma_T S twice: the two are computed in different orders, and each may be off by that."""
    module, x, grad = USES[name]
    rule, use = recorded(module, x, grad)
    radius, reach = rule.radius(use), rule.reach(use)
    for parameter in use.names:
        once = gamma(rule.positions(use), torch.float32) * reach[parameter]
        assert (radius[parameter] >= 2 * once).all()
        assert (radius[parameter] <= 5 * once).all()


def test_the_radius_of_a_held_gradient_pays_for_weighing_and_adding_it():
    x, grad = torch.randn(5, 30, 6), torch.randn(5, 30, 6)
    rule, use = recorded(nn.LayerNorm(6), x, grad)
    radius, held = rule.radius(use), rule.grads(use)
    for parameter, rows in held.items():
        norms = rows.double().norm(dim=1)
        assert (radius[parameter] >= 2 * unit(torch.float32) * norms).all()
        assert (radius[parameter] <= 10 * unit(torch.float32) * norms).all()


def of_group_norm(module, x, grad):
    """The per-sample gradients of scale and shift of a group norm whose output has the gradient ``grad``."""
    found = {}
    for named in uses_of(module, x, grad):
        grads = named.rule.grads(named.use)
        found |= {name: grads[local] for local, name in named.parameters.items()}
    return found


@pytest.mark.parametrize("shape", [(6, 15, 20), (8, 4), (4, 2, 3, 2)])
def test_a_group_norm_with_copies_a_record_equals_the_plain_rule(shape):
    x, grad = 2.0 + torch.randn(5, *shape).double(), torch.randn(5, *shape).double()
    module = nn.GroupNorm(2, shape[0]).double()
    settings = GROUP_NORM.read(x, 2, module.weight, module.bias).settings
    shapes = {"weight": torch.Size(shape[:1]), "bias": torch.Size(shape[:1])}
    plain = GROUP_NORM.grads(LayerUse(settings, shapes, ("weight", "bias"), x.unsqueeze(1), grad.unsqueeze(1)))
    torch.testing.assert_close(of_group_norm(module, x, grad), plain, rtol=1e-11, atol=1e-11)


def test_what_a_row_of_a_group_norm_adds_does_not_depend_on_its_companions():
    x, grad, module = torch.randn(4, 6, 5, 5), torch.randn(4, 6, 5, 5), nn.GroupNorm(2, 6)
    mine, hostile = of_group_norm(module, x, grad), x.clone()
    for bad in (torch.nan, torch.inf, 1e30):
        hostile[1:] = bad
        others = of_group_norm(module, hostile, grad)
        assert all(torch.equal(mine[name][0], others[name][0]) for name in ("weight", "bias"))


@pytest.mark.parametrize(
    ("shape", "additions"),
    [((7,), 7), ((2**14,), 2**14), ((2**14 + 1,), 0), ((2**13, 3), 2**13 + 3), ((40, 30, 20, 10), 40 + 6000)],
)
def test_a_long_row_pays_for_the_roundings_of_its_parts(shape, additions):
    """Of its squares in float32; those of an axis that is too long are added in float64, and parts are a row again."""
    torch.manual_seed(0)
    rows = torch.randn(3, *shape)
    assert measure(rows).root ** 2 - 1 >= gamma(additions + 10, torch.float32) * (1 - 1e-9)
    excess = totals([[held(rows)]])[0] / rows.double().flatten(1).square().sum(dim=1) - 1
    assert (excess > 0).all()
    assert (excess < 2e-3).all()


@pytest.mark.parametrize("positions", [1, 7, 256])
def test_the_margin_of_a_product_is_twice_its_rounding(positions):
    reach = torch.tensor([0.0, 1.0, 3e4], dtype=torch.float64)
    zeros, norms = (RowNorms(x, 1.0, 0.0, torch.inf) for x in (torch.zeros(3), reach.sqrt()))
    measured = direct_squares(zeros, norms, norms, radius(positions, torch.float32), torch.float32)
    added = totals([[measured]])[0].sqrt() * (1 + 1e-12)
    assert (added >= 2 * gamma(positions, torch.float32) * reach).all()
    assert (added <= 2 * gamma(positions + 5, torch.float32) * reach).all()


def term_of_gram(a, d):
    """What is added to the squared norms, without the radius, which another test holds."""
    squares = gram_squares(a, d)
    squares = squares._replace(constants=(*squares.constants[:-2], 0.0, torch.inf))
    return totals([[squares]])[0] - totals([[squares]], rounding_margin=False)[0]


@pytest.mark.parametrize(("left", "right"), [(64, 48), (48, 64), (20, 200)])
def test_a_gram_norm_pays_for_the_roundings_of_both_factors(left, right):
    """Each inner product is off by as many roundings as it has, and meets the other factor's inner product."""
    torch.manual_seed(0)
    a, d = torch.randn(5, 3, left), torch.randn(5, 3, right)
    once = torch.zeros(5, dtype=torch.float64)
    for width, one, other in ((left, a.double(), d.double()), (right, d.double(), a.double())):
        once += gamma(width, torch.float32) * one.square().sum(dim=(1, 2)) * (other @ other.mT).flatten(1).norm(dim=1)
    assert (term_of_gram(a, d) >= once * (1 - 1e-6)).all()
    assert (term_of_gram(a, d) <= 1.4 * once).all()


@pytest.mark.parametrize("inputs", ["incoherent", "coherent"])
def test_the_term_of_a_gram_norm_pays_for_the_worst_errors_of_its_inner_products(inputs):
    """Every inner product is off by its bound, with the sign that moves the square most: no error moves it further."""
    torch.manual_seed(0)
    a, d = torch.randn(5, 6, 40), torch.randn(5, 6, 30)
    a = a + 3 * a[:, :1] if inputs == "coherent" else a
    grams, errors = [], []
    for rows in (a.double(), d.double()):
        grams.append(rows @ rows.mT)
        lengths = rows.norm(dim=2)
        errors.append(gamma(rows.shape[2], torch.float32) * lengths.unsqueeze(2) * lengths.unsqueeze(1))
    signs = [grams[1].sign(), grams[0].sign()]
    moved = [gram + error * sign for gram, error, sign in zip(grams, errors, signs, strict=True)]
    change = (moved[0] * moved[1]).sum(dim=(1, 2)) - (grams[0] * grams[1]).sum(dim=(1, 2))
    assert (term_of_gram(a, d) >= change).all()
    assert (term_of_gram(a, d) <= 2.5 * change).all()


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3)])
def test_the_smaller_factor_is_weighted_and_rows_that_are_not_finite_are_masked_in_both(left, right):
    torch.manual_seed(0)
    x, grad = torch.randn(4, 2, left), torch.randn(4, 2, right)
    shapes = {"weight": torch.Size([right, left])}
    weights = torch.tensor([1.0, 0.5, 0.0, 0.25])
    a, d = LayerUse(None, shapes, ("weight",), x, grad).weighted_once(RowWeights(weights, plain=True))
    assert torch.equal(a, x * weights.view(4, 1, 1)) == (left < right)
    assert torch.equal(d, grad * weights.view(4, 1, 1)) == (left > right)
    torch.testing.assert_close(d.mT @ a, (grad * weights.view(4, 1, 1)).mT @ x)
    x[2], grad[2] = torch.nan, torch.inf
    a, d = LayerUse(None, shapes, ("weight",), x, grad).weighted_once(RowWeights(weights, plain=False))
    assert (a[2] == 0).all()
    assert (d[2] == 0).all()


def test_a_subnormal_weight_is_absence():
    tiny = torch.finfo(torch.float32).tiny
    weights = torch.tensor([[tiny / 4], [tiny / 2], [2 * tiny], [1.0]], dtype=torch.float64)
    (found,) = row_weights(weights, torch.float32)
    assert found.values.tolist() == [0.0, 0.0, 2 * tiny, 1.0]


@pytest.mark.parametrize("uses", [2, 40])
def test_each_further_use_adds_its_own_rounding(uses):
    """A layer of one position called again and again: what is left are the additions, one a use."""
    torch.manual_seed(0)
    model = Twice(nn.GroupNorm(1, 3))
    x, grad = torch.randn(5, uses, 3), torch.randn(5, uses, 3)
    data, groups = (x, grad), {"weight": ("layer.weight",), "bias": ("layer.bias",)}
    norms = [engine(ProgramEngine, model, data, loss_fn=inner_product, margin=on).norms(groups) for on in (True, False)]
    margin = norms[0] - norms[1]
    spread = torch.stack([torch.nn.functional.group_norm(x[:, k], 1) * grad[:, k] for k in range(uses)]).norm(dim=2)
    assert (margin[:, 0] >= 2 * gamma(uses - 1, torch.float32) * spread.sum(dim=0)).all()
    assert (margin <= 1e-3 * norms[1]).all()
