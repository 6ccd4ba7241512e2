"""A real federation as one public TOML file, which its server and all of its clients are given.

Its hash is part of the federation's id, so that a client answers only a server that has the same file.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita._named_model import named_model
from tacita._npz import read_arrays
from tacita.errors import DataStructureError
from tacita.federated.algorithm_settings import (
    build_algorithm,
    check_algorithm,
    check_delta,
    hold_to,
    read_toml,
    settings_from_toml,
)
from tacita.federated.algorithms import FederatedAlgorithm
from tacita.federated.coordinator import Coordinator
from tacita.federated.guarded_source import GuardedSource
from tacita.federated.privacy import LocalPrivacy
from tacita.federated.resident import Resident, note_in
from tacita.federated.round_noise import loudness
from tacita.gradients import GradientSource, NetworkSource
from tacita.ledger import Ledger
from tacita.linear import LinearSource, MultinomialLoss
from tacita.linear.row_blocks import as_row_blocks
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.oracles import GradientOracle, trainable
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.sampling import FullBatchSampler

UNIT = "all data of one client"
SETTINGS = "settings.json"  # of a client, in its private folder
ROWS_AT_ONCE = 256  # of a network, in memory
LossFn = Callable[[Any, Any], Tensor]  # (model, batch) -> losses (batch,)


class FederationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A federation whose clients train a model together, each under local privacy. All of it is public.

    Attributes:
        name: The federation's name.
        clients: Number of clients n; their numbers are 0, ..., n - 1.
        features: Number of features of a row; not needed with a model and a loss of your own.
        classes: Number of classes, likewise; labels are 0, ..., classes - 1. A label outside is taken as the nearest.
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
        allow_large_delta: Accept a delta of 0.01 or more.
    """

    name: str
    clients: int
    expected_rows: int
    epsilon: float
    delta: float
    max_grad_norm: float
    lr: float
    rounds: int
    features: int | None = None
    classes: int | None = None
    algorithm: Literal["clip21-sgdm", "clip21-sgd", "clip-sgd"] = "clip21-sgdm"
    momentum_weight: float | None = None
    spare_messages: int = 0
    false_refusals: float = 1e-9
    allow_large_delta: bool = False

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
        for name in ("clients", "expected_rows", "rounds"):
            _validate.count(name, getattr(self, name))
        if self.features is not None or self.classes is not None:
            self._classifier()
        _validate.count("spare_messages", self.spare_messages, at_least=0)
        for name in ("epsilon", "lr", "expected_rows"):  # which are used as floats
            _validate.positive(name, getattr(self, name))
        _validate.threshold("max_grad_norm", self.max_grad_norm)
        check_delta(self.delta, self.allow_large_delta)
        _validate.inside("false_refusals", self.false_refusals)
        check_algorithm(self)
        self.noise()

    @property
    def public(self) -> dict[str, Any]:
        """The settings that server and clients must share: all but ``allow_large_delta``."""
        return {name: x for name, x in msgspec.to_builtins(self).items() if name != "allow_large_delta"}

    @property
    def id(self) -> str:
        """The federation's id: its name, and a hash of the settings that must be shared."""
        digest = hashlib.sha256(json.dumps(self.public, sort_keys=True).encode()).hexdigest()
        return f"{self.name} {digest[:32]}"

    @property
    def messages(self) -> int:
        """The number of messages that a client pays for."""
        return self.rounds + self.spare_messages

    def build_algorithm(self) -> FederatedAlgorithm:
        """Return the algorithm that is named."""
        return build_algorithm(self)

    def _classifier(self) -> tuple[int, int]:
        """Return the numbers of features and classes; raise ``ValueError`` unless both are given."""
        if self.features is None or self.classes is None:
            raise ValueError("features and classes must be given, but with a model, a loss and records of your own.")
        return _validate.count("features", self.features), _validate.count("classes", self.classes, at_least=2)

    def build_model(self) -> nn.Linear:
        """Return the linear classifier at zero, in float64."""
        model = nn.Linear(*self._classifier(), dtype=torch.float64, device="meta").to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def named_model(self, name: str) -> nn.Module | None:
        """Import "package.module:callable" and return what it makes of ``features`` and ``classes``; ``None`` for "".

        The first weights are the same whoever calls it, because torch's generator has a fixed seed meanwhile.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return named_model(name, *self._classifier()) if name else None

    def load_model(self, path: str | Path, model: nn.Module | None = None) -> nn.Module:
        """Return the trained model: ``model``, by default the classifier, with the weights of the server's model.npz.

        Args:
            path: The file.
            model: The network that was trained; its parameters are changed.

        Raises:
            DataStructureError: The file is not the model of such a federation.
        """
        model = self.build_model() if model is None else model
        shapes = {name: (tuple(p.shape), "float64") for name, p in trainable(model).items()}
        says = f"path must be the model.npz of this federation, with {shapes}"
        found = read_arrays(path, says, lambda names: names)
        if {name: (x.shape, str(x.dtype)) for name, x in found.items()} != shapes:
            raise DataStructureError(f"{says}, got {str(path)!r}.")
        model.load_state_dict({name: torch.from_numpy(x) for name, x in found.items()}, strict=False)
        return model

    def read_rows(self, path: str | Path, *, unchecked: bool = False) -> tuple[Tensor, Tensor]:
        """Return features (rows, d) in float64 and labels (rows,) in int64 of an NPZ file.

        Args:
            path: The file.
            unchecked: Take values that look wrong: a label outside of the classes as the nearest class, a row with NaN
                or infinity as a zero gradient. A client that has started reads its rows so, because from then on no
                row may decide whether a message is sent.

        Raises:
            DataStructureError: The file is not such an NPZ file; or, unless ``unchecked``, it has no row, a label
                outside of 0, ..., classes - 1, or features that are not finite. The message quotes no value.
        """
        columns, says = self._classifier()[0], "data must be an NPZ file with features and labels"
        rows, labels = read_arrays(path, says, lambda _: ("features", "labels")).values()
        if rows.dtype.kind not in "biuf" or rows.ndim != 2 or rows.shape[1] != columns:
            raise DataStructureError(f"features must be numbers of shape (rows, {columns}).")
        if labels.dtype.kind not in "biu" or labels.shape != rows.shape[:1]:
            raise DataStructureError("labels must be integers, one a row.")
        wrong = [] if unchecked else self._wrong_values(rows, labels)
        if wrong:
            raise DataStructureError(
                f"data {' and '.join(wrong)}. Correct the file. As it is, it is taken by --unchecked (unchecked=True): "
                "then such rows count, but teach nothing or the wrong thing. This is said here alone, and not sent."
            )
        return torch.from_numpy(rows.astype(np.float64)), torch.from_numpy(labels.astype(np.int64))

    def _wrong_values(self, rows: np.ndarray, labels: np.ndarray) -> list[str]:
        """Return what looks wrong about the values of a file, in words that quote none of them."""
        last = self._classifier()[1] - 1
        found = {
            "has no row": not len(rows),
            f"has labels that are none of the classes 0 to {last}": bool(((labels < 0) | (labels > last)).any()),
            "has features that are NaN or infinite": not np.isfinite(rows).all(),
        }
        return [words for words, there in found.items() if there]

    def _source(self, data: Any, model: nn.Module | None, loss: LossFn | None) -> tuple[GradientSource, Any, str]:
        """Return the source of a client's gradients, its arrays, and the id of the federation that trains this model.

        The id of a network holds a digest of its program, of the shapes of parameters and records, and of all weights
        that are not trained: no client answers a server that has another network. The settings say all of the
        classifier, whose gradients have a closed form, so that a client starts without a program.
        """
        if model is None and loss is None:
            linear, multinomial = self.build_model(), MultinomialLoss(self._classifier()[1])
            return LinearSource(as_row_blocks(data[0]), data[1], multinomial, exact=True, model=linear), data, self.id
        model = self.build_model() if model is None else model
        if loss is None:
            data = data[0].to(next(model.parameters()).dtype), data[1]
            loss = partial(_cross_entropy, classes=self._classifier()[1])
        source = NetworkSource(model, loss, data, max_physical_batch_size=ROWS_AT_ONCE)
        if source.arrays is None:
            raise ValueError(f"data must be tensors or arrays in a tuple, got {type(data).__name__}.")
        rows = [(str(x.dtype).removeprefix("torch."), list(x.shape[1:])) for x in source.arrays]
        digest = hashlib.sha256(json.dumps([source.digest, rows]).encode())
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            digest.update(json.dumps([name, str(x.dtype), list(x.shape), x.requires_grad]).encode())
            digest.update(b"" if x.requires_grad else _bytes_of(x))
        return source, source.arrays, f"{self.id} {digest.hexdigest()[:32]}"

    @cache  # noqa: B019 - settings are few, and small
    def noise(self) -> tuple[GaussianMechanism, dict[str, float]]:
        """Return the mechanism of a client's messages, calibrated for epsilon and delta, and its noise by block."""
        target = CalibratedGaussian(target_epsilon=self.epsilon, target_delta=self.delta)
        mechanism, noise_std, _ = LocalPrivacy(mechanism=target).resolved(
            self.build_algorithm(),
            Ledger(neighboring_relation="replace_one", privacy_unit=UNIT),
            shapes={},  # one threshold for all parameters, whatever they are
            num_clients=self.clients,
            rounds=self.messages,
        )
        assert isinstance(mechanism, GaussianMechanism)
        return mechanism, noise_std

    def loudness(self, size: int) -> str:
        """Say how loud a round is that has a message of ``size`` coordinates from every client."""
        return loudness(self.noise()[1], {"all": self.max_grad_norm}, {"all": size}, self.clients)

    def coordinator(
        self,
        path: Path | None = None,
        *,
        model: nn.Module | None = None,
        loss: LossFn | None = None,
        record: Any = None,
    ) -> Coordinator:
        """Return the server of the federation.

        Args:
            path: The file of its state.
            model, loss: As in :func:`joined`; the model is at its first weights.
            record: Arrays like the clients' data, with any rows or none: their shapes and dtypes are used. By default
                features and labels.
        """
        if record is None:
            record = torch.zeros(0, self._classifier()[0], dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        source, _, federation = self._source(record, model, loss)
        assert source.model is not None
        return Coordinator(
            self.build_algorithm(),
            federation=federation,
            params={name: p.detach() for name, p in trainable(source.model).items()},
            rounds=self.rounds,
            num_clients=self.clients,
            noise_std=self.noise()[1],
            false_refusals=self.false_refusals,
            path=path,
        )


def _cross_entropy(model: nn.Module, batch: Any, *, classes: int) -> Tensor:
    features, labels = batch
    return nn.functional.cross_entropy(model(features), labels.clamp(0, classes - 1), reduction="none")


def accuracy(model: nn.Module, params: Mapping[str, Tensor], features: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose label a classifier with the weights ``params`` predicts."""
    model.load_state_dict(dict(params), strict=False)
    model.eval()
    with torch.no_grad():
        parts = [model(x).argmax(dim=1) for x in features.to(next(model.parameters()).dtype).split(1024)]
    return float((torch.cat(parts) == labels).double().mean())


def _bytes_of(array: Any) -> bytes:
    """Return the elements of a tensor or array; a tensor may have a dtype that NumPy lacks."""
    if isinstance(array, Tensor):
        array = array.detach().cpu().reshape(-1, 1).contiguous().view(torch.uint8).numpy()
    return array.tobytes()


@contextmanager
def joined(
    settings: FederationSettings,
    data: Any,
    *,
    number: int,
    folder: str | Path,
    model: nn.Module | None = None,
    loss: LossFn | None = None,
    randomness: Randomness | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Iterator[Resident]:
    """Take part in a federation for the block, as its client ``number``; the folder takes it up again after a crash.

    A network and its loss are written down as a program (docs/program.md), and only the program meets records. The
    guarantee depends on neither, because the message is clipped as a whole.

    Args:
        settings: The federation.
        data: Features (rows, d) and labels (rows,); with a ``loss`` arrays with as many rows in any tuple, mapping or
            dataclass. The number of rows is private, other axes and dtypes are public.
        number: The client's number.
        folder: Where ledger, key and checkpoint are kept: a new folder, or that of this client.
        model: The server's network; by default the linear classifier. Only weights that are not trained must be equal.
        loss: ``(model, batch) -> losses`` of shape (batch,), the server's; by default cross-entropy. Like the model it
            depends on no private data.
        randomness: For a new client; only tests hand it in.
        tell: As in :class:`Resident`.

    Raises:
        UnsupportedModuleError: The network is no program; the message names what stands in the way.
        ResumeError: The folder was used with other settings, another model or other data.
        LedgerError: Another process has the folder.
        ValueError: There is no such client.
    """
    settings.check()
    if not 0 <= _validate.count("number", number, at_least=0) < settings.clients:
        raise ValueError(f"number (--client) must be from 0 to {settings.clients - 1}, got {number}.")
    source, arrays, federation = settings._source(data, model, loss)
    place = RunFolder(folder)
    run = RunLifecycle.start(place, randomness)
    hold_to(place.private / SETTINGS, settings.public)
    bound = json.dumps([federation, number, *(list(x.shape) for x in arrays)]).encode()
    with run.ledger(neighboring_relation="replace_one", privacy_unit=UNIT) as ledger:
        run.bind([bound, *map(_bytes_of, arrays)], "the number of the client (--client), model or data")
        oracle = GradientOracle(
            GuardedSource(source, note_in(place)),
            estimator=settings.build_algorithm().estimator(float(settings.expected_rows)),
            mechanism=settings.noise()[0],
            sampler=FullBatchSampler(num_records=settings.expected_rows),
            ledger=ledger,
            planned_queries=settings.messages,
            settings={"federation": federation, "client": number},
            session=ledger.sessions[0] if ledger.sessions else None,
            randomness=run.randomness,
            reservation=1,
        )
        yield Resident(
            oracle,
            federation=federation,
            number=number,
            folder=place,
            tell=tell,
            rounds=settings.rounds,
            settings=settings.public,
        )
