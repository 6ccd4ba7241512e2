"""The sections of a statement that are about fields of front ends: a run, its data and files, and its score.

Place: text_lines -> [ledger.run_sections] -> sections, report. The core states none of these fields.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from tacita._counted import counted
from tacita.ledger.text_lines import Words, attacker_in_words, in_words, listed, names_in_words, rounded_up, row
from tacita.ledger.verdict import Verdict, verdict

Fields = Mapping[str, Any]
GIVEN = {  # what whoever makes the run may say of it -> its name on the page
    "responsible": "Made by",
    "contact": "Contact",
    "data_period": "Period",
    "purpose": "Purpose",
    "recipients": "Recipients",
    "retention": "Retention",
}
OUTSIDE_OF_IT = "What the guarantee does not cover"
NO_PERMISSION = (
    "The guarantee is about what these say, and is no stronger there. Whether they may leave is not decided here."
)
LEDGER_HASH = "SHA-256 of the ledger's last line before its seal"
HOLD_SCORE = ("statement.txt", "statement.json", "ledger.jsonl", "ledger.head.json", "signatures.jsonl")  # or its hash
GUARANTEE = ("epsilon", "delta", "neighbours", "unit")  # the four that have to be the same to be compared
UNLISTED = "not known: a run is listed under the name of its data set, and none was given."
IN_MEMORY = "memory"  # the field ledger_anchor of a ledger without a file
NOT_VERIFIED = (
    "What was given or declared (people, purpose, data set, that a row is all of one unit, bounds, public files), that "
    "the model was made from the noisy answers alone (a loop of one's own may use others), what else was done with the "
    "same data, and that nobody rewrote the ledger with all copies of its last hash. No program can verify these, and "
    "a signature does not: ask those who gave them."
)


def _run(fields: Fields) -> Iterator[Words]:
    run, about, dataset = fields.get("run"), fields.get("about") or {}, fields.get("dataset")
    if not (about or isinstance(run, Mapping)):
        return
    if isinstance(run, Mapping):
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        yield row("Run", f"{run['id']}, stated on {run['date']} (UTC, by the machine's clock), with {versions}")
    yield row("Data", data_in_words(fields))
    if model := model_in_words(fields):
        yield row("Model", f"{model}.")
    yield from (row(title, about[name]) for name, title in GIVEN.items() if name in about)
    named = isinstance(dataset, Mapping) and "name" in dataset
    missing = ["name of the data set"] * (not named) + [one.lower() for name, one in GIVEN.items() if name not in about]
    if missing:
        yield row("Not given", f"{', '.join(missing)}.")
    yield row("Other runs", other_runs_in_words(dataset))


def data_in_words(fields: Fields) -> str:
    """Name the data, and count its rows and columns."""
    parts: list[str] = []
    if isinstance(dataset := fields.get("dataset"), Mapping) and "name" in dataset:
        parts.append(f"{dataset['name']} (the name that was given, or the file's)")
    if (fingerprint := fields.get("data_fingerprint")) is not None:
        parts.append(f"fingerprint {fingerprint} (keyed: whoever has the key can compare it with a file)")
    if (rows := fields.get("rows")) is not None:
        parts.append(rows_in_words(rows))
    if isinstance(columns := fields.get("columns"), Mapping):
        counts = [f"{len(found)} {name.replace('_', ' ')}" for name, found in columns.items() if found]
        parts.append(f"columns: {', '.join(counts) or 'none'}")
    return f"{'; '.join(parts) or 'nothing was said'}."


def model_in_words(fields: Fields) -> str | None:
    """Name the model, and of a fine-tuning the base, its weights' hashes and the template; ``None`` if none is told.

    Example:
        >>> model_in_words({"model": "linear"})
        'linear'
        >>> base = {"name": "gpt2", "sha256": {"model.safetensors": "ab12"}}
        >>> model_in_words({"model": "all weights", "base_model": base, "text_template": "none"})
        'all weights; base gpt2 (SHA-256 of model.safetensors: ab12); template of conversations: none'
    """
    words, base = fields.get("model"), fields.get("base_model")
    if not isinstance(base, Mapping):
        return words
    hashes = "; ".join(f"SHA-256 of {name}: {digest}" for name, digest in base["sha256"].items())
    return f"{words}; base {base['name']} ({hashes}); template of conversations: {fields.get('text_template')}"


def _signature(fields: Fields) -> Iterator[Words]:
    followed = (
        "that the ledger's lines follow from each other up to its last known hash, that the numbers of the guarantee "
        "follow from the ledger"
    )
    if fields["ledger_anchor"] == IN_MEMORY:
        yield row(
            "Verified", f"as this was stated: {followed}. The ledger was in memory, and has left no file to verify."
        )
    else:
        files = "that the files beside it are those of its seal, if it has one"
        yield row("Verified", f'by "tacita statement", once the run is sealed: {followed}, and {files}.')
    yield row("Not verified", NOT_VERIFIED)
    yield Words("")
    lines = "Name: ____________________   Date: ______________   Signature: ____________________"
    yield Words(not_to_be_signed(verdict(fields)) or lines)


def not_to_be_signed(weighed: Verdict) -> str:
    """Say why nobody should sign; empty if somebody may.

    Example:
        >>> not_to_be_signed(Verdict("private", missing=("contact",)))
        'NOT TO BE SIGNED: contact is not given, so that nobody would answer for it. tacita sign takes --contact.'
        >>> not_to_be_signed(Verdict("not private")), not_to_be_signed(Verdict("private"))
        ('NOT TO BE SIGNED: nothing is guaranteed, the verdict is not private.', '')
    """
    if not weighed.guaranteed:
        return f"NOT TO BE SIGNED: nothing is guaranteed, the verdict is {weighed.word}."
    if not weighed.missing:
        return ""
    verb, options = "is" if len(weighed.missing) == 1 else "are", " ".join(f"--{name}" for name in weighed.missing)
    return (
        f"NOT TO BE SIGNED: {', '.join(weighed.missing)} {verb} not given, so that nobody would answer for it. "
        f"tacita sign takes {options}."
    )


def leaving(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the field ``files_policy`` of a run that publishes ``files`` and what states it."""
    private = "the folder private/ (key, checkpoints), which is removed when the run is finished"
    return {"may_leave": [*sorted(files), *HOLD_SCORE], "never": ["the records themselves", private]}


def files_policy(policy: Any, weighed: Verdict) -> Any:
    """Return a field ``files_policy`` in which no file may leave that the verdict does not let leave.

    Example:
        >>> files = {"may_leave": ["model.safetensors", "statement.json"], "never": ["the table itself"]}
        >>> files_policy(files, Verdict("not private"))["may_leave"]
        []
        >>> files_policy(files, Verdict("private model, exact score"))["may_leave"]
        ['model.safetensors']
    """
    leaving, never = (policy.get(name) if isinstance(policy, Mapping) else None for name in ("may_leave", "never"))
    if not (isinstance(leaving, list) and isinstance(never, list)) or (weighed.guaranteed and not weighed.exact):
        return policy
    kept = [name for name in leaving if not weighed.guaranteed or str(name).rpartition("/")[2] in HOLD_SCORE]
    why = "they hold the exact score, or a hash that tests a guess of it" if weighed.exact else "nothing is guaranteed"
    staying = [f"{', '.join(map(str, kept))}: {why}"] if kept else []
    return {**policy, "may_leave": [name for name in leaving if name not in kept], "never": [*staying, *never]}


def files_in_words(fields: Fields) -> dict[str, str]:
    """Say which files the guarantee covers, and which must stay; empty if nothing was said of that."""
    covered, staying = ([*map(str, _part(fields, "files_policy", name) or ())] for name in ("may_leave", "never"))
    if not (covered or staying):
        return {}
    said = f"{', '.join(covered)}. {NO_PERMISSION}" if covered else "no file."
    return {"Covered": said, "Must stay": f"{'; '.join(staying)}."}


def price_of_choice(fields: Fields) -> str:
    """Say what a choice by hand costs, which no ledger knows: all runs together, by basic composition."""
    runs, epsilon = fields["chosen_among"], fields["conditional_epsilon"] if fields["conditions"] else fields["epsilon"]
    words = (
        f"CHOSEN AMONG {runs} RUNS by looking at results: the price of that choice is not in the epsilon of this run. "
    )
    if epsilon is None:
        return words + "Nothing is guaranteed of these runs together."
    total, delta = (runs * Decimal(repr(one)) for one in (epsilon, fields["delta"]))  # exact, and then rounded up
    if delta >= 1:
        return words + "Of these runs together nothing is guaranteed at such a delta."
    return words + (
        f"These runs together, if each has this epsilon and delta, have epsilon <= {rounded_up(total)} at delta = "
        f"{rounded_up(delta)}."
    )


def _columns(fields: Fields) -> Iterator[Words]:
    columns = fields.get("columns")
    if isinstance(columns, Mapping):
        for name, found in columns.items():
            yield from listed([f"{name.replace('_', ' ')} ({len(found)}): {names_in_words(found) or 'none'}"])


def _score_of(fields: Fields) -> list[Any]:
    return [] if fields["holdout_score"] is None else [fields["holdout_score"]]


def rows_in_words(rows: Any) -> str:
    """Say how many rows there are, and how that is known.

    Example:
        >>> rows_in_words({"value": 3051, "how": "bought"})
        'about 3,051 rows (bought)'
        >>> rows_in_words({"value": None, "how": "protected", "of": "clients"})
        'clients, whose number is protected'
    """
    what = rows.get("of", "rows") if isinstance(rows, Mapping) else "rows"
    if isinstance(rows, Mapping) and rows.get("how") == "protected":
        return f"{what}, whose number is protected"
    if not isinstance(rows, Mapping) or not isinstance(rows.get("value"), int | float):
        return f"rows: {in_words(rows)}"
    about = "about " if rows.get("how") == "bought" else ""
    return f"{about}{counted(rows['value'], what.removesuffix('s'))} ({rows.get('how')})"


def other_runs_in_words(dataset: Any) -> str:
    """Say how many other runs are listed under the same name, and what all of them guarantee together."""
    if not (isinstance(dataset, Mapping) and {"other_runs", "list"} <= set(dataset)):
        others = dataset.get("other_runs") if isinstance(dataset, Mapping) else None
        known = f"{in_words(others)} of the same process on the same data, in no list. Whether there are more is "
        return f"{known if others else ''}{UNLISTED}"
    others = f"{dataset['other_runs']} listed under this name in {dataset['list']} when this was stated"
    if dataset["other_runs"] == 0:
        return f"none listed under this name in {dataset['list']} when this was stated."
    together = dataset.get("together")
    if not isinstance(together, Mapping):
        return f"{others}."
    if together["epsilon"] is None:
        return f"{others}. No total can be stated: {together['why']}."
    return (
        f"{others}. With this one they guarantee epsilon <= {rounded_up(Decimal(repr(together['epsilon'])))} at delta "
        f"<= {rounded_up(Decimal(repr(together['delta'])))} (added up), if the list is complete."
    )


def score_in_full(score: Any) -> str:
    """Return a score in a sentence, beside that of a constant guess."""
    if not isinstance(score, Mapping) or not {"measure", "value", "how"} <= set(score):
        return in_words(score)
    value, (low, high) = score["value"], score.get("interval", (None, None))
    words = f"{score['measure']}: {'no number' if value is None else f'{value:.3f}'}"
    if value is not None and low is not None and {"level", "rows"} <= set(score):
        number = f"about {in_words(score['rows'])} {score.get('of', 'rows')}"
        words += f" ({score['level']:.0%} interval {low:g} to {high:g}, {number})"
    words += _beside(score, "; ", "interval ")
    guess = score.get("constant_guess")
    if isinstance(guess, Mapping):
        noise = f", give or take {guess['noise']:.3f} of noise" if "noise" in guess else ""
        words += f"; always answering {guess['label']!r} has {guess['value']:.3f}{noise}"
    return f"{words}. Source: {score['how']}."


def score_in_words(score: Any) -> str | None:
    """Say a score of a statement's field with its interval, beside a constant guess; ``None`` if it has no number.

    Example:
        >>> score = {"measure": "accuracy", "value": 0.8371, "AUC": {"value": 0.912, "interval": [0.9, 0.93]}}
        >>> score_in_words({**score, "interval": [0.8, 0.87], "constant_guess": {"label": "no", "value": 0.76}})
        'accuracy 0.837 (0.8 to 0.87), AUC 0.912 (0.9 to 0.93); always answering the same has accuracy 0.760'
        >>> score_in_words({"measure": "R2", "value": None}) is score_in_words(None) is None
        True
    """
    if (value := _number(score, "value")) is None:
        return None
    measure = in_words(score.get("measure"))
    words = f"{measure} {value:.3f}{_interval_in_words(score)}{_beside(score, ', ')}"
    if guess := _number(score.get("constant_guess"), "value"):
        words += f"; always answering the same has {measure} {guess:.3f}"
    return words


def _beside(score: Mapping[str, Any], before: str, word: str = "") -> str:
    """Say the other measures of a score that have a number."""
    measures = {"AUC": ".3f", "mean_absolute_error": ".4g"}
    found = {name: score[name] for name in measures if _number(score.get(name), "value") is not None}
    return "".join(
        f"{before}{name.replace('_', ' ')} {one['value']:{measures[name]}}{_interval_in_words(one, word)}"
        for name, one in found.items()
    )


def _interval_in_words(score: Any, word: str = "") -> str:
    interval = score.get("interval")
    return (
        f" ({word}{interval[0]:g} to {interval[1]:g})"
        if isinstance(interval, list | tuple) and len(interval) == 2
        else ""
    )


def epsilon_in_words(weighed: Verdict) -> str:
    """Say what becomes of epsilon by the verdict.

    Example:
        >>> epsilon_in_words(Verdict("private", epsilon=1.0)), epsilon_in_words(Verdict("changed", epsilon=1.0))
        ('at most 1', 'not verified')
    """
    bound = "infinity" if weighed.epsilon is None else f"at most {rounded_up(weighed.epsilon)}"
    if not weighed.verified:
        return "not verified"
    if weighed.word == "refuted":
        return f"refuted ({bound} was claimed)"
    if weighed.word == "not private" and weighed.epsilon is not None:
        return f"none ({bound} if the noise were secret)"
    return f"{bound} (under conditions)" if "under conditions" in weighed.word else bound


def columns_of_guarantee(fields: Fields, weighed: Verdict) -> tuple[str, ...]:
    """Return epsilon, delta, neighbouring relation and unit, which stand beside each other in every view."""
    said = [str(fields.get(name, "-")) for name in ("neighboring_relation", "privacy_unit")]
    delta = fields.get("delta")
    return (epsilon_in_words(weighed), f"{delta:g}" if isinstance(delta, float) else str(delta), *said)


def guarantee_in_words(fields: Fields, weighed: Verdict) -> str:
    """Say the same in a line.

    Example:
        >>> stated = {"delta": 1e-6, "neighboring_relation": "replace_one", "privacy_unit": "one person"}
        >>> guarantee_in_words(stated, Verdict("private", epsilon=1.0))
        'epsilon at most 1 at delta 1e-06, replace_one, one person'
    """
    return "epsilon {} at delta {}, {}, {}".format(*columns_of_guarantee(fields, weighed))


def risk_in_words(fields: Fields, weighed: Verdict) -> str:
    """Say what an attacker can find out about one unit, for the views that are shorter than the statement."""
    accuracy = _number(fields, "attack_accuracy")
    if not weighed.guaranteed or accuracy is None:
        return "No limit is guaranteed to what an attacker can find out about one unit."
    score = fields.get("holdout_score")
    apart = " but the score" if isinstance(score, Mapping) and score.get("private") is False else ""
    attacker = attacker_in_words(fields.get("neighboring_relation"), accuracy)
    return f"{attacker[0].upper()}{attacker[1:]} afterwards, having seen everything that was released{apart}."


def _part(fields: Fields, name: str, part: str) -> Any:
    value = fields.get(name)
    return value.get(part) if isinstance(value, Mapping) else None


def _number(fields: Any, name: str) -> float | None:
    found = fields.get(name) if isinstance(fields, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def check_about(about: object) -> None:
    """Refuse what a statement has no place for.

    Raises:
        TypeError: It is not a mapping.
        ValueError: A name is unknown, or a value is not one line of text.
    """
    if not isinstance(about, Mapping):
        raise TypeError(f"about must be a mapping of {', '.join(GIVEN)}, got {type(about).__name__}.")
    for name, value in about.items():
        if name not in GIVEN:
            raise ValueError(f"about must hold {', '.join(GIVEN)}, got {name!r}.")
        one_line(f"about.{name}", value)


def one_line(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` is one line of text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{name} must be one line of text, got {value!r}.")


SECTIONS: dict[str, Callable[[Fields], Iterable[Words]]] = {  # by the title in tacita.ledger.sections
    "This run": _run,
    "Held-out score": lambda fields: listed(score_in_full(one) for one in _score_of(fields)),
    "Files": lambda fields: (row(name, words) for name, words in files_in_words(fields).items()),
    OUTSIDE_OF_IT: lambda fields: listed(fields.get("not_anonymised")),
    "Columns": _columns,
    "Signature": _signature,
    "Held-out score in full": lambda fields: listed(_score_of(fields)),
}
