"""The process of one implementation, started by ``step_time.py``, in whatever Python has that library.

It says which packages it has, then answers each line "number of steps" with the seconds that they took and the extra
memory. Compilation falls in the steps before.
"""

import argparse
import contextlib
import importlib
import json
import sys
import time
from importlib import metadata
from pathlib import Path

WARM_UP = 3
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PACKAGES = {  # by a word in the name of the implementation
    "tacita": "tacita",
    "Opacus": "opacus",
    "Opake": "opake",
    "fastDP": "fastDP",
    "JAX": "jax",
    "JAX Privacy": "jax-privacy",
    "PyTorch": "torch",
}


def versions(name: str) -> list[str]:
    """The packages that an implementation stands for, with their versions."""
    return [f"{package} {metadata.version(package)}" for word, package in PACKAGES.items() if word in name]


def peak_mib(reset: bool = False) -> float:
    """Highest resident memory since the last reset, MiB (Linux; NaN elsewhere)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), float("nan"))


def serve(cell: str, name: str, threads: int, clock: str, device: str) -> None:
    """Answer each line on stdin."""
    makers, cells = ("jax_steps", "jax_steps") if "JAX" in name else ("implementations", "cells")
    make, what = importlib.import_module(makers).IMPLEMENTATIONS[name], importlib.import_module(cells).CELLS[cell]
    torch = sys.modules.get("torch")
    if torch:
        torch.set_num_threads(threads)
        torch.set_default_device(device)
        torch.manual_seed(0)

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)  # steps are queued
        return CLOCKS[clock]()

    def peak(reset: bool = False) -> float:
        if device == "cpu":
            return peak_mib(reset)
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device) / 2**20

    with contextlib.redirect_stdout(sys.stderr):
        step = make(what)
        before = peak(reset=True)
        for _ in range(WARM_UP):
            step()
        peak(reset=True)  # what compilation took is not a step's
    print(json.dumps(versions(name)), flush=True)
    for line in sys.stdin:
        start = now()
        for _ in range(int(line)):
            step()
        seconds = now() - start
        print(json.dumps([seconds, peak() - before]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for given in ("cell", "name", "clock", "device"):
        parser.add_argument(given)
    parser.add_argument("threads", type=int)
    serve(**vars(parser.parse_args()))
