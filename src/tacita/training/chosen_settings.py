"""The settings of ``fit`` that public rules choose where the caller does not (``docs/defaults.md``)."""

from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import NeighboringRelation, gaussian_sum_event, most_queries
from tacita.accounting.relations import check_relation
from tacita.adaptive_clipping import AdaptiveClippedSum
from tacita.clipping import FlatClipper
from tacita.clipping.clipper import Clipper
from tacita.correlated import Noise, Strategy, choose_strategy
from tacita.estimators import Estimator
from tacita.hardened import RoundedGaussian
from tacita.ledger import Ledger, Share
from tacita.mechanisms import GaussianMechanism
from tacita.methods import ExponentialAverage, RandomIterate, SuffixAverage
from tacita.oracles import GradientOracle, trainable
from tacita.oracles.records import as_records, num_rows
from tacita.sampling import PoissonSampler, Sampler

EMA_SHARE = 0.1  # the exponential average's window, as a share of the steps
MOST_QUERIES = 10**6  # that a training plans where its noise is given
FEW_ROWS_ABOVE = 4.0  # epsilon above which one row of a user is the better choice
AverageName = Literal["last", "all", "half", "ema", "random"]
EndPoint = SuffixAverage | ExponentialAverage | RandomIterate
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Average = AverageName | Callable[[Mapping[str, Tensor]], EndPoint]


class ChosenSettings:
    """What public rules chose because the caller did not.

    Attributes:
        words: The choices, for the statement.
    """

    def __init__(self) -> None:
        self.words: list[str] = []

    def filled(self, name: str, value: Any, default: Any) -> Any:
        """Return ``value``, or ``default`` where it is ``None``: then the choice is noted."""
        if value is not None:
            return value
        self.words.append(f"{name} = {default}")
        return default


def relation_and_unit(
    ledger: Ledger | None, share: Share | None, folder: Any, relation: NeighboringRelation, unit: str | None
) -> tuple[NeighboringRelation, str | None]:
    """Return the relation and the unit: as given, or those of the caller's ledger, which must not contradict it."""
    if ledger is None:
        if share is not None:
            raise ValueError("share needs the ledger that it was set aside in: pass ledger= as well.")
        return relation, unit
    if folder is not None:
        raise ValueError("folder and ledger were both given, and a folder keeps its own ledger: leave one of them out.")
    if unit not in (None, ledger.privacy_unit):
        raise ValueError(f"privacy_unit is {unit!r}, and the ledger's is {ledger.privacy_unit!r}: leave it out.")
    if relation not in ("add_or_remove_one", ledger.neighboring_relation):
        raise ValueError(f"neighboring_relation is {relation}, and the ledger's is {ledger.neighboring_relation}.")
    return ledger.neighboring_relation, ledger.privacy_unit


def default_unit(units: object) -> str:
    """Return the words for the privacy unit, with ``units``, whatever names them, or without."""
    return "one record" if units is None else "one user: all rows with the same unit"


def stated_delta(target_delta: float, oracle: GradientOracle) -> float:
    """Return the delta of the statement: the target, or for a session in a share one that covers every share."""
    if oracle.session.share is None:
        return target_delta
    return min(2 * sum(share.delta for share in oracle.ledger.shares), 0.5)


def _public_count(num_records: int | None, dataset: Any, relation: NeighboringRelation, chosen: ChosenSettings) -> int:
    """Return the public number of records: as declared, or the data's where the relation makes that public."""
    check_relation(relation)
    if num_records is None and relation == "add_or_remove_one":
        raise ValueError(
            "num_records must be given under add_or_remove_one, where the true number of records is protected: "
            "declare a public guess. It sets the sample rate and the divisor."
        )
    if num_records is None:
        num_records = num_rows(as_records(dataset))
        chosen.words.append(f"num_records = {num_records}, the number of rows")
    return _validate.count("num_records", num_records)


def chosen_sampler(
    num_records: int | None,
    dataset: Any,
    relation: NeighboringRelation,
    expected_batch_size: float | None,
    target_delta: float,
    *,
    chosen: ChosenSettings,
) -> PoissonSampler:
    """Return the Poisson sampler of the expected batch size that was given or chosen."""
    num_records = _public_count(num_records, dataset, relation, chosen)
    _validate.delta_below("target_delta", target_delta, num_records)
    batch = chosen.filled("expected_batch_size", expected_batch_size, max(min(num_records, 256), num_records // 50))
    return PoissonSampler(expected_batch_size=batch, num_records=num_records)


def chosen_length(
    epochs: float | None, noise_multiplier: float | None, relation: NeighboringRelation, epsilon: float, delta: float
) -> Callable[[Sampler], int]:
    """Return what gives the number of queries: those of ``epochs``, or as many as epsilon holds at the noise given."""
    if epochs is not None and noise_multiplier is None:
        return methodcaller("queries_for", epochs)
    if epochs is not None or noise_multiplier is None:
        raise ValueError(
            "one of epochs and noise_multiplier must be given: how often the data are passed, and the noise follows "
            "from the target; or the noise, and as many steps are made as the target holds."
        )
    std = _validate.positive("noise_multiplier", noise_multiplier)

    def held(sampler: Sampler) -> int:
        event = gaussian_sum_event(sampler.law, (1.0,), (std,), relation)
        queries = most_queries(event, epsilon, delta, at_most=MOST_QUERIES)
        if 0 < queries < MOST_QUERIES:
            return queries
        raise ValueError(
            f"noise_multiplier must be larger: at {std:g} one step costs more than the target epsilon {epsilon:g}."
            if queries == 0
            else f"noise_multiplier must be smaller: at {std:g} the target holds {MOST_QUERIES:,} steps. Give epochs."
        )

    return held


def chosen_strategy(
    noise: Noise,
    poisson: PoissonSampler,
    length: Callable[[Sampler], int],
    hardened: bool,
    *,
    relation: NeighboringRelation,
    epsilon: float,
    delta: float,
    chosen: ChosenSettings,
) -> Strategy:
    """Return the batches and the noise: Poisson sampling and independent noise, or what ``noise`` asks for."""
    if noise == "independent":
        form = RoundedGaussian if hardened else GaussianMechanism
        return Strategy(words=noise, sampler=poisson, form=form, queries=length(poisson))
    strategy, words = choose_strategy(noise, poisson, length, relation=relation, epsilon=epsilon, delta=delta)
    chosen.words.append(words)
    return strategy


def chosen_rows_per_query(rows_per_query: int | None, target_epsilon: float, chosen: ChosenSettings) -> int:
    """Return how many rows a query reads of a user, and say how they are drawn."""
    rows = chosen.filled("rows_per_query", rows_per_query, 1 if target_epsilon > FEW_ROWS_ABOVE else 4)
    chosen.words.append(f"a record is a user: of a drawn user's rows each query draws {rows} anew, and clips once")
    return rows


def chosen_clipper(
    clipper: Clipper | None, max_grad_norm: float | Literal["adaptive"] | None, divisor: float, chosen: ChosenSettings
) -> Clipper | Estimator:
    """Return the clipper, or flat clipping at the threshold that was given or chosen, or at one that adapts."""
    if clipper is None and max_grad_norm == "adaptive":
        adaptive = AdaptiveClippedSum(divisor=divisor)
        chosen.words.append(adaptive.in_words)
        return adaptive
    if clipper is None:
        if isinstance(max_grad_norm, str):
            raise ValueError(f"max_grad_norm must be a number > 0 or 'adaptive', got {max_grad_norm!r}.")
        return FlatClipper(max_grad_norm=chosen.filled("max_grad_norm", max_grad_norm, 1.0))
    if max_grad_norm is not None:
        raise ValueError("max_grad_norm and clipper were both given: the clipper has its own threshold.")
    return clipper


def chosen_optimizer(optimizer: MakeOptimizer | None, chosen: ChosenSettings) -> MakeOptimizer:
    """Return what makes the optimizer: the caller's, or Adam."""
    if optimizer is not None:
        return optimizer
    chosen.words.append("optimizer = Adam, lr 0.002")
    return lambda params: torch.optim.Adam(params, lr=2e-3)


def check_optimizer(optimizer: Any, scheduler: Any) -> None:
    """Raise ``ValueError`` unless ``optimizer`` is a function that makes one, or ``None``, and so for ``scheduler``."""
    if not (scheduler is None or callable(scheduler)):
        name = type(scheduler).__name__
        raise ValueError(
            f"scheduler must be a function (optimizer, steps) that makes one, got an instance of {name}. "
            f"Write scheduler=lambda optimizer, steps: {name}(optimizer, ...)."
        )
    if isinstance(optimizer, torch.optim.Optimizer) or not (optimizer is None or callable(optimizer)):
        name = type(optimizer).__name__
        made = name if isinstance(optimizer, torch.optim.Optimizer) else "Adam"
        raise ValueError(
            f"optimizer must be a function that makes one from the parameters, got an instance of {name}. "
            f"Write optimizer=lambda params: torch.optim.{made}(params, lr=...)."
        )


def check_built(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ``ValueError`` unless an optimizer takes all parameters that are trained, in one step a query."""
    taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if missing := [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in taken]:
        raise ValueError(
            f"optimizer must take all parameters that require a gradient, and misses {', '.join(missing)}. Freeze "
            "what is not to be trained: requires_grad_(False)."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer must take one step a query, and LBFGS asks for more gradients in a step: each would be paid."
        )


def check_average(average: Any) -> None:
    """Raise ``ValueError`` unless ``average`` is the name of one or makes one."""
    if not callable(average) and average not in get_args(AverageName):
        raise ValueError(f"average must be one of {', '.join(get_args(AverageName))}, got {average!r}.")


def chosen_average(
    average: Average, oracle: GradientOracle, model: nn.Module, chosen: ChosenSettings
) -> EndPoint | None:
    """Return what turns the iterates into the model; a random iterate is drawn with the session's own key.

    Raises:
        TypeError: The caller's function makes something else.
    """
    params, steps = trainable(model), oracle.planned_queries
    if callable(average):
        made = average(params)
        if not isinstance(made, EndPoint):
            raise TypeError(
                f"average must make a tacita.SuffixAverage, ExponentialAverage or RandomIterate of the parameters, got "
                f"{type(made).__name__}."
            )
        return made
    if average == "ema":
        decay = max(0.0, 1 - 1 / (EMA_SHARE * steps))
        chosen.words.append(f"decay of the average = {decay:g}")
        return ExponentialAverage(params, decay=decay)
    if average == "random":
        stream = oracle.randomness.session_key(oracle.session.id).stream("random iterate")
        return RandomIterate(params, num_steps=steps, stream=stream)
    return None if average == "last" else SuffixAverage(params, skip=steps // 2 if average == "half" else 0)
