from .algorithms import Clip21SGDM, ClipSGD, FederatedAlgorithm, FederatedAveraging, ServerState
from .client import Client, Message
from .client_messages import ClientMessagesEvent, ClippedSamplesEvent
from .clipped_difference import ClippedDifference, ClippedMean
from .coordinator import Coordinator, RoundReport, longest_honest_message
from .federation import FederationSettings, joined
from .finished_client import finish_client
from .flower import client_app, run_rounds, server_app
from .guarded_source import GuardedSource
from .local_training import LocalTraining
from .privacy import FederatedPrivacy, LocalPrivacy, RecordPrivacy, TrustedServer
from .problems import ClientProblem, LogisticClients, NetworkClients, QuadraticClients
from .quantile_averaging import QuantileAveraging
from .released_difference import ReleasedDifference
from .released_shift import ReleasedShiftSGDM
from .resident import Resident
from .server_adam import ServerAdam
from .settings import SimulationSettings, read_settings
from .simulated_run import run_simulation
from .simulation import Round, Simulation
from .splits import split_by_label, split_by_owner, split_dirichlet, split_evenly, stacked

__all__ = [
    "Client",
    "ClientMessagesEvent",
    "ClientProblem",
    "Clip21SGDM",
    "ClipSGD",
    "ClippedDifference",
    "ClippedMean",
    "ClippedSamplesEvent",
    "Coordinator",
    "FederatedAlgorithm",
    "FederatedAveraging",
    "FederatedPrivacy",
    "FederationSettings",
    "GuardedSource",
    "LocalPrivacy",
    "LocalTraining",
    "LogisticClients",
    "Message",
    "NetworkClients",
    "QuadraticClients",
    "QuantileAveraging",
    "RecordPrivacy",
    "ReleasedDifference",
    "ReleasedShiftSGDM",
    "Resident",
    "Round",
    "RoundReport",
    "ServerAdam",
    "ServerState",
    "Simulation",
    "SimulationSettings",
    "TrustedServer",
    "client_app",
    "finish_client",
    "joined",
    "longest_honest_message",
    "read_settings",
    "run_rounds",
    "run_simulation",
    "server_app",
    "split_by_label",
    "split_by_owner",
    "split_dirichlet",
    "split_evenly",
    "stacked",
]
