"""The solvers of a descent: what each is charged, what neighbours see, what it learns, what is refused."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tacita.linear import SecondMomentEvent
from tacita.linear_model import (
    PrivateHuberRegressor,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateQuantileRegressor,
    classes,
    rules,
)
from tacita.linear_model.budget import FitBudget

CLASSIFIERS = (PrivateLogisticRegression, PrivateLinearSVC)
KINDS = (*CLASSIFIERS, PrivateHuberRegressor, PrivateQuantileRegressor)
DELTA = 1e-6


def made(kind, solver, epsilon=1.0, **more):
    classes = {"classes": [0, 1]} if kind in CLASSIFIERS else {"target_range": (-8.0, 8.0)}
    settings = {"delta": DELTA, "data_norm": 3.0, "insecure_seed": 0, **classes, **more}
    return kind(epsilon=epsilon, solver=solver, **settings)


def data(kind, n=4000, d=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    scores = x @ np.array([1.0, -2.0, 0.5, 0.0][:d]) + 0.5 * rng.logistic(size=n)
    return x, (scores > 0).astype(int) if kind in CLASSIFIERS else scores


@pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])
@pytest.mark.parametrize("solver", rules.SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_budget_is_spent_and_no_more(kind, solver, relation):
    model = made(kind, solver, steps=rules.REFRESH + 2, neighboring_relation=relation, data_norm=None)
    model.fit(*data(kind, 300))
    ledger = model.ledger_
    assert 0.999 < ledger.epsilon(DELTA) <= 1.0
    assert ledger.epsilon_spent(DELTA) == ledger.epsilon(DELTA)
    assert all(session.closed for session in ledger.sessions)
    matrices = [s.queries_made for s in ledger.sessions if isinstance(s.event, SecondMomentEvent)]
    assert matrices == {"preconditioned": [1], "newton": [2], "momentum": []}[solver]
    assert model.plan_.method == solver
    assert f"solver = {solver}" in model.statement_


@pytest.mark.parametrize("solver", rules.SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_solver_finds_the_direction(kind, solver):
    found = made(kind, solver, epsilon=20.0).fit(*data(kind)).coef_.ravel()
    true = np.array([1.0, -2.0, 0.5, 0.0])
    assert found @ true / np.linalg.norm(found) / np.linalg.norm(true) > 0.99


def test_newton_steps_are_ahead_where_the_curvature_of_the_loss_falls(monkeypatch):
    """At a steep minimum most rows are far from the boundary, where the bound 1/4 is far too large: short steps.

    Momentum would make up for them.
    """
    monkeypatch.setattr(rules, "FEW_SIZE", math.inf)
    x, y = data(PrivateLogisticRegression)
    true = LogisticRegression(C=np.inf).fit(x, y).coef_
    far = {}
    for solver in ("preconditioned", "newton"):
        model = made(PrivateLogisticRegression, solver, epsilon=1e4, max_grad_norm=1.0, data_norm=5.0)
        far[solver] = np.linalg.norm(model.fit(x, y).coef_ - true) / np.linalg.norm(true)
    assert far["newton"] < 0.7 * far["preconditioned"]


@pytest.mark.parametrize("hostile", [math.nan, 1e300])
@pytest.mark.parametrize("solver", ["newton", "momentum"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_row_moves_little_and_raises_nothing(kind, solver, hostile):
    x, y = data(kind, 1000)
    clean = made(kind, solver, epsilon=10.0, steps=16).fit(x, y)
    x[7, 1] = hostile
    found = made(kind, solver, epsilon=10.0, steps=16).fit(x, y)
    assert np.isfinite(found.coef_).all()
    assert found.coef_ == pytest.approx(clean.coef_, abs=0.05)


def test_several_classes_and_a_table_without_any_signal():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 3))
    y = (x @ rng.standard_normal((3, 4))).argmax(1)
    for solver in rules.SOLVERS:
        more = {"classes": [0, 1, 2, 3]}
        assert made(PrivateLogisticRegression, solver, epsilon=5.0, **more).fit(x, y).score(x, y) > 0.8
        found = made(PrivateLogisticRegression, solver, epsilon=0.01, **more).fit(np.zeros((30, 3)), y[:30])
        assert np.isfinite(found.coef_).all()


def test_the_noise_of_many_steps_with_momentum_stays_small():
    budget = FitBudget(epsilon=0.1, delta=DELTA, relation="zero_out_one")
    rule = rules.descent_rule(solver="momentum", max_derivative=1.0, steps=100)
    lr = rules.momentum_lr(num_records=500, curvature=0.25, rule=rule, budget=budget)
    noise = budget.noise_multiplier(1.0, 100) * rule.max_grad_norm / 500  # of each query, on the mean gradient
    assert lr * noise * math.sqrt(100) / (1 - rules.MOMENTUM) == pytest.approx(rules.WANDERING)
    assert rules.momentum_lr(num_records=10**9, curvature=0.25, rule=rule, budget=budget) == 4.0


@pytest.mark.parametrize(("solver", "matrices"), [("preconditioned", 1), ("newton", 7)])
def test_the_damping_knows_how_many_matrices_share_their_budget(solver, matrices):
    """One of seven Hessians has sqrt(7) times the noise of one that has the whole share to itself."""
    budget = FitBudget(epsilon=1.0, delta=DELTA, relation="zero_out_one", moments=0.2)
    rule = rules.descent_rule(solver=solver, max_derivative=1.0, steps=7 * rules.REFRESH - 1)
    found = rules.damping(num_records=500, dim=8, outputs=2, curvature=0.25, rule=rule, budget=budget)
    of_matrix = 0.25 * 4 / (budget.mu * math.sqrt(0.2 / matrices))
    of_gradients = 0.35 * 4 / (budget.mu * math.sqrt(0.8))
    assert found == pytest.approx(0.5 * (of_matrix + of_gradients) / 500)


def test_the_rule_for_quantiles_is_one_of_public_numbers():
    """mu n / d: at epsilon 1, 3 columns and 400 rows it is 32."""
    for rows, solver in ((300, "newton"), (400, "preconditioned")):
        for hostile in (1.0, math.nan):
            x, y = data(PrivateQuantileRegressor, rows, 3)
            x[0, 0] = hostile
            for quantile, chosen in ((0.9, solver), (0.1, solver), (0.5, "preconditioned")):
                model = made(PrivateQuantileRegressor, None, steps=3, quantile=quantile).fit(x, y)
                assert model.plan_.method == chosen
    assert made(PrivateHuberRegressor, None, steps=3).fit(x[:300], y[:300]).plan_.method == "preconditioned"


@pytest.mark.parametrize("kind", KINDS)
def test_another_solver_is_refused(kind):
    with pytest.raises(ValueError, match="solver must be one of preconditioned, newton, momentum, or None"):
        made(kind, "lbfgs").fit(*data(kind, 50))


def test_much_data_takes_few_steps_with_momentum_and_pays_for_no_more():
    """mu n / d decides, a public number: 4000 rows of 4 columns are enough at epsilon 3, and not at 0.5."""
    x, y = data(PrivateLogisticRegression)
    few = made(PrivateLogisticRegression, None, epsilon=3.0).fit(x, y)
    many = made(PrivateLogisticRegression, None, epsilon=0.5).fit(x, y)
    for model, steps, mu in ((few, rules.FEW_STEPS, 3.0), (many, rules.STEPS, 0.5)):
        budget = FitBudget(epsilon=mu, delta=DELTA, relation="zero_out_one")
        assert (budget.mu * 4000 / 4 >= rules.FEW_SIZE) == (model is few)
        assert model.plan_.steps == model.n_iter_ == steps
        assert [s.queries_made for s in model.ledger_.sessions] == [1, 1, steps]  # norm, labels
        assert 0.999 * mu < model.ledger_.epsilon(DELTA) <= mu
        assert ("momentum = 0.7" in model.statement_) == (model is few)
    again = made(PrivateLogisticRegression, None, epsilon=3.0).fit(100 * x[::-1], 1 - y)
    assert again.plan_ == few.plan_, "the rule reads public numbers alone"
    assert made(PrivateLogisticRegression, None, epsilon=3.0, steps=12).fit(x, y).plan_.steps == 12
    for kind, solver in ((PrivateLinearSVC, None), (PrivateLogisticRegression, "momentum")):
        assert made(kind, solver, epsilon=3.0).fit(*data(kind)).plan_.steps == rules.STEPS


def test_a_record_is_in_one_count_of_the_labels(monkeypatch):
    """By given classes, or beside them: what the event of the labels assumes."""
    bought, buy = [], classes.buy_counts

    def seen(session, counts, randomness):
        if "labels" in counts:
            bought.append(np.asarray(counts["labels"], float))
        return buy(session, counts, randomness)

    monkeypatch.setattr(classes, "buy_counts", seen)
    x, y = data(PrivateLogisticRegression)
    for labels in (y, np.where(np.arange(len(y)) == 0, 7, y)):
        made(PrivateLogisticRegression, None, epsilon=3.0).fit(x, labels)
    assert [counts.sum() for counts in bought] == [len(y)] * 2
    assert np.linalg.norm(bought[0] - bought[1]) == pytest.approx(2**0.5)  # one record replaced
