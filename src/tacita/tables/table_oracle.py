"""The gradient oracle of a table's training: which engine and which estimator serve it."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tacita.clipping import FlatClipper
from tacita.error_feedback import ErrorFeedbackOracle
from tacita.gradients import NetworkSource
from tacita.gradients.data import IndexedRows, as_rows
from tacita.gradients.engine_choice import default_chunk_rows
from tacita.gradients.functional import LossFn
from tacita.linear import LinearSource, OutputLoss
from tacita.linear.row_blocks import RowBlocks
from tacita.oracles import ClippedGradientOracle, GradientOracle, Records
from tacita.tables.models import closed_form
from tacita.tables.plan import TablePlan

CHUNK_VALUES = 2**22  # features in memory at once while training: 16 MiB; smaller chunks take longer


def make_table_oracle(
    model: nn.Module, loss: LossFn, records: Records, plan: TablePlan, **oracle_settings: Any
) -> GradientOracle:
    """Build the oracle that trains ``model`` on ``records`` as ``plan`` says.

    Under hardened noise each row is computed alone, so that no other row shows in the rounding of its gradient: in
    closed form for a linear model, a record at a time for any other.
    """
    clipper = FlatClipper(max_grad_norm=plan.training.max_grad_norm)
    if not plan.form.on_grid:
        size = _chunk_rows(model, records)
        plain = ClippedGradientOracle
        if plan.feedback is not None:
            plain, oracle_settings = ErrorFeedbackOracle, {**oracle_settings, "feedback": plan.feedback}
        return plain(model, loss, records, clipper=clipper, max_physical_batch_size=size, **oracle_settings)
    form, rows = closed_form(model, loss), cast(Any, records.dataset)
    if form is None:
        source = NetworkSource(model, loss, rows, max_physical_batch_size=1)
    else:
        source = exact_source(cast(nn.Linear, model), form, rows)
    return GradientOracle(
        source,
        estimator=plan.estimator(),
        rows=records.rows,
        part=records.part,
        max_rows_per_unit=records.max_rows_per_unit,
        **oracle_settings,
    )


def exact_source(model: nn.Linear, loss: OutputLoss, dataset: Any) -> LinearSource:
    """Return the source of a linear model on a data set of features, targets and weights, each row computed alone."""
    features = FeatureRows(as_rows(dataset, None))
    count, height = features.shape[0], max(1, CHUNK_VALUES // features.shape[1])
    parts = [features.batch(slice(k, min(k + height, count)))[1:] for k in range(0, max(count, 1), height)]
    targets, weights = (torch.cat(part) for part in zip(*parts, strict=True))
    return LinearSource(features, targets, loss, weights=weights, exact=True, model=model)


class FeatureRows(RowBlocks):
    """The features of a data set of features, targets and weights, read a block at a time."""

    def __init__(self, rows: IndexedRows) -> None:
        like = rows.like()
        assert like is not None
        self._rows, self.shape, self.dtype = rows, (rows.num_rows, like[0].shape[1]), like[0].dtype

    def batch(self, rows: slice | np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, targets and weights of some rows."""
        return self._rows.fetch(np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows, 0)

    def _read(self, rows: slice | np.ndarray) -> Tensor:
        return self.batch(rows)[0]


def _chunk_rows(model: nn.Module, records: Records) -> int:
    """Return how many rows are in memory at once; public numbers alone decide."""
    like = as_rows(records.dataset, None).like()
    assert like is not None  # rows of arrays, or of a file, have a form without a record
    shapes = like[0].shape
    gradients = default_chunk_rows("loop", {name: p for name, p in model.named_parameters() if p.requires_grad})
    return max(1, min(CHUNK_VALUES // shapes[1:].numel(), gradients or CHUNK_VALUES))
