"""The score of a model: bought on rows held out by coin, or exact where somebody declared it outside the guarantee.

Place: training, tables.score -> [pipeline.score] -> report.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita.accounting import Session
from tacita.pipeline.models import outputs
from tacita.pipeline.purchases import buy
from tacita.random import Randomness
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.score import read_score, score_counts


def measure(encoder: Encoder) -> str:
    """The name of the score."""
    return "accuracy" if encoder.task == "classification" else "R2"


def exact_counts(model: nn.Module, encoder: Encoder, rows: Encoded, *, alone: bool = False) -> Tensor:
    """Right and wrong, or squared errors: exact, so private until :func:`bought` has added noise.

    ``alone``: each row is predicted on its own, so that it shows in no other row's count.
    """
    return score_counts(encoder, predictions(model, encoder, rows, alone=alone), _target(rows), rows.valid.numpy())


def bought(
    encoder: Encoder, counts: Tensor, session: Session, noise_std: float, randomness: Randomness
) -> dict[str, Any]:
    """The score on held-out rows, with noise, as the statement has it."""
    score = read_score(encoder, buy(session, {"score": counts}, noise_std, randomness)["score"], noise_std)
    return {
        "measure": measure(encoder),
        "value": score.value,
        "standard_error_of_noise": score.error,
        "rows": score.rows,
        "private": True,
        "how": "bought in the same ledger, on rows held out by coin",
        "noise_std": noise_std,
    }


def exact(model: nn.Module, encoder: Encoder, rows: Encoded, how: str) -> dict[str, Any]:
    """The score without noise: outside the guarantee, and the statement says so."""
    return {
        "measure": measure(encoder),
        "value": exact_value(model, encoder, rows),
        "private": False,
        "how": how,
    }


def exact_value(model: nn.Module, encoder: Encoder, rows: Encoded) -> float | None:
    """Accuracy, or R2 in the target's clipped units; ``None`` without a row that counts."""
    valid = rows.valid.numpy()
    predicted, target = predictions(model, encoder, rows)[valid], _target(rows)[valid]
    if not len(target):
        return None
    if encoder.task == "classification":
        return float(np.mean(predicted == target))
    spread = float(np.square(target - target.mean()).sum())
    return 1 - float(np.square(predicted - target).sum()) / spread if spread > 0 else None


def predictions(model: nn.Module, encoder: Encoder, rows: Encoded, *, alone: bool = False) -> np.ndarray:
    """Class numbers, or standardised values."""
    features = model_input(rows.features)
    found = outputs(model, features, rows=1) if alone else outputs(model, features)
    return (found.argmax(1) if encoder.task == "classification" else found.squeeze(-1)).numpy()


def model_input(features: Tensor) -> Tensor:
    """Features as the model takes them: a column of zeros if there is none."""
    return features if features.shape[1] else torch.zeros(len(features), 1)


def words_for(path: str) -> str:
    """How a score on a public file was obtained."""
    return f"computed exactly on {Path(path).name}, which the user declares to be public"


def _target(rows: Encoded) -> np.ndarray:
    assert rows.target is not None
    return rows.target.numpy()
