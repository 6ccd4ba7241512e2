r"""Events of bounded residuals: a record that is drawn k times moves the whole transcript by at most S(k), once.

:math:`S(k) = m (\sqrt{k}\, C + k\, R)`, with C the largest contribution to a query's sum, R the largest residual that
enters the hidden error, and m = 1 (2 under replace_one). S(k) is less if every query injects a fixed share of the error
(:mod:`tacita.error_feedback.participation_sensitivity`). There is no factor for the number of queries: guarantee and
cost are those of the whole session. Proof: docs/derivations/dicesgd.md, "Bounded residuals" (M2).
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events.event import NoiseSettings, over_noise
from tacita.accounting.events.participations import by_chance_of_draws, by_most_draws
from tacita.accounting.events.sampled import Proof, SampledEvent, every_relation, indexed
from tacita.accounting.relations import moved
from tacita.accounting.sampling_laws import DisjointLaw, FullBatchLaw, PoissonLaw, ShuffledEpochsLaw
from tacita.error_feedback.participation_sensitivity import checked_share, moved_by_shares, moved_when_clipped


@dataclass(frozen=True, kw_only=True)
class BoundedResidualEvent(SampledEvent):
    """Sums of bounded contributions and a hidden error of bounded residuals.

    Attributes:
        max_contribution: Largest L2 norm C that one record adds to a query's sum.
        max_residual: Largest L2 norm R that one record adds to the error, each time it is drawn.
        noise_std: Standard deviation of the noise on the sum; 0 is allowed and not private.
        injected_share: The share of the error that every query injects, whatever the error's length, in (0, 1]; None
            if the error is clipped before it is injected.
        leak: Share of the rest that is forgotten, in [0, 1). The bound depends on it only with a fixed share.
    """

    max_contribution: float
    max_residual: float
    noise_std: float
    injected_share: float | None = None
    leak: float = 0.0

    released = "bounded residuals"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "max_contribution", "max_residual", "noise_std")
        if self.injected_share is not None:
            object.__setattr__(self, "injected_share", checked_share(self.injected_share))
        if not 0 <= self.leak < 1:
            raise ValueError(f"leak must be in [0, 1), got {self.leak!r}.")

    def session_mu(self, participations: int) -> float:
        """Return ``mu`` of the whole session for a record that is drawn ``participations`` times."""
        return over_noise(moved(self.relation) * self._transcript_moves(participations), self.noise_std)

    def _transcript_moves(self, participations: int) -> float:
        norms = (self.max_contribution, self.max_residual)
        if self.injected_share is None:
            return moved_when_clipped(participations, *norms)
        return moved_by_shares(
            participations,
            *norms,
            share=self.injected_share,
            leak=self.leak,
            queries_per_epoch=self.sampling.queries_per_epoch,
        )

    @property
    def query_mu(self) -> float:
        """``mu`` of one participation, which is the unit of the noise multiplier."""
        return self.session_mu(1)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            *(self.sampling.assumptions(self.relation) if isinstance(self.sampling, PoissonLaw) else ()),
            "the divisor, and with it the bound on the error, is public",
            "gradients, residuals and the error are clipped by projection onto a ball",
            "the error itself is never released, logged or shared",
        )

    @property
    def private(self) -> bool:
        return math.isfinite(self.query_mu)

    @property
    def noise_settings(self) -> NoiseSettings:
        return NoiseSettings((self.noise_std,), (self.max_contribution,), self.query_mu)

    def describe(self) -> str:
        shares = "" if self.injected_share is None else f", {self.injected_share:.6g} of it injected in each query"
        shares += f", {self.leak:.6g} of the rest forgotten" if self.injected_share is not None and self.leak else ""
        return (
            f"{self.sampler}, hidden error of bounded residuals{shares}, noise_std {self.noise_std:.6g} on a sum with "
            f"max_contribution {self.max_contribution:.6g} and max_residual {self.max_residual:.6g}"
        )


BoundedResidualEvent.proofs = {
    PoissonLaw: Proof(every_relation("once a session, by the number of draws"), by_chance_of_draws),
    **{law: indexed("once a session", by_most_draws) for law in (FullBatchLaw, DisjointLaw, ShuffledEpochsLaw)},
}
