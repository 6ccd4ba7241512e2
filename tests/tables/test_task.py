"""The task: a rule about each cell, which noise cannot flip towards a regression, and the number of rows."""

import numpy as np
import pytest

from tacita.tables import Schema, Target
from tacita.tables.task import FLIP, read_task, task_counts

NOISE = 17.0
SCHEMA = Schema(target=Target(column="y"))


def found(table_of, cells, seeds=(0,), noise=NOISE):
    """What is read with the noise of each seed; the table is counted once."""
    counts = task_counts(table_of("x,y", *(f"1,{cell}" for cell in cells)), SCHEMA).numpy()
    draws = (np.random.default_rng(seed).standard_normal(5) for seed in seeds)
    return [read_task(np.rint(counts + noise * draw), noise) for draw in draws]


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        ([i % 2 for i in range(455)], "classification"),  # 0/1 labels of 455 rows
        ([i % 10 for i in range(1437)], "classification"),  # digits
        ([i % 50 for i in range(4000)], "classification"),  # fifty classes
        ([3 + i % 7 for i in range(1500)], "classification"),  # grades of wine
        (["-1", "1"] * 200, "classification"),
        (["0.0", "1.0"] * 200, "classification"),
        (["yes", "no"] * 200, "classification"),
        ([f"{25 + i % 320}" for i in range(353)], "regression"),  # diabetes: whole numbers up to 346
        ([f"{i / 7:.3f}" for i in range(400)], "regression"),
        ([f"{5 + i % 40 / 2}" for i in range(2000)], "regression"),  # fares, in halves
        ([f"{100_000 + 317 * i}" for i in range(500)], "regression"),
    ],
)
def test_it_is_the_same_in_every_run(table_of, cells, task):
    assert {one.task for one in found(table_of, cells, range(300))} == {task}


def test_noise_makes_no_regression_of_labels(table_of):
    """However few rows there are, and however large the noise."""
    for rows in (0, 1, 10, 100):
        read = found(table_of, [i % 3 for i in range(rows)], range(500), noise=60.0)
        assert {one.task for one in read} == {"classification"}
    assert FLIP <= 1e-6


def test_the_count_of_rows_is_near_whatever_the_columns_are_like(table_of):
    errors = [one.rows - 500 for one in found(table_of, [i % 7 for i in range(500)], range(500))]
    assert np.abs(np.mean(errors)) < 7  # three empty bins add 3 x 17 x 0.054 = 2.8 on average; standard error 0.9
    assert np.std(errors) < 1.5 * NOISE


def test_a_table_without_rows_has_hardly_any(table_of):
    assert np.mean([one.rows for one in found(table_of, [], range(500))]) < NOISE


def test_it_says_why(table_of):
    assert "numbers with decimals, below -1 or above 99" in found(table_of, ["0.5"] * 400)[0].why
