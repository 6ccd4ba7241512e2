"""Accuracy of error feedback and of plain clipping at equal, rigorous (epsilon, delta).

    python benchmarks/accuracy.py [--full] [--only WORD ...] [--workers 2]

Every method is tuned alike: six settings, one seed, on a split of the training rows (the tuning is not charged, as in
the papers). Then five fresh seeds on all training rows, measured on the test rows, which nothing else ever sees. Runs
that are done are kept in --cache, so that a stopped script goes on. The table goes to docs/results.md.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from arms import ARMS, BATCH, Arm, Run, Setting, trained
from images import TASKS, Images, Task
from results import DATA, ROOT, markdown_table, write_section

SCRIPT = "benchmarks/accuracy.py"
EPSILONS, DELTA, SEEDS, HELD_OUT = (1.0, 3.0, 8.0), 1e-5, 5, 10_000
SHORT, FULL = 3.0, 10.0  # epochs of a run
Job = tuple[str, str, float, Setting, int]  # task, arm, epsilon, setting, seed; seed -1 tunes


@lru_cache(maxsize=1)
def images(task: Task) -> Images:
    return task.load()


def run(job: Job, epochs: float) -> dict[str, Any]:
    """Accuracy of the last iterate and of the average of the second half: on held-out rows (tuning) or test rows."""
    name, arm_name, epsilon, setting, seed = job
    task, arm = _named(TASKS, name), _named(ARMS, arm_name)
    torch.set_num_threads(1)
    data = images(task)
    if seed < 0:
        train, test = (data.x[:-HELD_OUT], data.y[:-HELD_OUT]), (data.x[-HELD_OUT:], data.y[-HELD_OUT:])
    else:
        train, test = (data.x, data.y), (data.x_test, data.y_test)
    torch.manual_seed(1000 + seed)  # the initial weights, which are public; the noise is the system's
    start = time.perf_counter()
    models = trained(arm, Run(task.model(), train, setting, epsilon, DELTA, epochs))
    seconds = time.perf_counter() - start
    return {kind: accuracy(model, *test) for kind, model in models.items()} | {"seconds": seconds}


@torch.no_grad()
def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    parts = zip(x.split(2000), y.split(2000), strict=True)
    right = sum(int((model(rows).argmax(1) == labels).sum()) for rows, labels in parts)
    return right / len(y)


class Done:
    """The runs that are done, by what they were; a line of JSON each."""

    def __init__(self, path: Path, epochs: float):
        self._path, self._epochs = path, epochs
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                key, value = json.loads(line)
                self._found[key] = value

    def __getitem__(self, job: Job) -> dict[str, Any]:
        return self._found[self._key(job)]

    def __contains__(self, job: Job) -> bool:
        return self._key(job) in self._found

    def make(self, jobs: list[Job], workers: int) -> None:
        """Run what is missing, the slow ones first."""
        missing = sorted((job for job in dict.fromkeys(jobs) if job not in self), key=_slow_first)
        if not missing:
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool, self._path.open("a") as file:
            futures = {pool.submit(run, job, self._epochs): job for job in missing}
            try:
                for count, future in enumerate(as_completed(futures), start=1):
                    key = self._key(futures[future])
                    self._found[key] = future.result()
                    file.write(json.dumps([key, future.result()]) + "\n")
                    file.flush()
                    print(f"{count}/{len(missing)}", *futures[future], future.result(), flush=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)  # the first failure ends it, not the last
                raise

    def _key(self, job: Job) -> str:
        task, arm, epsilon, setting, seed = job
        return json.dumps([task, arm, epsilon, asdict(setting), seed, self._epochs, BATCH])


def _slow_first(job: Job) -> tuple[str, ...]:
    return (job[0], job[1], str(job[2]))


def chosen(task: Task, arm: Arm, epsilon: float, kind: str, done: Done) -> Setting:
    tuned = arm.tuned_as or arm.name
    return max(arm.settings(task.steps), key=lambda setting: done[task.name, tuned, epsilon, setting, -1][kind])


def tuning(tasks: list[Task], arms: list[Arm]) -> list[Job]:
    names = {arm.tuned_as or arm.name for arm in arms}
    tuned = [arm for arm in ARMS if arm.name in names]
    return [(t.name, a.name, e, s, -1) for t in tasks for a in tuned for e in EPSILONS for s in a.settings(t.steps)]


def final(tasks: list[Task], arms: list[Arm], done: Done) -> list[Job]:
    return [
        (t.name, a.name, e, chosen(t, a, e, kind, done), seed)
        for t in tasks for a in arms for e in EPSILONS for kind in ("last", "averaged") for seed in range(SEEDS)
    ]  # fmt: skip


def lines(task: Task, arms: list[Arm], done: Done) -> Iterator[dict[str, str]]:
    """A line a method: mean and worst accuracy, by epsilon, last iterate and average."""
    for arm in arms:
        for kind in ("last", "averaged"):
            line = {"method": arm.name, "iterate": kind}
            for epsilon in EPSILONS:
                setting = chosen(task, arm, epsilon, kind, done)
                found = [done[task.name, arm.name, epsilon, setting, seed][kind] for seed in range(SEEDS)]
                line[f"epsilon {epsilon:g}"] = f"{statistics.mean(found):.4f} ({min(found):.4f})"
            line["settings"] = "; ".join(chosen(task, arm, e, kind, done).words() for e in EPSILONS)
            yield line


def page(tasks: list[Task], arms: list[Arm], done: Done, epochs: float) -> list[str]:
    body = [
        "## Error feedback at equal epsilon",
        "",
        f"`python {SCRIPT}` (Poisson batches of {BATCH} on average, {epochs:g} epochs, SGD with momentum 0.9, delta "
        f"{DELTA:g}, add_or_remove_one; `--full` runs 10 epochs). Test accuracy, mean of {SEEDS} seeds (worst). Each "
        "method was tuned alike: six settings, one seed, on 10,000 training rows held out; **that tuning is not "
        "charged**. Each epsilon is rigorous: what the ledger of that run states. `settings` are those chosen at "
        f"epsilon {', '.join(f'{e:g}' for e in EPSILONS)}: C the clipping threshold, E the threshold of the feedback, "
        "R the one of the residuals, each relative to C; step the learning rate times C.",
        "",
    ]
    for task in tasks:
        body += [f"### {task.name}", "", *markdown_table(list(lines(task, arms, done))), ""]
    return body


def _named(things: tuple, name: str) -> Any:
    return next(thing for thing in things if thing.name == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="10 epochs instead of 3")
    parser.add_argument("--only", nargs="*", default=[], help="tasks whose name contains one of these words")
    parser.add_argument("--arms", nargs="*", default=[], help="methods whose name contains one of these words")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "accuracy.jsonl")
    arguments = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"no data at {DATA}: set TACITA_DATA.")
    os.environ["OMP_NUM_THREADS"] = "1"
    arguments.cache.parent.mkdir(parents=True, exist_ok=True)
    epochs = FULL if arguments.full else SHORT
    tasks = [t for t in TASKS if not arguments.only or any(word in t.name for word in arguments.only)]
    arms = [a for a in ARMS if not arguments.arms or any(word in a.name for word in arguments.arms)]
    done = Done(arguments.cache, epochs)
    done.make(tuning(tasks, arms), arguments.workers)
    done.make(final(tasks, arms, done), arguments.workers)
    if arms == list(ARMS):
        write_section(SCRIPT, page(tasks, arms, done, epochs))


if __name__ == "__main__":
    main()
