import dataclasses

import pytest
import torch
from torch import nn

from tacita.dry_run import explain
from tacita.gradients import NetworkSource


def test_the_plan_is_what_the_source_does(network):
    plan = explain(network.model, network.loss_fn, network.data)
    assert plan.method == NetworkSource(network.model, network.loss_fn, network.data).method
    assert [p.name for p in plan.parameters] == [name for name, _ in network.model.named_parameters()]
    assert plan.refused == ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.method = "loop"


def test_frozen_parameters_are_shown_and_cost_nothing(small):
    small.model[0].requires_grad_(False)
    plan = explain(small.model, small.loss_fn, small.data)
    rules = {p.name: (p.rule, p.memory) for p in plan.parameters}
    assert rules["0.weight"] == ("frozen", 0)
    assert rules["2.weight"][0] != "frozen"
    numbers = sum(p.numel() for p in small.model[0].parameters())
    assert f"\nfrozen: 2 parameters, {numbers} numbers\n" in str(plan)
    assert "0.weight" not in str(plan)


def test_it_shows_what_each_layer_holds(small):
    plan = explain(small.model, small.loss_fn, small.data)
    assert plan.method == "program"
    assert plan.physical_batch_size is None
    assert {p.rule for p in plan.parameters} == {"linear"}
    first = plan.parameters[0]
    assert first.cost == "norm without gradient: input 5, output 8"
    assert first.memory == 8 * (5 + 8)  # float64 input and output gradient of one row
    assert plan.parameters[1].memory == 0  # the bias uses the same


def test_a_parameter_that_no_rule_sees_is_named(small):
    small.model.append(nn.PReLU().double())
    plan = explain(small.model, small.loss_fn, small.data)
    assert plan.method == "program"
    assert plan.notes == ()
    assert (plan.parameters[-1].name, plan.parameters[-1].rule) == ("3.weight", "autograd")


def test_a_model_whose_code_looks_at_values_says_so(small):
    def particular(model, batch):
        if (batch[0] < 2).any():
            raise RuntimeError
        return small.loss_fn(model, batch)

    plan = explain(small.model, particular, small.data)
    assert plan.method is None
    assert "looks at values of a record" in plan.refused[0]
    assert 'pass method="loop"' in plan.refused[0]


def test_what_is_refused_is_listed_not_raised():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    plan = explain(model, lambda model, x: model(x).sum(dim=1), torch.zeros(4, 3))
    assert plan.method is None
    assert len(plan.refused) == 2
    assert all("GroupNorm" in reason for reason in plan.refused)
    assert "refused: '1' (BatchNorm1d)" in str(plan)


@pytest.mark.parametrize(
    ("model", "loss_fn", "batch", "reason"),
    [
        (nn.Linear(3, 2), lambda model, x: model(x).mean(), torch.zeros(4, 3), "reduction"),
        (nn.Linear(3, 2), lambda model, x: model(x[0]).sum(dim=1), (torch.zeros(4, 3), "text"), "found str"),
        (nn.LazyLinear(2), lambda model, x: model(x).sum(dim=1), torch.zeros(4, 3), "one forward pass"),
        (nn.Linear(3, 2).requires_grad_(False), lambda model, x: model(x).sum(dim=1), torch.zeros(4, 3), "trainable"),
    ],
)
def test_other_refusals_are_listed_too(model, loss_fn, batch, reason):
    plan = explain(model, loss_fn, batch)
    assert plan.method is None
    assert reason in plan.refused[0]


def test_the_table_is_readable_and_shows_no_value(small):
    small.data = (torch.full((2, 5), 12345.678).double(), small.data[1][:2])
    text = str(explain(small.model, small.loss_fn, small.data))
    assert "12345" not in text
    lines = text.splitlines()
    assert lines[0].startswith("method: ")
    assert any(line.startswith("0.weight") and "8x5" in line for line in lines)
    assert any(line.startswith("total memory per row: ") for line in lines)


def test_a_batch_without_rows_is_refused(small):
    with pytest.raises(ValueError, match="at least one row"):
        explain(small.model, small.loss_fn, tuple(t[:0] for t in small.data))
