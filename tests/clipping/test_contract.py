"""The contract every clipper keeps: groups that partition, weight times norm never above the bound."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacita.clipping import AutomaticClipper, Clipper, FlatClipper, PerLayerClipper
from tacita.testing import check_clipper

SHAPES = {
    "0.weight": torch.Size([2, 3]),
    "0.bias": torch.Size([2]),
    "block.1.weight": torch.Size([4, 2]),
    "scale": torch.Size([]),
}
CLIPPERS = {
    "flat": FlatClipper(max_grad_norm=1.0),
    "flat_0.1": FlatClipper(max_grad_norm=0.1),  # not a float32 number
    "flat_tiny": FlatClipper(max_grad_norm=1e-12),
    "flat_huge": FlatClipper(max_grad_norm=1e35),
    "per_layer_equal": PerLayerClipper(max_grad_norm=0.7),
    "per_layer_mapping": PerLayerClipper(max_grad_norm={"block": 0.3, "0": 1.1, "": 7e-3}),
    "automatic": AutomaticClipper(max_grad_norm=1.0, gamma=0.01),
    "automatic_tiny_gamma": AutomaticClipper(max_grad_norm=0.3, gamma=1e-45),
    "automatic_huge_gamma": AutomaticClipper(max_grad_norm=0.3, gamma=1e30),
}


@pytest.mark.parametrize("clipper", CLIPPERS.values(), ids=CLIPPERS)
def test_contract(clipper):
    check_clipper(clipper, SHAPES)


@given(
    threshold=st.floats(min_value=1e-12, max_value=1e12),
    gamma=st.floats(min_value=1e-12, max_value=1e12),
    norms=st.lists(st.floats(min_value=0, width=32), min_size=1, max_size=8),
)
def test_contract_on_any_norm(threshold, gamma, norms):
    norms = torch.tensor(norms, dtype=torch.float64)
    for clipper in (
        FlatClipper(max_grad_norm=threshold),
        PerLayerClipper(max_grad_norm=threshold),
        AutomaticClipper(max_grad_norm=threshold, gamma=gamma),
    ):
        check_clipper(clipper, SHAPES, extra_norms=norms)


@dataclass(frozen=True)
class _Planted(Clipper):
    """A flat clipper with one bug."""

    max_grad_norm: float
    bug: str

    def groups(self, shapes):
        return {"all": tuple(shapes)}

    def max_contribution(self, shapes):
        return {"all": self.max_grad_norm}

    def weights(self, norms):
        factor = (self.max_grad_norm / norms).clamp(max=1.0)  # rounds to nearest; nan stays nan
        if self.bug == "keeps_nan":
            return factor
        factor = torch.where(norms.isfinite(), factor, 0.0)
        if self.bug == "by_batch":
            return factor * (1 - 1e-6) / max(1, len(norms))
        return factor


@pytest.mark.parametrize("bug", ["keeps_nan", "rounds_to_nearest", "by_batch"])
def test_the_contract_can_fail(bug):
    with pytest.raises(AssertionError):
        check_clipper(_Planted(max_grad_norm=0.1, bug=bug), SHAPES)


@pytest.mark.parametrize("kind", [FlatClipper, PerLayerClipper, AutomaticClipper])
def test_a_clipper_that_weighs_otherwise_inherits_no_bound(kind):
    with pytest.raises(TypeError, match=f"Wide cannot be derived from {kind.__name__}.*state its own max_contribution"):

        class Wide(kind):
            def weights(self, norms):
                return 2 * super().weights(norms)
