"""The Gaussian filter: adaptively chosen Gaussian sessions are one Gaussian query, exactly."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from tacita.accounting import (
    CoupledEvent,
    DisjointLaw,
    FullBatchLaw,
    GaussianFilter,
    GaussianSumEvent,
    LaplaceEvent,
    PoissonLaw,
    RenyiFilter,
    Spend,
    StableCountsEvent,
    epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from tacita.errors import BudgetExceededError, LedgerError, UnsupportedEventError
from tacita.ledger import Ledger
from tacita.ledger.journal import read_file

CAP, DELTA = 3.0, 1e-5
M = gaussian_mu(CAP, DELTA)


def sums(mu, law=None):
    return GaussianSumEvent(
        relation="add_or_remove_one", sampling=law or FullBatchLaw(), max_contribution=(1.0,), noise_std=(1 / mu,)
    )


def book(path=None, **terms):
    terms = {"max_epsilon": CAP, "max_delta": DELTA, "filter": "gaussian", **terms}
    return Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row", **terms)


def make(session):
    session.open()
    session.reserve(0, session.planned_queries - 1)
    for number in range(session.planned_queries):
        session.spend(number, "aa")


@pytest.mark.parametrize("cap", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_the_whole_budget_is_the_cap_and_never_below(cap, delta):
    rule = GaussianFilter(max_epsilon=cap, max_delta=delta)
    assert rule.epsilon(delta) == pytest.approx(cap, rel=1e-9)
    assert rule.delta(cap) == pytest.approx(delta, rel=1e-7)
    mu = math.sqrt(2 * rule.budget)  # against SciPy's normal distribution
    exact = norm.cdf(mu / 2 - cap / mu) - math.exp(cap) * norm.cdf(-mu / 2 - cap / mu)
    assert rule.delta(cap) >= exact * (1 - 1e-9)


def test_sessions_are_exactly_one_composed_gaussian():
    """Late sessions cost what the same sessions cost that are all fixed beforehand."""
    ledger = book()
    mus = [M * share for share in (0.3, 0.5, 0.1, 0.6)]
    for mu in mus:
        make(ledger.register(sums(mu), planned_queries=1))
    together = epsilon([Spend(sums(mu), 1) for mu in mus], DELTA).epsilon
    assert ledger.epsilon_spent(DELTA) == pytest.approx(together, rel=1e-9)
    assert ledger.epsilon(DELTA) == pytest.approx(CAP, rel=1e-9)
    assert ledger.epsilon(1e-8) == pytest.approx(gaussian_epsilon(M, 1e-8), rel=1e-9)
    assert ledger.delta(1.0) == pytest.approx(gaussian_delta(M, 1.0), rel=1e-7)


def test_the_next_noise_may_follow_a_release_until_the_budget_is_spent():
    """An analyst who chooses each mu by what was released, from coins, never gets past M."""
    for seed in range(5):
        generator, ledger, spent = np.random.default_rng(seed), book(), []
        released = 0.0
        while True:
            mu = M * (0.2 if released > 0 else 0.45)
            if math.fsum(one**2 for one in (*spent, mu)) > M**2:
                with pytest.raises(BudgetExceededError, match=r"exceed the cap: epsilon 3 \(Gaussian filter"):
                    ledger.register(sums(mu), planned_queries=1)
                break
            make(ledger.register(sums(mu), planned_queries=1))
            released = mu + generator.normal()
            spent.append(mu)
        assert ledger.epsilon_spent(DELTA) == pytest.approx(gaussian_epsilon(math.hypot(*spent), DELTA), rel=1e-9)
        assert ledger.epsilon_spent(DELTA) <= ledger.epsilon(DELTA)


LAST, FIRST = 0.6, 0.8  # M = 1: a first query of 0.8, then one of 0.6, or two of 0.36 and 0.48, by its sign


def adaptive_delta(eps, second):
    """Return the exact delta, by quadrature, of a query of FIRST and then one of mu = ``second(x)``."""
    x = np.linspace(-10, 10, 20_001)
    loss = FIRST * x - FIRST**2 / 2  # of the first query, x from world 0
    given = np.array(
        [gaussian_delta(float(second(one)), eps - one_loss) for one, one_loss in zip(x, loss, strict=True)]
    )
    return float(np.sum(norm.pdf(x - FIRST) * given) * (x[1] - x[0]))


@pytest.mark.parametrize("eps", [0.0, 0.5, 1.0, 3.0])
def test_a_choice_by_the_release_is_within_one_gaussian_query(eps):
    """E over the first release of the second's delta: below M's for every rule, equal to it if all is spent."""
    whole = gaussian_delta(1.0, eps)
    assert adaptive_delta(eps, lambda x: LAST) == pytest.approx(whole, rel=1e-6)
    for rule in (lambda x: LAST * (x > 0), lambda x: LAST * (x < 0), lambda x: LAST * abs(math.sin(3 * x))):
        assert adaptive_delta(eps, rule) <= whole * (1 + 1e-6)


def test_a_second_query_beyond_the_budget_is_caught():
    """The twin: a rule that looks at the release and spends a tenth more is above M's delta."""
    assert adaptive_delta(1.0, lambda x: LAST * (1.1 if x > 0 else 1.0)) > gaussian_delta(1.0, 1.0) * 1.01


def test_what_is_gaussian_as_a_whole_passes_and_nothing_else():
    ledger = book()
    ledger.register(sums(0.1, DisjointLaw(own_coin=True)), planned_queries=10)
    assert GaussianFilter(max_epsilon=CAP, max_delta=DELTA).divergence(
        [Spend(sums(0.1, DisjointLaw(own_coin=True)), 10)]
    ) == pytest.approx(0.1**2 / 2)
    refused = [
        sums(0.1, PoissonLaw(0.1)),
        LaplaceEvent(relation="add_or_remove_one", l1_sensitivity=1.0, scale=30.0),
        StableCountsEvent(
            relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(50.0,), failure_probability=1e-9
        ),
        CoupledEvent(relation="add_or_remove_one", inner=sums(0.1), failure_probability=1e-9),
    ]
    for event in refused:
        with pytest.raises(UnsupportedEventError, match=r"filter_order .*register_share"):
            ledger.register(event, planned_queries=1)
    with pytest.raises(UnsupportedEventError, match="register_share"):
        ledger.register_share(0.1, 1e-7)
    with pytest.raises(BudgetExceededError):
        ledger.register(
            GaussianSumEvent(
                relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(0.0,)
            ),
            planned_queries=1,
        )


@pytest.mark.parametrize(("cap", "delta", "saved"), [(1.0, 1e-5, 0.084), (3.0, 1e-5, 0.0738), (8.0, 1e-8, 0.0462)])
def test_the_noise_that_it_saves_against_the_best_order(cap, delta, saved):
    """The table of docs/derivations/composition.md, section 5."""

    def largest(order):
        try:
            return math.sqrt(2 * RenyiFilter(order=order, max_epsilon=cap, max_delta=delta).budget / order)
        except ValueError:
            return 0.0

    best = max(largest(float(order)) for order in np.geomspace(1.1, 200, 500))
    assert gaussian_mu(cap, delta) / best - 1 == pytest.approx(saved, abs=1e-3)


def test_the_terms_survive_the_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with book(path) as ledger:
        make(ledger.register(sums(0.3), planned_queries=1))
    assert read_file(path).entries[0]["filter"] == "gaussian"
    again = Ledger.load(path, read_only=False)
    assert (again.filter, again.filter_order, again.epsilon(DELTA)) == ("gaussian", None, ledger.epsilon(DELTA))
    again.register(sums(0.3), planned_queries=1)  # after a release
    again.close()
    with pytest.raises(LedgerError, match="another filter"):
        book(path, filter=None)


def test_a_ledger_without_it_is_written_as_before(tmp_path):
    """So that ledgers of earlier versions, which have no such field, are read."""
    path = tmp_path / "ledger.jsonl"
    with book(path, filter=None, filter_order=20.0) as ledger:
        ledger.register(sums(0.1), planned_queries=1)
    assert "filter" not in read_file(path).entries[0]
    assert Ledger.load(path).filter is None


def test_the_whole_curve_is_known():
    ledger = book()
    ledger.register(sums(0.2), planned_queries=1)
    curve = ledger.conditional_curve()
    assert curve.whole
    assert float(curve.deltas(np.array([1.0]))[0]) == pytest.approx(gaussian_delta(M, 1.0), rel=1e-7)


@pytest.mark.parametrize(
    "wrong", [{"filter": "renyi"}, {"filter_order": 8.0}, {"max_epsilon": None, "max_delta": None}]
)
def test_wrong_terms_are_refused(wrong):
    with pytest.raises(ValueError, match=r"filter must be|must have one filter|needs a cap"):
        book(**wrong)
