"""What is read from bought counts: post-processing of noisy integers.

Place: survey -> [tables.purchases] -> recipe, pipeline. The noise is added where the ledger is written; here texts
below the threshold are forgotten, and the rest becomes a survey.
"""

from collections.abc import Mapping

import numpy as np

from tacita.tables.schema import CategorySpec, DateSpec, NumberSpec, Schema
from tacita.tables.survey import Kind, Survey, SurveyCounts, read_survey


def survey_of(
    counts: SurveyCounts, noisy: Mapping[str, np.ndarray], schema: Schema, *, noise_std: float, threshold: float
) -> Survey:
    """The survey that noisy counts show.

    Args:
        counts: What was counted. Private, but for its columns; only the names of texts whose *noisy* count reaches the
            threshold are read from it (stable counts).
        noisy: The released counts, whole numbers, by the labels of ``counts.tensors()``.
        schema: Says which kinds are declared.
        noise_std: Noise on each count.
        threshold: The noisy count from which a text is released.
    """
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
