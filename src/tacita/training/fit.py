"""Train a network privately in one call.

``fit`` may choose settings by public rules (``docs/defaults.md``), and the statement marks each such choice. It never
chooses epsilon or delta.
"""

import difflib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import safetensors
import safetensors.torch
import torch
from torch import nn

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.accounting.relations import check_relation
from tacita.clipping import FlatClipper
from tacita.clipping.clipper import Clipper
from tacita.errors import ResumeError, TacitaError
from tacita.estimators.error_feedback import Feedback, as_feedback
from tacita.gradients.functional import LossFn
from tacita.gradients.process_group import Ranks
from tacita.ledger import Ledger, Statement, statement
from tacita.ledger.reservations import BLOCK
from tacita.mechanisms import CalibratedGaussian, form_of
from tacita.methods import ExponentialAverage, RandomIterate, SuffixAverage
from tacita.oracles import ClippedGradientOracle, ErrorFeedbackOracle, GradientOracle, trainable
from tacita.oracles.following import AtRankZero
from tacita.oracles.records import as_records, num_rows
from tacita.random import Randomness
from tacita.sampling import PoissonSampler
from tacita.training.checkpoint import TrainingState
from tacita.training.fingerprint import data_fingerprint
from tacita.training.folder import RunFolder
from tacita.training.followed_run import SEALED, follow
from tacita.training.loop import Checkpoints, train
from tacita.training.progress import Progress
from tacita.training.public import PublicCurve
from tacita.training.run_lifecycle import RunLifecycle
from tacita.training.sealed_run import MODEL
from tacita.training.several_ranks import same_weights

Average = Literal["last", "all", "half", "ema", "random"]
EMA_SHARE = 0.1  # the exponential average's window, as a share of the steps
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Run:
    """A finished private run.

    Attributes:
        model: The trained network, which is the one that was handed in.
        ledger: What was spent; of several ranks, rank 0's.
        statement: The guarantee in words: epsilon of the plan, the unit, the assumptions.
        folder: Where the run was written; ``None`` for a run in memory.
        public_losses: Pairs (queries made, mean loss on ``public_data``), about twenty in a run.
    """

    model: nn.Module
    ledger: Ledger
    statement: Statement
    folder: Path | None = None
    public_losses: tuple[tuple[int, float], ...] = ()


def refuse_unknown_names(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` refuse an argument that it does not have, and name the way out."""
    names = [*signature(function).parameters]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{function.__name__}() has no argument {name!r}{_way_out(name, names)}")
        return function(*args, **kwargs)

    return checked


def _way_out(name: str, names: list[str]) -> str:
    if name in signature(ClippedGradientOracle).parameters:
        return (
            ": it makes one oracle with one session, and goes on with them after an interruption if it has a folder. "
            f"To set {name}, build a tacita.ClippedGradientOracle({name}=...) and write your own loop "
            "(docs/your-own-loop.md)."
        )
    near = [repr(one) for one in difflib.get_close_matches(name, names)]
    return f". Did you mean {' or '.join(near)}?" if near else f". Its arguments are {', '.join(names)}."


@refuse_unknown_names
def fit(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    *,
    target_epsilon: float,
    target_delta: float,
    epochs: float,
    num_records: int | None = None,
    expected_batch_size: float | None = None,
    max_grad_norm: float | None = None,
    clipper: Clipper | None = None,
    feedback: Feedback | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    average: Average = "last",
    neighboring_relation: NeighboringRelation = "add_or_remove_one",
    privacy_unit: str | None = None,
    folder: str | Path | None = None,
    public_data: Any = None,
    hardened: bool | Literal["rounded", "discrete"] = False,
    progress: bool = True,
    collate_fn: Callable[[list], Any] | None = None,
    num_workers: int = 0,
    method: str = "auto",
    max_physical_batch_size: int | None = None,
    process_group: Any = None,
    reservation: int = BLOCK,
    randomness: Randomness | None = None,
) -> Run:
    r"""Train ``model`` with DP-SGD so that the whole run is (target_epsilon, target_delta)-DP.

    Each of ``ceil(epochs / q)`` queries draws a Poisson sample at rate :math:`q` = ``expected_batch_size /
    num_records``. The Gaussian noise is calibrated to the target. Any torch optimizer takes the steps.

    Args:
        model: Any module whose samples do not mix; trained in place.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,).
        dataset: A map-style ``Dataset``, a tuple of arrays, or :class:`~tacita.Records`.
        target_epsilon: The epsilon of the whole run, > 0.
        target_delta: Its delta; must be below ``1 / num_records``, and should be far below.
        epochs: Passes over the data, in expectation.
        num_records: Public number of records. Under add_or_remove_one it must be given: the true number is protected,
            and a declared guess sets the rate and the divisor. Under the other relations it is the data's.
        expected_batch_size: ``None`` lets tacita choose ``max(min(n, 256), n / 50)``, n the number of records.
        max_grad_norm: Flat clipping threshold. ``None`` lets tacita choose 1.
        clipper: Any clipper, in place of ``max_grad_norm``.
        feedback: Error feedback, which remembers what clipping removes and gives it back later, as in
            :class:`~tacita.ErrorFeedbackOracle`. It costs noise, and seldom pays (docs/error-feedback.md).
        optimizer: ``params -> torch.optim.Optimizer``. ``None`` lets tacita choose Adam with lr 2e-3.
        average: Which point of the run the model ends at. ``"last"``: the last iterate. ``"all"``, ``"half"``: the
            mean of all iterates, or of the last half of them. ``"ema"``: a mean whose weights fade over a tenth of the
            steps. ``"random"``: one iterate, drawn beforehand (:class:`~tacita.RandomIterate`). Each is computed from
            releases alone and costs no privacy.
        neighboring_relation: How neighbouring data sets differ.
        privacy_unit: The caller's words for what is protected. ``None`` lets tacita write "one record".
        folder: Keeps the ledger, the statement and the model, and checkpoints while the run goes on. If the process is
            killed, the same call with the same settings and data continues the run and ends with the same bits. With
            another optimizer it continues from the last checkpoint: the queries made since then stay paid for and are
            not repeated, so that fewer steps are left; the statement says so.
        public_data: Rows that the caller declares to be public. Their loss is shown and kept along the way, and the
            statement says so. The loss on the private rows is never shown.
        hardened: Close attacks on floating-point noise: ``True`` or ``"rounded"`` for :class:`~tacita.RoundedGaussian`,
            ``"discrete"`` for :class:`~tacita.DiscreteGaussian`. The claim depends on ``method``, and the statement
            prints it. It is strongest with ``"loop"`` and weakest with ``"ghost"``, which ``"auto"`` takes where it
            can.
        progress: Show a bar on the error stream.
        collate_fn, num_workers, method, max_physical_batch_size: As in :class:`~tacita.ClippedGradientOracle`.
        process_group: Processes that share the work, as in :class:`~tacita.ClippedGradientOracle`. Each rank makes the
            same call. ``folder``, ``public_data`` and ``progress`` are rank 0's, and so are the run's ledger and
            statement. All ranks begin with rank 0's weights and end with the same model. Another number of ranks may
            continue a run.
        reservation: As in :class:`~tacita.GradientOracle`.
        randomness: Only tests hand it in.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        TypeError: A name is not one of these; the message names those that are near.
        ResumeError: ``folder`` holds a run with other privacy settings or data, or a finished one.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> x = torch.randn(200, 2)
        >>> run = fit(model, lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1), (x, x[:, :1]),
        ...           target_epsilon=2.0, target_delta=1e-3, epochs=1, num_records=200, progress=False)
        >>> run.ledger.epsilon(1e-3) <= 2.0
        True
    """
    _check_variants(average, feedback, hardened)
    chosen = ChosenSettings()
    num_records = _public_count(num_records, dataset, neighboring_relation, chosen)
    sampler = _sampler(num_records, expected_batch_size, target_delta, chosen)
    clipper = _clipper(clipper, max_grad_norm, chosen)
    unit = chosen.filled("privacy_unit", privacy_unit, "one record")
    if optimizer is None:
        chosen.words.append("optimizer = Adam, lr 0.002")
    ranks = Ranks.of(process_group, next(model.parameters(), torch.empty(0)).device)
    oracle_of = partial(
        ClippedGradientOracle if feedback is None else partial(ErrorFeedbackOracle, feedback=feedback),
        model,
        loss_fn,
        dataset,
        sampler=sampler,
        clipper=clipper,
        mechanism=CalibratedGaussian(target_epsilon=target_epsilon, target_delta=target_delta, form=form_of(hardened)),
        planned_queries=sampler.queries_for(epochs),
        collate_fn=collate_fn,
        num_workers=num_workers,
        method=method,
        max_physical_batch_size=max_physical_batch_size,
        process_group=ranks,
        reservation=reservation,
    )
    with ranks.together():
        same_weights(ranks, model)
        if not ranks.leads:
            follow(partial(oracle_of, ledger=None), model, optimizer or _adam, ranks)
            elsewhere: Any = AtRankZero("run")
            return Run(model, elsewhere, elsewhere)
        run = RunLifecycle.start(None if folder is None else RunFolder(folder), randomness)
        with run.ledger(neighboring_relation=neighboring_relation, privacy_unit=unit) as ledger:
            oracle = oracle_of(ledger=ledger, session=next(iter(ledger.sessions), None), randomness=run.randomness)
            state = TrainingState(
                model, (optimizer or _adam)(model.parameters()), oracle, _average(average, oracle, model, chosen)
            )
            ranks.told(SEALED, {"sealed": run.sealed})
            if run.sealed:
                finished = _restored(run, state, target_delta, chosen.words)
            else:
                checkpoints = _checkpoints(run, oracle, dataset)
                bar = Progress(ledger, delta=target_delta, total=oracle.planned_queries) if progress else None
                curve = _trained(state, checkpoints, loss_fn, public_data, bar)
                finished = _told(run, state, curve, target_delta, chosen.words)
            same_weights(ranks, model)
    run.finish()
    return finished


def _check_variants(average: str, feedback: Feedback | None, hardened: bool | str) -> None:
    """Refuse values that do not exist or do not go together, before a folder is made."""
    if average not in get_args(Average):
        raise ValueError(f"average must be one of {', '.join(get_args(Average))}, got {average!r}.")
    if feedback is not None and as_feedback(feedback) and hardened:
        raise ValueError("feedback must go without hardened: the error of clipping is not on a grid. Leave out one.")


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


def _sampler(
    num_records: int, expected_batch_size: float | None, target_delta: float, chosen: ChosenSettings
) -> PoissonSampler:
    _validate.delta_below("target_delta", target_delta, num_records)
    batch = chosen.filled("expected_batch_size", expected_batch_size, max(min(num_records, 256), num_records // 50))
    return PoissonSampler(expected_batch_size=batch, num_records=num_records)


def _clipper(clipper: Clipper | None, max_grad_norm: float | None, chosen: ChosenSettings) -> Clipper:
    if clipper is None:
        return FlatClipper(max_grad_norm=chosen.filled("max_grad_norm", max_grad_norm, 1.0))
    if max_grad_norm is not None:
        raise ValueError("max_grad_norm and clipper were both given: the clipper has its own threshold.")
    return clipper


def _average(
    average: Average, oracle: GradientOracle, model: nn.Module, chosen: ChosenSettings
) -> SuffixAverage | ExponentialAverage | RandomIterate | None:
    """Return what turns the iterates into the model; a random iterate is drawn with the session's own key."""
    params, steps = trainable(model), oracle.planned_queries
    if average == "ema":
        decay = max(0.0, 1 - 1 / (EMA_SHARE * steps))
        chosen.words.append(f"decay of the average = {decay:g}")
        return ExponentialAverage(params, decay=decay)
    if average == "random":
        stream = oracle.randomness.session_key(oracle.session.id).stream("random iterate")
        return RandomIterate(params, num_steps=steps, stream=stream)
    return None if average == "last" else SuffixAverage(params, skip=steps // 2 if average == "half" else 0)


def _checkpoints(run: RunLifecycle, oracle: GradientOracle, dataset: Any) -> Checkpoints | None:
    """Bind the run to its data, and return when and where it is saved; ``None`` for a run in memory."""
    if run.folder is None:
        return None
    return Checkpoints.planned(run.folder, oracle, run.bind(data_fingerprint(oracle, dataset)))


def _trained(
    state: TrainingState, checkpoints: Checkpoints | None, loss_fn: LossFn, public_data: Any, bar: Progress | None
) -> PublicCurve:
    """Use up the plan, close the session, and return the loss on public data along the way."""
    oracle = state.oracle
    with bar or nullcontext():
        curve = PublicCurve(state.model, loss_fn, public_data, oracle.planned_queries, bar, flush=oracle.ledger.flush)
        train(state, checkpoints=checkpoints, progress=bar, on_step=curve)
    if not oracle.session.closed:
        oracle.session.close()
    return curve


def _told(run: RunLifecycle, state: TrainingState, curve: PublicCurve, delta: float, chosen: list[str]) -> Run:
    """Seal the trained run, and return what is told of it."""
    ledger, model = state.oracle.ledger, state.model
    caveats = [] if curve.data is None else ["A loss was shown on data that the caller declares to be public."]
    caveats += state.changes_in_words()

    def make_statement(hashes: dict[str, str]) -> Statement:
        fields: dict[str, Any] = {"files": hashes} if hashes else {}
        return statement(ledger, delta, chosen_by_tacita=chosen, caveats=caveats, **fields)

    words = run.seal(ledger, make_statement, weights=model.state_dict())
    return Run(model, ledger, words, None if run.folder is None else run.folder.path, tuple(curve.points))


def _restored(run: RunLifecycle, state: TrainingState, delta: float, chosen: list[str]) -> Run:
    """Load the model of a run that was sealed, and return what its statement told."""
    assert run.folder is not None
    ledger, sealed = state.oracle.ledger, run.sealed_run()
    standing = len(statement(ledger, delta).to_json()["caveats"])
    try:
        state.model.load_state_dict(safetensors.torch.load(sealed.read(MODEL)))
        caveats, files = sealed.stated["caveats"][standing:], sealed.stated["files"]
    except TacitaError as error:
        raise ResumeError(f"the run that was finished here was changed since: {error}") from None
    except (RuntimeError, LookupError, TypeError, safetensors.SafetensorError):
        raise ResumeError(f"{MODEL} is not of the model that was trained here.") from None
    words = statement(ledger, delta, chosen_by_tacita=chosen, caveats=caveats, files=files)
    return Run(state.model, ledger, words, run.folder.path)


def _adam(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=2e-3)
