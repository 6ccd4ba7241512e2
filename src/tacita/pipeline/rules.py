"""Public rules: the settings a run gets where nobody gave them (docs/defaults.md has the measurements behind them).

Place: settings -> [pipeline.rules] -> plan. None of them looks at a row; the step size may look at what was bought.
"""

from dataclasses import dataclass
from typing import Any

from tacita.pipeline.settings import TableSettings
from tacita.tables import defaults
from tacita.tables.budget import PURCHASES
from tacita.tables.encoding import Encoder

HOLDOUT = defaults.HELD_OUT  # of the rows (or persons), held out by coin for the score
MOMENTUM = defaults.MOMENTUM
TAIL = 1 - defaults.AVERAGED_FROM  # the average runs over this last part of the iterates


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Settings of the training for one kind of model."""

    sample_rate: float
    queries: int
    max_grad_norm: float
    width: int | None = None


LINEAR = Rule(sample_rate=defaults.SAMPLE_RATE, queries=defaults.PLANNED_QUERIES, max_grad_norm=defaults.MAX_GRAD_NORM)
NETWORK = Rule(sample_rate=0.1, queries=400, max_grad_norm=1.0, width=64)
NETWORK_LR = {"classification": 2.0, "regression": 0.5}  # times 1 / C


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the training is: fixed before the first release, all of it public.

    Attributes:
        sample_rate, queries, max_grad_norm: As in the settings, none of them missing.
        width: Hidden units of the mlp; ``None`` for another model.
        chosen: What a rule chose, in words: for the statement.
    """

    sample_rate: float
    queries: int
    max_grad_norm: float
    width: int | None
    chosen: tuple[str, ...]


def training(settings: TableSettings) -> Training:
    """The settings of the training: those given, and the rule's for the rest."""
    rule = LINEAR if settings.model == "linear" else NETWORK
    words: list[str] = []
    values: dict[str, Any] = {}
    for name in ("sample_rate", "queries", "max_grad_norm", "width"):
        given, default = getattr(settings, name), getattr(rule, name)
        if name == "width" and settings.model != "mlp":
            default = None
        if given is None and default is not None:
            words.append(f"{name} = {default:g}")
        values[name] = default if given is None else given
    return Training(**values, chosen=tuple(words))


def learning_rate(settings: TableSettings, encoder: Encoder) -> float:
    """Of a linear model by the tables' rule, of a network by its own."""
    if settings.lr is not None:
        return settings.lr
    max_grad_norm = training(settings).max_grad_norm
    if settings.model == "linear":
        return defaults.learning_rate(encoder.task or "", max_grad_norm, encoder.num_features)
    return NETWORK_LR[encoder.task or "classification"] / max_grad_norm


def chosen(settings: TableSettings, encoder: Encoder, *, holds_out: bool, buys: bool) -> list[str]:
    """What public rules chose, in words: for the statement."""
    words = list(training(settings).chosen)
    if settings.lr is None:
        words.append(f"lr = {learning_rate(settings, encoder):g}")
    words.append(f"optimizer = SGD, momentum {MOMENTUM:g}, average of the last {TAIL:.0%} of the iterates")
    if holds_out:
        words.append(f"held out = {HOLDOUT:.0%} of the rows, by coin")
    if buys:
        words.append(f"purchases = {PURCHASES:g} of the total mu")
    return words
