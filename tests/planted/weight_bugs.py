"""Bugs of weights that are computed from parameters, stacked, or shared by calls of different functions."""

import torch
from torch.nn.utils.stateless import _reparametrize_module  # what torch.func.functional_call does

from tacita.gradients import functional
from tacita.gradients.rules import derived, outer
from tacita.gradients.rules.linear import StackedRule
from tacita.gradients.rules.outer import Gram
from tests.planted.plant import bug, put, swap

COVERAGE = "tests/gradients/test_coverage.py::test_a_program_serves_it_and_equals_the_loop"
CONTRACT = "tests/gradients/rules/test_layer_rules.py::test_contract"


@bug(56, caught_by=[CONTRACT + "[computed_weight]", CONTRACT + "[scaled_weight]"])
def a_computed_weight_taken_for_a_rearranged_one():
    """The gradient of a weight that was scaled or normalised is taken for that of the parameter, norm included."""

    class Everything(frozenset):
        def __contains__(self, name):
            return True

    put(derived, "_REARRANGEMENTS", Everything())


@bug(56, caught_by=[CONTRACT + "[overlapping_parts]"])
def parts_of_a_weight_taken_to_be_apart():
    """The squared norms of two uses of a parameter are added although the uses have coordinates in common."""
    swap(derived.apart, lambda rules: True)


@bug(56, caught_by=[CONTRACT + "[tied_gram]", CONTRACT + "[tied_gram_view]"])
def cross_terms_of_a_tied_weight_left_out():
    """A tied embedding's norm is that of the embedding and that of the head, without what they have in common."""
    with_cross_terms = outer._gram_of_left

    def apart(vectors, ones, dtype):
        found = with_cross_terms(vectors, ones, dtype)
        first = sum(part.left.shape[1] for part in vectors)
        products = found.products.clone()
        products[:, :first, first:] = 0.0
        products[:, first:, :first] = 0.0
        return Gram(products, found.width, found.terms)

    swap(outer._gram_of_left, apart)


@bug(caught_by=[COVERAGE + "[shared_and_parametrised_weights_one_module_under_two_names]"])
def tensors_left_in_a_shared_module():
    """A module that stands at two places of the model keeps the tensors of a query in the place of its parameters."""

    def keeping(tree, tensors):
        return _reparametrize_module(tree.model, dict(tensors), tie_weights=True)

    swap(functional.with_tensors, keeping)


@bug(56, caught_by=[CONTRACT + "[stack]", CONTRACT + "[einsum_stack]"])
def one_of_a_stack_of_weights_counted():
    """Of a stack of weights, the largest gradient alone is in the norm."""
    whole = StackedRule.squared_norms

    def largest(self, use, *, rounding_margin=True):
        alone = [
            whole(self, type(use)(use.settings, use.shapes, use.names, use.x[:, k : k + 1], use.grad[:, k : k + 1]))
            for k in range(use.x.shape[1])
        ]
        return {"weight": torch.stack([found["weight"] for found in alone]).amax(dim=0)}

    put(StackedRule, "squared_norms", largest)
