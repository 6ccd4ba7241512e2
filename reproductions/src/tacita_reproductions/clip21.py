"""The examples of the paper on Clip21-SGDM: where plain clipping stops, and where error feedback is biased.

Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Theorem 1 and Figure 1, in
the algorithms' pure functions without noise for privacy. All gradients are synthetic.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tacita.clipping import FlatClipper
from tacita.federated import Clip21SGDM, ClipSGD, FederatedAlgorithm
from tacita_reproductions.clip21_example import geometric_median, toy_noise
from tacita_reproductions.runner import Check, Progress, Result, Row, span

SMOOTHNESS, GRADIENT_NOISE, LR, START = 2.0, 5.0, 0.01, (0.0, -0.07)
Gradients = Callable[[Tensor], Tensor]  # points (..., 1, d) -> gradients (..., clients, d)


def iterates(
    algorithm: FederatedAlgorithm, gradients: Gradients, start: Tensor, *, clients: int, rounds: int
) -> Iterator[Tensor]:
    """Yield the broadcast model of each round, (..., d), for many runs at once; nothing is noised."""
    shapes = {"x": start.shape[-1:]}
    server = algorithm.start({"x": start})
    state = algorithm.client_start(shapes, (*start.shape[:-1], clients))
    for _ in range(rounds):
        server = algorithm.broadcast(server)
        yield server.params["x"]
        at = {"x": server.params["x"].unsqueeze(-2)}
        messages, state = algorithm.message(state, at, lambda params: {"x": gradients(params["x"])}, shapes)
        server = algorithm.receive(server, {"x": messages["x"].mean(dim=-2)})


def method(max_grad_norm: float, momentum_weight: float) -> Clip21SGDM:
    """Return Clip21-SGDM with the step size of Figure 1; Clip21-SGD for a weight of 1."""
    clipper = FlatClipper(max_grad_norm=max_grad_norm)
    return Clip21SGDM(clipper=clipper, lr=LR, momentum_weight=momentum_weight)


def toy(algorithm: Clip21SGDM, *, clients: int, runs: int, rounds: int, seed: int) -> Row:
    """Run Theorem 1's example and return the bias and the mean squared gradient over the last half of the rounds."""
    generator = torch.Generator().manual_seed(seed)
    noises = torch.from_numpy(toy_noise(GRADIENT_NOISE))

    def gradients(x: Tensor) -> Tensor:
        return SMOOTHNESS * x + noises[torch.randint(3, (runs, clients), generator=generator)]

    start = torch.tensor(START, dtype=torch.float64).expand(runs, 2)
    total, squares, kept = torch.zeros(2, dtype=torch.float64), 0.0, 0
    for t, x in enumerate(iterates(algorithm, gradients, start, clients=clients, rounds=rounds)):
        if 2 * t >= rounds:
            total, kept = total + x.mean(dim=0), kept + 1
            squares += float((SMOOTHNESS * x).square().sum(dim=-1).mean())
    return {
        "method": "Clip21-SGD" if algorithm.momentum_weight == 1 else "Clip21-SGDM",
        "momentum weight": algorithm.momentum_weight,
        "threshold": algorithm.clipper.max_grad_norm,
        "clients": clients,
        "norm of the mean gradient": SMOOTHNESS * float(total.norm()) / kept,
        "mean squared norm": squares / kept,
    }


def figure_1(full: bool, seed: int, progress: Progress) -> Result:
    """Reproduce Figure 1: thresholds with one client, then the number of clients at threshold 0.1."""
    rounds, runs = (10_000, 20) if full else (800, 20)
    thresholds, clients = ((1.0, 0.1, 0.01), (4, 16, 64)) if full else ((1.0, 0.1), (16,))
    cells = [(c, 1) for c in thresholds] + [(0.1, n) for n in clients]
    rows: list[Row] = []
    for place, (threshold, n) in enumerate(cells):
        progress(place / len(cells), f"threshold {threshold:g}, {n} clients")
        rows += [
            toy(method(threshold, weight), clients=n, runs=runs if n == 1 else 5, rounds=rounds, seed=seed)
            for weight in (1.0, 0.1)
        ]
    floor = float((geometric_median(toy_noise(GRADIENT_NOISE)) ** 2).sum())  # its gradient is minus the median
    plain, mended = ([row for row in rows if row["method"] == name] for name in ("Clip21-SGD", "Clip21-SGDM"))
    small = [row for row in plain if row["threshold"] < 1]
    return Result(
        rows=rows,
        checks=[
            Check(
                "Clip21-SGD leaves the solution at every threshold",
                all(_bias(row) > 0.3 for row in plain),
                found=f"the mean gradient is {span(map(_bias, plain))}",
            ),
            Check(
                "Clip21-SGDM stays there",
                all(_bias(row) < 0.12 for row in mended),
                found=f"the mean gradient is {span(map(_bias, mended))}",
            ),
            Check(
                "more clients do not help Clip21-SGD, whose squared gradient stays near its limit",
                all(0.8 * floor < row["mean squared norm"] < 1.6 * floor for row in small),
                found=f"{span(row['mean squared norm'] for row in small)}, with the limit {floor:.3g}",
            ),
            Check(
                "more clients help Clip21-SGDM",
                mended[-1]["mean squared norm"] < mended[1]["mean squared norm"] / 4,
                found=f"the squared gradient is {mended[-1]['mean squared norm']:.3g} with {mended[-1]['clients']} "
                f"clients, {mended[1]['mean squared norm']:.3g} with one",
            ),
        ],
        notes=[
            f"L {SMOOTHNESS:g}, sigma {GRADIENT_NOISE:g}, start {START}, step {LR:g}; the last half of {rounds} rounds",
            f"{runs} runs, 5 with several clients",
            f"limit of Clip21-SGD for small thresholds (geometric median of the noise): {floor:.4f}",
        ],
    )


def _bias(row: Row) -> float:
    return row["norm of the mean gradient"]


def example_1(full: bool, seed: int, progress: Progress) -> Result:
    """Run two clients at 3 and -3 from 1.5: Clip-SGD never moves, both Clip21 methods converge."""
    targets, start = torch.tensor([[3.0], [-3.0]], dtype=torch.float64), torch.tensor([1.5], dtype=torch.float64)
    clipper = FlatClipper(max_grad_norm=1.0)
    methods: dict[str, FederatedAlgorithm] = {
        "Clip-SGD": ClipSGD(clipper=clipper, lr=0.1),
        "Clip21-SGD": Clip21SGDM(clipper=clipper, lr=0.1, momentum_weight=1.0),
        "Clip21-SGDM": Clip21SGDM(clipper=clipper, lr=0.1, momentum_weight=0.5),
    }
    rows: list[Row] = []
    for name, algorithm in methods.items():
        x = [float(one) for one in iterates(algorithm, lambda x: x - targets, start, clients=2, rounds=100)]
        rows.append({"method": name, **{f"x after {t} rounds": x[t - 1] for t in (10, 20, 50, 100)}})
    last = [abs(row["x after 100 rounds"]) for row in rows]
    return Result(
        rows=rows,
        checks=[
            Check("Clip-SGD stays where it starts, at 1.5", last[0] == 1.5, found=f"{last[0]:.4g} after 100 rounds"),
            Check(
                "both Clip21 methods reach the solution, 0",
                max(last[1:]) < 1e-4,
                found=f"at most {max(last[1:]):.1g} away after 100 rounds",
            ),
        ],
        notes=["exact gradients, step 0.1, threshold 1; momentum weight 0.5"],
    )
