"""The plan: everything together stays within the target, and uses it up."""

import msgspec
import numpy as np
import pytest

from tacita.accounting import Ledger, epsilon
from tacita.mechanisms import CalibratedGaussian
from tacita.pipeline.plan import Plan
from tacita.pipeline.source import Source
from tacita.tables.schema import CategorySpec, NumberSpec, Schema, Target
from tacita.tables.table import NumberColumn, Table, TextColumn

CLASSES = Target(column="label", classes=("no", "yes"))
DECLARED = {"x": NumberSpec(lower=0.0, upper=1.0), "kind": CategorySpec(values=("a", "b"))}


def source(**changes) -> Source:
    columns = {
        "x": NumberColumn(np.zeros(3)),
        "kind": TextColumn.of("aba"),
        "label": TextColumn.of(["no", "yes", "no"]),
    }
    schema = msgspec.structs.replace(Schema(target=Target(column="label")), **changes)
    to_buy = schema.to_buy(("x", "kind")) or (() if schema.rows else ("label",))
    return Source(Table(columns), schema, ("x", "kind"), to_buy)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out_one"])
@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, {}),
        ({}, {"test_file": "t.csv"}),
        ({}, {"non_private_holdout": True}),
        ({"columns": DECLARED, "target": CLASSES, "rows": 100}, {}),
        ({"columns": DECLARED, "target": CLASSES}, {"test_file": "t.csv"}),
    ],
)
def test_the_target_is_kept_and_used(settings, given: dict, asked: dict, relation: str) -> None:
    chosen = settings(epsilon=1.0, delta=1e-5, queries=40, sample_rate=0.1, neighboring_relation=relation, **asked)
    plan = Plan.of(chosen, source(**given))
    ledger = Ledger(neighboring_relation=relation, privacy_unit="one row")
    sessions = plan.register(ledger, {}, secure=True)
    assert 0.995 <= ledger.epsilon(1e-5) <= 1.0
    assert (sessions.survey is None) == (plan.columns_to_buy == 0)
    assert (sessions.score is None) == bool(asked)
    for session in (sessions.train, sessions.score):  # each beside the purchases uses all of it: they share no row
        if session is not None:
            assert 0.995 <= epsilon(ledger.spends(session.part), 1e-5).epsilon <= 1.0
    assert plan.register(ledger, {}, secure=True) == sessions  # a second time registers nothing
    assert len(ledger.sessions) == sum(session is not None for session in vars(sessions).values())


def test_the_score_shares_no_row_with_the_training_but_all_with_the_purchases(settings) -> None:
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    sessions = Plan.of(settings(), source()).register(ledger, {}, secure=True)
    assert not sessions.train.part.overlaps(sessions.score.part)
    assert sessions.survey.part is None is sessions.refinement.part
    in_sequence = [*ledger.spends(sessions.train.part), *ledger.spends(sessions.score.part)[2:]]
    assert epsilon(in_sequence, 1e-3).epsilon > ledger.epsilon(1e-3) * 1.1


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_is_in_every_histogram_of_the_score(settings, rows: int) -> None:
    """One of right and wrong; two of squared errors, and two as long as the task is not known."""
    unit = {} if rows == 1 else {"unit": "kind", "max_rows_per_unit": rows}
    for target, histograms in ((CLASSES, 1), (Target(column="label"), 2)):
        plan = Plan.of(settings(), source(target=target, **unit))
        ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one")
        session = plan.register(ledger, {}, secure=True).score
        assert session.event.max_contribution == pytest.approx((rows * histograms**0.5,))
        assert plan.score_noise_std(session, histograms) == pytest.approx(session.event.noise_std[0])
        if histograms == 2:  # found to be a classification: half the histograms, the same ratio
            assert plan.score_noise_std(session, 1) == pytest.approx(session.event.noise_std[0] / 2**0.5)


def test_a_person_costs_more_than_a_row(settings) -> None:
    noise = {}
    for rows in (1, 3):
        plan = Plan.of(settings(epsilon=1.0, delta=1e-5), source(unit="kind", max_rows_per_unit=rows))
        ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one person")
        sessions = plan.register(ledger, {}, secure=True)
        assert ledger.epsilon(1e-5) <= 1.0
        noise[rows] = [sessions.survey.event.noise_std[0], sessions.train.event.noise_std[0]]
    assert noise[3][0] == pytest.approx(3 * noise[1][0])
    assert noise[3][1] > 1.5 * noise[1][1]


def test_calibrating_again_gives_the_registered_noise_to_the_last_bit(settings) -> None:
    for threshold in (0.1, 0.7, 1.0, 1.3, 3.0):
        ledger = Ledger(neighboring_relation="replace_one", privacy_unit="one row")
        chosen = settings(max_grad_norm=threshold, neighboring_relation="replace_one")
        plan = Plan.of(chosen, source())
        sessions = plan.register(ledger, {}, secure=True)
        target = CalibratedGaussian(target_epsilon=chosen.epsilon, target_delta=chosen.delta)
        beside = ledger.spends(sessions.train.part, before=sessions.train)
        again = target.resolve(plan.train_event, "replace_one", plan.training.queries, beside)
        assert plan.train_event(again.noise_multiplier) == sessions.train.event


def test_noise_follows_from_public_numbers_alone(settings) -> None:
    """Other rows, other counts: the same plan."""
    plans = [Plan.of(settings(), source()) for _ in range(2)]
    assert plans[0] == plans[1]
