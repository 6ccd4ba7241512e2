"""Runs of the pure functions alone, and small federations, for the tests of this folder."""

import torch

import tacita
from tacita.federated import Clip21SGDM, ClipSGD, LocalPrivacy, LogisticClients, Simulation

UNIT = tacita.FlatClipper(max_grad_norm=1.0)


def clip21(beta=0.5, lr=0.1, bound=1.0):
    return Clip21SGDM(clipper=tacita.FlatClipper(max_grad_norm=bound), lr=lr, momentum_weight=beta)


def clip_sgd(lr=0.1, bound=1.0):
    return ClipSGD(clipper=tacita.FlatClipper(max_grad_norm=bound), lr=lr)


def rounds_of(algorithm, gradients, start, clients, rounds, noise=None):  # noqa: PLR0917 - a recipe
    """Run the pure functions on all clients (a leading axis); yield what was broadcast, messages, and both states.

    ``gradients`` maps a point to (..., clients, d); ``noise`` maps a round to the mean noise.
    """
    x = torch.as_tensor(start, dtype=torch.float64)
    shapes = {"x": x.shape[-1:]}
    server = algorithm.start({"x": x})
    state = algorithm.client_start(shapes, (*x.shape[:-1], clients))
    for t in range(rounds):
        server = algorithm.broadcast(server)
        at = server.params["x"].unsqueeze(-2)
        messages, state = algorithm.message(state, {"x": at}, lambda params: {"x": gradients(params["x"])}, shapes)
        mean = messages["x"].mean(dim=-2) + (0.0 if noise is None else noise(t))
        broadcast = server.params["x"]
        server = algorithm.receive(server, {"x": mean})
        yield broadcast, messages["x"], state, server


def ledger(relation="replace_one"):
    return tacita.Ledger(neighboring_relation=relation, privacy_unit="all data of one client")


def logistic(clients=5, rows=12, size=4, *, seed=0, dtype=torch.float64, **more):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(clients, rows, size, generator=generator, dtype=dtype)
    truth = torch.randn(clients, size, 1, generator=generator, dtype=dtype)  # clients differ
    labels = torch.where(features @ truth > 0, 1.0, -1.0).squeeze(2).to(dtype)
    return LogisticClients(features, labels, **more)


def simulation(problem, algorithm=None, *, noise=4.0, rounds=8, privacy=None, seed=0, book=None, **more):
    chosen = privacy or LocalPrivacy(mechanism=tacita.GaussianMechanism(noise_multiplier=noise))
    return Simulation(
        problem,
        algorithm or clip21(),
        privacy=chosen,
        ledger=book or ledger(),
        rounds=rounds,
        randomness=more.pop("randomness", None) or tacita.Randomness.insecure(seed),
        **more,
    )


def one_by_one(run):
    """The run with a noise stream for every client, as where clients feed back what they sent."""
    run._noise.by_client = True
    return run
