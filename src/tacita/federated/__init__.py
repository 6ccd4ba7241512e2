"""Federated training: clients that send clipped and noisy messages, and whole federations simulated at once."""

from tacita.federated.algorithms import (
    Clip21SGDM,
    ClipSGD,
    FederatedAlgorithm,
    FederatedAveraging,
    ServerState,
)
from tacita.federated.client import Client, Message
from tacita.federated.local_training import LocalTraining
from tacita.federated.privacy import FederatedPrivacy, LocalPrivacy, RecordPrivacy, TrustedServer
from tacita.federated.problems import ClientProblem, LogisticClients, NetworkClients, QuadraticClients
from tacita.federated.quantile_averaging import QuantileAveraging
from tacita.federated.released_shift import ReleasedShiftSGDM
from tacita.federated.server_adam import ServerAdam
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
    "LocalTraining",
    "LogisticClients",
    "Message",
    "NetworkClients",
    "QuadraticClients",
    "QuantileAveraging",
    "RecordPrivacy",
    "ReleasedShiftSGDM",
    "Round",
    "ServerAdam",
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
