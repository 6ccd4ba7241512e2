r"""Events of a client's clipped messages: what all messages of one client tell about its whole data set.

A message is a vector that was clipped *after* the client's records were added up, so that one record can turn it
around: it moves by up to twice the threshold C whatever the relation. Momentum and the shift remember records, so that
no sampling amplifies. Proofs: docs/derivations/clip21.md.
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events.event import NoiseSettings, over_noise
from tacita.accounting.events.gaussian_sums import NoisySumEvent
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee
from tacita.accounting.events.participations import by_chance_of_draws, by_most_draws
from tacita.accounting.events.sampled import Proof, SampledEvent, every_relation, indexed
from tacita.accounting.relations import moved
from tacita.accounting.sampling_laws import DisjointLaw, FullBatchLaw, PoissonLaw, SamplingLaw, ShuffledEpochsLaw

APART = 2.0  # two points of a ball of radius C are at most 2 C apart
ROUNDED_UP = 1e-6  # the projections of both worlds are rounded in float64, once a query


@dataclass(frozen=True, kw_only=True)
class ClientMessagesEvent(NoisySumEvent):
    r"""Clipped messages of one client with Gaussian noise: any change of its data moves each by at most 2 C.

    One query is a Gaussian query of :math:`\mu = 2 \sqrt{\sum_l (C_l/s_l)^2}`, whatever the messages before it were
    and however the client draws its records; :math:`T` queries are one of :math:`\mu \sqrt T`. Two arbitrary data sets
    of the client are covered, also of different length. ``max_contribution`` holds the thresholds.

    Example:
        >>> event = ClientMessagesEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(4.0,))
        >>> event.query_mu, event.describe()
        (0.5, "any sampling of a client's records, noise_std 4 on messages clipped to 1")
    """

    @property
    def query_mu(self) -> float:
        return APART * self.ratio

    @property
    def sampler(self) -> str:
        return "any sampling of a client's records"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "the client's momentum and shift are never released, logged or shared",
            "the client's coins and noise come from its own secret key",
        )

    def describe(self) -> str:
        stds, bounds = (", ".join(f"{x:.6g}" for x in xs) for xs in (self.noise_std, self.max_contribution))
        return f"{self.sampler}, noise_std {stds} on messages clipped to {bounds}"

    def _guarantee(self, queries: int) -> Guarantee:
        return gaussian(self.query_mu * math.sqrt(queries) if queries else 0.0) if self.private else no_guarantee()


@dataclass(frozen=True, kw_only=True)
class ClippedSamplesEvent(SampledEvent):
    r"""Clipped messages of a client that also clips every record's gradient before it averages them.

    A record that is drawn k times moves *all* messages of the session together by at most
    :math:`S_k = \min(2 C \sqrt T,\; 2 k \beta m C_s / b)` in L2, with m = 1, and 2 under replace_one. The second term
    has no factor for the number of queries, because later messages take back what the momentum has added.

    Attributes:
        max_message_norm: Threshold C of a message; of a message of several blocks, the root of the sum of their
            squares.
        max_sample_norm: Threshold :math:`C_s` of one record's gradient.
        momentum_weight: The weight beta of the new gradient, in (0, 1].
        divisor: The public divisor b of the sum of clipped gradients.
        noise_std: Standard deviation of the noise on a message; of several blocks, the smallest.
    """

    max_message_norm: float
    max_sample_norm: float
    momentum_weight: float
    divisor: float
    noise_std: float

    released = "messages of clipped samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.positive, "max_message_norm", "max_sample_norm", "divisor")
        self._check(_validate.probability, "momentum_weight")
        self._check(_validate.non_negative, "noise_std")

    @property
    def query_mu(self) -> float:
        """``mu`` of one participation of a record."""
        once = 2 * moved(self.relation) * self.momentum_weight * self.max_sample_norm / self.divisor
        return over_noise(once * (1 + ROUNDED_UP), self.noise_std)

    def most_mu(self, queries: int) -> float:
        """Return ``mu`` of a session whatever the client's records do, :math:`2 C \\sqrt T / s`."""
        return over_noise(APART * self.max_message_norm * math.sqrt(queries), self.noise_std)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def private(self) -> bool:
        return self.noise_std > 0

    @property
    def noise_settings(self) -> NoiseSettings:
        return NoiseSettings((self.noise_std,), (self.max_message_norm,), self.query_mu)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            *(self.sampling.assumptions(self.relation) if isinstance(self.sampling, PoissonLaw) else ()),
            "the divisor of a client's gradient is public",
            "gradients and messages are clipped by projection onto a ball",
            "the client's momentum and shift are never released, and move with every message, received or not",
        )

    def describe(self) -> str:
        return (
            f"{self.sampler}, noise_std {self.noise_std:.6g} on messages clipped to {self.max_message_norm:.6g}, of "
            f"records clipped to {self.max_sample_norm:.6g} over {self.divisor:.6g}, momentum weight "
            f"{self.momentum_weight:.6g}"
        )


@dataclass(frozen=True)
class _Capped:
    """What a session of so many queries moves by, for a number of participations: never more than any data could."""

    event: ClippedSamplesEvent
    queries: int

    @property
    def sampling(self) -> SamplingLaw:
        return self.event.sampling

    @property
    def query_mu(self) -> float:
        return self.session_mu(1)

    def session_mu(self, participations: int) -> float:
        return min(participations * self.event.query_mu, self.event.most_mu(self.queries))


def _known_draws(event: ClippedSamplesEvent, queries: int) -> Guarantee:
    return by_most_draws(_Capped(event, queries), queries)


def _random_draws(event: ClippedSamplesEvent, queries: int) -> Guarantee:
    return by_chance_of_draws(_Capped(event, queries), queries)


ClippedSamplesEvent.proofs = {
    PoissonLaw: Proof(every_relation("once a session, by the number of draws"), _random_draws),
    **{law: indexed("once a session", _known_draws) for law in (FullBatchLaw, DisjointLaw, ShuffledEpochsLaw)},
}
