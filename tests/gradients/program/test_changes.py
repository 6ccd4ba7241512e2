"""What changes between queries is read anew, or the query raises and names the way out; nothing is old in silence."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.engine import MOST_ENTRIES
from tests.gradients.program.test_around import Scaled, cross_entropy, same, source, sums


@dataclass
class Annealing:
    """Settings that a schedule changes."""

    temperature: float = 1.0
    stages: list = field(default_factory=lambda: [{"sharpness": 1.0}])


class Hooked(Scaled):
    """With everything that a pass reads: a buffer, a frozen weight, numbers, tensors in containers, hooks."""

    def __init__(self):
        super().__init__()
        self.between = nn.Tanh()
        self.fixed, self.listed, self.scaling = torch.tensor(1.0), [torch.tensor(1.0)], {"default": 1.0}
        self.config = SimpleNamespace(annealing=Annealing())
        self.config.annealing.stages.append(self.config)  # a circle
        self.between.register_forward_hook(lambda module, given, result: result * 2)
        self.between.register_forward_pre_hook(lambda module, given: (given[0] / 2,))

    def forward(self, x):
        annealing = self.config.annealing
        factor = float(self.listed[0]) * self.scaling["default"] * annealing.temperature
        return super().forward(self.between(x)) * float(self.fixed) * factor * annealing.stages[0]["sharpness"]


def change_a_stride(model):
    model.first.weight.data = model.first.weight.data.T.contiguous().T


def swap_a_hook(model):
    model.between._forward_hooks.popitem()
    model.between.register_forward_hook(lambda module, given, result: result * 3)


def swap_a_hook_before(model):
    model.between._forward_pre_hooks.popitem()
    model.between.register_forward_pre_hook(lambda module, given: (given[0] * 3,))


READ_ANEW = {
    "buffer": lambda model: model.shift.add_(1.0),
    "another buffer": lambda model: setattr(model, "shift", torch.ones(8)),
    "frozen weight": lambda model: model.gain.data.mul_(2.0),
    "another frozen weight": lambda model: setattr(model, "gain", nn.Parameter(3 * torch.ones(8), requires_grad=False)),
    "parameter": lambda model: model.first.weight.data.mul_(2.0),
    "stride": change_a_stride,
    "dtype of a buffer": lambda model: setattr(model, "shift", torch.ones(8, dtype=torch.long)),
    "module": lambda model: setattr(model, "between", nn.ReLU()),
    "mode": lambda model: model.eval(),
    "hook": swap_a_hook,
    "hook before": swap_a_hook_before,
    "one hook more": lambda model: model.first.register_forward_hook(lambda module, given, result: result * 3),
}
RAISES = {
    "number": ("power", lambda model: setattr(model, "power", 3.0)),
    "number of a submodule": (r"drop\.p", lambda model: setattr(model.drop, "p", 0.9)),
    "tensor": ("fixed", lambda model: model.fixed.mul_(5.0)),
    "entry": ("scaling", lambda model: model.scaling.update(default=4.0)),
    "tensor in a list": ("listed", lambda model: model.listed[0].mul_(5.0)),
    "field": ("config", lambda model: setattr(model.config.annealing, "temperature", 0.5)),
    "dict in a list": ("config", lambda model: model.config.annealing.stages[0].update(sharpness=3.0)),
}


@pytest.mark.parametrize("change", READ_ANEW.values(), ids=READ_ANEW)
def test_it_is_read_anew(change):
    program, loop = (source(method, model=Hooked()) for method in ("program", "loop"))
    before = sums(program)
    for one in (program, loop):
        change(one.model)
    found = sums(program)
    same(found, sums(loop))
    same(found, before) if change in (change_a_stride, READ_ANEW["mode"]) else None


@pytest.mark.parametrize(("name", "change"), RAISES.values(), ids=RAISES)
def test_it_raises_until_the_change_is_accepted(name, change):
    program, loop = (source(method, model=Hooked()) for method in ("program", "loop"))
    before = sums(program).norms
    for one in (program, loop):
        change(one.model)
    with pytest.raises(UnsupportedModuleError, match=rf"'{name}'.*oracle\.retrace\(\)"):
        sums(program)
    program.retrace()
    if not name.startswith("drop"):  # its coins are drawn in another order
        same(sums(program), sums(loop))
    assert not torch.equal(sums(program).norms, before)


def test_a_hook_of_all_modules_is_seen():
    program, loop = source("program"), source("loop")
    before = sums(program)
    kept = nn.modules.module.register_module_forward_hook(lambda module, given, result: result * 2)
    try:
        same(sums(program), sums(loop))
        assert not torch.equal(before.norms, sums(program).norms)
    finally:
        kept.remove()
    same(sums(program), before)


def test_another_default_dtype_is_seen():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * torch.finfo(torch.get_default_dtype()).bits

    program, loop = source("program", loss_fn), source("loop", loss_fn)
    before = sums(program)
    torch.set_default_dtype(torch.float64)
    try:
        same(sums(program), sums(loop))
        assert not torch.equal(before.norms, sums(program).norms)
    finally:
        torch.set_default_dtype(torch.float32)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight, self.last.bias = self.one.weight, None

    def forward(self, x):
        return self.last(self.other(self.one(x)).tanh())


def test_another_tie_is_seen():
    model = Tied()
    program, loop = (source(method, model=model) for method in ("program", "loop"))
    before = sums(program)
    model.last.weight = model.other.weight
    same(sums(program), sums(loop))
    assert not torch.equal(before.norms, sums(program).norms)


class Losses:
    """A loss as an object, whose method is the loss function."""

    def __init__(self):
        self.factor, self.weights = 1.0, {"all": torch.ones(3)}

    def __call__(self, model, batch):
        return self.factor * F.cross_entropy(model(batch[0]), batch[1], weight=self.weights["all"], reduction="none")

    def method(self, model, batch):
        return self(model, batch)


@pytest.mark.parametrize("of", [lambda owner: owner, lambda owner: owner.method], ids=["object", "method"])
def test_the_fields_of_a_loss_object_are_seen(of):
    for change in ({"factor": 4.0}, {"weights": {"all": torch.tensor([3.0, 2.0, 1.0])}}):
        owner = Losses()
        program = source("program", of(owner))
        sums(program)
        vars(owner).update(change)
        with pytest.raises(UnsupportedModuleError, match="loss_fn"):
            sums(program)
        program.retrace()
        same(sums(program), sums(source("loop", of(owner))))


def test_what_the_closure_of_a_loss_holds_is_seen():
    held, factor = {"weights": torch.ones(3)}, 1.0

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], weight=held["weights"], reduction="none") * factor

    program = source("program", loss_fn)
    sums(program)
    factor = 5.0
    with pytest.raises(UnsupportedModuleError, match="loss_fn"):
        sums(program)
    program.retrace()
    sums(program)
    held["weights"] = torch.tensor([3.0, 2.0, 1.0])
    with pytest.raises(UnsupportedModuleError, match="loss_fn"):
        sums(program)


class Holder:
    """An object of the user's own, with fields of plain numbers."""

    sign = 1.0


def test_what_no_comparison_sees_is_that_of_the_trace():
    """A field of an object: fixed when the program is written down, whatever records there are."""
    model = Scaled()
    model.config = Holder()

    def loss_fn(model, batch):
        return cross_entropy(model, batch) * model.config.sign

    program = source("program", loss_fn, model=model)
    before = sums(program)
    model.config.sign = -1.0
    same(sums(program), before)


def test_a_large_container_is_compared_by_its_size():
    model = Scaled()
    model.names = [[k] for k in range(MOST_ENTRIES)]
    program = source("program", model=model)
    sums(program)
    model.names.append([0])
    with pytest.raises(UnsupportedModuleError, match="'names'"):
        sums(program)


def test_what_the_forward_pass_sets_itself_may_change_between_queries():
    """Pruning sets the weight on its module in each forward pass, an evaluation's too."""
    model = Scaled()
    prune.random_unstructured(model.first, "weight", 0.5)
    one = source("program", model=model)
    before = sums(one)
    with torch.no_grad():
        model(torch.randn(3, model.first.in_features))
    same(sums(one), before)


class Counting(Scaled):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 if self.calls < 100 else 2)


class Measuring(Scaled):
    length = 0

    def forward(self, x):
        self.length = 1000 * x.shape[1]
        return super().forward(x)


def test_a_number_that_is_set_to_what_it_was_is_no_counter():
    model = Measuring()
    model.length = 1000 * model.first.in_features
    same(sums(source("program", model=model)), sums(source("loop", model=model)))


def test_a_model_that_counts_its_calls_is_refused():
    model = Counting()
    model.calls = 0
    with pytest.raises(UnsupportedModuleError, match="changes 'calls' of the model, and a query does not run it"):
        source("program", model=model)


def grow(teacher):
    with torch.no_grad():
        teacher[0].weight.mul_(2.0)


@pytest.mark.parametrize(
    ("criterion", "change"),
    [
        (nn.SmoothL1Loss(reduction="none"), lambda one: setattr(one, "beta", 3.0)),
        (nn.Sequential(nn.Linear(3, 3)).requires_grad_(False), grow),
    ],
    ids=["attribute of a criterion", "weights of a teacher"],
)
def test_what_a_module_of_the_loss_holds_is_compared(criterion, change):
    def loss_fn(model, batch):
        found = model(batch[0])
        other = criterion(found) if isinstance(criterion, nn.Sequential) else criterion(found, torch.ones_like(found))
        return cross_entropy(model, batch) + other.sum(1)

    program, loop = source("program", loss_fn), source("loop", loss_fn)
    sums(program)
    change(criterion)
    with pytest.raises(UnsupportedModuleError, match=r"'loss_fn.*oracle\.retrace\(\)"):
        sums(program)
    program.retrace()
    same(sums(program), sums(loop))
