"""A real federation as one public TOML file, which its server and all of its clients are given.

Its hash is part of the federation's id, so that a client answers only a server that has the same file.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita._npz import read_arrays
from tacita.errors import DataStructureError
from tacita.federated.algorithm_settings import build_algorithm, check_algorithm, read_toml, settings_from_toml
from tacita.federated.algorithms import FederatedAlgorithm
from tacita.federated.coordinator import Coordinator
from tacita.federated.guarded_source import GuardedSource
from tacita.federated.privacy import LocalPrivacy
from tacita.federated.resident import Resident, note_in
from tacita.ledger import Ledger
from tacita.linear import LinearSource, MultinomialLoss
from tacita.linear.row_blocks import as_row_blocks
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.oracles import GradientOracle
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.sampling import FullBatchSampler

UNIT = "all data of one client"


class FederationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A federation whose clients train a linear classifier together, each under local privacy. All of it is public.

    Attributes:
        name: The federation's name.
        clients: Number of clients n; their numbers are 0, ..., n - 1.
        features: Number of features of a row.
        classes: Number of classes; labels are 0, ..., classes - 1. A label outside is taken as the nearest one.
        expected_rows: Public divisor of the sum of a client's gradients: a guess of its number of rows, which is not
            public itself.
        epsilon, delta: What all messages of a client may spend.
        max_grad_norm: Threshold C of a message.
        lr: The server's step size.
        rounds: Number of rounds.
        algorithm: "clip21-sgdm", "clip21-sgd" or "clip-sgd".
        momentum_weight: Weight of the new gradient, for clip21-sgdm.
        spare_messages: Messages that a client may send beyond one for each round, for rounds that are asked again
            after the server was killed. They are paid for as the others are.
        false_refusals: Probability that the server refuses an honest message.
    """

    name: str
    clients: int
    features: int
    classes: int
    expected_rows: int
    epsilon: float
    delta: float
    max_grad_norm: float
    lr: float
    rounds: int
    algorithm: Literal["clip21-sgdm", "clip21-sgd", "clip-sgd"] = "clip21-sgdm"
    momentum_weight: float | None = None
    spare_messages: int = 0
    false_refusals: float = 1e-9

    @classmethod
    def from_toml(cls, text: str) -> "FederationSettings":
        """Read settings strictly: an unknown name, a missing one or a wrong type is refused.

        Example:
            >>> FederationSettings.from_toml("name = 'clinics'")
            Traceback (most recent call last):
            ...
            ValueError: federation is not valid: Object missing required field `clients`.
        """
        settings = settings_from_toml(cls, text, "federation")
        settings.check()
        return settings

    @classmethod
    def read(cls, path: str | Path) -> "FederationSettings":
        """Read a file of settings."""
        return cls.from_toml(read_toml(path, "federation"))

    def check(self) -> None:
        """Raise ``ValueError`` if a setting is missing or out of range, or there is no noise for all of them."""
        for name in ("clients", "features", "expected_rows", "rounds"):
            _validate.count(name, getattr(self, name))
        _validate.count("classes", self.classes, at_least=2)
        _validate.count("spare_messages", self.spare_messages, at_least=0)
        for name in ("epsilon", "lr", "expected_rows"):  # which are used as floats
            _validate.positive(name, getattr(self, name))
        _validate.threshold("max_grad_norm", self.max_grad_norm)
        _validate.delta("delta", self.delta)
        _validate.inside("false_refusals", self.false_refusals)
        check_algorithm(self)
        self.noise()

    @property
    def id(self) -> str:
        """The federation's id: its name, and a hash of all settings."""
        digest = hashlib.sha256(json.dumps(msgspec.to_builtins(self), sort_keys=True).encode()).hexdigest()
        return f"{self.name} {digest[:32]}"

    @property
    def messages(self) -> int:
        """The number of messages that a client pays for."""
        return self.rounds + self.spare_messages

    def build_algorithm(self) -> FederatedAlgorithm:
        """Return the algorithm that is named."""
        return build_algorithm(self)

    def build_model(self) -> torch.nn.Linear:
        """Return the linear classifier at zero, in float64."""
        with torch.random.fork_rng(devices=[]):
            model = torch.nn.Linear(self.features, self.classes, dtype=torch.float64)
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
        return model

    def load_model(self, path: str | Path) -> torch.nn.Linear:
        """Return the trained classifier: the model with the weights of ``model.npz`` of the server's folder.

        Args:
            path: The file.

        Raises:
            DataStructureError: The file is not the model of such a federation.
        """
        model = self.build_model()
        shapes = {name: (tuple(p.shape), "float64") for name, p in model.named_parameters()}
        says = f"path must be the model.npz of this federation, with {shapes}"
        found = read_arrays(path, says, lambda names: names)
        if {name: (x.shape, str(x.dtype)) for name, x in found.items()} != shapes:
            raise DataStructureError(f"{says}, got {str(path)!r}.")
        model.load_state_dict({name: torch.from_numpy(x) for name, x in found.items()})
        return model

    @cache  # noqa: B019 - settings are few, and small
    def noise(self) -> tuple[GaussianMechanism, dict[str, float]]:
        """Return the mechanism of a client's messages, calibrated for epsilon and delta, and its noise by block."""
        target = CalibratedGaussian(target_epsilon=self.epsilon, target_delta=self.delta)
        mechanism, noise_std, _ = LocalPrivacy(mechanism=target).resolved(
            self.build_algorithm(),
            Ledger(neighboring_relation="replace_one", privacy_unit=UNIT),
            shapes={name: p.shape for name, p in self.build_model().named_parameters()},
            num_clients=self.clients,
            rounds=self.messages,
        )
        assert isinstance(mechanism, GaussianMechanism)
        return mechanism, noise_std

    def coordinator(self, path: Path | None = None) -> Coordinator:
        """Return the server of the federation; ``path`` is the file of its state."""
        return Coordinator(
            self.build_algorithm(),
            federation=self.id,
            params={name: p.detach() for name, p in self.build_model().named_parameters()},
            rounds=self.rounds,
            num_clients=self.clients,
            noise_std=self.noise()[1],
            false_refusals=self.false_refusals,
            path=path,
        )


def read_rows(path: str | Path, features: int) -> tuple[Tensor, Tensor]:
    """Return features (rows, d) in float64 and labels (rows,) in int64 of a client's NPZ file.

    Raises:
        DataStructureError: The file is not such an NPZ file. The message quotes no value.
    """
    wanted = ("features", "labels")
    rows, labels = read_arrays(path, "data must be an NPZ file with features and labels", lambda _: wanted).values()
    if rows.dtype.kind not in "biuf" or rows.ndim != 2 or rows.shape[1] != features:
        raise DataStructureError(f"features must be numbers of shape (rows, {features}).")
    if labels.dtype.kind not in "biu" or labels.shape != rows.shape[:1]:
        raise DataStructureError("labels must be integers, one a row.")
    return torch.from_numpy(rows.astype(np.float64)), torch.from_numpy(labels.astype(np.int64))


@contextmanager
def joined(
    settings: FederationSettings,
    data: tuple[Tensor, Tensor],
    *,
    number: int,
    folder: str | Path,
    randomness: Randomness | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Iterator[Resident]:
    """Take part in a federation for the block, as its client ``number``; the folder takes it up again after a crash.

    Args:
        settings: The federation.
        data: Features (rows, d) and labels (rows,).
        number: The client's number.
        folder: Where ledger, key and checkpoint are kept: a new folder, or that of this client.
        randomness: For a new client; only tests hand it in.
        tell: As in :class:`Resident`.

    Raises:
        ResumeError: The folder was used with other settings or other data.
        LedgerError: Another process has the folder.
        ValueError: There is no such client.
    """
    settings.check()
    if not 0 <= _validate.count("number", number, at_least=0) < settings.clients:
        raise ValueError(f"number must be from 0 to {settings.clients - 1}, got {number}.")
    place = RunFolder(folder)
    run = RunLifecycle.start(place, randomness)
    features, labels = data
    bound = json.dumps([settings.id, number, list(features.shape)]).encode()
    with run.ledger(neighboring_relation="replace_one", privacy_unit=UNIT) as ledger:
        run.bind([bound, features.numpy().tobytes(), labels.numpy().tobytes()])
        loss, rows = MultinomialLoss(settings.classes), as_row_blocks(features)
        source = LinearSource(rows, labels, loss, exact=True, model=settings.build_model())
        oracle = GradientOracle(
            GuardedSource(source, note_in(place)),
            estimator=settings.build_algorithm().estimator(float(settings.expected_rows)),
            mechanism=settings.noise()[0],
            sampler=FullBatchSampler(num_records=settings.expected_rows),
            ledger=ledger,
            planned_queries=settings.messages,
            settings={"federation": settings.id, "client": number},
            session=ledger.sessions[0] if ledger.sessions else None,
            randomness=run.randomness,
            reservation=1,
        )
        yield Resident(oracle, federation=settings.id, number=number, folder=place, tell=tell)
