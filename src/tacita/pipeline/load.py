"""A finished run as a model for raw tables: preprocessing travels with the weights.

Place: run folder -> [pipeline.load] -> the user. Everything loaded is public; the rows to predict on are the caller's.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

from tacita.errors import DataStructureError, TacitaError
from tacita.pipeline import report
from tacita.pipeline.models import ModelSpec, outputs
from tacita.pipeline.preprocessing import Preprocessing
from tacita.pipeline.score import model_input
from tacita.tables.encoding import Encoder
from tacita.tables.table import ArrayColumn, Column, NumberColumn, Table, TextColumn


class TableModel:
    """Predicts from raw columns. Made by :func:`load`.

    Attributes:
        model: The network.
        encoder: Raw columns to features.
        statement: The statement's fields.
        folder: Where the run is.
    """

    def __init__(self, model: nn.Module, encoder: Encoder, statement: Mapping[str, Any], folder: Path) -> None:
        self.model, self.encoder, self.statement, self.folder = model, encoder, dict(statement), folder

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in the order of :meth:`predict_proba`'s columns; empty for a regression."""
        return self.encoder.classes

    def predict(self, frame: Any) -> np.ndarray:
        """A class name a row, or a number in the target's own units.

        Args:
            frame: A pandas or Arrow table, or a mapping from names to columns, with the raw columns of the training.

        Raises:
            DataStructureError: A column is missing or of another type.
        """
        return self.predict_table(as_table(frame, self.encoder.columns(with_target=False)))

    def predict_proba(self, frame: Any) -> np.ndarray:
        """Probabilities, (rows, classes).

        Raises:
            ValueError: The model is a regression.
        """
        return self.probabilities(as_table(frame, self.encoder.columns(with_target=False)))

    def predict_table(self, table: Table) -> np.ndarray:
        """:meth:`predict` on a table that was read from a file."""
        if self.encoder.task == "classification":
            if not self.classes:
                return np.full(table.num_rows, "", dtype=object)
            return np.array(self.encoder.decode(self._outputs(table).argmax(1).numpy()), dtype=object)
        return np.asarray(self.encoder.decode(self._outputs(table).squeeze(-1).numpy()))

    def probabilities(self, table: Table) -> np.ndarray:
        """:meth:`predict_proba` on a table that was read from a file."""
        if self.encoder.task != "classification":
            raise ValueError("predict_proba needs a classification: this model predicts a number.")
        return torch.softmax(self._outputs(table).double(), 1).numpy()[:, : len(self.classes)]

    def _outputs(self, table: Table) -> torch.Tensor:
        return outputs(self.model, model_input(self.encoder.encode(table, with_target=False).features))

    def __repr__(self) -> str:
        return f"TableModel({str(self.folder)!r}, {self.encoder.task} of {self.statement.get('target')!r})"


def load(folder: str | Path) -> TableModel:
    """The model of a finished run.

    A model of your own is imported and called by the name that the run's files give: load only runs whose code you
    would run.

    Raises:
        TacitaError: There is no finished run, or its files are not those its statement is about.

    Example::

        run = tacita.load("runs/adult")
        run.predict(frame)  # a pandas or Arrow table, raw columns
    """
    folder = Path(folder)
    stated = report.read_statement(folder)
    if faults := report.check_files(folder, stated):
        raise TacitaError(f"{str(folder)!r}: {faults[0]}: they do not belong together.")
    if report.no_run(stated):
        raise TacitaError(
            f"{str(folder)!r} holds no model: the number of runs drawn was 0 (see its statement). Train again, with a "
            "budget of its own."
        )
    preprocessing = Preprocessing.load(folder / report.PREPROCESSING)
    spec = preprocessing.model
    if spec != ModelSpec.of(spec.name, spec.width, preprocessing.encoder):
        raise TacitaError(f"{report.PREPROCESSING} says of the model what does not fit its columns and target.")
    try:
        model = spec.build()
        model.load_state_dict(safetensors.torch.load_file(folder / report.MODEL))
    except (OSError, RuntimeError, MemoryError, OverflowError, safetensors.SafetensorError):
        raise TacitaError(f"{report.MODEL} does not fit the model {preprocessing.model.name!r}.") from None
    return TableModel(model, preprocessing.encoder, stated, folder)


def as_table(frame: Any, names: Sequence[str]) -> Table:
    """The columns ``names`` of a pandas or Arrow table, or of a mapping."""
    present = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    known = list(frame) if isinstance(frame, Mapping) else present
    if known is None:
        raise TypeError(f"frame must be a pandas or Arrow table or a mapping of columns, got {type(frame).__name__}.")
    own = {str(name).strip(): name for name in known}  # a CSV's header is stripped of blanks, and so are these
    for name in names:
        if name not in own:
            raise DataStructureError(f"frame must have the column {name!r}, which the model was trained on.")
    names = names or list(own)[:1]  # a constant model needs the number of rows alone
    return Table({name: _column(frame[own[name]]) for name in names})


def _column(values: Any) -> Column:
    if hasattr(values, "to_pandas"):  # Arrow
        values = values.to_pandas()
    missing = np.asarray(values.isna(), dtype=bool) if hasattr(values, "isna") else None
    if hasattr(values, "to_numpy"):
        if missing is not None and missing.any() and _is_nullable_number(values):
            return NumberColumn(values.to_numpy(dtype=np.float64, na_value=np.nan))
        values = values.to_numpy()
    array = np.asarray(values)
    if array.ndim > 1:
        return ArrayColumn(array)
    if array.dtype.kind == "M":
        present = ~np.isnat(array)
        days = np.where(present, array, np.datetime64(0, "s")).astype("datetime64[us]").astype(np.int64) / 86_400e6
        return NumberColumn(days, present, "date")
    if array.dtype.kind in "iuf":
        return NumberColumn(array)
    absent = np.zeros(len(array), dtype=bool) if missing is None else missing
    return TextColumn.of((_cell(value, gone) for value, gone in zip(array.tolist(), absent, strict=True)), "string")


def _is_nullable_number(values: Any) -> bool:
    return getattr(getattr(values, "dtype", None), "kind", "O") in "iuf"


def _cell(value: Any, absent: bool) -> str:
    if absent or value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
