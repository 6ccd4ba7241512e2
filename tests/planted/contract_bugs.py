"""Bugs of the contracts that third parties run: a part of theirs passes that should not."""

from tacita.mechanisms import Mechanism
from tacita.testing import event_contract, rule_contracts, sampler_contract
from tests.planted.plant import bug, put, swap

SAMPLERS = "tests/testing/test_sampler_contract.py::"
EVENTS = "tests/testing/test_event_contract.py::"
RULES = "tests/gradients/rules/test_layer_rules.py::"


@bug(1, caught_by=[SAMPLERS + "test_one_bug_is_seen"])
def sampler_contract_counts_no_rows():
    """The contract of samplers does not compare how often rows are drawn with the law."""
    swap(sampler_contract._check_law, lambda *args: None)


@bug(1, caught_by=[SAMPLERS + "test_another_law_than_the_one_that_is_stated_is_seen"])
def sampler_contract_believes_epochs():
    """The contract of samplers does not count in how many queries of a session a row is."""
    swap(sampler_contract._check_epochs, lambda *args: None)


@bug(45, caught_by=[EVENTS + "test_one_bug_is_seen"])
def event_contract_ignores_costs():
    """The contract of events accepts one that costs less for more queries."""
    swap(event_contract._check_costs, lambda *args: None)


@bug(45, caught_by=[RULES + "test_a_rule_that_serves_nothing_does_not_pass"])
def rule_contract_checks_autograd():
    """A layer rule passes its contract that serves no parameter, since autograd serves them."""
    swap(rule_contracts._check_serves, lambda *args: None)


@bug(46, caught_by=["tests/mechanisms/test_gaussian.py::test_noise_of_another_law_inherits_no_guarantee"])
def noise_of_any_law_is_gaussian():
    """A mechanism that says nothing of its law is charged as the Gaussian."""
    put(Mechanism, "event", lambda self, event: event)
