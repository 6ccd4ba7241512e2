"""The command ``tacita``: one line for an error, exit code 2, and never a message that quotes a row.

Place: the user -> [cli.app] -> commands. Results go to standard output, progress and errors to standard error.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, MissingArgumentError

from tacita.cli import audit, files, plan, reproduce, train
from tacita.errors import TacitaError

BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130

WRONG_PATH = {
    errno.ENOENT: "There is no such file or folder: give a path that exists.",
    errno.EISDIR: "It is a folder: give the path of a file.",
    errno.ENOTDIR: "A part of the path is a file: give a path of folders.",
}
REMEDY = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), " Free space first."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), " Change the permissions, or choose another path."),
}

HELP = """Train on tables with differential privacy, and say what is guaranteed.

Nothing about the rows is free: types, bounds, categories, classes, the number of rows and the score are declared
(--schema, --rows, --test-file), or bought from the rows with noise, out of the same epsilon.
"""
EXAMPLE = """In short:

tacita train adult.csv --target income --epsilon 1 --delta 1e-5 --output runs/adult

tacita predict runs/adult new.csv --output scored.csv

tacita statement runs/adult
"""


def make_app() -> App:
    """All commands."""
    app = App(
        name="tacita",
        help=HELP,
        help_epilogue=EXAMPLE,
        help_format="plaintext",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    for command in (
        train.train,
        files.predict,
        files.statement,
        files.schema,
        files.check,
        plan.plan,
        reproduce.reproduce,
    ):
        app.command(command, help_epilogue="")  # the three commands one needs are in the help of tacita itself
    app.command(audit.audit_app())
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 done; 1 a check found something (a ledger that was changed); 2 a setting or a file's structure is
    wrong; 70 an error of tacita's own; 130 interrupted.
    """
    sys.exit(run(lambda: make_app()(None if arguments is None else list(arguments), result_action="return_value")))


def run(command: Callable[[], int | None]) -> int:
    """The exit code of ``command``; its errors as one line."""
    try:
        return command() or 0
    except CycloptsError as error:
        return _fail(_usage(error))
    except (TacitaError, ValueError, TypeError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_words(error))
    except KeyboardInterrupt as error:
        print(f"\ntacita: interrupted.{_advice(error)}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("TACITA_DEBUG"):
            raise
        _fail(
            f"internal error ({type(error).__name__}). TACITA_DEBUG=1 shows the traceback, which may quote rows."
            f"{_advice(error)}"
        )
        return INTERNAL


def _fail(message: str) -> int:
    print(f"tacita: error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


def _advice(error: BaseException) -> str:
    """What the command itself noted: how to go on."""
    return "".join(f" {note}" for note in getattr(error, "__notes__", ()))


def _usage(error: CycloptsError) -> str:
    missing = error.argument if isinstance(error, MissingArgumentError) else None
    if missing is not None and missing.name == "RUN":
        return "run is missing: give the folder of a run, the --output of its training."
    return str(error)


def _words(error: OSError) -> str:
    where = f" {error.filename!r}" if error.filename else ""
    said = f"a file cannot be read or written:{where} {error.strerror or type(error).__name__}."
    if error.errno in WRONG_PATH:
        return f"{said} {WRONG_PATH[error.errno]}"
    return f"{said}{REMEDY.get(error.errno or 0, '')}{_advice(error)}"
