"""The commands ``tacita predict``, ``statement``, ``schema`` and ``check``: for files before and after a training."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tacita._counted import counted
from tacita._files import replace_durably
from tacita.cli.names import names_of
from tacita.cli.outputs import check_file, exit_code, say_written, write_bytes
from tacita.errors import DataStructureError
from tacita.finetune.settings import RecordSettings
from tacita.tables.settings import TEXT_FORMAT, file_format, flags, read_text

if TYPE_CHECKING:
    from tacita.tables.csv_lines import FileFormat

    Text = dict[str, Any]
else:
    Text = flags(TEXT_FORMAT)

NAMED = 10  # rows without a prediction that are named
FLAT = Parameter(name="*")  # an object's fields are options by their own names
VERIFIED = (
    "verified: the ledger is intact up to its last known hash, the numbers of the guarantee follow from it, and "
    "statement and files are those that the ledger was sealed with. Not verified: what was given or declared, what "
    "else was done with the same data, and that nobody rewrote ledger, hash and files together."
)


def _resolved(text: "Text | None", declared: "FileFormat | None" = None) -> "FileFormat":
    """Return the format of a file of text, with what was declared, or defaults, for what was not given."""
    names = names_of("columns", (text or {}).get("columns", ""), keep_empty=True)
    return file_format({**(text or {}), "columns": names}, declared)


def predict(
    run: str,
    data: str,
    /,
    *,
    output: Annotated[str | None, Parameter(name=("--output", "-o"))] = None,
    trust_code: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Predict with a trained model: the rows as they were, with a prediction and a probability for each class.

    A run in which something was changed since it was finished is refused. Without --output the result goes to standard
    output, as CSV.

    Example: tacita predict runs/adult new.csv --output scored.csv

    Args:
        run: Folder of a finished run.
        data: File with the raw columns of the training.
        output: File to write; after an error it is unchanged, while standard output may have its beginning.
        trust_code: Import and call the model's code, if it was trained with --model package.module:callable.
    """
    from tacita.tables import load, predict_file
    from tacita.tables.predict import predicted_pieces

    check_file("output", output, (run, data))
    model = load(run, trust_code=trust_code)
    if model.written:
        print(model.statement["headline"], file=sys.stderr)
    unread: list[int] = []
    if output is None:
        write_bytes(predicted_pieces(model, data, unread=unread))
    else:
        unread += predict_file(model, data, output)
        say_written(output)
    if unread:
        first = ", ".join(str(row + 1) for row in unread[:NAMED]) + ", ..." * (len(unread) > NAMED)
        count = counted(len(unread), "row")
        words = f"without a prediction: {count} that could not be read (too many or too few cells?): {first}"
        print(f"{words}, counted from the first row after a header", file=sys.stderr)
    return 0


def statement(run: str, /) -> int:
    """Verify the ledger of a run and print its privacy statement again. Exit code 1 unless the run is private.

    It is 1 if something was changed, and if the verdict guarantees nothing.

    Example: tacita statement runs/adult

    Args:
        run: Folder of a finished run.
    """
    from tacita.ledger.verdict import verdict
    from tacita.runs.sealed_run import SealedRun
    from tacita.tables import check_run
    from tacita.tables.run_check import TAMPERED

    checked = check_run(run)
    if checked.faults:
        print(f"{TAMPERED}:")
        print("".join(f"  - {fault}.\n" for fault in checked.faults))
    elif (now := checked.verdict.in_words()) != verdict(SealedRun(run).fields).in_words():
        print(f"VERDICT NOW: {now}. What follows was sealed before that.\n")
    print(checked.text, end="")
    for note in checked.notes:
        print(f"tacita: note: {note}", file=sys.stderr)
    if not checked.faults:
        print(VERIFIED, file=sys.stderr)
    for fault in checked.faults:
        print(f"tacita: error: TAMPERED: {fault}.", file=sys.stderr)
    return exit_code(checked.verdict)


def schema(
    data: str,
    /,
    *,
    target: str | None = None,
    output: Annotated[str | None, Parameter(name=("--output", "-o"))] = None,
    text: Annotated[Text | None, FLAT] = None,
) -> int:
    """Draft a schema of a table for you to review: names and kinds, guessed by looking at every row. NOT PRIVATE.

    The draft says reviewed = false, and training refuses it until you change that.

    Example: tacita schema adult.csv --output adult.toml

    Args:
        data: The table: CSV or JSON lines (compressed or not), Parquet or NPZ.
        target: The column to predict.
        output: File to write; standard output by default.
    """
    from tacita.tables.drafting import draft
    from tacita.tables.readers import read_table

    check_file("output", output, (data,))
    reading = _resolved(text)
    found = draft(read_table(data, reading), reading, target=target)
    if output is None:
        print(found, end="")
        return 0
    replace_durably(Path(output), found.encode())
    say_written(output)
    return 0


def check(
    data: str,
    /,
    *,
    schema: str | None = None,
    target: str | None = None,
    model: Annotated[str | None, Parameter(name="--model")] = None,
    records: Annotated[RecordSettings | None, FLAT] = None,
    text: Annotated[Text | None, FLAT] = None,
) -> int:
    """Show what is odd in a table: rows, cells and labels, with examples. NOT PRIVATE, for the holder of the data.

    Training passes over such rows in silence, because a message would reveal them.

    Example: tacita check adult.csv --schema adult.toml

    Args:
        data: The table: CSV or JSON lines (compressed or not), Parquet or NPZ.
        schema: TOML file with what is declared; without it, only what the file itself shows is checked.
        target: The column to predict.
        model: Folder of a language model: DATA are texts for tacita finetune, JSON lines.
    """
    if model is not None:
        from tacita.finetune.looking import check_texts

        words, trained_on = check_texts(data, model, records or RecordSettings())
        print(words, end="", flush=True)
        if not trained_on:
            raise DataStructureError("DATA has no line that can be trained on.")
        return 0
    if records is not None:
        raise ValueError("the options of texts are those of tacita finetune: give --model MODEL with them.")
    import msgspec

    from tacita.tables.checking import check as look
    from tacita.tables.readers import read_table
    from tacita.tables.schema import Schema, Target

    declared = Schema() if schema is None else Schema.loads(read_text("schema", schema))
    reading = _resolved(text, declared.reading)
    found = target if declared.target is None else declared.target.column
    declared = msgspec.structs.replace(
        declared, reading=reading, target=declared.target or (Target(column=found) if found else None)
    )
    print(look(read_table(data, reading), declared))
    return 0
