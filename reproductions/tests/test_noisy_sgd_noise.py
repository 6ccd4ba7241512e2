"""Formula (1)'s noise: nominal and real epsilon in a table."""

import pytest

from tacita_reproductions import find
from tacita_reproductions.noisy_sgd_noise import EPSILONS, formula_multiplier, real_epsilon

RATE, STEPS = 512 / 50_000, 2328
# nominal epsilon -> multiplier, real epsilon at delta 0.01: computed once by other code, to three digits
TABLE = {
    1 / 8: (8.48212, 0.0352),
    1 / 2: (2.12053, 0.356),
    1.0: (1.06026, 1.18),
    2.0: (0.530132, 8.56),
    8.0: (0.132533, 848),
}


@pytest.mark.parametrize("nominal", TABLE)
def test_the_formula_and_what_it_gives(nominal):
    z = formula_multiplier(epsilon=nominal, delta=0.01, sample_rate=RATE, steps=STEPS)
    assert z == pytest.approx(TABLE[nominal][0], rel=1e-5)
    assert real_epsilon(z, sample_rate=RATE, steps=STEPS, delta=0.01) == pytest.approx(TABLE[nominal][1], rel=0.005)


def test_the_table_holds():
    result = find("noisy-sgd-nominal")()
    assert [row["nominal epsilon"] for row in result.rows] == list(EPSILONS)
    assert not [check.says for check in result.checks if not check.held]
