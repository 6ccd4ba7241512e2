"""What people build networks of: the ghost engine serves it, and agrees with the loop in float64."""

import pytest
import torch
from torch import nn

from tacita.gradients import NetworkSource
from tests.gradients import layers, sequences
from tests.gradients.layers import SMALL, data, loss

CASES = {
    f"{family}: {name}": make
    for family, cases in {
        "products": layers.PRODUCTS,
        "shared": layers.SHARED,
        "convolutions": layers.CONVOLUTIONS,
        "normalisations": layers.NORMALISATIONS,
        "embeddings": layers.EMBEDDINGS,
        "bare": layers.BARE,
        "recurrent": sequences.RECURRENT,
        "attention": sequences.ATTENTION,
        "mixtures": sequences.MIXTURES,
        "programs": sequences.PROGRAMS,
    }.items()
    for name, make in cases.items()
}


def sums(model, method, dtype=torch.float64):
    torch.manual_seed(1)
    source = NetworkSource(model, loss, data(SMALL, dtype), method=method)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = source.engine(params, torch.arange(SMALL.rows).numpy(), seed=1)
    engine.rounding_margin = False  # type: ignore[attr-defined] # of the ghost engine
    return source.method, engine.weighted_sums(torch.ones_like, {name: (name,) for name in source.shapes})


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore")
def test_the_ghost_engine_serves_it_and_equals_the_loop(make):
    torch.manual_seed(0)
    model = make(SMALL).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method, found = sums(model, "auto")
    assert method == "ghost"
    _, expected = sums(model, "loop")
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.values[0], dict(expected.values[0]), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(type(p) is nn.Parameter for p in model.parameters())


@pytest.mark.parametrize("make", sequences.HALVES.values(), ids=sequences.HALVES)
def test_autocast_is_served_and_summed_in_float32(make):
    torch.manual_seed(0)
    model = make(SMALL)
    (method, found), (_, expected) = (sums(model, method, torch.float32) for method in ("auto", "loop"))
    assert method == "ghost"
    assert all(total.dtype == torch.float32 for total in found.values[0].values())
    torch.testing.assert_close(found.values[0], dict(expected.values[0]), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("make", sequences.ONE_BY_ONE.values(), ids=sequences.ONE_BY_ONE)
def test_what_depends_on_values_goes_to_the_loop_with_a_warning(make):
    with pytest.warns(UserWarning, match="the shape of a tensor depends on values"):
        method, _ = sums(make(SMALL).double(), "auto")
    assert method == "loop"
