"""Read released counts: noisy integers become a survey, and texts below the threshold are forgotten.

This is post-processing; the noise is added where the ledger is written.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from tacita.tables.column_specs import CategorySpec, DateSpec, NumberSpec
from tacita.tables.lean_survey import read_lean, read_scales, window
from tacita.tables.schema import Schema
from tacita.tables.survey import Facts, Kind, Survey, SurveyCounts, read_survey
from tacita.tables.task import Task


def survey_of(
    counts: SurveyCounts,
    noisy: Mapping[str, np.ndarray],
    schema: Schema,
    *,
    noise_std: float,
    threshold: float,
    lean: bool = False,
) -> Survey:
    """Return the survey that noisy counts show.

    Args:
        counts: The exact counts. Private, except for the names of the columns. Nothing is read from them but the names
            of those texts whose *noisy* count reaches the threshold (stable counts).
        noisy: The released counts, whole numbers, by the labels of ``counts.tensors()``.
        schema: Declares the kinds of some columns.
        noise_std: Standard deviation of the noise on each count.
        threshold: The noisy count from which a text is released.
        lean: Whether each cell was counted in one bin.
    """
    texts = [
        {name: float(count) for name, count in zip(names, noisy[f"texts {i}"], strict=True) if count >= threshold}
        for i, names in enumerate(counts.names)
    ]
    kinds = forced_kinds(schema)
    if lean:
        columns = read_lean(counts.columns, bins=noisy["bins"], texts=texts, noise_std=noise_std, kinds=kinds)
        return Survey(rows=0.0, columns=columns, noise_std=noise_std, threshold=threshold, lean=True)
    return read_survey(
        counts.columns, bins=noisy["bins"], texts=texts, noise_std=noise_std, threshold=threshold, kinds=kinds
    )


def with_scales(
    survey: Survey, first: np.ndarray, second: np.ndarray, noise: tuple[float, float], schema: Schema
) -> Survey:
    """Return a lean survey with what its second query showed; ``first`` are the bins of the first one."""
    columns = read_scales(survey.columns[: len(first)], first, second, noise, forced_kinds(schema))
    together = noise[0] * noise[1] / (noise[0] ** 2 + noise[1] ** 2) ** 0.5
    return msgspec.structs.replace(survey, columns=(*columns, *survey.columns[len(first) :]), noise_std=together)


def target_facts(
    counts: SurveyCounts, noisy: Mapping[str, np.ndarray], task: Task, *, noise_std: float, threshold: float
) -> Facts:
    """Return what was bought about the target: its labels, or the bins of its numbers."""
    (name,) = counts.columns
    if task == "regression":
        bins = window(noisy["target bins"][0][2:], noise_std)
        return Facts(column=name, kind="number" if bins else "dropped", missing=0.0, bins=bins)
    released = zip(counts.names[0], noisy["target texts"], strict=True)
    values = tuple((text, float(count)) for text, count in released if count >= threshold)
    return Facts(column=name, kind="category" if values else "dropped", missing=0.0, values=values)


def forced_kinds(schema: Schema) -> dict[str, Kind]:
    """Return the kinds of columns that the schema declares without bounds or values; the survey buys the rest."""
    kinds: dict[str, Kind] = {}
    for name, spec in schema.columns.items():
        if isinstance(spec, (NumberSpec, DateSpec)):
            kinds[name] = "number"
        elif isinstance(spec, CategorySpec):
            kinds[name] = "category"
    if schema.target is not None and schema.target.task is not None:
        kinds[schema.target.column] = "number" if schema.target.task == "regression" else "category"
    return kinds


def whole(number: float) -> float:
    """Return a number that is whole as an integer, so that JSON shows it without a point.

    Example:
        >>> whole(302.0), whole(0.5)
        (302, 0.5)
    """
    return int(number) if number.is_integer() else number
