"""The command ``tacita`` and its handling of errors.

An error is one line on standard error and a nonzero exit code; no message quotes a row. Results go to standard output,
progress to standard error.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from tacita.cli.memory import keep_freed_memory
from tacita.cli.outputs import NO_GUARANTEE
from tacita.cli.streams import drop_output
from tacita.errors import TacitaError, UnfinishedRunError

BAD_INPUT, INTERNAL, INTERRUPTED, NO_READER = 2, 70, 130, 141
EXIT_CODES = {  # docs/statement.md has the same table
    0: "done; of train, statement, show, card, verify and report: there is a guarantee, and the verdict says under "
    "which conditions",
    NO_GUARANTEE: "no guarantee: not private, changed, not signed or unfinished; or an audit refuted a claim",
    BAD_INPUT: "a setting or the structure of a file is wrong",
    INTERNAL: "an internal error",
    INTERRUPTED: "interrupted; the same command continues",
    NO_READER: "the program that reads the output wants no more (head)",
}

WRONG_PATH = {
    errno.ENOENT: "There is no such file or folder: give a path that exists.",
    errno.EISDIR: "It is a folder: give the path of a file.",
    errno.ENOTDIR: "A part of the path is a file: give a path of folders.",
}
REMEDY = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), " Free space first."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), " Change the permissions, or choose another path."),
}

NEVER_CHOSEN = "it is never chosen for you"
MISSING = {  # a required argument -> what to give
    "RUN": "the folder of a run, which is the --output of its training",
    "DATA": "the file after the command",
    "MODEL": "the folder of a model, in the format of transformers, after the command",
    "--rows": "--rows NUMBER, the public number of records (a declared guess)",
    "--output": "--output FILE, the file to write",
    "--steps": "--steps NUMBER, the number of noisy gradients",
    "--sample-rate": "--sample-rate NUMBER, the chance of a record to be in a step",
    "--noise-multiplier": "--noise-multiplier NUMBER, the noise over the sensitivity",
    "--key": "--key FILE, your Ed25519 private key",
    "--signer": "--signer NAME, who signs",
    "--who": "--who NAME, who edits",
    "--reason": "--reason TEXT, why",
    "--shape": "--shape COLUMN FILE, which tacita explain RUN --column COLUMN --output FILE writes",
    "--public-key": "--public-key FILE, the signer's Ed25519 public key",
    "CONFIG": "the folder of a run, or its config.toml",
    "--epsilon": f"--epsilon NUMBER; {NEVER_CHOSEN}",
    "--delta": f"--delta NUMBER, well below 1 / (number of records); {NEVER_CHOSEN}",
}

HELP = """Train on tables with differential privacy, and say what is guaranteed.

Nothing about the rows is free: types, bounds, categories, classes, the number of rows and the score are declared
(--schema, --rows, --test-file), or bought from the rows with noise, out of the same epsilon.
"""
EXAMPLE = """In short:

tacita train adult.csv --target income --epsilon 1 --delta 1e-5 --output runs/adult

tacita predict runs/adult new.csv --output scored.csv

tacita statement runs/adult

Exit codes:
""" + "".join(f"\n{code}: {words}\n" for code, words in EXIT_CODES.items())


# The module of each command, and its line in the list of commands, which is the first line of its docstring. A command
# is imported only when it is used. Its module imports what it computes with inside of its functions, so that no help
# waits for torch.
COMMANDS = {
    "train": (
        "tacita.cli.train:train",
        "Train a private model on a table. What is not declared is bought from the rows, out of the same epsilon.",
    ),
    "finetune": (
        "tacita.cli.finetune:finetune",
        "Fine-tune a language model on private texts: an adapter that PEFT loads, with its statement, under a seal.",
    ),
    "generate": (
        "tacita.cli.finetune:generate",
        "Let a fine-tuned model go on after a prompt. Costs no privacy; prompts are not covered, and may come out.",
    ),
    "predict": (
        "tacita.cli.files:predict",
        "Predict with a trained model: the rows as they were, with a prediction and a probability for each class.",
    ),
    "statement": (
        "tacita.cli.files:statement",
        "Verify the ledger of a run and print its privacy statement again. Exit code 1 unless the run is private.",
    ),
    "list": (
        "tacita.cli.runs:list_runs",
        "List the runs in a folder: state, day, data set, guarantee and score of each.",
    ),
    "show": (
        "tacita.cli.runs:show_run",
        "Show one run in a few lines, after all checks of tacita statement. Exit code 1 unless the run is private.",
    ),
    "explain": (
        "tacita.cli.runs:explain_run",
        "Show what a linear or additive model says of each column: importance and shape. Costs no privacy.",
    ),
    "edit": (
        "tacita.cli.runs:edit_run",
        "Write a new run whose model has shapes that a person wrote. Epsilon stays; the score is void.",
    ),
    "report": (
        "tacita.cli.report:report",
        "Write a page about finished runs: verdict and signature, charts with their numbers, the whole statement.",
    ),
    "card": (
        "tacita.cli.report:card",
        "Print a model card of a finished run in Markdown: model, use, data, privacy, score and caveats.",
    ),
    "sign": (
        "tacita.cli.signing:sign",
        "Sign a finished run with an Ed25519 key, after all checks of tacita statement.",
    ),
    "verify": (
        "tacita.cli.signing:verify",
        "Verify a finished run and its signature. Exit code 1 unless it is private, unchanged and signed with the key.",
    ),
    "epsilon": (
        "tacita.cli.calculators:epsilon_of",
        "Compute epsilon of DP-SGD from its noise: an upper bound, for Poisson sampling and clipped gradients.",
    ),
    "noise": (
        "tacita.cli.calculators:noise_for",
        "Compute the noise that DP-SGD needs for an epsilon: the least that is enough, within 0.1 % of epsilon.",
    ),
    "schema": (
        "tacita.cli.files:schema",
        "Draft a schema of a table for you to review: names and kinds, guessed by looking at every row. NOT PRIVATE.",
    ),
    "check": (
        "tacita.cli.files:check",
        "Show what is odd in a table: rows, cells and labels, with examples. NOT PRIVATE, for the holder of the data.",
    ),
    "plan": (
        "tacita.cli.plan:plan",
        "Plan DP-SGD with a fixed threshold: threshold, noise, step size, expected error, and what would help.",
    ),
    "federate": ("tacita.cli.federate:APP", "Train over clients that send noisy messages, simulated or for real."),
    "audit": ("tacita.cli.audit:APP", "Measure a lower bound on an oracle's epsilon, and compare it with its claim."),
}

GROUP = "tacita.commands"  # entry points of other distributions: NAME = "module:function"
ELSEWHERE = {"reproduce": "the papers' experiments: pip install ./reproductions in a clone of tacita"}


def commands() -> dict[str, tuple[str, str]]:
    """Return place and line of every command: those of ``COMMANDS``, which no other replaces, and those installed.

    An installed one's line is the summary of its distribution, so that the list of commands imports nothing of it.
    """
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    added = {entry.name: (entry.value, entry.dist.metadata["Summary"] if entry.dist else "") for entry in found}
    return {**added, **COMMANDS}


def make_app(known: Mapping[str, tuple[str, str]] | None = None, *, summaries: bool = False) -> App:
    """Return the command line with all commands.

    Args:
        known: What :func:`commands` returns, which is the default.
        summaries: Use each command's line from ``known`` as its help, without importing it. Otherwise its help is
            its docstring.
    """
    app = App(
        name="tacita",
        help=HELP,
        help_epilogue=EXAMPLE,
        help_format="markdown",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    known = commands() if known is None else known
    for name, (place, summary) in known.items():
        # Only tacita's own help ends with the three example commands.
        settings = {} if place.endswith(":APP") else {"help_epilogue": ""}
        app.command(place, name=name, help=summary if summaries else None, **settings)
    for name in ELSEWHERE.keys() - known.keys():
        app.command(partial(_not_installed, name), name=name, show=False, help_flags=())
    return app


def _not_installed(name: str, *words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> NoReturn:
    raise ValueError(f"{name} is not installed: it comes with {ELSEWHERE[name]}.")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of ``EXIT_CODES``."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop is handled like Ctrl-C
    if arguments is None:  # in a process of its own
        keep_freed_memory()
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A command's own help is its docstring, which needs its module; the list of commands needs none.
    known = commands()
    app = make_app(known, summaries=not any(word in known for word in words))
    sys.exit(run(lambda: app(words, result_action="return_value")))


def run(command: Callable[[], int | None]) -> int:
    """Run ``command``, print an error as one line, and return the exit code."""
    try:
        return _written(command)
    except CycloptsError as error:
        return _fail(_usage(error))
    except (TacitaError, ValueError, TypeError) as error:
        return _fail(str(error), NO_GUARANTEE if isinstance(error, UnfinishedRunError) else BAD_INPUT)
    except OSError as error:
        return NO_READER if isinstance(error, BrokenPipeError) and drop_output() else _fail(_words(error))
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


def _written(command: Callable[[], int | None]) -> int:
    """Run ``command`` and write out what it printed."""
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich ends so, with the code of a failed check
            return NO_READER
        raise


def _fail(message: str, code: int = BAD_INPUT) -> int:
    print(f"tacita: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _advice(error: BaseException) -> str:
    """Return the notes that the command added to the error, which say how to continue."""
    return "".join(f" {note.removeprefix('tacita: ')}" for note in getattr(error, "__notes__", ()))


def _usage(error: CycloptsError) -> str:
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return str(error)
    if error.keyword is not None or error.argument.tokens:  # the option is there, and its value is not
        return str(error)
    option = error.argument.name
    name = option.lstrip("-").replace("-", "_").lower()
    _, suggests, other = str(error).partition(" Did you mean")
    return f"{name} is missing: give {MISSING.get(option, option)}.{suggests}{other}"


def _words(error: OSError) -> str:
    where = f" {error.filename!r}" if error.filename else ""
    said = f"a file cannot be read or written:{where} {error.strerror or type(error).__name__}."
    if error.errno in WRONG_PATH:
        return f"{said} {WRONG_PATH[error.errno]}"
    return f"{said}{REMEDY.get(error.errno or 0, '')}{_advice(error)}"
