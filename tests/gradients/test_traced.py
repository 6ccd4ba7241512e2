"""Traced steps give what the ghost engine gives, and one line serves every batch."""

import copy
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tacita
from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource, lent_memory, traced
from tacita.gradients.operators import declare_operator
from tacita.gradients.traced_step import TracedStep, weights_come_in
from tests.gradients.test_coverage import CASES, made

ROWS = 40
CLIP = FlatClipper(max_grad_norm=1.0)


def rows(count=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Scaled(nn.Module):
    """A network with everything that a step reads: a buffer, a frozen parameter, a plain number, a submodule."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.zeros(8))
        self.gain = nn.Parameter(torch.ones(8), requires_grad=False)
        self.power = 1.0
        self.between = nn.Tanh()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        inner = self.between(self.first(x)) * self.gain + self.shift
        return self.last(self.drop(inner)) * self.power


def engine(source, numbers=None, query=0):
    params = {name: p for name, p in source.model.named_parameters() if p.requires_grad}
    return source.engine(params, np.arange(source.num_rows) if numbers is None else numbers, query=query, seed=5)


def sums(source, numbers=None, clipper=CLIP, rule=None):
    return engine(source, numbers).weighted_sums(rule or clipper.weights, clipper.groups(source.shapes))


def pair(model, loss_fn=cross_entropy, data=None, **options):
    """The same network under both methods."""
    data = data or rows()
    options.setdefault("max_physical_batch_size", len(data[0]))
    return [NetworkSource(model, loss_fn, data, method=method, **options) for method in ("ghost", "traced")]


def same(found, expected, **tolerance):
    exact = tolerance or {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(found.norms, expected.norms, equal_nan=True, **exact)
    for one, other in zip(found.values, expected.values, strict=True):
        torch.testing.assert_close(dict(one), dict(other), **exact)


ABOUT = {"rtol": 2e-5, "atol": 2e-5}


ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # of float64


@pytest.mark.parametrize(("name", "case"), CASES.items(), ids=CASES)
@pytest.mark.filterwarnings("ignore")
def test_it_serves_what_the_ghost_engine_serves(name, case):
    model, data = made(case)
    ghost, fast = pair(model, case.loss, data)
    assert fast.method == "traced"
    # Where a tensor has no values, PyTorch gives an axis of length 1 another stride than it gives where there are
    # some. A product without a bias is then a bmm in the line, and an mm in the ghost engine (Llama, T5).
    same(sums(fast), sums(ghost), **(ROUNDING if name.startswith(("transformers", "peft")) else {}))


@pytest.mark.parametrize("count", [1, 2, 16, 39, ROWS])
def test_rows_are_added_that_count_for_nothing(count):
    ghost, fast = pair(Scaled())
    numbers = np.arange(count)
    same(sums(fast, numbers), sums(ghost, numbers), **ABOUT)


@pytest.mark.parametrize("size", [1, 7, 40, 64])
def test_every_chunk_goes_by_the_one_line(size):
    ghost, fast = pair(Scaled(), max_physical_batch_size=size)
    for count in (0, 1, 7, 8, 40):
        same(sums(fast, np.arange(count)), sums(ghost, np.arange(count)), **ABOUT)
    assert len(fast._lines._lines) == 1


def test_the_size_has_to_be_given_before_the_trial():
    def loss_fn(model, batch):
        raise AssertionError("the model is not tried")

    with pytest.raises(ValueError, match="needs max_physical_batch_size"):
        NetworkSource(Scaled(), loss_fn, rows(), method="traced")


def test_a_loss_that_no_parameter_enters():
    ghost, fast = pair(Scaled(), lambda model, batch: batch[0].sum(1))
    same(sums(fast), sums(ghost))
    assert not sums(fast).norms.any()


def test_a_line_is_made_once(monkeypatch):
    _, fast = pair(Scaled())
    sums(fast)
    monkeypatch.setattr(traced, "trace", None)
    sums(fast, np.arange(ROWS)[::-1])
    engine(fast).norms(CLIP.groups(fast.shapes))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_rows_that_are_not_finite_count_for_nothing(value):
    data = rows()
    data[0][3, 1] = value
    ghost, fast = pair(Scaled(), data=data)
    same(sums(fast), sums(ghost), **ABOUT)
    assert sums(fast).values[0]["first.weight"].isfinite().all()
    same(sums(fast, np.arange(4, 20)), sums(ghost, np.arange(4, 20)), **ABOUT)  # without the row


def test_a_first_row_that_is_not_finite_is_not_added_again():
    data = rows()
    data[0][0] = torch.nan
    ghost, fast = pair(Scaled(), data=data)
    same(sums(fast, np.arange(33)), sums(ghost, np.arange(33)), **ABOUT)


def test_weights_above_one():
    ghost, fast = pair(Scaled())
    same(*(sums(one, rule=lambda norms: torch.full_like(norms, 2.0)) for one in (fast, ghost)))


def test_a_norm_that_its_gram_matrix_hides_stays_an_upper_bound():
    class Cancels(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(30, 30)

        def forward(self, x):
            return (self.layer(x) * torch.tensor([1.0, -1.0])[:, None]).sum((1, 2))

    torch.manual_seed(0)
    one = 100 * torch.randn(16, 1, 30)
    data = (torch.cat([one, one + 1e-4 * torch.randn(16, 1, 30)], dim=1),)
    ghost, fast = pair(Cancels(), lambda model, batch: model(batch[0]), data)
    loose, tight = sums(fast).norms, sums(ghost).norms
    assert (loose >= tight * (1 - 1e-9)).all()
    assert (loose > 1.5 * tight).any(), "the case is there"


def test_several_weight_arrays_and_groups():
    clipper = PerLayerClipper(max_grad_norm=1.0)
    ghost, fast = pair(Scaled())

    def both(norms):
        return clipper.weights(norms), 0.5 * clipper.weights(norms)

    same(sums(fast, clipper=clipper, rule=both), sums(ghost, clipper=clipper, rule=both))
    same(sums(fast, clipper=clipper), sums(ghost, clipper=clipper))
    same(sums(fast), sums(ghost))


def test_dropout_is_drawn_anew():
    model = Scaled()
    model.drop.p = 0.5
    ghost, fast = pair(model)
    same(sums(fast), sums(ghost))
    params = dict(engine(fast).params)
    one, other = (fast.engine(params, np.arange(ROWS), seed=k).norms(CLIP.groups(fast.shapes)) for k in (1, 2))
    assert not torch.equal(one, other)


def change_a_number(model):
    model.power = 3.0


def change_a_buffer(model):
    model.shift.add_(1.0)


def replace_a_buffer(model):
    model.shift = torch.ones(8)


def change_what_is_frozen(model):
    with torch.no_grad():
        model.gain.mul_(2.0)


def replace_what_is_frozen(model):
    model.gain = nn.Parameter(3 * torch.ones(8), requires_grad=False)


def replace_a_module(model):
    model.between = nn.ReLU()


def change_a_parameter(model):
    with torch.no_grad():
        model.first.weight.mul_(2.0)


def change_a_module(model):
    model.drop.p = 0.9


def add_a_hook(model):
    model.between.register_forward_hook(lambda module, given, result: result * 2)


def add_a_hook_before(model):
    model.between.register_forward_pre_hook(lambda module, given: (given[0] * 2,))


def change_a_stride(model):
    model.first.weight.data = model.first.weight.data.T.contiguous().T


def change_a_dtype(model):
    model.shift = model.shift.long()


def change_the_mode(model):
    model.drop.p = 0.5
    model.eval()


@pytest.mark.parametrize(
    "change",
    [
        change_a_number,
        change_a_buffer,
        replace_a_buffer,
        change_what_is_frozen,
        replace_what_is_frozen,
        replace_a_module,
        change_a_parameter,
        change_a_module,
        add_a_hook,
        add_a_hook_before,
        change_a_stride,
        change_a_dtype,
        change_the_mode,
    ],
)
def test_what_changes_is_seen(change):
    torch.manual_seed(0)
    model = Scaled()
    ghost, fast = pair(model)
    before = sums(fast)
    change(model)
    after = sums(fast)
    same(after, sums(ghost))
    alike = change in {change_the_mode, change_a_stride, change_a_dtype}
    assert alike or not torch.equal(before.norms, after.norms)


def test_a_hook_of_all_modules_is_seen():
    ghost, fast = pair(Scaled())
    before = sums(fast)
    kept = nn.modules.module.register_module_forward_hook(lambda module, given, result: result * 2)
    try:
        same(sums(fast), sums(ghost))
        assert not torch.equal(before.norms, sums(fast).norms)
    finally:
        kept.remove()
    same(sums(fast), before)


def test_another_default_dtype_is_seen():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * torch.finfo(torch.get_default_dtype()).bits

    ghost, fast = pair(Scaled(), loss_fn)
    before = sums(fast)
    torch.set_default_dtype(torch.float64)
    try:
        same(sums(fast), sums(ghost))
        assert not torch.equal(before.norms, sums(fast).norms)
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_tie_is_seen():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
            self.last.weight = self.one.weight
            self.last.bias = None

        def forward(self, x):
            return self.last(self.other(self.one(x)).tanh())

    torch.manual_seed(0)
    model = Tied()
    ghost, fast = pair(model)
    before = sums(fast)
    model.last.weight = model.other.weight
    same(sums(fast), sums(ghost), **ABOUT)
    assert not torch.equal(before.norms, sums(fast).norms)


def test_what_the_loss_refers_to_is_seen():
    model, weights, factor = Scaled(), torch.ones(3), 1.0

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], weight=weights * 2, reduction="none") * factor

    ghost, fast = pair(model, loss_fn)
    before = sums(fast).norms
    factor = 5.0
    same(sums(fast), sums(ghost))
    weights[1] = 7.0
    same(sums(fast), sums(ghost))
    weights = torch.tensor([3.0, 2.0, 1.0])
    same(sums(fast), sums(ghost))
    assert not torch.allclose(before, sums(fast).norms)


def test_what_a_container_of_the_loss_holds_is_seen():
    held = {"weights": torch.ones(3)}

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], weight=held["weights"], reduction="none")

    ghost, fast = pair(Scaled(), loss_fn)
    before = sums(fast).norms
    held["weights"] = torch.tensor([3.0, 2.0, 1.0])
    same(sums(fast), sums(ghost))
    assert not torch.allclose(before, sums(fast).norms)


class Losses:
    """A loss as an object, whose method is the loss function."""

    def __init__(self):
        self.factor = 1.0

    def __call__(self, model, batch):
        return self.factor * cross_entropy(model, batch)

    def method(self, model, batch):
        return self(model, batch)


@pytest.mark.parametrize("of", [lambda owner: owner, lambda owner: owner.method], ids=["object", "method"])
def test_the_fields_of_a_loss_object_are_seen(of):
    owner = Losses()
    ghost, fast = pair(Scaled(), of(owner))
    sums(fast)
    owner.factor = 4.0
    same(sums(fast), sums(ghost))


def swap_a_hook(model):
    assert model.between._forward_hooks
    model.between._forward_hooks.popitem()
    model.between.register_forward_hook(lambda module, given, result: result * 3)


def swap_a_hook_before(model):
    model.between._forward_pre_hooks.popitem()
    model.between.register_forward_pre_hook(lambda module, given: (given[0] * 3,))


def change_a_plain_tensor(model):
    model.fixed.mul_(5.0)


def change_an_entry(model):
    model.scaling["default"] = 4.0


def change_a_tensor_in_a_list(model):
    model.listed[0].mul_(5.0)


@pytest.mark.parametrize(
    "change", [swap_a_hook, swap_a_hook_before, change_a_plain_tensor, change_an_entry, change_a_tensor_in_a_list]
)
def test_swaps_are_seen(change):
    class Hooked(Scaled):
        def __init__(self):
            super().__init__()
            self.fixed, self.listed, self.scaling = torch.tensor(1.0), [torch.tensor(1.0)], {"default": 1.0}
            self.between.register_forward_hook(lambda module, given, result: result * 2)
            self.between.register_forward_pre_hook(lambda module, given: (given[0] / 2,))

        def forward(self, x):
            return super().forward(x) * float(self.fixed) * float(self.listed[0]) * self.scaling["default"]

    torch.manual_seed(0)
    model = Hooked()
    ghost, fast = pair(model)
    before = sums(fast)
    change(model)
    same(sums(fast), sums(ghost))
    assert not torch.equal(before.norms, sums(fast).norms)


class Configured(nn.Module):
    """A model that reads what no comparison sees: a field of an object."""

    def __init__(self):
        super().__init__()
        self.layer, self.config = nn.Linear(6, 3), SimpleNamespace(sign=SimpleNamespace(value=1.0))

    def forward(self, x):
        return self.layer(x) * self.config.sign.value


def moved(row, change):
    """How far one record more moves the second query, after a change between the queries."""
    data = rows(ROWS + 1)
    if row is not None:
        data[0][ROWS] = row
    found = []
    for count in (ROWS, ROWS + 1):
        torch.manual_seed(0)
        model = Configured()
        source = NetworkSource(model, cross_entropy, data, method="traced", max_physical_batch_size=32)
        sums(source, np.arange(ROWS if change else 0))  # the first query of one world may be empty
        model.config.sign.value = -1.0
        found.append(sums(source, np.arange(count)).values[0])
    return torch.cat([(a - found[1][name]).flatten() for name, a in found[0].items()]).norm().item()


@pytest.mark.parametrize("row", [None, torch.nan, 1e30], ids=str)
@pytest.mark.parametrize("change", [True, False])
def test_what_is_not_seen_is_the_same_for_all_batches(row, change):
    assert moved(row, change) <= 1.0001


def test_an_empty_query_makes_the_line_too():
    _, fast = pair(Scaled())
    sums(fast, np.arange(0))
    assert len(fast._lines._lines) == 1


def test_memory_that_an_operator_shares_unannounced_is_not_written():
    class Splits(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            first, second = x.unsafe_chunk(2, -1)
            first.mul_(2.0)
            return self.layer(first + second)

    with pytest.raises(UnsupportedModuleError, match="writes in place a tensor that it was given"):
        pair(Splits())


HALF = torch.ones(4)


declare_operator("tacita_tests::doubled")


@torch.library.custom_op("tacita_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def writes_a_constant(inputs, weights):
    part = HALF.unsafe_chunk(2)[0]  # an operator that shares memory unannounced
    part.mul_(0.5)
    return [inputs[0], part * weights_come_in(weights[0]), part * weights_come_in(weights[0])]


def calls_an_operator_of_its_own(inputs, weights):
    one = doubled(inputs[0])
    return [one, one * weights_come_in(weights[0]), one * weights_come_in(weights[0])]


def reads_the_other_sums(inputs, weights):
    plain = inputs[0] * weights_come_in(weights[0])
    return [inputs[0], plain, plain * weights_come_in(weights[0])]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (writes_a_constant, "writes in place"),
        (calls_an_operator_of_its_own, "no operator of PyTorch"),
        (reads_the_other_sums, "read what those without"),
    ],
)
def test_a_step_that_cannot_be_a_line_is_refused(function, words):
    with pytest.raises(UnsupportedModuleError, match=words):
        TracedStep(function, [torch.ones(2)], [torch.ones(2)], 1)


def weighs(inputs, weights):
    return [inputs[0], inputs[1] * weights_come_in(weights[0]), inputs[1] * weights_come_in(weights[0])]


def test_records_of_another_shape_or_dtype_are_refused():
    """Operators would take most of them, in another precision than the norms' bounds are for."""
    inputs = [torch.ones(2), torch.ones(2, dtype=torch.int64)]
    step = TracedStep(weighs, inputs, [torch.ones(2)], 1)
    step.begin(inputs)
    for number, one in enumerate(inputs):
        for other in (torch.ones(3), one[:, None], one.double(), one.half(), one.int()):
            with pytest.raises(UnsupportedModuleError, match="records of one shape and dtype"):
                step.begin([*inputs[:number], other, *inputs[number + 1 :]])


def test_large_batches_are_lent_and_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(lent_memory, "LENT_FROM", 0)
    data = rows()
    before = [one.clone() for one in data]
    ghost, fast = pair(Scaled(), data=data)
    assert [lent for _, _, lent in fast.read(np.arange(ROWS), None, 0)] == [True]
    same(sums(fast), sums(ghost))
    assert all(map(torch.equal, data, before))


def test_lent_memory_is_looked_at_before_it_is_written():
    def function(inputs, weights):
        norms = (inputs[0] * 1).mul_(2.0)
        return [norms, *[(norms * weights_come_in(weights[0])).sum() for _ in range(2)]]

    given, weight = torch.ones(3), torch.ones(3)
    step = TracedStep(function, [given], [weight], 1)
    assert step.begin([given], lent=True).sums([weight], masked=False) == [torch.tensor(6.0)]
    (copies, *others), *rest = step._parts
    step._parts = [[copies._replace(function=lambda one, *_: one), *others], *rest]  # an operator shares unannounced
    with pytest.raises(UnsupportedModuleError, match="is written in place"):
        step.begin([given], lent=True)
    assert torch.equal(given, torch.ones(3))


class Recurrent(nn.Module):
    """PyTorch's recurrent layers keep a list of their weights, which a forward pass with other tensors renews."""

    def __init__(self):
        super().__init__()
        self.steps, self.last = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.steps(x[:, None])[0][:, -1])


def test_a_recurrent_network_has_one_line_and_keeps_its_weights(monkeypatch):
    model = Recurrent()
    ghost, fast = pair(model)
    model(rows()[0])
    listed = [*model.steps._flat_weights]
    sums(fast)
    monkeypatch.setattr(traced, "trace", None)
    for _ in range(2):
        cross_entropy(model, rows()).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        same(sums(fast), sums(ghost), **ABOUT)
    assert all(one is other for one, other in zip(model.steps._flat_weights, listed, strict=True))


def test_submodules_that_change_places_are_seen():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.kinds = nn.Linear(6, 3), nn.ModuleDict({"one": nn.Tanh(), "other": nn.ReLU()})

        def forward(self, x):
            return self.kinds["one"](self.layer(x))

    torch.manual_seed(0)
    model = Named()
    ghost, fast = pair(model)
    before = sums(fast)
    model.kinds._modules = dict(zip(("other", "one"), model.kinds._modules.values(), strict=True))
    same(sums(fast), sums(ghost))
    assert not torch.equal(before.norms, sums(fast).norms)


def test_threads_take_turns_in_tracing():
    def work(k):
        torch.manual_seed(k)
        ghost, fast = pair(Scaled(), data=rows(seed=k))
        return sums(fast), sums(ghost)

    with ThreadPoolExecutor(3) as pool:
        for fast, ghost in pool.map(work, range(6)):
            same(fast, ghost)
    assert not torch.fx._symbolic_trace._is_fx_tracing_flag


def test_a_source_can_be_copied():
    _, fast = pair(Scaled())
    expected = sums(fast)
    same(sums(copy.deepcopy(fast)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast_around_a_query_is_seen(dtype):
    ghost, fast = pair(Scaled())
    plain = sums(fast)
    with torch.autocast("cpu", dtype):
        found = sums(fast)
        same(found, sums(ghost))
    assert not torch.equal(found.norms, plain.norms)
    same(sums(fast), plain)


DRAWS = {
    "NumPy": lambda: float(np.random.rand()),
    "PyTorch": lambda: torch.rand(1),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_numbers_that_would_be_drawn_once_are_refused(draw):
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * draw()

    with pytest.raises(UnsupportedModuleError, match="draws numbers that do not come from a tensor of the batch"):
        NetworkSource(Scaled(), loss_fn, rows(), method="traced", max_physical_batch_size=ROWS)
    with pytest.warns(UserWarning, match="draws numbers that do not come from a tensor of the batch"):
        assert NetworkSource(Scaled(), loss_fn, rows()).method == "loop"


def draw_and_wait(stop):
    while not stop.wait(0.001):
        random.random()


@contextmanager
def beside(work):
    """Another thread, which runs ``work(stop)`` meanwhile."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def another_thread_draws():
    with beside(draw_and_wait):
        yield


@pytest.fixture
def another_thread_waits():
    with beside(threading.Event.wait):
        yield


@pytest.mark.usefixtures("another_thread_draws")
def test_draws_of_another_thread_are_told_apart():
    same(*(sums(source) for source in pair(Scaled())))
    with pytest.raises(UnsupportedModuleError, match="draws numbers"):
        pair(Scaled(), lambda model, batch: cross_entropy(model, batch) * DRAWS["NumPy"]())


@pytest.mark.usefixtures("another_thread_waits")
def test_a_thread_that_draws_nothing_excuses_no_draw():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * (1.0 if np.random.rand() < 0.999999 else 2.0)

    with pytest.raises(UnsupportedModuleError, match="draws numbers"):
        pair(Scaled(), loss_fn)


@pytest.mark.usefixtures("another_thread_draws")
def test_constants_that_are_no_numbers_are_no_draws():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) + torch.tensor([0.0, torch.nan])[0]

    assert pair(Scaled(), loss_fn)[1].method == "traced"


class WritesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x.mul_(0.5))


def test_a_model_that_writes_its_batch_is_refused():
    with pytest.raises(UnsupportedModuleError, match=r"writes in place a tensor that it was given.*method=\"ghost\""):
        pair(WritesItsInput())


def test_what_the_ghost_engine_does_not_serve_is_refused():
    def loss_fn(model, batch):
        losses = cross_entropy(model, batch)
        return losses if losses.sum() > 0 else 2 * losses

    with pytest.raises(UnsupportedModuleError, match=r"cannot serve this model: its code looks at values"):
        NetworkSource(Scaled(), loss_fn, rows(), method="traced", max_physical_batch_size=ROWS)


def lines(source):
    return [
        (str(one.function), one.args, one.kwargs, one.result)
        for line in source._lines._lines.values()
        for part in line._parts
        for one in part
    ]


def test_a_line_is_the_same_whatever_the_records_hold():
    found = []
    for data in (rows(), rows(seed=1), (torch.full((ROWS, 6), torch.nan), torch.zeros(ROWS, dtype=torch.long))):
        torch.manual_seed(0)
        _, fast = pair(Scaled(), data=data)
        sums(fast)
        found.append(repr(lines(fast)))
    assert found[0] == found[1] == found[2]


def test_a_step_holds_nothing_of_a_record():
    _, fast = pair(Scaled())
    sums(fast)
    (line,) = fast._lines._lines.values()
    assert all(one.numel() <= 1 for one in line._constants)


def ledger():
    return tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")


@pytest.mark.parametrize("mechanism", [tacita.GaussianMechanism, tacita.DiscreteGaussian])
def test_an_oracle_takes_it(mechanism):
    released = []
    for method in ("ghost", "traced"):
        torch.manual_seed(0)
        model = Scaled()
        oracle = tacita.ClippedGradientOracle(
            model,
            cross_entropy,
            rows(),
            ledger=ledger(),
            sampler=tacita.PoissonSampler(sample_rate=0.4, num_records=ROWS),
            clipper=CLIP,
            mechanism=mechanism(noise_multiplier=1.0),
            planned_queries=3,
            method=method,
            max_physical_batch_size=12,
            randomness=tacita.Randomness.insecure(3),
        )
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(3):
            oracle.backward()
            optimizer.step()
        released.append({name: p.detach() for name, p in model.named_parameters()})
    torch.testing.assert_close(*released, rtol=1e-4, atol=1e-4)
