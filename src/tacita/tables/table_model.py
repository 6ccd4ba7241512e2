"""The model of a finished run, for raw tables: the preprocessing is loaded with the weights.

Everything that is loaded is public. The rows to predict on are the caller's.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

from tacita.errors import DataStructureError, TacitaError
from tacita.runs.edits import EDITS, EditedCell
from tacita.runs.sealed_run import MODEL, SealedRun
from tacita.tables.edited_terms import check_cells, edit_terms
from tacita.tables.encoded_rows import narrow
from tacita.tables.encoding import Encoder
from tacita.tables.features import NumberTarget
from tacita.tables.models import ModelSpec, outputs
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.shapes import Shape, shapes
from tacita.tables.table import ArrayColumn, Column, NumberColumn, Table, TextColumn
from tacita.tables.table_statement import PREPROCESSING, no_run

YEARS = -719_162.0, 2_932_896.0  # days since 1970-01-01 of the first day of year 1, and the last of year 9999


class TableModel:
    """A model that predicts from raw columns. Made by :func:`load`.

    Attributes:
        model: The network.
        preprocessing: The encoder, and what was bought about the columns.
        encoder: Turns raw columns into features.
        statement: The fields of the privacy statement.
        folder: The folder of the run.
        written: The values of the shapes that a person wrote (``tacita edit``), by column.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Preprocessing,
        statement: Mapping[str, Any],
        folder: Path,
        written: Mapping[str, tuple[tuple[float, ...], ...]] | None = None,
    ) -> None:
        self.model, self.preprocessing, self.statement, self.folder = model, preprocessing, dict(statement), folder
        self.encoder: Encoder = preprocessing.encoder
        self.written = dict(written or {})

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in the order of :meth:`predict_proba`'s columns; empty for a regression."""
        return self.encoder.classes

    def predict(self, frame: Any) -> np.ndarray:
        """Predict a class name for each row, a number in the target's own units, or a date (``datetime64``, UTC).

        Args:
            frame: A pandas or Arrow table, or a mapping from names to columns, with the raw columns of the training.

        Raises:
            DataStructureError: A column is missing or of another type.
        """
        return self.predict_table(as_table(frame, self.encoder.columns(with_target=False)))

    def predict_proba(self, frame: Any) -> np.ndarray:
        """Predict the probabilities of the classes, shape (rows, classes).

        Raises:
            ValueError: The model is a regression.
        """
        return self.probabilities(as_table(frame, self.encoder.columns(with_target=False)))

    def predict_table(self, table: Table) -> np.ndarray:
        """Predict as :meth:`predict` does, on a table that was read from a file."""
        return self._decided(self._outputs(table))

    def probabilities(self, table: Table) -> np.ndarray:
        """Predict as :meth:`predict_proba` does, on a table that was read from a file."""
        if self.encoder.task != "classification":
            raise ValueError("predict_proba needs a classification: this model predicts a number.")
        return self._chances(self._outputs(table))

    def predicted(self, table: Table) -> tuple[np.ndarray, np.ndarray | None]:
        """Return :meth:`predict_table` and, for a classification, :meth:`probabilities`; each row is encoded once."""
        found = self._outputs(table)
        return self._decided(found), self._chances(found) if self.encoder.task == "classification" else None

    def shapes(self) -> tuple[Shape, ...]:
        """Return what the model says of each column, the most important first.

        It is computed from the released weights and from what was bought, and costs no privacy. A shape that was edited
        is as it was written.

        Raises:
            ValueError: The model is neither linear nor additive.
        """
        if not isinstance(self.model, nn.Linear):
            raise ValueError(
                f"a shape belongs to a linear or additive model: this one is {self.preprocessing.model.name!r}."
            )
        found = [
            msgspec.structs.replace(shape, values=self.written.get(shape.column, shape.values))
            for shape in shapes(self.preprocessing, self.model.state_dict())
        ]
        return tuple(sorted(found, key=lambda shape: -shape.importance))

    def shape(self, column: str) -> Shape:
        """Return the shape of one column.

        Raises:
            ValueError: The column has none, or the model is neither linear nor additive.
        """
        if (found := next((one for one in self.shapes() if one.column == column), None)) is not None:
            return found
        why = "tacita explain lists them"
        if column in self.encoder.dropped:
            why = "nothing about it stood out of the noise, so that nothing was bought of it"
        elif column in self.encoder.columns(with_target=False):
            why = "it holds arrays, which have no shape"
        raise ValueError(f"column must be one that the model uses, got {column!r}: {why}.")

    def _decided(self, found: torch.Tensor) -> np.ndarray:
        if self.encoder.task != "classification":
            values = np.asarray(self.encoder.decode(found.squeeze(-1).numpy()))
            target = self.encoder.target
            return as_dates(values, target.scale) if isinstance(target, NumberTarget) and target.dates else values
        return np.array(self.encoder.decode(found.argmax(1).numpy()), dtype=object)

    def _chances(self, found: torch.Tensor) -> np.ndarray:
        return torch.softmax(found.double(), 1).numpy()[:, : len(self.classes)]

    def _outputs(self, table: Table) -> torch.Tensor:
        def of(part: Table) -> torch.Tensor:
            return outputs(self.model, self.encoder.encode(part, with_target=False).features)

        return torch.cat([of(part) for part in narrow(table.chunks(), self.encoder.num_features)])

    def __repr__(self) -> str:
        return f"TableModel({str(self.folder)!r}, {self.encoder.task} of {self.statement.get('target')!r})"


def load(folder: str | Path, *, trust_code: bool = False) -> TableModel:
    """Load the model of a finished run, if nothing in the run was changed since its ledger was sealed.

    Args:
        folder: The folder of the run.
        trust_code: Whether to import and call the code that the run names, for a model of your own (trained with
            ``--model package.module:callable``). Whoever wrote the files of the run decides which code that is: allow
            it only if you would run that code. No file of a run is itself code.

    Raises:
        TacitaError: There is no finished run, its files are not those that its ledger was sealed with, its model is not
            one of a table, or is code and ``trust_code`` is false.

    Example::

        run = tacita.load("runs/adult")
        run.predict(frame)  # a pandas or Arrow table, raw columns
    """
    folder = Path(folder)
    run = SealedRun.intact(folder)
    if no_run(run.stated):
        raise TacitaError(
            f"{str(folder)!r} holds no model: the number of runs drawn was 0 (see its statement). Train again, with a "
            "budget of its own."
        )
    if not run.holds(PREPROCESSING):
        raise TacitaError(_no_table(folder, run.stated))
    preprocessing = Preprocessing.from_bytes(run.read(PREPROCESSING))
    spec, encoder = preprocessing.model, preprocessing.encoder
    answers = encoder.task == "regression" or encoder.classes
    if not (encoder.num_features and answers) or spec != ModelSpec.of(spec.name, spec.width, encoder):
        raise TacitaError(f"{PREPROCESSING} describes a model that does not fit its columns and target.")
    if spec.is_code and not trust_code:
        raise TacitaError(
            f"the model of {str(folder)!r} is code, {spec.name!r}, which would be imported and called to make "
            "predictions: allow it with --trust-code (trust_code=True), if you would run that code."
        )
    try:
        model = spec.build()
        model.load_state_dict(safetensors.torch.load(run.read(MODEL)))
    except (OSError, RuntimeError, MemoryError, OverflowError, safetensors.SafetensorError):
        raise TacitaError(f"{MODEL} does not fit the model {preprocessing.model.name!r}.") from None
    found = TableModel(model, preprocessing, run.fields, folder)
    for edit in run.edits:
        try:
            found = edited_model(found, edit.shapes)
        except ValueError as error:
            raise TacitaError(f"{EDITS} does not fit the model: {error}") from None
    return found


def edited_model(of: TableModel, edited: Mapping[str, Sequence[EditedCell]]) -> TableModel:
    """Return a model whose shapes of some columns are those of an edit, which must say what they were before.

    Raises:
        ValueError: The model is neither linear nor additive; a column has no shape; or cells are others, or have other
            values before, or values after that the model cannot have.
    """
    for column, cells in edited.items():
        shape = of.shape(column)
        check_cells(shape, [(one.cell, one.before) for one in cells])
        if not np.allclose([one.before for one in cells], shape.values, rtol=1e-6, atol=1e-6):
            raise ValueError(f"the shape of {column!r} before the edit is not that of the model.")
    after = {column: tuple(one.after for one in cells) for column, cells in edited.items()}
    preprocessing, weights = edit_terms(of.preprocessing, of.model.state_dict(), after)
    model = preprocessing.model.build()
    model.load_state_dict(weights)
    return TableModel(model, preprocessing, of.statement, of.folder, {**of.written, **after})


def _no_table(folder: Path, stated: Mapping[str, Any]) -> str:
    """Return what a run is that was not trained on a table, and how its weights are read."""
    named = stated.get("model")
    what = f" ({named})" if isinstance(named, str) else ""
    words = (
        f"{str(folder)!r} holds a finished run, but no model of a table{what}: without {PREPROCESSING} nothing says "
        "how the columns of a file become features. Predictions are for runs of tacita train."
    )
    if not (folder / MODEL).exists():
        return words
    return f"{words} The weights are in {MODEL}: safetensors.torch.load_file({str(folder / MODEL)!r}) reads them."


def as_dates(days: np.ndarray, scale: float) -> np.ndarray:
    """Return days since 1970-01-01 as dates, of years 1 to 9999; with times of day if ``scale`` is below a day.

    ``scale`` is the standard deviation of the target in days, which is public.

    Example:
        >>> as_dates(np.array([19844.4, 19844.6]), 30.0).astype(str).tolist(), as_dates(np.array([0.5]), 0.2)
        (['2024-05-01', '2024-05-02'], array(['1970-01-01T12:00:00'], dtype='datetime64[s]'))
    """
    unit, size = ("D", 1) if scale >= 1 else ("s", 86_400)
    return np.rint(np.clip(np.nan_to_num(days), *YEARS) * size).astype(np.int64).astype(f"datetime64[{unit}]")


def as_table(frame: Any, names: Sequence[str]) -> Table:
    """Return the columns ``names`` of a pandas or Arrow table, or of a mapping, as a table."""
    present = getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    known = list(frame) if isinstance(frame, Mapping) else present
    if known is None:
        raise TypeError(f"frame must be a pandas or Arrow table or a mapping of columns, got {type(frame).__name__}.")
    own = {str(name).strip(): name for name in known}  # names are stripped of blanks, as in the header of a CSV
    for name in names:
        if name not in own:
            raise DataStructureError(f"frame must have the column {name!r}, which the model was trained on.")
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
