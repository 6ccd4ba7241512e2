"""Bugs of weights that are computed from parameters, stacked, or shared by calls of different functions."""

from torch.nn.utils.stateless import _reparametrize_module  # what torch.func.functional_call does

from tacita.gradients import functional
from tacita.gradients.rules import derived
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


@bug(caught_by=[COVERAGE + "[shared_and_parametrised_weights_one_module_under_two_names]"])
def tensors_left_in_a_shared_module():
    """A module that stands at two places of the model keeps the tensors of a query in the place of its parameters."""

    def keeping(tree, tensors):
        return _reparametrize_module(tree.model, dict(tensors), tie_weights=True)

    swap(functional.with_tensors, keeping)
