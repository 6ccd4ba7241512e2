"""CPU time of a simulated round of Clip21-SGDM, beside a hand-vectorised round, pfl-research and Flower.

``python benchmarks/federated.py``: logistic regression on 1000 clients of 100 rows, d = 500, float32. The arms take
turns in one process, so that other work on the machine slows all of them; medians of the CPU times of single rounds,
and their ratios. The hand-vectorised round draws every client's noise with ``torch.randn`` and has no ledger; the
simulation draws the noise of the sum from its secret key, and writes the ledger. pfl-research (``pip install pfl``, in
an environment of its own; left out where it is missing) has no error feedback, so that its round does less: one local
step a client, clipped, with Gaussian noise on every message. With ``--flower`` the arms take turns inside the
server app of Flower's simulation, which is one of them (``benchmarks/federated_flower.py``).
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
OURS = "simulated"


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


def with_pfl(features: torch.Tensor, labels: torch.Tensor) -> Callable[[], object] | None:
    """Return a function that makes one round of federated averaging with local noise; ``None`` without pfl-research."""
    try:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging as Averaging
        from pfl.common_types import Population
        from pfl.context import CentralContext
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel
        from pfl.privacy.gaussian_mechanism import GaussianMechanism
    except ImportError:
        return None

    class Logistic(torch.nn.Linear):
        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
            return torch.nn.functional.softplus(-y * self(x).squeeze(1)).mean()

        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict:
            return {}

    clients, _, size = features.shape
    network = Logistic(size, 1, bias=False)
    torch.nn.init.zeros_(network.weight)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    users = {str(number): Dataset([features[number], labels[number]]) for number in range(clients)}
    dataset = FederatedDataset(lambda user: users[user], get_user_sampler("minimize_reuse", list(users)))
    noise = GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=2 * NOISE)
    backend = SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[noise])
    shape = {"central_num_iterations": 10**6, "evaluation_frequency": 10**6, "val_cohort_size": 0}
    of_round = NNAlgorithmParams(**shape, train_cohort_size=clients)
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=None)
    algorithm = Averaging()

    def step() -> None:
        context = CentralContext(
            current_central_iteration=1,
            do_evaluation=False,
            cohort_size=clients,
            population=Population.TRAIN,
            algorithm_params=of_round,
            model_train_params=local,
        )
        found, metrics = backend.gather_results(model=model, training_algorithm=algorithm, central_context=context)
        algorithm.process_aggregated_statistics(context, metrics, model, found)

    return step


def turns(steps: dict[str, Callable[[], object]], clocks: dict[str, Callable[[], float]], rounds: int) -> None:
    """Let the arms take turns, and print the ratios of ours to the others; a clock is ``process_time`` by default."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for made in range(rounds + 2):
        for name, step in steps.items():
            clock = clocks.get(name, time.process_time)
            start = clock()
            step()
            if made >= 2:  # the first two warm up
                times[name].append(clock() - start)
    ours = times.pop(OURS)
    for name, others in times.items():
        medians = statistics.median(ours) / statistics.median(others)
        pairs = statistics.median(b / a for a, b in zip(others, ours, strict=True))
        print(f"simulated over {name}: {medians:.4g} (medians), {pairs:.4g} (median of ratios)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--flower", action="store_true", help="with Flower's simulation")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    features = torch.randn(settings.clients, settings.rows, settings.size)
    labels = torch.randint(2, (settings.clients, settings.rows)).mul(2).sub(1).float()
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, Callable[[], object]] = {
            "by hand": by_hand(features, labels),
            OURS: simulated(features, labels, settings.rounds + 2, Path(folder) / "ledger.jsonl"),
        }
        peer = with_pfl(features, labels)
        if peer is not None:
            steps["pfl-research"] = peer
        if not settings.flower:
            return turns(steps, {}, settings.rounds)
        from federated_flower import NAME, cpu_seconds, inside_flower

        inside_flower(
            features,
            labels,
            Path(folder),
            lr=LR,
            noise_std=2 * NOISE,
            measure=lambda step: turns(steps | {NAME: step}, {NAME: cpu_seconds}, settings.rounds),
        )


if __name__ == "__main__":
    main()
