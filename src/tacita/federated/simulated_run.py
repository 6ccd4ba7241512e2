"""A simulated federation in a folder of its own: what a TOML file describes, run, continued, sealed."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from tacita._npz import read_arrays
from tacita.correlated import Strategy
from tacita.errors import DataStructureError, ResumeError
from tacita.federated.algorithm_settings import hold_to
from tacita.federated.problems import LogisticClients
from tacita.federated.settings import SimulationSettings
from tacita.federated.simulation import Simulation
from tacita.federated.splits import Split, split_by_label, split_by_owner, split_dirichlet, split_evenly, stacked
from tacita.federated.views import protected_from
from tacita.ledger import Ledger, Statement, statement
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_facts
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import TEXT, publish

EVERY = 100  # rounds between checkpoints
NOT_ANONYMISED = (
    "The clients' data: a run changes nothing in them, and they stay as personal as they were.",
    "What is declared: all that the settings state is published as given.",
)
UNITS = {"client": "all data of one client", "record": "one record of one client"}


def read_clients(settings: SimulationSettings) -> LogisticClients:
    """Read the data and deal them to clients. No message quotes a value.

    Raises:
        DataStructureError: The file is not such an NPZ file.
    """
    found = _arrays(settings, "features", "labels", *(("owners",) if settings.split == "owner" else ()))
    features, labels = found[:2]
    numbers = all(array.dtype.kind in "biuf" for array in (features, labels))
    if features.ndim != 2 or not numbers or any(len(array) != len(features) or array.ndim != 1 for array in found[1:]):
        raise DataStructureError("data must hold numbers: features (rows, d), and one label (and owner) a row.")
    if not (np.isin(labels, (0, 1)).all() or np.isin(labels, (-1, 1)).all()):
        warnings.warn(
            "labels should be 0 and 1 (or -1 and 1): some are not. Those above 0 are taken as one class, all others as "
            "the other one.",
            stacklevel=2,
        )
    signs = torch.from_numpy(np.where(labels > 0, 1.0, -1.0))
    rows, weights = stacked((torch.from_numpy(features.astype(np.float64)), signs), _dealt(settings, found))
    return LogisticClients(
        *rows, weights=weights, regularisation=settings.regularisation, batch_size=settings.batch_size
    )


def read_weights(settings: SimulationSettings, num_clients: int) -> torch.Tensor | None:
    """Read the weights of the clients; ``None`` if they count alike. No message quotes a value.

    Raises:
        DataStructureError: The file has no such array.
    """
    if settings.total_weight is None:
        return None
    (weights,) = _arrays(settings, "weights")
    if weights.shape != (num_clients,) or weights.dtype.kind not in "biuf":
        raise DataStructureError(
            f"data must hold weights with one number a client, {num_clients} in all, got an array of shape "
            f"{weights.shape}."
        )
    return torch.from_numpy(weights.astype(np.float64))


def _arrays(settings: SimulationSettings, *names: str) -> list[np.ndarray]:
    says = f"data must be an NPZ file with the arrays {', '.join(names)}"
    return list(read_arrays(settings.data, says, lambda _: names).values())


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
        ValueError: A setting is missing or out of range, or does not belong to the others.
        ResumeError: The folder holds something else than an unfinished run of these settings.
    """
    settings.check()
    folder = RunFolder(settings.output)
    if folder.tidying:  # all is sealed but the private files are there
        return tidied(folder)
    unfinished = folder.unfinished
    if not (unfinished or folder.empty):
        raise ResumeError(
            f"output must be a new folder, or that of an unfinished simulation, got {settings.output!r}. If its run is "
            "finished, tacita show says what is there."
        )
    problem = read_clients(settings)
    weights = read_weights(settings, problem.num_clients)
    strategy, chosen = None, list[str]()
    if settings.samples_clients:
        strategy, words = settings.choose_strategy(problem.num_clients)
        chosen.append(words)
    if not unfinished:  # what is refused when a simulation is built leaves no folder
        _built(settings, strategy, problem, weights, ledger=_ledger(settings), randomness=Randomness.system())
    with folder.starting():
        if folder.unfinished != unfinished:
            raise ResumeError(
                f"another process has begun a simulation in {settings.output!r} meanwhile: choose another."
            )
        folder.create()
        randomness = Randomness.load(folder.key) if unfinished else Randomness.system()
        if not unfinished:  # before there is a ledger, so that a run that is killed from here on is continued
            randomness.save(folder.key)
        hold_to(folder.private / "settings.json", _config(settings))
        RunLifecycle(folder, randomness, argument="output").bind([Path(settings.data).read_bytes()], "data")
    ledger = _ledger(settings, folder)
    try:
        simulation = _built(settings, strategy, problem, weights, ledger=ledger, randomness=randomness)
        if unfinished and folder.checkpoint.exists():
            simulation.load(folder.checkpoint)
        _train(folder, simulation, progress)
        _publish(ledger, simulation, settings, chosen)
    finally:
        ledger.close()
    return tidied(folder)


def _config(settings: SimulationSettings) -> dict[str, Any]:
    """Return the settings that a run is bound to."""
    return {**msgspec.to_builtins(settings), "output": ""}


def _ledger(settings: SimulationSettings, folder: RunFolder | None = None) -> Ledger:
    """Return the ledger of the folder; one in memory without a folder."""
    path = None if folder is None else folder.ledger
    return Ledger(path, neighboring_relation=settings.neighboring_relation, privacy_unit=UNITS[settings.unit])


def _built(
    settings: SimulationSettings,
    strategy: Strategy | None,
    problem: LogisticClients,
    weights: torch.Tensor | None,
    *,
    ledger: Ledger,
    randomness: Randomness,
) -> Simulation:
    """Return the simulation at its start, in the ledger's session if there is one."""
    return Simulation(
        problem,
        settings.build_algorithm(),
        privacy=settings.build_privacy(strategy),
        ledger=ledger,
        rounds=settings.rounds,
        loss_rate=settings.loss_rate,
        weights=weights,
        total_weight=settings.total_weight,
        settings={"config": _config(settings)},
        session=ledger.sessions[0] if ledger.sessions else None,
        randomness=randomness,
    )


def _train(folder: RunFolder, simulation: Simulation, progress: Callable[[float], None]) -> None:
    """Make all rounds; a checkpoint stands before each hundred, and after the last one."""
    while True:
        simulation.save(folder.checkpoint)
        simulation.randomness.save(folder.key)
        if not simulation.remaining_rounds:
            return
        simulation.run(min(EVERY, simulation.remaining_rounds), progress=progress)


def _publish(ledger: Ledger, simulation: Simulation, settings: SimulationSettings, chosen: list[str]) -> None:
    """Write model and statement, and end the ledger with their hashes."""
    if not simulation.session.closed:
        simulation.session.close()
    clients = simulation.problem.num_clients  # public: no relation under which it is a secret is accepted

    def make_statement(hashes: dict[str, str]) -> Statement:
        return statement(
            ledger,
            settings.delta,
            num_units=clients if settings.unit == "client" else None,
            chosen_by_tacita=chosen,
            caveats=protected_from(simulation, settings.delta),
            model=f"{settings.algorithm} on logistic regression, {settings.rounds} rounds",
            task="classification",
            target="labels",
            files=hashes,
            rows={"value": clients, "how": "public", "of": "clients"},
            run=run_facts(simulation.randomness),
            not_anonymised=list(NOT_ANONYMISED),
        )

    publish(ledger, make_statement, weights=simulation.params)


def tidied(folder: RunFolder) -> str:
    """Remove what may not be shared, the key last, and return the statement."""
    text = (folder.path / TEXT).read_text(encoding="utf-8")
    folder.finish()
    return text
