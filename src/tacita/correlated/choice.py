r"""Choose batches and noise by what the noise leaves in the last iterate, at equal privacy.

Place: sampling, mechanisms -> [correlated.choice] -> front ends. Only public numbers decide: batches an epoch, queries,
relation, epsilon and delta. For cyclic batches bands and power are found, and their error is predicted, by estimates of
epsilon; what is chosen is calibrated all the same. All other errors are those of calibrated noise.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Literal

import numpy as np

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, Spend, calibrate, check_relation, gaussian_sum_event, moved
from tacita.accounting.gaussian import gaussian_mu
from tacita.accounting.sampling_laws import CyclicLaw, PoissonLaw
from tacita.correlated.event import NEAR, classes_of, estimates, overlaps_of
from tacita.correlated.mechanism import CorrelatedGaussian
from tacita.correlated.strategy import (
    POWERS,
    Factorization,
    coefficients,
    column,
    left_error,
    matrix_bands,
    sensitivity,
)
from tacita.mechanisms import GaussianMechanism, Mechanism
from tacita.sampling import AllocatedSampler, CyclicSampler, PoissonSampler, Sampler
from tacita.sampling.sampler import simplest_fraction

Noise = Literal["independent", "correlated", "auto"]
BANDS = (2, 8)
MATRIX_BANDS = (2, 4, 8, 16)  # of which all but one are kept in memory, each as large as a gradient
EPOCHS_UP_TO = 300  # batches: with more of them, epochs by coin are never 5 % better than Poisson sampling
THINNED = 3  # the search looks at every third number of classes
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
        return self.left(noise_std)

    def left(self, noise_std: float) -> float:
        """Return what noise of this size leaves in the last iterate, over the way that a constant gradient has led."""
        form = self.form if isinstance(self.form, CorrelatedGaussian) else None
        weights = np.ones(1) if form is None else form.factorization.weights(self.queries)
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

    Unless noise is "correlated", another strategy than Poisson sampling with independent noise must have an error that
    is 5 % less.

    Args:
        noise: "independent", for Poisson sampling or epochs by secret coin; "correlated"; or "auto" for the best.
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
    errors = {usual: usual.error(relation, epsilon, delta, alongside)}
    if noise != "correlated" and 1 < batches <= EPOCHS_UP_TO:
        epochs = AllocatedSampler(batches_per_epoch=batches, num_records=num_records)
        words = f"independent, {batches} batches an epoch by secret coin"
        strategy = Strategy(words=words, sampler=epochs, form=GaussianMechanism, queries=queries_for(epochs))
        errors[strategy] = strategy.error(relation, epsilon, delta, alongside)
    if batches > 1 and noise != "independent":
        target = {"relation": relation, "epsilon": epsilon, "delta": delta}
        cyclic = CyclicSampler(batches_per_cycle=batches, num_records=num_records, assignment="coin")
        queries = queries_for(cyclic)
        form, noise_std = _cyclic_noise(queries, batches, **target)
        words = f"correlated, {form.factorization.words}, {batches} cyclic batches by secret coin"
        strategy = Strategy(words=words, sampler=cyclic, form=form, queries=queries)
        shared = errors[usual] / usual.error(relation, epsilon, delta) if alongside else 1.0
        errors[strategy] = shared * strategy.left(noise_std)
    if batches > 2 and noise != "independent":
        form = recommended_noise(queries_for(poisson), batches, **target, banded_matrix=True)
        rate = float(simplest_fraction(poisson.sample_rate) * form.bands)
        sampler = CyclicSampler(
            batches_per_cycle=form.bands, num_records=num_records, assignment="coin", turn_rate=rate
        )
        words = f"correlated, {form.factorization.words}, {form.bands} groups in turn, sampled at rate {rate:g}"
        strategy = Strategy(words=words, sampler=sampler, form=form, queries=queries_for(sampler))
        errors[strategy] = strategy.error(relation, epsilon, delta, alongside)
    _, *others = errors
    best = min(others, key=errors.__getitem__, default=usual)
    if noise != "correlated" and errors[best] > WORTH * errors[usual]:
        best = usual
    if errors[best] > errors[usual]:
        warnings.warn(
            f"noise='correlated' predicts {errors[best] / errors[usual]:.2f} times the error of independent noise "
            "here: noise='independent' is better, and noise='auto' takes whichever is.",
            stacklevel=2,
        )
    compared = "; ".join(f"{errors[one] / errors[usual]:.2f} ({one.words})" for one in others)
    over = "over that of Poisson sampling with independent noise" if others else "needs two batches an epoch to differ"
    return best, f"noise = {best.words}; predicted error of the last iterate, {over}: {compared or 1}"


def recommended_noise(
    queries: int,
    batches: int,
    *,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
    banded_matrix: bool = False,
) -> CorrelatedGaussian:
    """Return the correlated noise with about the least error, for cyclic batches whose groups records draw by coin.

    The error is that of the last iterate of gradient descent, as in :func:`recommended_power`, with the noise that
    (``epsilon``, ``delta``) needs. More bands than the fewest are recommended where their error is 5 % less.

    Args:
        queries: Planned queries.
        batches: Batches an epoch: groups of a :class:`~tacita.CyclicSampler`. With ``banded_matrix`` its groups are as
            many as the noise has bands, and its ``turn_rate`` is ``bands / batches``.
        relation: The neighboring relation.
        epsilon, delta: Of the session.
        banded_matrix: Whether the noise is that of a banded matrix, of at most 16 bands (BandMF).

    Returns:
        The noise, for the ``form`` of a :class:`~tacita.CalibratedGaussian`, which finds its multiplier.

    Example:
        >>> noise = recommended_noise(100, 100, relation="add_or_remove_one", epsilon=1.0, delta=1e-5)
        >>> noise.bands, noise.power
        (2, 0.5)
        >>> noise = recommended_noise(
        ...     500, 100, relation="add_or_remove_one", epsilon=4.0, delta=1e-5, banded_matrix=True)
        >>> noise.bands, noise.power
        (4, 0.6)
    """
    _validate.count("queries", queries)
    _validate.count("batches", batches, at_least=3 if banded_matrix else 2)
    _validate.positive("epsilon", epsilon)
    _validate.delta("delta", delta)
    find = _sampled_noise if banded_matrix else _cyclic_noise
    return find(queries, batches, relation=check_relation(relation), epsilon=epsilon, delta=delta)[0]


@lru_cache(maxsize=64)
def _sampled_noise(
    queries: int, batches: int, *, relation: NeighboringRelation, epsilon: float, delta: float
) -> tuple[CorrelatedGaussian, float]:
    """Return a banded matrix for sampled turns, and the noise that it needs."""

    @cache
    def turns_std(bands: int) -> float:  # of a contribution that is no longer than its column
        def event_at(noise_std: float) -> Event:
            return gaussian_sum_event(PoissonLaw(bands / batches), (1.0,), (noise_std,), relation)

        return calibrate(event_at, relation, epsilon, delta, queries=-(-queries // bands))

    def noise_std(bands: int, power: float) -> float:
        return turns_std(bands) * float(np.linalg.norm(matrix_bands(bands, power)))

    def error(bands: int, power: float) -> float:
        return noise_std(bands, power) * left_error(Factorization(bands, power, True).weights(queries), queries)

    return _best_of(tuple(bands for bands in MATRIX_BANDS if bands < batches), error, noise_std, banded_matrix=True)


@lru_cache(maxsize=64)
def _cyclic_noise(
    queries: int, batches: int, *, relation: NeighboringRelation, epsilon: float, delta: float
) -> tuple[CorrelatedGaussian, float]:
    """Return the noise for whole groups, and about the size that it needs."""
    secret = CyclicLaw(batches, own_coin=True).secret_batches(relation)
    separation, most_draws, mu = min(batches, queries), -(-queries // batches), gaussian_mu(epsilon, delta)
    gain = 0.5 if secret > 1 else 1.0  # what secret groups leave of the noise, in the last estimate

    @cache
    def noise_std(bands: int, power: float) -> float:
        nonlocal gain
        known = moved(relation) * sensitivity(column(bands, power, queries), separation, most_draws) / mu
        if secret > 1:
            overlaps = overlaps_of(Factorization(bands, power), queries, separation, most_draws)
            estimated = partial(estimates, overlaps=overlaps, groups=secret, queries=queries, delta=delta)
            numbers = list(classes_of(overlaps, secret))
            thinned = numbers[: THINNED + 1] + numbers[THINNED + 1 :: THINNED]
            gain = min(1.0, _estimated_noise(estimated, thinned, gain * known, epsilon) / known)
        return gain * known

    def error(bands: int, power: float) -> float:
        return noise_std(bands, power) * left_error(coefficients(bands, power), queries)

    return _best_of(BANDS, error, noise_std)


def _best_of(
    numbers: tuple[int, ...],
    error: Callable[[int, float], float],
    noise_std: Callable[[int, float], float],
    *,
    banded_matrix: bool = False,
) -> tuple[CorrelatedGaussian, float]:
    """Return the fewest bands that no others are 5 % better than, with about the best power, and the noise's size."""
    powers = {bands: _least_power(partial(error, bands)) for bands in numbers}
    errors = {bands: error(bands, power) for bands, power in powers.items()}
    bands = next(bands for bands in numbers if WORTH * errors[bands] <= min(errors.values()))
    form = CorrelatedGaussian(noise_multiplier=1.0, bands=bands, power=powers[bands], banded_matrix=banded_matrix)
    return form, noise_std(bands, powers[bands])


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
