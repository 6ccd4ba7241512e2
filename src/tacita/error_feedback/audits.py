"""Audits of error feedback: they refute the published noise of DiceSGD and are consistent with the proved one.

Derivation: docs/derivations/dicesgd.md.

The setting is the paper's for CIFAR-10: 50,000 records, batches of 1000, 150 queries, both thresholds 1, (2, 1e-5). The
data set is the counterexample to its theorem: gradients that accumulate an error in one direction, and one record that
reverses it when it is first drawn. The number of records is declared and only enters the divisor, so a few rows
suffice.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from tacita.clipping import FlatClipper
from tacita.error_feedback.bounded import BoundedFeedback
from tacita.error_feedback.feedback import Feedback
from tacita.error_feedback.private import PrivateFeedback
from tacita.error_feedback.released import ReleasedFeedback
from tacita.gradients.given import GivenSource
from tacita.ledger import Ledger
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism, Mechanism
from tacita.oracles import GradientOracle
from tacita.sampling import AllocatedSampler, PoissonSampler, Sampler
from tacita.testing.adversaries import EMPTY, Adversary
from tacita.testing.claims import Claim
from tacita.testing.named_audits import ReadyAudit, mechanism_of
from tacita.testing.sessions import MakeOracle

RIGOROUS, THEOREM, AUTOMATIC = "rigorous", "theorem_3_7", "automatic"
CLAIMED_EPSILON, CLAIMED_DELTA = 2.0, 1e-5
RECORDS, BATCH, QUERIES, THRESHOLD = 50_000, 1000, 150, 1.0

WINDS_UP = Adversary(
    name="turns a wound-up error round",
    canary=1e9,  # larger than the error that the others accumulate in all queries
    others=-1e6,  # a single one adds more error than the remaining queries can remove
    num_others=12,  # enough that one of them is drawn within a few queries
    relations=("add_or_remove_one",),
)
IN_THE_FIRST_BATCH = replace(WINDS_UP, name="turns the error round in the first query only", schedule="first query")


def dicesgd(noise: str, max_feedback_norm: float = THRESHOLD) -> MakeOracle:
    """Build oracles of DiceSGD in the paper's setting, with its noise or with the proved noise for (2, 1e-5)."""
    feedback = PrivateFeedback(max_feedback_norm=max_feedback_norm)
    sampler = PoissonSampler(sample_rate=BATCH / RECORDS, num_records=RECORDS)
    if noise == RIGOROUS:
        mechanism = CalibratedGaussian(target_epsilon=CLAIMED_EPSILON, target_delta=CLAIMED_DELTA)
    else:
        sensitivity = THRESHOLD + 2 * BATCH * max_feedback_norm
        noise_std = BATCH * published_noise(noise)  # of the sum; the paper states that of the mean
        mechanism = GaussianMechanism(noise_multiplier=noise_std / sensitivity)
    return feedback_oracles(lambda n: sampler, feedback, mechanism, QUERIES)


def published_noise(formula: str) -> float:
    r"""Return the standard deviation of the paper's noise on the mean, in this setting.

    :math:`\sqrt{32 T (C_1^2 + 2 (B C_2)^2) \ln(1/\delta)} / (N \epsilon)` by Theorem 3.7, and
    :math:`\sqrt{96 T \ln(1/\delta)}\, C / (N \epsilon)` of the automatic variant.
    """
    energy = 3 * THRESHOLD**2 if formula == AUTOMATIC else THRESHOLD**2 + 2 * (BATCH * THRESHOLD) ** 2
    return math.sqrt(32 * QUERIES * energy * math.log(1 / CLAIMED_DELTA)) / (RECORDS * CLAIMED_EPSILON)


def published_claim(noise: str, delta: float) -> Claim | None:
    """Return the paper's claim for its noise; ``None``, for the ledger's claim, with the proved noise."""
    point = (CLAIMED_EPSILON, CLAIMED_DELTA)
    return None if noise == RIGOROUS else Claim(*point, (point,))


def bounded_residuals(mechanism: type[Mechanism]) -> MakeOracle:
    """Build oracles of bounded residuals: one epoch of 3 batches, residuals up to 16 times the clipping threshold."""
    return feedback_oracles(
        lambda n: AllocatedSampler(batches_per_epoch=3, num_records=3),
        BoundedFeedback(max_feedback_norm=math.inf, max_residual_norm=16 * THRESHOLD),
        mechanism(noise_multiplier=1.0),
        3,
    )


def released_residuals(mechanism: type[Mechanism]) -> MakeOracle:
    """Build oracles of released residuals: Poisson sampling at rate 0.2, 20 queries."""
    return feedback_oracles(
        lambda n: PoissonSampler(sample_rate=0.2, num_records=5),
        ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=2.0),
        mechanism(noise_multiplier=1.0, allocation="least_power"),
        20,
    )


def feedback_oracles(
    sampler: Callable[[int], Sampler],
    feedback: Feedback,
    mechanism: Mechanism | CalibratedGaussian,
    queries: int,
) -> MakeOracle:
    """Build oracles of error feedback on rows that are gradients; ``sampler`` takes the number of rows."""

    def make_oracle(rows: Tensor, ledger: Ledger) -> GradientOracle:
        drawing = sampler(len(rows))
        return GradientOracle(
            GivenSource(rows),
            estimator=feedback.estimator(FlatClipper(max_grad_norm=THRESHOLD), drawing.expected_batch_size),
            mechanism=mechanism,
            sampler=drawing,
            ledger=ledger,
            planned_queries=queries,
        )

    return make_oracle


READY = {
    ready.name: ready
    for ready in (
        ReadyAudit(
            name="dicesgd",
            help="DiceSGD in the paper's setting: its two noise formulas (theorem_3_7, automatic), or the proved noise",
            make=dicesgd,
            adversaries=(WINDS_UP, IN_THE_FIRST_BATCH),
            noises=(RIGOROUS, THEOREM, AUTOMATIC),
            claim=published_claim,
        ),
        ReadyAudit(
            name="bounded-residuals",
            help="error feedback of bounded residuals: one epoch of 3 batches, noise multiplier 1",
            make=lambda noise: bounded_residuals(mechanism_of(noise)),
            adversaries=(EMPTY,),
        ),
        ReadyAudit(
            name="released-residuals",
            help="error feedback of released residuals: rate 0.2, 20 queries, noise multiplier 1",
            make=lambda noise: released_residuals(mechanism_of(noise)),
            adversaries=(EMPTY,),
        ),
    )
}
