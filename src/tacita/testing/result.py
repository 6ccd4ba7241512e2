"""The result of an audit: the claim, the bound and the verdict.

Audits run on made-up data sets, so all of it may be printed.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from tacita.accounting import NeighboringRelation, gaussian_epsilon
from tacita.ledger.text_lines import rounded_down
from tacita.testing.bounds import LowerBound
from tacita.testing.claims import Claim
from tacita.testing.roc import Roc

Verdict = Literal["consistent", "refuted"]
WIDTH = 22  # of the first column of what is printed


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon from whole runs on two neighbouring data sets, and the verdict on the claim.

    Attributes:
        name: Name of the audited oracle.
        relation: How the two data sets differ.
        claim: The claim.
        bound: Lower bound on epsilon at the claim's delta.
        mu: Lower bound on the mu of Gaussian differential privacy.
        excess: Lower bound on how much a rate exceeds what the claim allows, at half of ``false_alarm``.
        strict: The lower bound on epsilon at the other half of ``false_alarm``. The verdict rests on it and ``excess``.
        false_alarm: Largest probability of "refuted" if the claim is true.
        adversary: The adversary that was chosen.
        statistic: The statistic that scored the runs.
        runs: Number of runs in each of the two worlds. A fifth of them chooses the event, the others judge it.
        explored: Number of pairs of adversary and statistic that were tried, on other runs.
        queries: Number of queries in a run.
        vectorised: Whether many runs were simulated at once by the oracle's parts, instead of queried one by one.
        auc: Area under the measured ROC curve.
        tpr_at_fpr: False positive rate -> measured true positive rate; "positive" is the world to which the bound's
            event points.
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
        """``"refuted"`` (of a true claim, with probability at most ``false_alarm``) or ``"consistent"``."""
        return "refuted" if self.excess.value > 0 or self.strict.value > self.claim.epsilon else "consistent"

    @property
    def epsilon_lower_bound(self) -> float:
        """The lower bound on epsilon at the claim's delta."""
        return self.bound.value

    @property
    def epsilon_of_mu(self) -> float:
        """The epsilon of the measured mu: an extrapolation that is right only for a Gaussian trade-off curve."""
        return gaussian_epsilon(self.mu.value, self.claim.delta) if math.isfinite(self.mu.value) else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return plain data, ready for ``json.dumps``."""
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

    def __str__(self) -> str:
        percent = f"{100 * self.bound.confidence:g} % confidence"
        runs = f"{self.runs:,} in each world, {self.queries} {'query' if self.queries == 1 else 'queries'} a run"
        if_gaussian = f"epsilon {rounded_down(self.epsilon_of_mu)} if Gaussian"
        rows = {
            "audited": self.name or "an oracle",
            "neighbours differ by": self.relation,
            "claimed epsilon": f"{self.claim.epsilon:.4g} at delta {self.claim.delta:g}",
            "measured epsilon": f"at least {rounded_down(self.bound.value)} ({percent})",
            "measured mu": f"at least {rounded_down(self.mu.value)} ({percent}); {if_gaussian}",
            "runs": runs,
            "adversary": f"{self.adversary}; {self.statistic}",
            "area under the ROC": f"{self.auc:.4f}",
            "true positives": ", ".join(f"{tpr:.2%} at {fpr:g}" for fpr, tpr in self.tpr_at_fpr.items()),
        }
        return "\n".join([*(f"{key:<{WIDTH}}{value}" for key, value in rows.items()), "", self.words()])

    def words(self) -> str:
        """Return the verdict as a sentence."""
        claimed = f"epsilon {self.claim.epsilon:.4g} at delta {self.claim.delta:g}"
        percent = f"{100 * self.bound.confidence:g} % confidence"
        measured = f"epsilon is at least {rounded_down(self.bound.value)} with {percent}"
        if self.verdict == "consistent":
            return f"consistent with the claim of {claimed}: {measured}."
        chance = f"(a true claim is refuted in at most one audit of {1 / self.false_alarm:,.0f})"
        broken = self.claim.broken_at(self.excess.true_rate, self.excess.false_rate)
        if self.strict.value > self.claim.epsilon or broken is None:
            return f"refuted: {claimed} is claimed, and {measured} {chance}."
        return (
            f"refuted: {claimed} is claimed, which implies delta {broken[1]:.3g} at epsilon {broken[0]:.4g}, where "
            f"delta is at least {rounded_down(broken[2], 3)} {chance}; {measured}."
        )


def _finite(value: float) -> float | str:
    """Return ``value``, or ``"inf"``, since JSON has no infinity."""
    return value if math.isfinite(value) else "inf"
