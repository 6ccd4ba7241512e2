"""The plan: everything together stays within the target, and uses it up."""

import msgspec
import numpy as np
import pytest

from tacita.accounting import epsilon
from tacita.ledger import Ledger
from tacita.mechanisms import CalibratedGaussian
from tacita.tables.plan import TablePlan
from tacita.tables.schema import CategorySpec, NumberSpec, Schema, Target
from tacita.tables.source import TableSource
from tacita.tables.table import NumberColumn, Table, TextColumn

CLASSES = Target(column="label", classes=("no", "yes"))
DECLARED = {"x": NumberSpec(lower=0.0, upper=1.0), "kind": CategorySpec(values=("a", "b"))}


def source(**changes) -> TableSource:
    columns = {
        "x": NumberColumn(np.zeros(3)),
        "kind": TextColumn.of("aba"),
        "label": TextColumn.of(["no", "yes", "no"]),
    }
    schema = msgspec.structs.replace(Schema(target=Target(column="label")), **changes)
    to_buy = schema.to_buy(("x", "kind"))
    return TableSource(Table(columns), schema, ("x", "kind"), to_buy)


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
    plan = TablePlan.of(chosen, source(**given))
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
    sessions = TablePlan.of(settings(), source()).register(ledger, {}, secure=True)
    assert not sessions.train.part.overlaps(sessions.score.part)
    assert sessions.rows.part is None is sessions.survey.part is sessions.refinement.part
    in_sequence = [*ledger.spends(sessions.train.part), *ledger.spends(sessions.score.part)[3:]]
    assert epsilon(in_sequence, 1e-3).epsilon > ledger.epsilon(1e-3) * 1.1


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_is_in_both_histograms_of_the_score(settings, rows: int) -> None:
    unit = {} if rows == 1 else {"unit": "kind", "max_rows_per_unit": rows}
    plan = TablePlan.of(settings(), source(**unit))
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one")
    session = plan.register(ledger, {}, secure=True).score
    assert session.event.max_contribution == (rows, rows)
    noise_std = plan.score_noise_std(session)
    assert tuple(noise_std.values()) == session.event.noise_std
    assert noise_std["classes"] == pytest.approx(3**0.5 * noise_std["score"])
    assert session.event.query_mu**2 == pytest.approx(sum((rows / std) ** 2 for std in noise_std.values()))


@pytest.mark.parametrize(
    ("given", "task", "bought"),
    [
        ({}, None, {"rows", "survey", "refinement"}),
        ({"rows": 100}, None, {"rows", "survey", "refinement"}),  # for the task
        ({"rows": 100}, "classification", {"survey", "refinement"}),
        ({"columns": DECLARED}, "classification", {"rows", "survey"}),
        ({"columns": DECLARED}, "regression", {"rows", "survey", "refinement"}),
        ({"columns": DECLARED, "target": CLASSES}, None, {"rows"}),
        ({"columns": DECLARED, "target": CLASSES, "rows": 100}, None, set()),
    ],
)
def test_what_does_not_matter_costs_nothing(settings, given: dict, task: str | None, bought: set[str]) -> None:
    target = {} if task is None else {"target": Target(column="label", task=task)}
    plan = TablePlan.of(settings(), source(**given, **target))
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    sessions = plan.register_purchases(ledger, {}, secure=True)
    assert {session.purpose for session in ledger.sessions} == bought
    assert len(sessions.spends) == len(bought)
    assert (plan.purchases_share > 0) == bool(bought)


def test_a_person_costs_more_than_a_row(settings) -> None:
    noise = {}
    for rows in (1, 3):
        plan = TablePlan.of(settings(epsilon=1.0, delta=1e-5), source(unit="kind", max_rows_per_unit=rows))
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
        plan = TablePlan.of(chosen, source())
        sessions = plan.register(ledger, {}, secure=True)
        target = CalibratedGaussian(target_epsilon=chosen.epsilon, target_delta=chosen.delta)
        beside = ledger.spends(sessions.train.part, before=sessions.train)
        again = target.resolve(plan.train_event, "replace_one", plan.training.queries, beside)
        assert plan.train_event(again.noise_multiplier) == sessions.train.event


def test_noise_follows_from_public_numbers_alone(settings) -> None:
    """Other rows, other counts: the same plan."""
    plans = [TablePlan.of(settings(), source()) for _ in range(2)]
    assert plans[0] == plans[1]
