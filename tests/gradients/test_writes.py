"""User code gets copies: nothing that it writes stays in the model, whoever raises."""

import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.scan import Scan
from tests.gradients.hostile import FunctionalMaxNorm, MaxNorm
from tests.gradients.ordinary import LENGTH, WIDTH, Model, loss, out

ROWS = 4
METHODS = ["program", "loop"]


def records():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, LENGTH, WIDTH, generator=generator), torch.randn(ROWS, generator=generator)


@pytest.fixture
def unscanned(monkeypatch):
    """Without the trials on synthetic rows: they help a user, and no guarantee rests on them."""
    monkeypatch.setattr(Scan, "check", lambda self: self)


def sums(source, rows=range(ROWS)):
    names = {"all": tuple(source.shapes)}
    params = {name: p for name, p in source.model.named_parameters() if p.requires_grad}
    engine = source.engine(params, np.array([*rows]), seed=5)
    return engine.weighted_sums(torch.ones_like, names).values[0]


def built(model, method, loss_fn=loss):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NetworkSource(model, loss_fn, records(), method=method, max_physical_batch_size=ROWS)


def as_it_is(model):
    tensors = {name: (id(t), t.data_ptr(), t.detach().clone()) for name, t in model.state_dict(keep_vars=True).items()}
    attributes = {name: sorted(vars(one)) for name, one in model.named_modules()}
    return tensors, attributes, {name: sorted(vars(t)) for name, t in model.state_dict(keep_vars=True).items()}


def assert_untouched(model, before):
    after = as_it_is(model)
    assert before[1:] == after[1:]
    assert before[0].keys() == after[0].keys()
    for name, (key, address, values) in before[0].items():
        assert (key, address) == after[0][name][:2], name
        assert torch.equal(values, after[0][name][2]), name
    assert all(p.grad is None for p in model.parameters())


def by_data(m, x):
    m.mean.data = x.detach().mean(dim=(0, 1))
    return out(m, x - m.mean)


def by_swap(m, x):
    torch.utils.swap_tensors(m.mean, x.detach().mean(dim=(0, 1)))
    return out(m, x - m.mean)


def by_grad(m, x):
    before = 0.0 if m.mean.grad is None else m.mean.grad
    m.mean.grad = x.detach().mean(dim=(0, 1))
    return out(m, x - before)


def by_an_attribute_of_a_tensor(m, x):
    before = getattr(m.mean, "last", 0.0)
    m.mean.last = float(x.detach().mean())
    return out(m, x - before)


@torch.jit.script
def jit_write(mean: torch.Tensor, x: torch.Tensor):
    mean.copy_(x.mean(dim=[0, 1]))
    return x - mean


def by_compiled_code(m, x):
    return out(m, jit_write(m.mean, x.detach()))


def by_a_new_buffer(m, x):
    m.register_buffer("seen", x.detach())
    return out(m, x)


def by_a_list(m, x):
    m.kept.append(x.detach())
    return out(m, x)


def by_a_parameter(m, x):
    with torch.no_grad():
        m.layer.weight.mul_(0.5)
        m.frozen.data.copy_(x.detach().mean(dim=(0, 1)))
    return out(m, x + m.frozen)


FORWARDS = [
    by_data,
    by_swap,
    by_grad,
    by_an_attribute_of_a_tensor,
    by_compiled_code,
    by_a_new_buffer,
    by_a_list,
    by_a_parameter,
]


def model_of(forward):
    torch.manual_seed(0)
    model = Model(forward, mean=torch.zeros(WIDTH))
    model.frozen = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("trials", ["scanned", "unscanned"])
def test_nothing_that_is_written_stays_in_the_model(forward, method, trials, request):
    if trials == "unscanned":
        request.getfixturevalue("unscanned")
    model = model_of(forward)
    before = as_it_is(model)
    with suppress(UnsupportedModuleError, RuntimeError):
        source = built(model, method)
        sums(source)
    assert_untouched(model, before)
    assert model.kept == []


@pytest.mark.usefixtures("unscanned")
@pytest.mark.parametrize("forward", [by_data, by_swap, by_grad, by_an_attribute_of_a_tensor, by_compiled_code])
def test_in_the_loop_no_record_meets_what_another_has_written(forward):
    """Where the loop serves such a model, each record has copies of its own."""
    try:
        source = built(model_of(forward), "loop")
        whole = sums(source)
    except UnsupportedModuleError:
        return
    single = [sums(source, [row]) for row in range(ROWS)]
    for name, total in whole.items():
        torch.testing.assert_close(total, sum(one[name] for one in single))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [MaxNorm, FunctionalMaxNorm])
@pytest.mark.parametrize("trials", ["scanned", "unscanned"])
def test_a_refused_embedding_is_not_rescaled(kind, method, trials, request):
    """Neither when the oracle is built, nor in a query that raises."""
    if trials == "unscanned":
        request.getfixturevalue("unscanned")
    model = kind()
    before = as_it_is(model)
    with suppress(UnsupportedModuleError):
        sums(built(model, method))
    assert_untouched(model, before)


@pytest.mark.usefixtures("unscanned")
def test_an_error_of_the_users_leaves_no_trace():
    def raises(m, x):
        m.mean.data = x.detach().mean(dim=(0, 1))
        m.kept.append(1)
        m.other = 3
        raise KeyError("mine")

    model = model_of(out)
    source = built(model, "loop")
    model.steps = raises
    before = as_it_is(model)
    with pytest.raises(KeyError, match="mine"):
        sums(source)
    assert_untouched(model, before)
    assert model.kept == []


# --- operators -------------------------------------------------------------------------------------------------------

LAST = [0.0]


@torch.library.custom_op("tacita_tests::less_the_last", mutates_args=())
def less_the_last(x: torch.Tensor) -> torch.Tensor:
    before, LAST[0] = LAST[0], float(x.mean())
    return x - before


@less_the_last.register_fake
def _(x):
    return torch.empty_like(x)


less_the_last.register_autograd(lambda ctx, grad: grad)


@torch.jit.script
def calls_it(x: torch.Tensor):
    return torch.ops.tacita_tests.less_the_last(x)


@pytest.mark.parametrize("call", [less_the_last, calls_it], ids=["plain", "compiled"])
def test_operators_of_unknown_origin_are_refused(call):
    """Nobody knows a batching rule of it, nor what it keeps; the loop is told by its gradients."""

    def forward(m, x):
        return out(m, call(x))

    with pytest.raises(UnsupportedModuleError, match=r"tacita_tests::less_the_last is not PyTorch's own|TorchScript"):
        built(model_of(forward), "program")
    with pytest.raises(UnsupportedModuleError, match=r"they keep something of them|TorchScript"):
        built(model_of(forward), "loop")


@pytest.mark.usefixtures("unscanned")
def test_memory_that_nobody_has_filled_holds_no_other_record():
    big = 10_000

    def forward(m, x):
        left = torch.empty(big)
        mean = left.clone().mean().item()
        left.fill_(1e6)
        return out(m, x + mean)

    source = built(model_of(forward), "loop")
    alone = sums(source, [1])
    for name, total in sums(source, [0, 1]).items():
        torch.testing.assert_close(total, sums(source, [0])[name] + alone[name])
