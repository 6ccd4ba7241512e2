"""Settings of a run on a table: all public, all in one place, and a TOML file that runs again.

Place: the user -> [pipeline.settings] -> pipeline. Nothing here has seen a row.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tacita import _validate
from tacita.accounting import NeighboringRelation, check_relation
from tacita.tables.readers import Reading

Task = Literal["classification", "regression"]
Hardened = Literal["rounded", "discrete"]
MODELS = ("linear", "mlp")


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What ``tacita train`` is asked for. ``None``: chosen by a public rule (docs/defaults.md) or bought from the rows.

    Attributes:
        data: The table: CSV (gzip too), Parquet or NPZ.
        output: The run's folder.
        epsilon, delta: The guarantee of everything together; never defaulted.
        target: Column to predict; may stand in the schema instead.
        model: "linear", "mlp", or "package.module:callable" with ``callable(num_features, num_outputs) -> nn.Module``.
        width: Hidden units of the mlp.
        task: "classification" or "regression"; bought if ``None``.
        schema: TOML file with what is public about the columns.
        rows: Public number of rows, a declared guess under add_or_remove_one.
        test_file: A table declared public, for an exact score outside the guarantee.
        non_private_holdout: Score the held-out rows exactly, outside the guarantee.
        columns: Names of the columns of a file without a header line.
        drop: Columns to leave out.
        delimiter, quote, encoding: How a CSV is read; never guessed from its rows.
        unit_column: Column that names the person, if a person has several rows.
        max_rows_per_unit: At most so many rows of a person count.
        neighboring_relation: How neighbouring tables differ.
        privacy_unit: Whom the guarantee protects, in words.
        sample_rate: Chance of a row to be in a query.
        queries: Queries of the training.
        max_grad_norm: Clipping threshold.
        lr: Step size.
        hardened: "rounded" or "discrete" noise against attacks on floating point; ``True`` is "rounded".
        allow_large_delta: Accept a delta at or above one over the public number of rows.
        sweep: Text of a grid file: the best of several runs, chosen privately (docs/tuning.md).
        chosen_among: How many runs this one was, or will be, chosen among by hand; the statement then says that the
            price of that choice is not in epsilon.
        dataset_name: Public name of the data: runs under one name are listed beside their folders, and statements say
            how many there are.
    """

    data: str
    output: str
    epsilon: float
    delta: float
    target: str | None = None
    model: str = "linear"
    width: int | None = None
    task: Task | None = None
    schema: str | None = None
    rows: int | None = None
    test_file: str | None = None
    non_private_holdout: bool = False
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    delimiter: str | None = None
    quote: str | None = None
    encoding: str | None = None
    unit_column: str | None = None
    max_rows_per_unit: int | None = None
    neighboring_relation: NeighboringRelation = "add_or_remove_one"
    privacy_unit: str | None = None
    sample_rate: float | None = None
    queries: int | None = None
    max_grad_norm: float | None = None
    lr: float | None = None
    allow_large_delta: bool = False
    hardened: Hardened | bool | None = None
    sweep: str | None = None
    chosen_among: int | None = None
    dataset_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("columns", "drop"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.hardened, bool):  # a bare --hardened
            object.__setattr__(self, "hardened", "rounded" if self.hardened else None)
        self._check_types()
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        check_relation(self.neighboring_relation)
        for name in ("max_grad_norm", "lr"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        for name in ("width", "rows", "max_rows_per_unit", "queries"):
            if getattr(self, name) is not None:
                _validate.count(name, getattr(self, name))
        if self.sample_rate is not None:
            _validate.probability("sample_rate", self.sample_rate)
        self._check_choices()
        self._check_tuning()
        self.reading(Reading())
        check_delta(self.delta, self.rows, self.allow_large_delta)

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value, kinds = getattr(self, field.name), _KINDS[field.name]
            if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
                raise ValueError(f"{field.name} must be {_words(kinds)}, got {value!r}.")
            if isinstance(value, tuple) and not all(isinstance(name, str) for name in value):
                raise ValueError(f"{field.name} must be {_words(kinds)}, got {value!r}.")
            texts = value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()
            if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
                raise ValueError(f"{field.name} must be text that UTF-8 can hold, for config.toml, got {value!r}.")

    def _check_choices(self) -> None:
        if self.task not in (None, "classification", "regression"):
            raise ValueError(f"task must be classification or regression, got {self.task!r}.")
        if self.model not in MODELS and ":" not in self.model:
            raise ValueError(f"model must be linear, mlp or package.module:callable, got {self.model!r}.")
        if self.hardened not in (None, "rounded", "discrete"):
            raise ValueError(f"hardened must be rounded or discrete, got {self.hardened!r}.")
        if self.width is not None and self.model != "mlp":
            raise ValueError(f"width belongs to model = mlp, got it with {self.model!r}.")
        if self.test_file is not None and self.non_private_holdout:
            raise ValueError("test_file and non_private_holdout are two ways to get a score: give one of them.")

    def _check_tuning(self) -> None:
        if self.chosen_among is not None:
            _validate.count(
                "chosen_among", self.chosen_among, at_least=2, hint="Leave it out for a run that is the only one."
            )
        if self.dataset_name is not None and (not self.dataset_name.strip() or "\n" in self.dataset_name):
            raise ValueError(f"dataset_name must be one line of text, got {self.dataset_name!r}.")
        if self.sweep is not None and self.non_private_holdout:
            raise ValueError(
                "sweep needs a private score to choose by: leave out non_private_holdout, or give a test_file that is "
                "public."
            )

    def reading(self, declared: Reading) -> Reading:
        """How to read the file: ``declared`` (the schema's), overridden by the settings given here."""
        changes: dict[str, Any] = {
            name: getattr(self, name) for name in ("delimiter", "quote", "encoding") if getattr(self, name) is not None
        }
        if self.columns:
            changes |= {"columns": self.columns, "header": False}
        fields = {name: getattr(declared, name) for name in declared.__struct_fields__}
        return Reading(**{**fields, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, those left to a public rule omitted."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {name: value for name, value in plain.items() if value is not None and value != []}

    def to_toml(self) -> str:
        """The file ``config.toml`` of a run; :meth:`from_toml` reads it.

        Example:
            >>> settings = TableSettings(data="a.csv", output="run", epsilon=1.0, delta=1e-5, target="income")
            >>> TableSettings.from_toml(settings.to_toml()) == settings
            True
        """
        lines = [f"{name} = {_toml(value)}\n" for name, value in self.to_dict().items()]
        return "# tacita train --config THIS_FILE runs it again (give another --output)\n" + "".join(lines)

    @classmethod
    def from_toml(cls, text: str) -> "TableSettings":
        """Read what :meth:`to_toml` wrote, strictly."""
        return cls.from_dict(parse_toml(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableSettings":
        """From plain values; an unknown name is refused, a missing one named."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"config has the unknown setting {name!r}: check its spelling.")
        for name, field in known.items():
            if field.default is dataclasses.MISSING and name not in values:
                raise ValueError(f"{name} is missing: give --{name.replace('_', '-')} or set it in the config file.")
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a config file."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"config must be a TOML file: {error}.") from None
    except RecursionError:
        raise ValueError("config must be a TOML file: this one is nested too deeply.") from None


def check_delta(delta: float, rows: int | None, allow_large: bool) -> None:
    """Refuse a delta at or above one over the *public* number of rows: it would allow to publish a row whole."""
    if rows is not None and delta >= 1 / rows and not allow_large:
        raise ValueError(
            f"delta must be below 1 / rows = {1 / rows:.3g}, got {delta:g}: at that delta a whole row may be "
            "published. Choose a smaller one, or pass --allow-large-delta."
        )


def read_text(name: str, path: str | Path) -> str:
    """The text of a settings file; ``name`` is the argument that an error names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{name} must be a readable text file, got {str(path)!r}.") from None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a setting must be finite, got {value!r}.")
    return repr(value)


_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("data", "output", "model", "neighboring_relation"), (str,)),
    **dict.fromkeys(("epsilon", "delta"), (int, float)),
    **dict.fromkeys(("sample_rate", "max_grad_norm", "lr"), (int, float, _NONE)),
    **dict.fromkeys(("width", "rows", "max_rows_per_unit", "queries", "chosen_among"), (int, _NONE)),
    **dict.fromkeys(("non_private_holdout", "allow_large_delta"), (bool,)),
    **dict.fromkeys(("columns", "drop"), (tuple,)),
    **dict.fromkeys(
        ("target", "task", "schema", "test_file", "delimiter", "quote", "encoding", "unit_column", "privacy_unit"),
        (str, _NONE),
    ),
    **dict.fromkeys(("sweep", "dataset_name", "hardened"), (str, _NONE)),
}


def _words(kinds: tuple[type, ...]) -> str:
    names = {str: "text", int: "an integer", float: "a number", bool: "true or false", tuple: "a list of names"}
    return " or ".join(names[kind] for kind in kinds if kind in names)
