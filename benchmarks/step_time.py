"""Step time and memory of private training beside plain PyTorch and other libraries; writes ``docs/benchmarks.md``.

    make bench                                     all cells
    python benchmarks/step_time.py --cells a --rounds 5 --print
    python benchmarks/step_time.py --python JAX=ENV/bin/python Opake=OTHER/bin/python
    make bench-gpu                                 the same on a CUDA device, with language models of 1e9 parameters
                                                   (TACITA_LLAMA of cells.py); writes docs/benchmarks-gpu.md

Every implementation lives in its own process, of its own Python where ``--python`` names one. They take turns, in a new
order each round, so that whatever else the machine does falls on all of them; a figure is the median over rounds of
(time of a step / plain step of that round).
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from cells import CELLS, LARGE
from implementations import IMPLEMENTATIONS

ROOT = Path(__file__).parents[1]
PLAIN = "plain PyTorch"
NAMES = [*IMPLEMENTATIONS, "plain JAX, compiled", "JAX Privacy, compiled"]
CLOCK_WORDS = {"wall": "wall time", "cpu": "CPU time, in which waiting for the disk is not counted"}
TURN = 0.3  # seconds that a turn of the plain step takes; the others make as many steps, or what ten turns give


@dataclass(frozen=True)
class Setting:
    """How workers run: threads, clock, device, and the Python of some implementations, by a word in their names."""

    threads: int
    clock: str
    device: str
    pythons: dict[str, str]


class Worker:
    """The process of one implementation; it idles while others have their turn."""

    def __init__(self, cell: str, name: str, setting: Setting) -> None:
        python = next((path for word, path in setting.pythons.items() if word in name), sys.executable)
        given = [cell, name, setting.clock, setting.device, str(setting.threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": given[-1], "NPROC": given[-1]}  # NPROC: the threads of JAX
        if setting.threads == 1:
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("step_worker.py")), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.versions = self._answer()

    def run(self, steps: int) -> tuple[float, float]:
        """Seconds a step, and extra peak memory so far in MiB."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds, mib = self._answer()
        return seconds / steps, mib

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self):
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a benchmark process ended: {self._process.args}")
        return json.loads(line)


# --- the rounds ------------------------------------------------------------------------------------------------------


def measure(cell: str, names: list[str], rounds: int, setting: Setting) -> dict[str, dict[str, Any]]:
    """Median, lowest and highest ratio to the plain step, extra memory and versions, by implementation."""
    workers = started(cell, names, setting)
    names = list(workers)
    steps = max(1, round(TURN / workers[PLAIN].run(2)[0]))
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in names}
    mib: dict[str, float] = {}
    for _ in range(rounds):
        for name in order.sample(names, len(names)):
            turn = steps if not times[name] else affordable(steps, times[name][0])
            seconds, mib[name] = workers[name].run(turn if times[name] else 1)
            times[name].append(seconds)
    for worker in workers.values():
        worker.close()
    plain = times[PLAIN][1:]  # the first round only tells how long a step takes
    ratios = {name: [a / b for a, b in zip(times[name][1:], plain, strict=True)] for name in names}
    return {
        name: {
            "ratio": statistics.median(r),
            "low": min(r),
            "high": max(r),
            "mib": mib[name],
            "versions": workers[name].versions,
        }
        for name, r in ratios.items()
    }


def started(cell: str, names: list[str], setting: Setting) -> dict[str, Worker]:
    """The workers of the implementations that run a cell; one that fails has no figure there."""
    workers = {}
    for name in names:
        try:
            workers[name] = Worker(cell, name, setting)
        except RuntimeError as error:
            print(f"{name} does not run {cell}: {error}", file=sys.stderr)
    return workers


def affordable(steps: int, seconds: float) -> int:
    """As many steps as the plain one makes, within ten of its turns."""
    return max(1, min(steps, round(10 * TURN / seconds)))


# --- the page --------------------------------------------------------------------------------------------------------


def processor(device: str) -> str:
    """What the processor calls itself."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def table(results: dict[str, dict[str, dict[str, float]]], show) -> str:
    names = [name for name in NAMES if any(name in row for row in results.values())]
    lines = [f"| implementation | {' | '.join(results)} |", "| --- |" + " ---: |" * len(results)]
    for name in names:
        cells = [show(row[name]) if name in row else "–" for row in results.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def version(package: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return f"{package} {metadata.version(package)}"
    return f"{package} absent"


def over_gathering(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The whole oracle over the plain step that gathers, as quotients of the medians in the table."""
    oracle, gathering = "tacita, whole oracle", f"{PLAIN}, gathering"
    both = {cell: row for cell, row in results.items() if {oracle, gathering} <= row.keys()}
    words = [f"{cell} {row[oracle]['ratio'] / row[gathering]['ratio']:.2f}" for cell, row in both.items()]
    return f"The whole oracle\nover it: {', '.join(words)}." if words else ""


def page(results: dict[str, dict[str, dict[str, Any]]], rounds: int, setting: Setting, load: float) -> str:
    """The page of a run."""
    cells = "\n".join(f"- **{cell}**: {CELLS[cell].words}" for cell in results)
    command = "bench" if setting.device == "cpu" else "bench-gpu"
    threads = f"{setting.threads} thread{'s' * (setting.threads > 1)}"
    versions = dict.fromkeys(one for row in results.values() for figures in row.values() for one in figures["versions"])
    return f"""# Benchmarks

*Written by `make {command}`.* {processor(setting.device)}, {threads}, float32;
{", ".join(versions)}.
Load of the machine before the run: {load:.1f}; times are {CLOCK_WORDS[setting.clock]}. On a busy machine
the spread is wide, and only large differences count.

One step is forward, backward, per-sample flat clipping, Gaussian noise and an SGD update. Every implementation has its
own process, and they take turns, in a new order each round; a figure is the median over {rounds - 1} rounds of (time of
a step / plain PyTorch step of the same round), with the lowest and highest round beside it. Ratios move by up to 20 %
from run to run: read them as ranges.

{cells}

## Step time, as a multiple of plain PyTorch

{table(results, lambda r: f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})")}

*Engine*: tacita's clipped sum with noise of `torch.randn`, which is what the other libraries do. *Whole oracle*: what
a user runs, with the ledger in a file and cryptographic noise; *Poisson*: each batch is drawn anew by secret coins from
20 batches of rows, where the others step on one fixed batch. *Gathering*: a plain step that collects a batch from
as many rows: what an oracle that draws is to be compared with. {over_gathering(results)}

The rows of JAX are models of the same shapes, written in JAX, over the plain PyTorch step of the cell; what privacy
costs in JAX is the ratio of its two rows. Compilation is not in a step. Where JAX Privacy and Opake are faster with
fewer samples at once, they have them: 32 in a (and in JAX in g), 16 in d. fastDP is not in the package index; its
repository was timed. A dash: the library does not run the cell, or leaves out parameters.

## Extra peak memory, MiB

{table(results, lambda r: f"{r['mib']:.0f}")}

Resident memory at its highest during the steps, over what the process held before the first one.

## Page faults

A private step holds the gradients of all outputs at once, in memory that the system has to hand out and clear anew at
each step. The C library of Linux keeps freed memory with

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483647 python train.py

In d that took 44,700 page faults a round (one plain and one private step) down to 2,500, and the engine from 1.48 to
1.40 times the plain step (CPU time, one thread, a busy machine), at the same peak memory; c has few page faults and
gained nothing. The command `tacita` sets this for its own process. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, which lets
the system hand out larger pages, saved 9 to 14 % of the engine's CPU time in c, d and e, and 3 to 6 % of the plain
step's.

## Compiling the program

A prototype gave the program of a query to `torch.compile`, at one batch size, and left the rules of layers as they are
(CPU time over the plain step, one thread, medians of 5 to 7 rounds):

| | a | b | c | d | e | f | g |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| plain PyTorch, compiled | 1.02 | 0.67 | 1.31 | 0.97 | 0.90 | 0.98 | 1.16 |
| engine | 1.64 | 1.55 | 1.66 | 1.35 | 1.17 | 1.22 | 2.26 |
| engine, program compiled | 1.60 | 0.81 | 1.69 | 1.26 | 1.11 | 1.18 | 2.16 |
| seconds to compile, busy machine | 3 | 6 | 234 | 50 | 36 | 56 | 1 |

Only b gains more than 10 %: its convolutions, `tanh` and pooling are fused, which a compiled plain step gains, too.
Elsewhere the time is in matrix products and convolutions, which are the same library calls either way, and in the
rules, which branch on values and stay eager. A compiled program would serve one batch size (Poisson batches would have
to be filled up), hold all inputs and gradients of layers at once, and add generated C++ to what the guarantee trusts.
So there is no such option. On a GPU this was not measured.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", nargs="*", choices=list(CELLS), help="by default all, on a CPU without the large")
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES, help="implementations")
    parser.add_argument(
        "--python",
        nargs="*",
        default=[],
        metavar="WORD=PATH",
        help="the Python of implementations: JAX=/path/bin/python",
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", default="wall", choices=list(CLOCK_WORDS), help="cpu: for a busy machine, with one thread"
    )
    parser.add_argument(
        "--json", type=Path, help="file of all figures: those that it holds of other implementations and cells are kept"
    )
    parser.add_argument("--print", action="store_true", help="print the page in place of writing it")
    parser.add_argument("--device", default="cpu", help="cuda: with the page docs/benchmarks-gpu.md")
    arguments = parser.parse_args()
    pythons = dict(one.split("=", 1) for one in arguments.python)
    setting = Setting(arguments.threads, arguments.clock, arguments.device, pythons)
    names = [PLAIN, *(name for name in arguments.only if name != PLAIN)]
    load = os.getloadavg()[0]
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    small = [cell for cell in CELLS if arguments.device != "cpu" or cell not in LARGE]
    for cell in arguments.cells or small:
        results[cell] = results.get(cell, {}) | measure(cell, names, arguments.rounds, setting)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))
        print(cell, {name: round(row["ratio"], 2) for name, row in results[cell].items()}, file=sys.stderr)
    results = {cell: results[cell] for cell in CELLS if cell in results}
    text = page(results, arguments.rounds, setting, load)
    if arguments.print:
        print(text)
    else:
        name = "benchmarks.md" if arguments.device == "cpu" else "benchmarks-gpu.md"
        (ROOT / "docs" / name).write_text(text)


if __name__ == "__main__":
    main()
