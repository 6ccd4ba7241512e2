"""Settings of a simulated federation as a TOML file, and the run that they describe, in a folder of its own."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.clipping import FlatClipper
from tacita.errors import DataStructureError, ResumeError
from tacita.federated.algorithms import Clip21SGDM, ClipSGD, FederatedAlgorithm, FederatedAveraging
from tacita.federated.privacy import FederatedPrivacy, LocalPrivacy, TrustedServer
from tacita.federated.problems import LogisticClients
from tacita.federated.simulation import Simulation
from tacita.federated.splits import Split, split_by_label, split_by_owner, split_dirichlet, split_evenly, stacked
from tacita.federated.views import protected_from
from tacita.ledger import Ledger, Statement, statement
from tacita.mechanisms import CalibratedGaussian
from tacita.random import Randomness
from tacita.training.folder import RunFolder
from tacita.training.run_facts import run_facts
from tacita.training.sealed_run import TEXT, publish

EVERY = 100  # rounds between checkpoints
NOT_ANONYMISED = (
    "The clients' data: a run changes nothing in them, and they stay as personal as they were.",
    "What is declared: all that the settings state is published as given.",
)


class SimulationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated federation that trains a logistic regression. All of it is public.

    Attributes:
        data: An NPZ file with ``features`` (rows, d), ``labels`` (rows,), above 0 for one class, and for the split
            "owner" ``owners`` (rows,).
        output: The folder of the run.
        epsilon, delta: What the whole run may spend.
        trust: "clients" for local privacy, "server" for a server that adds up its clients.
        neighboring_relation: How neighbours differ. With trust in clients alone nothing depends on it.
        algorithm: "clip21-sgdm", "clip21-sgd", "clip-sgd" or "federated-averaging".
        max_grad_norm: Threshold C of a client's message.
        lr: The server's step size.
        rounds: Number of rounds.
        momentum_weight: Weight of the new gradient, for clip21-sgdm.
        local_steps, local_lr: A client's steps, for federated-averaging.
        split: "owner", "even", "label" or "dirichlet".
        clients: Number of clients, but for the split "owner".
        concentration: Of the Dirichlet law.
        split_seed: Seed of the split.
        clients_per_round: Clients that are asked in a round, with trust in clients alone.
        sample_rate: Chance of a client to take part, with a trusted server.
        loss_rate: Chance that a message is lost.
        batch_size: Rows of a client's minibatch; all by default.
        regularisation: lambda of the regulariser, which is not convex.
    """

    data: str
    output: str
    epsilon: float
    delta: float
    trust: Literal["clients", "server"]
    max_grad_norm: float
    lr: float
    rounds: int
    neighboring_relation: NeighboringRelation = "replace_one"
    algorithm: Literal["clip21-sgdm", "clip21-sgd", "clip-sgd", "federated-averaging"] = "clip21-sgdm"
    momentum_weight: float | None = None
    local_steps: int | None = None
    local_lr: float | None = None
    split: Literal["owner", "even", "label", "dirichlet"] = "owner"
    clients: int | None = None
    concentration: float | None = None
    split_seed: int = 0
    clients_per_round: int | None = None
    sample_rate: float = 1.0
    loss_rate: float = 0.0
    batch_size: int | None = None
    regularisation: float = 0.0

    @classmethod
    def from_toml(cls, text: str) -> "SimulationSettings":
        """Read settings strictly: an unknown name, a missing one or a wrong type is refused.

        Example:
            >>> SimulationSettings.from_toml("data = 'clients.npz'")
            Traceback (most recent call last):
            ...
            ValueError: config is not valid: Object missing required field `output`.
        """
        try:
            settings = msgspec.convert(tomllib.loads(text), cls)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
            raise ValueError(f"config is not valid: {error}.") from None
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ``ValueError`` if a setting is missing or out of range, or does not belong to the others."""
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        needed = {
            "momentum_weight": self.algorithm == "clip21-sgdm",
            "local_steps": self.algorithm == "federated-averaging",
            "local_lr": self.algorithm == "federated-averaging",
            "clients": self.split != "owner",
            "concentration": self.split == "dirichlet",
        }
        for name, wanted in needed.items():
            if (getattr(self, name) is not None) != wanted:
                word = "is missing: give it with" if wanted else "must be left out of"
                raise ValueError(f"{name} {word} algorithm = {self.algorithm!r} and split = {self.split!r}.")
        if self.clients_per_round is not None and self.trust == "server":
            raise ValueError("clients_per_round needs trust = 'clients': a trusted server samples by sample_rate.")
        if self.sample_rate != 1 and self.trust == "clients":
            raise ValueError("sample_rate needs trust = 'server': without it, everyone sees who sends.")

    def build_algorithm(self) -> FederatedAlgorithm:
        """Return the algorithm that is named."""
        clipper = FlatClipper(max_grad_norm=self.max_grad_norm)
        if self.algorithm == "clip-sgd":
            return ClipSGD(clipper=clipper, lr=self.lr)
        if self.algorithm == "federated-averaging":
            steps, size = self.local_steps or 0, self.local_lr or 0.0
            return FederatedAveraging(clipper=clipper, lr=self.lr, local_steps=steps, local_lr=size)
        weight = 1.0 if self.algorithm == "clip21-sgd" else self.momentum_weight or 0.0
        return Clip21SGDM(clipper=clipper, lr=self.lr, momentum_weight=weight)

    def build_privacy(self) -> FederatedPrivacy:
        """Return who is trusted, with noise that is calibrated for epsilon and delta."""
        mechanism = CalibratedGaussian(target_epsilon=self.epsilon, target_delta=self.delta)
        if self.trust == "server":
            return TrustedServer(mechanism=mechanism, sample_rate=self.sample_rate)
        return LocalPrivacy(mechanism=mechanism, clients_per_round=self.clients_per_round)


def read_clients(settings: SimulationSettings) -> LogisticClients:
    """Read the data and deal them to clients. No message quotes a value.

    Raises:
        DataStructureError: The file is not such an NPZ file.
    """
    names = ("features", "labels", *(("owners",) if settings.split == "owner" else ()))
    try:
        with np.load(settings.data, allow_pickle=False) as archive:
            found = [archive[name] for name in names]
    except Exception:  # NumPy raises errors of many kinds, whose words may quote the file
        raise DataStructureError(
            f"data must be an NPZ file with the arrays {', '.join(names)}, got {settings.data!r}."
        ) from None
    features, labels = found[:2]
    numbers = all(array.dtype.kind in "biuf" for array in (features, labels))
    if features.ndim != 2 or not numbers or any(len(array) != len(features) or array.ndim != 1 for array in found[1:]):
        raise DataStructureError("data must hold numbers: features (rows, d), and one label (and owner) a row.")
    signs = torch.from_numpy(np.where(labels > 0, 1.0, -1.0))
    rows, weights = stacked((torch.from_numpy(features.astype(np.float64)), signs), _dealt(settings, found))
    return LogisticClients(
        *rows, weights=weights, regularisation=settings.regularisation, batch_size=settings.batch_size
    )


def _dealt(settings: SimulationSettings, found: list[np.ndarray]) -> Split:
    rng, clients = np.random.default_rng(settings.split_seed), settings.clients or 0
    if settings.split == "owner":
        return split_by_owner(found[2])
    if settings.split == "label":
        return split_by_label(found[1], clients, rng)
    if settings.split == "dirichlet":
        return split_dirichlet(found[1], clients, rng, concentration=settings.concentration or 0.0)
    return split_evenly(len(found[0]), clients, rng)


def run_simulation(settings: SimulationSettings, progress: Callable[[float], None] = lambda share: None) -> str:
    """Run what ``settings`` describe in their folder, or continue it there, and return the privacy statement.

    The folder gets ``ledger.jsonl``, ``model.safetensors`` (the released model), ``statement.txt`` and
    ``statement.json``, and the ledger is sealed over them, so that ``tacita statement``, ``show`` and ``report`` check
    them as those of any run. ``private/`` holds key and checkpoint until the run ends.

    Raises:
        ResumeError: The folder holds something else than an unfinished run of these settings.
    """
    folder = RunFolder(settings.output)
    if folder.tidying:  # all is sealed but the private files are there
        return _tidied(folder)
    unfinished = folder.unfinished
    if not (unfinished or folder.empty):
        raise ResumeError(f"output must be a new folder, or that of an unfinished simulation, got {settings.output!r}.")
    problem = read_clients(settings)
    folder.create()
    randomness = Randomness.load(folder.key) if unfinished else Randomness.system()
    unit = "all data of one client"
    ledger = Ledger(folder.ledger, neighboring_relation=settings.neighboring_relation, privacy_unit=unit)
    try:
        simulation = Simulation(
            problem,
            settings.build_algorithm(),
            privacy=settings.build_privacy(),
            ledger=ledger,
            rounds=settings.rounds,
            loss_rate=settings.loss_rate,
            settings={"config": {**msgspec.to_builtins(settings), "output": ""}},
            session=ledger.sessions[0] if unfinished and ledger.sessions else None,
            randomness=randomness,
        )
        if unfinished and folder.checkpoint.exists():
            simulation.load(folder.checkpoint)
        _train(folder, simulation, progress)
        _publish(ledger, simulation, settings)
    finally:
        ledger.close()
    return _tidied(folder)


def _train(folder: RunFolder, simulation: Simulation, progress: Callable[[float], None]) -> None:
    """Make all rounds; a checkpoint stands before each hundred, and after the last one."""
    while True:
        simulation.save(folder.checkpoint)
        simulation.randomness.save(folder.key)
        if not simulation.remaining_rounds:
            return
        simulation.run(min(EVERY, simulation.remaining_rounds), progress=progress)


def _publish(ledger: Ledger, simulation: Simulation, settings: SimulationSettings) -> None:
    """Write model and statement, and end the ledger with their hashes."""
    if not simulation.session.closed:
        simulation.session.close()
    public = settings.neighboring_relation != "add_or_remove_one"  # else the number of clients is a secret
    clients = simulation.problem.num_clients if public else None

    def make_statement(hashes: dict[str, str]) -> Statement:
        return statement(
            ledger,
            settings.delta,
            num_units=clients,
            caveats=protected_from(simulation, settings.delta),
            model=f"{settings.algorithm} on logistic regression, {settings.rounds} rounds",
            task="classification",
            target="labels",
            files=hashes,
            rows={"value": clients, "how": "public" if public else "protected", "of": "clients"},
            run=run_facts(simulation.randomness),
            not_anonymised=list(NOT_ANONYMISED),
        )

    publish(ledger, make_statement, weights=simulation.params)


def _tidied(folder: RunFolder) -> str:
    """Remove what may not be shared, the key last, and return the statement."""
    text = (folder.path / TEXT).read_text(encoding="utf-8")
    folder.finish()
    return text


def read_settings(path: str | Path) -> SimulationSettings:
    """Read a file of settings."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"config must be a readable text file, got {str(path)!r}.") from None
    return SimulationSettings.from_toml(text)
