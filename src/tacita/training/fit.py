"""Train a network privately in one call.

``fit`` may choose settings by public rules (``docs/defaults.md``), and the statement marks each such choice. It never
chooses epsilon or delta.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.clipping.clipper import Clipper
from tacita.correlated import Noise
from tacita.error_feedback import ErrorFeedbackOracle, Feedback, as_feedback
from tacita.errors import UnsupportedModuleError
from tacita.gradients import SeveralViews, mean_over_views
from tacita.gradients.functional import LossFn
from tacita.gradients.processes import Processes, is_sharded, processes_of
from tacita.gradients.views import score_over_views
from tacita.hardened import RoundedGaussian
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.run_sections import check_about
from tacita.ledger.session import BLOCK
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.methods import RandomIterate
from tacita.oracles import ClippedGradientOracle, GradientOracle
from tacita.oracles.records import Records, as_records
from tacita.random import Randomness
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.run_list import check_name
from tacita.training.callbacks import Callback, Watch, Watching, as_callbacks
from tacita.training.chosen_settings import (
    Average,
    ChosenSettings,
    check_average,
    check_built,
    check_optimizer,
    chosen_average,
    chosen_clipper,
    chosen_length,
    chosen_optimizer,
    chosen_rows_per_query,
    chosen_sampler,
    chosen_strategy,
    default_unit,
    relation_and_unit,
    stated_delta,
)
from tacita.training.fingerprint import data_fingerprint
from tacita.training.finished_run import Export, Publish, Published, Run, finished_run, restored_run
from tacita.training.held_out_loss import SCORE, HeldOutLoss, HeldOutScore
from tacita.training.loop import Checkpoints, train
from tacita.training.other_runs import with_other_runs
from tacita.training.progress import Progress
from tacita.training.public_loss import EarlyStop
from tacita.training.several_ranks import SEALED, same_weights
from tacita.training.unknown_names import refuse_unknown_names
from tacita.user_records import UserRecords


@refuse_unknown_names
def fit(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    *,
    target_epsilon: float,
    target_delta: float,
    epochs: float | None = None,
    noise_multiplier: float | None = None,
    num_records: int | None = None,
    expected_batch_size: float | None = None,
    max_grad_norm: float | Literal["adaptive"] | None = None,
    clipper: Clipper | None = None,
    feedback: Feedback | None = None,
    noise: Noise = "independent",
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    scheduler: Callable[[torch.optim.Optimizer, int], LRScheduler] | None = None,
    average: Average = "last",
    views: int = 1,
    augment: Callable[[Any], Any] | None = None,
    units: Sequence[Hashable] | None = None,
    rows_per_query: int | None = None,
    neighboring_relation: NeighboringRelation = "add_or_remove_one",
    privacy_unit: str | None = None,
    about: Mapping[str, str] | None = None,
    dataset_name: str | None = None,
    fields: Callable[[], Mapping[str, Any]] | None = None,
    ledger: Ledger | None = None,
    share: Share | None = None,
    folder: str | Path | None = None,
    public_data: Any = None,
    public_every: int | None = None,
    early_stop: EarlyStop | None = None,
    score: HeldOutLoss | None = None,
    publish: Publish = "all",
    export: Export | None = None,
    callbacks: Iterable[Callback | Callable] = (),
    allow_large_delta: bool = False,
    hardened: bool = False,
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
        dataset: A map-style ``Dataset``, arrays in a tuple, mapping or dataclass, or :class:`~tacita.Records`.
        target_epsilon: The epsilon of the whole run, > 0.
        target_delta: Its delta; must be below ``1 / num_records``, and should be far below.
        epochs: Passes over the data, in expectation.
        noise_multiplier: In place of ``epochs``: the standard deviation of the noise over the threshold, and as many
            steps are made as the target holds. The noise is then calibrated to that number, and is smaller by a
            fraction of a step's worth. It goes with ``noise="independent"`` and without ``feedback``.
        num_records: Public number of records. Under add_or_remove_one it must be given: the true number is protected,
            and a declared guess sets the rate and the divisor. Under the other relations it is the data's.
        expected_batch_size: ``None`` lets tacita choose ``max(min(n, 256), n / 50)``, n the number of records.
        max_grad_norm: Flat clipping threshold. ``None`` lets tacita choose 1. ``"adaptive"``: it follows the gradients
            (:class:`~tacita.AdaptiveClippedSum`), at no cost in noise; for losses whose scale is not known beforehand.
        clipper: Any clipper, in place of ``max_grad_norm``.
        feedback: Error feedback, which remembers what clipping removes and gives it back later, as in
            :class:`~tacita.ErrorFeedbackOracle`. It costs noise, and seldom pays (docs/error-feedback.md).
        noise: ``"independent"`` from query to query; or ``"correlated"``, of which later queries take back a part
            (:class:`~tacita.CorrelatedGaussian`), with cyclic batches, whole or sampled; or ``"auto"``, the one with
            the least predicted error at this epsilon, which may also take independent noise with batches by secret
            coin. Public settings alone decide; the statement gives the choice and the predicted errors.
        optimizer: ``params -> torch.optim.Optimizer``. ``None`` lets tacita choose Adam with lr 2e-3.
        scheduler: ``(optimizer, steps) -> LRScheduler``, which moves on after each of the planned ``steps``. A
            ``ReduceLROnPlateau`` moves on with each loss on ``public_data``.
        average: Which point of the run the model ends at. ``"last"``: the last iterate. ``"all"``, ``"half"``: the
            mean of all iterates, or of the last half of them. ``"ema"``: a mean whose weights fade over a tenth of the
            steps. ``"random"``: one iterate, drawn beforehand (:class:`~tacita.RandomIterate`). Or ``params ->
            average``: ``lambda params: tacita.ExponentialAverage(params, decay=0.999)``. Each is computed from releases
            alone and costs no privacy.
        views: Number of augmented views of each record. Their mean loss is the record's, and the record is clipped
            once (:class:`~tacita.SeveralViews`), so that the guarantee does not depend on it.
        augment: Record -> augmented record. It draws from torch's, NumPy's or Python's global generator, which the
            query's secret seeds, and looks at its record alone.
        units: The user of each row, where a user may have several: each *user* is then a record, clipped once, and the
            guarantee is by user (:class:`~tacita.UserRecords`). ``num_records`` and ``expected_batch_size`` count
            users.
        rows_per_query: Number of rows that a query reads of each user that it draws. ``None`` lets tacita choose.
        neighboring_relation: How neighbouring data sets differ.
        privacy_unit: The caller's words for what is protected. ``None`` lets tacita write "one record".
        about: What the statement says as given, which nobody checks: any of ``responsible``, ``contact``,
            ``data_period``, ``purpose``, ``recipients`` and ``retention``, as in ``tacita train``.
        dataset_name: Public name of the data. Runs under one name are listed beside their folders, and statements say
            how many there are and what they guarantee together; without it, that is not known. It goes with ``folder``.
        fields: Called when the run is stated: further public fields of its statement, such as ``model``, by the names
            of front ends in docs/statement.schema.json, which ``tacita statement`` verifies.
        ledger: Pays, in place of a ledger of the run's own, and sets relation and unit: for a training that follows
            other sessions on the same records. It goes without ``folder``, and the caller closes and seals it.
        share: The share of ``ledger`` to pay from, which was set aside before the first release
            (:meth:`tacita.Ledger.register_share`); the target is then that of the sessions in the share. The run's
            statement is of the whole ledger, at twice the delta of its shares; :func:`tacita.statement` takes another.
        folder: Keeps the ledger, the statement and the model, and checkpoints while the run goes on. If the process is
            killed, the same call with the same settings and data continues the run: what was released comes back with
            the same bits, what was not is drawn anew. With another optimizer it continues from the last checkpoint: the
            queries made since then stay paid for and are not repeated, so that fewer steps are left; the statement says
            so.
        public_data: Rows that the caller declares to be public, in the form of ``dataset``. Their loss, at the point
            where the run would end now, is shown and kept along the way, and the statement says so. If they are not
            public, the statement is wrong. The loss on the private rows is never shown.
        public_every: Queries from one loss on ``public_data`` to the next; by default about twenty losses in a run.
        early_stop: End the run when the loss on ``public_data`` has not improved for a while. The guarantee stays that
            of the whole plan.
        score: Hold a share of the records out by coin, and buy the loss on them before and after the training
            (:class:`~tacita.HeldOutLoss`), under add_or_remove_one. It costs the records, and no noise. ``num_records``
            counts them, too.
        publish: What of the model the folder keeps in ``model.safetensors``: ``"all"`` of its tensors; ``"trainable"``,
            what was trained and the buffers, without the frozen base of an adapter; or ``"exported"``, nothing beside
            what ``export`` writes.
        export: ``(run, folder) -> None`` writes files of its own about the trained model into an empty folder:
            ``lambda run, folder: tacita.finetune.save_adapter(run.model, folder / "adapter")``. They become files of
            the run's folder under the same paths, and the run's seal names each of them. ``run.statement`` is there,
            without their hashes. If the process is killed before the seal is written, ``export`` is called again.
        callbacks: Objects of :class:`~tacita.Callback`, or functions ``(releases, spent)`` that are called after each
            step, with what is private for good. The ledger is put on disk before each call (:class:`~tacita.Callback`
            has ``every`` for slow disks).
        allow_large_delta: Accept a ``target_delta`` of 0.01 or more. The verdict then says so wherever it is shown.
        hardened: Close attacks on floating-point noise, by :class:`~tacita.RoundedGaussian`. The claim depends on
            ``method``, and the statement prints it. It is stronger with ``"loop"``, which runs the model's code on
            records.
        progress: Show a bar on the error stream.
        collate_fn, num_workers, method, max_physical_batch_size: As in :class:`~tacita.ClippedGradientOracle`.
        process_group: Processes that share the work, as in :class:`~tacita.ClippedGradientOracle`. Each rank makes the
            same call. ``folder``, ``public_data``, ``callbacks`` and ``progress`` are rank 0's, and so are the run's
            ledger and statement. All ranks begin with rank 0's weights and end with the same model. Another number of
            ranks may continue a run. The model may be sharded by ``fully_shard``: checkpoints and the published model
            are whole, and public_data, callbacks, export and average="random" are refused.
        reservation: As in :class:`~tacita.GradientOracle`.
        randomness: Only tests hand it in.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        TypeError: A name is not one of these; the message names those that are near.
        ResumeError: ``folder`` holds a run with other privacy settings, data or frozen parameters, or a finished one.
        LedgerError: ``folder`` holds a run of another model, loss or number of views, whose program is another.
        UnsupportedModuleError: Per-sample gradients of the model are not defined, or a setting is not served for a
            sharded one.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> x = torch.randn(200, 2)
        >>> run = fit(model, lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1), (x, x[:, :1]),
        ...           target_epsilon=2.0, target_delta=1e-3, epochs=1, num_records=200, progress=False)
        >>> run.ledger.epsilon(1e-3) <= 2.0
        True
    """
    check_optimizer(optimizer, scheduler)
    _check_variants(average, noise, feedback, hardened, early_stop, score=score, noise_multiplier=noise_multiplier)
    check_name(dataset_name, folder)
    check_about({} if about is None else about)
    written = Published(publish, export, folder)
    relation, unit = relation_and_unit(ledger, share, folder, neighboring_relation, privacy_unit)
    if max_grad_norm == "adaptive" and (feedback is not None or hardened or noise != "independent"):
        raise ValueError(
            "max_grad_norm='adaptive' must go without feedback and hardened, whose bounds need a fixed one, and with "
            "noise='independent': noise of another threshold could not be taken back."
        )
    if units is None and rows_per_query is not None:
        raise ValueError("rows_per_query needs units, the user of each row: without them a record is a row.")
    if units is not None and (views > 1 or augment is not None or isinstance(dataset, Records)):
        raise ValueError("units must go without views, augment and Records: a user's rows take the place of views.")
    watching = Watching(loss_fn, as_callbacks(callbacks), public_data, collate_fn, public_every, early_stop)
    chosen = ChosenSettings()
    if _validate.delta("target_delta", target_delta) >= _validate.LARGE_DELTA and not allow_large_delta:
        raise ValueError(
            f"target_delta must be below {_validate.LARGE_DELTA:g}, got {target_delta:g}: at that delta a whole record "
            "may be published. Choose a smaller one, or pass allow_large_delta=True."
        )
    if units is None:
        data = _views(loss_fn, dataset, collate_fn, views, augment)
    else:
        rows = chosen_rows_per_query(rows_per_query, target_epsilon, chosen)
        data = _users(loss_fn, dataset, collate_fn, units, rows)
    if score is not None and (relation != "add_or_remove_one" or process_group is not None):
        raise ValueError("score must go with add_or_remove_one and without process_group: leave it out.")
    trained_on = num_records if score is None or num_records is None else score.kept(num_records)
    sampler = chosen_sampler(trained_on, data["dataset"], relation, expected_batch_size, target_delta, chosen=chosen)
    target: dict[str, Any] = {"relation": relation, "epsilon": target_epsilon, "delta": target_delta}
    strategy = chosen_strategy(
        noise, sampler, chosen_length(epochs, noise_multiplier, **target), hardened, **target, chosen=chosen
    )
    ranks = processes_of(process_group, model)
    mechanism = partial(CalibratedGaussian, target_epsilon=target_epsilon, target_delta=target_delta)
    reading: dict[str, Any] = {"num_workers": num_workers, "method": method, "reservation": reservation, "share": share}
    oracle_of = partial(
        ClippedGradientOracle if feedback is None else partial(ErrorFeedbackOracle, feedback=feedback),
        model,
        **data,
        sampler=strategy.sampler,
        clipper=chosen_clipper(clipper, max_grad_norm, strategy.sampler.expected_batch_size, chosen),
        mechanism=mechanism(form=strategy.form),
        planned_queries=strategy.queries,
        max_physical_batch_size=max_physical_batch_size,
        process_group=ranks,
    )
    state_of = partial(_state, model, optimizer, scheduler, chosen=chosen)
    with ranks.fail_together():
        _check_shards(model, average, public_data, watching.callbacks, export)
        same_weights(ranks, model)
        if not ranks.leads:
            state = state_of(oracle_of(ledger=None, **reading), average if is_sharded(model) else "last")
            return _followed(state, ranks, written)
        run = RunLifecycle.start(None if folder is None else RunFolder(folder), randomness)
        words = chosen.filled("privacy_unit", unit, default_unit(units))
        with _paying(run, ledger, relation, words) as (paying, begun):
            paid: dict[str, Any] = {"ledger": paying, "randomness": run.randomness, **reading}
            kept, held_out = _parts(score, run, begun, data["dataset"])
            state = state_of(oracle_of(dataset=kept, session=begun, **paid), average)
            bought = None
            if score is not None and held_out is not None:
                bought = HeldOutScore(
                    score,
                    model,
                    held_out,
                    _scored(data["loss_fn"], loss_fn, score.loss_fn),
                    mechanism=mechanism(form=RoundedGaussian if hardened else GaussianMechanism),
                    session=None if begun is None else _session(paying, SCORE),
                    collate_fn=data["collate_fn"],
                    max_physical_batch_size=max_physical_batch_size or math.ceil(sampler.expected_batch_size),
                    **paid,
                )
            terms = (str(folder), target_epsilon, target_delta, relation, words)
            finished = _finished(
                run, state, watching, kept, written,
                bought=bought, delta=target_delta,
                fields=with_other_runs(fields, run, None if paying is ledger else dataset, dataset_name, *terms),
                said=_said(chosen, about, None if units is not None else num_records), bar=progress,
            )  # fmt: skip
    run.finish()
    return finished


def _said(chosen: ChosenSettings, about: Mapping[str, str] | None, num_records: int | None) -> dict[str, Any]:
    rows = {} if num_records is None else {"rows": {"value": num_records, "how": "declared"}}
    return {"chosen_by_tacita": chosen.words, **({"about": dict(about)} if about else {}), **rows}


def _check_variants(
    average: Any,
    noise: str,
    feedback: Feedback | None,
    hardened: bool,
    early_stop: EarlyStop | None,
    *,
    score: Any,
    noise_multiplier: float | None,
) -> None:
    """Refuse values that do not exist or do not go together, before a folder is made."""
    check_average(average)
    if not isinstance(score, HeldOutLoss | None):
        raise TypeError(f"score must be a tacita.HeldOutLoss, HeldOutLoss(upper=1.0) say, got {score!r}.")
    if not isinstance(hardened, bool):
        raise ValueError(f"hardened must be True or False, got {hardened!r}.")
    if noise not in get_args(Noise):
        raise ValueError(f"noise must be one of {', '.join(get_args(Noise))}, got {noise!r}.")
    if noise != "independent" and (hardened or feedback is not None):
        other = "hardened" if hardened else "feedback"
        raise ValueError(f"noise={noise!r} must go without {other}: no guarantee is proved for both. Leave out one.")
    if noise_multiplier is not None and (noise != "independent" or feedback is not None):
        raise ValueError("noise_multiplier must go with noise='independent' and without feedback: give epochs instead.")
    if feedback is not None and as_feedback(feedback) and hardened:
        raise ValueError("feedback must go without hardened: the error of clipping is not on a grid. Leave out one.")
    if early_stop is not None and average == "random":
        raise ValueError("early_stop must go without average='random': the iterate that was drawn may never come.")


def _check_shards(
    model: nn.Module,
    average: Any,
    public_data: Any = None,
    callbacks: Sequence[Callback] = (),
    export: Export | None = None,
) -> None:
    """Refuse what rank 0 would run alone, where every rank has shards of the model."""
    asked = {
        "public_data": public_data is not None,
        "callbacks": bool(callbacks),
        "export": export is not None,
        "average='random'": average == "random",
    }
    if (refused := [name for name, given in asked.items() if given]) and is_sharded(model):
        raise UnsupportedModuleError(
            f"{', '.join(refused)} must be left out with a model that fully_shard has sharded: rank 0 would be alone "
            "with it, and has only shards. Look at the model between runs, or write a loop of your own "
            "(docs/process-group.md)."
        )


def _views(
    loss_fn: LossFn, dataset: Any, collate_fn: Callable[[list], Any] | None, views: int, augment: Callable | None
) -> dict[str, Any]:
    """Return loss, data set and ``collate_fn`` of the oracle, whose records have ``views`` augmented views."""
    if views == 1 and augment is None:
        return {"loss_fn": loss_fn, "dataset": dataset, "collate_fn": collate_fn}
    records = as_records(dataset)
    several = SeveralViews(records.dataset, views, augment, collate_fn=collate_fn)
    return {"loss_fn": mean_over_views(loss_fn), "dataset": replace(records, dataset=several), "collate_fn": None}


def _users(
    loss_fn: LossFn, dataset: Any, collate_fn: Callable | None, units: Iterable[Hashable], rows_per_query: int
) -> dict[str, Any]:
    """Return loss, data set and ``collate_fn`` of the oracle, whose records are users."""
    users = UserRecords(dataset, units, rows_per_query, collate_fn=collate_fn)
    return {"loss_fn": mean_over_views(loss_fn), "dataset": users, "collate_fn": None}


@contextmanager
def _paying(
    run: RunLifecycle, ledger: Ledger | None, relation: NeighboringRelation, unit: str
) -> Iterator[tuple[Ledger, Session | None]]:
    """Yield the ledger that pays, the caller's or the run's own, and the session in it that this run continues."""
    if ledger is not None:
        yield ledger, None
        return
    with run.ledger(neighboring_relation=relation, privacy_unit=unit) as own:
        yield own, _session(own, "train")


def _session(ledger: Ledger, purpose: str) -> Session | None:
    return next((session for session in ledger.sessions if session.purpose == purpose), None)


def _scored(made: LossFn, given: LossFn, score: LossFn | None) -> LossFn:
    """Return the loss of a score; of users or views, if ``given`` was made ``made`` of them."""
    score = score or given
    return score if made is given else score_over_views(score)


def _parts(
    score: HeldOutLoss | None, run: RunLifecycle, begun: Session | None, dataset: Any
) -> tuple[Any, Records | None]:
    """Return the records to train on, and those to score; a sealed run, whose key may be gone, scores none."""
    if score is None:
        return dataset, None
    if run.sealed:
        return replace(as_records(dataset), part=None if begun is None else begun.part), None
    return score.split(dataset, run.randomness)


def _state(
    model: nn.Module,
    optimizer: Callable | None,
    scheduler: Callable | None,
    oracle: GradientOracle,
    average: Average,
    *,
    chosen: ChosenSettings,
) -> TrainingState:
    """Return what the training changes from step to step, before the first step."""
    make_optimizer, end_point = chosen_optimizer(optimizer, chosen), chosen_average(average, oracle, model, chosen)
    if isinstance(end_point, RandomIterate):
        _check_shards(model, average="random")
    built = make_optimizer(model.parameters())
    check_built(built, model)
    schedule = None if scheduler is None else scheduler(built, oracle.planned_queries)
    return TrainingState(model, built, oracle, end_point, schedule)


def _followed(state: TrainingState, ranks: Processes, written: Published) -> Run:
    """Take part in rank 0's run, and end with its model; rank 0 alone has the run's ledger and statement."""
    told, _ = ranks.broadcast(SEALED, None)
    if not told["sealed"]:
        train(state)
        if told["publishes"]:
            state.gathered(written.weights(state.model))
    same_weights(ranks, state.model)
    elsewhere: Any = state.oracle.ledger
    return Run(state.model, elsewhere, elsewhere)


def _finished(
    run: RunLifecycle,
    state: TrainingState,
    watching: Watching,
    dataset: Any,
    written: Published,
    *,
    bought: HeldOutScore | None,
    fields: Callable[[], Mapping[str, Any]] | None,
    delta: float,
    said: Mapping[str, Any],
    bar: bool,
) -> Run:
    """Train, or take what an earlier process had trained and sealed; every rank ends with rank 0's weights."""
    watching.check(state)
    oracle = state.oracle
    delta = stated_delta(delta, oracle)
    state.ranks.broadcast(SEALED, {"sealed": run.sealed, "publishes": run.folder is not None})
    read = None
    if run.sealed:
        finished, read = restored_run(run, state, written, delta=delta, said=said)
    else:
        progress = Progress(oracle.ledger, delta=delta, total=oracle.planned_queries) if bar else None
        watch = Watch(state, watching, delta=delta, bar=progress)
        _train(state, _checkpoints(run, oracle, dataset), watch, progress)
        said = {**said, **({} if bought is None else bought.fields()), **({} if fields is None else fields())}
        finished = finished_run(run, state, written, public=watching.public_data is not None, delta=delta, said=said)
    same_weights(state.ranks, state.model, read)
    return finished


def _checkpoints(run: RunLifecycle, oracle: GradientOracle, dataset: Any) -> Checkpoints | None:
    """Bind the run to its data, and return when and where it is saved; ``None`` for a run in memory."""
    if run.folder is None:
        return None
    return Checkpoints.planned(run.folder, oracle, run.bind([data_fingerprint(oracle, dataset).encode()]))


def _train(state: TrainingState, checkpoints: Checkpoints | None, watch: Watch, bar: Progress | None) -> None:
    """Use up the plan, or what ``watch`` leaves of it, and close the session."""
    with bar or nullcontext():
        train(state, checkpoints=checkpoints, progress=bar, watch=watch)
    if not state.oracle.session.closed:
        state.oracle.session.close()
