"""Purchases without a ledger, for tests of the tables room alone: the noise is the caller's.

In the library the noise is the line's (``tacita.pipeline.purchases``).
"""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from tacita.tables.encoding import Encoder
from tacita.tables.purchases import survey_of
from tacita.tables.refinement import read_refinement, refinement_counts
from tacita.tables.schema import Schema
from tacita.tables.score import Score, read_score, score_counts
from tacita.tables.survey import Survey, survey_counts
from tacita.tables.table import Table

Normals = Callable[[str, int], np.ndarray]  # label, count -> so many standard normals, float64; a label is used once


def buy_survey(
    table: Table, schema: Schema, columns: Sequence[str], *, noise_std: float, threshold: float, normals: Normals
) -> Survey:
    counts = survey_counts(table, schema, columns)
    noisy = {label: noisy_counts(values, noise_std, label, normals) for label, values in counts.tensors().items()}
    return survey_of(counts, noisy, schema, noise_std=noise_std, threshold=threshold)


def buy_refinement(table: Table, schema: Schema, survey: Survey, *, noise_std: float, normals: Normals) -> Survey:
    counts = refinement_counts(table, schema, survey)
    return read_refinement(survey, noisy_counts(counts, noise_std, "fine bins", normals), noise_std)


def buy_score(
    encoder: Encoder,
    predicted: np.ndarray,
    target: np.ndarray,
    valid: np.ndarray,
    *,
    noise_std: float,
    normals: Normals,
) -> Score:
    counts = score_counts(encoder, predicted, target, valid)
    return read_score(encoder, noisy_counts(counts, noise_std, "score", normals), noise_std)


def noisy_counts(counts: Tensor, noise_std: float, label: str, normals: Normals) -> np.ndarray:
    noise = np.asarray(normals(label, counts.numel()), dtype=np.float64).reshape(counts.shape)
    return np.rint(counts.numpy() + noise_std * noise)
