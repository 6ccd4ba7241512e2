"""DiceSGD's thresholds and step size, one against the other, with the paper's noise: Figures 2 and 3.

The step on the mean gradient is divided by C1, as in the paper, so that the noise moves the model equally far at every
C1. With C2 = C1 the noise is that of Algorithm 4; with a larger C2 it is that of Theorem 3.7 for residuals of at most
C2, which is the same formula and trusts what nothing enforces.
Source: Zhang, Bu, Wu, Hong (DiceSGD), appendix C.1.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tacita_reproductions import figures
from tacita_reproductions.dicesgd_full import vision
from tacita_reproductions.dicesgd_images import cifar, mnist
from tacita_reproductions.dicesgd_runs import (
    CLAIMED,
    JUDGED,
    DiceSetting,
    DiceTask,
    last,
    repeated,
    spread,
)
from tacita_reproductions.kept import Kept
from tacita_reproductions.runner import Check, Progress, Result, Row

THRESHOLDS, RATIOS, STEPS = (100.0, 10.0, 1.0, 0.1), (1.0, 3.0, 10.0, 30.0), (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
FIXED_STEP = 0.3  # eta C1 of Figure 2, which the paper does not print
SAYS = "test accuracy"
Known = tuple[list[DiceTask], range, list[str]]  # tasks, seeds, notes
Cells = dict[tuple[float, float], list[float]]  # C1, and C2 / C1 or the step -> the measure of each seed


def tasks_of(full: bool, data: Path | None, seed: int) -> Known:
    """Return the tasks with 100 queries each, the seeds, and what a reader must know of them."""
    if full:
        return vision(data, epochs=2), range(seed, seed + 3), ["ViT-small with pretrained weights, whole data sets"]
    if data is None:
        return (
            [mnist(None, 300, 100, steps=100)],
            range(seed, seed + 1),
            ["synthetic images; --data FOLDER takes mnist/, cifar10_subset.npz and cifar100_subset.npz"],
        )
    known = [mnist(data, 10_000, 10_000, steps=100), cifar(data, steps=100)[0]]
    return known, range(seed, seed + 3), ["small models from scratch, on 10,000 and 5,000 images; --full has CIFAR-100"]


def figure_2(full: bool, seed: int, progress: Progress, data: Path | None, kept: Kept) -> Result:
    """Reproduce Figure 2: the accuracy for each C1 and each ratio C2 / C1, at a fixed effective step size."""
    setting = DiceSetting(method=CLAIMED, optimizer="SGD", lr=FIXED_STEP)
    thresholds, ratios = (THRESHOLDS, RATIOS) if data is not None else ((1.0, 0.1), (1.0, 3.0))
    grid = [replace(setting, max_grad_norm=c, feedback_ratio=ratio) for c in thresholds for ratio in ratios]
    known = tasks_of(full, data, seed)
    rows, claims = measured(known, grid, progress, kept, across="C2 / C1", judge=ratio_checks)
    return _result(known, rows, claims, "C2 / C1", "Figure 2: the threshold of the error")


def figure_3(full: bool, seed: int, progress: Progress, data: Path | None, kept: Kept) -> Result:
    """Reproduce Figure 3: the accuracy for each C1 and each effective step size, with C2 = C1."""
    thresholds, steps = (THRESHOLDS, STEPS) if data is not None else ((1.0, 0.1), (1.0, 0.3, 0.1))
    grid = [DiceSetting(method=CLAIMED, optimizer="SGD", lr=lr, max_grad_norm=c) for c in thresholds for lr in steps]
    known = tasks_of(full, data, seed)
    rows, claims = measured(known, grid, progress, kept, across="step", judge=step_checks)
    return _result(known, rows, claims, "step", "Figure 3: the step size")


def measured(
    known: Known,
    grid: Sequence[DiceSetting],
    progress: Progress,
    kept: Kept,
    *,
    across: str,
    judge: Callable[[DiceTask, Cells], list[Check]],
) -> tuple[list[Row], list[Check]]:
    """Return a row for each task and setting, and the verdicts on each task."""
    tasks, seeds, _ = known
    rows: list[Row] = []
    claims: list[Check] = []
    for place, task in enumerate(tasks):
        values: Cells = {}
        for done, setting in enumerate(grid):
            what = f"{task.name}, C1 {setting.max_grad_norm:g}, {across}"
            progress((place + done / len(grid)) / len(tasks), what)
            row, runs = repeated(task, setting, seeds, kept)
            row["C2 / C1"] = setting.feedback_ratio
            rows.append(row)
            values[row["C1"], row[across]] = last(runs)
        claims += judge(task, values)
    return rows, claims


def _result(known: Known, rows: Sequence[Row], claims: Sequence[Check], across: str, title: str) -> Result:
    (first, *_), seeds, notes = known
    return Result(
        rows=rows,
        checks=claims,
        notes=[
            f"mean: {SAYS} over seeds ({len(seeds)}); SGD whose step is 'step' / C1; {first.steps} Poisson batches of "
            f"rate {first.sample_rate:g}; nominal epsilon {first.epsilon:g} at delta {first.delta:g}, and the real one",
            "the noise that is proved is far larger: tacita reproduce dicesgd-mnist shows it",
            JUDGED,
            *notes,
        ],
        draw=lambda: figures.lines(rows, across, "C1", SAYS, title),
    )


def ratio_checks(task: DiceTask, values: Cells) -> list[Check]:
    """Return the claims of Figure 2 with their verdicts."""
    bounds, ratios = (sorted({key[place] for key in values}) for place in (0, 1))
    of = Counter(
        task.better(
            values[c, 1.0],
            max((values[c, ratio] for ratio in ratios if ratio != 1.0), key=lambda of: task.sign * sum(of)),
        )
        for c in bounds
    )
    return [
        Check(
            f"{task.name}: C2 = C1 is better than the best larger C2 in most cases",
            of["holds"] > len(bounds) / 2,
            undecided=max(of["holds"], of["does not"]) <= len(bounds) / 2,
            found=f"at {of['holds']} thresholds of {len(bounds)} it is, at {of['does not']} it is worse, at "
            f"{of['depends']} it depends",
        ),
        _smaller(task, {c: values[c, 1.0] for c in bounds}, "with C2 = C1"),
    ]


def step_checks(task: DiceTask, values: Cells) -> list[Check]:
    """Return the claims of Figure 3 with their verdicts."""
    bounds, steps = (sorted({key[place] for key in values}) for place in (0, 1))
    best = {c: max(steps, key=lambda step, c=c: task.sign * sum(values[c, step])) for c in bounds}
    inside = sum(steps[0] < best[c] < steps[-1] for c in bounds)
    where = ", ".join(f"{best[c]:g} at C1 {c:g}" for c in bounds)
    return [
        _smaller(task, {c: values[c, best[c]] for c in bounds}, "at its best step"),
        Check(
            f"{task.name}: the best eta C1 is inside the grid at every C1",
            inside == len(bounds),
            undecided=inside < len(bounds),  # beyond the grid nothing is known
            found=where,
        ),
    ]


def _smaller(task: DiceTask, values: dict[float, list[float]], how: str) -> Check:
    """Judge "a smaller C1 is better" by the smallest and the largest."""
    found = task.better(values[min(values)], values[max(values)])
    numbers = "; ".join(f"C1 {c:g} {spread(values[c])}" for c in sorted(values))
    return Check(
        f"{task.name}: the smallest C1 is better than the largest {how}",
        found == "holds",
        undecided=found == "depends",
        found=numbers,
    )
