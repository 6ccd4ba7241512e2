"""What a model's code may try, once it never meets a record: refused when it is written down, or of no effect."""

import contextvars
import copy
import itertools
import random
import time
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tacita.clipping import FlatClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tests.gradients.ordinary import Model, loss, out
from tests.gradients.test_hostile_models import C, moves, records, unscanned

NUMPY, PYTHON, TORCH = np.random.default_rng(), random.Random(), torch.Generator()
COUNT, KEPT, CONTEXT = itertools.count(1), [], contextvars.ContextVar("kept", default=None)


class Times(TorchDispatchMode):
    """Doubles what each product gives."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) else found


class TimesOfFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if getattr(func, "__name__", "") in ("matmul", "__matmul__", "linear", "mul") else found


def fixed_seed(m, x):
    torch.manual_seed(0)
    return out(m, x + torch.randn(4))


def fixed_seed_of_a_record(m, x):
    torch.manual_seed(0)
    return out(m, x + torch.rand_like(x))


def fixed_seed_put_back(m, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return out(m, x + torch.rand_like(x))


def drawn_once_for_all(m, x):
    return out(m, x + torch.rand(4))


def drawn_by_python(m, x):
    return out(m, x * random.random())


def drawn_by_numpy(m, x):
    return out(m, x * float(np.random.rand()))


def own_generator_of_numpy(m, x):
    return out(m, x * float(NUMPY.random()))


def own_generator_of_python(m, x):
    return out(m, x * PYTHON.random())


def own_generator_of_torch(m, x):
    return out(m, x + torch.rand(4, generator=TORCH))


def own_generator_in_place(m, x):
    return out(m, x + torch.zeros_like(x).uniform_(generator=TORCH))


def own_generator_of_a_record(m, x):
    return out(m, x * torch.bernoulli(x.sigmoid(), generator=TORCH))


def clock(m, x):
    return out(m, x * (time.perf_counter() % 1))


def counter(m, x):
    return out(m, x * next(COUNT))


def counter_of_positions(m, x):
    return out(m, x.roll(next(COUNT), dims=1))


def length_of_a_list(m, x):
    KEPT.append(None)
    return out(m, x * len(KEPT))


def context_variable(m, x):
    before = CONTEXT.get()
    CONTEXT.set(x.detach())
    return out(m, x if before is None else x + before.mean())


def gradient_attribute(m, x):
    m.layer.weight.grad = x.detach().sum() * torch.ones_like(m.layer.weight)
    return out(m, x)


def attribute_of_a_tensor(m, x):
    m.layer.weight.kept = x.detach()
    return out(m, x)


def swapped(m, x):
    torch.utils.swap_tensors(m.mean, torch.ones_like(m.mean) * x.detach().mean())
    return out(m, x - m.mean)


def printed(m, x):
    return out(m, x * len(repr(x)))


def value_asked_for(m, x):
    return out(m, x * float(x.sum()))


def branch_on_a_value(m, x):
    return out(m, x if x.sum() > 0 else -x)


def mode_inside(m, x):
    with Times():
        return out(m, x)


def mode_of_functions_inside(m, x):
    with TimesOfFunctions():
        return out(m, x)


def batch_written(m, x):
    return out(m, x.mul_(2))


def constant_written(m, x):
    CONSTANT.data.add_(1.0)
    return out(m, x + CONSTANT)


def uninitialised_in_place(m, x):
    return out(m, x + x.new_empty(x.shape).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def uninitialised_strided(m, x):
    return out(m, x + torch.empty_strided((6, 4), (4, 1)).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def resized(m, x):
    return out(m, x + x.new_empty(0).resize_(6, 4).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


CONSTANT = torch.zeros(4)
STATE = {"count": 0.0}


@torch.library.custom_op("tacita_tests::remembers", mutates_args=())
def remembers(x: torch.Tensor) -> torch.Tensor:
    STATE["count"] += float(x.sum())
    return x + STATE["count"]


@remembers.register_fake
def _(x):
    return torch.empty_like(x)


remembers.register_autograd(lambda ctx, grad: grad)


def operator_with_state(m, x):
    return out(m, remembers(x))


REFUSED = [
    fixed_seed, fixed_seed_of_a_record, fixed_seed_put_back, drawn_once_for_all, drawn_by_python, drawn_by_numpy,
    own_generator_of_numpy, own_generator_of_python, own_generator_of_torch, own_generator_in_place,
    own_generator_of_a_record, clock, counter,
    counter_of_positions, length_of_a_list, context_variable,
    swapped, printed, value_asked_for, branch_on_a_value, constant_written, resized, operator_with_state,
]  # fmt: skip
HARMLESS = [
    gradient_attribute, attribute_of_a_tensor, batch_written, mode_inside, mode_of_functions_inside,
    uninitialised_in_place, uninitialised_strided,
]  # fmt: skip


def made(steps):
    return lambda: Model(steps, mean=torch.zeros(4))


@pytest.fixture(autouse=True)
def anew():
    KEPT.clear()
    CONTEXT.set(None)
    CONSTANT.zero_()


@pytest.mark.parametrize("steps", REFUSED, ids=lambda steps: steps.__name__)
def test_it_is_refused_before_a_record_is_read(steps):
    model = made(steps)()
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings(), unscanned():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedModuleError):
            NetworkSource(model, loss, records(), method="program")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("steps", HARMLESS, ids=lambda steps: steps.__name__)
def test_it_is_of_no_effect(steps):
    with warnings.catch_warnings(), unscanned():
        warnings.simplefilter("ignore")
        found = moves(made(steps), loss, "program", 2)
    assert found is not None
    assert found[0] <= C * (1 + 1e-5)
    assert found[1] <= 1e-5


def total(source, rows, around=nullcontext):
    clipper = FlatClipper(max_grad_norm=C)
    with around():
        engine = source.engine(dict(source.model.named_parameters()), rows, seed=5)
        values = engine.weighted_sums(clipper.weights, clipper.groups(source.shapes)).values[0]
    return torch.cat([one.double().flatten() for one in values.values()])


@pytest.mark.parametrize(
    "around",
    [Times, TimesOfFunctions, torch.no_grad, torch.enable_grad, lambda: torch.device("meta"), torch.inference_mode],
    ids=["dispatch", "function", "no_grad", "enable_grad", "device", "inference"],
)
def test_modes_around_a_query_are_of_no_effect(around):
    torch.manual_seed(1)
    source = NetworkSource(Model(out), loss, records(), method="program", max_physical_batch_size=3)
    rows = np.arange(7)
    torch.testing.assert_close(total(source, rows, around), total(source, rows), rtol=0, atol=0)


def test_seeds_around_a_query_are_of_no_effect():
    torch.manual_seed(1)
    source = NetworkSource(
        Model(lambda m, x: out(m, torch.nn.functional.dropout(x, 0.5))), loss, records(), method="program"
    )
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        found.append(total(source, np.arange(7)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_generator_of_its_own_is_named():
    with unscanned(), pytest.raises(UnsupportedModuleError, match=r"test_hostile_kinds.py:\d+: draws from a generator"):
        NetworkSource(made(own_generator_of_a_record)(), loss, records(), method="program")


def test_a_refusal_names_the_line():
    line = counter.__code__.co_firstlineno + 1
    with unscanned(), pytest.raises(UnsupportedModuleError, match=f"test_hostile_kinds.py:{line}: the operator mul"):
        NetworkSource(made(counter)(), loss, records(), method="program")


def test_a_changed_attribute_raises_and_names_the_way_out():
    model = Model(lambda m, x: out(m, x * m.scale), scale=2.0)
    source = NetworkSource(model, loss, records(), method="program")
    before = total(source, np.arange(3))
    vars(model)["scale"] = 3.0
    with pytest.raises(UnsupportedModuleError, match=r"'scale'.*oracle\.retrace\(\)"):
        total(source, np.arange(3))
    source.retrace()
    assert not torch.equal(total(source, np.arange(3)), before)


def test_each_mode_has_its_program():
    model = Model(lambda m, x: out(m, x if m.training else 2 * x))
    source = NetworkSource(model, loss, records(), method="program")
    first = total(source, np.arange(3))
    model.eval()
    assert not torch.equal(total(source, np.arange(3)), first)
    model.train()
    torch.testing.assert_close(total(source, np.arange(3)), first, rtol=0, atol=0)
    assert source._choice.programs is not None
    assert len(source._choice.programs._programs) == 2
