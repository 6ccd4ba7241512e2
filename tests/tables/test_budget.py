"""The purchases' budget: noise, sensitivity and events agree, and everything together stays within (epsilon, delta)."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacita.accounting.accountant import Spend, epsilon
from tacita.accounting.calibration import calibrate
from tacita.accounting.events.counts import stable_failure_probability
from tacita.accounting.events.gaussian_sums import GaussianSumEvent
from tacita.accounting.relations import RELATIONS, moved
from tacita.accounting.sampling_laws import FullBatchLaw, PoissonLaw
from tacita.tables import PurchasePlan, Schema, Target
from tacita.tables.budget import NEW_TEXTS, text_threshold
from tacita.tables.survey import survey_counts
from tacita.tables.task import task_counts
from tests.tables.buying import buy_survey


def plan(relation="add_or_remove_one", **settings):
    return PurchasePlan(**{"epsilon": 1.0, "delta": 1e-5, "relation": relation, **settings})


def moved_by(table_of, before, after, *, columns=("a", "b"), schema=None, lean=False):
    """L2 distance of the survey's counts of two tables of two columns."""
    one, two = (
        survey_counts(table_of("a,b", *lines), schema or Schema(), columns, lean=lean) for lines in (before, after)
    )
    squares = float((one.bins - two.bins).square().sum())
    for i in range(len(columns)):
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


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("relation", "after"), [("add_or_remove_one", ["1,x"]), ("replace_one", ["1,x", "y,7"])])
def test_columns_and_target_are_two_blocks_of_one_query(table_of, relation, after, lean):
    """What the counts of a row can move, over their noise, is what the event states: lean or not, target included."""
    settings, schema = plan(relation), Schema(target=Target(column="b"))
    event = settings.survey_event(1, target=True)
    histograms = 1 if lean else 2
    squares = 0.0
    for columns, noise_std, is_lean in (
        (["a"], settings.survey_noise_std(1, histograms), lean),
        (["b"], settings.target_noise_std(), True),  # labels are texts: the lean counts are the target's one histogram
    ):
        moved = moved_by(table_of, ["1,x", "-4,z"], after, columns=columns, schema=schema, lean=is_lean)
        squares += (moved / noise_std) ** 2
    assert math.sqrt(squares) == pytest.approx(event.query_mu)


def test_the_query_of_rows_and_task_moves_one_bin(table_of):
    schema = Schema(target=Target(column="b"))
    known = Schema(target=Target(column="b", classes=("y", 7)))
    for declared, unreadable in ((schema, True), (known, True), (schema, False)):
        before = task_counts(table_of("a,b", "1,x"), declared, unreadable=unreadable)
        for line in ("1,", "1,y", "1,7", "1,7.5", "1,1e300", "1,-5", " ", "1", "1,2,3", '1,"2'):
            moved = task_counts(table_of("a,b", "1,x", line), declared, unreadable=unreadable) - before
            wide = line in (" ", "1", "1,2,3")
            assert sorted(moved.tolist()) == [0, 0, 0, 0, 1 if unreadable or not wide else 0]
    assert plan().rows_event().query_mu == pytest.approx(1 / plan().rows_noise_std())


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("columns", "share"), [(0, 0.08), (1, 0.18), (3, 0.38), (2000, 0.38)])
def test_purchases_have_their_share_of_the_budget(relation, rows, columns, share):
    settings = plan(relation, max_rows_per_unit=rows)
    events = [settings.rows_event(), settings.survey_event(columns, target=True)]
    events += [settings.refinement_event(columns)] if columns else []
    spent = math.hypot(*(event.query_mu for event in events))
    assert spent**2 == pytest.approx(share * settings.total_mu**2)
    assert epsilon([Spend(event, 1) for event in events], 1e-5).epsilon < 1


def test_the_refinement_spends_the_same_whatever_number_of_columns_is_numeric():
    settings = plan()
    event = settings.refinement_event(15)
    for numeric in (1, 6, 15):
        assert math.sqrt(numeric) / settings.refinement_noise_std(numeric, of=15) == pytest.approx(event.query_mu)


def test_training_beside_the_purchases_needs_the_published_multiplier():
    settings = plan()
    events = [settings.rows_event(), settings.survey_event(14, target=True), settings.refinement_event(14)]
    purchases = [Spend(event, 1) for event in events]

    def training(multiplier):
        return GaussianSumEvent(
            relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(multiplier,), sampling=PoissonLaw(0.1)
        )

    found = calibrate(training, "add_or_remove_one", 1.0, 1e-5, alongside=purchases, queries=400)
    assert found == pytest.approx(9.63, rel=0.005)
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


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (15, 1), (15, 3)])
def test_columns_and_labels_together_fail_as_rarely_as_the_event_says(relation, columns, rows):
    """One purchase has both thresholds, and each may take half: with all of it for either they would take 1.5 times."""
    settings = plan(relation, epsilon=0.02, max_rows_per_unit=rows)  # much noise, so that whole counts cost little
    chance = sum(
        stable_failure_probability(noise_std, threshold - 0.5, new_bins=new, rows_per_unit=rows)
        for noise_std, threshold, new in (
            (settings.survey_noise_std(columns), settings.threshold(columns), columns),
            (settings.target_noise_std(), settings.target_threshold(), 1),
        )
    )
    stated = settings.survey_event(columns, target=True).guarantee(1).additive_delta
    assert 0.9 * stated < moved(relation) * chance <= stated <= NEW_TEXTS * settings.delta * (1 + 1e-12)


def test_the_threshold_counts_what_rounding_adds():
    """A count that was rounded to t was t - 1/2 at least. Noises of every size, so that no integer hides the half."""
    for noise_std in np.linspace(0.5, 40.0, 400):
        threshold = text_threshold(noise_std, 1e-6, 1)
        assert norm.sf((threshold - 0.5 - 1) / noise_std) <= 1e-6
        assert norm.sf((threshold - 1.5 - 1) / noise_std) > 1e-6 * (1 - 1e-9)  # one less would be too low


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


@pytest.mark.parametrize("relation", RELATIONS)
def test_purchases_and_a_training_with_all_that_is_left_are_the_budget(relation):
    """Of mu^2 and of delta: texts of one record alone take their share of it once."""
    settings = plan(relation, max_rows_per_unit=2)
    purchases = [settings.rows_event(), settings.survey_event(14, target=True), settings.refinement_event(14)]
    rest = math.sqrt(settings.total_mu**2 - sum(event.query_mu**2 for event in purchases))
    training = GaussianSumEvent(
        relation=relation, max_contribution=(1.0,), noise_std=(moved(relation) / rest,), sampling=FullBatchLaw()
    )
    spent = epsilon([Spend(event, 1) for event in (*purchases, training)], settings.delta).epsilon
    assert spent == pytest.approx(settings.epsilon, rel=1e-6)


def test_more_budget_is_less_noise():
    stds = [plan(epsilon=value).survey_noise_std(15) for value in (0.5, 1.0, 3.0)]
    assert np.all(np.diff(stds) < 0)
