"""The statement of a run on a table: what was bought, what tacita chose, how the score was obtained; and its check.

Place: plan, ledger -> [pipeline.report] -> run folder, command line. Every number of the guarantee comes from the
ledger.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita.accounting import Ledger, Statement, statement
from tacita.accounting.journal import Anchor
from tacita.errors import LedgerError, TacitaError
from tacita.pipeline import register, rules
from tacita.pipeline.folder import STATEMENT
from tacita.pipeline.plan import Plan
from tacita.pipeline.preprocessing import Preprocessing
from tacita.pipeline.rules import HOLDOUT
from tacita.pipeline.settings import TableSettings
from tacita.pipeline.source import Source, unit_in_words
from tacita.tables.encoding import Encoder

MODEL, PREPROCESSING, TEXT = "model.safetensors", "preprocessing.json", "statement.txt"
EXTRAS = ("model", "task", "target", "rows", "private_releases", "files")  # what this page adds to a statement
NOISE_OF = "one count; its ratio to what a unit can add is that of the session"
IF_ANY = ("selection", "chosen_among", "dataset")  # ... where it applies
PRIVATE_RELEASES = (
    "the weights in model.safetensors",
    "what preprocessing.json says of the columns and the target (kinds, bounds, categories, classes, counts)",
    "in the statement: rows, task, lr, what purchases released, holdout_score, caveats on columns, classes and delta",
    "fingerprints of queries in ledger.jsonl, under a key that is deleted, and the hashes that cover any of these",
)


@dataclass(frozen=True)
class Selected:
    """What a statement says of a run that was chosen among several, the price of the choice included.

    Attributes:
        field: The statement's field ``selection``.
        caveats: Sentences.
        chosen_by_tacita: What of the selection a public rule chose.
    """

    field: Mapping[str, Any]
    caveats: tuple[str, ...]
    chosen_by_tacita: tuple[str, ...] = ()


def make_statement(
    ledger: Ledger,
    settings: TableSettings,
    *,
    source: Source,
    plan: Plan,
    preprocessing: Preprocessing,
    score: Mapping[str, Any],
    files: Mapping[str, str],
    selection: Selected | None = None,
    dataset: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Statement:
    """The statement of a finished run; ``notes`` are caveats of its training."""
    encoder = preprocessing.encoder
    if_any = {
        "selection": None if selection is None else dict(selection.field),
        "chosen_among": settings.chosen_among,
        "dataset": dataset,
    }
    return statement(
        ledger,
        settings.delta,
        purchases=purchases(plan, preprocessing, score, "score" if selection is None else "select"),
        chosen_by_tacita=[
            *_chosen(settings, source, plan, encoder),
            *(() if selection is None else selection.chosen_by_tacita),
        ],
        caveats=[
            *caveats(source, preprocessing, score),
            *large_delta(settings.delta, preprocessing.rows),
            *_tuning(settings, selection, dataset),
            *notes,
        ],
        holdout_score=dict(score),
        model=preprocessing.model.name,
        task=encoder.task,
        target=encoder.target.column if encoder.target else None,
        rows={"value": preprocessing.rows, "how": "declared" if source.schema.rows is not None else "bought"},
        private_releases=list(PRIVATE_RELEASES),
        files=dict(files),
        **{name: value for name, value in if_any.items() if value is not None},
    )


def _tuning(settings: TableSettings, selection: Selected | None, dataset: Mapping[str, Any] | None) -> list[str]:
    """What was chosen by looking at results, and whether that is paid for."""
    words = [] if selection is None else list(selection.caveats)
    if settings.chosen_among is not None:
        words.append(
            f"Chosen among {settings.chosen_among} runs by looking at results outside of this guarantee: the price of "
            f"that choice is not in epsilon. Of these runs together, if all have this epsilon and delta, "
            f"{settings.chosen_among} times both is guaranteed. tacita train --sweep chooses at a stated price."
        )
    if dataset is not None and dataset["other_runs"]:
        words.append(register.words(dataset, dataset["other_runs"]))
    return words


def _chosen(settings: TableSettings, source: Source, plan: Plan, encoder: Encoder) -> list[str]:
    words = rules.chosen(settings, encoder, holds_out=plan.holds_out, buys=plan.columns_to_buy > 0)
    return words if source.schema.privacy_unit else [*words, f"privacy_unit = {unit_in_words(source.schema)}"]


def purchases(
    plan: Plan, preprocessing: Preprocessing, score: Mapping[str, Any], score_session: str = "score"
) -> list[dict[str, Any]]:
    """What was bought from the rows, at which noise, and what came out in short."""
    found: list[dict[str, Any]] = []
    survey, columns = preprocessing.survey, plan.columns_to_buy
    if survey is not None:
        kinds = [facts.kind for facts in survey.columns]
        found.append(
            {
                "session": "survey",
                "what": f"types, values, bounds and the number of rows, from {columns} columns",
                "noise_std": survey.noise_std,
                "noise_of": NOISE_OF,
                "released": {kind: kinds.count(kind) for kind in ("number", "category", "dropped")},
            }
        )
        numeric = kinds.count("number")
        found.append(
            {
                "session": "refinement",
                "what": "finer bounds of the columns that are numbers",
                "noise_std": plan.purchases.refinement_noise_std(max(numeric, 1)),
                "noise_of": NOISE_OF,
                "released": {"number": numeric},
            }
        )
    if plan.score_histograms and "noise_std" in score:
        found.append(
            {
                "session": score_session,
                "what": f"the score on the {HOLDOUT:.0%} of rows held out by coin, beside the training",
                "noise_std": score["noise_std"],
                "noise_of": NOISE_OF,
                "released": {"value": score["value"]},
            }
        )
    return found


def caveats(source: Source, preprocessing: Preprocessing, score: Mapping[str, Any]) -> list[str]:
    """What a reader must know of this run, beside the standing caveats."""
    words: list[str] = []
    if source.schema.unit is None:
        words.append("Several rows of one person are not covered as one: for that, train with --unit-column.")
    else:
        words.append(
            f"Persons are told apart by column {source.schema.unit!r}; rows without a value there do not count."
        )
    if not score["private"]:
        words.append(f"The held-out score is outside the guarantee: {score['how']}.")
    encoder = preprocessing.encoder
    if encoder.dropped:
        words.append(f"Not used, since nothing about them stood out of the noise: {', '.join(encoder.dropped)}.")
    if encoder.task == "classification" and len(encoder.classes) < 2:
        words.append("Fewer than two classes stood out of the noise: the model's prediction is a constant.")
    words.append("The names of the columns, and the format of the file, are taken to be public.")
    return words


def large_delta(delta: float, rows: float) -> list[str]:
    """What follows from a delta at or above one over the number of rows, declared or bought.

    Example:
        >>> large_delta(1e-3, 900), len(large_delta(1e-3, 1000))
        ([], 1)
    """
    if delta * rows < 1:
        return []
    return [f"delta {delta:g} is at or above 1 / rows = {1 / rows:.3g}: at such a delta a whole row may be published."]


@dataclass(frozen=True)
class Checked:
    """A statement made again from the ledger, and what does not hold.

    Attributes:
        text: The statement.
        faults: What was changed, in words; empty if all holds.
        notes: What has come since it was made, in words.
    """

    text: str
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()


def check_run(folder: str | Path) -> Checked:
    """Verify ledger, statement and files of a finished run against each other, and write the statement again.

    Claims nothing against somebody who rewrites them all.

    Raises:
        TacitaError: There is no finished run here, or its statement cannot be read.
    """
    folder = Path(folder)
    stated = read_statement(folder)
    faults: list[str] = []
    try:
        ledger = Ledger.load(folder / "ledger.jsonl")
        anchor = Anchor(int(stated["ledger_lines"]), str(stated["ledger_sha256"]), STATEMENT)
        held = [ledger.verify(), ledger.verify(anchor)]
        faults += [f"ledger.jsonl against {found.anchor}: {found.reason}" for found in held if not found.ok]
        if not faults and ledger.anchor.count != anchor.count:
            faults.append("ledger.jsonl has more lines than when the statement was made")
        again = _again(ledger, stated)
    except (LedgerError, KeyError, TypeError, ValueError) as error:
        return Checked(
            (folder / TEXT).read_text(encoding="utf-8", errors="replace"), (*faults, f"ledger.jsonl: {error}")
        )
    changed = _differing(stated, again.to_json())
    if changed and not faults:
        faults.append(f"{STATEMENT} does not follow from the ledger: {', '.join(changed)}")
    if _text(folder) != again.text and not faults:
        faults.append(f"{TEXT} is not what follows from the ledger")
    return Checked(again.text, (*faults, *check_files(folder, stated)), _notes(folder, stated))


def _differing(stated: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """Names of fields that are in one of both only, or written otherwise: ``null`` is a value, 1 is not ``true``."""
    one, other = ({name: json.dumps(value, sort_keys=True) for name, value in x.items()} for x in (stated, again))
    changed = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return [name if name.isidentifier() else repr(name) for name in changed]


def _notes(folder: Path, stated: Mapping[str, Any]) -> tuple[str, ...]:
    """Other runs on the same data set, now."""
    dataset = stated.get("dataset")
    if not isinstance(dataset, Mapping) or not {"name", "id", "list"} <= set(dataset):
        return ()
    count = register.others(folder.absolute().parent / register.NAME, dataset)
    return (register.words(dataset, count),) if count else ()


def read_statement(folder: Path) -> dict[str, Any]:
    """``statement.json`` of a run."""
    try:
        stated = json.loads((folder / STATEMENT).read_bytes())
        if not isinstance(stated, dict):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        raise TacitaError(
            f"{str(folder)!r} holds no finished run: {STATEMENT} is missing or cannot be read. If a run was stopped "
            "there, repeat its command to finish it."
        ) from None
    return stated


def check_files(folder: Path, stated: Mapping[str, Any]) -> list[str]:
    """Files that are not those the statement was made for."""
    files = stated.get("files")
    wanted = {PREPROCESSING} if no_run(stated) else {MODEL, PREPROCESSING}
    if not isinstance(files, Mapping) or set(files) != wanted:
        return [f"{STATEMENT} names other files than {MODEL} and {PREPROCESSING}"]
    return [
        f"{name} is not the file that the statement is about"
        for name in files
        if file_sha256(folder / name) != files[name]
    ]


def no_run(stated: Mapping[str, Any]) -> bool:
    """Whether a selection made no run, so that there is no model."""
    selection = stated.get("selection")
    return isinstance(selection, Mapping) and selection.get("result") == "none"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _text(folder: Path) -> str:
    try:
        return (folder / TEXT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _again(ledger: Ledger, stated: Mapping[str, Any]) -> Statement:
    own = [] if not isinstance(stated["caveats"], list) else stated["caveats"]
    standing = statement(ledger, stated["delta"]).to_json()["caveats"]
    return statement(
        ledger,
        stated["delta"],
        purchases=stated["purchases"],
        chosen_by_tacita=stated["chosen_by_tacita"],
        caveats=own[len(standing) :],
        holdout_score=stated["holdout_score"],
        **{name: stated[name] for name in (*EXTRAS, *(one for one in IF_ANY if one in stated))},
    )
