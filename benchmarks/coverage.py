"""Which networks can be written down as a program, how close it is to the loop, and what tracing and a query cost.

Run it with ``python benchmarks/coverage.py``; it writes docs/coverage.md. Each line of the table is measured: whether
there is a program, the largest difference from one record at a time in float64, the CPU time of tracing, once, and the
CPU time of a clipped sum over that of a plain step, in float32 on one thread, interleaved, medians. The networks are
small, so that the fixed cost of a query, which a larger network does not see, is part of the ratio. Lines of a library
that is not installed say so.

``python benchmarks/coverage.py timm peft`` measures these families alone and leaves the rest of the page as it is.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # results.py
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the networks of the tests

from results import ROOT, markdown_table, write_section

from tacita.clipping import FlatClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.program import Programs
from tests.gradients.coverage import Case, cases
from tests.gradients.layers import SMALL

PAGE = ROOT / "docs" / "coverage.md"
ROUNDS = 5
COLUMNS = ("bare", "from the loop", "tracing, s", "cost")
CLIPPER = FlatClipper(max_grad_norm=1.0)


def difference(case: Case) -> tuple[int, float]:
    """Return the number of bare parameters, and the largest relative difference from the loop, in float64."""
    torch.manual_seed(0)
    model = case.make(SMALL).to(case.exact)
    data = case.data(SMALL, case.exact)
    found = []
    for method in ("auto", "loop"):
        source = NetworkSource(model, case.loss, data, method=method)
        params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        engine: Any = source.engine(params, torch.arange(len(data[0])).numpy(), seed=1)
        engine.rounding_margin = False
        found.append(engine.weighted_sums(torch.ones_like, {name: (name,) for name in source.shapes}))
    mine, theirs = found
    scale = max(theirs.norms.max().item(), 1e-30)
    worst = max((a - theirs.values[0][n]).abs().max().item() for n, a in mine.values[0].items())
    worst = max(worst, (mine.norms - theirs.norms).abs().max().item())
    return len(Programs(model, case.loss, data).program(params)[0].of_copies), worst / scale


def cost(case: Case) -> tuple[float, float]:
    """Return the seconds of CPU time that tracing takes, and the time of a clipped sum over that of a plain step."""
    torch.manual_seed(0)
    model = case.make(case.size)
    data = case.data(case.size, torch.float32)
    indices = torch.arange(len(data[0]))
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    start = time.process_time()
    Programs(model, case.loss, data).program(params)
    tracing = time.process_time() - start
    source = NetworkSource(model, case.loss, data)
    groups = CLIPPER.groups(source.shapes)

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        case.loss(model, tuple(t[indices] for t in data)).mean().backward()

    def private() -> None:
        source.engine(params, indices.numpy(), seed=1).weighted_sums(CLIPPER.weights, groups)

    times: dict[Callable[[], None], list[float]] = {plain: [], private: []}
    for _ in range(ROUNDS + 2):
        for work, taken in times.items():
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
    of_plain, of_private = (statistics.median(taken[2:]) for taken in times.values())
    return tracing, of_private / of_plain


def measured(case: Case) -> dict[str, str]:
    """Return the line of one case."""
    cells = {"network": case.name, "engine": "", **dict.fromkeys(COLUMNS, "")}
    if case.missing:
        return cells | {"engine": f"{case.missing} is not installed"}
    try:
        bare, off = difference(case)
    except UnsupportedModuleError as error:
        return cells | {"engine": f"refused: {str(error).split(': ', 1)[1].split('. Rewrite')[0]}"}
    figures = [str(bare or ""), f"{off:.0e}" if off else "0", *(f"{one:.2f}" for one in cost(case))]
    return cells | {"engine": "program"} | dict(zip(COLUMNS, figures, strict=True))


def summary() -> str:
    """Return how many of the page's networks are served, and what they cost in the middle."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    engines = [line for line in lines if len(line) == 2 + len(COLUMNS) and line[1].startswith(("program", "refused"))]
    tracing, costs = (sorted(float(line[k]) for line in engines if line[1] == "program") for k in (-2, -1))
    return (
        f"Of {len(engines)} networks {len(costs)} are served. The median cost is {statistics.median(costs):.2f}. "
        f"Tracing takes {statistics.median(tracing):.1f} s of CPU time in the median and {tracing[-1]:.0f} s at most: "
        "once, before any record is read."
    )


def main() -> None:
    families = cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help=f"only these: {', '.join(map(repr, families))}")
    chosen = parser.parse_args().families or list(families)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for family in chosen:
        table = []
        for case in families[family]:
            table.append(measured(case))
            print(" | ".join([family, *table[-1].values()]), flush=True)
        lines = [f"## {family[0].upper()}{family[1:]}", "", *markdown_table(table), ""]
        write_section(f"coverage.py: {family}", lines, page=PAGE)
    write_section("coverage.py: all", [summary()], page=PAGE)


if __name__ == "__main__":
    main()
