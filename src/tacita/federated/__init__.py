"""Federated training: clients that send clipped and noisy messages, and whole federations simulated at once."""

from tacita.federated.algorithms import (
    Clip21SGDM,
    ClipSGD,
    FederatedAlgorithm,
    FederatedAveraging,
    ServerState,
)
from tacita.federated.client import Client, Message
from tacita.federated.privacy import FederatedPrivacy, LocalPrivacy, TrustedServer
from tacita.federated.problems import ClientProblem, LogisticClients, NetworkClients, QuadraticClients
from tacita.federated.settings import SimulationSettings, read_settings, run_simulation
from tacita.federated.simulation import Round, Simulation
from tacita.federated.splits import split_by_label, split_by_owner, split_dirichlet, split_evenly, stacked

__all__ = [
    "Client",
    "ClientProblem",
    "Clip21SGDM",
    "ClipSGD",
    "FederatedAlgorithm",
    "FederatedAveraging",
    "FederatedPrivacy",
    "LocalPrivacy",
    "LogisticClients",
    "Message",
    "NetworkClients",
    "QuadraticClients",
    "Round",
    "ServerState",
    "Simulation",
    "SimulationSettings",
    "TrustedServer",
    "read_settings",
    "run_simulation",
    "split_by_label",
    "split_by_owner",
    "split_dirichlet",
    "split_evenly",
    "stacked",
]
