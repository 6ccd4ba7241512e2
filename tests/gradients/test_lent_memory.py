"""What a source lends to a model is memory that the model leaves as it is, however the data lie there."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource, lent_memory
from tacita.gradients.ghost.linear import LinearRule
from tacita.gradients.ghost.registry import RULES
from tacita.gradients.operators import declare_operator

ROWS = 6


@pytest.fixture(autouse=True)
def small_batches_are_lent(monkeypatch):
    monkeypatch.setattr(lent_memory, "LENT_FROM", 0)


def in_inference_mode():
    with torch.inference_mode():
        return torch.randn(ROWS, 4)


DATA = {
    "made in inference mode": in_inference_mode,
    "mirrored columns": lambda: torch.randn(ROWS, 4).numpy()[:, ::-1],
    "mirrored rows": lambda: torch.randn(ROWS, 4).numpy()[::-1],
    "a field of records": lambda: np.ones(ROWS, [("age", np.int8), ("x", np.float32, (4,))])["x"],
    "windows": lambda: torch.arange(9.0).unfold(0, 4, 1),
    "one row for all": lambda: torch.randn(1, 4).expand(ROWS, 4),
    "with a graph": lambda: torch.randn(ROWS, 4, requires_grad=True) * 2,
}


def squared(model, batch):
    return (model(batch[0].flatten(1)).squeeze(1) - batch[1]).square()


def total(data, loss_fn=squared, method="auto", indices=range(ROWS)):
    torch.manual_seed(0)
    source = NetworkSource(nn.Linear(data[0, :].size if isinstance(data, np.ndarray) else data[0].numel(), 1), loss_fn,
                           (data, torch.ones(len(data))), method=method)  # fmt: skip
    engine = source.engine(dict(source.model.named_parameters()), np.array(indices), query=0)
    return engine.weighted_sums(torch.ones_like, {"all": ("weight",)}).values[0]["weight"]


@pytest.mark.parametrize("kind", DATA)
def test_rows_side_by_side_serve_like_any_rows(kind):
    data = DATA[kind]()
    torch.testing.assert_close(total(data), total(data, method="loop"))


@pytest.mark.parametrize("rows", [1, 2, ROWS])
def test_a_model_may_write_what_is_a_copy_in_memory_of_any_order(rows):
    def loss_fn(model, batch):
        return squared(model, (batch[0].permute(0, 2, 3, 1).contiguous().relu_(), batch[1]))

    images = torch.randn(ROWS, 5, 5, 3)
    before, data = images.clone(), images.permute(0, 3, 1, 2)
    found = total(data, loss_fn, indices=range(rows))
    assert torch.equal(images, before)
    torch.testing.assert_close(found, total(data, loss_fn, "loop", range(rows)))


declare_operator("tacita_tests::relu_of_data")


@torch.library.custom_op("tacita_tests::relu_of_data", mutates_args=())
def relu_of_data(x: torch.Tensor) -> torch.Tensor:
    return x.detach().data.clamp_(min=0).clone()  # writes what it does not declare


@relu_of_data.register_fake
def _(x):
    return torch.empty_like(x)


def in_an_operator(x):
    return relu_of_data(x)


def without_versions(x):
    with torch.inference_mode():
        x.relu_()
    return x


@pytest.mark.parametrize("write", [in_an_operator, without_versions])
def test_what_may_write_without_being_counted_gets_a_copy(write):
    data = torch.randn(ROWS, 4)
    before = data.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vmap, which calls an operator of a user's own once a record
        total(data, lambda model, batch: squared(model, (write(batch[0]), batch[1])))
    assert torch.equal(data, before)


class WrittenBackward(torch.autograd.Function):
    """Writes what it was given, in the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        return None, grad * x.mul_(2.0)


def in_inference(x):
    with torch.inference_mode():
        x.mul_(2.0)
    return x


def by_list(x):
    torch._foreach_mul_([x], 2.0)
    return x


def by_out(x):
    torch.mul(x, 2.0, out=x)
    return x


def by_running_mean(x):
    nn.functional.batch_norm(torch.ones(3, 4), x.reshape(-1), torch.ones(4), training=True)
    return x


def by_two_outs(x):
    torch.max(x, dim=0, out=(x[0], torch.empty(4, dtype=torch.int64)))
    return x


WRITES = {
    "running statistics": by_running_mean,
    "method": lambda x: x.mul_(2.0),
    "function": torch.relu_,
    "layer": nn.ReLU(inplace=True),
    "dropout": lambda x: nn.functional.dropout(x, 0.5, inplace=True),
    "item": lambda x: x.__setitem__((slice(None), 0), 1.0) or x,
    "view": lambda x: x.unflatten(1, (2, 2)).neg_().flatten(1),
    "detached": lambda x: x.detach().zero_() + x,
    "overload": lambda x: torch.ops.aten.mul_.Tensor(x, torch.tensor(2.0)),
    "inference": in_inference,
    "operator of a user's own": relu_of_data,
}
UNKNOWN_TO_VMAP = {"data": lambda x: x.data.zero_() + x, "out": by_out, "list": by_list}


def reading(write):
    return lambda model, batch: squared(model, (write(batch[0]), batch[1]))


def written_later(data, loss):
    """Make two calls, the second of which writes."""
    writes = []

    def loss_fn(model, batch):
        return (loss if writes else squared)(model, batch)

    source = NetworkSource(nn.Linear(4, 1), loss_fn, (data, torch.ones(ROWS)))
    params = dict(source.model.named_parameters())
    for query in range(2):
        source.engine(params, np.arange(ROWS), query=query).weighted_sums(torch.ones_like, {"all": ("weight",)})
        writes.append(True)


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_is_written_in_some_calls_only_is_refused_before_it_is_written(kind):
    data = torch.randn(ROWS, 4)
    before = data.clone()
    with pytest.raises(UnsupportedModuleError, match=r"x\.clone"):
        written_later(data, reading(WRITES[kind]))
    assert torch.equal(data, before)


def test_what_the_backward_pass_writes_is_refused_too():
    data = torch.randn(ROWS, 4)
    before = data.clone()
    with pytest.raises(UnsupportedModuleError, match=r"x\.clone"):
        written_later(data, lambda model, batch: WrittenBackward.apply(batch[0][:, 0], squared(model, batch)))
    assert torch.equal(data, before)


@pytest.mark.parametrize("kind", UNKNOWN_TO_VMAP)
def test_vmap_refuses_the_rest(kind):
    data = torch.randn(ROWS, 4)
    before = data.clone()
    with pytest.raises(RuntimeError, match=r"under vmap|[Bb]atching rule not implemented"):
        written_later(data, reading(UNKNOWN_TO_VMAP[kind]))
    assert torch.equal(data, before)


def test_a_small_batch_is_copied(monkeypatch):
    monkeypatch.undo()
    data = torch.randn(ROWS, 4)
    before = data.clone()
    written_later(data, reading(torch.relu_))
    assert torch.equal(data, before)


@pytest.mark.parametrize("write", [by_out, by_list, by_two_outs], ids=["out", "list", "several"])
def test_outs_and_lists_are_watched_without_vmap_too(write):
    """What ``vmap`` refuses today is refused by the watch itself."""
    data = torch.randn(ROWS, 4)
    before = data.clone()
    with lent_memory.nothing_lent_is_written([data]):
        assert torch.equal(by_out(data.clone()), 2 * data)  # memory of its own
        with pytest.raises(UnsupportedModuleError, match=r"x\.clone"):
            write(data)
    assert torch.equal(data, before)


# --- after the backward pass -----------------------------------------------------------------------------------------


class Echo(torch.autograd.Function):
    """Returns what it was given beside its input as the gradient of that."""

    generate_vmap_rule = True

    @staticmethod
    def forward(found, x):
        return found.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0], None


def echoing(model, batch):
    return Echo.apply(model(batch[0]), batch[0]).flatten(1).sum(dim=1)


def added(model, batch):
    return Echo.apply(batch[0] + model.bias, batch[0]).flatten(1).sum(dim=1)


def engine_of(model, loss_fn, x, method="ghost"):
    source = NetworkSource(model, loss_fn, (x, torch.ones(len(x))), method=method)
    return source.engine(dict(model.named_parameters()), np.arange(len(x)), query=0)


ECHOED = {
    "linear": (lambda: nn.Linear(4, 4), (4,)),
    "linear of positions": (lambda: nn.Linear(4, 4), (3, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), (4,)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5)),
    "convolution": (lambda: nn.Conv1d(4, 4, 3, padding=1), (4, 5)),
}


@pytest.mark.parametrize("kind", ECHOED)
def test_no_rule_writes_a_gradient_that_is_the_batch_itself(kind):
    make, shape = ECHOED[kind]
    model, x = make(), torch.randn(ROWS, *shape)
    before, groups = x.clone(), {"all": tuple(dict(model.named_parameters()))}
    engine, definition = engine_of(model, echoing, x), engine_of(model, echoing, x.clone(), "loop")
    found = engine.weighted_sums(lambda norms: norms.reciprocal(), groups)
    for values in (found.values, engine.weighted_sums(torch.ones_like, groups).values, [*engine.materialise()]):
        assert values
    engine.norms(groups)
    assert torch.equal(x, before)
    expected = definition.weighted_sums(lambda norms: norms.reciprocal(), groups)
    for name, value in expected.values[0].items():
        torch.testing.assert_close(found.values[0][name], value, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_handed_out_are_not_the_batch_itself():
    model, x = nn.Linear(4, 4), torch.randn(ROWS, 4)
    before = x.clone()
    (grads,) = engine_of(model, added, x).materialise()
    torch.testing.assert_close(grads["bias"], x)
    grads["bias"].zero_()
    assert torch.equal(x, before)


WRITING = {
    "split": lambda use: use.x.relu_(),
    "grads": lambda use: use.x.mul_(2.0),
    "squared_norms": lambda use: use.grad.mul_(2.0),
    "sums": lambda use: use.x.zero_(),
}


@pytest.mark.parametrize("method", WRITING)
def test_a_rule_of_the_users_own_never_writes_the_data(method, monkeypatch):
    later = []

    def writing(self, use, *given, **switches):
        if later:  # the trial has seen no writing, so that memory is lent
            WRITING[method](use)
        return getattr(LinearRule, method)(self, use, *given, **switches)

    monkeypatch.setitem(RULES, nn.functional.linear, type("Writing", (LinearRule,), {method: writing})())
    x = torch.randn(ROWS, 4)
    before, engine = x.clone(), engine_of(nn.Linear(4, 4), echoing, x)
    later.append(True)

    def both():
        return engine.weighted_sums(torch.ones_like, {"all": ("weight", "bias")}), [*engine.materialise()]

    with pytest.raises(UnsupportedModuleError, match="written in place"):
        both()
    assert torch.equal(x, before)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return nn.functional.linear(x, self.weight.t())


class Twice(nn.Linear):
    def forward(self, x):
        return super().forward(x) + super().forward(x)


@pytest.mark.parametrize(
    ("kind", "method"), [(Turned, "grads"), (Turned, "squared_norms"), (Turned, "sums"), (Twice, "merged")]
)
def test_a_rule_of_the_users_own_never_writes_the_data_for_a_rule_of_ours(kind, method, monkeypatch):
    """Ours passes calls on where a weight is turned; calls of a layer that is used twice are merged before."""
    later = []

    def writing(self, use, *given, **switches):
        for one in use if isinstance(use, list) else [use]:
            if later:
                one.x.mul_(2.0)
        return getattr(LinearRule, method)(self, use, *given, **switches)

    monkeypatch.setitem(RULES, nn.functional.linear, type("Writing", (LinearRule,), {method: writing})())
    x, model = torch.randn(ROWS, 4), kind() if kind is Turned else kind(4, 4)
    before, engine = x.clone(), engine_of(model, lambda model, batch: model(batch[0]).square().sum(dim=1), x)
    later.append(True)

    def both():
        return engine.weighted_sums(torch.ones_like, {"all": ("weight",)}), [*engine.materialise()]

    with pytest.raises(UnsupportedModuleError, match="written in place"):
        both()
    assert torch.equal(x, before)
