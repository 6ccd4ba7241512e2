"""The runs of the DiceSGD paper's comparison: the methods, what they are charged, verdicts, and small experiments."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tacita_reproductions import find
from tacita_reproductions.dicesgd import Found, checks
from tacita_reproductions.dicesgd_ablations import ratio_checks, step_checks
from tacita_reproductions.dicesgd_images import cifar, mnist
from tacita_reproductions.dicesgd_runs import (
    CLAIMED,
    CLIPPED,
    EQUAL,
    METHODS,
    PLAIN,
    RIGOROUS,
    DiceRun,
    DiceSetting,
    best,
    oracle_of,
    repeated,
    run,
    spread,
    verdict,
)
from tacita_reproductions.dicesgd_theory import paper_automatic, paper_theorem_3_7
from tacita_reproductions.kept import Kept

WEIGHT = "1.weight"  # of the linear layer
TASK = mnist(None, 200, 60, steps=20)
WELL_TESTED = replace(TASK, test=(torch.zeros(10**5, 1), torch.zeros(10**5)))  # rows that are only counted


def charged(method, **more):
    oracle = oracle_of(TASK, DiceSetting(method=method, lr=0.1, **more), TASK.build(), 0)
    return oracle.ledger.epsilon(TASK.delta), max(oracle.noise_std.values()) / oracle.divisor


def test_every_method_says_what_it_is_charged():
    assert charged(PLAIN) == (math.inf, 0.0)
    for method in (CLIPPED, RIGOROUS):
        assert 1.99 < charged(method)[0] <= TASK.epsilon
    real, noise = charged(CLAIMED)
    assert real > 10 * TASK.epsilon
    assert charged(EQUAL)[0] <= real
    assert noise > 10 * charged(EQUAL)[1]
    assert charged(RIGOROUS)[1] > 10 * noise


def test_the_papers_noise_is_its_formula():
    common: dict[str, Any] = dict(num_records=200, steps=20, epsilon=2.0, delta=1e-5)
    assert charged(CLAIMED)[1] == pytest.approx(float(paper_automatic(**common, max_grad_norm=1.0)))
    assert charged(CLAIMED, max_grad_norm=0.1)[1] == pytest.approx(charged(CLAIMED)[1] / 10)
    task = replace(TASK, steps=100)
    oracle = oracle_of(task, DiceSetting(method=CLAIMED, lr=0.1, feedback_ratio=3.0), task.build(), 0)
    expected = paper_theorem_3_7(
        **{**common, "steps": 100},
        max_grad_norm=1.0, theorem_constant=oracle.divisor * 3.0, residual_bound=3.0,
    )  # fmt: skip
    assert max(oracle.noise_std.values()) / oracle.divisor == pytest.approx(float(expected))


def test_a_run_follows_from_its_seed_and_sgd_learns():
    task = mnist(None, 300, 100, steps=20)
    setting = DiceSetting(method=PLAIN, lr=0.01)
    first, again, other = (run(task, setting, seed, marks=4) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first.measures) == 4
    assert first.measures[-1] > 0.9
    chance = run(replace(task, steps=5), DiceSetting(method=RIGOROUS, lr=0.01), 0)
    assert chance.measures[-1] < 0.4


def test_the_step_of_sgd_is_relative_to_the_threshold():
    """With everything clipped, the step on the model is the same at two thresholds."""
    moved = []
    for threshold in (1e-3, 1e-4):
        setting = DiceSetting(method=CLIPPED, optimizer="SGD", lr=1.0, max_grad_norm=threshold)
        found = []
        task = replace(
            TASK,
            steps=2,
            measures=lambda network, rows, found=found: (
                found.append(dict(network.named_parameters())[WEIGHT].detach().clone()) or 0.0
            ),
        )
        run(task, setting, 0)
        moved.append(found[-1])
    assert torch.allclose(*moved, atol=1e-5)
    assert not torch.allclose(moved[0], dict(TASK.build().named_parameters())[WEIGHT])


def test_the_schedule_rises_and_falls_to_zero():
    from tacita_reproductions.dicesgd_runs import _optimizer

    network = TASK.build()
    optimizer, schedule = _optimizer(DiceSetting(method=PLAIN, lr=2.0, warm_up=0.2), network, 10)
    seen = []
    for _ in range(10):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx([1.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25])


def test_verdicts_count_differences_beyond_their_error():
    assert verdict([0.9, 0.91, 0.92], [0.8, 0.82, 0.81]) == "holds"
    assert verdict([0.8, 0.82, 0.81], [0.9, 0.91, 0.92]) == "does not"
    assert verdict([0.9, 0.7, 0.8], [0.8, 0.8, 0.8]) == "depends"
    assert verdict([0.9], [0.1]) == "depends"
    assert verdict([0.9, math.nan], [0.1, 0.2]) == "depends"
    assert verdict([0.5, 0.5], [0.5, 0.5]) == "depends"
    assert verdict([0.9, 0.91, 0.92], [0.8, 0.82, 0.81], least=0.12) == "depends"
    assert spread([0.5, 0.7]) == "0.6000 +- 0.1414"
    assert spread([math.inf, 1.0]) == "not finite"


def test_a_share_of_few_test_rows_decides_nothing():
    """Two seeds may differ by the same row twice: no spread, and no evidence."""
    rows = {tested: replace(TASK, test=(torch.zeros(tested, 1), torch.zeros(tested))) for tested in (1000, 10**6)}
    first, second = [0.060, 0.057], [0.059, 0.056]
    assert rows[1000].better(first, second) == rows[1000].better(second, first) == "depends"
    assert (rows[10**6].better(first, second), rows[10**6].better(second, first)) == ("holds", "does not")
    apart = 2 * math.sqrt(2 * 0.9 * 0.1 / 1000)  # near enough: both shares are near 0.9
    assert rows[1000].better([0.9 + 0.98 * apart] * 2, [0.9] * 2) == "holds"  # the larger share has the smaller error
    assert rows[1000].better([0.9 + 0.8 * apart] * 2, [0.9] * 2) == "depends"
    assert replace(rows[1000], is_share=False).better(first, second) == "holds"


def test_the_best_mean_is_chosen_and_nothing_infinite():
    found = [({"mean": mean}, []) for mean in (0.3, math.nan, 0.5, math.inf)]
    assert best(TASK, found)[0]["mean"] == 0.5
    assert best(replace(TASK, larger_is_better=False), found)[0]["mean"] == 0.3


def test_claims_follow_from_the_numbers():
    good, bad = (0.9, 0.91, 0.9), (0.5, 0.52, 0.51)
    found: Found = {(method, c): list(good if method == CLAIMED else bad) for method in METHODS for c in (1.0, 0.1)}
    rows = [{"method": CLAIMED, "epsilon": 1e5}]
    held = [check.held for check in checks(WELL_TESTED, "Adam", rows, found)]
    assert held == [True, False, True, False, False]
    found[CLAIMED, 0.1] = [0.95, 0.97, 0.96]
    assert checks(WELL_TESTED, "Adam", rows, found)[3].held
    assert checks(TASK, "Adam", rows, found)[3].verdict == "depends"  # 60 rows are too few
    found[CLIPPED, 1.0] = [0.99, 0.98, 0.99]
    assert checks(WELL_TESTED, "Adam", rows, found)[0].verdict == "depends"


def test_claims_of_the_ablations():
    task = replace(TASK, is_share=False)
    values = {
        (c, ratio): [0.9 - 0.01 * c - 0.02 * ratio + 0.001 * one for one in range(3)]
        for c in (1.0, 10.0)
        for ratio in (1.0, 3.0)
    }
    assert [check.held for check in ratio_checks(task, values)] == [True, True]
    worse = {key: [-one for one in runs] for key, runs in values.items()}
    assert [check.held for check in ratio_checks(task, worse)] == [False, False]
    assert [check.held for check in ratio_checks(replace(task, larger_is_better=False), worse)] == [True, True]
    peak = {(c, step): [1 - abs(step - 0.3) - c / 100] * 2 for c in (1.0, 10.0) for step in (0.1, 0.3, 1.0)}
    assert step_checks(task, peak)[1].held
    assert not step_checks(task, {key: value for key, value in peak.items() if key[1] > 0.2})[1].held


def test_single_runs_are_kept(tmp_path):
    path, setting, made = tmp_path / "deep" / "x.runs.jsonl", DiceSetting(method=PLAIN, lr=0.1), []
    task = replace(TASK, measures=lambda network, rows: made.append(1) or 0.5)
    first = repeated(task, setting, range(2), Kept(path))
    assert len(made) == 2
    path.write_bytes(path.read_bytes()[:-20])  # a torn last line: its run is made again, and nothing else
    assert repeated(task, setting, range(2), Kept(path)) == first
    assert len(made) == 3
    assert repeated(task, setting, range(2), Kept(path)) == first
    assert len(made) == 3
    repeated(replace(task, epsilon=3.0), setting, range(1), Kept(path))
    repeated(task, replace(setting, lr=0.2), range(1), Kept(path))
    assert len(made) == 5
    images, labels = task.train
    others: list[dict[str, Any]] = [
        {"train": (images, labels.roll(1))},
        {"test": (images, labels)},
        {"references": ["a text"]},
        {"build": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10, bias=False))},
    ]
    for place, other in enumerate(others):  # the same name and number of rows
        repeated(replace(task, **other), setting, range(1), Kept(path))
        assert len(made) == 6 + place
    assert first[1] == [DiceRun([0.5], math.inf, 0.0, {})] * 2


@pytest.mark.parametrize("name", ["dicesgd-mnist", "dicesgd-figure-2"])
def test_small_runs_show_a_table_and_their_claims(name):
    result = find(name)()
    assert {row["method"] for row in result.rows} >= {CLAIMED}
    assert all(row["epsilon"] > 2 for row in result.rows if row["method"] == CLAIMED)
    assert not result.holds
    pytest.importorskip("matplotlib")
    assert result.draw is not None
    result.draw()


def test_cifar_comes_from_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cifar10", "cifar100"):
        images: dict[str, Any] = {
            f"x_{part}": rng.integers(0, 256, (20, 3, 32, 32), np.uint8) for part in ("train", "test")
        }
        labels = np.arange(20) % 10
        np.savez(tmp_path / f"{name}_subset.npz", y_train=labels, y_test=labels, **images)
    first, second = cifar(tmp_path, steps=2, sample_rate=0.5)
    assert first.train[0].shape == (20, 3, 32, 32)
    assert -1 <= float(first.train[0].min()) < float(first.train[0].max()) <= 1
    found = run(second, DiceSetting(method=PLAIN, lr=0.01), 0)
    assert 0 <= found.measures[-1] <= 1
    with pytest.raises(ValueError, match="lacks cifar10_subset"):
        cifar(tmp_path / "none")


@pytest.mark.parametrize("name", ["dicesgd-table-2", "dicesgd-figure-2", "dicesgd-table-3", "dicesgd-figure-5"])
def test_full_size_needs_data_and_weights(name, tmp_path):
    with pytest.raises(ValueError, match="data must be a folder with the paper's data and pretrained weights"):
        find(name)(full=True)
    with pytest.raises(ValueError, match=r"lacks (vit_small_patch16_224\.safetensors|gpt2/config\.json)"):
        find(name)(full=True, data=tmp_path)
