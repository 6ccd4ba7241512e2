"""What is read off a composition: never more than its arithmetic can carry."""

import math

import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from tacita import accounting as acc
from tacita.accounting._pld_accountant import _read_epsilon, pld_delta, pld_epsilon, slack


def losses(mass, *, first=-10, interval=0.1):
    return PrivacyLossDistribution(pld_pmf.DensePLDPmf(interval, first, mass, 0.0, True))


def test_a_whole_distribution_is_read():
    found = _read_epsilon(losses([0.05] * 20), 1e-2)
    assert 0 < found < math.inf
    assert losses([0.05] * 20).get_delta_for_epsilon(found) <= 1e-2 * (1 + 1e-6)


@pytest.mark.parametrize("missing", [1e-4, 0.1])
def test_mass_that_went_missing_is_taken_off_delta(missing):
    torn = losses([0.05] * 19 + [0.05 - missing])
    assert _read_epsilon(torn, missing / 2) == math.inf
    assert _read_epsilon(torn, 2e-1) >= _read_epsilon(losses([0.05] * 20), 2e-1)


def test_nothing_is_read_below_what_transforms_resolve(events):
    spends = (acc.Spend(events.poisson(0.01, 1.0), 1000),)
    lost = slack(spends)
    assert lost >= 1000 * 2.0**-52  # one rounding a composition
    assert pld_epsilon(spends, 1.5 * lost).value == math.inf
    assert pld_epsilon(spends, 1e6 * lost).value < math.inf
    assert pld_delta(spends, 1e3).value >= lost


def test_losses_beyond_every_grid_are_left_to_the_renyi_divergences(events):
    """A Gaussian of mu = 3000 beside a sampled one: an interval of the widest grid is larger than exp can take."""
    spends = (acc.Spend(events.full(1 / 3000), 1), acc.Spend(events.poisson(0.01, 1.0), 10))
    assert pld_epsilon(spends, 1e-5).value == math.inf
    assert pld_delta(spends, 1.0).value == 1.0
    bound = acc.epsilon(spends, 1e-5)
    assert 3000**2 / 2 < bound.epsilon < 3000**2
    assert bound.accountant == "RDP (dp_accounting)"
    assert acc.delta(spends, 1.0).delta == 1.0
