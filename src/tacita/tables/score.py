r"""The score: right or wrong, or squared errors, counted on rows held out by coin.

Place: encoding, prediction -> [tables.score] -> purchases. A held-out row adds 1 to one bin of one histogram
(classification), or of two (regression: the model's and the baseline's squared error, in standardised units, in dyadic
bins up to 16): sensitivity 1, or :math:`\sqrt 2`. The baseline predicts the bought mean.
"""

import math

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.tables.encoding import Encoder

ERROR_LOW, ERROR_HIGH = -8, 4  # squared errors: below 2^-8 one bin, [2^e, 2^(e+1)) up to 2^4, where they are clipped


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
    """Exact counts, float64: (1, 2) wrong and right, or (2, 13) squared errors of model and baseline. Private."""
    predicted, target = np.asarray(predicted)[valid], np.asarray(target)[valid]
    if encoder.task == "classification":
        counts = [np.bincount((predicted == target).astype(np.int64), minlength=2)]
    else:
        errors = ((predicted - target) ** 2, target**2)
        bins = ERROR_HIGH - ERROR_LOW + 1
        counts = [np.bincount(_error_bins(squared), minlength=bins) for squared in errors]
    return torch.from_numpy(np.stack(counts).astype(np.float64))


def _error_bins(squared: np.ndarray) -> np.ndarray:
    largest = 2.0**ERROR_HIGH
    finite = np.where(np.isfinite(squared), np.minimum(squared, largest), largest)
    exponent = np.frexp(finite)[1].astype(np.int64) - 1
    exponent = np.where(finite == 0, ERROR_LOW - 1, np.clip(exponent, ERROR_LOW - 1, ERROR_HIGH - 1))
    return exponent - (ERROR_LOW - 1)


def read_score(encoder: Encoder, counts: np.ndarray, noise_std: float) -> Score:
    """Accuracy or R2 from the noisy counts."""
    rows = max(float(counts.sum(axis=1).mean()), 1.0)
    if encoder.task == "classification":
        share = min(max(float(counts[0, 1]) / rows, 0.0), 1.0)
        return Score(rows=rows, value=share, error=noise_std * math.hypot(share, 1 - share) / rows)
    exponents = np.arange(ERROR_LOW - 1, ERROR_HIGH)
    middles = np.where(exponents < ERROR_LOW, 2.0**ERROR_LOW / 2, 1.5 * 2.0**exponents)
    model, baseline = np.where(counts >= 2 * noise_std, counts, 0.0) @ middles  # noise of empty bins is cut at 2 s
    baseline = max(float(baseline), float(middles[0]))
    ratio = float(model) / baseline
    return Score(rows=rows, value=1 - ratio, error=noise_std * float(np.linalg.norm(middles)) / baseline)
