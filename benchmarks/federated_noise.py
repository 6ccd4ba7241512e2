"""Rounds that a trusted server draws: test accuracy by how clients are drawn and which noise is added.

    python benchmarks/federated_noise.py

A logistic regression on 1,000 clients of 20 rows with 300 features, whose best models differ a little; Clip-SGD with
threshold 0.5; one client is protected, delta 1e-5. Learning rates are chosen for each cell on other clients, among
powers of two. Mean and deviation of five runs.
"""

import statistics

import torch
from torch import Tensor

import tacita
from tacita.federated import ClipSGD, LogisticClients, Simulation, SimulationSettings

CLIENTS, ROWS, FEATURES, THRESHOLD = 1000, 20, 300, 0.5
CELLS = (
    (4.0, 50, 0.02, "zero_out_one"),
    (8.0, 50, 0.02, "zero_out_one"),
    (8.0, 100, 0.05, "zero_out_one"),
    (8.0, 250, 0.02, "zero_out_one"),
    (8.0, 250, 0.02, "replace_one"),
)
RATES, RUNS, OTHERS = (0.0625, 0.125, 0.25, 0.5, 1.0), range(5), (100, 101)


def rows_of(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features and labels of the clients, and those of as many test clients."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    features = normal(2 * CLIENTS, ROWS, FEATURES)
    truth = torch.linspace(1, -1, FEATURES, dtype=torch.float64) + 0.3 * normal(2 * CLIENTS, 1, FEATURES)
    scores = (features * truth).sum(dim=2) + 0.5 * normal(2 * CLIENTS, ROWS)
    labels = torch.where(scores > 0, 1.0, -1.0).double()
    return features[:CLIENTS], labels[:CLIENTS], features[CLIENTS:], labels[CLIENTS:]


def accuracy(settings: SimulationSettings, strategy: tacita.correlated.Strategy | None, lr: float, seed: int) -> float:
    """Return the test accuracy of one run, in percent."""
    features, labels, others, their_labels = rows_of(seed)
    simulation = Simulation(
        LogisticClients(features, labels),
        ClipSGD(clipper=tacita.FlatClipper(max_grad_norm=THRESHOLD), lr=lr),
        privacy=settings.build_privacy(strategy),
        ledger=tacita.Ledger(neighboring_relation=settings.neighboring_relation, privacy_unit="one client"),
        rounds=settings.rounds,
        randomness=tacita.Randomness.insecure(seed),
    )
    return 100 * float((their_labels * (others @ simulation.run()["x"]) > 0).double().mean())


def main() -> None:
    print("| relation | epsilon | rounds | clients a round | chosen | lr | accuracy |")
    print("| --- " * 7 + "|")
    for epsilon, rounds, rate, relation in CELLS:
        for noise in ("coins", "independent", "correlated"):
            settings = SimulationSettings(
                data="", output="", epsilon=epsilon, delta=1e-5, trust="server", lr=1.0, rounds=rounds,
                sample_rate=rate, neighboring_relation=relation, algorithm="clip-sgd", max_grad_norm=THRESHOLD,
                noise="correlated" if noise == "correlated" else "independent",
            )  # fmt: skip
            strategy = None if noise == "coins" else settings.choose_strategy(CLIENTS)[0]
            words = "independent, Poisson sampling" if strategy is None else strategy.words
            if noise == "independent" and words == "independent, Poisson sampling":
                continue  # the line before
            lr = max(RATES, key=lambda lr: statistics.mean(accuracy(settings, strategy, lr, s) for s in OTHERS))
            found = [accuracy(settings, strategy, lr, seed) for seed in RUNS]
            mean, spread = statistics.mean(found), statistics.stdev(found)
            cells = (relation, f"{epsilon:g}", rounds, round(rate * CLIENTS), words, f"{lr:g}")
            print(f"| {' | '.join(map(str, cells))} | {mean:.1f} +- {spread:.1f} |", flush=True)


if __name__ == "__main__":
    main()
