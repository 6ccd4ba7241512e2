"""What a product with the Hessian costs, in gradients of the same loss over the same rows.

Run it with ``python benchmarks/hessian.py`` (``--device cuda``). Ratios of medians of interleaved runs; never seconds.
A product is a forward pass and two backward ones, with one product a record in memory.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the models of the other benchmarks

from cells import CELLS, Cell, losses

from tacita.gradients import NetworkSource
from tacita.gradients.functional import losses_at
from tacita.second_order.hessian import BatchHessian, hessian_products


def timed(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def ratios(cell: Cell, device: str, repeats: int) -> dict[str, float]:
    """Medians over the median of one gradient."""
    torch.manual_seed(0)
    model = cell.model().to(device)
    batch = tuple(t.to(device) for t in cell.rows(cell.batch))
    params = {name: p.detach() for name, p in model.named_parameters()}

    source = NetworkSource(model, losses, batch)
    engine = source.engine(params, np.arange(cell.batch))
    by_program = BatchHessian(engine, divisor=1.0, products=hessian_products(source))
    vector = torch.randn(by_program.dim, device=device)

    def gradient() -> None:
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        total = losses_at(model, losses, leaves, batch, cell.batch).sum()
        torch.autograd.grad(total, list(leaves.values()))

    work = {"gradient": gradient, "product": lambda: by_program.product(vector)}
    for one in work.values():
        one()
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, one in work.items():
            found[name].append(timed(one, device))
    medians = {name: statistics.median(times) for name, times in found.items()}
    return {name: medians[name] / medians["gradient"] for name in list(work)[1:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    settings = parser.parse_args()
    for cell in CELLS.values():
        found = ratios(cell, settings.device, settings.repeats)
        words = ", ".join(f"{name}: {ratio:.2f}" for name, ratio in found.items())
        print(f"{cell.words}: {words}")


if __name__ == "__main__":
    main()
