"""Tables 1 and 2 of DP-Clipped-SGD: every line, and that a wrong expression is found."""

import os
from dataclasses import replace

import pytest

from tacita.clipped_sgd import ConvexProblem
from tacita_reproductions import find
from tacita_reproductions.regime_tables import ROWS, compare, convex, least, non_convex

FULL = bool(os.environ.get("TACITA_AUDIT"))


@pytest.mark.parametrize("number", ["1", "2"])
def test_its_claims_hold(number):
    result = find(f"dp-clipped-sgd-table-{number}")(full=FULL)
    assert [row["row"] for row in result.rows] == ["1", *(row.name for row in ROWS)]
    assert not [check.says for check in result.checks if not check.held]


def test_the_best_threshold_of_a_row_is_the_formulas():
    """Row 4: what is left is R zeta + L R^2 zeta^2 / C^2 as long as zeta > sigma, so the best is 4 g - 2 sigma."""
    problem = ConvexProblem(smoothness=2, radius=3, moment_scale=1.5, moment_order=1.4)
    threshold, left = least(problem, "4")
    assert threshold == pytest.approx(4 * 6 - 2 * 1.5, rel=2e-3)
    assert left == pytest.approx(3 * 1.5 + 18 * 1.5**2 / 21**2, rel=2e-3)


@pytest.mark.parametrize("build", [convex, non_convex])
def test_the_comparison_can_fail(build):
    """A threshold or an error with a wrong unit or power is no constant times the best one."""
    row = next(row for row in ROWS if row.name == "3a")
    assert compare(row, build)["C holds"] == compare(row, build)["error holds"] == "holds"
    wrong = replace(
        row, threshold=lambda problem, eta: 4.0, left=lambda problem, eta: row.left(problem, eta) * problem.scale
    )
    assert compare(wrong, build)["C holds"] == compare(wrong, build)["error holds"] == "does not"


def test_row_four_holds_once_its_constants_are_back():
    row = next(row for row in ROWS if row.name == "4")

    def left(problem, eta):
        p, g, sigma = float(problem.error_scale), float(problem.gradient_scale), float(problem.scale)
        return p * sigma + p * g * sigma**2 / (4 * g - 2 * sigma) ** 2

    assert compare(row, convex)["error holds"] == "does not"
    assert compare(replace(row, left=left), convex)["error holds"] == "holds"
