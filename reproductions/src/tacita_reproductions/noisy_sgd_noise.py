r"""The noise that the noisy SGD paper prescribes, and the epsilon that it gives. It is not private as claimed.

Formula (1) has a constant c2 that is not given anywhere. With c2 = 1 and ordinary settings it is enough for an epsilon
below 1/2 and far too little above 2. Only :func:`unsafe_formula_1_noise` gives it to an oracle.
Source: "Noise is All You Need: Private Second-Order Convergence of Noisy SGD", Theorems 3.1 and 3.3 and section 4.
"""

from functools import cache

from tacita import _validate
from tacita.accounting import GaussianSumEvent, PoissonLaw, Spend, calibrate, epsilon
from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum
from tacita.ledger.text_lines import rounded_up
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle
from tacita.second_order.noisy_sgd import honest_delta, paper_mean_noise_std
from tacita_reproductions.paper_noise import ClaimedNoise, with_noise
from tacita_reproductions.runner import Check, Progress, Result, Row
from tacita_reproductions.unclipped_sum import UnclippedSum

EPSILONS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
DELTA = 0.01  # the paper's
RECORDS, BATCH, STEPS, THRESHOLD = 50_000, 512, 24 * 97, 2.5  # CIFAR-10, 24 epochs: only the threshold is the paper's
MARGIN = 1.01  # the accountant's epsilon for Poisson sampling is less than this times the exact one


def formula_multiplier(*, epsilon: float, delta: float, sample_rate: float, steps: int, c2: float = 1.0) -> float:
    r"""Return the noise multiplier of formula (1), :math:`c_2\, q \sqrt{T \ln(1/\delta)} / \epsilon`. No guarantee.

    Example:
        >>> round(formula_multiplier(epsilon=8, delta=0.01, sample_rate=512 / 50_000, steps=2328), 6)
        0.132533
    """
    mean = paper_mean_noise_std(gradient_bound=1.0, steps=steps, delta=delta, num_records=1.0, epsilon=epsilon, c2=c2)
    return float(mean) * sample_rate


def clipped_event(noise_multiplier: float, sample_rate: float) -> GaussianSumEvent:
    """Return the event of Algorithm 1 with Poisson batches, for a threshold of one, under add_or_remove_one."""
    return GaussianSumEvent(
        relation="add_or_remove_one",
        sampling=PoissonLaw(sample_rate),
        max_contribution=(1.0,),
        noise_std=(noise_multiplier,),
    )


@cache
def real_epsilon(noise_multiplier: float, *, sample_rate: float, steps: int, delta: float) -> float:
    """Return the accountant's epsilon of Algorithm 1; of Algorithm 2 only where no gradient exceeds the threshold."""
    return epsilon([Spend(clipped_event(noise_multiplier, sample_rate), steps)], delta).epsilon


@cache
def needed_multiplier(*, epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """Return the least noise multiplier with which Algorithm 1 has the epsilon."""
    return calibrate(
        lambda multiplier: clipped_event(multiplier, sample_rate), "add_or_remove_one", epsilon, delta, queries=steps
    )


def unsafe_formula_1_noise(
    oracle: GradientOracle, *, nominal_epsilon: float, nominal_delta: float, c2: float = 1.0
) -> GradientOracle:
    r"""Return the oracle with the noise of formula (1). **Not (epsilon, delta)-private as claimed.**

    The ledger withdraws the session of ``oracle`` and registers one with the noise :math:`c_2 C \sqrt{T \ln(1/\delta)}
    / (n \epsilon)` on the mean. The new session is charged what is proved for it, which is printed beside the nominal
    epsilon, and the statement begins with "not (epsilon, delta)-DP as claimed". A clipped oracle has the claim of
    Theorem 3.1, (epsilon, delta); an unclipped one that of Theorem 3.3, (epsilon, 2 delta), and is charged nothing
    finite, because its guarantee rests on a condition.

    Args:
        oracle: A :class:`~tacita.ClippedGradientOracle` with a :class:`~tacita.FlatClipper`, or a
            oracle of an :class:`UnclippedSum`, with Poisson sampling under add_or_remove_one, which has made no
            query.
        nominal_epsilon: The epsilon that the paper claims for this noise.
        nominal_delta: The delta of formula (1).
        c2: The constant that the paper does not give.

    Raises:
        ValueError: The oracle is not one that the theorems are about, or the noise is enough for the claim.
        LedgerError: The oracle has made a query, or a release was made since the oracle was built.
        BudgetExceededError: The proved guarantee would exceed the ledger's cap or the session's share.
    """
    nominal_epsilon = _validate.positive("nominal_epsilon", nominal_epsilon)
    _validate.delta("nominal_delta", nominal_delta)
    c2 = _validate.positive("c2", c2)
    claim, claimed_delta = _claim(oracle, nominal_delta)
    rate, steps = oracle.sampler.sample_rate, oracle.planned_queries
    multiplier = formula_multiplier(epsilon=nominal_epsilon, delta=nominal_delta, sample_rate=rate, steps=steps, c2=c2)
    real = real_epsilon(multiplier, sample_rate=rate, steps=steps, delta=claimed_delta)
    if not real > MARGIN * nominal_epsilon:
        raise ValueError(
            f"nominal_epsilon must be < {real / MARGIN:.6g}, got {nominal_epsilon:g}: the noise of {claim} is enough "
            f"here, for epsilon {real:.6g} at delta {claimed_delta:g}, so nothing is refuted. Give the oracle "
            f"GaussianMechanism(noise_multiplier={multiplier:.6g}) instead."
        )
    claimed = ClaimedNoise(oracle.estimator, claim, nominal_epsilon, claimed_delta)
    unsafe = with_noise(oracle, claimed, GaussianMechanism(noise_multiplier=multiplier))
    only = " if no gradient is ever longer than declared, and inf without that" if _unclipped(oracle) else ""
    print(
        f"Noise multiplier {multiplier:.6g} by {claim}: claimed epsilon {nominal_epsilon:g}, rigorous epsilon "
        f"{real:.6g}{only}, at delta {claimed_delta:g}. {unsafe.event.disclaimer}."
    )
    return unsafe


def _claim(oracle: GradientOracle, nominal_delta: float) -> tuple[str, float]:
    """Return who claims the guarantee, and its delta; raise ``ValueError`` if no theorem is about the oracle."""
    law, relation = oracle.sampler.law, oracle.ledger.neighboring_relation
    if type(law) is not PoissonLaw or relation != "add_or_remove_one":
        raise ValueError(
            "oracle must have Poisson sampling under add_or_remove_one, for which the theorem was proved, got "
            f"{law.describe()} under {relation}."
        )
    estimator = oracle.estimator
    if _unclipped(oracle):
        if 2 * nominal_delta >= 1:
            raise ValueError(f"nominal_delta must be < 1/2, because the claim has twice that, got {nominal_delta:g}.")
        return "the paper's Theorem 3.3", 2 * nominal_delta
    if isinstance(estimator, ClippedSum) and isinstance(estimator.clipper, FlatClipper):
        return "the paper's Theorem 3.1", nominal_delta
    raise ValueError(
        "oracle must be a ClippedGradientOracle with a FlatClipper, or one of an UnclippedSum, "
        f"because the formula was published for these, got {oracle!r}."
    )


def _unclipped(oracle: GradientOracle) -> bool:
    return isinstance(oracle.estimator, UnclippedSum)


def nominal(full: bool, seed: int, progress: Progress) -> Result:
    """Compute what formula (1) delivers at the paper's epsilons: the nominal epsilon beside the real one."""
    rows: list[Row] = []
    rate = BATCH / RECORDS
    for place, value in enumerate(EPSILONS):
        progress(place / len(EPSILONS), f"epsilon {value:g}")
        z = formula_multiplier(epsilon=value, delta=DELTA, sample_rate=rate, steps=STEPS)
        rows.append(
            {
                "nominal epsilon": value,
                "noise on the mean": z * THRESHOLD / BATCH,
                "multiplier": z,
                "real epsilon, delta 0.01": real_epsilon(z, sample_rate=rate, steps=STEPS, delta=DELTA),
                "real epsilon, delta 1e-5": real_epsilon(z, sample_rate=rate, steps=STEPS, delta=1e-5),
                "needed, delta 0.01": needed_multiplier(epsilon=value, delta=DELTA, sample_rate=rate, steps=STEPS),
                "needed, delta 1e-5": needed_multiplier(epsilon=value, delta=1e-5, sample_rate=rate, steps=STEPS),
                "delta without clipping": float(honest_delta(value, DELTA)),
            }
        )
    last, valid = rows[-1], STEPS * rate**2
    return Result(
        rows=rows,
        checks=[
            Check(
                "up to epsilon 1/2 the formula with c2 = 1 is enough; from 1 on the accountant's bound is above it",
                all(
                    (row["real epsilon, delta 0.01"] <= row["nominal epsilon"]) == (row["nominal epsilon"] < 1)
                    for row in rows
                ),
                found="; ".join(
                    f"nominal {row['nominal epsilon']:g}, real {rounded_up(row['real epsilon, delta 0.01'], 3)}"
                    for row in rows
                ),
            ),
            Check(
                "at nominal epsilon 8 the accountant's bound on the real one is over 800",
                last["real epsilon, delta 0.01"] > 800,
                found=rounded_up(last["real epsilon, delta 0.01"]),
            ),
            Check(
                "the theorem's own condition, epsilon < c1 T B^2 / n^2, fails from 1/4 on for c1 = 1",
                all((value < valid) == (value < 1 / 4) for value in EPSILONS),
                found=f"T B^2 / n^2 is {valid:.3g}",
            ),
            Check(
                "without clipping delta is 1 from epsilon 8 on, if gradients exceed C with probability 0.01",
                last["delta without clipping"] == 1 > rows[0]["delta without clipping"],
                found=", ".join(f"{row['delta without clipping']:.3g} at {row['nominal epsilon']:g}" for row in rows),
            ),
        ],
        notes=[
            f"Poisson batches of {BATCH} of {RECORDS:,} records, {STEPS:,} steps, C {THRESHOLD:g}, "
            "add_or_remove_one; c2 = 1. The paper states C and delta, not the batch size, the steps or c2, so this "
            "does not say what its authors ran.",
            "the real epsilon is the accountant's upper bound, which is close to exact for these queries; no attack",
            "delta 0.01 is far above 1 / 50,000: a record may be published with probability 0.01 under it",
            "'delta without clipping': delta + (1 + e^epsilon) delta where C bounds the gradients but with probability "
            "delta; the paper says 2 delta",
        ],
    )
