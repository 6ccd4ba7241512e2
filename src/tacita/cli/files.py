"""``tacita predict``, ``statement``, ``schema``, ``check``: what one does with files before and after a training.

Place: cli.app -> [cli.files] -> pipeline, tables.
"""

import sys
from typing import Annotated

from cyclopts import Parameter

from tacita.pipeline import check_run, load, predict_file

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
    print(checked.text, end="")
    if not checked.faults:
        print("verified: ledger, statement and model belong together.", file=sys.stderr)
        return 0
    for fault in checked.faults:
        print(f"tacita: error: TAMPERED: {fault}.", file=sys.stderr)
    return FAULTY
