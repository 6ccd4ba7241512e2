"""The settings of ``tacita finetune``. All of them are public."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tacita import _validate
from tacita._whole_numbers import WHOLE
from tacita.tables.settings import check_delta, name_of_data, toml_value

CONFIG = "config.toml"
LR = {"lora": 2e-3, "full": 5e-4}  # docs/defaults.md
RATE = 1 / 50  # of the records, in a step, where their number is not declared
PATHS = ("template", "public_validation", "fingerprint_key")
DIVISOR = 256  # of the noisy sum, where their number is not declared: Adam does not see it

CHECKS = {
    _validate.positive: ("epsilon", "epochs", "max_grad_norm", "lr", "alpha", "batch"),
    _validate.delta: ("delta",),
    _validate.count: ("rank", "physical_batch", "rows", "rows_per_query", "patience"),
    name_of_data: ("dataset_name",),
    partial(_validate.one_line, says="whom the guarantee protects"): ("privacy_unit",),
}
OF_AN_ADAPTER = {"dtype": "float32", "rank": 16, "alpha": None, "targets": "all-linear"}  # and what they are by default

PRIVACY = Parameter(group="The guarantee", negative=())
TEXTS = Parameter(group="The texts", negative=())
TRAINING = Parameter(group="The training", negative=())
RUN = Parameter(group="The run", negative=())


@dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """How a line becomes a record, for ``tacita finetune`` and for ``tacita check --model``.

    Attributes:
        unit_field: The key of a line that names the person; a person's records are then clipped once, together.
        max_tokens: Length of a window in tokens; the smaller of 512 and the model's positions by default.
        windows: Number of windows that a long record may fill; it is clipped once.
        cut: What a long record loses: prompt (its left; a quarter of the length stays) or end.
        mask_prompt: Train on completions and what the assistant says alone, which is the default.
        messages: Take part with records that hold messages, which is the default; it needs a chat template.
        template: File with a chat template (Jinja) in place of the tokenizer's own.
    """

    unit_field: Annotated[str | None, PRIVACY] = None
    max_tokens: Annotated[int | None, TEXTS, WHOLE] = None
    windows: Annotated[int, TEXTS, WHOLE] = 1
    cut: Annotated[Literal["prompt", "end"], TEXTS] = "prompt"
    mask_prompt: Annotated[bool, Parameter(group="The texts", negative="--no-mask-prompt")] = True
    messages: Annotated[bool, Parameter(group="The texts", negative="--no-messages")] = True
    template: Annotated[str | None, TEXTS] = None

    def __post_init__(self) -> None:
        _validate.count("windows", self.windows)
        if self.template is not None and not self.messages:
            raise ValueError("template writes messages, and no-messages leaves them out: give one of them.")


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(RecordSettings):
    """What ``tacita finetune`` is told.

    Attributes:
        epsilon: The epsilon of the whole run.
        delta: Its delta; choose it well below 1 / rows.
        rows: A public guess of the number of records, or of persons with --unit-field. It sets the rate by --batch.
        rate: Chance that a step draws a record (person), in place of --batch; 1/50 by default, without --rows.
        rows_per_query: Number of records that a step reads of a person that it draws; 1 above epsilon 4, else 4.
        privacy_unit: Whom the guarantee protects, in your words, for the statement.
        hardened: Close attacks on floating-point noise.
        train: lora, an adapter, or full, all weights.
        rank: Rank of the adapter.
        alpha: Its scale; twice the rank by default.
        targets: Its modules: all-linear, or names separated by commas.
        loss: mean or sum over a record's own targets; the sum is divided by half of the length.
        epochs: Passes over the data, in expectation.
        batch: Expected number of records (persons) in a step; max(min(n, 256), n / 50) of n that are not held out.
        physical_batch: Sequences in memory at once; changes values by their rounding alone.
        max_grad_norm: Clipping threshold.
        lr: Step size of AdamW, 2e-3 for lora and 5e-4 for full; it falls linearly after 5 % of the steps.
        dropout: Dropout of the model.
        dtype: Type of the frozen base: float32 or bfloat16.
        holdout: Share of the records (persons) held out by coin, on which the score is bought; 0 buys none.
        public_validation: A file of the same form that you declare public: its loss is shown along the way.
        patience: Stop when that loss has not improved so many times in a row.
        dataset_name: Public name of the data, by default that of the file. Runs under one name are listed beside their
            folders, and statements say how many there are and what they guarantee together.
        fingerprint_key: File of a secret key, 32 random bytes or more: the statement then has a fingerprint of the
            data that only holders of the key can compare with a file.
        output: Folder of the run, new or empty; not needed with --dry-run or --audit.
        seed: Derive all coins and noise from this number, to repeat a demonstration. NOT PRIVATE.
    """

    epsilon: Annotated[float, PRIVACY]
    delta: Annotated[float, PRIVACY]
    rows: Annotated[int | None, PRIVACY, WHOLE] = None
    rate: Annotated[float | None, PRIVACY] = None
    rows_per_query: Annotated[int | None, PRIVACY, WHOLE] = None
    privacy_unit: Annotated[str | None, PRIVACY] = None
    hardened: Annotated[bool, PRIVACY] = False
    train: Annotated[Literal["lora", "full"], TRAINING] = "lora"
    rank: Annotated[int, TRAINING, WHOLE] = 16
    alpha: Annotated[float | None, TRAINING] = None
    targets: Annotated[str, TRAINING] = "all-linear"
    loss: Annotated[Literal["mean", "sum"], TRAINING] = "mean"
    epochs: Annotated[float, TRAINING] = 5.0
    batch: Annotated[float | None, TRAINING] = None
    physical_batch: Annotated[int, TRAINING, WHOLE] = 16
    max_grad_norm: Annotated[float, TRAINING] = 0.1
    lr: Annotated[float | None, TRAINING] = None
    dropout: Annotated[float, TRAINING] = 0.0
    dtype: Annotated[Literal["float32", "bfloat16"], TRAINING] = "float32"
    holdout: Annotated[float, TRAINING] = 0.05
    public_validation: Annotated[str | None, TRAINING] = None
    patience: Annotated[int | None, TRAINING, WHOLE] = None
    dataset_name: Annotated[str | None, RUN] = None
    fingerprint_key: Annotated[str | None, RUN] = None
    output: Annotated[str | None, RUN] = None
    seed: Annotated[int | None, RUN, WHOLE] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for check, names in CHECKS.items():
            for name in names:
                if getattr(self, name) is not None:
                    check(name, getattr(self, name))
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {self.rate!r}.")
        if self.rate is not None and self.batch is not None:
            raise ValueError("rate goes without batch, which sets it as well: give one of them.")
        if self.batch is not None and self.rows is None:
            raise ValueError("batch counts records, and needs their public number: give rows, or rate in its place.")
        check_delta(
            self.delta,
            self.number,
            False,
            None if self.rows else f"give --rows, the number of records; without it {self.number:,} are assumed",
        )
        for name in ("dropout", "holdout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)!r}.")
        if self.batch is not None and self.batch > (most := (1 - self.holdout) * self.number):
            raise ValueError(
                f"batch must be at most {most:,.0f}, the records (persons) of {self.number:,} that are not held out, "
                f"got {self.batch:g}."
            )
        if self.patience is not None and self.public_validation is None:
            raise ValueError("patience needs public_validation, whose loss ends the run: give both or neither.")
        if self.rows_per_query is not None and self.unit_field is None:
            raise ValueError("rows_per_query needs unit_field, which names the persons: give both or neither.")

    @property
    def number(self) -> int:
        """The public number of records: as declared, or one that gives the divisor at the rate of the run."""
        return round(DIVISOR / (self.rate or RATE)) if self.rows is None else self.rows

    @property
    def unit(self) -> str | None:
        """Whom the guarantee protects, with the key that tells whose a line is; ``None`` for the rule of ``fit``."""
        if self.unit_field is None:
            return self.privacy_unit
        return f"{self.privacy_unit or 'one person'}: all records with the same {self.unit_field!r}"

    @property
    def stated_rows(self) -> dict[str, Any]:
        """The field ``rows`` of the statement: the number of records (persons), if it was declared."""
        how = "protected" if self.rows is None else "declared"
        return {"value": self.rows, "how": how, "of": "records" if self.unit_field is None else "persons"}

    @property
    def step_size(self) -> float:
        """The step size: as given, or by the public rule."""
        return LR[self.train] if self.lr is None else self.lr

    @property
    def scale(self) -> float:
        """The scale of the adapter: as given, or by the public rule."""
        return 2 * self.rank if self.alpha is None else self.alpha

    def to_toml(self, **more: Mapping[str, str]) -> str:
        """Return the file ``config.toml`` of a run, with more tables by name; of paths, which it publishes, the end."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "output"}
        given |= {name: Path(given[name]).name for name in PATHS if given[name] is not None}
        lines = [f"{name} = {toml_value(value)}\n" for name, value in given.items() if value is not None]
        for title, table in more.items():
            lines += [
                f"\n[{title}]\n",
                *(f"{toml_value(name)} = {toml_value(value)}\n" for name, value in table.items()),
            ]
        return "".join(lines)


@dataclass(frozen=True)
class Files:
    """The two files of the command line.

    Attributes:
        model: Folder of the pre-trained model, in the format of transformers.
        data: The private texts, JSON lines.
        about: What the statement says as given.
    """

    model: Path
    data: Path
    about: dict[str, Any] = field(default_factory=dict)

    def check(self, settings: FinetuneSettings) -> None:
        """Refuse a path that is no file, before anything is opened."""
        if settings.train == "full" and any(getattr(settings, name) != own for name, own in OF_AN_ADAPTER.items()):
            raise ValueError(
                f"{', '.join(OF_AN_ADAPTER)} are those of an adapter and its frozen base: leave them out with "
                "train=full, where all weights are float32."
            )
        wanted = {
            "DATA": (self.data, "JSON lines"),
            "public_validation": (settings.public_validation, "JSON lines"),
            "template": (settings.template, "a chat template"),
            "fingerprint_key": (settings.fingerprint_key, "a secret key, such as: openssl rand -out KEY 32"),
        }
        for name, (path, what) in wanted.items():
            if path is not None and Path(path).is_dir():
                raise ValueError(f"{name} must be a file of {what}, got the folder {str(path)!r}: MODEL comes first.")
            if path is not None and not Path(path).exists():
                raise ValueError(f"{name} must be a file of {what}, got {str(path)!r}: there is none.")
        if ".csv" in [suffix.lower() for suffix in self.data.suffixes]:
            raise ValueError("DATA must be JSON lines, one object a line, got a .csv: write each row as an object.")
        given = [(name, path) for name, (path, _) in wanted.items() if path is not None]
        for (name, path), (other, same) in combinations(given, 2):
            if Path(path).samefile(same):
                raise ValueError(f"{other} is the file of {name}, too, of which it would tell: give another one.")
        for name, path in given:
            if name in ("DATA", "fingerprint_key") and any(
                one.exists() and one.samefile(path) for one in self.model.rglob("*")
            ):
                raise ValueError(f"{name} lies in MODEL, of whose files some are published: move it elsewhere.")
