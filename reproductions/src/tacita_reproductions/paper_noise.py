"""The noise that the DiceSGD paper prescribes, for experiments that compare with it. It is not private as claimed.

Only :func:`unsafe_paper_noise` gives it to an oracle, and prints the guarantee that is proved. The ledger charges that
guarantee, and the statement begins with it.
Source: Zhang, Bu, Wu, Hong (DiceSGD), Theorem 3.7 and Algorithm 4. docs/derivations/dicesgd.md shows why both fail.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from tacita import _validate
from tacita.accounting import Bound, Event, NeighboringRelation, RefutedClaimEvent, Spend, epsilon
from tacita.clipped_sgd import sum_noise_std
from tacita.clipping import FlatClipper
from tacita.error_feedback import HiddenErrorSum
from tacita.error_feedback.published_noise import paper_automatic, paper_theorem_3_7
from tacita.errors import UnsupportedEventError
from tacita.estimators import Estimator, Values
from tacita.gradients.engine import Engine, Shapes
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle
from tacita.sampling import Sampler

Formula = Literal["theorem_3_7", "automatic"]
CLAIMS: Mapping[str, str] = {
    "theorem_3_7": "the paper's Theorem 3.7",
    "automatic": "the paper's Algorithm 4",
}


def unsafe_paper_noise(
    oracle: GradientOracle,
    formula: Formula,
    *,
    nominal_epsilon: float,
    nominal_delta: float,
    residual_bound: float = math.inf,
) -> GradientOracle:
    r"""Return the oracle with the noise of the paper's formula. **Not (epsilon, delta)-private as claimed.**

    The ledger withdraws the session of ``oracle`` and registers one with this noise instead, with the same settings and
    from the same share. The new session has the guarantee that is proved, which is printed beside the nominal one, and
    the statement begins with "not (epsilon, delta)-DP as claimed". An algorithm that the paper does not describe is
    refused, and so is noise that is enough for the claim; the session of ``oracle`` then stays as it was.

    * ``"theorem_3_7"``: :math:`\sigma_1 = \sqrt{32 T (C_1^2 + 2 \min(b C_2, G')^2) \ln(1/\delta)} / (N \epsilon)`;
    * ``"automatic"``: :math:`\sigma_1 = \sqrt{96 T \ln(1/\delta)}\, C_1 / (N \epsilon)`;

    The noise is on the mean; N is the sampler's ``num_records``, T the planned queries and b the divisor.

    Args:
        oracle: An :class:`~tacita.ErrorFeedbackOracle` with :class:`~tacita.PrivateFeedback` as published (every query
            injects, no leak, no anti-windup) that has made no query yet.
        formula: ``"theorem_3_7"`` or ``"automatic"``.
        nominal_epsilon: The epsilon that the paper claims for this noise at ``nominal_delta``.
        nominal_delta: The delta of that claim.
        residual_bound: G' of Theorem 3.7, a bound on what clipping removes. Nothing enforces it.

    Raises:
        ValueError: The formula's own hypotheses do not hold, or the claim is true; the message says which.
        LedgerError: The oracle has made a query, or a release was made since the oracle was built.
        BudgetExceededError: The proved guarantee would exceed the ledger's cap or the session's share.
    """
    if formula not in get_args(Formula):
        raise ValueError(f"formula must be one of {', '.join(get_args(Formula))}, got {formula!r}.")
    if not isinstance(oracle.estimator, HiddenErrorSum):
        raise ValueError(
            "oracle must be an ErrorFeedbackOracle with PrivateFeedback, because the formula was published for that "
            f"algorithm, got {oracle!r}."
        )
    _validate.positive("nominal_epsilon", nominal_epsilon)
    _validate.delta("nominal_delta", nominal_delta)
    _check_published(oracle.estimator, formula)
    mean_std = _mean_noise_std(oracle, formula, (nominal_epsilon, nominal_delta), residual_bound)
    claimed = ClaimedNoise(oracle.estimator, CLAIMS[formula], nominal_epsilon, nominal_delta)
    sensitivity, *_ = claimed.sensitivity(oracle.ledger.neighboring_relation, oracle.source.shapes).values()
    noise_std = float(sum_noise_std(mean_std, divisor=oracle.divisor))
    mechanism = GaussianMechanism(noise_multiplier=noise_std / sensitivity)
    rigorous = _rigorous(oracle, claimed, mechanism)
    unsafe = with_noise(oracle, claimed, mechanism)
    print(
        f"Noise {noise_std:.6g} on the sum by {CLAIMS[formula]}: claimed epsilon {nominal_epsilon:g}, rigorous epsilon "
        f"{rigorous.epsilon:.6g} at delta {nominal_delta:g} ({rigorous.accountant}). {unsafe.event.disclaimer}."
    )
    return unsafe


def _check_published(estimator: HiddenErrorSum, formula: Formula) -> None:
    """Raise ``ValueError`` unless the algorithm is one that the paper makes a claim about."""
    feedback = estimator.feedback
    wrong = [
        f"{name} must be {published:g}, got {getattr(feedback, name):g}"
        for name, published in (("every", 1), ("leak", 0), ("anti_windup", math.inf))
        if getattr(feedback, name) != published
    ]
    if formula == "theorem_3_7" and feedback.normalised:
        wrong.append("normalised must be False")
    if formula == "theorem_3_7" and not isinstance(estimator.clipper, FlatClipper):
        wrong.append(f"clipper must be a FlatClipper, got {type(estimator.clipper).__name__}")
    if wrong:
        raise ValueError(f"{formula}: {'; '.join(wrong)}: the paper claims nothing for another algorithm.")


def _rigorous(oracle: GradientOracle, claimed: "ClaimedNoise", mechanism: GaussianMechanism) -> Bound:
    """Return the guarantee that is proved for the session alone, as the ledger charges it.

    Raises:
        ValueError: The claim is not refuted, because the tightest bound does not exceed it.
    """

    def bound(estimator: Estimator) -> Bound:
        event = session_event(oracle, estimator, mechanism)
        return epsilon([Spend(event, oracle.planned_queries)], claimed.claimed_delta)

    charged, least = bound(claimed), math.inf
    with suppress(UnsupportedEventError):  # the sampler has no tighter accounting
        least = bound(_by_first_draw(claimed.inner)).epsilon
    least = min(charged.epsilon, least)
    if not least > claimed.claimed_epsilon:
        raise ValueError(
            f"nominal_epsilon must be < {least:.6g}, got {claimed.claimed_epsilon:g}: the noise of {claimed.claim} is "
            f"enough here, for epsilon {least:.6g} at delta {claimed.claimed_delta:g}, so nothing is refuted. Give the "
            "oracle this noise as a GaussianMechanism instead."
        )
    return charged


def _by_first_draw(estimator: Estimator) -> HiddenErrorSum:
    """Return the estimator with its tightest accounting."""
    assert isinstance(estimator, HiddenErrorSum)
    return replace(estimator, feedback=replace(estimator.feedback, first_draw=True))


def session_event(oracle: GradientOracle, estimator: Estimator, mechanism: GaussianMechanism) -> Event:
    """Return what a session of the oracle spends with another estimator and the noise of ``mechanism``."""
    relation = oracle.ledger.neighboring_relation
    return estimator.session_event(mechanism, oracle.sampler, relation, oracle.source.shapes)


def with_noise(oracle: GradientOracle, claimed: "ClaimedNoise", mechanism: GaussianMechanism) -> GradientOracle:
    """Return the oracle with another noise. Its old session is withdrawn only if the new one is accepted."""
    event = session_event(oracle, claimed, mechanism)
    named = {"estimator": repr(claimed), "mechanism": repr(mechanism)}
    settings = {**oracle.settings, **oracle._payment.more_settings, **named}
    session = oracle.ledger._replace(oracle.session, event, settings)
    return GradientOracle(
        oracle.source,
        estimator=claimed,
        mechanism=mechanism,
        sampler=oracle.sampler,
        ledger=oracle.ledger,
        planned_queries=oracle.planned_queries,
        rows=oracle.draws.rows,
        part=session.part,
        max_rows_per_unit=oracle.sampler.max_rows_per_unit,
        settings=settings,
        session=session,
        randomness=oracle.randomness,
    )


@dataclass(frozen=True)
class ClaimedNoise(Estimator):
    """An estimator whose noise was published with a false claim. Its event says so; ``inner`` does everything else.

    Attributes:
        inner: The estimator without the claim.
        claim: Where the claim was published.
        claimed_epsilon: The epsilon that is claimed at ``claimed_delta``.
        claimed_delta: The delta of the claim.
    """

    inner: Estimator
    claim: str
    claimed_epsilon: float
    claimed_delta: float

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return self.inner.sensitivity(relation, shapes)

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        return RefutedClaimEvent(
            relation=relation,
            inner=self.inner.event(sampler, noise_std, relation, shapes),
            claim=self.claim,
            claimed_epsilon=self.claimed_epsilon,
            claimed_delta=self.claimed_delta,
        )

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return self.inner.block_sizes(shapes)

    def __call__(self, engine: Engine, state: Any) -> tuple[Values, Any]:
        return self.inner(engine, state)

    @property
    def rounded_last(self) -> bool:
        return self.inner.rounded_last

    def bound(self, engine: Engine, state: Any) -> tuple[Values, Any]:
        return self.inner.bound(engine, state)

    def apply(self, state: Any, update: Any) -> Any:
        return self.inner.apply(state, update)

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return self.inner.gradient(released, divisor)

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> Any:
        return self.inner.initial_state(shapes, lead)

    def after(self, state: Any, released: Values) -> Any:
        return self.inner.after(state, released)


def _mean_noise_std(
    oracle: GradientOracle, formula: Formula, target: tuple[float, float], residual_bound: float
) -> float:
    """Return the formula's noise on the mean; raise ``ValueError`` unless the formula's own hypotheses hold."""
    estimator, sampler = oracle.estimator, oracle.sampler
    assert isinstance(estimator, HiddenErrorSum)
    threshold, feedback = estimator.contribution(oracle.source.shapes), estimator.feedback.max_feedback_norm
    common: dict[str, Any] = dict(
        num_records=sampler.num_records,
        steps=oracle.planned_queries,
        epsilon=target[0],
        delta=target[1],
        max_grad_norm=threshold,
    )
    if formula == "automatic":
        if feedback != threshold:
            raise ValueError(
                f"automatic: max_feedback_norm must be max_grad_norm, {threshold:g}, got {feedback:g}, because the "
                "formula has only one threshold."
            )
        return paper_automatic(**common)
    if sampler.sample_rate > 0.2:
        raise ValueError(f"theorem_3_7: sample_rate must be at most 1/5, got {sampler.sample_rate:g}.")
    if feedback < threshold:
        raise ValueError(f"theorem_3_7: max_feedback_norm must be at least {threshold:g}, got {feedback:g}.")
    if not residual_bound > 0:
        raise ValueError(f"residual_bound must be > 0, got {residual_bound!r}.")
    found = paper_theorem_3_7(**common, theorem_constant=oracle.divisor * feedback, residual_bound=residual_bound)
    least = 8 * threshold / oracle.divisor
    if not found > least:
        raise ValueError(
            f"theorem_3_7: its noise, {found:.4g} on the mean, must exceed 8 C1 / B = {least:.4g}. Use fewer records, "
            "more queries, or a smaller nominal_epsilon."
        )
    return found
