"""Purchases without a ledger, for tests of the tables room alone: the noise is the caller's.

In the library the noise is the line's (``tacita.tables.purchases``).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from torch import Tensor

from tacita.tables.encoding import Encoder
from tacita.tables.histograms import (
    Survey,
    read_refinement,
    read_task,
    refinement_counts,
    survey_counts,
    survey_of,
    task_counts,
)
from tacita.tables.schema import Schema
from tacita.tables.score import COINS, Score, read_score, score_counts
from tacita.tables.table import Table

Normals = Callable[[str, int], np.ndarray]  # label, count -> so many standard normals, float64; a label is used once


def buy_survey(
    table: Table, schema: Schema, columns: Sequence[str], *, noise_std: float, threshold: float, normals: Normals
) -> Survey:
    counts = survey_counts(table, schema, columns)
    noisy = {label: noisy_counts(values, noise_std, label, normals) for label, values in counts.tensors().items()}
    found = survey_of(counts, noisy, schema, noise_std=noise_std, threshold=threshold)
    if schema.target is None:
        return found
    asked = read_task(task_counts(table, schema).numpy(), 0.0)
    return msgspec.structs.replace(found, task=schema.target.task or asked.task)


def buy_refinement(table: Table, schema: Schema, survey: Survey, *, noise_std: float, normals: Normals) -> Survey:
    counts = refinement_counts(table, schema, survey)
    return read_refinement(survey, noisy_counts(counts, noise_std, "fine bins", normals), noise_std)


def buy_score(
    encoder: Encoder,
    outputs: np.ndarray,
    target: np.ndarray,
    known: np.ndarray,
    *,
    noise_std: Mapping[str, float],
    normals: Normals,
) -> Score:
    coins = np.random.default_rng(len(target)).random((COINS, len(target)))
    counts = score_counts(encoder, outputs, target, known, np.ones(len(target), dtype=bool), coins=coins)
    noisy = {block: noisy_counts(values, noise_std[block], block, normals) for block, values in counts.items()}
    return read_score(encoder, noisy, noise_std)


def noisy_counts(counts: Tensor, noise_std: float, label: str, normals: Normals) -> np.ndarray:
    noise = np.asarray(normals(label, counts.numel()), dtype=np.float64).reshape(counts.shape)
    return np.rint(counts.numpy() + noise_std * noise)
