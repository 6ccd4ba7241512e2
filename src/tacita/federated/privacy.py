"""Who is protected from whom in a simulated federation, and the noise that follows.

Trusted is each client alone, or the server that adds up its clients; the unit is a client, or one of its records. Each
states the session that it registers. Proofs: docs/derivations/clip21.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation
from tacita.clipping import FlatClipper
from tacita.errors import UnsupportedEventError
from tacita.estimators import ClippedSum, Estimator
from tacita.federated.algorithms import Clip21SGDM, FederatedAlgorithm
from tacita.federated.clipped_difference import ClippedDifference, ClippedMean, check_sums_are_finite
from tacita.gradients.engine import Shapes
from tacita.ledger import Ledger, Session
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism, Mechanism
from tacita.sampling import (
    CyclicSampler,
    DisjointSampler,
    FullBatchSampler,
    PoissonSampler,
    Sampler,
    ShuffledEpochsSampler,
)

ASSIGNED = (CyclicSampler, DisjointSampler, ShuffledEpochsSampler)  # by number, too, nobody decides about another


@dataclass(frozen=True, kw_only=True)
class RecordSampling:
    """How a client draws and clips its records in a round.

    Attributes:
        sample_rate: The chance of a record to be drawn, in (0, 1].
        clipper: Clips every record's gradient, to C_s.
        divisor: Public divisor of the sum of clipped gradients.
    """

    sample_rate: float
    clipper: FlatClipper
    divisor: float


class FederatedPrivacy(ABC):
    """Who is trusted with what, and the noise that follows.

    Attributes:
        mechanism: The noise, or a ``CalibratedGaussian``.
    """

    mechanism: Mechanism | CalibratedGaussian

    @abstractmethod
    def expected_clients(self, num_clients: int) -> float:
        """Return the public number of clients of a round: the exact one, or its mean if participation is hidden."""

    @property
    def sampling(self) -> "RecordSampling | None":
        """How every client draws and clips its records; ``None`` if the algorithm's problem decides."""
        return None

    def check_relation(self, relation: NeighboringRelation) -> None:  # noqa: B027 - most take every relation
        """Raise ``UnsupportedEventError`` if a run would tell what ``relation`` keeps private; by default none does."""

    @abstractmethod
    def _estimator(self, algorithm: FederatedAlgorithm) -> Estimator:
        """Return the estimator whose promise is that of a round."""

    @abstractmethod
    def _sampler(self, num_clients: int) -> Sampler:
        """Return how the units of the guarantee enter a round."""

    def _prepared(self, mechanism: Mechanism, noise_std: dict[str, float]) -> Mechanism:
        """Return the mechanism that a round uses; by default clients add Gaussian noise of their own."""
        if not isinstance(mechanism, GaussianMechanism):
            raise TypeError(
                f"mechanism must be a GaussianMechanism with {type(self).__name__}, got {type(mechanism).__name__}: "
                "clients that add noise of their own are charged for every round."
            )
        return mechanism

    def resolved(
        self,
        algorithm: FederatedAlgorithm,
        ledger: Ledger,
        *,
        shapes: Shapes,
        num_clients: int,
        rounds: int,
        session: Session | None = None,
    ) -> tuple[Mechanism, dict[str, float], Event]:
        """Return the mechanism with its noise multiplier, the noise by block, and what a session of ``rounds`` spends.

        A noise multiplier that is calibrated is that of the sessions registered before ``session``, if it is resumed.

        Raises:
            UnsupportedEventError: No guarantee is proved for these settings under the ledger's relation.
        """
        self.check_relation(ledger.neighboring_relation)
        shapes = algorithm.message_shapes(shapes)
        relation, estimator, sampler = (
            ledger.neighboring_relation,
            self._estimator(algorithm),
            self._sampler(num_clients),
        )
        if sampler.max_queries is not None and rounds > sampler.max_queries:
            raise ValueError(f"rounds must be <= {sampler.max_queries} with {sampler!r}, got {rounds}.")

        def event(mechanism: Mechanism) -> Event:
            return estimator.session_event(mechanism, sampler, relation, shapes)

        mechanism = self.mechanism
        if isinstance(mechanism, CalibratedGaussian):
            at = mechanism.at
            beside = ledger.spends(None, before=session)
            mechanism = mechanism.resolve(lambda noise: event(at(noise)), relation, rounds, beside)
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism must be a Mechanism or a CalibratedGaussian, got {type(mechanism).__name__}.")
        noise_std = estimator.noise_std(mechanism, relation, shapes)
        mechanism = self._prepared(mechanism, noise_std)
        return mechanism, noise_std, event(mechanism)


@dataclass(frozen=True, kw_only=True)
class LocalPrivacy(FederatedPrivacy):
    r"""Every client adds its own noise to every message; the server and the wire are not trusted.

    The unit is all data of one client: T messages are one Gaussian query of :math:`\mu = 2 C \sqrt T / s` whatever
    its data are, and every client is charged for every round, whether it takes part or not. ``noise_multiplier`` is s
    over 2 C, half of the paper's noise-clipping ratio. The number of clients is public, because it divides the sum and
    decides the noise in it, so add_or_remove_one is refused.

    Attributes:
        mechanism: The noise of one client's message.
        clients_per_round: Number of clients that are asked in a round, drawn uniformly and in public; ``None`` for all.
    """

    mechanism: GaussianMechanism | CalibratedGaussian
    clients_per_round: int | None = None

    def __post_init__(self) -> None:
        if self.clients_per_round is not None:
            _validate.count("clients_per_round", self.clients_per_round)

    def check_relation(self, relation: NeighboringRelation) -> None:
        if relation == "add_or_remove_one":
            raise UnsupportedEventError(
                "neighboring_relation must be zero_out_one or replace_one with LocalPrivacy, got add_or_remove_one: "
                "under it the number of clients is private, and the server divides by it; the noise of a sum tells it, "
                "too. Use zero_out_one, where a client that is absent counts and sends noise; it costs the same."
            )

    def expected_clients(self, num_clients: int) -> float:
        if self.clients_per_round is not None and self.clients_per_round > num_clients:
            raise ValueError(
                f"clients_per_round must be at most the number of clients, {num_clients}, got {self.clients_per_round}."
            )
        return float(self.clients_per_round or num_clients)

    def _estimator(self, algorithm: FederatedAlgorithm) -> Estimator:
        return ClippedMean(clipper=algorithm.clipper, divisor=1.0)  # whose promise every client's message has

    def _sampler(self, num_clients: int) -> Sampler:
        return FullBatchSampler(num_records=num_clients)


@dataclass(frozen=True, kw_only=True)
class TrustedServer(FederatedPrivacy):
    r"""The server sees every message, adds noise to their sum, and releases it; the clients are its records.

    The unit is one client. A client that is absent sends nothing, so that the sum moves by at most C, and by 2 C where
    its data are replaced. With ``sample_rate`` < 1 each client takes part by a secret coin of its own in each round,
    which amplifies: whoever is absent keeps its state, and nobody is shown who took part. The number of clients is
    public, because it divides the sum, so add_or_remove_one is refused.

    With ``sampler`` the server draws who takes part in another way. With a :class:`~tacita.CyclicSampler` each client
    is in one group for the whole session, and the groups take turns, so that the noise may be a
    :class:`~tacita.CorrelatedGaussian`. The group follows from the client's number and the session's own key alone:
    it is the same after a crash, a checkpoint or a lost message, and a message that was lost is not asked again before
    the group's next turn.

    Attributes:
        mechanism: The noise of the sum; it does not depend on who takes part.
        sample_rate: The chance of a client to take part in a round, in (0, 1].
        sampler: Who takes part in a round, in place of ``sample_rate``: a sampler of records, with clients as the
            records, but for fixed sizes and a ``max_batch_size``, for which nothing is proved of clients that remember.
    """

    mechanism: Mechanism | CalibratedGaussian
    sample_rate: float = 1.0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        _validate.probability("sample_rate", self.sample_rate)
        if self.sampler is None:
            return
        if self.sample_rate != 1:
            raise ValueError("sample_rate must be left out where a sampler draws who takes part.")
        if self.sampler.law.absence_moves_others and not isinstance(self.sampler, ASSIGNED):
            raise UnsupportedEventError(
                f"sampler must draw each client by coins of its own, or by number, with a TrustedServer, got "
                f"{self.sampler!r}: no guarantee is proved where one client's part in a round decides about another's, "
                "because clients remember in which rounds they were. Use PoissonSampler without a max_batch_size, "
                "AllocatedSampler or CyclicSampler."
            )
        if self.sampler.max_rows_per_unit != 1:
            raise ValueError(f"sampler must draw clients, each of which is a unit, got {self.sampler!r}.")

    def expected_clients(self, num_clients: int) -> float:
        return self._sampler(num_clients).expected_batch_size

    def check_relation(self, relation: NeighboringRelation) -> None:
        if relation == "add_or_remove_one":
            raise UnsupportedEventError(
                "neighboring_relation must be zero_out_one or replace_one with a TrustedServer, got add_or_remove_one: "
                "under it the number of clients is private, and the server divides by it. Use zero_out_one, where a "
                "client that is absent counts and sends nothing; it costs the same."
            )

    def _estimator(self, algorithm: FederatedAlgorithm) -> Estimator:
        return ClippedSum(algorithm.clipper)

    def _sampler(self, num_clients: int) -> Sampler:
        if self.sampler is not None:
            if self.sampler.num_records != num_clients:
                raise ValueError(
                    f"num_records of the sampler must be the number of clients, {num_clients}, got {self.sampler!r}."
                )
            return self.sampler
        if self.sample_rate == 1:
            return FullBatchSampler(num_records=num_clients)
        return PoissonSampler(sample_rate=self.sample_rate, num_records=num_clients)

    def draws(self, num_clients: int) -> Sampler | None:
        """Return what draws the clients of a round; ``None`` if all take part in each."""
        sampler = self._sampler(num_clients)
        return None if isinstance(sampler, FullBatchSampler) else sampler

    def _prepared(self, mechanism: Mechanism, noise_std: dict[str, float]) -> Mechanism:
        return mechanism.on(None, noise_std)


@dataclass(frozen=True, kw_only=True)
class RecordPrivacy(FederatedPrivacy):
    r"""Every client clips its records' gradients too, and adds its own noise; the server is not trusted.

    The unit is one record of one client. A record that is drawn k times moves all messages of its client together by at
    most :math:`S_k = \min(2 C \sqrt T, 2 k \beta m C_s / b)`, with m = 1, and 2 if it is replaced: no factor for the
    number of rounds (:class:`~tacita.federated.ClippedSamplesEvent`). It is proved for Clip21-SGDM whose state moves
    with every message, so no message may be lost, and all clients are asked in every round. Gradients, states and
    messages are float64. ``noise_multiplier`` is the noise of a message over 2 C, as in :class:`LocalPrivacy`.

    Attributes:
        mechanism: The noise of one client's message.
        sample_rate: The chance of a record to be drawn in a round, by a secret coin, in (0, 1].
        max_sample_norm: Threshold C_s of one record's gradient.
        divisor: Public divisor b of a client's sum; ``sample_rate`` times the public number of its records, say.
    """

    mechanism: GaussianMechanism | CalibratedGaussian
    sample_rate: float
    max_sample_norm: float
    divisor: float

    def __post_init__(self) -> None:
        _validate.probability("sample_rate", self.sample_rate)
        _validate.threshold("max_sample_norm", self.max_sample_norm)
        check_sums_are_finite(self.max_sample_norm, _validate.positive("divisor", self.divisor))

    def expected_clients(self, num_clients: int) -> float:
        return float(num_clients)

    @property
    def sampling(self) -> RecordSampling:
        clipper = FlatClipper(max_grad_norm=self.max_sample_norm)
        return RecordSampling(sample_rate=self.sample_rate, clipper=clipper, divisor=self.divisor)

    def _estimator(self, algorithm: FederatedAlgorithm) -> Estimator:
        if not isinstance(algorithm, Clip21SGDM):
            raise TypeError(f"algorithm must be Clip21SGDM with RecordPrivacy, got {type(algorithm).__name__}.")
        return ClippedDifference(
            clipper=algorithm.clipper,
            momentum_weight=algorithm.momentum_weight,
            divisor=self.divisor,
            sample_clipper=FlatClipper(max_grad_norm=self.max_sample_norm),
        )

    def _sampler(self, num_clients: int) -> Sampler:
        guess = max(1, round(self.divisor / self.sample_rate))  # of a client's rows; no event depends on it
        if self.sample_rate == 1:
            return FullBatchSampler(num_records=guess)
        return PoissonSampler(sample_rate=self.sample_rate, num_records=guess)
