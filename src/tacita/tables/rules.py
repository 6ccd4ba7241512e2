"""Public rules for the settings that the user leaves out; docs/defaults.md has the measurements behind them.

None of them looks at a row. The step size may look at what was bought.
"""

from dataclasses import dataclass
from typing import Any

from tacita.error_feedback import BoundedFeedback, Feedback, ReleasedFeedback
from tacita.tables import defaults
from tacita.tables.budget import PurchasePlan
from tacita.tables.encoding import Encoder
from tacita.tables.settings import TableSettings

HOLDOUT = defaults.HELD_OUT  # share of the rows (or persons) that is held out by coin for the score
MOMENTUM = defaults.MOMENTUM
ANTI_WINDUP = 10.0  # bound on the error of feedback, in clipping thresholds
AVERAGE = "half"  # the mean of the last half of the iterates is published


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The default settings of the training for one kind of model."""

    sample_rate: float
    queries: int
    max_grad_norm: float
    width: int | None = None


LINEAR = Rule(sample_rate=defaults.SAMPLE_RATE, queries=defaults.PLANNED_QUERIES, max_grad_norm=defaults.MAX_GRAD_NORM)
ADDITIVE = Rule(sample_rate=1.0, queries=27, max_grad_norm=defaults.MAX_GRAD_NORM)
NETWORK = Rule(sample_rate=0.1, queries=400, max_grad_norm=1.0, width=64)
NETWORK_LR = {"classification": 2.0, "regression": 0.5}  # step size times C


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of a training, fixed before the first release. Public.

    Attributes:
        sample_rate, queries, max_grad_norm: As in the settings, with defaults filled in.
        width: The number of hidden units of the mlp; ``None`` for another model.
        chosen: What a rule chose, in words for the statement.
    """

    sample_rate: float
    queries: int
    max_grad_norm: float
    width: int | None
    chosen: tuple[str, ...]


def training(settings: TableSettings) -> Training:
    """Return the settings of the training: those that were given, and defaults for the rest."""
    rule = {"linear": LINEAR, "additive": ADDITIVE}.get(settings.model, NETWORK)
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


def feedback(settings: TableSettings) -> Feedback | None:
    """Return the error feedback that was asked for, with the clipping threshold for every threshold of its own.

    The error is bounded by ten times the clipping threshold. Both blocks of released residuals get the same noise,
    which at equal thresholds is the least in total.
    """
    if settings.feedback is None:
        return None
    norm = training(settings).max_grad_norm
    shared: dict[str, Any] = {
        "max_feedback_norm": norm,
        "max_residual_norm": norm,
        "anti_windup": ANTI_WINDUP * norm,
    }
    if settings.feedback == "bounded":
        return BoundedFeedback(**shared)
    return ReleasedFeedback(**shared, allocation="single")


def learning_rate(settings: TableSettings, encoder: Encoder, rows: float) -> float:
    """Return the step size: that of the settings, else by the rule for the kind of model.

    ``rows`` is the number of rows, declared or bought.
    """
    if settings.lr is not None:
        return settings.lr
    chosen = training(settings)
    if settings.model != "linear":
        return NETWORK_LR[encoder.task or "classification"] / chosen.max_grad_norm
    total_mu = PurchasePlan(
        epsilon=settings.epsilon, delta=settings.delta, relation=settings.neighboring_relation
    ).total_mu
    return min(
        defaults.learning_rate(encoder.task or "", chosen.max_grad_norm, encoder.num_features),
        defaults.quiet_learning_rate(total_mu, rows, chosen.max_grad_norm, chosen.queries),
    )


def chosen(
    settings: TableSettings, encoder: Encoder, *, model: str, rows: float, holds_out: bool, purchases: float
) -> list[str]:
    """Say for the statement what public rules chose; ``purchases`` is the purchases' share of the total mu^2."""
    words = list(training(settings).chosen)
    if model == "additive":
        words.append(f"steps = filtered: each bin of {len(encoder.pieces)} columns moves as far as it stands out")
    elif settings.lr is None:
        words.append(f"lr = {learning_rate(settings, encoder, rows):g}")
    if settings.balanced:
        words.append("weight of a row = bought rows of the rarest class / those of its own class")
    if model != "additive":
        words.append(f"optimizer = SGD, momentum {MOMENTUM:g}")
    if settings.average is None:
        words.append("average = half: the mean of the last half of the iterates is published")
    if settings.feedback is not None:
        norm = training(settings).max_grad_norm
        words.append(f"feedback: residuals up to {norm:g}, injected up to {norm:g}, error up to {ANTI_WINDUP * norm:g}")
    if holds_out:
        words.append(f"held out = {HOLDOUT:.0%} of the rows, by coin")
    if purchases:
        words.append(f"purchases = {purchases:.2g} of the total mu^2")
    return words
