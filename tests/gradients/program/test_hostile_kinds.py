"""What a model's code may try, once it never meets a record: refused when it is written down, or of no effect."""

import copy
import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tacita.clipping import FlatClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tests.gradients.ordinary import Model, loss, out
from tests.gradients.program import kinds
from tests.gradients.program.kinds import HARMLESS, REFUSED, REFUSED_OR_HARMLESS, Times, TimesOfFunctions
from tests.gradients.test_hostile_models import C, moves, records, unscanned


def made(steps):
    return lambda: Model(steps, mean=torch.zeros(4))


@pytest.fixture(autouse=True)
def anew():
    kinds.KEPT.clear()
    kinds.LAST.clear()
    kinds.WEAK.clear()
    kinds.CONTEXT.set(None)
    kinds.CONSTANT.zero_()
    kinds.COUNTS.unlink(missing_ok=True)


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


@pytest.mark.parametrize("steps", REFUSED_OR_HARMLESS, ids=lambda steps: steps.__name__)
def test_an_address_is_refused_or_of_no_effect(steps):
    with warnings.catch_warnings(), unscanned():
        warnings.simplefilter("ignore")
        try:
            source = NetworkSource(made(steps)(), loss, records(), method="program")
        except UnsupportedModuleError:
            return
    ours, others = (total(source, rows) for rows in (np.arange(7), np.delete(np.arange(7), 2)))
    assert (ours - others).norm() <= C * (1 + 1e-5)


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


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.autograd.detect_anomaly])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_modes_of_autograd_around_the_tracing_are_of_no_effect(around):
    torch.manual_seed(1)
    model, data, rows = Model(out), records(), np.arange(7)
    with around():
        source = NetworkSource(model, loss, data, method="program")
    found = total(NetworkSource(model, loss, data, method="program"), rows)
    torch.testing.assert_close(total(source, rows), found, rtol=0, atol=0)


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
    with unscanned(), pytest.raises(UnsupportedModuleError, match=r"kinds.py:\d+: draws from a generator"):
        NetworkSource(made(kinds.own_generator_of_a_record)(), loss, records(), method="program")


def test_a_refusal_names_the_line():
    line = kinds.counter.__code__.co_firstlineno + 1
    with unscanned(), pytest.raises(UnsupportedModuleError, match=f"kinds.py:{line}: the operator mul"):
        NetworkSource(made(kinds.counter)(), loss, records(), method="program")


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


class Spying(int):
    """A number of groups that takes down what it meets."""

    met = ()

    def __rfloordiv__(self, other):
        Spying.met += ("floordiv",)
        return other // int(self)

    def __rmul__(self, other):
        Spying.met += ("mul",)
        return other * int(self)

    __mul__ = __rmul__


def test_a_number_with_code_of_its_own_is_a_plain_number_to_a_rule():
    conv = torch.nn.functional.conv1d
    model = Model(lambda m, x: conv(x, m.kernel, None, 1, 0, 1, Spying(1)))
    model.kernel = torch.nn.Parameter(torch.ones(2, 6, 2))
    source = NetworkSource(model, loss, records(), method="program")
    Spying.met = ()
    total(source, np.arange(7))
    assert not Spying.met


def test_a_method_that_hides_a_tensor_s_own_is_not_called():
    model, called = made(lambda m, x: out(m, x + m.mean))(), []
    source = NetworkSource(model, loss, records(), method="program")
    model.mean.detach = lambda: called.append(1) or torch.ones(4)
    total(source, np.arange(3))
    assert not called


def test_the_class_of_a_buffer_is_looked_at_in_each_query():
    model = made(lambda m, x: out(m, x + m.mean))()
    source = NetworkSource(model, loss, records(), method="program")
    model.mean.__class__ = kinds.Own
    with pytest.raises(UnsupportedModuleError, match="'mean' is a Own"):
        total(source, np.arange(3))
