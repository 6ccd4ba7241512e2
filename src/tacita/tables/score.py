r"""The score: counts over rows held out by coin, and intervals that cover sampling and noise.

A held-out row with a label adds at most 1 to one bin of each of two histograms, which are a block each:

* classification: wrong or right; and its class by the model's log odds (two classes) or by wrong and right (more);
* regression: the model's squared error, in standardised units, in dyadic bins up to 9 (4 where rows are few); and the
  target itself.

A row whose label is not among the model's classes is wrong. A target that is not a number has the largest error.
Squared errors are taken from targets as they are, not clipped to the bought bounds. Proof of the sensitivity and of the
intervals: docs/derivations/tables.md.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.encoding import Encoder
from tacita.tables.intervals import ScoreInterval, area_under_curve, bin_means, mean_recall, ratio, share

LARGEST_ERROR = 9.0  # bound on squared errors: three standard deviations of the target
SMALLER_ERROR = 4.0  # ... two, where noise on the sum of squared targets is more than NOISY of the held-out rows
NOISY = 0.17
ERROR_BINS = 12  # each half as wide as the next; the lowest bin reaches to 0
TARGET_BINS = 16  # of the standardised target: dyadic bins of its square, by sign
ODDS = (-4.0, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5, 4.0)  # inner edges of the bins of log odds
SCORES, CLASSES = "score", "classes"  # the blocks


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about the held-out rows. Public.

    Attributes:
        rows: Noisy number of held-out rows with a label, >= 0.
        value: Accuracy in [0, 1], or R2, at most 1, with its interval.
        balanced: Mean recall of the model's classes; ``None`` for a regression, or if a class has too few rows.
        auc: Area under the curve; ``None`` unless there are two classes with enough rows.
        sizes: Noisy number of held-out rows of each class; empty for a regression.
    """

    rows: float
    value: ScoreInterval
    balanced: ScoreInterval | None = None
    auc: ScoreInterval | None = None
    sizes: tuple[float, ...] = ()


def score_counts(
    encoder: Encoder,
    outputs: np.ndarray,  # (rows, outputs): the outputs of the model
    target: np.ndarray,  # (rows,): class numbers, or standardised targets as they are, not clipped
    known: np.ndarray,  # (rows,) bool: the target is one of the classes, or a number
    labelled: np.ndarray,  # (rows,) bool: the row has a label, known or not, and is scored
    *,
    largest: float = LARGEST_ERROR,
) -> dict[str, Tensor]:
    """Count exactly, float64, by block. Private. ``largest`` bounds the squared errors and targets of a regression."""
    outputs, target, known = outputs[labelled], target[labelled], known[labelled]
    if encoder.task == "classification":
        counts = _class_counts(outputs, target, known, max(len(encoder.classes), 1))
    else:
        counts = _number_counts(outputs[:, 0], target, known, largest)
    return {name: torch.from_numpy(values.astype(np.float64)) for name, values in counts.items()}


def _class_counts(outputs: np.ndarray, target: np.ndarray, known: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    right = known & (outputs.argmax(1) == target)
    if classes == 2:
        with np.errstate(invalid="ignore"):
            place, width = np.searchsorted(ODDS, outputs[:, 1] - outputs[:, 0], side="left"), len(ODDS) + 1
    else:
        place, width = right.astype(np.int64), 2
    by_class = np.bincount(target[known] * width + place[known], minlength=classes * width)
    return {SCORES: np.bincount(right, minlength=2), CLASSES: by_class.reshape(classes, width)}


def _number_counts(
    predicted: np.ndarray, target: np.ndarray, known: np.ndarray, largest: float
) -> dict[str, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        squared = np.where(known, (predicted - target) ** 2, largest)
        place = np.searchsorted(_target_edges(largest)[1:-1], target[known], side="right")
    return {
        SCORES: np.bincount(_error_bins(squared, largest), minlength=ERROR_BINS),
        CLASSES: np.bincount(place, minlength=TARGET_BINS),
    }


def _target_edges(largest: float) -> np.ndarray:
    half = np.sqrt(largest / np.exp2(np.arange(TARGET_BINS // 2)))
    return np.concatenate([-half, [0.0], half[::-1]])


def _error_edges(largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper edges of the bins of squared errors, increasing, each of shape (ERROR_BINS,)."""
    upper = largest / np.exp2(np.arange(ERROR_BINS - 1, -1, -1))
    return np.concatenate([[0.0], upper[:-1]]), upper


def _error_bins(squared: np.ndarray, largest: float) -> np.ndarray:
    finite = np.where(np.isfinite(squared), squared, largest)
    return np.searchsorted(_error_edges(largest)[1][:-1], finite, side="left")


def largest_error(noise_std: Mapping[str, float], rows: float) -> float:
    """Return the bound on squared errors and targets of a regression, by a public rule.

    A target's bin counts up to the bound, so that noise on the sum of squares grows with it. Few rows drown in it; the
    bound is smaller for them.

    Args:
        noise_std: Standard deviation of the noise on each count, by block.
        rows: The number of held-out rows that is expected, from a public number of rows.

    Example:
        >>> largest_error({"classes": 9.5}, 400), largest_error({"classes": 9.5}, 4000)
        (4.0, 9.0)
    """
    squares = _target_edges(LARGEST_ERROR) ** 2
    noise = noise_std[CLASSES] * float(np.linalg.norm(squares))
    return LARGEST_ERROR if noise <= NOISY * rows else SMALLER_ERROR


def read_score(
    encoder: Encoder, counts: Mapping[str, np.ndarray], noise_std: Mapping[str, float], largest: float = LARGEST_ERROR
) -> Score:
    """Read accuracy or R2 from the noisy counts, with intervals of at least 95 %. ``largest`` is that of the counts."""
    scores, classes = counts[SCORES], counts[CLASSES]
    rows = max(float(scores.sum()), 0.0)
    if encoder.task == "classification":
        return Score(
            rows=rows,
            value=share(float(scores[1]), float(scores[0]), noise_std[SCORES]),
            balanced=mean_recall(*_right_and_all(classes), noise_std[CLASSES]),
            auc=area_under_curve(classes[0], classes[1], noise_std[CLASSES]) if len(classes) == 2 else None,
            sizes=tuple(float(size) for size in classes.sum(axis=1)),
        )
    lower, upper = _error_edges(largest)
    squares = bin_means(scores, lower, upper, (1,), noise_std[SCORES])[0]
    value = ratio(
        scores,
        squares,
        classes,
        _target_means(classes, noise_std[CLASSES], largest),
        errors_noise=noise_std[SCORES],
        targets_noise=noise_std[CLASSES],
        largest=largest,
    )
    return Score(rows=rows, value=value)


def _target_means(counts: np.ndarray, noise_std: float, largest: float) -> np.ndarray:
    """Return mean and mean square of each bin of targets, shape (2, TARGET_BINS); each sign is read by itself."""
    half = TARGET_BINS // 2
    edges = _target_edges(largest)[half:]
    below, above = (
        bin_means(side, edges[:-1], edges[1:], (1, 2), noise_std) for side in (counts[:half][::-1], counts[half:])
    )
    return np.concatenate([below[:, ::-1] * [[-1], [1]], above], axis=1)


def _right_and_all(classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the right rows and all rows of each class, and how many counts are in the sum of right or wrong ones."""
    if len(classes) != 2:
        return classes[:, 1], classes.sum(axis=1), 1
    half = (len(ODDS) + 1) // 2  # log odds at or below 0 predict the first class
    return np.array([classes[0, :half].sum(), classes[1, half:].sum()]), classes.sum(axis=1), half
