"""Settings of a simulated federation as a TOML file."""

from pathlib import Path
from typing import Literal

import msgspec

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.correlated import Noise, Strategy, choose_strategy
from tacita.federated.algorithm_settings import (
    AlgorithmName,
    build_algorithm,
    check_algorithm,
    check_delta,
    read_toml,
    server_adam,
    settings_from_toml,
)
from tacita.federated.algorithms import FederatedAlgorithm
from tacita.federated.privacy import FederatedPrivacy, LocalPrivacy, RecordPrivacy, TrustedServer
from tacita.federated.server_adam import ServerAdam
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.sampling import PoissonSampler

OF_RECORDS = ("max_sample_norm", "divisor")  # what a guarantee for single records needs
MOST_ROUNDS = 10**9  # each has its line in the ledger
NOT_FOR_RECORDS = ("clients_per_round", "batch_size", "total_weight")


class SimulationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated federation that trains a logistic regression. All of it is public.

    Attributes:
        data: An NPZ file with ``features`` (rows, d), ``labels`` (rows,), above 0 for one class, for the split "owner"
            ``owners`` (rows,), and with ``total_weight`` the clients' ``weights`` (clients,), in the order of owners.
        output: The folder of the run.
        epsilon, delta: What the whole run may spend.
        trust: "clients" for local privacy, "server" for a server that adds up its clients.
        unit: "client" for all data of one client, or "record" for one record, with trust in clients alone and an
            algorithm of Clip21: :class:`~tacita.federated.RecordPrivacy`. Whose record it is counts as public.
        neighboring_relation: "replace_one" or "zero_out_one"; the number of clients is public. With the unit "client"
            and trust in clients alone the noise does not depend on it.
        algorithm: "clip21-sgdm", "clip21-sgd", "clip-sgd", "federated-averaging", "quantile-averaging" or
            "released-shift-sgdm".
        lr: The server's step size.
        rounds: Number of rounds.
        max_grad_norm: Threshold C of a client's message, but for quantile-averaging.
        momentum_weight: Weight of the new gradient, for clip21-sgdm and released-shift-sgdm.
        local_steps, local_lr: A client's steps, for federated-averaging and quantile-averaging.
        threshold, quantile, threshold_lr, count_share: Of :class:`~tacita.federated.QuantileAveraging`.
        adam_betas, adam_eps: Of Adam on the server (:class:`~tacita.federated.ServerAdam`); without them the server
            takes plain steps.
        split: "owner", "even", "label" or "dirichlet".
        clients: Number of clients, but for the split "owner".
        concentration: Of the Dirichlet law.
        split_seed: Seed of the split.
        clients_per_round: Clients that are asked in a round, with trust in clients alone.
        sample_rate: Chance of a client to take part, with a trusted server; with the unit "record" that of a record to
            be drawn in a round.
        noise: With a trusted server and a ``sample_rate`` below 1, how clients are drawn and which noise is added, the
            choice with the least predicted error (:func:`~tacita.correlated.choose_strategy`): "independent" noise,
            with secret coins in each round or one secret round of each epoch; "correlated" noise, with groups of
            clients that take turns; or "auto" for the best of both. Rounds of an epoch, and groups, are 1 over
            ``sample_rate``, rounded.
        max_sample_norm, divisor: Threshold of one record's gradient, and public divisor of a client's sum, for the unit
            "record".
        total_weight: Public divisor of the sum of the clients' weights; without it all clients count alike.
        loss_rate: Chance that a message is lost.
        batch_size: Rows of a client's minibatch; all by default.
        regularisation: lambda of the regulariser, which is not convex.
        allow_large_delta: Accept a delta of 0.01 or more.
    """

    data: str
    output: str
    epsilon: float
    delta: float
    trust: Literal["clients", "server"]
    lr: float
    rounds: int
    unit: Literal["client", "record"] = "client"
    neighboring_relation: NeighboringRelation = "replace_one"
    algorithm: AlgorithmName = "clip21-sgdm"
    max_grad_norm: float | None = None
    momentum_weight: float | None = None
    local_steps: int | None = None
    local_lr: float | None = None
    threshold: float | None = None
    quantile: float | None = None
    threshold_lr: float | None = None
    count_share: float | None = None
    adam_betas: tuple[float, float] | None = None
    adam_eps: float | None = None
    split: Literal["owner", "even", "label", "dirichlet"] = "owner"
    clients: int | None = None
    concentration: float | None = None
    split_seed: int = 0
    clients_per_round: int | None = None
    sample_rate: float = 1.0
    noise: Noise = "independent"
    max_sample_norm: float | None = None
    divisor: float | None = None
    total_weight: float | None = None
    loss_rate: float = 0.0
    batch_size: int | None = None
    regularisation: float = 0.0
    allow_large_delta: bool = False

    @classmethod
    def from_toml(cls, text: str) -> "SimulationSettings":
        """Read settings strictly: an unknown name, a missing one or a wrong type is refused.

        Example:
            >>> SimulationSettings.from_toml("data = 'clients.npz'")
            Traceback (most recent call last):
            ...
            ValueError: config is not valid: Object missing required field `output`.
        """
        settings = settings_from_toml(cls, text, "config")
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ``ValueError`` if a setting is missing or out of range, or does not belong to the others."""
        _validate.positive("epsilon", self.epsilon)
        check_delta(self.delta, self.allow_large_delta)
        check_algorithm(self)
        self._check_ranges()
        for name, wanted in {"clients": self.split != "owner", "concentration": self.split == "dirichlet"}.items():
            self._check_given(name, wanted, "split")
        for name in OF_RECORDS:
            self._check_given(name, self.unit == "record", "unit")
        if self.unit == "record":
            self._check_records()
        if self.clients_per_round is not None and self.trust == "server":
            raise ValueError("clients_per_round needs trust = 'clients': a trusted server samples by sample_rate.")
        if self.sample_rate != 1 and self.trust == "clients" and self.unit == "client":
            raise ValueError("sample_rate needs trust = 'server' or unit = 'record': else everyone sees who sends.")
        if self.noise != "independent" and not self.samples_clients:
            raise ValueError(
                f"noise = {self.noise!r} needs trust = 'server' and a sample_rate below 1: a client must rest between "
                "its rounds, and one that adds noise of its own is charged for every round."
            )
        if self.algorithm == "released-shift-sgdm" and (self.trust == "server" or self.total_weight is not None):
            raise ValueError(
                "algorithm = 'released-shift-sgdm' needs trust = 'clients' and no total_weight: each client feeds back "
                "its own noise, on the message that it has sent."
            )
        self.build_privacy().check_relation(self.neighboring_relation)  # and the ranges

    def _check_ranges(self) -> None:
        """Raise unless the numbers of the simulation are in range, before the run's folder is made."""
        if _validate.count("rounds", self.rounds) > MOST_ROUNDS:
            raise ValueError(f"rounds must be at most {MOST_ROUNDS}, got {self.rounds}.")
        _validate.count("split_seed", self.split_seed, at_least=0)
        _validate.below_one("loss_rate", self.loss_rate)
        _validate.non_negative("regularisation", self.regularisation)
        for name in ("clients", "batch_size"):
            if getattr(self, name) is not None:
                _validate.count(name, getattr(self, name))
        for name in ("concentration", "total_weight"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))

    def _check_given(self, name: str, wanted: bool, because: str) -> None:
        """Raise unless the setting ``name`` is given exactly if it is ``wanted``, given the setting ``because``."""
        if (getattr(self, name) is not None) != wanted:
            word = "is missing: give it with" if wanted else "must be left out of"
            raise ValueError(f"{name} {word} {because} = {getattr(self, because)!r}.")

    def _check_records(self) -> None:
        """Raise unless the proof for single records covers the settings."""
        if self.trust != "clients":
            raise ValueError("unit = 'record' needs trust = 'clients': a trusted server protects whole clients.")
        if self.algorithm not in ("clip21-sgdm", "clip21-sgd"):
            raise ValueError("unit = 'record' needs algorithm = 'clip21-sgdm' or 'clip21-sgd': it is proved for them.")
        if self.split not in ("owner", "even"):
            raise ValueError(
                f"split = {self.split!r} must be left out of unit = 'record': there the label of one record decides "
                "which client gets the others. Use 'owner' or 'even'."
            )
        if self.neighboring_relation == "add_or_remove_one":
            raise ValueError(
                "neighboring_relation must be zero_out_one or replace_one with unit = 'record': which clients there "
                "are, and who gets which record, follows from the records. zero_out_one costs the same."
            )
        for name in NOT_FOR_RECORDS:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} must be left out of unit = 'record': it is proved for all clients alike.")
        if self.loss_rate:
            raise ValueError("loss_rate must be left out of unit = 'record': states must move with every message.")

    @property
    def adam(self) -> ServerAdam | None:
        """Adam on the server; ``None`` for plain steps."""
        return server_adam(self.adam_betas, self.adam_eps)

    def build_algorithm(self) -> FederatedAlgorithm:
        """Return the algorithm that is named."""
        return build_algorithm(self)

    @property
    def samples_clients(self) -> bool:
        """Whether a trusted server draws who takes part in a round."""
        return self.trust == "server" and self.sample_rate < 1

    def choose_strategy(self, num_clients: int) -> tuple[Strategy, str]:
        """Return how a trusted server draws its clients, and its noise, and the choice in words for the statement."""
        return choose_strategy(
            self.noise,
            PoissonSampler(sample_rate=self.sample_rate, num_records=num_clients),
            lambda sampler: self.rounds,
            relation=self.neighboring_relation,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def build_privacy(self, strategy: Strategy | None = None) -> FederatedPrivacy:
        """Return who is trusted, with noise that is calibrated for epsilon and delta.

        Args:
            strategy: How a trusted server draws its clients, and its noise; ``None`` for a coin in each round, and
                independent noise.
        """
        form = GaussianMechanism if strategy is None else strategy.form
        mechanism = CalibratedGaussian(target_epsilon=self.epsilon, target_delta=self.delta, form=form)
        if self.trust == "server" and strategy is not None:
            return TrustedServer(mechanism=mechanism, sampler=strategy.sampler)
        if self.trust == "server":
            return TrustedServer(mechanism=mechanism, sample_rate=self.sample_rate)
        if self.max_sample_norm is not None and self.divisor is not None:
            return RecordPrivacy(
                mechanism=mechanism,
                sample_rate=self.sample_rate,
                max_sample_norm=self.max_sample_norm,
                divisor=self.divisor,
            )
        return LocalPrivacy(mechanism=mechanism, clients_per_round=self.clients_per_round)


def read_settings(path: str | Path) -> SimulationSettings:
    """Read a file of settings."""
    return SimulationSettings.from_toml(read_toml(path, "config"))
