"""Purchases: exact counts go in, noisy ones come out; all that is read from them is post-processing.

Place: survey, refinement, budget -> [tables.purchases] -> recipe, statement. Each ``buy_*`` is one Gaussian query: the
caller has registered its event, writes the ledger, and hands in the standard normals; here the counts get their noise,
are rounded to integers before anything looks at them, and texts below the threshold are forgotten.
"""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from tacita.tables.encoding import Encoder
from tacita.tables.refinement import read_refinement, refinement_counts
from tacita.tables.schema import CategorySpec, DateSpec, NumberSpec, Schema
from tacita.tables.score import Score, read_score, score_counts
from tacita.tables.survey import Kind, Survey, SurveyCounts, read_survey, survey_counts
from tacita.tables.table import Table

Normals = Callable[[str, int], np.ndarray]  # label, count -> so many standard normals, float64; a label is used once


def buy_survey(
    table: Table, schema: Schema, columns: Sequence[str], *, noise_std: float, threshold: float, normals: Normals
) -> Survey:
    """The survey of ``columns`` (the target included), bought from the valid rows of ``table``."""
    counts = survey_counts(table, schema, columns)
    return release_survey(counts, schema, noise_std=noise_std, threshold=threshold, normals=normals)


def release_survey(
    counts: SurveyCounts, schema: Schema, *, noise_std: float, threshold: float, normals: Normals
) -> Survey:
    """The line of the survey: noise on every count, texts below ``threshold`` forgotten."""
    noisy = {label: noisy_counts(values, noise_std, label, normals) for label, values in counts.tensors().items()}
    texts = [
        {name: float(count) for name, count in zip(names, noisy[f"texts {i}"], strict=True) if count >= threshold}
        for i, names in enumerate(counts.names)
    ]
    return read_survey(
        counts.columns,
        bins=noisy["bins"],
        texts=texts,
        noise_std=noise_std,
        threshold=threshold,
        kinds=forced_kinds(schema),
    )


def buy_refinement(table: Table, schema: Schema, survey: Survey, *, noise_std: float, normals: Normals) -> Survey:
    """The survey with the fine bins of its numeric columns."""
    counts = refinement_counts(table, schema, survey)
    return read_refinement(survey, noisy_counts(counts, noise_std, "fine bins", normals), noise_std)


def noisy_counts(counts: Tensor, noise_std: float, label: str, normals: Normals) -> np.ndarray:
    """``counts`` plus noise, rounded to integers: floating-point noise on integers would show them in its low bits."""
    noise = np.asarray(normals(label, counts.numel()), dtype=np.float64).reshape(counts.shape)
    return np.rint(counts.numpy() + noise_std * noise)


def forced_kinds(schema: Schema) -> dict[str, Kind]:
    """What the schema says about a column's type without bounds or values; the survey then buys the rest."""
    kinds: dict[str, Kind] = {}
    for name, spec in schema.columns.items():
        if isinstance(spec, (NumberSpec, DateSpec)):
            kinds[name] = "number"
        elif isinstance(spec, CategorySpec):
            kinds[name] = "category"
    if schema.target is not None and schema.target.task is not None:
        kinds[schema.target.column] = "number" if schema.target.task == "regression" else "category"
    return kinds


def buy_score(
    encoder: Encoder,
    predicted: np.ndarray,
    target: np.ndarray,
    valid: np.ndarray,
    *,
    noise_std: float,
    normals: Normals,
) -> Score:
    """The score of ``predicted`` (class numbers, or standardised values) on held-out rows, those of ``valid``."""
    counts = score_counts(encoder, predicted, target, valid)
    return read_score(encoder, noisy_counts(counts, noise_std, "score", normals), noise_std)
