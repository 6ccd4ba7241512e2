"""Accuracy of `tacita train` on real tables, measured on rows that the run never saw.

    python benchmarks/tables.py [--runs 5] [--only NAME ...]

Every run goes through the command line. The data folder is TACITA_DATA, or ../shared/data beside the repository. The
figures go to docs/results.md, between the marks of this page.
"""

import argparse
import csv
import gzip
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from results import DATA, ROOT, markdown_table, section, write_section
from scipy.stats import rankdata

import tacita
from tacita.tables.readers import read_table
from tacita.tables.table_model import TableModel

SCRIPT = "benchmarks/tables.py"
BANK = "age,job,marital,education,default,balance,housing,loan,contact,day,month,duration,campaign,pdays,previous,"
BANK += "poutcome,y"


@dataclass(frozen=True)
class Case:
    """One table, one command, one figure.

    Attributes:
        name: In the table of results.
        wanted: The figure to reach.
        measure: "accuracy", "AUC" or "R2".
        prepare: (folder, number of the run) -> the training file and the file of unseen rows, written there.
        target: Column to predict.
        flags: Further flags of the command.
    """

    name: str
    wanted: float
    measure: str
    prepare: Callable[[Path, int], tuple[Path, Path]]
    target: str
    flags: tuple[str, ...] = ()
    budget: tuple[str, str] = ("1", "1e-5")
    unseen: str = field(default="a fifth, set aside before the run")


def adult(folder: Path, run: int) -> tuple[Path, Path]:
    test = gzip.decompress((DATA / "tabular/adult.test.gz").read_bytes()).decode().splitlines()
    path = folder / "adult_test.csv"
    path.write_text("\n".join([test[0], *(line.rstrip(".") for line in test[1:])]) + "\n")
    return DATA / "tabular/adult.data.gz", path


def bank(folder: Path, run: int) -> tuple[Path, Path]:
    lines = gzip.decompress((DATA / "tabular/bank_full.csv.gz").read_bytes()).decode().splitlines()
    return split(folder / f"bank{run}", "", lines, run)


def housing(folder: Path, run: int) -> tuple[Path, Path]:
    head, *lines = gzip.decompress((DATA / "tabular/cal_housing.csv.gz").read_bytes()).decode().splitlines()
    return split(folder / f"housing{run}", head + "\n", lines, run)


def mnist(folder: Path, run: int) -> tuple[Path, Path]:
    paths = []
    for part in ("train", "t10k"):
        images = gzip.decompress((DATA / f"mnist/{part}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((DATA / f"mnist/{part}-labels-idx1-ubyte.gz").read_bytes())
        paths.append(folder / f"mnist_{part}.npz")
        np.savez(
            paths[-1],
            image=np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28),
            digit=np.frombuffer(labels, np.uint8, offset=8).astype(np.int64),
        )
    return paths[0], paths[1]


def split(stem: Path, head: str, lines: list[str], run: int) -> tuple[Path, Path]:
    """A fifth of the lines is set aside, another one in every run: one fifth alone may be easy or hard by luck."""
    order = np.random.default_rng(run).permutation(len(lines))
    parts = np.split(order, [len(lines) // 5])
    paths = stem.with_suffix(".unseen.csv"), stem.with_suffix(".csv")
    for path, rows in zip(paths, parts, strict=True):
        path.write_text(head + "".join(lines[i] + "\n" for i in np.sort(rows)))
    return paths[1], paths[0]


CASES = (
    Case(
        "Adult, public schema and rows", 0.85, "accuracy", adult, "Y",
        ("--schema", str(ROOT / "benchmarks/adult.toml"), "--test-file", "UNSEEN"), unseen="adult.test",
    ),
    Case("Adult, bare", 0.845, "accuracy", adult, "Y", unseen="adult.test"),
    Case("Bank marketing, bare", 0.90, "AUC", bank, "y", ("--columns", BANK)),
    Case("California housing, bare", 0.60, "R2", housing, "median_house_value"),
    Case("MNIST, bare, mlp", 0.93, "accuracy", mnist, "digit", ("--model", "mlp"), ("3", "1e-5"), "t10k"),
)  # fmt: skip


def one_run(case: Case, train: Path, unseen: Path, output: Path) -> tuple[dict[str, float], float, dict[str, Any]]:
    """The figures on unseen rows, the seconds it took, and the score that the run itself stated."""
    flags = [str(unseen) if flag == "UNSEEN" else flag for flag in case.flags]
    epsilon, delta = case.budget
    command = ["train", str(train), "--target", case.target, "--epsilon", epsilon, "--delta", delta, *flags]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from tacita.cli import main; main()", *command, "--output", str(output), "--quiet"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - start
    model = tacita.load(output)
    return figures(model, case.target, unseen), seconds, model.statement["holdout_score"]


def figures(model: TableModel, target: str, unseen: Path) -> dict[str, float]:
    """R2 on the unseen rows, or accuracy, with the AUC beside it where there are two classes.

    Labels are read as they stand, not by the model's own encoder.
    """
    table = read_table(unseen, model.encoder.reading, only=model.encoder.columns())
    codes, texts = table.column(target).texts()
    truth, predicted = np.array(texts, dtype=object)[codes], model.predict_table(table)
    if model.encoder.task == "regression":
        numbers = truth.astype(np.float64)
        left = np.square(predicted - numbers).sum()
        return {"R2": float(1 - left / np.square(numbers - numbers.mean()).sum())}
    accuracy = {"accuracy": float((predicted == truth).mean())}
    if len(model.classes) != 2:
        return accuracy
    return accuracy | {"AUC": area(truth == model.classes[1], model.probabilities(table)[:, 1])}


def area(positive: np.ndarray, chance: np.ndarray) -> float:
    """The area under the ROC curve; ties count one half."""
    pairs = positive.sum() * (~positive).sum()
    return float((rankdata(chance)[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / pairs)


def measure(case: Case, runs: int) -> dict[str, str]:
    """One line of the table of results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [one_run(case, *case.prepare(folder, run), folder / f"run{run}") for run in range(runs)]
    every, seconds, stated = [one[0] for one in found], [one[1] for one in found], [one[2] for one in found]
    values = [one[case.measure] for one in every]
    others = [name for name in every[0] if name != case.measure]
    line = {
        "table": case.name,
        "measure": case.measure,
        "budget": f"({case.budget[0]}, {case.budget[1]})",
        "wanted": f"{case.wanted:g}",
        "mean": f"{statistics.mean(values):.4f}",
        "each run": " ".join(f"{value:.4f}" for value in values),
        "beside it": ", ".join(f"{name} {statistics.mean(one[name] for one in every):.4f}" for name in others),
        "reached": "yes" if statistics.mean(values) >= case.wanted else "NO",
        "stated by the runs": " ".join([stated[0]["measure"], *(f"{one['value']:.3f}" for one in stated)]),
        "seconds a run": f"{statistics.median(seconds):.0f}",
        "measured on": case.unseen,
    }
    print(line, flush=True)
    return line


def write(lines: list[dict[str, str]]) -> None:
    """Replace these lines of docs/results.md; lines of cases that were not run stay."""
    names = list(lines[0])
    kept = {row[0]: row for row in rows_of(section(SCRIPT)) if len(row) == len(names)}
    kept |= {line["table"]: list(line.values()) for line in lines}
    order = [case.name for case in CASES if case.name in kept]
    body = [
        "## Tables",
        "",
        "`tacita train` on real tables (`python benchmarks/tables.py`): epsilon and delta cover everything, purchases, "
        "training and score. Figures on rows that the run never saw; `stated by the runs` is the score that "
        "the command itself printed.",
        "",
        *markdown_table([dict(zip(names, kept[name], strict=True)) for name in order]),
        "",
    ]
    write_section(SCRIPT, body)


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in next(csv.reader([line], delimiter="|"))[1:-1]] for line in lines[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="cases whose name contains one of these words")
    arguments = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"no data at {DATA}: set TACITA_DATA.")
    chosen = [case for case in CASES if not arguments.only or any(word in case.name for word in arguments.only)]
    for case in chosen:
        write([measure(case, arguments.runs)])


if __name__ == "__main__":
    main()
