r"""The score: right or wrong, or squared errors, counted on rows held out by coin.

Place: encoding, prediction -> [tables.score] -> purchases. A held-out row adds 1 to one bin of one histogram
(classification), or of two (regression: the model's and the baseline's squared error, in standardised units, in dyadic
bins up to 9): sensitivity 1, or :math:`\sqrt 2`. The baseline predicts the bought mean.
"""

import math

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.encoding import Encoder

LARGEST_ERROR = 9.0  # squared errors are clipped there: three standard deviations of the target
ERROR_BINS = 12  # halving from the largest down; the lowest bin reaches to 0


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was bought about the held-out rows: public.

    Attributes:
        rows: Noisy number of held-out rows, >= 1.
        value: Accuracy in [0, 1], or R2, at most 1.
        error: Standard deviation that the noise alone puts on ``value``, about.
    """

    rows: float
    value: float
    error: float


def histograms(encoder: Encoder) -> int:
    """How many histograms the score of this task is."""
    return 2 if encoder.task == "regression" else 1


def score_counts(encoder: Encoder, predicted: np.ndarray, target: np.ndarray, valid: np.ndarray) -> Tensor:
    """Exact counts, float64: (1, 2) wrong and right, or (2, 12) squared errors of model and baseline. Private."""
    predicted, target = np.asarray(predicted)[valid], np.asarray(target)[valid]
    if encoder.task == "classification":
        counts = [np.bincount((predicted == target).astype(np.int64), minlength=2)]
    else:
        errors = ((predicted - target) ** 2, target**2)
        counts = [np.bincount(_error_bins(squared), minlength=ERROR_BINS) for squared in errors]
    return torch.from_numpy(np.stack(counts).astype(np.float64))


def _error_edges() -> np.ndarray:
    """Upper edges of the bins of squared errors, increasing, shape (ERROR_BINS,)."""
    return LARGEST_ERROR / np.exp2(np.arange(ERROR_BINS - 1, -1, -1))


def _error_bins(squared: np.ndarray) -> np.ndarray:
    finite = np.where(np.isfinite(squared), squared, LARGEST_ERROR)
    return np.searchsorted(_error_edges()[:-1], finite, side="left")


def read_score(encoder: Encoder, counts: np.ndarray, noise_std: float) -> Score:
    """Accuracy or R2 from the noisy counts."""
    rows = max(float(counts.sum(axis=1).mean()), 1.0)
    if encoder.task == "classification":
        share = min(max(float(counts[0, 1]) / rows, 0.0), 1.0)
        return Score(rows=rows, value=share, error=noise_std * math.hypot(share, 1 - share) / rows)
    edges = _error_edges()
    middles = (edges + np.concatenate([[0.0], edges[:-1]])) / 2
    model, baseline = np.where(counts >= noise_std, counts, 0.0) @ middles  # bins at the noise's own height are cut
    baseline = max(float(baseline), float(middles[0]))
    noise = noise_std * float(np.linalg.norm(middles)) / baseline
    return Score(rows=rows, value=1 - float(model) / baseline, error=noise)
