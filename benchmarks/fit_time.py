"""Time and memory of a private logistic regression beside scikit-learn's without privacy (lbfgs), on the same table.

    python benchmarks/fit_time.py [--rows 1000000] [--runs 3] [--threads 1]

The two fits take turns in one process; a ratio is the median of those of the rounds. What lbfgs needs depends on the
table: with labels that the features say little about it stops after a few iterations. So there are two tables. Peak
memory is that of a process of its own, above what it has once the table is there (Linux).
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLUMNS, DELTA = 100, 5e-7
EPSILONS, SIGNALS, DTYPES = (1.0, 0.1), (3.0, 1.0), ("float64", "float32")


def fits(rows: int, signal: float, dtype: str) -> dict[str, Callable[[], Any]]:
    """Return the fits by name, on rows of normal features and logistic labels."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    from tacita.linear_model import PrivateLogisticRegression

    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, COLUMNS)).astype(dtype)
    weights = signal * rng.standard_normal(COLUMNS) / COLUMNS**0.5
    y = (x @ weights + rng.logistic(size=rows) > 0).astype(int)

    def private(epsilon: float) -> Any:
        model = PrivateLogisticRegression(epsilon=epsilon, delta=DELTA, classes=[0, 1], data_norm=COLUMNS**0.5)
        return model.fit(x, y)

    ours = {f"epsilon {epsilon:g}": lambda epsilon=epsilon: private(epsilon) for epsilon in EPSILONS}
    return {"lbfgs": lambda: LogisticRegression().fit(x, y), **ours}


def timed(found: dict[str, Callable[[], Any]], runs: int) -> None:
    """Print ratios of processor time and of time on the wall."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    steps = {}
    for _ in range(runs):
        for name, fit in found.items():
            start = time.process_time(), time.perf_counter()
            steps[name] = int(fit().n_iter_ if name != "lbfgs" else fit().n_iter_[0])
            spent[name].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    for name, taken in spent.items():
        ratios = [
            statistics.median(mine[k] / peer[k] for mine, peer in zip(taken, spent["lbfgs"], strict=True))
            for k in (0, 1)
        ]
        print(f"  {name}: {steps[name]} steps, processor time {ratios[0]:.2f}, wall {ratios[1]:.2f}", flush=True)


def kibibytes(name: str) -> int:
    """Return a figure of this process from Linux's own table."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", nargs=3, metavar=("NAME", "SIGNAL", "DTYPE"), help="of one fit, in this process")
    args = parser.parse_args()
    if args.peak:
        name, signal, dtype = args.peak
        fit = fits(args.rows, float(signal), dtype)[name]
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of making the table
        before = kibibytes("VmRSS")
        fit()
        print(f"  {name}: {(kibibytes('VmHWM') - before) / 1024:.0f} MiB more at the peak")
        return
    for dtype in DTYPES:
        for signal in SIGNALS:
            print(f"{dtype}, signal {signal:g}, {args.rows} rows, {args.threads} threads", flush=True)
            timed(fits(args.rows, signal, dtype), args.runs)
        for name in ("lbfgs", "epsilon 1"):
            subprocess.run(
                [sys.executable, __file__, "--rows", str(args.rows), "--peak", name, str(SIGNALS[0]), dtype], check=True
            )


if __name__ == "__main__":
    for limit in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if "--threads" not in sys.argv:
            os.environ[limit] = "1"
        else:
            os.environ[limit] = sys.argv[sys.argv.index("--threads") + 1]
    main()
