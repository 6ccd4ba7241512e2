"""What an estimator buys before it fits: scales from noisy histograms, and classes from stable counts.

The counts are private until noise is in them. A number that is not finite, and a label that is missing, is in no bin.
"""

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from scipy.stats import norm

from tacita.accounting import NoisySumEvent
from tacita.ledger import Session
from tacita.ledger.text_lines import names_in_words
from tacita.mechanisms import GaussianMechanism
from tacita.oracles.single_query import answer_once
from tacita.random import Randomness

LOWEST, HIGHEST = -40, 60  # powers of 2 between which a scale is looked for
BINS = HIGHEST - LOWEST + 1
SCALES_ALARM = 0.1  # chance that any empty bin of a purchase is taken for one that holds something
FEW = 1.5  # a bin beside mostly zeros has to be so many times as full, because it may be the only one
SEEN = 0.7  # share of the rows, a public number, that bins above the noise hold at least
WIDTHS_ALARM = 1e-3  # ... where one such bin is enough to make a width far too large


def buy_counts(session: Session, counts: Mapping[str, np.ndarray], randomness: Randomness) -> dict[str, np.ndarray]:
    """Release ``counts`` once, with the noise of the session's event, as whole numbers, and close the session."""
    exact = {name: torch.from_numpy(np.asarray(values, np.float64)) for name, values in counts.items()}
    mechanism = GaussianMechanism(noise_multiplier=1.0)
    released = answer_once(session, mechanism, {"counts": _noise_std(session)}, {"counts": exact}, randomness)
    return {name: np.rint(noisy.numpy()) for name, noisy in released["counts"].items()}


def buy_scales(
    session: Session, values: Mapping[str, np.ndarray], randomness: Randomness, quantile: float
) -> dict[str, float]:
    """Release one histogram for each of ``values``, and return a quantile of the absolute values of each.

    Warns of those that noise hides, as :func:`buy_widths` does.
    """
    counts, hidden = _buy_histograms(session, values, randomness, SCALES_ALARM)
    return {name: scale_of(noisy, hidden, quantile) for name, noisy in counts.items()}


def buy_widths(
    session: Session, values: Mapping[str, np.ndarray], randomness: Randomness, noise: float
) -> dict[str, float]:
    """Release one histogram for each of ``values``, and return the width to clamp each at (:func:`width_of`)."""
    counts, hidden = _buy_histograms(session, values, randomness, WIDTHS_ALARM)
    return {name: width_of(noisy, hidden, noise) for name, noisy in counts.items()}


def _buy_histograms(
    session: Session, values: Mapping[str, np.ndarray], randomness: Randomness, false_alarm: float
) -> tuple[dict[str, np.ndarray], float]:
    """Release the histograms, and return them with the count up to which a bin is taken for empty."""
    counts = buy_counts(session, {name: scale_counts(one) for name, one in values.items()}, randomness)
    hidden = _noise_std(session) * float(norm.isf(false_alarm / (BINS * len(counts))))
    unseen = [
        name
        for name, noisy in counts.items()
        if noisy[noisy > hidden].sum() < SEEN * len(values[name]) or not (noisy[1:] > FEW * hidden).any()
    ]
    if unseen:
        warnings.warn(
            f"entries of {names_in_words(unseen)} (columns by number) are mostly zeros, missing or hidden by the "
            "noise: what was bought says little of their size, and nothing that is stated beside a result knows it. "
            "Declare column_scale (data_norm, target_range), or give more rows or budget.",
            stacklevel=4,
        )
    return counts, hidden


def _noise_std(session: Session) -> float:
    event = session.event
    assert isinstance(event, NoisySumEvent), "counts are bought with noise of one standard deviation"
    return event.noise_std[0]


def scale_counts(values: np.ndarray) -> np.ndarray:
    """Count absolute values by power of 2, float64, shape (BINS,); zero is in the lowest bin.

    Example:
        >>> counts = scale_counts(np.array([1.0, -1.5, 2.0, np.nan]))
        >>> counts[-LOWEST], counts[1 - LOWEST], counts.sum()
        (np.float64(2.0), np.float64(1.0), np.float64(3.0))
    """
    finite = np.abs(values[np.isfinite(values)])
    exponents = np.clip(np.frexp(finite)[1] - 1, LOWEST, HIGHEST)
    exponents[finite == 0] = LOWEST
    return np.bincount(exponents - LOWEST, minlength=BINS).astype(np.float64)


def scale_of(counts: np.ndarray, hidden: float, quantile: float) -> float:
    """Return the upper edge of the bin that holds a quantile of noisy counts; 1 where the noise hides every bin.

    Noisy counts up to ``hidden`` are taken for empty: a bin far out that holds only noise may hold the quantile. Zeros
    that hold it say nothing of a scale: then it is the quantile of the others.

    Example:
        >>> counts = scale_counts(np.array([1.0, 1.2, 3.0, 900.0]))
        >>> scale_of(counts, 0.0, 0.5), scale_of(counts, 0.0, 0.75), scale_of(counts, 4.0, 0.5)
        (2.0, 4.0, 1.0)
        >>> scale_of(scale_counts(np.array([0.0] * 99 + [300.0])), 0.0, 0.95)
        512.0
    """
    seen = np.where(counts > hidden, counts, 0.0)
    if seen[0] >= quantile * seen.sum():  # mostly zeros: the scale is that of the others, among which noise weighs more
        seen = np.where(counts > FEW * hidden, counts, 0.0)
        seen[0] = 0.0
    if not seen.any():
        return 1.0
    place = int(np.searchsorted(np.cumsum(seen), quantile * seen.sum()))
    return 2.0 ** (place + LOWEST + 1)


def width_of(counts: np.ndarray, hidden: float, noise: float) -> float:
    """Return the edge R of a bin at which clamping and noise cost a sum the least; 1 where noise hides every bin.

    Noisy counts up to ``hidden`` are taken for empty. Clamping at R costs at most what lies above it: noisy counts
    times the distance from R to the upper edge of each bin. The noise of the sum is ``noise`` times R.

    Example:
        >>> counts = scale_counts(np.array([1.0] * 99 + [900.0]))
        >>> width_of(counts, 0.0, 0.5), width_of(counts, 0.0, 2.0)
        (1024.0, 2.0)
    """
    seen = np.where(counts > hidden, counts, 0.0)
    if not seen[1:].any():  # nothing but zeros was seen
        return 1.0
    edges = 2.0 ** np.arange(LOWEST + 1, HIGHEST + 2)
    above = np.maximum(edges[None, :] - edges[:, None], 0.0)
    return float(edges[np.argmin(noise * edges + above @ seen)])


def class_counts(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels that exist, sorted, and their counts; a missing label (NaN) is left out. Private."""
    present = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    return np.unique(present, return_counts=True)


def class_numbers(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return each label's place in ``classes``, float64; NaN for a label that is not among them.

    Example:
        >>> class_numbers(np.array(["b", "c", "a"]), np.array(["a", "b"]))
        array([ 1., nan,  0.])
    """
    numbers = np.full(len(labels), np.nan)
    for number, label in enumerate(classes):
        numbers[labels == label] = number
    return numbers
