"""The result of an audit in one run: the claim, the measured lower bound and the verdict, as text and as JSON.

All of it is a function of the run's releases.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacita.testing.membership import Interval, Membership
from tacita.testing.one_run.bound import FALSE_ALARM, OneRunBound

CONFIGURATION = "the configuration, trained anew with canaries: not a model that was exported before"


@dataclass(frozen=True, kw_only=True)
class OneRunAudit:
    """The result of :func:`~tacita.testing.audit_one_run`.

    Attributes:
        epsilon_claimed: Epsilon that the ledger claims for the audited session, at ``bound.delta``.
        bound: The measured lower bound.
        strict: The lower bound on which the verdict rests, at a false alarm of 1e-6 and at a delta far below
            ``bound.delta``. No verdict is possible at ``bound.delta`` itself, since a run that reveals everything with
            that probability satisfies the claim.
        strict_claim: Epsilon that the ledger claims for the audited session, at ``strict.delta``.
        membership: How well the attack distinguishes canaries that were in from those that were not.
        adversary: The canaries and the attack, in words.
        relation: The neighboring relation.
        ledger_epsilon: Epsilon that the whole run spent on the records, at ``bound.delta``; the audit has a session of
            its own.
        scores: One score per canary.
        included: The outcomes of the coins.
        cost: What the session costs, before its epsilon.
    """

    epsilon_claimed: float
    bound: OneRunBound
    strict: OneRunBound
    strict_claim: float
    membership: Membership
    adversary: str
    relation: str
    ledger_epsilon: float
    scores: np.ndarray = field(repr=False)
    included: np.ndarray = field(repr=False)
    cost: str = "a session of its own on the same records:"

    @property
    def verdict(self) -> str:
        """``"refuted"`` or ``"consistent"``.

        A true claim is refuted with probability at most 1e-6. ``"consistent"`` does not prove the claim.
        """
        return "refuted" if self.strict.epsilon > self.strict_claim else "consistent"

    @property
    def powerless(self) -> bool:
        """Whether the canaries are too few to refute the claim even if every guess were right."""
        return self.strict.largest <= self.strict_claim

    @property
    def text(self) -> str:
        """The result in a few lines."""
        bound, found = self.bound, self.membership
        low = ", ".join(f"{rate.value:.3f} at FPR {fpr:g}" for fpr, rate in found.tpr.items())
        lines = [
            f"AUDIT IN ONE RUN: {self.verdict.upper()}",
            f"claimed:      epsilon {_up(self.epsilon_claimed)} at delta {bound.delta:g}, {self.relation}",
            f"measured:     epsilon >= {_down(bound.epsilon)} with confidence {bound.confidence:g}: "
            f"{bound.correct} of {bound.guesses} guesses right, {bound.canaries} canaries",
            f"verdict:      at delta {self.strict.delta:.2g}, claimed epsilon {_up(self.strict_claim)}, measured >= "
            f"{_down(self.strict.epsilon)}; a true claim is refuted in at most one audit of a million",
            f"membership:   AUC {found.auc.value:.3f} ({found.auc.low:.3f} to {found.auc.high:.3f}); TPR {low}",
            f"adversary:    {self.adversary}",
            f"holds for:    {CONFIGURATION}",
            f"cost:         {self.cost} epsilon {_up(self.ledger_epsilon)} at delta {bound.delta:g}",
        ]
        if self.powerless:
            lines.append(
                f"power:        even if all guesses were right, the verdict's bound would be "
                f"{_down(self.strict.largest)}, which does not exceed the claim: use more canaries"
            )
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an infinite epsilon is ``null``."""
        bound, found = self.bound, self.membership
        return {
            "verdict": self.verdict,
            "epsilon_claimed": _finite(self.epsilon_claimed),
            "delta": bound.delta,
            "epsilon_lower_bound": bound.epsilon,
            "confidence": bound.confidence,
            "false_alarm": FALSE_ALARM,
            "verdict_at": {
                "delta": self.strict.delta,
                "epsilon_claimed": _finite(self.strict_claim),
                "epsilon_lower_bound": self.strict.epsilon,
                "largest_possible_lower_bound": self.strict.largest,
            },
            "runs": 1,
            "adversary": self.adversary,
            "neighboring_relation": self.relation,
            "canaries": bound.canaries,
            "guesses": bound.guesses,
            "correct_guesses": bound.correct,
            "largest_possible_lower_bound": bound.largest,
            "auc": _interval(found.auc),
            "tpr_at_fpr": {f"{fpr:g}": _interval(rate) for fpr, rate in found.tpr.items()},
            "holds_for": CONFIGURATION,
            "epsilon_of_the_audit": _finite(self.ledger_epsilon),
        }


def _interval(found: Interval) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _up(value: float) -> str:
    """Format ``value`` with four digits, rounded up, so that printing does not make a claim smaller."""
    return _rounded(value, math.ceil)


def _down(value: float) -> str:
    """Format ``value`` with four digits, rounded down, so that printing does not make a lower bound larger."""
    return _rounded(value, math.floor)


def _rounded(value: float, towards) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    return f"{towards(value / step) * step:.4g}"
