"""Eight tables at three epsilons, bare: linear and additive models of `tacita train`, on the same splits.

    python benchmarks/table_models.py [--runs 5] [--only NAME ...] [--epsilon 1 ...] [--beside SRC] [--write]

``--name additive --flags "--model additive"`` makes the figures of the other model, and ``--beside`` those of the
folder `src` of another checkout. Every run is two commands, `train` and `predict`, with nothing declared but the
target. A fifth of the rows is set aside before each run, another one in every run; all figures are on it, and R2 is
that of targets as they are, clamped nowhere. Figures are kept in TACITA_FIGURES (a file of
JSON lines), so that a run that was made is not made again, and go to docs/results.md with ``--write``.
"""

import argparse
import csv
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from results import DATA, ROOT, markdown_table, write_section
from scipy.stats import rankdata

SCRIPT = "benchmarks/table_models.py"
FIGURES = Path(os.environ.get("TACITA_FIGURES", "table_models.jsonl"))
PROBABILITY = "probability_"  # what the names of such columns begin with
DELTA, EPSILONS = "1e-5", ("0.1", "1", "4")
WANTED = {
    (name, epsilon): figure
    for name, figures in {
        "Adult": ("0.886", "0.911", "0.918"),
        "bank": ("0.869", "0.914", "0.918"),
        "housing": ("0.58", "0.67", "0.70"),
        "taxi": ("0.63", "0.73", "0.82"),
    }.items()
    for epsilon, figure in zip(EPSILONS, figures, strict=True)
}
Lines = tuple[list[str], list[list[str]]]  # the header, and the cells of each row


def of_csv(name: str, delimiter: str = ",", header: bool = True) -> Lines:
    text = gzip.decompress((DATA / "tabular" / name).read_bytes()).decode().splitlines()
    rows = [[cell.strip() for cell in row] for row in csv.reader(text, delimiter=delimiter) if row]
    return (rows[0], rows[1:]) if header else ([f"c{i}" for i in range(len(rows[0]))], rows)


def of_arrays(x: np.ndarray, y: np.ndarray) -> Lines:
    head = [*(f"c{i}" for i in range(x.shape[1])), "target"]
    return head, [[*(f"{v:.9g}" for v in row), f"{t:.9g}"] for row, t in zip(x, y, strict=True)]


def mushrooms() -> Lines:
    found = np.load(DATA / "mushrooms.npz")
    return of_arrays(found["x"], found["y"])


def made() -> Lines:
    """20,000 rows, two classes, ten columns: five smooth effects, one product, and columns of nothing."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(20_000, 10))
    odds = 1.2 * np.sin(2 * x[:, 0]) + 0.6 * np.abs(x[:, 1]) + 0.5 * np.tanh(3 * x[:, 2]) + 0.4 * x[:, 3]
    odds += 1.0 * np.clip(x[:, 0] * x[:, 1], -3, 3) - 0.6
    return of_arrays(x, (draw.random(len(x)) < 1 / (1 + np.exp(-odds))).astype(float))


def claims() -> Lines:
    """20,000 log-normal claims, five columns: two rise, one falls in steps, one is a product's, one is nothing."""
    draw = np.random.default_rng(8)
    age, power = draw.uniform(18, 90, 20_000), draw.gamma(3, 30, 20_000)
    region, years = draw.integers(0, 12, 20_000), draw.exponential(5, 20_000)
    size = 1.2 * np.exp(-(((age - 18) / 12) ** 2)) + 0.5 * np.log1p(power / 60) * (1 + (region > 7))
    size += 0.3 * np.cos(region) - 0.15 * np.minimum(years, 8)
    x = np.stack([age, power, region, years, draw.normal(size=20_000)], 1)
    return of_arrays(x, np.exp(1.5 + size + 0.6 * draw.normal(size=20_000)))


TABLES: dict[str, tuple[Callable[[], Lines], str, str, tuple[str, ...]]] = {
    "taxi": (lambda: of_csv("nyc_taxis.csv.gz"), "fare", "R2", ("--drop", "total")),
    "claims": (claims, "target", "R2", ()),
    "wine": (lambda: of_csv("winequality-white.csv.gz", ";"), "quality", "R2", ("--task", "regression")),
    "housing": (lambda: of_csv("cal_housing.csv.gz"), "median_house_value", "R2", ()),
    "made": (made, "target", "AUC", ()),
    "Adult": (lambda: of_csv("adult.data.gz"), "Y", "AUC", ()),
    "bank": (lambda: of_csv("bank_full.csv.gz", header=False), "c16", "AUC", ()),
    "mushrooms": (mushrooms, "target", "AUC", ()),
}


def write_csv(path: Path, head: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def one_run(name: str, epsilon: str, run: int, source: Path, flags: tuple[str, ...]) -> dict[str, float]:
    """Return the figures on the fifth that was set aside, and the seconds of the training."""
    read, target, measure, own = TABLES[name]
    head, rows = read()
    unseen, kept = np.split(np.random.default_rng(run).permutation(len(rows)), [len(rows) // 5])
    with tempfile.TemporaryDirectory() as folder:
        train, test, found = (Path(folder) / file for file in ("train.csv", "unseen.csv", "found.csv"))
        write_csv(train, head, [rows[i] for i in np.sort(kept)])
        write_csv(test, head, [rows[i] for i in np.sort(unseen)])
        start = time.process_time()
        before = os.times().children_user
        asked = ("--target", target, "--epsilon", epsilon, "--delta", DELTA, "--output", f"{folder}/run")
        tacita(source, "train", str(train), *asked, *own, *flags, "--quiet")
        seconds = os.times().children_user - before + time.process_time() - start
        tacita(source, "predict", f"{folder}/run", str(test), "--output", str(found))
        with found.open(newline="") as file:
            cells = list(csv.reader(file))
        stated = json.loads((Path(folder) / "run" / "statement.json").read_text())["holdout_score"]
    truth = np.array([rows[i][head.index(target)] for i in np.sort(unseen)])
    figure = score(measure, truth, dict(zip(cells[0], np.array(cells[1:]).T, strict=True)))
    return {"figure": figure, "seconds": seconds, "stated": stated["value"]}


def tacita(source: Path, *words: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from tacita.cli import main; main()", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def score(measure: str, truth: np.ndarray, found: dict[str, np.ndarray]) -> float:
    if measure == "R2":
        numbers = truth.astype(float)
        left = np.square(found["prediction"].astype(float) - numbers).sum()
        return float(1 - left / np.square(numbers - numbers.mean()).sum())
    chances = {name.removeprefix(PROBABILITY): found[name] for name in found if name.startswith(PROBABILITY)}
    if len(chances) < 2:
        return 0.5
    label, chance = list(chances.items())[1]
    positive = truth == label
    ranks = rankdata(chance.astype(float))[positive].sum()
    return float((ranks - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum()))


def kept_figures() -> dict[tuple[str, str, int, str], dict[str, float]]:
    lines = FIGURES.read_text().splitlines() if FIGURES.exists() else []
    return {tuple(key): value for key, value in map(json.loads, lines)}


def write() -> None:
    """Write a line for each cell that was run by both models, over the runs that both made."""
    found, lines = kept_figures(), []
    for name, (_, _, measure, _) in TABLES.items():
        for epsilon in EPSILONS:
            both = [
                {
                    key[2]: value["figure"]
                    for key, value in found.items()
                    if (*key[:2], key[3]) == (name, epsilon, which)
                }
                for which in ("now", "additive")
            ]
            runs = sorted(both[0].keys() & both[1].keys())
            if not runs:
                continue
            linear, additive = ([of[run] for run in runs] for of in both)
            lines.append(
                {"table": name, "measure": measure, "epsilon": epsilon, "wanted": WANTED.get((name, epsilon), "")}
                | {"linear": f"{statistics.mean(linear):.3f}", "additive": f"{statistics.mean(additive):.3f}"}
                | {"linear, each run": " ".join(f"{one:.3f}" for one in linear)}
                | {"additive, each run": " ".join(f"{one:.3f}" for one in additive)}
            )
    words = (
        f"`python {SCRIPT}`: nothing declared but the target, delta {DELTA}; means on a fifth of the rows that was set "
        "aside before each run, the same splits for both models. R2 is that of targets as they are. `linear` is the "
        "default, `additive` is `--model additive`; `wanted` is what was hoped for from the better of both."
    )
    write_section(
        f"{SCRIPT}: epsilons", ["## Linear and additive, by epsilon", "", words, "", *markdown_table(lines), ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(TABLES))
    parser.add_argument("--epsilon", nargs="*", default=list(EPSILONS))
    parser.add_argument("--beside", type=Path, help="src of an earlier checkout; its figures are made, not this one's")
    parser.add_argument("--name", help="of the figures; now, or before with --beside")
    parser.add_argument("--flags", default="", help="more flags of tacita train")
    parser.add_argument("--write", action="store_true", help="write docs/results.md from the figures, and run nothing")
    options = parser.parse_args()
    if options.write:
        return write()
    which = options.name or ("now" if options.beside is None else "before")
    for run in range(options.runs):
        for epsilon in options.epsilon:
            for name in options.only:
                if (name, epsilon, run, which) in kept_figures():
                    continue
                flags = tuple(options.flags.split())
                found = one_run(name, epsilon, run, options.beside or ROOT / "src", flags)
                with FIGURES.open("a") as file:
                    file.write(json.dumps([(name, epsilon, run, which), found]) + "\n")
                print(name, epsilon, run, which, found, flush=True)
    return None


if __name__ == "__main__":
    main()
