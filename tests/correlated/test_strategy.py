"""The strategies of correlated noise: numbers of other programs, and every set of queries of a short session."""

import itertools
import math

import numpy as np
import pytest

from tacita.correlated.strategy import (
    POWERS,
    Factorization,
    coefficients,
    column,
    left_error,
    matrix_bands,
    movement,
    recommended_power,
    sensitivity,
)
from tacita.errors import UnsupportedEventError


def sens(bands, power, queries, separation, most_draws):
    return sensitivity(column(bands, power, queries), separation, most_draws)


def errors(weights, response):
    """What noise leaves in an iterate, over s: on average (rms), and at the end; a convolution."""
    squares = np.convolve(weights, response)[: len(response)] ** 2
    return math.sqrt(squares.cumsum().mean()), math.sqrt(squares.sum())


def norm(columns, chosen):
    """The norm of the sum of the chosen columns of the Toeplitz matrix."""
    return float(np.linalg.norm(sum(np.pad(columns, (j, 0))[: len(columns)] for j in chosen)))


def worst(columns, separation, most_draws):
    """The largest norm over all sets of at most so many queries that are at least so far apart."""
    sets = itertools.chain.from_iterable(
        itertools.combinations(range(len(columns)), size) for size in range(1, most_draws + 1)
    )
    return max(norm(columns, chosen) for chosen in sets if all(np.diff(chosen) >= separation))


def prefix(queries):
    return np.ones(queries)


def test_coefficients_and_column():
    assert coefficients(6, 0.5).tolist() == [1, -0.5, -0.125, -0.0625, -0.0390625, -0.02734375]
    assert column(4, 0.5, 6) == pytest.approx([1, 0.5, 0.375, 0.3125, 0.234375, 0.1796875], rel=1e-12)
    assert coefficients(1, 0.5).tolist() == [1.0]
    assert column(2, 0.9, 5) == pytest.approx(0.9 ** np.arange(5), rel=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 7, 16, 64])
@pytest.mark.parametrize("power", [1e-3, 0.05, 0.5, 0.9, 0.999])
def test_the_column_falls_is_not_negative_and_inverts_the_coefficients(bands, power):
    found = column(bands, power, 3000)
    assert (found >= 0).all()
    assert (np.diff(found) <= 0).all()
    assert np.convolve(found, coefficients(bands, power))[:3000] == pytest.approx(np.eye(1, 3000)[0], abs=1e-9)


@pytest.mark.parametrize(
    ("strategy", "separation", "most_draws", "expected"),
    [
        ((2, 0.9, 1000), 1000, 1, 2.294157),
        ((2, 0.9, 1000), 100, 10, 7.254936),
        ((4, 0.5, 2000), 2000, 1, 1.273736),
        ((16, 0.5, 2000), 200, 10, 4.595338),
        ((64, 0.5, 2000), 50, 40, 14.283097),
        ((8, 0.5, 500), 100, 5, 3.062249),
        ((16, 0.7, 2000), 100, 20, 11.737428),
    ],
)
def test_sensitivity_is_that_of_other_programs(strategy, separation, most_draws, expected):
    assert sens(*strategy, separation, most_draws) == pytest.approx(expected, abs=1e-6)


def test_one_draw_has_a_closed_form():
    assert sens(2, 0.9, 1000, 1000, 1) == pytest.approx(math.sqrt((1 - 0.9**2000) / (1 - 0.81)), rel=2e-9)


@pytest.mark.parametrize(
    ("bands", "power", "separation", "most_draws", "expected"),
    [
        (2, 0.5, 3, 3, 2.169772),
        (3, 0.5, 2, 4, 3.335287),
        (4, 0.7, 4, 3, 3.811677),
        (12, 0.5, 3, 4, 3.658283),
    ],
)
def test_no_set_of_queries_moves_more(bands, power, separation, most_draws, expected):
    claimed = sens(bands, power, 12, separation, most_draws)
    assert claimed == pytest.approx(expected, abs=1e-6)
    largest = worst(column(bands, power, 12), separation, most_draws)
    assert largest <= claimed <= largest * (1 + 2e-9)


def test_random_directions_move_less():
    columns, generator = column(4, 0.5, 12), np.random.default_rng(0)
    matrix = np.stack([np.pad(columns, (j, 0))[:12] for j in range(0, 12, 3)], axis=1)
    directions = generator.normal(size=(20_000, 4, 3))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    moved = np.linalg.norm(np.einsum("tj,njd->ntd", matrix, directions), axis=(1, 2))
    assert 3.1 < moved.max() <= sens(4, 0.5, 12, 3, 4) == pytest.approx(3.2734, abs=1e-4)


def test_a_column_that_rises_is_refused_because_other_sets_are_worse():
    rising = np.zeros(12)
    rising[::3] = 0.9 ** np.arange(4)  # of the coefficients 1 - 0.9 x^3
    assert np.linalg.norm(movement(rising, 2, 3)) == pytest.approx(2.9088, abs=1e-4)
    assert worst(rising, 2, 3) == pytest.approx(4.2312, abs=1e-4)
    majorant = np.maximum.accumulate(rising[::-1])[::-1]
    assert sensitivity(majorant, 2, 3) == pytest.approx(7.0902, abs=1e-4)
    for refused in (rising, np.array([1.0, -0.5])):
        with pytest.raises(UnsupportedEventError, match="column rises or is negative"):
            sensitivity(refused, 2, 3)


@pytest.mark.parametrize(
    ("bands", "power", "queries", "rms", "last"),
    [
        (4, 0.5, 2000, 9.939950, 14.014641),
        (16, 0.5, 2000, 4.742295, None),
        (64, 0.5, 2000, 2.664026, None),
        (8, 0.5, 500, 3.515305, None),
    ],
)
def test_errors_of_sums_are_those_of_other_programs(bands, power, queries, rms, last):
    found = errors(coefficients(bands, power), prefix(queries))
    assert found[0] == pytest.approx(rms, abs=1e-6)
    assert last is None or found[1] == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize("queries", [5, 100, 700])
@pytest.mark.parametrize("factors", [Factorization(8, 0.6), Factorization(8, 0.6, True), Factorization(200, 0.4, True)])
def test_the_error_that_is_left_is_a_geometric_mean_over_losses(factors, queries):
    """The noise of a banded matrix has as many weights as there were queries."""
    weights = factors.weights(queries)
    curvatures = (0, 1 / queries, 10 / queries, min(0.5, 100 / queries))
    each = [errors(weights, (1 - curvature) ** np.arange(queries))[1] for curvature in curvatures]
    assert left_error(weights, queries) == pytest.approx(math.prod(each) ** 0.25, rel=1e-9)


@pytest.mark.parametrize(("bands", "power"), [(1, 0.5), (2, 0.9), (7, 0.3), (64, 0.999)])
def test_a_banded_matrix_inverts_its_weights_and_falls(bands, power):
    factors = Factorization(bands, power, True)
    found = factors.column(300)
    assert not found[bands:].any()
    assert (np.diff(found) <= 0).all()
    assert np.convolve(found, factors.weights(300))[:300] == pytest.approx(np.eye(1, 300)[0], abs=1e-9)


def test_banded_matrices_of_other_programs():
    """The square root of the matrix of sums, cut: BSR, of which jax_privacy and opake print the same column."""
    assert matrix_bands(5, 0.5).tolist() == [1.0, 0.5, 0.375, 0.3125, 0.2734375]


@pytest.mark.parametrize(("bands", "power", "expected"), [(1, 0.5, 314.048), (2, 0.9, 72.548), (2, 0.97, 40.467)])
def test_error_with_momentum(bands, power, expected):
    heavy_ball = np.cumsum(0.9 ** np.arange(1000))
    last = errors(coefficients(bands, power), heavy_ball)[1]
    assert last * sens(bands, power, 1000, 1000, 1) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("separation", "gain"), [(1, 1.0), (2, 1.345), (5, 1.953), (20, 2.856)])
def test_nothing_is_gained_where_a_record_is_in_every_query(separation, gain):
    draws = 200 // separation
    independent = errors(coefficients(1, 0.5), prefix(200))[0] * math.sqrt(draws)
    best = min(
        errors(coefficients(2, power), prefix(200))[0] * sens(2, power, 200, separation, draws)
        for power in np.arange(1, 100) / 100
    )
    assert independent / best == pytest.approx(gain, abs=1e-3)


@pytest.mark.parametrize(
    ("queries", "separation", "powers"),
    [
        (100, 100, [0.75, 0.60, 0.50, 0.45]),
        (1000, 1000, [0.90, 0.80, 0.70, 0.60]),
        (500, 100, [0.90, 0.75, 0.60, 0.55]),
        (2000, 100, [0.95, 0.85, 0.70, 0.60]),
    ],
)
def test_the_recommended_power(queries, separation, powers):
    assert [recommended_power(queries, separation, bands) for bands in (2, 4, 8, 16)] == powers
    assert set(powers) <= set(POWERS)


def test_the_power_that_is_best_for_sums_is_worse_than_none_where_the_loss_is_steep():
    def gain(power, curvature):
        response = (1 - curvature) ** np.arange(1000)
        independent = errors(coefficients(1, 0.5), response)[1]
        return independent / (errors(coefficients(2, power), response)[1] * sens(2, power, 1000, 1000, 1))

    table = [[gain(power, h) for power in (0.5, 0.9, 0.97)] for h in (0, 0.001, 0.01, 0.1, 0.5)]
    assert np.array(table) == pytest.approx(
        np.array([[1.73, 4.16, 5.58], [1.73, 3.96, 4.33], [1.70, 2.61, 1.71], [1.46, 1.0, 0.55], [1.0, 0.46, 0.25]]),
        abs=6e-3,
    )


@pytest.mark.parametrize(("bands", "power"), [(0, 0.5), (2.0, 0.5), (2, 0.0), (2, 1.0), (2, math.nan), (2, True)])
def test_wrong_settings_are_refused(bands, power):
    with pytest.raises(ValueError, match="must be"):
        coefficients(bands, power)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"queries": 0}, "queries"), ({"separation": 0}, "separation"), ({"bands": 1}, "bands must be an integer >= 2")],
)
def test_a_power_is_recommended_for_settings_that_exist(wrong, says):
    with pytest.raises(ValueError, match=says):
        recommended_power(**{"queries": 100, "separation": 10, **wrong})
