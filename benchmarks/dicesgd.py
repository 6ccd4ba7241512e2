"""Error feedback's step beside the plain clipped step: time as a ratio, memory in buffers of the parameters' size.

    python benchmarks/dicesgd.py                     all cells, 1 and 2 threads
    python benchmarks/dicesgd.py --cells a --rounds 9 --threads 1

Both are whole oracles (ledger in a file, cryptographic noise, SGD below the line) on the same fixed batch, in one
process, and take turns in a new order each round; a figure is the median over rounds of the ratio within the round.
Memory is that of a linear model of ten million parameters in processes of their own, beside the plain clipped step's.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cells import CELLS, Cell, losses
from step_time import peak_mib
from torch import nn

import tacita

PLAIN = "plain clipped step"
FEEDBACKS = {
    "PrivateFeedback": tacita.PrivateFeedback(max_feedback_norm=1.0),
    "BoundedFeedback": tacita.BoundedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0),
    "ReleasedFeedback": tacita.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0),
}
TURN = 0.25  # seconds
WARM_UP = 3
WIDE = Cell("linear, 10,000,000 parameters, batch 8", lambda: nn.Linear(10_000, 1000, bias=False), (10_000,), 1000, 8)


def maker(name: str, cell: Cell) -> Callable[[], None]:
    """One step of the oracle: query, ledger, noise, SGD."""
    torch.manual_seed(0)
    model = cell.model()
    folder = tempfile.TemporaryDirectory()
    ledger = tacita.Ledger(
        Path(folder.name) / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row"
    )
    settings = dict(
        ledger=ledger,
        sampler=tacita.FullBatchSampler(num_records=cell.batch),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=10**6,
    )
    rows = cell.rows(cell.batch)
    if name == PLAIN:
        oracle = tacita.ClippedGradientOracle(model, losses, rows, **settings)
    else:
        oracle = tacita.ErrorFeedbackOracle(model, losses, rows, feedback=FEEDBACKS[name], **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_keep: object = folder) -> None:
        oracle.backward()
        optimizer.step()

    return step


def ratios(cell: Cell, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Median, lowest and highest ratio to the plain clipped step."""
    steps = {name: maker(name, cell) for name in (PLAIN, *FEEDBACKS)}
    for step in steps.values():
        timed(step, WARM_UP)
    count = max(2, round(TURN / timed(steps[PLAIN], 5)))
    order, found = random.Random(0), {name: [] for name in FEEDBACKS}
    for _ in range(rounds):
        seconds = {name: timed(steps[name], count) for name in order.sample(list(steps), len(steps))}
        for name in FEEDBACKS:
            found[name].append(seconds[name] / seconds[PLAIN])
    return {name: (statistics.median(r), min(r), max(r)) for name, r in found.items()}


def timed(step: Callable[[], None], count: int) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def extra_memory(name: str) -> float:
    """Highest memory during steps of a wide linear model, MiB over that before the oracle was made."""
    command = [sys.executable, __file__, "--serve", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)


def serve(name: str) -> None:
    """Print the peak of one implementation."""
    torch.set_num_threads(1)
    before = peak_mib(reset=True)
    step = maker(name, WIDE)
    for _ in range(WARM_UP):
        step()
    print(json.dumps(peak_mib() - before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    print(f"load {os.getloadavg()[0]:.1f}; time of a step over that of the {PLAIN}: median (lowest to highest)\n")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name in arguments.cells:
            cells = ratios(CELLS[name], arguments.rounds).items()
            words = ", ".join(f"{kind} {r:.2f} ({low:.2f} to {high:.2f})" for kind, (r, low, high) in cells)
            print(f"{threads} thread{'s' * (threads > 1)}, {CELLS[name].words}: {words}")
    plain, size = extra_memory(PLAIN), 1e7 * 4 / 2**20
    print(f"\n{WIDE.words}: buffers of the parameters' size beyond the {PLAIN}'s ({plain / size:.1f} at its peak)")
    for name in FEEDBACKS:
        print(f"{name} {(extra_memory(name) - plain) / size:.2f}")
    return None


if __name__ == "__main__":
    main()
