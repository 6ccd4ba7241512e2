"""How long a training takes and how much memory, by the number of rows: CSV and Parquet of 8 columns.

    python benchmarks/size.py 2e5 2e6                   # CSV, all queries
    python benchmarks/size.py --parquet 2e6 2e7         # Parquet
    python benchmarks/size.py --queries 10 --parquet 2e6 2e7

Each size runs in a process of its own. Printed are CPU seconds, seconds on the clock and the largest resident memory;
of the file of encoded rows the system may drop what it needs elsewhere. Compare clocks only on an idle machine. The
lines go to docs/results.md, between the marks of this page, each in the place of an earlier one for that size.
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from results import markdown_table, section, write_section

SCRIPT = "benchmarks/size.py"
CITIES = ("Paris", "London", "Roma", "Berlin", "Madrid", "Wien", "Oslo", "Bern")
CHUNK = 500_000


def columns(rows: int, seed: int) -> pa.Table:
    """Numbers, categories and a label of two classes, about 45 bytes a row as text."""
    rng = np.random.default_rng(seed)
    age, score = rng.integers(17, 91, rows), rng.normal(size=rows).round(4)
    income, tenure = np.exp(rng.normal(10, 1, rows)).round(2), rng.exponential(5, rows).round(3)
    hours = np.clip(rng.normal(40, 12, rows), 1, 99).round().astype(int)
    city, job = rng.integers(0, len(CITIES), rows), np.minimum(rng.geometric(0.15, rows) - 1, 19)
    log_odds = 2 * ((age - 45) / 20 + score + (city == 0) - np.log(income) / 4 + 2.2 + (job == 1))
    label = np.where(rng.random(rows) < 1 / (1 + np.exp(-log_odds)), "yes", "no")
    names = np.array(CITIES)[city], np.array([f"job-{i:02d}" for i in range(20)])[job]
    given = {"age": age, "hours": hours, "income": income, "score": score, "city": names[0], "job": names[1]}
    return pa.table({**given, "tenure": tenure, "label": label})


def write(path: Path, rows: int) -> None:
    """The table in a file, made piece by piece."""
    first = columns(1, 0).schema
    writer = (
        pyarrow.parquet.ParquetWriter(path, first)
        if path.suffix == ".parquet"
        else pyarrow.csv.CSVWriter(path, first, write_options=pyarrow.csv.WriteOptions(quoting_style="none"))
    )
    with writer:
        for number, start in enumerate(range(0, rows, CHUNK)):
            writer.write_table(columns(min(CHUNK, rows - start), number))


def train(path: Path, folder: str, queries: int | None, results) -> None:
    """One training; what it took goes into ``results``."""
    from tacita.tables import TableSettings, train_table

    clock, cpu = time.perf_counter(), time.process_time()
    run = train_table(
        TableSettings(data=str(path), output=f"{folder}/run", epsilon=1.0, delta=1e-8, target="label", queries=queries)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    taken = time.process_time() - cpu, time.perf_counter() - clock
    results.put((*taken, peak, run.fields["holdout_score"]))


def report(line: dict[str, str]) -> None:
    """Print a line, and put it into docs/results.md."""
    print(line, flush=True)
    names = list(line)
    found = [[cell.strip() for cell in old[1:-1].split("|")] for old in section(SCRIPT).splitlines() if old[:1] == "|"]
    lines = {tuple(row[:3]): dict(zip(names, row, strict=True)) for row in found[2:] if len(row) == len(names)}
    lines[tuple(line.values())[:3]] = line
    body = [
        "## Large tables",
        "",
        f"`python {SCRIPT}`: one bare `tacita train` of a linear model at (1, 1e-8) on 8 columns, from the file to the "
        "sealed run, with one thread for arithmetic and one that reads ahead. CPU seconds count both; the clock also "
        "counts what else ran on the machine meanwhile, and a load above the two cores of the machine slows both down.",
        "",
        *markdown_table(
            [lines[key] for key in sorted(lines, key=lambda key: (key[0], float(key[1].replace(",", ""))))]
        ),
        "",
    ]
    write_section(SCRIPT, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=float)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--queries", type=int)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for rows in map(int, options.rows):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("table.parquet" if options.parquet else "table.csv")
            writing = spawn.Process(target=write, args=(path, rows))
            writing.start()
            writing.join()
            results = spawn.Queue()
            process = spawn.Process(target=train, args=(path, folder, options.queries, results))
            process.start()
            cpu, clock, peak, score = results.get()
            process.join()
            size = path.stat().st_size / 1e6
            report(
                {
                    "file": f"{path.suffix[1:]}, {size:.0f} MB",
                    "rows": f"{rows:,}",
                    "queries": str(options.queries or "all 400"),
                    "CPU, s": f"{cpu:.0f}",
                    "clock, s": f"{clock:.0f}",
                    "load": f"{os.getloadavg()[1]:.0f}",
                    "peak memory, GB": f"{peak:.2f}",
                    "accuracy": f"{score['value']:.3f}",
                    "AUC": f"{score['AUC']['value']:.3f}",
                }
            )


if __name__ == "__main__":
    main()
