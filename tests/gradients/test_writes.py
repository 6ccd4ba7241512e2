"""User code gets copies: nothing that it writes stays in the model, whoever raises; other writes are seen."""

import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.scan import Scan
from tacita.gradients.watched import RemembersError, declare_operator, operators
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


# --- outside of the model --------------------------------------------------------------------------------------------


def outside(write):
    """A loss that writes a tensor of its closure."""
    kept = torch.zeros(WIDTH), torch.ones(WIDTH)

    def loss_fn(model, batch):
        write(batch[0].detach(), *kept)
        return loss(model, (batch[0] - kept[0], batch[1]))

    return loss_fn, kept


WRITES = {
    "data": lambda x, mean, var: setattr(mean, "data", x.mean(dim=(0, 1))),
    "in place, by data": lambda x, mean, var: mean.data.copy_(x.mean(dim=(0, 1))),
    "running statistics": lambda x, mean, var: F.batch_norm(x.flatten(0, 1), mean, var, training=True),
    "compiled code": lambda x, mean, var: jit_write(mean, x),
    "max_norm": lambda x, mean, var: F.embedding(
        (x[:, 0, :1] > 0).long(), mean.view(-1, 2).add_(1), max_norm=0.1 * float(x.mean().abs())
    ),
    "an array": lambda x, mean, var: np.copyto(mean.numpy(), x.mean(dim=(0, 1)).numpy()),
}


@pytest.mark.usefixtures("unscanned")
@pytest.mark.parametrize("name", WRITES)
def test_what_the_loop_writes_outside_of_the_model_is_seen_and_put_right(name):
    loss_fn, kept = outside(WRITES[name])
    source = built(model_of(out), "loop")
    source.loss_fn = loss_fn
    with pytest.raises(RemembersError):
        sums(source)
    assert torch.equal(kept[0], torch.zeros(WIDTH))
    assert torch.equal(kept[1], torch.ones(WIDTH))


@pytest.mark.usefixtures("unscanned")
def test_numbers_that_the_loop_keeps_are_seen():
    kept = {"mean": 0.0}

    def loss_fn(model, batch):
        losses = loss(model, (batch[0] - kept["mean"], batch[1]))
        kept["mean"] = float(batch[0].mean())
        return losses

    source = built(model_of(out), "loop")
    source.loss_fn = loss_fn
    with pytest.raises(RemembersError, match="the next record would meet it"):
        sums(source)


class KeepsInBackward(torch.autograd.Function):
    kept: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        KeepsInBackward.kept.append(float(grad.sum()))
        return grad


@pytest.mark.usefixtures("unscanned")
def test_what_a_backward_pass_keeps_is_seen():
    def loss_fn(model, batch):
        return KeepsInBackward.apply(loss(model, batch)) * KEEPS(KeepsInBackward)

    source = built(model_of(out), "loop")
    source.loss_fn = loss_fn
    with pytest.raises(RemembersError):
        sums(source)
    KeepsInBackward.kept.clear()


def KEEPS(kind):
    return 1.0 + len(kind.kept)


@pytest.mark.usefixtures("unscanned")
def test_a_model_that_was_refused_in_a_query_is_refused_from_then_on():
    """What it keeps may be where nobody can put it right."""
    kept = []

    def loss_fn(model, batch):
        kept.append(float(batch[0].mean()))
        return loss(model, (batch[0] - kept[0], batch[1]))

    source = built(model_of(out), "loop")
    source.loss_fn = loss_fn
    for _ in range(2):
        with pytest.raises(RemembersError):
            sums(source)
    assert len(kept) == 1


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


@pytest.fixture
def undeclared(monkeypatch):
    monkeypatch.setattr(operators, "_DECLARED", set(operators._DECLARED))


@pytest.mark.usefixtures("undeclared")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("call", [less_the_last, calls_it], ids=["plain", "compiled"])
def test_operators_of_unknown_origin_are_refused_unless_declared(method, call):
    def forward(m, x):
        return out(m, call(x))

    words = (
        "TorchScript"
        if (call, method) == (calls_it, "loop")
        else r"tacita_tests::less_the_last is not PyTorch's own.*declare"
    )
    with pytest.raises(UnsupportedModuleError, match=words):
        sums(built(model_of(forward), method))
    declare_operator("tacita_tests::less_the_last")
    if method == "loop" and call is less_the_last:
        sums(built(model_of(lambda m, x: out(m, x + 0 * call(x))), method))
    elif method == "program":  # nobody knows a batching rule of it
        with pytest.raises(UnsupportedModuleError, match=words):
            built(model_of(forward), method)


def test_a_declared_name_has_a_namespace():
    with pytest.raises(ValueError, match="namespace::operator"):
        declare_operator("less_the_last")


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
