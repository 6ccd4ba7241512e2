"""``tacita edit``: a new run whose model has shapes that a person wrote, beside the run that it came from.

See :mod:`tacita.runs.edits` for what is stored, and :mod:`tacita.tables.edited_terms` for what it means.
"""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tacita._files import flush_folder, make_folder, replace_durably, temporary_beside
from tacita.runs.edits import EDITS, PARENT, EditedCell, edit_line
from tacita.runs.sealed_run import SealedRun
from tacita.runs.signing import SIGNATURES
from tacita.tables.edited_terms import check_cells
from tacita.tables.run_audit import OF_PARENT, RESULT, places
from tacita.tables.shapes import Shape, rounded
from tacita.tables.table_model import TableModel, edited_model, load


class GivenCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell of a file that a person edited."""

    cell: str
    values: tuple[float, ...]
    rows: float = 0.0


class GivenShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape in a file that a person edited; see :func:`tacita.tables.shapes.in_json`."""

    column: str
    cells: tuple[GivenCell, ...]
    bought: bool = True


def edit_run(run: str | Path, output: str | Path, shapes: Mapping[str, bytes], *, who: str, reason: str) -> TableModel:
    """Write a new run in ``output``: that in ``run`` with shapes that a person wrote, and no score.

    Guarantee: that of ``run``, by post-processing, if whoever wrote the shapes saw no private rows; see
    :mod:`tacita.runs.edits`. The folder is there with all that belongs to it, or not at all.

    Args:
        run: The folder of a finished run of a linear or additive model, edited before or not. It is left as it is.
        output: A new folder.
        shapes: By column, the bytes of a file of :func:`tacita.tables.shapes.in_json`, with other values.
        who: Who edits, in one line.
        reason: Why, in one line.

    Returns:
        The edited model.

    Raises:
        TacitaError: There is no finished run, or something in it was changed.
        ValueError: ``output`` exists; ``who`` or ``reason`` is not one line; the model is neither linear nor additive;
            a column has no shape; a file is not JSON of this form, has other cells, or numbers that are not finite or
            too large; or nothing differs.
    """
    folder = Path(output)
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"output must be a new folder, got {str(output)!r}, which exists: choose another one.")
    sealed, model = SealedRun.intact(run), load(run)
    edited = {column: _edited(model.shape(column), data) for column, data in shapes.items()}
    line = edit_line(sealed.folder, edited, who=who, reason=reason)
    edited_model(model, edited)  # refuses what the model cannot have
    new = temporary_beside(folder)
    shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed
    try:
        signed = [SIGNATURES] if (sealed.sealed / SIGNATURES).exists() else []
        for name in (*sealed.names(), *signed):
            make_folder((new / PARENT / name).parent)
            replace_durably(new / PARENT / name, (sealed.sealed / name).read_bytes())
        for place in places(sealed.folder):
            if (place / RESULT).exists():  # what it found is not to be lost by an edit
                make_folder(new / OF_PARENT)
                replace_durably(new / OF_PARENT / RESULT, (place / RESULT).read_bytes())
                break
        before = (sealed.folder / EDITS).read_bytes() if sealed.edits else b""
        replace_durably(new / EDITS, before + line)
        load(new)
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    flush_folder(folder.parent)
    return load(folder)


def _edited(shape: Shape, data: bytes) -> list[EditedCell]:
    """Return the cells of a shape before and after the edit.

    Raises:
        ValueError: The file is not of that shape, or nothing differs.
    """
    where = f"the shape of {shape.column!r}"
    try:
        given = msgspec.convert(json.loads(data), GivenShape)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} must be in a JSON file: {error}.") from None
    except (ValueError, RecursionError) as error:
        hint = f"tacita explain RUN --column {shape.column} --output FILE writes one"
        raise ValueError(f"{where} must be in a file of one shape: {error}. {hint}.") from None
    if given.column != shape.column:
        raise ValueError(f"{where} must be in a file of that column, got one of {given.column!r}.")
    check_cells(shape, [(one.cell, one.values) for one in given.cells])
    edited = []
    for one, before in zip(given.cells, shape.values, strict=True):
        if not all(map(math.isfinite, one.values)):
            raise ValueError(f"cell {one.cell!r} of {shape.column!r} must have finite values, got {list(one.values)}.")
        # A value as it was shown is the model's own, with all its digits.
        after = tuple(b if x == rounded(b) else float(x) for x, b in zip(one.values, before, strict=True))
        edited.append(EditedCell(cell=one.cell, before=before, after=after))
    if all(one.after == one.before for one in edited):
        raise ValueError(f"{where} is that of the run already: change a value, or leave it out.")
    return edited
