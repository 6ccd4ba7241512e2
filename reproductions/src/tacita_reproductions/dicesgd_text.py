"""DiceSGD beside DPSGD-GC on text: Table 3, Figures 4 and 5.

AdamW as in the paper, whose weight decay it does not print: 0, which is Adam. The step size warms up and then falls to
zero; the paper does not print over how many steps it warms up: a tenth here.
Source: Zhang, Bu, Wu, Hong (DiceSGD), section 4 and appendix C.2.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from tacita_reproductions import figures
from tacita_reproductions.dicesgd_ablations import Known, measured, step_checks
from tacita_reproductions.dicesgd_full import language
from tacita_reproductions.dicesgd_runs import (
    CLAIMED,
    JUDGED,
    METHODS,
    DiceRun,
    DiceSetting,
    DiceTask,
    headline_claims,
    last,
    repeated,
    worth,
)
from tacita_reproductions.dicesgd_texts import restaurants
from tacita_reproductions.kept import Kept
from tacita_reproductions.runner import Check, Progress, Result, Row

STEP, WARM_UP = 2e-3, 0.1
THRESHOLDS, STEPS = (100.0, 10.0, 1.0, 0.1), (2e-2, 1e-2, 5e-3, 2e-3, 1e-3, 5e-4)
BATCH, PAPERS_ROWS = 1000, 42_000  # the paper's batch and training set
GUARANTEE = {"epsilon": 8.0, "delta": 8e-6}
SAYS = "test loss"


def known_of(full: bool, data: Path | None, seed: int, *, epochs: int) -> Known:
    """Return the task, the seeds, and what a reader must know; a sixth of the paper's queries at the reduced size."""
    rate = BATCH / PAPERS_ROWS
    if full:
        return (
            [language(data, sample_rate=rate, steps=round(epochs / rate), **GUARANTEE)],
            range(seed, seed + 3),
            ["GPT-2 with pretrained weights, on the whole training set"],
        )
    task = restaurants(data, sample_rate=rate, steps=20 if data is None else round(epochs / rate / 6), **GUARANTEE)
    note = "a transformer of one layer from scratch on the development set: 4,672 pairs, a vocabulary of their words"
    if data is None:
        note = "made-up places; --data FOLDER takes the files of e2e/"
    return [task], range(seed, seed + (3 if data is not None else 1)), [note]


def table_3(full: bool, seed: int, progress: Progress, data: Path | None, kept: Kept) -> Result:
    """Reproduce Table 3 and Figure 4: the scores of generated text, and the test loss at each tenth of the training."""
    (task,), seeds, notes = known_of(full, data, seed, epochs=10)
    rows: list[Row] = []
    curves: list[Row] = []
    found: dict[str, list[DiceRun]] = {}
    marks = 10 if full or data is not None else 2
    for place, method in enumerate(METHODS):
        progress(place / len(METHODS), f"{task.name}, {method}")
        setting = DiceSetting(method=method, lr=STEP, warm_up=WARM_UP)
        row, found[method] = repeated(task, setting, seeds, kept, marks=marks)
        scores = {name: fmean(one.scores[name] for one in found[method]) for name in found[method][0].scores}
        rows.append(row | scores)
        curves += _curve(task, method, found[method])
    return Result(
        rows=rows,
        checks=text_checks(task, found),
        notes=[
            f"mean: {SAYS} over seeds ({len(seeds)}), and mean scores of the likeliest texts; Adam, step {STEP:g}, "
            "warm-up and linear decay, C1 = C2 = 1",
            f"{task.steps} Poisson batches of rate {task.sample_rate:.4g}; nominal epsilon {task.epsilon:g} at delta "
            f"{task.delta:g}; epsilon: what the ledger charges",
            JUDGED,
            "METEOR is not computed: it needs a stemmer and synonyms",
            *notes,
        ],
        draw=lambda: figures.lines(
            curves, "share of the training", "method", SAYS, "Figure 4: the test loss while it trains", log=False
        ),
    )


def _curve(task: DiceTask, method: str, runs: Sequence[DiceRun]) -> list[Row]:
    """Return mean and spread of the measure at each mark."""
    marks = list(zip(*(one.measures for one in runs), strict=True))
    return [
        {
            "data": task.name,
            "method": method,
            "share of the training": (place + 1) / len(marks),
            "mean": fmean(values),
            "s.d.": stdev(values) if len(values) > 1 else None,
        }
        for place, values in enumerate(marks)
    ]


def text_checks(task: DiceTask, found: dict[str, list[DiceRun]]) -> list[Check]:
    """Return the claims of Table 3 and Figure 4 with their verdicts."""
    ends = {method: last(runs) for method, runs in found.items()}
    where = f"{task.name}: "
    claims = headline_claims(task, where, lambda one, other: [(SAYS, ends[one], ends[other])])
    return [*claims, worth(task, where, found[CLAIMED][0].epsilon)]


def figure_5(full: bool, seed: int, progress: Progress, data: Path | None, kept: Kept) -> Result:
    """Reproduce Figure 5: the test loss for each C1 and each initial step size, with C2 = C1 and Adam."""
    thresholds, steps = (THRESHOLDS, STEPS if full else STEPS[1::2]) if data is not None else ((1.0, 0.1), STEPS[:3])
    (whole,), seeds, notes = known_of(full, data, seed, epochs=5)
    task = replace(whole, scores=None)
    grid = [DiceSetting(method=CLAIMED, lr=lr, max_grad_norm=c, warm_up=WARM_UP) for c in thresholds for lr in steps]
    rows, claims = measured(([task], seeds, notes), grid, progress, kept, across="step", judge=step_checks)
    return Result(
        rows=rows,
        checks=claims,
        notes=[
            f"mean: {SAYS} over seeds ({len(seeds)}); Adam with warm-up and linear decay; {task.steps} Poisson batches "
            f"of rate {task.sample_rate:.4g}; "
            f"nominal epsilon {task.epsilon:g} at delta {task.delta:g}, and the real one",
            JUDGED,
            *notes,
        ],
        draw=lambda: figures.lines(rows, "step", "C1", SAYS, "Figure 5: threshold and initial step size"),
    )
