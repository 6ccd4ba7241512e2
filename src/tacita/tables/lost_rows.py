"""Rows that contribute nothing to a training: what is known of them before it starts. Public.

No message counts rows exactly. The histogram of the task (:mod:`tacita.tables.task`) has a noisy count of each kind of
target and of the lines that are no row, and the texts that were released show bytes that were not decoded.
"""

from collections.abc import Mapping

from tacita.ledger.text_lines import names_in_words
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.findings import GARBLED, RARE
from tacita.tables.intervals import fewest_for_curve
from tacita.tables.json_lines import JsonLinesFile
from tacita.tables.multiline import MOST_LINES
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.rules import HOLDOUT
from tacita.tables.score import CLASSES, ODDS
from tacita.tables.source import TableSource
from tacita.tables.table import Table
from tacita.tables.task import SEEN, TargetKinds

SURE = 4.0  # noise standard deviations: a count above them is said, wrongly in one run of 30,000
STRANGERS = 0.25  # of the targets, from which on a run stops that they have no part in
NAMED, LONGEST = 3, 40  # targets of a public file that are quoted, and how much of each
SHOWN = "tacita check shows them, to the holder of the data alone"


def lost_rows(preprocessing: Preprocessing, source: TableSource) -> list[str]:
    """Say about how many rows contribute nothing, and why, where noisy counts show it; and which texts are garbled."""
    kinds = None if preprocessing.survey is None else preprocessing.survey.kinds
    lost = [] if kinds is None else _lost(kinds, source, preprocessing.encoder.task)
    return [*lost, *_garbled(preprocessing, source), *_alike(preprocessing.encoder)]


def wrong_targets(kinds: TargetKinds, source: TableSource, task: str | None) -> str | None:
    """Say why the targets are not what was asked for, by the first purchase alone, before more is bought.

    Nearly none of them can be used; or more than a quarter have none of the classes as given, which most likely has one
    that is misspelled.
    """
    usable = kinds.label + kinds.decimal + (kinds.other if _texts_are_labels(source, task) else 0.0)
    classes = source.schema.target is not None and source.schema.target.classes is not None
    sure = SURE * kinds.noise_std
    strangers = classes and kinds.other - usable * STRANGERS / (1 - STRANGERS) > sure
    few = usable < SEEN * kinds.noise_std
    if not (few or strangers) or not (words := _lost(kinds, source, task)):
        return None
    return f"nothing to train on: {words[0]}" if few else words[0]


def nothing_to_train_on(preprocessing: Preprocessing, source: TableSource) -> str | None:
    """Say why a training would be in vain: no usable target, label or column stands out of the noise. Else ``None``."""
    target, survey = source.schema.target, preprocessing.survey
    assert target is not None
    if survey is None:
        return None
    encoder = preprocessing.encoder
    if encoder.task == "regression" and not target.complete and not survey.facts(target.column).bins:
        return f"no number stands out of the noise among the targets, in column {target.column!r}"
    if encoder.task == "classification" and len(encoder.classes) < 2:
        seen = f"no label but {encoder.classes[0]!r}" if encoder.classes else "no label"
        return (
            f"{seen} stood out of the noise in column {target.column!r}. A label needs about "
            f"{survey.target_threshold or 0:.0f} rows: more rows, a larger epsilon, or labels as given (--classes) help"
        )
    return None if encoder.num_features else "no column stood out of the noise"


def unknown_targets(encoder: Encoder, test: Table, rows: Encoded) -> str | None:
    """Say how many targets of a public test file the model cannot predict, with examples; ``None`` if there are none.

    The classes were bought or declared, and the file is declared public, so that its rows may be counted and quoted.
    """
    assert encoder.target is not None
    assert rows.labelled is not None
    labelled, column = rows.labelled.numpy(), encoder.target.column
    lost = labelled & ~rows.valid.numpy()
    if not labelled.any():
        return f"test_file: no row has a target in column {column!r}"
    if not lost.any():
        return None
    found = sorted(test.column(column).counts(lost).items(), key=lambda one: (-one[1], one[0]))
    quoted = ", ".join(repr(text[:LONGEST]) for text, _ in found[:NAMED]) + (
        " and others" if len(found) > NAMED else ""
    )
    classes = names_in_words(map(repr, encoder.classes))
    what = f"none of the classes ({classes})" if encoder.task == "classification" else "no numbers"
    return f"test_file: {lost.sum():,} of {labelled.sum():,} targets in column {column!r} are {what}: {quoted}"


def rare_class(preprocessing: Preprocessing, noise_std: Mapping[str, float] | None, *, balanced: bool) -> list[str]:
    """Say what a rare class means for the score, by bought counts; ``noise_std`` is that of the score, if it is bought.

    Example of a line: the rarest class, 'yes', has about 1.4% of the rows, ...
    """
    counts, guess = preprocessing.label_counts, preprocessing.guess
    if len(counts) < 2 or guess is None or (share := min(counts.values()) / max(preprocessing.rows, 1.0)) >= RARE:
        return []
    rarest = min(counts, key=lambda name: counts[name])
    words = (
        f"the rarest class, {rarest!r}, has about {share:.1%} of the rows: always answering {guess[0]!r} is right in "
        f"about {guess[1]:.1%} of them, so that accuracy says little. A model may rank rows well and never answer "
        f"{rarest!r}: rank them by its probabilities, which may be far from rates"
    )
    words += "; with --balanced it is expected to be lower" if balanced else ", or give --balanced"
    if noise_std is None or len(counts) > 2:
        return [words]
    held, needed = HOLDOUT * counts[rarest], fewest_for_curve(len(ODDS) + 1, noise_std[CLASSES])
    few = (
        f". About {held:.0f} of its rows are held out, and a private AUC needs {needed:.0f}: none will be stated, but "
        "on public rows (--test-file)"
    )
    return [words + (few if held < needed else ", and look at the AUC")]


def _texts_are_labels(source: TableSource, task: str | None) -> bool:
    """Return whether a text may be a target: labels are bought, and none are declared."""
    assert source.schema.target is not None
    return task == "classification" and source.schema.target.classes is None


def _lost(kinds: TargetKinds, source: TableSource, task: str | None) -> list[str]:
    target = source.schema.target
    assert target is not None
    words, sure = [], SURE * kinds.noise_std
    if kinds.other > sure and not _texts_are_labels(source, task):
        if target.classes is None:
            what = f"a text in column {target.column!r}, where a regression needs a number"
            way = (
                "give --task classification, or --decimal for numbers with a comma; zero bytes and a wrong --encoding "
                f"make texts of numbers, too. {SHOWN}"
            )
        else:
            what = f"none of the classes as given ({names_in_words(target.classes)}) in column {target.column!r}"
            way = (
                f"check their spelling, give --encoding if the file is not {source.schema.reading.encoding}, and leave "
                "out of the file what is not to be told apart"
            )
        words.append(f"about {kinds.other:,.0f} rows have {what}, and contribute nothing: {way}")
    if kinds.unreadable > sure:
        what, why = _unreadable(source)
        words.append(f"about {kinds.unreadable:,.0f} lines {what}, and contribute nothing: {why}. {SHOWN}")
    return words


def _unreadable(source: TableSource) -> tuple[str, str]:
    """Say what lines that are no row look like, and why that may be."""
    if isinstance(source.table, JsonLinesFile):
        return "are no row", "they are no JSON object, or hold a list or an object in a column that takes part"
    what = "have more or fewer cells than there are columns"
    if source.schema.reading.multiline:
        return what, f"cells are missing, or a quote is not closed within {MOST_LINES} lines"
    return what, (
        "cells are missing, a quote is not closed, or a quoted cell holds a line break (a record is one line; "
        "--multiline reads such records)"
    )


def _alike(encoder: Encoder) -> list[str]:
    """Name the classes that differ in capitals alone; their names are released."""
    spelt: dict[str, list[str]] = {}
    for name in encoder.classes:
        spelt.setdefault(name.casefold(), []).append(name)
    return [
        f"the classes {names_in_words(map(repr, names))} differ in capitals alone, and are told apart"
        for names in spelt.values()
        if len(names) > 1
    ]


def _garbled(preprocessing: Preprocessing, source: TableSource) -> list[str]:
    """Name the columns whose name, or a text of which that was released, has bytes that are no text."""
    columns = () if preprocessing.survey is None else preprocessing.survey.columns
    texts = {facts.column: (facts.column, *(text for text, _ in facts.values)) for facts in columns}
    found = {column for column, own in texts.items() if any(mark in text for text in own for mark in GARBLED)}
    if not found:
        return []
    reading = source.schema.reading.encoding
    return [
        f"texts hold zero bytes, or bytes that are not {reading}, in columns {names_in_words(sorted(found))}: give "
        f"--encoding (latin-1, say), or clean the file. {SHOWN}"
    ]
