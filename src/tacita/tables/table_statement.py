"""The statement of a run on a table: what was bought, what tacita chose, and how the score was obtained.

Every number of the guarantee comes from the ledger.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita._counted import counted
from tacita.ledger import Ledger, Statement, statement
from tacita.ledger.run_sections import HOLD_SCORE
from tacita.ledger.text_lines import names_in_words
from tacita.runs import run_list
from tacita.tables import rules
from tacita.tables.encoding import Encoder
from tacita.tables.features import NumberTarget
from tacita.tables.final_constant import OF_A_MEAN, OF_A_RARE_CLASS, corrects_clipping
from tacita.tables.lost_rows import lost_rows
from tacita.tables.plan import TablePlan
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.released_counts import whole
from tacita.tables.rules import HOLDOUT
from tacita.tables.settings import TableSettings
from tacita.tables.source import TableSource, unit_in_words

PREPROCESSING = "preprocessing.json"
EXTRAS = (
    "run",
    "model",
    "task",
    "target",
    "rows",
    "columns",
    "files_policy",
    "not_anonymised",
    "private_releases",
    "files",
    "edits",
)  # fields that a run on a table adds to a statement
NOISE_OF = "one count; its ratio to what a unit can add is that of the session"
MOST_NAMED = 10  # columns that a line on the way names; the statement names all
IF_ANY = ("selection", "chosen_among", "dataset", "about", "data_fingerprint", "public_losses", "headline")  # ... if so
IF_ANY += ("base_model", "text_template")  # of a fine-tuning
PRIVATE_RELEASES = (
    "the weights in model.safetensors",
    "what preprocessing.json says of the columns and the target (kinds, bounds, categories, classes, counts)",
    "in the statement: rows, num_units, columns, task, lr, what purchases released, holdout_score, and "
    "caveats on columns, classes, rows that contribute nothing, and delta",
    "data_fingerprint, if there is one, under a key that whoever made the run keeps",
    "fingerprints of queries in ledger.jsonl, under a key that is deleted, and the hashes that cover any of these",
)


CUT_AT_QUOTES = (
    "A record may have several lines, and is cut at its quotes by a public rule (multiline): what counts as one record "
    "is what this rule cuts. A line inside a quoted cell that is a whole record by itself is one; and two halves of a "
    "broken record are read as one where nothing stands between them."
)


@dataclass(frozen=True)
class Selected:
    """What a statement says about a run that was chosen among several, including the price of the choice.

    Attributes:
        field: The statement's field ``selection``.
        caveats: Sentences for the reader.
        chosen_by_tacita: The settings of the selection that a public rule chose.
    """

    field: Mapping[str, Any]
    caveats: tuple[str, ...]
    chosen_by_tacita: tuple[str, ...] = ()


def make_statement(
    ledger: Ledger,
    settings: TableSettings,
    *,
    source: TableSource,
    plan: TablePlan,
    preprocessing: Preprocessing,
    score: Mapping[str, Any],
    files: Mapping[str, str],
    fingerprint: str | None,
    run: Mapping[str, Any],
    dataset: Mapping[str, Any],
    selection: Selected | None = None,
    notes: Sequence[str] = (),
) -> Statement:
    """Make the statement of a finished run; ``notes`` are caveats of its training, ``fingerprint`` is of its data."""
    encoder = preprocessing.encoder
    if_any = {
        "selection": None if selection is None else dict(selection.field),
        "chosen_among": settings.chosen_among,
        "dataset": dataset,
        "about": dict(settings.about) or None,
        "data_fingerprint": fingerprint,
    }
    return statement(
        ledger,
        settings.delta,
        purchases=list_purchases(plan, preprocessing, score, "score" if selection is None else "select"),
        chosen_by_tacita=[
            *_chosen(settings, source, plan, preprocessing),
            *(() if selection is None else selection.chosen_by_tacita),
        ],
        caveats=[
            *caveats(source, preprocessing, score),
            *_tuning(settings, selection, dataset),
            *notes,
        ],
        holdout_score=dict(score),
        num_units=max(round(preprocessing.rows), 1),
        run=dict(run),
        model=preprocessing.model.name,
        **_asked_for(settings),
        task=encoder.task,
        target=encoder.target.column if encoder.target else None,
        rows={"value": whole(preprocessing.rows), "how": "declared" if source.schema.rows is not None else "bought"},
        columns=columns_field(settings, preprocessing, source.schema.unit),
        files_policy=FILES_POLICY,
        not_anonymised=not_anonymised(settings),
        private_releases=list(PRIVATE_RELEASES),
        files=dict(files),
        **{name: value for name, value in if_any.items() if value is not None},
    )


def _asked_for(settings: TableSettings) -> dict[str, str]:
    """Return the settings of the training that are stated only where somebody asked for them."""
    words = {"features": settings.features, "average": settings.average}
    return {name: value for name, value in words.items() if value is not None}


def _tuning(settings: TableSettings, selection: Selected | None, dataset: Mapping[str, Any]) -> list[str]:
    """Say what was chosen by looking at results, and whether that is paid for."""
    words = [] if selection is None else list(selection.caveats)
    if settings.chosen_among is not None:
        words.append(
            f"Chosen among {settings.chosen_among} runs by looking at results outside of this guarantee: the price of "
            f"that choice is not in epsilon. Of these runs together, if all have this epsilon and delta, "
            f"{settings.chosen_among} times both is guaranteed. tacita train --sweep chooses at a stated price."
        )
    if dataset["other_runs"]:
        words.append(run_list.words(dataset, dataset["other_runs"]))
    return words


def _chosen(settings: TableSettings, source: TableSource, plan: TablePlan, preprocessing: Preprocessing) -> list[str]:
    encoder = preprocessing.encoder
    words = rules.chosen(
        settings,
        encoder,
        model=preprocessing.model.name,
        rows=preprocessing.rows,
        holds_out=plan.holds_out,
        purchases=plan.purchases_share,
    )
    words += [OF_A_RARE_CLASS] if corrects_clipping(preprocessing, settings) else []
    words += [*target_as_trained(encoder), *([plan.noise_in_words] if plan.noise_in_words else [])]
    if plan.buys_target and plan.buys_rows and (source.schema.target is None or source.schema.target.task is None):
        words.insert(0, f"task = {encoder.task}")
    return words if source.schema.privacy_unit else [*words, f"privacy_unit = {unit_in_words(source.schema)}"]


def target_as_trained(encoder: Encoder) -> list[str]:
    """Say where a regression's target is clamped, and whether it is trained on the logarithm."""
    target = encoder.target
    if not isinstance(target, NumberTarget):
        return []
    words = [f"target clamped to {target.lower:.6g} to {target.upper:.6g}"]
    if target.log is not None:
        words.append(OF_A_MEAN)
    return words


def list_purchases(
    plan: TablePlan, preprocessing: Preprocessing, score: Mapping[str, Any], score_session: str = "score"
) -> list[dict[str, Any]]:
    """List what was bought from the rows, at which noise, and a summary of what was released."""
    found: list[dict[str, Any]] = []
    survey, bought, encoder = preprocessing.survey, plan.purchases, preprocessing.encoder
    kinds = [] if survey is None else [facts.kind for facts in survey.columns]
    if survey is not None and plan.buys_rows:
        released = {"rows": whole(survey.rows), **({} if survey.task is None else {"task": survey.task})}
        found.append(_purchase("rows", "the number of rows, and the task", bought.rows_noise_std(), released))
    if survey is not None and (plan.columns_to_buy or plan.buys_target):
        histograms = 1 if survey.lean else 2
        noise_std = [bought.survey_noise_std(plan.columns_to_buy, histograms)] if plan.columns_to_buy else []
        noise_std += [bought.target_noise_std()] if plan.buys_target else []
        what = [f"types, values and bounds of {counted(plan.columns_to_buy, 'column')}"] if plan.columns_to_buy else []
        what += ["the target's values"] if plan.buys_target else []
        released = {kind: kinds.count(kind) for kind in ("number", "category", "dropped")}
        found.append(_purchase("survey", "; ".join(what), noise_std, {**released, "classes": len(encoder.classes)}))
    if survey is not None and plan.refined:
        what = "the scales" if survey.lean else "finer bounds"
        what += " of the columns that are numbers"
        found.append(
            _purchase("refinement", what, plan.refinement_noise_std(survey), {"number": kinds.count("number")})
        )
    if plan.buys_score and "noise_std" in score:
        what = f"the score on the {HOLDOUT:.0%} of rows held out by coin, beside the training"
        noise_std = list(score["noise_std"].values())
        found.append(_purchase(score_session, what, noise_std, {"value": score["value"]}))
    return found


def _purchase(session: str, what: str, noise_std: Any, released: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "session": session,
        "what": what,
        "noise_std": noise_std,
        "noise_of": NOISE_OF,
        "released": dict(released),
    }


def what_was_bought(preprocessing: Preprocessing, source: TableSource) -> list[str]:
    """Say what was bought, in lines of public words."""
    survey, encoder = preprocessing.survey, preprocessing.encoder
    if survey is None:
        return ["bought: nothing, because all is declared"]
    words = [
        f"bought: what is needed about {counted(len(source.to_buy), 'column')}, in about "
        f"{counted(preprocessing.rows, 'row')}"
    ]
    if survey.task is not None:
        words.append(task_words(preprocessing, source))
    if kept := classes_kept(preprocessing):
        words.append(kept)
    if encoder.dropped:
        names, more = encoder.dropped[:MOST_NAMED], len(encoder.dropped) - MOST_NAMED
        shown = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        words.append(f"not used, since nothing about them stood out of the noise: {shown}")
    words += lost_rows(preprocessing, source)
    return words


def task_words(preprocessing: Preprocessing, source: TableSource) -> str:
    """Say which task it is, and who decided it."""
    survey, target = preprocessing.survey, source.schema.target
    task = preprocessing.encoder.task
    if target is not None and target.task is not None:
        return f"task: {task}, as declared"
    why = "" if survey is None or not survey.task_why else f", since {survey.task_why}"
    return f"task: {task}{why}; give --task to decide it yourself"


def classes_kept(preprocessing: Preprocessing) -> str | None:
    """Say how many classes were bought, and how many rows have another label; ``None`` if no classes were bought."""
    survey, counts = preprocessing.survey, preprocessing.label_counts
    if preprocessing.encoder.task != "classification" or survey is None or survey.target_threshold is None:
        return None
    words = f"kept {counted(len(counts), 'class')}, those of at least about {survey.target_threshold:.0f} rows"
    low, high = others(preprocessing)
    if low == 0:
        return f"{words}; at most about {high:.0%} of the rows have another label or none"
    return f"{words}; {low:.0%} to {high:.0%} of the rows have another label, on which the model is wrong, or none"


def others(preprocessing: Preprocessing) -> tuple[float, float]:
    """Return bounds on the share of rows without a bought label, at two standard deviations of noise."""
    survey, counts, rows = preprocessing.survey, preprocessing.label_counts, max(preprocessing.rows, 1.0)
    assert survey is not None
    # The share is a difference of noisy counts: one of each kept class, and the number of rows.
    noise = 2 * math.hypot(len(counts) ** 0.5 * survey.target_noise_std, survey.rows_noise_std) / rows
    share = 1 - sum(counts.values()) / rows
    return min(max(share - noise, 0.0), 1.0), min(max(share + noise, 0.0), 1.0)


def caveats(source: TableSource, preprocessing: Preprocessing, score: Mapping[str, Any]) -> list[str]:
    """List what a reader must know about this run, beside the standing caveats."""
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
        words.append(
            f"Columns that are not used, since nothing about them stood out of the noise: {len(encoder.dropped)}. The "
            "appendix lists them."
        )
    if (kept := classes_kept(preprocessing)) is not None:
        words.append(f"{kept[0].upper()}{kept[1:]}.")
    words += classes_as_given(source)
    if source.schema.reading.multiline:
        words.append(CUT_AT_QUOTES)
    words += [f"{line[0].upper()}{line[1:]}." for line in lost_rows(preprocessing, source)]
    words.append("The names of the columns, and the format of the file, are taken to be public.")
    return words


def classes_as_given(source: TableSource) -> list[str]:
    """Say what becomes of rows whose target is none of the classes. They are counted with the rows, if these are."""
    target = source.schema.target
    if target is None or not target.classes:
        return []
    return [
        f"Classes as given: {names_in_words(target.classes)}. Rows whose target is none of them contribute nothing"
        + (", and no message tells how many: check the spelling." if source.schema.rows is not None else ".")
    ]


def no_run(stated: Mapping[str, Any]) -> bool:
    """Return whether a selection made no run, so that there is no model."""
    selection = stated.get("selection")
    return isinstance(selection, Mapping) and selection.get("result") == "none"


FILES_POLICY: dict[str, list[str]] = {
    "may_leave": [
        "model.safetensors",
        "preprocessing.json",
        "config.toml (with the path of the table)",
        *HOLD_SCORE,
    ],
    "never": [
        "the table itself",
        "the folder private/ (key, checkpoints, encoded rows), which is removed when the run is finished",
        "what tacita predict, check and schema write about rows",
    ],
}

STAYS_PERSONAL = (
    "The table: a run changes nothing in it, and it stays as personal as it was.",
    "Predictions: tacita predict writes the rows that it is given as they are, with a prediction beside each.",
    "What is declared: names of columns, file format, and all that options or a schema state are published as given.",
)


def columns_field(settings: TableSettings, preprocessing: Preprocessing, unit: str | None) -> dict[str, list[str]]:
    """Return the statement's field ``columns``: which are used, and which are not and why. All of it was bought or
    declared."""
    encoder = preprocessing.encoder
    found = {
        "used": list(encoder.columns(with_target=False)),
        "target": [] if encoder.target is None else [encoder.target.column],
        "without_signal": list(encoder.dropped),
        "dropped_by_option": list(settings.drop),
        "naming_the_unit": [] if unit is None else [unit],
    }
    return {name: names for name, names in found.items() if names or name == "used"}


def not_anonymised(settings: TableSettings) -> list[str]:
    """List what the guarantee of a run does not protect."""
    words: list[str] = [*STAYS_PERSONAL]
    if settings.test_file is not None:
        words.append(f"The rows of {Path(settings.test_file).name}, declared public: their exact score is published.")
    if settings.non_private_holdout:
        words.append(
            "The held-out rows of the table: their exact score stands in statement.txt and statement.json, outside the "
            "guarantee. Whoever gets these files gets it."
        )
    return words
