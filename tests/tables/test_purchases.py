"""Buying through the line: the stated noise on every count, whole numbers, one line in the ledger."""

import math
import operator

import numpy as np
import pytest
import torch

from tacita.accounting import HistogramGaussianEvent
from tacita.errors import ResumeError
from tacita.ledger import Ledger
from tacita.oracles.gate import ReleaseGate
from tacita.random import Randomness
from tacita.tables import train_table
from tacita.tables.purchases import buy

COUNTS = {
    "bins": torch.arange(1000, dtype=torch.float64).view(10, 100),
    "texts 0": torch.zeros(12, dtype=torch.float64),
}


@pytest.fixture
def session():
    event = HistogramGaussianEvent(relation="add_or_remove_one", max_contribution=(2.0,), noise_std=(13.7,))
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    return ledger.register(event, planned_queries=1, purpose="survey")


def test_every_count_gets_noise_std_times_its_own_normal_and_is_rounded(session):
    bought = buy(session, COUNTS, 13.7, Randomness.insecure(0))
    draws = (
        Randomness.insecure(0).key.stream(session.id, "noise", 0, "histograms").normals((1012,), dtype=torch.float64)
    )
    exact = torch.cat([counts.flatten() for counts in COUNTS.values()])
    expected = np.rint((exact + 13.7 * draws).numpy())
    assert np.array_equal(np.concatenate([noisy.ravel() for noisy in bought.values()]), expected)
    assert {label: noisy.shape for label, noisy in bought.items()} == {"bins": (10, 100), "texts 0": (12,)}
    assert session.queries_made == 1
    assert session.closed


def test_floating_point_noise_leaves_no_trace(session):
    bought = buy(session, COUNTS, 13.7, Randomness.insecure(0))
    assert all((noisy == np.rint(noisy)).all() for noisy in bought.values())


def test_the_same_counts_are_released_again_and_others_never(session):
    first = buy(session, COUNTS, 13.7, Randomness.insecure(0))
    again = buy(session, COUNTS, 13.7, Randomness.insecure(0))
    assert all(np.array_equal(first[label], again[label]) for label in COUNTS)
    with pytest.raises(ResumeError, match="other counts"):
        buy(session, {**COUNTS, "bins": COUNTS["bins"] + 1}, 13.7, Randomness.insecure(0))
    assert session.queries_made == 1


@pytest.mark.parametrize(
    "unit", [{}, {"drop": (), "unit_column": "patient", "max_rows_per_unit": 2}], ids=["row", "person"]
)
def test_each_purchase_has_the_noise_that_its_event_states(settings, table, monkeypatch, unit):
    """Noise over what one record adds to the histograms that are bought: they are counted here, not asked for."""
    bought, commit = {}, ReleaseGate.commit

    def spied(self, query, values, seen=None):
        if self.session.purpose != "train":
            added = {block: sum(float(one.sum()) for one in counts.values()) for block, counts in values.items()}
            bought[self.session.purpose] = (self.session.event, dict(self.noise_std), added)
        return commit(self, query, values, seen)

    monkeypatch.setattr(ReleaseGate, "commit", spied)
    train_table(settings(**unit), randomness=Randomness.insecure(0))  # both numeric columns are found
    rows, counted = unit.get("max_rows_per_unit", 1), bought["rows"][2]["histograms"]
    assert set(bought) == {"rows", "survey", "refinement", "score"}
    assert bought["refinement"][2]["histograms"] > counted  # two numeric columns: the noise grows with them
    for purpose, (event, noise_std, added) in bought.items():
        of = added["score"] if purpose == "score" else counted
        histograms = {block: math.ceil(total / of - 1e-9) for block, total in added.items()}  # bins that a row is in
        spent = math.hypot(*(rows * histograms[block] ** 0.5 / noise_std[block] for block in added))
        stated = getattr(event, "inner", event)  # what it is, if it is hardened
        charged = math.hypot(*map(operator.truediv, stated.max_contribution, stated.noise_std))
        assert 0.5 * charged <= spent <= charged * (1 + 1e-9), purpose
