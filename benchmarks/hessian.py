"""What a product with the Hessian costs, in gradients of the same loss over the same rows.

Run it with ``python benchmarks/hessian.py`` (``--device cuda``). Ratios of medians of interleaved runs; never seconds.
A product with the graph kept (one chunk) is two backward passes, about two gradients; in several chunks the graph is
built anew for each product, and costs one gradient more.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # the models of the other benchmarks

from cells import CELLS, Cell, losses

from tacita.gradients.functional import losses_at
from tacita.second_order.hessian import Hessian


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

    def term(rows):
        return lambda point: losses_at(model, losses, point, rows, len(rows[0])).sum()

    def gradient() -> None:
        leaves = {name: p.requires_grad_() for name, p in ((n, p.clone()) for n, p in params.items())}
        torch.autograd.grad(term(batch)(leaves), list(leaves.values()))

    halves = [tuple(t[::2] for t in batch), tuple(t[1::2] for t in batch)]
    whole, chunked = Hessian([term(batch)], params), Hessian([term(half) for half in halves], params)
    vector = torch.randn(whole.dim, device=device)
    work = {
        "gradient": gradient,
        "product, graph kept": lambda: whole.product(vector),
        "product, two chunks": lambda: chunked.product(vector),
    }
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
