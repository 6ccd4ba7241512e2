"""The server's part: SecAgg+ shows it the sum of a round's noisy messages, and it takes one step.

Clients must remember nothing (``algorithm = "clip-sgd"``): whose message was lost, and has to be rolled back, is known
message by message, and here there are only sums. No central guarantee is stated: SecAgg+ rounds every message, and a
sum of rounded messages is no Gaussian sum. What holds is each client's own statement, which its resident prints.
"""
# pyright: reportMissingImports=false

from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr.common import FitIns, FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from tacita.federated import FederationSettings
from tacita.federated.wire import Broadcast, to_wire, wire_tensors

app = ServerApp()
SHARES, THRESHOLD = 1.0, 0.6  # of the clients: who hold shares of a client's keys, and how many of them are needed
NOISES = 12.0  # a coordinate further from 0 than C and so many noises is cut off: one of 10^32 is


class SumOfMessages(FedAvg):
    """Asks every client for a message, and moves the model by their sum over the public number of clients."""

    def __init__(self, settings: FederationSettings) -> None:
        super().__init__()
        if settings.algorithm != "clip-sgd":
            raise ValueError(f"algorithm must be 'clip-sgd' with secure aggregation, got {settings.algorithm!r}.")
        self.settings, self.algorithm = settings, settings.build_algorithm()
        start = {name: p.detach() for name, p in settings.build_model().named_parameters()}
        self.server, self.made = self.algorithm.start(start), 0

    def initialize_parameters(self, client_manager: ClientManager | None) -> Parameters:
        """Return arrays of the model's shapes, in the order of their names."""
        return ndarrays_to_parameters([self.server.params[name].numpy() for name in sorted(self.server.params)])

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return what to ask every client, once all of them are there."""
        client_manager.wait_for(self.settings.clients, timeout=86_400)
        self.server = self.algorithm.broadcast(self.server)
        tensors = wire_tensors(self.server.params)
        asked = to_wire(Broadcast(self.settings.id, server_round - 1, None, "", tensors))
        return [(proxy, FitIns(parameters, {"broadcast": asked})) for proxy in client_manager.all().values()]

    def aggregate_fit(self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list):
        """Take one step along the sum, which SecAgg+ gives as a mean over the clients whose message is in it."""
        means = parameters_to_ndarrays(results[0][1].parameters)
        share = len(results) / self.settings.clients
        mean = {name: torch.from_numpy(x * share) for name, x in zip(sorted(self.server.params), means, strict=True)}
        self.server = self.algorithm.receive(self.server, mean)
        self.made += 1  # a round that SecAgg+ has given up is paid for, and not made
        print(f"round {server_round} of {self.settings.rounds}: {len(results)} messages", flush=True)
        return self.initialize_parameters(None), {}

    def configure_evaluate(self, server_round: int, parameters: Parameters, client_manager: ClientManager) -> list:
        """Ask nobody: an accuracy on a client's rows would be a release of its own."""
        return []


def furthest(settings: FederationSettings) -> float:
    """Return where SecAgg+ may cut a coordinate off. It is public, and cutting is post-processing."""
    return settings.max_grad_norm + NOISES * max(settings.noise()[1].values())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Make all rounds, and write the model."""
    settings = FederationSettings.read(str(context.run_config["federation"]))
    strategy = SumOfMessages(settings)
    secure = SecAggPlusWorkflow(
        SHARES,
        THRESHOLD,
        max_weight=1.0,
        clipping_range=furthest(settings),
        timeout=float(context.run_config["seconds"]),
    )
    rounds = ServerConfig(num_rounds=settings.rounds)
    DefaultWorkflow(fit_workflow=secure)(grid, LegacyContext(context, config=rounds, strategy=strategy))
    output = Path(str(context.run_config["output"]))
    output.mkdir(parents=True, exist_ok=True)
    np.savez(
        output / "model.npz", allow_pickle=False, **{name: x.numpy() for name, x in strategy.server.params.items()}
    )
    print(f"{strategy.made} of {settings.rounds} rounds; the clients' own statements hold, and no other", flush=True)
