r"""Choose batches and noise by what the noise leaves in the last iterate, at equal privacy.

Place: sampling, mechanisms -> [correlated.choice] -> front ends. Only public numbers decide: batches an epoch, queries,
relation, epsilon and delta. The search for bands and a power rests on estimates of epsilon. What it finds is compared
with other strategies by noise that is calibrated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Literal

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, Spend, calibrate, check_relation, gaussian_sum_event, moved
from tacita.accounting.gaussian import gaussian_mu
from tacita.accounting.sampling_laws import CyclicLaw
from tacita.correlated.event import NEAR, classes_of, estimates, overlaps_of
from tacita.correlated.mechanism import CorrelatedGaussian
from tacita.correlated.strategy import POWERS, Factorization, coefficients, column, left_error, sensitivity
from tacita.mechanisms import GaussianMechanism, Mechanism
from tacita.sampling import CyclicSampler, PoissonSampler, Sampler, ShuffledEpochsSampler

Noise = Literal["independent", "correlated", "auto"]
BANDS = (2, 8)
WORTH = 0.95  # of an error: what a costlier strategy must come below
CLOSE, MOST_STEPS = 0.01, 6  # of epsilon: where the search for the noise of an estimate ends
FLATTEST, STEEPEST = -0.5, -3.0  # how the logarithm of epsilon falls with that of the noise


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a session draws its batches and which noise it adds.

    Attributes:
        words: Its name in statements.
        sampler: Draws the batches.
        form: The noise, whose multiplier is calibrated.
        queries: Planned queries.
    """

    words: str
    sampler: Sampler
    form: type[Mechanism] | CorrelatedGaussian
    queries: int

    def error(
        self, relation: NeighboringRelation, epsilon: float, delta: float, alongside: Sequence[Spend] = ()
    ) -> float:
        """Return what calibrated noise leaves in the last iterate, over the way that a constant gradient has led.

        Args:
            relation: The neighboring relation.
            epsilon, delta: Of the session and all ``alongside``.
            alongside: Sessions that share the records.
        """
        form = self.form if isinstance(self.form, CorrelatedGaussian) else None

        def event_at(noise_std: float) -> Event:
            event = gaussian_sum_event(self.sampler.law, (1.0,), (noise_std,), relation)
            return event if form is None else form.event(event)

        noise_std = calibrate(event_at, relation, epsilon, delta, alongside, queries=self.queries)
        weights = coefficients(1, 0.5) if form is None else coefficients(form.bands, form.power)
        return noise_std * left_error(weights, self.queries) / (self.sampler.sample_rate * self.queries)


def choose_strategy(
    noise: Noise,
    poisson: PoissonSampler,
    queries_for: Callable[[Sampler], int],
    *,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
    alongside: Sequence[Spend] = (),
) -> tuple[Strategy, str]:
    """Return the strategy with the least predicted error, and the choice in words for a statement.

    With "auto" another strategy than Poisson sampling with independent noise must have an error that is 5 % less.

    Args:
        noise: "correlated", or "auto" to choose between it and independent noise.
        poisson: The usual sampling. The others draw a record as often, up to a whole number of batches an epoch.
        queries_for: Sampler -> planned queries.
        relation: The neighboring relation.
        epsilon, delta: Of the session and all ``alongside``.
        alongside: Sessions that share the records and were planned before.

    Raises:
        ValueError: "correlated" was asked for, and an epoch is a single batch.
    """
    batches, num_records = round(1 / poisson.sample_rate), poisson.num_records
    if batches < 2 and noise == "correlated":
        raise ValueError(
            "noise='correlated' needs two batches an epoch or more, because records must rest between their queries; "
            f"at a sample rate of {poisson.sample_rate:g} there is one. Choose smaller batches, or noise='independent'."
        )
    usual = Strategy(
        words="independent, Poisson sampling", sampler=poisson, form=GaussianMechanism, queries=queries_for(poisson)
    )
    others: list[Strategy] = []
    if noise == "auto" and batches > 1:
        epochs = ShuffledEpochsSampler(batches_per_epoch=batches, num_records=num_records, assignment="coin")
        words = f"independent, {batches} batches an epoch by secret coin"
        others.append(Strategy(words=words, sampler=epochs, form=GaussianMechanism, queries=queries_for(epochs)))
    if batches > 1:
        cyclic = CyclicSampler(batches_per_cycle=batches, num_records=num_records, assignment="coin")
        queries = queries_for(cyclic)
        form = recommended_noise(queries, batches, relation=relation, epsilon=epsilon, delta=delta)
        words = f"correlated, {form.bands} bands, power {form.power:g}, {batches} cyclic batches by secret coin"
        others.append(Strategy(words=words, sampler=cyclic, form=form, queries=queries))
    errors = {one: one.error(relation, epsilon, delta, alongside) for one in (usual, *others)}
    best = min(others, key=errors.__getitem__, default=usual)
    if noise == "auto" and errors[best] > WORTH * errors[usual]:
        best = usual
    compared = "; ".join(f"{errors[one] / errors[usual]:.2f} ({one.words})" for one in others)
    over = "over that of Poisson sampling with independent noise" if others else "needs two batches an epoch to differ"
    return best, f"noise = {best.words}; predicted error of the last iterate, {over}: {compared or 1}"


@lru_cache(maxsize=64)
def recommended_noise(
    queries: int, batches: int, *, relation: NeighboringRelation, epsilon: float, delta: float
) -> CorrelatedGaussian:
    """Return the correlated noise with about the least error, for cyclic batches whose groups records draw in secret.

    The error is that of the last iterate of gradient descent, as in :func:`recommended_power`, with the noise that
    (``epsilon``, ``delta``) needs. Eight bands are recommended where their error is 5 % below that of two.

    Args:
        queries: Planned queries.
        batches: Groups, of :class:`~tacita.CyclicSampler`.
        relation: The neighboring relation.
        epsilon, delta: Of the session.

    Returns:
        The noise, for the ``form`` of a :class:`~tacita.CalibratedGaussian`, which finds its multiplier.

    Example:
        >>> noise = recommended_noise(100, 100, relation="add_or_remove_one", epsilon=1.0, delta=1e-5)
        >>> noise.bands, noise.power
        (2, 0.5)
    """
    _validate.count("queries", queries)
    _validate.count("batches", batches, at_least=2)
    _validate.positive("epsilon", epsilon)
    _validate.delta("delta", delta)
    secret = CyclicLaw(batches, own_coin=True).secret_batches(check_relation(relation))
    separation, most_draws, mu = min(batches, queries), -(-queries // batches), gaussian_mu(epsilon, delta)

    gain = 0.5 if secret > 1 else 1.0  # what secret groups leave of the noise, in the last estimate

    @cache
    def error(bands: int, power: float) -> float:
        nonlocal gain
        known = moved(relation) * sensitivity(column(bands, power, queries), separation, most_draws) / mu
        if secret > 1:
            overlaps = overlaps_of(Factorization(bands, power), queries, separation, most_draws)
            estimated = partial(estimates, overlaps=overlaps, groups=secret, queries=queries, delta=delta)
            gain = min(
                1.0, _estimated_noise(estimated, list(classes_of(overlaps, secret)), gain * known, epsilon) / known
            )
        return gain * known * left_error(coefficients(bands, power), queries)

    powers = {bands: _least_power(partial(error, bands)) for bands in BANDS}
    few, many = BANDS
    bands = many if error(many, powers[many]) < WORTH * error(few, powers[few]) else few
    return CorrelatedGaussian(noise_multiplier=1.0, bands=bands, power=powers[bands])


def _least_power(error: Callable[[float], float]) -> float:
    """Return about the power with the least error, which falls and then rises, and is flat near its least."""
    at = POWERS.index(0.5)
    for step in (4, 2):
        at = min((at, at - step, at + step), key=lambda index: error(POWERS[index]))
    return POWERS[at]


def _estimated_noise(estimated: Callable[..., list], numbers: list[int], first: float, epsilon: float) -> float:
    """Return about the noise that ``epsilon`` needs; infinite if its losses are too large for floating point.

    Args:
        estimated: Numbers of classes and ratio -> those that are worth trying, with about their epsilon.
        numbers: All numbers of classes.
        first: A guess of the noise.
        epsilon: Of the session.
    """
    log_noise, slope, last = math.log(first), -1.0, None
    for _ in range(MOST_STEPS):
        tried = estimated(numbers, ratio=math.exp(-log_noise))
        if not tried:
            return math.inf
        best = min(about for _, about, _ in tried)
        numbers = [classes for classes, about, _ in tried if about < NEAR * best]
        off = math.log(best / epsilon)
        if abs(off) < CLOSE:
            break
        if last is not None:
            slope = min(FLATTEST, max(STEEPEST, (off - last[1]) / (log_noise - last[0])))
        last = log_noise, off
        log_noise -= off / slope
    return math.exp(log_noise)
