"""The settings of a run on a table, and the TOML file that repeats the run. All of them are public."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tacita import _validate
from tacita._near_names import did_you_mean
from tacita.accounting import NeighboringRelation, check_relation
from tacita.ledger.about import check_about
from tacita.tables.csv_lines import FileFormat

Task = Literal["classification", "regression"]
Hardened = Literal["rounded", "discrete"]
FeedbackKind = Literal["released", "bounded"]
AverageChoice = Literal["last", "half", "ema"]
MODELS = ("linear", "mlp")
LISTS = ("columns", "drop", "classes")  # settings that hold several names
CONFIG = "config.toml"  # the settings of a run, in its folder


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The settings of ``tacita train``.

    ``None`` means that a public rule chooses the setting (docs/defaults.md), or that it is bought from the rows.

    Attributes:
        data: The file with the table: CSV (compressed or not), Parquet or NPZ.
        output: The folder of the run.
        epsilon, delta: The guarantee of everything together; they have no default.
        target: The column to predict; the schema may name it instead.
        model: "linear", "mlp", or "package.module:callable" with ``callable(num_features, num_outputs) -> nn.Module``.
        width: The number of hidden units of the mlp.
        task: "classification" or "regression"; bought if ``None``.
        classes: The public labels of the target, at least two; bought if empty.
        schema: A TOML file with what is public about the columns.
        rows: The public number of rows, a declared guess under add_or_remove_one.
        test_file: A table declared public, for an exact score outside the guarantee.
        non_private_holdout: Whether to score the held-out rows exactly, outside the guarantee.
        features: "scattering" to train on fixed features of images (:class:`~tacita.features.Scattering`) in place of
            their pixels; they cost no privacy.
        columns: The names of the columns of a file without a header line.
        drop: The columns to leave out.
        delimiter, quote, encoding: The format of a CSV; never guessed from its rows.
        decimal: The decimal mark of numbers in text, "." or ",".
        unit_column: The column that names the person, if a person has several rows.
        max_rows_per_unit: The largest number of rows of one person that count.
        neighboring_relation: How neighbouring tables differ.
        privacy_unit: Whom the guarantee protects, in words.
        sample_rate: The chance of each row to be in a query.
        queries: The number of queries of the training.
        max_grad_norm: The clipping threshold.
        lr: The step size.
        average: The point of the run that is published: the "last" iterate, the mean of the last "half" of them, or
            "ema", a mean whose weights fade over the last tenth. Each costs no privacy. "half" by default.
        feedback: Error feedback: what clipping removes is added again later, "released" with noise of its own or
            "bounded" and hidden. At the same epsilon it mostly costs more than it gives (docs/error-feedback.md).
        balanced: Whether rare classes count as much as frequent ones: rows are weighted by bought counts of their
            class.
        hardened: "rounded" or "discrete" noise against attacks on floating point; ``True`` means "rounded".
        allow_large_delta: Whether to accept a delta at or above 1 / (public number of rows).
        sweep: The text of a grid file, to choose the best of several runs privately (docs/tuning.md).
        chosen_among: The number of runs among which this one is chosen by hand; the statement then says that the price
            of that choice is not in epsilon.
        dataset_name: The public name of the data. Runs under one name are listed beside their folders, and statements
            say how many there are, and what they guarantee together.
        about: What the statement says as given: responsible, contact, data_period, purpose, recipients, retention.
        seed: Derive all coins and noise from this number, so that a demonstration can be repeated. NOT PRIVATE, and
            the statement says so first.
    """

    data: str
    output: str
    epsilon: float
    delta: float
    target: str | None = None
    model: str = "linear"
    width: int | None = None
    task: Task | None = None
    classes: tuple[str, ...] = ()
    schema: str | None = None
    rows: int | None = None
    test_file: str | None = None
    non_private_holdout: bool = False
    features: Literal["scattering"] | None = None
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    delimiter: str | None = None
    quote: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    unit_column: str | None = None
    max_rows_per_unit: int | None = None
    neighboring_relation: NeighboringRelation = "add_or_remove_one"
    privacy_unit: str | None = None
    sample_rate: float | None = None
    queries: int | None = None
    max_grad_norm: float | None = None
    lr: float | None = None
    average: AverageChoice | None = None
    feedback: FeedbackKind | None = None
    balanced: bool = False
    allow_large_delta: bool = False
    hardened: Hardened | bool | None = None
    sweep: str | None = None
    chosen_among: int | None = None
    dataset_name: str | None = None
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in LISTS:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.hardened, bool):  # a bare --hardened
            object.__setattr__(self, "hardened", "rounded" if self.hardened else None)
        self._check_types()
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        check_relation(self.neighboring_relation)
        if self.lr is not None:
            _validate.positive("lr", self.lr)
        if self.max_grad_norm is not None:
            _validate.threshold("max_grad_norm", self.max_grad_norm)
        for name in ("width", "rows", "max_rows_per_unit", "queries"):
            if getattr(self, name) is not None:
                _validate.count(name, getattr(self, name))
        if self.sample_rate is not None:
            _validate.probability("sample_rate", self.sample_rate)
        if self.seed is not None:
            _validate.count("seed", self.seed, at_least=0)
        check_about(self.about)
        self._check_choices()
        self._check_tuning()
        self.reading(FileFormat())
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
            near = did_you_mean(self.model, MODELS)
            raise ValueError(f"model must be linear, mlp or package.module:callable, got {self.model!r}.{near}")
        if self.hardened not in (None, "rounded", "discrete"):
            raise ValueError(f"hardened must be rounded or discrete, got {self.hardened!r}.")
        if self.average not in (None, "last", "half", "ema"):
            raise ValueError(f"average must be last, half or ema, got {self.average!r}.")
        if self.feedback not in (None, "released", "bounded"):
            raise ValueError(
                f"feedback must be released or bounded, got {self.feedback!r}. With a hidden, unbounded error "
                "(tacita.PrivateFeedback) the noise would depend on the number of rows, which is bought."
            )
        if self.features not in (None, "scattering"):
            raise ValueError(f"features must be scattering, or left out, got {self.features!r}.")
        if self.feedback is not None and self.hardened is not None:
            raise ValueError(
                "feedback must go without hardened, because the error of clipping is on no grid: leave one of them out."
            )
        if self.balanced and self.task == "regression":
            raise ValueError("balanced belongs to a classification: leave it out, or task = regression.")
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

    def reading(self, declared: FileFormat) -> FileFormat:
        """Return the format of the file: that of the schema, ``declared``, overridden by the settings given here."""
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("delimiter", "quote", "encoding", "decimal")
            if getattr(self, name) is not None
        }
        if self.columns:
            changes |= {"columns": self.columns, "header": False}
        fields = {name: getattr(declared, name) for name in declared.__struct_fields__}
        return FileFormat(**{**fields, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without those that are left to a public rule."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: _plain(value) for name, value in values.items()}
        return {name: value for name, value in plain.items() if value not in (None, [], {})}

    def to_toml(self) -> str:
        """Return the content of the file ``config.toml`` of a run; :meth:`from_toml` reads it.

        Example:
            >>> settings = TableSettings(data="a.csv", output="run", epsilon=1.0, delta=1e-5, target="income")
            >>> TableSettings.from_toml(settings.to_toml()) == settings
            True
        """
        values = self.to_dict()
        lines = [f"{name} = {_toml(value)}\n" for name, value in values.items() if not isinstance(value, dict)]
        for name, table in values.items():  # tables end the file
            if isinstance(table, dict):
                lines += [f"\n[{name}]\n", *(f"{key} = {_toml(value)}\n" for key, value in table.items())]
        return "# tacita train --config THIS_FILE runs it again (give another --output)\n" + "".join(lines)

    @classmethod
    def from_toml(cls, text: str) -> "TableSettings":
        """Read what :meth:`to_toml` wrote, strictly."""
        return cls.from_dict(parse_toml(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableSettings":
        """Make settings from plain values; an unknown name is refused, and a missing one is named."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"config has the unknown setting {name!r}.{did_you_mean(name, known)}")
        for name, field in known.items():
            required = field.default is field.default_factory is dataclasses.MISSING
            if required and name not in values:
                given = "the file after the command" if name == "data" else f"--{name.replace('_', '-')}"
                raise ValueError(f"{name} is missing: give {given}, or set it in the config file.")
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)


def bound_settings(settings: TableSettings) -> dict[str, Any]:
    """Return the settings that may not change when a run is resumed: all but the step size.

    With another step size no query is redone. In a sweep the step size is bound, too: runs are compared by it.
    """
    return {name: value for name, value in settings.to_dict().items() if name != "lr" or settings.sweep is not None}


def parse_toml(text: str) -> dict[str, Any]:
    """Parse the text of a config file."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"config must be a TOML file: {error}.") from None
    except RecursionError:
        raise ValueError("config must be a TOML file: this one is nested too deeply.") from None


def check_delta(delta: float, rows: int | None, allow_large: bool) -> None:
    """Refuse a delta at or above 1 / (public number of rows), which would allow publishing a whole row."""
    if rows is not None and delta >= 1 / rows and not allow_large:
        raise ValueError(
            f"delta must be below 1 / rows = {1 / rows:.3g}, got {delta:g}: at that delta a whole row may be "
            "published. Choose a smaller one, or pass --allow-large-delta."
        )


def read_text(name: str, path: str | Path) -> str:
    """Read a file of settings; ``name`` is the argument that an error names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{name} must be a readable text file, got {str(path)!r}.") from None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


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
    **dict.fromkeys(("width", "rows", "max_rows_per_unit", "queries", "chosen_among", "seed"), (int, _NONE)),
    "about": (Mapping,),
    **dict.fromkeys(("non_private_holdout", "allow_large_delta", "balanced"), (bool,)),
    **dict.fromkeys(LISTS, (tuple,)),
    **dict.fromkeys(
        (
            "target",
            "task",
            "schema",
            "test_file",
            "delimiter",
            "quote",
            "encoding",
            "decimal",
            "unit_column",
            "privacy_unit",
        ),
        (str, _NONE),
    ),
    **dict.fromkeys(("sweep", "dataset_name", "hardened", "feedback", "features", "average"), (str, _NONE)),
}


def _words(kinds: tuple[type, ...]) -> str:
    names = {str: "text", int: "an integer", float: "a number", bool: "true or false", tuple: "a list of names"}
    names[Mapping] = "a table of texts"
    return " or ".join(names[kind] for kind in kinds if kind in names)
