"""CPU time of a simulated round of Clip21-SGDM, over a hand-vectorised round without any accounting.

``python benchmarks/federated.py``: logistic regression on 1000 clients of 100 rows, d = 500, float32. The two take
turns in one process, so that other work on the machine slows both; medians of the CPU times of single rounds, and their
ratio. The hand-vectorised round draws every client's noise with ``torch.randn``; the simulation draws that of the sum
from its secret key, and writes the ledger.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tacita
from tacita.federated import Clip21SGDM, LocalPrivacy, LogisticClients, Simulation

LR, WEIGHT, NOISE = 0.1, 0.1, 8.0


def by_hand(features: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """Return a function that makes one round, in a dozen lines of torch."""
    clients, rows, size = features.shape
    x, estimate = torch.zeros(size), torch.zeros(size)
    momentum, shift = torch.zeros(clients, size), torch.zeros(clients, size)

    def step() -> None:
        nonlocal x, estimate, momentum, shift
        x = x - LR * estimate
        pulls = -labels * torch.sigmoid(-labels * (features @ x)) / rows
        gradient = torch.bmm(pulls.unsqueeze(1), features).squeeze(1)
        momentum = (1 - WEIGHT) * momentum + WEIGHT * gradient
        apart = momentum - shift
        clipped = apart * (1 / apart.norm(dim=1, keepdim=True)).clamp(max=1.0)
        shift = shift + clipped
        estimate = estimate + (clipped + 2 * NOISE * torch.randn(clients, size)).mean(dim=0)

    return step


def simulated(features: torch.Tensor, labels: torch.Tensor, rounds: int, path: Path) -> Callable[[], object]:
    """Return a function that makes one round of the simulation, with its ledger on disk."""
    return Simulation(
        LogisticClients(features, labels),
        Clip21SGDM(clipper=tacita.FlatClipper(max_grad_norm=1.0), lr=LR, momentum_weight=WEIGHT),
        privacy=LocalPrivacy(mechanism=tacita.GaussianMechanism(noise_multiplier=NOISE)),
        ledger=tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit="all data of one client"),
        rounds=rounds,
    ).step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    features = torch.randn(settings.clients, settings.rows, settings.size)
    labels = torch.randint(2, (settings.clients, settings.rows)).mul(2).sub(1).float()
    with tempfile.TemporaryDirectory() as folder:
        steps = {
            "by hand": by_hand(features, labels),
            "simulated": simulated(features, labels, settings.rounds + 2, Path(folder) / "ledger.jsonl"),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for made in range(settings.rounds + 2):
            for name, step in steps.items():
                start = time.process_time()
                step()
                if made >= 2:  # the first two warm up
                    times[name].append(time.process_time() - start)
    hand, ours = (statistics.median(times[name]) for name in steps)
    ratios = [b / a for a, b in zip(*times.values(), strict=True)]
    print(f"simulated over by hand: {ours / hand:.3f} (medians), {statistics.median(ratios):.3f} (median of ratios)")


if __name__ == "__main__":
    main()
