"""The fields of ``statement.json`` as types: what a program may rely on. docs/statement.schema.json is made of them.

Fields that a caller adds beside these (:func:`tacita.statement`) are allowed, and have any type.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tacita.accounting.relations import NeighboringRelation

Positive = Annotated[float, Meta(ge=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Setting = float | Literal["inf"] | list[float | Literal["inf"]] | None  # a list if there are several blocks
VERDICTS = Literal[
    "private",
    "private under conditions",
    "private model, exact score",
    "private model under conditions, exact score",
    "not private",
    "ledger not intact",
]


class SessionFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """A session of the ledger."""

    id: str
    purpose: str
    state: Literal["registered", "open", "closed", "withdrawn"]
    event: Annotated[str, Meta(description="What the session spends, in words.")]
    planned_queries: Count
    queries_made: Count
    queries_spent: Annotated[Count, Meta(description="Queries whose noise may have been used.")]
    part: dict[str, Any] | None
    share: str | None


class ShareFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """A piece of the budget that was set aside for sessions whose settings are chosen later."""

    id: str
    epsilon: Positive
    delta: Share


class ScoreFields(Struct, kw_only=True):
    """A score on rows that the training did not see; further fields are allowed."""

    measure: str
    value: float | None
    private: Annotated[bool, Meta(description="Whether it was bought with noise; if not, it is outside the guarantee.")]
    how: str
    of_rows: Literal["public", "private"] | UnsetType = UNSET
    interval: list[float] | UnsetType | None = UNSET
    level: Share | UnsetType = UNSET
    constant_guess: dict[str, Any] | UnsetType | None = UNSET


class RunFields(Struct, kw_only=True):
    """The run: its public name, its day and the versions."""

    id: str
    date: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    versions: dict[str, str]


class BaseModelFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The model that a fine-tuning began with."""

    name: Annotated[str, Meta(description="As it was given, without the folders of the machine.")]
    sha256: Annotated[dict[str, Sha256], Meta(description="Of its files of weights, by name.")]


class StatementFields(Struct, kw_only=True):
    """A privacy statement of tacita. Look at ``verdict`` and ``verdict_warnings`` before you read ``epsilon``."""

    verdict: Annotated[
        VERDICTS,
        Meta(description="What the statement comes to. Only those that begin with 'private' guarantee anything."),
    ]
    verdict_warnings: Annotated[
        list[str], Meta(description="What stands beside 'private' in every view, however short.")
    ]
    epsilon: Annotated[
        Positive | None,
        Meta(description="Of the plan, rounded up; null if there is none, or only one under conditions."),
    ]
    epsilon_spent: Annotated[Positive | None, Meta(description="Of the queries that may have been released so far.")]
    conditional_epsilon: Annotated[
        Positive | None, Meta(description="Holds only under 'conditions', which nobody enforces.")
    ]
    conditional_epsilon_spent: Positive | None
    conditions: list[str]
    non_private: Annotated[bool, Meta(description="Whether a session adds no noise, or too little.")]
    delta: Annotated[float, Meta(gt=0.0, lt=1.0)]
    failure_probability: Positive
    failure_delta: Share
    neighboring_relation: Annotated[
        NeighboringRelation, Meta(description="How the data sets differ that must not be told apart.")
    ]
    privacy_unit: Annotated[str, Meta(description="Whose data is protected as a whole, in words.")]
    num_units: Annotated[Count | None, Meta(description="The public number of units.")]
    accountant: str
    attack_accuracy: Annotated[
        Share | None, Meta(description="How often an undecided attacker can be right about one unit.")
    ]
    attack_accuracy_from: str | None
    gdp_mu: Positive | None
    assumptions: list[str]
    sampler: str | None
    sample_rate: Share | None
    planned_queries: Count | None
    queries_made: Count | None
    noise_multiplier: Setting
    noise_std: Setting
    max_grad_norm: Setting
    secure_randomness: Annotated[bool, Meta(description="False if noise came from a seed: then nothing is guaranteed.")]
    sessions: list[SessionFields]
    shares: list[ShareFields]
    max_epsilon: Positive | None
    max_delta: Share | None
    ledger_sha256: Annotated[Sha256, Meta(description="SHA-256 of the ledger's last line before the seal.")]
    ledger_lines: Count
    ledger_verified: bool
    ledger_anchor: str
    ledger_reason: str
    purchases: list[Any]
    chosen_by_tacita: list[str]
    caveats: list[str]
    holdout_score: ScoreFields | None
    # Fields of front ends, which a statement made by hand may lack.
    run: RunFields | UnsetType = UNSET
    about: dict[str, str] | UnsetType = UNSET
    dataset: dict[str, Any] | UnsetType = UNSET
    data_fingerprint: Sha256 | UnsetType = UNSET
    model: str | UnsetType = UNSET
    base_model: BaseModelFields | UnsetType = UNSET
    text_template: str | UnsetType = UNSET
    task: str | UnsetType | None = UNSET
    target: str | UnsetType | None = UNSET
    rows: dict[str, Any] | UnsetType = UNSET
    columns: dict[str, list[str]] | UnsetType = UNSET
    headline: str | UnsetType | None = UNSET
    files_policy: dict[str, list[str]] | UnsetType = UNSET
    not_anonymised: list[str] | UnsetType = UNSET
    private_releases: list[str] | UnsetType = UNSET
    files: dict[str, Sha256] | UnsetType = UNSET
    selection: dict[str, Any] | UnsetType = UNSET
    chosen_among: Count | UnsetType = UNSET
    public_losses: list[list[float]] | UnsetType = UNSET


def statement_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a statement's fields."""
    schema = msgspec.json.schema(StatementFields)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tacita privacy statement", **schema}


def check_statement(fields: Any) -> None:
    """Raise ``ValueError`` unless ``fields`` are those of a statement, as the schema has them.

    Example:
        >>> check_statement([])
        Traceback (most recent call last):
        ValueError: not a statement: Expected `object`, got `array`.
    """
    try:
        msgspec.convert(fields, StatementFields)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a statement: {error}.") from None
