"""Public rules for the settings that the user leaves out; docs/defaults.md has the measurements behind them.

None of them looks at a row. The step size may look at what was bought.
"""

from dataclasses import dataclass, replace
from typing import Any

from tacita.error_feedback import BoundedFeedback, Feedback, ReleasedFeedback
from tacita.tables.budget import PurchasePlan
from tacita.tables.encoding import Encoder
from tacita.tables.settings import TableSettings

SAMPLE_RATE = 0.1
PLANNED_QUERIES = 400
MAX_GRAD_NORM = 2.0
MOMENTUM = 0.9
WANDERING = 0.3  # how far noise alone may move a weight of a linear model that no gradient holds back, in log odds
WANDERING_TARGET = 0.2  # ... of a regression, in standard deviations of the target
HOLDOUT = 0.1  # share of the rows (or persons) that is held out by coin for the score
ANTI_WINDUP = 10.0  # bound on the error of feedback, in clipping thresholds
AVERAGE = "half"  # the mean of the last half of the iterates is published


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
    width: int | None = None
    chosen: tuple[str, ...] = ()


LINEAR = Training(sample_rate=SAMPLE_RATE, queries=PLANNED_QUERIES, max_grad_norm=MAX_GRAD_NORM)
ADDITIVE = Training(sample_rate=1.0, queries=27, max_grad_norm=MAX_GRAD_NORM)
NETWORK = Training(sample_rate=0.1, queries=400, max_grad_norm=1.0, width=64)
NETWORK_LR = {"classification": 2.0, "regression": 0.5}  # step size times C


def training(settings: TableSettings) -> Training:
    """Return the settings of the training: those that were given, and defaults for the rest."""
    rule = {"linear": LINEAR, "additive": ADDITIVE}.get(settings.model, NETWORK)
    if settings.model != "mlp":
        rule = replace(rule, width=None)
    names = ("sample_rate", "queries", "max_grad_norm", "width")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    left = {name: value for name in names if name not in given and (value := getattr(rule, name)) is not None}
    return replace(rule, **given, chosen=tuple(f"{name} = {value:g}" for name, value in left.items()))


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
    task = encoder.task or "classification"
    return min(
        linear_learning_rate(task, chosen.max_grad_norm, encoder.num_features),
        quiet_learning_rate(task, total_mu, rows, chosen.max_grad_norm, chosen.queries),
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


def linear_learning_rate(task: str, max_grad_norm: float, num_features: int) -> float:
    """Return the step size: 1/C for a classification, min(1/C, 2 / (1 + features)) for a regression.

    The curvature of a regression grows with the number of features.

    Example:
        >>> linear_learning_rate("classification", 2.0, 100), linear_learning_rate("regression", 2.0, 99)
        (0.5, 0.02)
    """
    if task == "classification":
        return 1 / max_grad_norm
    return min(1 / max_grad_norm, 2 / (1 + num_features))


def quiet_learning_rate(task: str, total_mu: float, rows: float, max_grad_norm: float, queries: int) -> float:
    r"""Return the step size at which noise alone moves a free weight as far as it may in the whole run.

    At a total mu the mean gradient has noise of about :math:`C \sqrt T / (\mu n)`, and :math:`T` steps with momentum m
    add up to :math:`lr / (1 - m) \cdot \sqrt T` times that. With many rows this step size is above 1/C.

    Example:
        >>> [round(quiet_learning_rate("classification", 0.25, rows, 2.0, 400), 4) for rows in (500, 30_000)]
        [0.0047, 0.2812]
    """
    wandering = WANDERING_TARGET if task == "regression" else WANDERING
    return wandering * (1 - MOMENTUM) * total_mu * max(rows, 1.0) / (max_grad_norm * queries)
