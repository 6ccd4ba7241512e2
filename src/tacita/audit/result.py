"""What an audit found: the claim, the bound, and the verdict.

Place: bounds, claims -> [audit.result] -> the command line, docs/audit.md. Audits run on made-up data sets: all of it
may be printed.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from tacita.accounting import NeighboringRelation, gaussian_epsilon
from tacita.audit.bounds import LowerBound, Roc
from tacita.audit.claims import Claim

Verdict = Literal["consistent", "refuted"]


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon from whole runs on two neighbouring data sets, and what it says of the claim.

    Attributes:
        name: Of what was audited.
        relation: How the two data sets differ.
        claim: What is claimed.
        bound: Lower bound on epsilon at the claim's delta.
        mu: Lower bound on the mu of Gaussian differential privacy.
        excess: By how much a rate exceeds what the claim allows; held at ``false_alarm``.
        strict: The bound on epsilon again, held at ``false_alarm``: what the verdict goes by.
        false_alarm: Chance of "refuted" if the claim is true, at most.
        adversary: The adversary that showed most.
        statistic: Its way to score a run.
        runs: In each of the two worlds, of which a fifth chooses the event and the others judge it.
        explored: Pairs of adversary and statistic that were tried, on runs of their own.
        queries: Queries in a run.
        vectorised: Whether runs were made many at once, by the oracle's parts; else one by one, by its queries.
        auc: Area under the measured ROC curve.
        tpr_at_fpr: False positive rate -> measured true positive rate; "positive" is the world that the bound's event
            points at.
        roc: The measured trade-off curve, likewise.
    """

    name: str = ""
    relation: NeighboringRelation
    claim: Claim
    bound: LowerBound
    mu: LowerBound
    excess: LowerBound
    strict: LowerBound
    false_alarm: float
    adversary: str
    statistic: str
    runs: int
    explored: int = 1
    queries: int
    vectorised: bool
    auc: float
    tpr_at_fpr: dict[float, float]
    roc: Roc = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        """``"refuted"`` if what was measured cannot be, were the claim true, but for a chance of ``false_alarm``."""
        return "refuted" if self.excess.value > 0 or self.strict.value > self.claim.epsilon else "consistent"

    @property
    def epsilon_lower_bound(self) -> float:
        """Epsilon at the claim's delta is at least this, with the bound's confidence."""
        return self.bound.value

    @property
    def epsilon_of_mu(self) -> float:
        """The epsilon of the measured mu: an extrapolation, right where the trade-off curve is Gaussian."""
        return gaussian_epsilon(self.mu.value, self.claim.delta) if math.isfinite(self.mu.value) else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for ``json.dumps``."""
        broken = self.claim.broken_at(self.excess.true_rate, self.excess.false_rate)
        return {
            "name": self.name,
            "verdict": self.verdict,
            "epsilon_claimed": _finite(self.claim.epsilon),
            "delta": self.claim.delta,
            "epsilon_lower_bound": _finite(self.bound.value),
            "confidence": self.bound.confidence,
            "false_alarm": self.false_alarm,
            "runs": self.runs,
            "adversary": self.adversary,
            "statistic": self.statistic,
            "neighboring_relation": self.relation,
            "queries": self.queries,
            "vectorised": self.vectorised,
            "explored": self.explored,
            "direction": self.bound.event.direction,
            "mu_lower_bound": _finite(self.mu.value),
            "epsilon_of_mu": _finite(self.epsilon_of_mu),
            "auc": self.auc,
            "tpr_at_fpr": {f"{fpr:g}": tpr for fpr, tpr in self.tpr_at_fpr.items()},
            "broken": broken and dict(zip(("epsilon", "delta_claimed", "delta_shown"), broken, strict=True)),
        }

    def words(self) -> str:
        """The verdict in a sentence."""
        claimed = f"epsilon {self.claim.epsilon:.4g} at delta {self.claim.delta:g}"
        measured = f"epsilon is at least {self.bound.value:.4g} with {100 * self.bound.confidence:g} % confidence"
        if self.verdict == "consistent":
            return f"consistent with the claim of {claimed}: {measured}."
        chance = f"(a true claim would be refuted in one audit of {1 / self.false_alarm:,.0f} at most)"
        broken = self.claim.broken_at(self.excess.true_rate, self.excess.false_rate)
        if self.strict.value > self.claim.epsilon or broken is None:
            return f"refuted: {claimed} is claimed, and {measured} {chance}."
        return (
            f"refuted: {claimed} is claimed, and so delta {broken[1]:.3g} at epsilon {broken[0]:.4g}, where delta is "
            f"at least {broken[2]:.3g} {chance}; {measured}."
        )


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else "inf"
