"""The purchases' budget: noise, sensitivity and events agree, and everything together stays within (epsilon, delta)."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacita.accounting.accountant import Spend, epsilon
from tacita.accounting.calibration import calibrate
from tacita.accounting.gaussian_events import PoissonGaussianEvent
from tacita.accounting.relations import RELATIONS
from tacita.tables import PurchasePlan, Schema
from tacita.tables.budget import text_threshold
from tacita.tables.survey import survey_counts
from tests.tables.buying import buy_survey


def plan(relation="add_or_remove_one", **settings):
    return PurchasePlan(**{"epsilon": 1.0, "delta": 1e-5, "relation": relation, **settings})


def moved_by(table_of, before, after):
    """L2 distance of the survey's counts of two tables of two columns."""
    one, two = (survey_counts(table_of("a,b", *lines), Schema(), ["a", "b"]) for lines in (before, after))
    squares = float((one.bins - two.bins).square().sum())
    for i in range(2):
        counts = [dict(zip(c.names[i], c.texts[i].tolist(), strict=True)) for c in (one, two)]
        squares += sum((counts[0].get(name, 0) - counts[1].get(name, 0)) ** 2 for name in counts[0] | counts[1])
    return math.sqrt(squares)


@pytest.mark.parametrize(
    ("relation", "after", "rows"),
    [
        ("add_or_remove_one", ["1,x"], 1),
        ("zero_out_one", ["1,x", "zeroed row"], 1),
        ("replace_one", ["1,x", "y,7"], 1),
        ("add_or_remove_one", ["1,x"], 3),  # a person with three equal rows
        ("replace_one", ["1,x", *["y,7"] * 3], 3),
    ],
)
def test_the_event_states_the_move_of_the_worst_neighbour(table_of, relation, after, rows):
    distance = moved_by(table_of, ["1,x", *["-4,z"] * rows], after)
    settings = plan(relation, max_rows_per_unit=rows)
    event = settings.survey_event(2)
    assert event.query_mu * event.noise_std[0] == pytest.approx(distance)
    assert event.noise_std == (settings.survey_noise_std(2),)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("rows", [1, 4])
def test_purchases_and_score_together_use_the_budget_and_no_more(relation, rows):
    settings = plan(relation, max_rows_per_unit=rows)
    events = [settings.survey_event(15), settings.refinement_event(15), settings.score_event(2)]
    spent = epsilon([Spend(event, 1) for event in events], 1e-5).epsilon
    assert 1 - 1e-6 < spent <= 1
    assert math.hypot(*(event.query_mu for event in events[:2])) == pytest.approx(0.3 * settings.total_mu)


def test_the_refinement_spends_the_same_whatever_number_of_columns_is_numeric():
    settings = plan()
    event = settings.refinement_event(15)
    for numeric in (1, 6, 15):
        assert math.sqrt(numeric) / settings.refinement_noise_std(numeric) == pytest.approx(event.query_mu)


def test_training_beside_the_purchases_needs_the_published_multiplier():
    settings = plan()
    purchases = [Spend(settings.survey_event(15), 1), Spend(settings.refinement_event(15), 1)]

    def training(multiplier):
        return PoissonGaussianEvent(
            relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(multiplier,), sampling_probability=0.1
        )

    found = calibrate(training, "add_or_remove_one", 1.0, 1e-5, alongside=purchases, queries=400)
    assert found == pytest.approx(7.98, rel=0.005)
    assert epsilon([*purchases, Spend(training(found), 400)], 1e-5).epsilon <= 1


@pytest.mark.parametrize(("new", "rows"), [(1, 1), (15, 1), (15, 3)])
def test_new_texts_pass_the_threshold_with_at_most_the_stated_chance(new, rows):
    noise_std, failure = 20.0, 1e-6
    threshold = text_threshold(noise_std, failure, new, rows)

    def chance(threshold):  # of rows * new bins with `rows` each, rounded to integers, one at or above the threshold
        return 1 - norm.cdf((threshold - 0.5 - rows) / noise_std) ** (rows * new)

    assert chance(threshold) <= failure
    assert chance(threshold - 2) > failure * 0.99  # and not much higher than need be
    assert threshold == int(threshold)


@pytest.mark.parametrize("below", [0, 2])
def test_single_texts_stay_unreleased(table_of, normals, below):
    """A plan whose failure chance is large enough to be seen; a threshold 2 s too low is caught."""
    settings = plan(epsilon=2.0, delta=0.2)
    columns = [f"c{i}" for i in range(12)]
    table = table_of(",".join(columns), ",".join(columns))
    noise_std = settings.survey_noise_std(12)
    threshold = settings.threshold(12) - below * noise_std
    runs = 400
    released = 0
    for seed in range(runs):
        found = buy_survey(table, Schema(), columns, noise_std=noise_std, threshold=threshold, normals=normals(seed))
        released += any(facts.values for facts in found.columns)
    allowed = binom.ppf(1 - 1e-6, runs, settings.failure_probability)
    assert (released <= allowed) == (below == 0)


def test_wrong_settings_raise():
    for wrong in ({"epsilon": 0.0}, {"delta": 1.0}, {"relation": "swap"}, {"max_rows_per_unit": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}|neighboring_relation"):
            plan(**wrong)


def test_more_budget_is_less_noise():
    stds = [plan(epsilon=value).survey_noise_std(15) for value in (0.5, 1.0, 3.0)]
    assert np.all(np.diff(stds) < 0)
