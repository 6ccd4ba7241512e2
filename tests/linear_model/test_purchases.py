"""What the estimators buy: the noise of the counts is that which the session's event states."""

import numpy as np
from scipy.stats import chi2

import tacita
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.purchases import buy_counts
from tacita.random import Randomness

BINS = 40_000


def test_bought_counts_have_the_noise_of_their_event():
    """Over 40,000 bins a standard deviation that is 5 % too small is 14 deviations of the test away."""
    ledger = tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row")
    event = FitBudget(epsilon=1.0, delta=1e-6, relation="zero_out_one", scales=0.01).scales_event(1)
    session = ledger.register(event, planned_queries=1, purpose="bounds", settings={}, secure_randomness=False)
    found = buy_counts(session, {"rows": np.full(BINS, 300.0)}, Randomness.insecure(0))["rows"]
    (noise_std,) = event.noise_std
    assert noise_std > 30  # next to which the rounding to whole numbers is nothing
    squares = float(np.square(found - 300.0).sum()) / (noise_std**2 + 1 / 12)
    assert chi2.ppf(1e-6, BINS) < squares < chi2.ppf(1 - 1e-6, BINS)
    assert session.queries_made == 1
    assert session.closed
