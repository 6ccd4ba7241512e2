"""What a run on a table makes public and what it does not: its files, its columns, and what no noise protects."""

from pathlib import Path

from tacita.tables.preprocessing import Preprocessing
from tacita.tables.settings import TableSettings

FILES_POLICY: dict[str, list[str]] = {
    "may_leave": [
        "model.safetensors",
        "preprocessing.json",
        "config.toml (with the path of the table)",
        "statement.txt",
        "statement.json",
        "ledger.jsonl",
        "ledger.head.json",
        "signatures.jsonl",
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
        words.append("The held-out rows of the table: their exact score is published, outside the guarantee.")
    return words
