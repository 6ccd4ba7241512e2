"""Error feedback's step beside the plain clipped step: time as a ratio, memory in buffers of the parameters' size.

    python benchmarks/dicesgd.py                     all cells, 1 and 2 threads; writes into docs/error-feedback.md
    python benchmarks/dicesgd.py --cells a --rounds 9 --threads 1 --print

Both are whole oracles (ledger in a file, cryptographic noise, SGD below the line) on the same fixed batch, in one
process, and take turns in a new order each round; a figure is the median over rounds of the ratio within the round.
Memory is the highest during steps of a network of ten million parameters, each in a process of its own.
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
from typing import Any

import torch
from cells import CELLS, Cell, losses
from results import ROOT, markdown_table, write_section
from step_time import processor, version
from step_worker import peak_mib
from torch import nn

import tacita

SCRIPT = "benchmarks/dicesgd.py"
PAGE = ROOT / "docs" / "error-feedback.md"
PLAIN = "plain clipped step"
FEEDBACKS = {
    "PrivateFeedback": tacita.PrivateFeedback(max_feedback_norm=1.0),
    "BoundedFeedback": tacita.BoundedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0),
    "ReleasedFeedback": tacita.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0),
}
TURN = 0.25  # seconds
WARM_UP = 3
WIDE_PARAMETERS = 10**7
WIDE = Cell(
    "network of ten layers of 1,000,000 parameters",
    lambda: nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(10))),
    (1000,),
    1000,
    8,
)
SMALL = Cell("linear model", lambda: nn.Linear(10, 2, bias=False), (10,), 2, 8)


def maker(name: str, cell: Cell) -> Callable[[], None]:
    """One step of the oracle: query, ledger, noise, SGD."""
    torch.manual_seed(0)
    model = cell.model()
    folder = tempfile.TemporaryDirectory()
    ledger = tacita.Ledger(
        Path(folder.name) / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row"
    )
    settings: dict[str, Any] = dict(
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


def ratios(cell: Cell, rounds: int) -> dict[str, list[float]]:
    """To the plain clipped step, round by round."""
    steps = {name: maker(name, cell) for name in (PLAIN, *FEEDBACKS)}
    for step in steps.values():
        timed(step, WARM_UP)
    count = max(2, round(TURN / timed(steps[PLAIN], 5)))
    order, found = random.Random(0), {name: [] for name in FEEDBACKS}
    for _ in range(rounds):
        seconds = {name: timed(steps[name], count) for name in order.sample(list(steps), len(steps))}
        for name in FEEDBACKS:
            found[name].append(seconds[name] / seconds[PLAIN])
    return found


def timed(step: Callable[[], None], count: int) -> float:
    """Seconds a step."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def peak(name: str) -> float:
    """Highest memory of a step of the wide model, in buffers of its parameters' size, the model's own among them."""
    command = [sys.executable, __file__, "--serve", name]
    at_once = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # large tensors go back to the system when they are freed
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **at_once}
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)


def serve(name: str) -> None:
    """Print the peak of one implementation."""
    torch.set_num_threads(1)
    maker(name, SMALL)()  # so that what is imported when first needed is there
    before = peak_mib(reset=True)
    step = maker(name, WIDE)
    step()  # from here on the last gradient and the error are there
    peak_mib(reset=True)
    for _ in range(2):
        step()
    print(json.dumps((peak_mib() - before) / (4 * WIDE_PARAMETERS / 2**20)))


def times(names: list[str], threads: list[int], rounds: int) -> list[str]:
    """The table of ratios."""
    lines = []
    for count in threads:
        torch.set_num_threads(count)
        for name in names:
            found = ratios(CELLS[name], rounds).items()
            figures = {kind: f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for kind, r in found}
            lines.append({"step": CELLS[name].words, "threads": str(count), **figures})
            print(lines[-1], file=sys.stderr)
    return markdown_table(lines)


def memory() -> list[str]:
    """The table of peaks."""
    peaks = {name: peak(name) for name in (PLAIN, *FEEDBACKS)}
    found = {"peak": peaks, "beyond the plain step": {name: most - peaks[PLAIN] for name, most in peaks.items()}}
    return markdown_table(
        [{"": words, **{name: f"{value:.1f}" for name, value in row.items()}} for words, row in found.items()]
    )


def section(names: list[str], threads: list[int], rounds: int) -> list[str]:
    """What a step costs, for the page."""
    load = os.getloadavg()[0]
    return [
        "## What a step costs",
        "",
        f"`python {SCRIPT}` ({processor('cpu')}; {version('torch')}, {version('tacita')}; load of the machine before "
        f"the run {load:.1f}): whole oracles on one fixed batch, in turns; the median over {rounds} rounds of (time of "
        "a step / time of the plain clipped step in the same round), lowest and highest beside it.",
        "",
        *times(names, threads, rounds),
        "",
        "The second sum over the batch is one more product a layer, and in a narrow network of dense layers that is "
        "most of it; `ReleasedFeedback` draws noise for two blocks.",
        "",
        f"Highest memory of a step of a {WIDE.words}, in buffers of its parameters' size (float32), the model and its "
        "last gradient among them:",
        "",
        *memory(),
        "",
        "`BoundedFeedback` holds its error in float64, two buffers, and its sum until the noise is in it.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--print", action="store_true", help="do not write the page")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    lines = section(arguments.cells, arguments.threads, arguments.rounds)
    return print("\n".join(lines)) if arguments.print else write_section(SCRIPT, lines, PAGE)


if __name__ == "__main__":
    main()
