"""``tacita predict``, ``statement``, ``schema``, ``check``: what one does with files before and after a training.

Place: cli.app -> [cli.files] -> pipeline, tables.
"""

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from tacita.pipeline import check_run, load, predict_file
from tacita.pipeline.settings import read_text
from tacita.tables.check import check as look
from tacita.tables.draft import draft
from tacita.tables.readers import Reading, read_table
from tacita.tables.schema import Schema, Target

FAULTY = 1


def predict(run: str, data: str, /, *, output: Annotated[str, Parameter(name=("--output", "-o"))]) -> int:
    """Predict with a trained model: the rows as they were, plus a prediction and a probability a class.

    Example: tacita predict runs/adult new.csv --output scored.csv

    Args:
        run: Folder of a finished run.
        data: File with the raw columns of the training.
        output: File to write.
    """
    predict_file(load(run), data, output)
    print(f"written to {output}", file=sys.stderr)
    return 0


def statement(run: str, /) -> int:
    """Verify the ledger of a run and print its privacy statement again. Exit code 1 if something was changed.

    Example: tacita statement runs/adult

    Args:
        run: Folder of a finished run.
    """
    checked = check_run(run)
    if checked.faults:
        print("TAMPERED: what follows does not hold, since something was changed:")
        print("".join(f"  - {fault}.\n" for fault in checked.faults))
    print(checked.text, end="")
    for note in checked.notes:
        print(f"tacita: note: {note}", file=sys.stderr)
    if not checked.faults:
        print("verified: ledger, statement and model belong together.", file=sys.stderr)
        return 0
    for fault in checked.faults:
        print(f"tacita: error: TAMPERED: {fault}.", file=sys.stderr)
    return FAULTY


def schema(
    data: str,
    /,
    *,
    target: str | None = None,
    columns: str | None = None,
    delimiter: str | None = None,
    quote: str | None = None,
    encoding: str | None = None,
) -> int:
    """Draft a schema of a table for you to review: names and kinds, guessed by looking at every row. NOT PRIVATE.

    The draft says reviewed = false, and training refuses it until you change that.

    Example: tacita schema adult.csv > adult.toml

    Args:
        data: CSV (gzip too), Parquet or NPZ.
        target: Column to predict.
        columns: Names of the columns of a file without a header line, separated by commas.
        delimiter: Character between cells.
        quote: Character around a cell that holds the delimiter.
        encoding: Of the file.
    """
    reading = _reading(columns, delimiter, quote, encoding)
    print(draft(read_table(data, reading), reading, target=target), end="")
    return 0


def check(
    data: str,
    /,
    *,
    schema: str | None = None,
    target: str | None = None,
    columns: str | None = None,
    delimiter: str | None = None,
    quote: str | None = None,
    encoding: str | None = None,
) -> int:
    """Look at a table loudly: odd rows, cells and labels, with examples. NOT PRIVATE, for the holder of the data.

    Training swallows such rows in silence, since a message would tell about them.

    Example: tacita check adult.csv --schema adult.toml

    Args:
        data: CSV (gzip too), Parquet or NPZ.
        schema: TOML file with what is declared; without it, what the file itself shows is checked.
        target: Column to predict.
        columns: Names of the columns of a file without a header line, separated by commas.
        delimiter: Character between cells.
        quote: Character around a cell that holds the delimiter.
        encoding: Of the file.
    """
    declared = Schema() if schema is None else Schema.loads(read_text("schema", schema))
    given = _reading(columns, delimiter, quote, encoding)
    reading = declared.reading if given == Reading() else given
    found = target if declared.target is None else declared.target.column
    declared = msgspec.structs.replace(
        declared, reading=reading, target=declared.target or (Target(column=found) if found else None)
    )
    print(look(read_table(data, reading), declared))
    return 0


def _reading(columns: str | None, delimiter: str | None, quote: str | None, encoding: str | None) -> Reading:
    names = () if columns is None else tuple(part.strip() for part in columns.split(","))
    default = Reading()
    return Reading(
        delimiter=default.delimiter if delimiter is None else delimiter,
        quote=default.quote if quote is None else quote,
        encoding=encoding or default.encoding,
        header=not names,
        columns=names,
    )
