"""What a statement says of a selection: bounds that are printed are still bounds."""

import re
from decimal import Decimal

import pytest

from tacita.tables import Grid, NumberOfRuns, Sweep, best_of


@pytest.mark.parametrize("pad_to", range(1, 60, 4))
@pytest.mark.parametrize(("mean", "shape"), [(3, 1), (8, 0.5), (5, float("inf"))])
def test_the_printed_chance_is_not_below_the_true_one(mean, shape, pad_to):
    asked = Sweep(grid=Grid({"lr": (0.1, 1.0)}), runs=NumberOfRuns(mean_runs=mean, shape=shape), pad_to=pad_to)
    said = best_of.field_of(asked, chosen=None, one_run_epsilon=1.0)
    (shown,) = re.findall(r"with probability (\S+) at most", " ".join(best_of.caveats(asked, said)))
    true = Decimal(asked.runs.chance_above(pad_to))
    assert true <= Decimal(shown) <= true * Decimal("1.1")


@pytest.mark.parametrize(("chosen", "told"), [({"lr": 0.1}, True), (None, False)])
def test_a_score_that_chose_the_run_is_said_to_be_too_good(chosen, told):
    asked = Sweep(grid=Grid({"lr": (0.1, 1.0)}), runs=NumberOfRuns(mean_runs=3, shape=1))
    said = best_of.field_of(asked, chosen=chosen, one_run_epsilon=1.0)
    assert ("too good on average" in " ".join(best_of.caveats(asked, said))) is told
