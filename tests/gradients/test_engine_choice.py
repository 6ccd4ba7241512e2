from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource, ProgramEngine, engine_choice
from tacita.gradients.engine_choice import choose_method, default_chunk_rows
from tacita.gradients.scan import scan
from tacita.gradients.views import mean_over_views


class Blind(ProgramEngine):
    """An engine that misses one use of a layer: its gradients of the bias are half of what they are."""

    def _chunk_sums(self, chunk, rule, groups):
        arrays, norms = super()._chunk_sums(chunk, rule, groups)
        return [{n: g * (0.5 if n.endswith("bias") else 1) for n, g in one.items()} for one in arrays], norms


@pytest.fixture
def probed(small):
    probe = scan(small.model, small.loss_fn, small.data).check().probe
    params = {n: p.detach() for n, p in small.model.named_parameters()}
    return small.model, small.loss_fn, params, probe


def choose(method, found, *, like):
    model, loss_fn, params, probe = found
    choice = choose_method(method, model, loss_fn, like=like)
    choice.check(model, loss_fn, params, probe)
    return choice


@pytest.mark.parametrize("drops", [0, 1, 2])
def test_a_program_that_differs_from_the_loop_is_refused(small, monkeypatch, drops):
    """Dropout hides no difference: both engines draw the same coins. And modes are kept."""
    for _ in range(drops):
        small.model.insert(1, nn.Dropout(0.5))
    NetworkSource(small.model, small.loss_fn, small.data)
    assert all(module.training for module in small.model.modules())
    monkeypatch.setattr(engine_choice, "ProgramEngine", Blind)
    with pytest.raises(UnsupportedModuleError, match=r"it does not give the gradient of '0.bias'"):
        NetworkSource(small.model, small.loss_fn, small.data)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_module_with_a_backward_hook_is_refused(probed, kind):
    """PyTorch leaves such a hook out under ``vmap``, and the gradient would be another one than the loop's."""
    model = probed[0]
    handle = getattr(model[-1], kind)(lambda module, grads, *_: tuple(None if g is None else 2 * g for g in grads))
    with pytest.raises(UnsupportedModuleError, match=r"has a backward hook, which only the loop calls.*method=.loop"):
        choose("auto", probed, like=probed[-1])
    assert choose("loop", probed, like=probed[-1]).method == "loop"
    handle.remove()
    assert choose("auto", probed, like=probed[-1]).method == "program"


MASK = torch.arange(36.0).reshape(6, 6)
HOOKS = {
    "of the parameter": lambda weight: (weight.register_hook(lambda grad: grad * MASK), weight)[1],
    "of a view": lambda weight: hooked(weight.t()).reshape(6, 6).t(),
    "of a product": lambda weight: hooked(weight * 1.0),
    "of a node": lambda weight: by_node(weight.t()),
}


def hooked(tensor):
    tensor.register_hook(lambda grad: grad * MASK)
    return tensor


def by_node(tensor):
    tensor.grad_fn.register_prehook(lambda grads: (grads[0] * MASK,))
    return tensor


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_on_a_weight_is_refused(kind):
    """What the engine does with a weight's gradient passes by the hooks of the weight."""

    def loss_fn(model, batch):
        return nn.functional.linear(batch[0], HOOKS[kind](model.weight)).square().sum(dim=1)

    given = nn.Linear(6, 6, bias=False), loss_fn, (torch.randn(4, 6),)
    with pytest.raises(UnsupportedModuleError, match="a hook is put on a parameter"):
        NetworkSource(*given)
    NetworkSource(*given, method="loop")


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_parameter_with_a_hook_of_its_own_is_refused(kind):
    model = nn.Sequential(nn.Linear(4, 1))
    handle = getattr(model[0].weight, kind)(lambda given: None)
    data, loss_fn = (torch.ones(3, 4),), lambda model, batch: model(batch[0]).squeeze(1)
    with pytest.raises(UnsupportedModuleError, match=r"hook on a parameter \(weight\).*after backward"):
        NetworkSource(model, loss_fn, data)
    handle.remove()
    NetworkSource(model, loss_fn, data)


@pytest.mark.parametrize("kind", ["register_module_full_backward_hook", "register_module_full_backward_pre_hook"])
def test_a_backward_hook_on_all_modules_is_refused(probed, kind):
    handle = getattr(nn.modules.module, kind)(lambda module, grads, *_: tuple(g if g is None else 2 * g for g in grads))
    try:
        with pytest.raises(UnsupportedModuleError, match="for all modules"):
            choose("auto", probed, like=probed[-1])
    finally:
        handle.remove()
    assert choose("auto", probed, like=probed[-1]).method == "program"


def test_without_a_record_there_is_nothing_to_write_down(probed):
    assert choose("auto", (*probed[:3], None), like=None).programs is None


def test_default_rows_bound_the_gradients_in_memory():
    params = {"w": torch.zeros(1000, 1000, dtype=torch.bfloat16), "b": torch.zeros(24, dtype=torch.float64)}
    rows = default_chunk_rows("loop", params)
    assert rows is not None
    assert rows * (4_000_000 + 192) <= 2**28 < (rows + 1) * (4_000_000 + 192)
    assert default_chunk_rows("program", params) is None


def in_views():
    """A wide layer, whose norms the loop rounds up by more than a thousand roundings of float64."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    data = torch.randn(16, 4, 3072, dtype=torch.float64), torch.randint(3, (16, 4))
    return model, mean_over_views(cross_entropy), data


def in_bfloat16():
    """Parameters of float32 and products of bfloat16."""

    def loss_fn(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model, batch)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3))
    return model, loss_fn, (torch.randn(16, 20), torch.randint(3, (16,)))


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")


@pytest.mark.parametrize("made", [in_views, in_bfloat16])
def test_rounding_is_no_difference(made):
    """Half of each gradient and norm still is: the twin of a tolerance that everything meets."""
    model, loss_fn, data = made()
    assert NetworkSource(model, loss_fn, data).method == "program"

    class Wrong(ProgramEngine):
        def _chunk_sums(self, chunk, rule, groups):
            sums, norms = super()._chunk_sums(chunk, rule, groups)
            return [{name: 0.5 * one for name, one in of_array.items()} for of_array in sums], 0.5 * norms

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine_choice, "ProgramEngine", Wrong)
        with pytest.raises(UnsupportedModuleError, match="does not give the gradient"):
            NetworkSource(model, loss_fn, data)


def test_class_labels_in_bytes_are_named():
    """F.cross_entropy takes them outside of a program."""
    data = torch.randn(9, 3), torch.zeros(9, dtype=torch.uint8)
    with pytest.raises(UnsupportedModuleError, match=r"class labels.* are neither int64 nor int32: write .long\(\)"):
        NetworkSource(torch.nn.Linear(3, 2), cross_entropy, data)


class Given:
    """An engine whose sums are given, of one parameter and one row."""

    def __init__(self, gradient):
        self.params = {"w": torch.tensor([gradient])}
        self.shapes, self._device = {"w": torch.Size([1])}, torch.device("cpu")

    def weighted_sums(self, rule, groups):
        return SimpleNamespace(values=[self.params], norms=self.params["w"].abs().reshape(1, 1))


@pytest.mark.parametrize(
    ("small_row", "named"),
    [
        ((3e-10, 1e-10), False),
        ((3e-3, 1e-3), True),
        ((torch.nan, 1e-10), True),
        ((torch.inf, 1e-10), True),
        ((1.0, torch.nan), False),
    ],
)
def test_what_rounding_makes_of_a_row_without_a_gradient_is_no_difference(small_row, named):
    """Queries alone are trained, and one synthetic row has equal tokens: its gradient is nothing but rounding."""
    pairs = [(Given(1.0), Given(1.0)), tuple(map(Given, small_row))]
    assert engine_choice._difference(pairs) == "it does not give the gradient of 'w' on synthetic rows" * named
