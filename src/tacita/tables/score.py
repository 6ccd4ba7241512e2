r"""The score: counts over rows held out by coin, and intervals that cover sampling and noise.

A held-out row with a label adds at most 1 to one bin of each of two histograms, which are a block each:

* classification: wrong or right; and its class by the model's log odds (two classes) or by wrong and right (more);
* regression: the model's squared error, in standardised units, up to 9 (3 where rows are few); and the target itself,
  or on which side of the bounds it lies (where rows are few, no bin tells). Both are rounded at random to a
  neighbouring edge, so that the means of what is counted are exact.

A row whose label is not among the model's classes is wrong. A target that is not a number has the largest error.
Squared errors are taken from targets as they are, not clipped to the bought bounds. Proof of the sensitivity and of
the intervals: docs/derivations/tables.md.

*Rounding at random.* Between two edges :math:`a \le x \le b` a value is rounded up with chance :math:`t = (x - a) /
(b - a)`, so that the mean of what it is rounded to is x. No rounding to *values* keeps the mean of the squares, too:
it could not be random. So two coins are tossed, and a row is counted by the number of those that came up, which
stands for a pair of numbers:

.. math:: (a, a^2), \quad \left(\tfrac{a + b}{2}, a b\right), \quad (b, b^2)
   \quad\text{with chances}\quad (1 - t)^2,\; 2 t (1 - t),\; t^2,

whose mean is :math:`(x, x^2)`: two independent roundings :math:`y, z` of x have :math:`E (y + z)/2 = x` and
:math:`E y z = x^2`. Proof and use: docs/derivations/tables.md, section 3, *R2*.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.encoding import Encoder
from tacita.tables.intervals import ScoreInterval, area_under_curve, mean_recall, mean_root, ratio, share

LARGEST_ERROR = 9.0  # bound on squared errors: three standard deviations of the target
SMALLER_ERROR = 3.0  # ... 1.7 of them, where the noise on the sum of squared targets is large
NOISY = 0.17  # of the held-out rows: what is more is large
RATIO = 3.0  # of two neighbouring edges: between them values are rounded at random
ERROR_BINS = 12  # squared errors that are counted: 0, and the bound over powers of the ratio
TARGET_BINS = 13  # standardised targets: 0, both bounds over powers of the ratio, and one between each two
COINS = 3  # of a row: one rounds its squared error, two its target
ODDS = (-4.0, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5, 4.0)  # inner edges of the bins of log odds, from their centre
SCORES, CLASSES = "score", "classes"  # the blocks


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about the held-out rows. Public.

    Attributes:
        rows: Noisy number of held-out rows with a label, >= 0.
        value: Accuracy in [0, 1], or R2, at most 1, with its interval.
        balanced: Mean recall of the model's classes; ``None`` for a regression, or if a class has too few rows.
        auc: Area under the curve; ``None`` unless there are two classes with enough rows.
        sizes: Noisy number of held-out rows of each class; empty for a regression.
        absolute: Mean absolute error, in standardised units; ``None`` for a classification, and if no rows are seen.
        outside: Share of the targets outside the bounds of R2, and two standard deviations of its noise; ``None`` for a
            classification, and if the rows are few.
    """

    rows: float
    value: ScoreInterval
    balanced: ScoreInterval | None = None
    auc: ScoreInterval | None = None
    sizes: tuple[float, ...] = ()
    absolute: ScoreInterval | None = None
    outside: tuple[float, float] | None = None


def score_counts(
    encoder: Encoder,
    outputs: np.ndarray,  # (rows, outputs): the outputs of the model
    target: np.ndarray,  # (rows,): class numbers, or standardised targets as they are, not clipped
    known: np.ndarray,  # (rows,) bool: the target is one of the classes, or a number
    labelled: np.ndarray,  # (rows,) bool: the row has a label, known or not, and is scored
    *,
    coins: np.ndarray,  # (COINS, rows), uniform in [0, 1): secret, and used for nothing else
    largest: float = LARGEST_ERROR,
    centre: float = 0.0,
) -> dict[str, Tensor]:
    """Count exactly, float64, by block. Private.

    ``largest`` bounds the squared errors and targets of a regression; ``centre`` is that of the bins of log odds.
    """
    outputs, target, known = outputs[labelled], target[labelled], known[labelled]
    if encoder.task == "classification":
        counts = _class_counts(outputs, target, known, max(len(encoder.classes), 1), odds_edges(centre))
    else:
        counts = _number_counts(outputs[:, 0], target, known, coins[:, labelled], largest)
    return {name: torch.from_numpy(values.astype(np.float64)) for name, values in counts.items()}


def odds_edges(centre: float) -> np.ndarray:
    """Return the inner edges of the bins of log odds around ``centre``, increasing.

    The nearest one to 0, where the prediction changes, is moved there.

    Example:
        >>> odds_edges(-4.0)
        array([-8.  , -6.5 , -5.5 , -4.75, -4.  , -3.25, -2.5 , -1.5 ,  0.  ])
    """
    edges = np.array(ODDS) + centre
    edges[np.abs(edges).argmin()] = 0.0
    return edges


def _class_counts(
    outputs: np.ndarray, target: np.ndarray, known: np.ndarray, classes: int, edges: np.ndarray
) -> dict[str, np.ndarray]:
    right = known & (outputs.argmax(1) == target)
    if classes == 2:
        with np.errstate(invalid="ignore"):
            place, width = np.searchsorted(edges, outputs[:, 1] - outputs[:, 0], side="left"), len(edges) + 1
    else:
        place, width = right.astype(np.int64), 2
    by_class = np.bincount(target[known] * width + place[known], minlength=classes * width)
    return {SCORES: np.bincount(right, minlength=2), CLASSES: by_class.reshape(classes, width)}


def _number_counts(
    predicted: np.ndarray, target: np.ndarray, known: np.ndarray, coins: np.ndarray, largest: float
) -> dict[str, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        squared = np.where(known, (predicted - target) ** 2, largest)
    squared = np.where(np.isfinite(squared), squared, largest)
    target = target[known]
    place, marks = rounded(target, edges := _target_edges(largest), coins[1:, known]), TARGET_BINS
    if _tells_outside(largest):
        place, marks = place + (target > edges[-1]) + (target >= edges[0]), TARGET_BINS + 2
    places = rounded(squared, _error_edges(largest), coins[:1]), place
    return {
        SCORES: np.bincount(places[0], minlength=ERROR_BINS),
        CLASSES: np.bincount(places[1], minlength=marks),
    }


def _error_edges(largest: float) -> np.ndarray:
    """Return the squared errors that are counted, increasing, shape (ERROR_BINS,)."""
    return np.concatenate([[0.0], largest / RATIO ** np.arange(ERROR_BINS - 2, -1, -1)])


def _target_edges(largest: float) -> np.ndarray:
    """Return the standardised targets between which targets are rounded, increasing; half of the bins lie between."""
    half = math.sqrt(largest) / RATIO ** np.arange(TARGET_BINS // 4)
    return np.concatenate([-half, [0.0], half[::-1]])


def _target_pairs(largest: float) -> np.ndarray:
    """Return the target and its square that each bin stands for; the outer bins are those of targets beyond an edge."""
    found = pairs(_target_edges(largest))
    return np.pad(found, ((0, 0), (1, 1)), mode="edge") if _tells_outside(largest) else found


def _tells_outside(largest: float) -> bool:
    """Whether targets beyond the bounds have bins of their own: the noise of two more is little among many rows."""
    return largest == LARGEST_ERROR


def largest_error(noise_std: Mapping[str, float], rows: float) -> float:
    """Return the bound on squared errors and targets of a regression, by a public rule.

    A target's bin counts up to the bound, so that noise on the sum of squares grows with it. Few rows drown in it; the
    bound is smaller for them.

    Args:
        noise_std: Standard deviation of the noise on each count, by block.
        rows: The number of held-out rows that is expected, from a public number of rows.

    Example:
        >>> largest_error({"classes": 9.5}, 400), largest_error({"classes": 9.5}, 4000)
        (3.0, 9.0)
    """
    noise = noise_std[CLASSES] * float(np.linalg.norm(pairs(_target_edges(LARGEST_ERROR))[1]))
    return LARGEST_ERROR if noise <= NOISY * rows else SMALLER_ERROR


def read_score(
    encoder: Encoder,
    counts: Mapping[str, np.ndarray],
    noise_std: Mapping[str, float],
    largest: float = LARGEST_ERROR,
    centre: float = 0.0,
) -> Score:
    """Read accuracy or R2 from the noisy counts, with intervals of at least 95 %.

    ``largest`` and ``centre`` are those of the counts.
    """
    scores, classes, edges = counts[SCORES], counts[CLASSES], odds_edges(centre)
    rows = max(float(scores.sum()), 0.0)
    if encoder.task == "classification":
        return Score(
            rows=rows,
            value=share(float(scores[1]), float(scores[0]), noise_std[SCORES]),
            balanced=mean_recall(*_right_and_all(classes, edges), noise_std[CLASSES]),
            auc=area_under_curve(classes[0], classes[1], edges, noise_std[CLASSES]) if len(classes) == 2 else None,
            sizes=tuple(float(size) for size in classes.sum(axis=1)),
        )
    value = ratio(
        scores,
        _error_edges(largest),
        classes,
        _target_pairs(largest),
        errors_noise=noise_std[SCORES],
        targets_noise=noise_std[CLASSES],
    )
    absolute = mean_root(scores, _error_edges(largest), noise_std[SCORES])
    if value.value is None or not _tells_outside(largest):
        return Score(rows=rows, value=value, absolute=absolute)
    total, noise = max(float(classes.sum()), 1.0), 2 * math.sqrt(2) * noise_std[CLASSES]
    outside = min(max(float(classes[0] + classes[-1]) / total, 0.0), 1.0)
    return Score(rows=rows, value=value, absolute=absolute, outside=(outside, noise / total))


def _right_and_all(classes: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return right rows and all rows of each class, and of how many counts right and wrong ones are the sum, (2, k)."""
    if len(classes) != 2:
        return classes[:, 1], classes.sum(axis=1), np.ones((2, len(classes)))
    first = int(np.searchsorted(edges, 0.0)) + 1  # bins: log odds at or below 0 predict the first class
    parts = np.array([[first, len(edges) + 1 - first], [len(edges) + 1 - first, first]])
    return np.array([classes[0, :first].sum(), classes[1, first:].sum()]), classes.sum(axis=1), parts


def rounded(
    values: np.ndarray,  # (rows,)
    edges: np.ndarray,  # increasing
    coins: np.ndarray,  # (coins, rows), uniform in [0, 1)
) -> np.ndarray:
    """Return for each value coins x (the number of its lower edge) + (how many coins round it up), int64.

    Values outside the edges count as the nearest one.

    Example:
        >>> rounded(np.array([0.0, 2.5, 9.0]), np.array([0.0, 1.0, 4.0]), np.array([[0.4, 0.4, 0.4], [0.6, 0.6, 0.6]]))
        array([0, 3, 4])
    """
    values = np.clip(values, edges[0], edges[-1])
    lower = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    chance = (values - edges[lower]) / (edges[lower + 1] - edges[lower])
    return len(coins) * lower + (coins < chance).sum(axis=0)


def pairs(edges: np.ndarray) -> np.ndarray:
    """Return the value and the square that each number of :func:`rounded` with two coins stands for, (2, numbers).

    Example:
        >>> pairs(np.array([0.0, 1.0, 4.0]))
        array([[ 0. ,  0.5,  1. ,  2.5,  4. ],
               [ 0. ,  0. ,  1. ,  4. , 16. ]])
    """
    numbers = np.arange(2 * len(edges) - 1)
    lower, upper = edges[numbers // 2], edges[(numbers + 1) // 2]
    return np.stack([(lower + upper) / 2, lower * upper])
