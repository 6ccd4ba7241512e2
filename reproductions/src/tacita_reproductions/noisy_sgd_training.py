"""Figures 1 to 3 of the noisy SGD paper: accuracy at its nominal epsilons, and what these epsilons are.

Each figure is trained three ways: by SGD, by Algorithm 2 (not clipped) with formula (1)'s noise at c2 = 1, and clipped
at the same C with an accountant's noise for the same epsilon. The paper does not state its batch size, epochs or
constants; networks have group normalisation in place of batch normalisation, and nothing is pretrained.
Source: "Noise is All You Need: Private Second-Order Convergence of Noisy SGD", section 4 and appendix A.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from torch import nn

from tacita.ledger.text_lines import rounded_up
from tacita.second_order.noisy_sgd import gradient_norm_bound
from tacita_reproductions import figures
from tacita_reproductions.kept import Kept
from tacita_reproductions.noisy_sgd_data import WORDS, LabelledData, cifar, cola
from tacita_reproductions.noisy_sgd_networks import Transformer, convnet, resnet18
from tacita_reproductions.noisy_sgd_noise import DELTA, EPSILONS, THRESHOLD, real_epsilon
from tacita_reproductions.noisy_sgd_runs import EXACT, MEASURED, PAPER_NOISE, SGD, NoisySGDTask, multiplier_of, one_run
from tacita_reproductions.runner import Check, Progress, Result, Row


@dataclass(frozen=True, kw_only=True)
class FigureScale:
    """The size of a figure's runs.

    Attributes:
        records, tests: Numbers of training and test records at most.
        width: Of the networks, relative to the paper's.
        batch_size, epochs, lr: Of SGD.
        epsilons: The nominal ones.
        seeds: Runs of each kind.
    """

    records: int
    tests: int
    width: float
    batch_size: int
    epochs: int
    lr: float
    epsilons: Sequence[float]
    seeds: int


FULL = FigureScale(
    records=50_000, tests=10_000, width=1.0, batch_size=512, epochs=24, lr=0.1, epsilons=EPSILONS, seeds=10
)
REDUCED = FigureScale(
    records=3000, tests=1000, width=1 / 8, batch_size=32, epochs=3, lr=0.1, epsilons=(1 / 8, 1.0, 8.0), seeds=2
)
SMALL = FigureScale(records=128, tests=64, width=1 / 8, batch_size=32, epochs=4, lr=0.5, epsilons=(1 / 8, 8.0), seeds=1)
SENTENCES = {"full": (8551, 527, 128, 4), "reduced": (3000, 527, 32, 1), "small": (128, 64, 16, 1)}


def images(network: Callable[..., nn.Module], classes: int, scale: FigureScale, data: Path | None) -> NoisySGDTask:
    """Return the task of a network on CIFAR."""
    found = cifar(data, classes, scale.records, scale.tests)
    return _task(partial(network, scale.width, found.classes), found, scale)


def sentences(scale: FigureScale, data: Path | None) -> NoisySGDTask:
    """Return the task of a transformer on CoLA."""
    size = "full" if scale is FULL else "reduced" if scale is REDUCED else "small"
    records, tests, dim, layers = SENTENCES[size]
    found = cola(data, records, tests)
    return _task(partial(Transformer, found.vocabulary, WORDS, dim, layers), found, scale)


def pessimistic(scale: FigureScale, data: Path | None) -> NoisySGDTask:
    """Return Figure 3(b)'s task, the convolutional network with C by Lemma 3.2.

    L, sigma and the constant are 1, and f_max is ln 10: the paper does not give them.
    """
    task = images(convnet, 10, scale, data)
    bound = gradient_norm_bound(
        smoothness=1.0,
        initial_gap=math.log(task.data.classes),
        gradient_noise=1.0,
        num_records=task.records,
        steps=task.steps,
        delta=DELTA,
    )
    return replace(task, max_grad_norm=float(bound))


def _task(build: Callable[[], nn.Module], data: LabelledData, scale: FigureScale) -> NoisySGDTask:
    most = 64 if scale is FULL else None
    return NoisySGDTask(
        build=build,
        data=data,
        max_grad_norm=THRESHOLD,
        lr=scale.lr,
        batch_size=scale.batch_size,
        epochs=scale.epochs,
        most_rows=most,
    )


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        name: Of the experiment.
        make: Returns the task at a scale, with data from a folder.
        part: What it shows: ``"test"`` or ``"train"`` accuracy.
    """

    name: str
    make: Callable[[FigureScale, Path | None], NoisySGDTask]
    part: str = "test"


def run_figure(  # noqa: PLR0917
    shown: PaperFigure, full: bool, seed: int, progress: Progress, data: Path | None, kept: Kept
) -> Result:
    """Train at every nominal epsilon, in every way and for every seed.

    Args:
        shown: The figure.
        full, seed, progress: As in :class:`Experiment`.
        data: The folder of the data.
        kept: Results of single runs.
    """
    if full and data is None:
        raise ValueError(f"data must be given for the full size of {shown.name}: the folder with the paper's data set.")
    scale = FULL if full else REDUCED if data is not None else SMALL
    task, part = shown.make(scale, data), shown.part
    asked = [(SGD, None), *((method, value) for method in (PAPER_NOISE, EXACT) for value in scale.epsilons)]
    rows: list[Row] = []
    for place, (method, nominal) in enumerate(asked):
        found = []
        for repeat in range(scale.seeds):
            said = f"{method}, epsilon {'none' if nominal is None else f'{nominal:g}'}, run {repeat + 1}"
            progress((place + repeat / scale.seeds) / len(asked), said)
            once = partial(one_run, task, method, nominal, seed + repeat)
            settings = {"task": task.settings, "method": method, "epsilon": nominal, "seed": seed + repeat}
            found.append(kept.result(json.dumps(settings, sort_keys=True), once))
        rows.append(_row(task, method, nominal, found, part))
    return Result(
        rows=rows,
        checks=_checks(rows, scale, task, part),
        notes=_notes(task, scale, data),
        draw=partial(figures.accuracies, rows, part, f"{part.capitalize()} accuracy, {task.data.name}"),
    )


def _row(task: NoisySGDTask, method: str, nominal: float | None, found: Sequence[dict[str, float]], part: str) -> Row:
    """Return the means of all runs, and the least and the most at the end."""
    z = None if nominal is None else multiplier_of(task, method, nominal)
    real = None if z is None else real_epsilon(z, sample_rate=task.sample_rate, steps=task.steps, delta=DELTA)
    ends = [run[f"{part} after 100%"] for run in found]
    return {
        "method": method,
        "nominal epsilon": nominal,
        "real epsilon": real,
        "multiplier": z,
        **{
            f"{part} after {share:.0%}": sum(run[f"{part} after {share:.0%}"] for run in found) / len(found)
            for share in figures.SHARES
        },
        f"{part}, least": min(ends),
        f"{part}, most": max(ends),
        "largest gradient": max(run["largest gradient"] for run in found),
        "longer than C": sum(run["longer than C"] for run in found) / len(found),
    }


def _checks(rows: Sequence[Row], scale: FigureScale, task: NoisySGDTask, part: str) -> list[Check]:
    """Return the paper's claims about the figure, and whether C bounds the gradients as it says.

    The claims on accuracy are decided by differences beyond the spread of runs and two standard errors of the records,
    and only if SGD itself is better by as much than the most frequent class.
    """
    end, plain = f"{part} after 100%", rows[0]
    paper = [row for row in rows if row["method"] == PAPER_NOISE]
    labels = task.data.test[1] if part == "test" else task.data.train[1][:MEASURED]
    guess = float(labels.bincount().max()) / len(labels)
    spread = max(row[f"{part}, most"] - row[f"{part}, least"] for row in rows)
    slack = max(spread, 2 * math.sqrt(0.25 / min(len(labels), MEASURED)))
    first, last = paper[0], paper[-1]
    learned = plain[end] > guess + slack and scale.seeds > 1
    rising = all(a[end] <= b[end] + slack for a, b in pairwise(paper))
    rises, close = rising and last[end] > first[end] + slack, last[end] >= plain[end] - slack

    def said(row: Row) -> str:
        of = "" if row["nominal epsilon"] is None else f" at {row['nominal epsilon']:g}"
        return f"{row[end]:.3f} ({row[f'{part}, least']:.3f} to {row[f'{part}, most']:.3f}){of}"

    return [
        Check(
            f"SGD beats the most frequent class, {guess:.3g}, by more than {slack:.2g} in several runs, so that the "
            "next two are decided",
            learned,
            undecided=not learned,
            found=said(plain),
        ),
        Check(
            "the paper: accuracy rises with epsilon, by more than the spread of runs and two standard errors",
            learned and rises,
            undecided=not learned or (rising and not rises),
            found="; ".join(said(row) for row in paper),
        ),
        Check(
            f"the paper: at nominal epsilon {last['nominal epsilon']:g} accuracy is close to SGD's",
            learned and close,
            undecided=not learned,
            found=f"{said(last)}; SGD {said(plain)}",
        ),
        Check(
            f"at nominal epsilon {last['nominal epsilon']:g} the real one is over ten times as much",
            last["real epsilon"] > 10 * last["nominal epsilon"],
            found=f"{rounded_up(last['real epsilon'])} at best",
        ),
        Check(
            f"the paper: no gradient is longer than C = {task.max_grad_norm:.3g}, as far as was measured",
            max(row["largest gradient"] for row in rows) <= task.max_grad_norm,
            found=f"up to {max(row['largest gradient'] for row in rows):.3g}; longer than C are "
            f"{min(row['longer than C'] for row in rows):.0%} to {max(row['longer than C'] for row in rows):.0%}",
        ),
    ]


def _notes(task: NoisySGDTask, scale: FigureScale, data: Path | None) -> list[str]:
    size = sum(p.numel() for p in task.build().parameters())
    return [
        f"{task.data.name}; {size:,} parameters, group normalisation; Poisson batches of {task.batch_size}, "
        f"{task.steps:,} steps of SGD at lr {task.lr:g}; C {task.max_grad_norm:.3g}; runs of each kind: {scale.seeds}",
        f"epsilon at delta {DELTA:g}, which is the paper's; without clipping the real one holds only if no gradient is "
        "longer than C, with a delta above it",
        "'largest gradient', and the share of gradients 'longer than C': of the first 256 training records at five "
        "points of each run; not private",
        *([] if data is not None else ["synthetic records; --data FOLDER takes real ones"]),
    ]


def _figure(name: str, make: Callable[[FigureScale, Path | None], NoisySGDTask], part: str) -> Callable[..., Result]:
    return partial(run_figure, PaperFigure(f"noisy-sgd-figure-{name}", make, part))


figure_1a = _figure("1a", partial(images, convnet, 10), "test")
figure_1b = _figure("1b", partial(images, resnet18, 10), "test")
figure_2a = _figure("2a", partial(images, resnet18, 100), "test")
figure_2b = _figure("2b", sentences, "test")
figure_3a = _figure("3a", partial(images, convnet, 10), "train")
figure_3b = _figure("3b", pessimistic, "test")
