"""What people build networks of: a program serves it, and agrees with the loop in float64.

The networks of other libraries are tried where the library is installed.
"""

import re

import pytest
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tests.gradients.coverage import of_libraries, of_torch
from tests.gradients.layers import SMALL


def name(*words):
    return re.sub(r"\W+", "_", " ".join(words))


CASES = {
    name(family, case.name): case
    for family, cases in (of_torch() | of_libraries()).items()
    for case in cases
    if not case.one_by_one and not case.again
}
ONE_BY_ONE = {
    name(case.name): case for cases in (of_torch() | of_libraries()).values() for case in cases if case.one_by_one
}


def sums(case, model, data, method):
    source = NetworkSource(model, case.loss, data, method=method)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = source.engine(params, torch.arange(len(data[0])).numpy(), seed=1)
    engine.rounding_margin = False  # type: ignore[attr-defined] # of a program
    return source.method, engine.weighted_sums(torch.ones_like, {name: (name,) for name in source.shapes})


def made(case):
    if case.missing:
        pytest.skip(f"{case.missing} is not installed: pip install {case.missing}")
    torch.manual_seed(0)
    model = case.make(SMALL).to(case.exact)
    return model, case.data(SMALL, case.exact)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_program_serves_it_and_equals_the_loop(case):
    model, data = made(case)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method, found = sums(case, model, data, "auto")
    assert method == "program"
    _, expected = sums(case, model, data, "loop")
    size = expected.norms.max().item() + 1.0
    tolerance = 1e-10 if case.exact == torch.float64 else 0.03
    torch.testing.assert_close(found.norms, expected.norms, rtol=tolerance, atol=tolerance * size)
    torch.testing.assert_close(found.values[0], dict(expected.values[0]), rtol=tolerance, atol=tolerance * size)
    assert all(total.dtype == case.exact for total in found.values[0].values())  # float32 where a layer is in half
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


@pytest.mark.parametrize("case", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
@pytest.mark.filterwarnings("ignore")
def test_what_depends_on_values_is_refused_and_the_loop_serves_it(case):
    model, data = made(case)
    with pytest.raises(UnsupportedModuleError, match=r'the shape of a tensor depends on values.*method="loop"'):
        sums(case, model, data, "auto")
    assert sums(case, model, data, "loop")[0] == "loop"
