"""A Gaussian query of a random mu that is shown."""

import numpy as np
import pytest
from scipy.stats import binom

from tacita.accounting._gaussian_mixture import ShownGaussianPair, mixed_deltas, on_fewer_nodes
from tacita.accounting.gaussian import gaussian_delta, gaussian_deltas

EPSILONS = np.array([-3.0, -0.2, 0.0, 1e-3, 0.05, 0.3, 1.0, 4.0, 9.0])


@pytest.mark.parametrize("mu", [0.0, 1e-9, 5e-4, 0.03, 1.0, 12.0, np.inf])
def test_deltas_are_those_of_one_query(mu):
    expected = [gaussian_delta(mu, epsilon) for epsilon in EPSILONS]
    assert mixed_deltas(EPSILONS, np.array([1.0]), np.array([mu])) == pytest.approx(expected, rel=1e-12, abs=1e-300)
    positive = EPSILONS[EPSILONS >= 0]
    assert gaussian_deltas(positive, np.array(mu)) == pytest.approx(expected[2:], rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("scale", "power"), [(1e-5, 1.0), (1e-3, 0.5), (3e-6, 1.0), (2e-8, 1.0)])
def test_fewer_nodes_bound_all(scale, power):
    counts = np.arange(90_000, 110_000, 3)
    mus, chances = scale * counts**power, binom.pmf(counts, 10**6, 0.1)
    fewer, nodes = on_fewer_nodes(chances, mus)
    assert len(nodes) < len(mus) / 5
    exact = mixed_deltas(EPSILONS, chances, mus)
    found = mixed_deltas(EPSILONS, fewer, nodes)
    assert np.all(found >= exact)
    assert np.all(found <= exact * (1 + 1e-4) + 1e-30)


def test_few_values_stay_as_they_are():
    chances, mus = np.array([0.5, 0.5]), np.array([0.1, 0.2])
    assert on_fewer_nodes(chances, mus) == (chances, mus)


def test_a_pair_of_many_mus_is_above_them_all():
    counts = np.arange(9_000, 11_000)
    mus, chances = 1e-4 * counts, binom.pmf(counts, 10**5, 0.1)
    fewer, nodes = on_fewer_nodes(chances, mus)
    pair = ShownGaussianPair(tuple(nodes.tolist()), tuple(fewer.tolist()), 1e-20)
    law = pair.law(2.0**-8, pair.reach(1e-18, swapped=False), swapped=False)
    for epsilon in (0.0, 0.5, 2.0):
        exact = mixed_deltas(np.array([epsilon]), chances, mus)[0]
        found = law.infinity + law.masses @ np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - law.losses)))
        assert exact <= found <= exact * 1.01
