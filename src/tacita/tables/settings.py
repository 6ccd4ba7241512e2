"""The settings of a run on a table, and the TOML file that repeats the run. All of them are public.

A setting is written once: its name, type and default, what else is checked of it, the group of its flag, and the text
below it, which is its documentation and the help of its flag.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

from cyclopts import Parameter
from docstring_parser import parse_from_object

from tacita import _validate
from tacita._choices import NeighboringRelation, check_relation
from tacita._near_names import did_you_mean
from tacita._whole_numbers import WHOLE

if TYPE_CHECKING:
    from tacita.runs.run_list import ListedRun
    from tacita.tables.csv_lines import FileFormat

MODELS = ("linear", "additive", "mlp")
CONFIG = "config.toml"  # the settings of a run, in its folder
TEXT_FORMAT = ("columns", "delimiter", "quote", "encoding", "decimal", "multiline")  # settings of a file of text

# Groups of flags.
DATA = Parameter(group="The table", negative=())
PRIVACY = Parameter(group="The guarantee", negative=())
PUBLIC = Parameter(group="What is public", negative=())
TRAINING = Parameter(group="The training", negative=())
TUNING = Parameter(group="Tuning", negative=())
RUN = Parameter(group="The run", negative=())


@dataclass(frozen=True)
class Hint:
    """What the message about a value outside of a closed set adds."""

    text: str


def _model(name: str, value: str) -> None:
    if value not in MODELS and ":" not in value:
        near = did_you_mean(value, MODELS)
        raise ValueError(f"{name} must be linear, additive, mlp or package.module:callable, got {value!r}.{near}")


def name_of_data(name: str, value: str) -> None:
    """Raise ``ValueError`` unless ``value`` may name a data set in a list of lines."""
    from tacita.ledger.run_sections import one_line

    one_line(name, value)


def _relation(name: str, value: str) -> None:
    check_relation(value)


def _about(name: str, value: Mapping[str, str]) -> None:
    from tacita.ledger.run_sections import check_about

    check_about(value)


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The settings of ``tacita train``.

    ``None`` means that a public rule chooses the setting (docs/defaults.md), or that it is bought from the rows. Lists
    of names are separated by commas on the command line; a name that holds a comma is quoted there.
    """

    data: str
    """The table: CSV or JSON lines (compressed or not), Parquet or NPZ."""

    target: Annotated[str | None, DATA] = None
    """The column to predict."""

    columns: Annotated[tuple[str, ...], DATA] = ()
    """Names of the columns of a file without a header line, separated by commas; quote a name that holds one."""

    drop: Annotated[tuple[str, ...], DATA] = ()
    """Columns to leave out, separated by commas; quote a name that holds one: '"blood pressure, sys",age'."""

    delimiter: Annotated[str | None, DATA] = None
    """Character between cells; "," by default, never guessed from the rows."""

    quote: Annotated[str | None, DATA] = None
    """Character around a cell that holds the delimiter."""

    encoding: Annotated[str | None, DATA] = None
    """Encoding of the file; utf-8 by default."""

    decimal: Annotated[str | None, DATA] = None
    """Decimal mark of the numbers, "." by default; with "," a point separates groups, as in 1.234,5."""

    multiline: Annotated[bool | None, DATA] = None
    """Whether quoted cells of a CSV may hold line breaks (RFC 4180); otherwise a record is one line."""

    epsilon: Annotated[float, PRIVACY, _validate.positive]
    """The epsilon of everything together: purchases, training and score."""

    delta: Annotated[float, PRIVACY, _validate.delta]
    """The delta of everything together; choose it well below 1 / (number of rows)."""

    privacy_unit: Annotated[str | None, PRIVACY] = None
    """Whom the guarantee protects, in your words, for the statement."""

    unit_column: Annotated[str | None, PRIVACY] = None
    """The column that names the person, if a person may have several rows."""

    max_rows_per_unit: Annotated[int | None, PRIVACY, WHOLE, _validate.count] = None
    """The largest number of rows of one person that count; goes with --unit-column."""

    neighboring_relation: Annotated[NeighboringRelation, PRIVACY, _relation] = "add_or_remove_one"
    """How neighbouring tables differ; add_or_remove_one by default."""

    allow_large_delta: Annotated[bool, PRIVACY] = False
    """Accept a delta of 0.01 or more, or at or above 1 / rows if the number of rows is public. No such run is called
    private without saying so."""

    hardened: Annotated[bool, PRIVACY] = False
    """Close attacks on floating-point noise."""

    schema: Annotated[str | None, PUBLIC] = None
    """TOML file with what is public about the columns; "tacita schema FILE" drafts one."""

    classes: Annotated[tuple[str, ...], PUBLIC] = ()
    """The labels of the target, separated by commas, if they are public; a small table needs this most. Rows whose
    target is none of them contribute nothing: check the spelling. About how many they are is said if --rows is not
    given."""

    rows: Annotated[int | None, PUBLIC, WHOLE, _validate.count] = None
    """The public number of rows (a declared guess)."""

    test_file: Annotated[str | None, PUBLIC] = None
    """A table that you declare public: the score is computed on it exactly, outside the guarantee."""

    non_private_holdout: Annotated[bool, PUBLIC] = False
    """Score held-out rows exactly, outside the guarantee; the statement says so."""

    model: Annotated[str, TRAINING, _model] = "linear"
    """linear, additive (a number for each bought bin of each column), mlp, or package.module:callable with
    callable(num_features, num_outputs) -> nn.Module."""

    width: Annotated[int | None, TRAINING, WHOLE, _validate.count] = None
    """Number of hidden units of the mlp."""

    task: Annotated[Literal["classification", "regression"] | None, TRAINING] = None
    """classification or regression; by default a public rule decides by bought counts of the target."""

    target_scale: Annotated[Literal["log", "linear"] | None, TRAINING] = None
    """log or linear: whether a regression is trained on the logarithm of a positive target, or on the target; by
    default a public rule decides by its bought bins. Predictions and scores are those of the target either way."""

    features: Annotated[Literal["scattering"] | None, TRAINING] = None
    """"scattering" trains on fixed features of images in place of their pixels; they cost no privacy."""

    sample_rate: Annotated[float | None, TRAINING, _validate.probability] = None
    """Chance of each row to be in a query."""

    queries: Annotated[int | None, TRAINING, WHOLE, _validate.count] = None
    """Number of queries (steps)."""

    max_grad_norm: Annotated[float | None, TRAINING, _validate.threshold] = None
    """Clipping threshold."""

    lr: Annotated[float | None, TRAINING, _validate.positive] = None
    """Step size."""

    average: Annotated[Literal["last", "half", "ema"] | None, TRAINING] = None
    """What is published: the last iterate, the mean of the last half of them (by default), or an exponential average,
    ema, over about the last tenth."""

    feedback: Annotated[
        Literal["released", "bounded"] | None,
        TRAINING,
        Hint(
            "With a hidden, unbounded error (tacita.PrivateFeedback) the noise would depend on the number of rows, "
            "which is bought."
        ),
    ] = None
    """Error feedback: what clipping removes is added again later, released with noise of its own, or bounded and
    hidden. Both cost noise, and most models are better without it."""

    noise: Annotated[Literal["independent", "correlated", "auto"] | None, TRAINING] = None
    """Independent noise with Poisson sampling, by default; correlated noise with cyclic batches; or auto, what leaves
    the least noise in the model at this epsilon, as predicted from public settings. Correlated noise pays for many
    batches: --sample-rate 0.01 --queries 100."""

    balanced: Annotated[bool, TRAINING] = False
    """Rare classes count as much as frequent ones: rows are weighted by bought counts of their class."""

    sweep: Annotated[str | None, TUNING] = None
    """TOML file with a grid of settings, to keep the best of a secret, random number of runs (mean_runs = 5; below
    [grid]: lr = [0.5, 1, 2]); epsilon includes the price of the choice. See docs/tuning.md."""

    chosen_among: Annotated[
        int | None,
        TUNING,
        partial(_validate.count, at_least=2, hint="Leave it out for a run that is the only one."),
    ] = None
    """Number of runs among which you choose this one by hand; the statement then says that the price of that choice is
    not in epsilon."""

    dataset_name: Annotated[str | None, TUNING, name_of_data] = None
    """Public name of the data; by default that of the file. Runs under one name are listed beside their folders, and
    statements say how many there are and what they guarantee together."""

    fingerprint_key: Annotated[str | None, TUNING] = None
    """File of a secret key, 32 random bytes or more: the statement then has a fingerprint of the data that only holders
    of the key can compare with a file."""

    about: Annotated[Mapping[str, str], _about] = field(default_factory=dict)
    """What the statement says as given: responsible, contact, data_period, purpose, recipients, retention."""

    output: Annotated[str, RUN]
    """Folder of the run, new or empty; not needed with --dry-run."""

    seed: Annotated[int | None, RUN, WHOLE, partial(_validate.count, at_least=0)] = None
    """Derive all coins and noise from this number, to repeat a demonstration. NOT PRIVATE: the noise can be computed
    again and removed, and the statement says so first."""

    def __post_init__(self) -> None:
        for name in lists_of_names():
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.dataset_name is None:
            object.__setattr__(self, "dataset_name", Path(self.data).name)
        for name, (hint, _) in annotations().items():
            _check_type(name, getattr(self, name), _types(hint))
        for name, (hint, notes) in annotations().items():
            _check_value(name, getattr(self, name), hint, notes)
        self._check_together()
        self.reading()
        check_delta(self.delta, self.rows, self.allow_large_delta)

    def _check_together(self) -> None:
        if self.feedback is not None and self.hardened:
            raise ValueError(
                "feedback must go without hardened, because the error of clipping is on no grid: leave one of them out."
            )
        if self.noise in ("correlated", "auto"):
            others = ("feedback", "hardened", "unit_column", "sweep")
            other = next((name for name in others if getattr(self, name) not in (None, False)), None)
            if other is not None:
                raise ValueError(f"noise = {self.noise} must go without {other}: leave out one of them.")
        if self.balanced and self.task == "regression":
            raise ValueError("balanced belongs to a classification: leave it out, or task = regression.")
        if self.model == "additive":
            for name in ("lr", "feedback", "noise", "balanced", "sweep"):
                if getattr(self, name) not in (None, False, "independent"):
                    raise ValueError(f"{name} must go without model = additive: leave it out, or choose linear.")
        if self.width is not None and self.model != "mlp":
            raise ValueError(f"width belongs to model = mlp, got it with {self.model!r}.")
        if self.test_file is not None and self.non_private_holdout:
            raise ValueError("test_file and non_private_holdout are two ways to get a score: give one of them.")
        if self.sweep is not None and self.non_private_holdout:
            raise ValueError(
                "sweep needs a private score to choose by: leave out non_private_holdout, or give a test_file that is "
                "public."
            )

    def reading(self, declared: "FileFormat | None" = None) -> "FileFormat":
        """Return the format of the file: that of the schema, ``declared``, overridden by the settings given here."""
        given = {name: getattr(self, name) for name in TEXT_FORMAT}
        return file_format(given, declared)

    def listed(self, privacy_unit: str) -> "ListedRun":
        """Return the run as the list of runs on its data set has it."""
        from tacita.runs.run_list import ListedRun

        given = (self.dataset_name or "", self.output, self.epsilon, self.delta, self.neighboring_relation)
        return ListedRun(*given, privacy_unit, exact_score=self.non_private_holdout)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without those that are left to a public rule."""
        plain = {name: _plain(getattr(self, name)) for name in annotations()}
        return {name: value for name, value in plain.items() if value not in (None, [], {})}

    def to_toml(self) -> str:
        """Return the content of the file ``config.toml`` of a run; :meth:`from_toml` reads it.

        Example:
            >>> settings = TableSettings(data="a.csv", output="run", epsilon=1.0, delta=1e-5, target="income")
            >>> TableSettings.from_toml(settings.to_toml()) == settings
            True
        """
        values = self.to_dict()
        lines = [f"{name} = {toml_value(value)}\n" for name, value in values.items() if not isinstance(value, dict)]
        for name, table in values.items():  # tables end the file
            if isinstance(table, dict):
                lines += [f"\n[{name}]\n", *(f"{key} = {toml_value(value)}\n" for key, value in table.items())]
        return "# tacita train --config THIS_FILE runs it again (give another --output)\n" + "".join(lines)

    @classmethod
    def from_toml(cls, text: str) -> "TableSettings":
        """Read what :meth:`to_toml` wrote, strictly."""
        return cls.from_dict(parse_toml(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableSettings":
        """Make settings from plain values; an unknown name is refused, and a missing one is named."""
        known = {each.name: each for each in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"config has the unknown setting {name!r}.{did_you_mean(name, known)}")
        for name, found in known.items():
            required = found.default is found.default_factory is MISSING
            if required and name not in values:
                given = "the file after the command" if name == "data" else f"--{name.replace('_', '-')}"
                raise ValueError(f"{name} is missing: give {given}, or set it in the config file.")
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)


@cache
def annotations() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the type of each setting, and what else its annotation holds."""
    hints = get_type_hints(TableSettings, include_extras=True)
    return {
        name: (getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())) for name, hint in hints.items()
    }


def lists_of_names() -> tuple[str, ...]:
    """Return the settings that hold several names."""
    return tuple(name for name, (hint, _) in annotations().items() if get_origin(hint) is tuple)


def flags(names: Sequence[str] | None = None) -> type[dict[str, Any]]:
    """Return settings as the options of a command: a dictionary of those that were given.

    Lists of names and the grid of a sweep are the texts that a user types. What the statement says as given
    (``about``) has options of its own.

    Args:
        names: The settings; all that have a group if not given.
    """
    helps = {
        text.arg_name: " ".join((text.description or "").split()) for text in parse_from_object(TableSettings).params
    }
    options = {}
    for name, (hint, notes) in annotations().items():
        groups = [note for note in notes if isinstance(note, Parameter)]
        if name in (names or ()) or (names is None and groups):
            typed = str if get_origin(hint) is tuple else hint
            options[name] = Annotated[typed, *(groups if names is None else ()), Parameter(help=helps[name])]
    return TypedDict("Flags", options, total=False)  # pyright: ignore


def file_format(given: Mapping[str, Any], declared: "FileFormat | None" = None) -> "FileFormat":
    """Return the format ``declared`` of a file of text, overridden by those of ``TEXT_FORMAT`` that are given."""
    import msgspec

    from tacita.tables.csv_lines import FileFormat

    changes = {name: given[name] for name in TEXT_FORMAT if given.get(name) not in (None, ())}
    if "columns" in changes:
        changes["header"] = False
    return msgspec.structs.replace(declared or FileFormat(), **changes)


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


def check_delta(
    delta: float, rows: int | None, allow_large: bool, way_out: str | None = "pass --allow-large-delta"
) -> None:
    """Refuse a delta at or above 1 / (public number of rows) or 0.01, which would allow publishing a whole row."""
    large = _validate.LARGE_DELTA
    most, known = (large, "") if rows is None or rows * large < 1 else (1 / rows, "1 / rows = ")
    if delta >= most and not allow_large:
        raise ValueError(
            f"delta must be below {known}{most:.3g}, got {delta:g}: at that delta a whole row may be published. "
            f"Choose a smaller one{f', or {way_out}' if way_out else ''}."
        )


def read_text(name: str, path: str | Path) -> str:
    """Read a file of settings; ``name`` is the argument that an error names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{name} must be a readable text file, got {str(path)!r}.") from None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a setting must be finite, got {value!r}.")
    return repr(value)


_WORDS = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    tuple: "a list of names",
    Mapping: "a table of texts",
}


def _types(hint: Any) -> tuple[type, ...]:
    """Return the types that a value of the annotation has: an integer is a number, too, and a choice is a text."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return tuple(dict.fromkeys(kind for each in get_args(hint) for kind in _types(each)))
    return (str,) if origin is Literal else (int, float) if hint is float else (origin or hint,)


def _check_type(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    words = " or ".join(text for kind, text in _WORDS.items() if kind in kinds)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        raise ValueError(f"{name} must be {words}, got {value!r}.")
    if isinstance(value, tuple) and not all(isinstance(text, str) for text in value):
        raise ValueError(f"{name} must be {words}, got {value!r}.")
    texts = value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise ValueError(f"{name} must be text that UTF-8 can hold, for config.toml, got {value!r}.")


def _check_value(name: str, value: Any, hint: Any, notes: Sequence[Any]) -> None:
    """Check a value that is not left to a rule by what its annotation holds."""
    if value is None:
        return
    for note in notes:
        if callable(note) and not isinstance(note, Parameter):
            note(name, value)
    choices = [choice for each in (hint, *get_args(hint)) if get_origin(each) is Literal for choice in get_args(each)]
    if choices and value not in choices:
        more = "".join(f" {note.text}" for note in notes if isinstance(note, Hint))
        raise ValueError(f"{name} must be {_listed(choices)}, got {value!r}.{more}")


def _listed(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if choices[1:] else f"{choices[0]}, or left out"
