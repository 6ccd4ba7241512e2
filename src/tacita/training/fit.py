"""Train a network privately in one call.

Place: everything below -> [training.fit]. A front end: it may choose settings by public rules (``docs/defaults.md``),
and the statement marks each such choice; epsilon and delta are never chosen.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita._files import replace_durably
from tacita.accounting import Ledger, NeighboringRelation, Statement, statement
from tacita.clipping import FlatClipper
from tacita.clipping.clipper import Clipper
from tacita.errors import ResumeError
from tacita.gradients.functional import LossFn
from tacita.mechanisms import CalibratedGaussian, form_of
from tacita.oracles import ClippedGradientOracle
from tacita.random import Randomness
from tacita.sampling import PoissonSampler
from tacita.training.checkpoint import TrainingState
from tacita.training.fingerprint import data_fingerprint
from tacita.training.folder import STATEMENT, RunFolder
from tacita.training.loop import Checkpoints, train
from tacita.training.progress import Progress
from tacita.training.public import PublicCurve

MODEL = "model.safetensors"


@dataclass(frozen=True)
class Run:
    """A finished private run.

    Attributes:
        model: The trained network (the one handed in).
        ledger: What was spent.
        statement: What may be told: epsilon of the plan, the unit, the assumptions.
        folder: Where the run was written; ``None`` if nowhere.
        public_losses: (queries made, mean loss on ``public_data``), about twenty times a run.
    """

    model: nn.Module
    ledger: Ledger
    statement: Statement
    folder: Path | None = None
    public_losses: tuple[tuple[int, float], ...] = ()


def fit(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: Any,
    *,
    target_epsilon: float,
    target_delta: float,
    epochs: float,
    num_records: int,
    expected_batch_size: float | None = None,
    max_grad_norm: float | None = None,
    clipper: Clipper | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    neighboring_relation: NeighboringRelation = "add_or_remove_one",
    privacy_unit: str | None = None,
    folder: str | Path | None = None,
    public_data: Any = None,
    hardened: bool | Literal["rounded", "discrete"] = False,
    progress: bool = True,
    randomness: Randomness | None = None,
    **oracle_settings: Any,
) -> Run:
    r"""Train ``model`` with DP-SGD so that the whole run is (target_epsilon, target_delta)-DP.

    Poisson sampling at rate :math:`q` = ``expected_batch_size / num_records``, ``ceil(epochs / q)`` queries, Gaussian
    noise calibrated to the target, any torch optimizer below the line.

    Args:
        model: Any module whose samples do not mix; trained in place.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,).
        dataset: A map-style ``Dataset``, a tuple of arrays, or :class:`~tacita.Records`.
        target_epsilon: The guarantee asked for.
        target_delta: Well below ``1 / num_records``.
        epochs: Passes over the data, in expectation.
        num_records: Public number of records (a declared guess under add_or_remove_one).
        expected_batch_size: Chosen by tacita if ``None``: ``max(min(n, 256), n / 50)``, n the number of records.
        max_grad_norm: Flat clipping threshold; chosen by tacita if ``None``: 1.
        clipper: Any clipper instead of ``max_grad_norm``.
        optimizer: ``params -> torch.optim.Optimizer``; chosen by tacita if ``None``: Adam, lr 2e-3.
        neighboring_relation: How neighbours differ.
        privacy_unit: The caller's words for what is protected; "one record" if ``None``.
        folder: Keeps ledger, statement and model, and checkpoints while it runs. A run killed there goes on when
            ``fit`` is called again with the same settings and data, and ends with the same bits. With another
            optimizer it goes on from the last checkpoint: queries made since stay paid for, none is redone with its
            noise, so that fewer steps are left; the statement says so.
        public_data: Rows that the caller declares to be public: their loss is shown and kept along the way, and the
            statement says so. No loss on the private rows is ever shown.
        hardened: Close attacks on floating-point noise: ``True`` or ``"rounded"`` for :class:`~tacita.RoundedGaussian`,
            ``"discrete"`` for :class:`~tacita.DiscreteGaussian`. What is claimed depends on ``method``, and stands in
            the statement: most with ``"loop"``, least with ``"ghost"``, which ``"auto"`` takes where it can.
        progress: Show a bar on the error stream.
        randomness: Only tests hand it in.
        **oracle_settings: ``num_workers``, ``collate_fn``, ``method``, ``max_physical_batch_size``: as in
            :class:`~tacita.ClippedGradientOracle`, which refuses any other name.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
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
    chosen = _Chosen()
    num_records = _validate.count("num_records", num_records)
    if target_delta >= 1 / num_records:
        raise ValueError(f"target_delta must be below 1 / num_records = {1 / num_records:.3g}, got {target_delta}.")
    batch = chosen.filled("expected_batch_size", expected_batch_size, max(min(num_records, 256), num_records // 50))
    clipper = _clipper(clipper, max_grad_norm, chosen)
    unit = chosen.filled("privacy_unit", privacy_unit, "one record")
    if optimizer is None:
        chosen.words.append("optimizer = Adam, lr 0.002")
    sampler = PoissonSampler(expected_batch_size=batch, num_records=num_records)
    run_folder, randomness = _opened(folder, randomness)
    ledger = Ledger(
        run_folder.ledger if run_folder else None, neighboring_relation=neighboring_relation, privacy_unit=unit
    )
    with closing_on_error(ledger):
        _check_there(ledger, run_folder)
        oracle = ClippedGradientOracle(
            model,
            loss_fn,
            dataset,
            ledger=ledger,
            sampler=sampler,
            clipper=clipper,
            mechanism=CalibratedGaussian(
                target_epsilon=target_epsilon, target_delta=target_delta, form=form_of(hardened)
            ),
            planned_queries=sampler.queries_for(epochs),
            randomness=randomness,
            session=next(iter(ledger.sessions), None),
            **oracle_settings,
        )
        state = TrainingState(model, (optimizer or _adam)(model.parameters()), oracle)
        if run_folder is not None and run_folder.tidying:
            return _tidied(state, delta=target_delta, chosen=chosen.words, folder=run_folder)
        checkpoints = None
        if run_folder is not None:
            checkpoints = Checkpoints.planned(run_folder, oracle, data_fingerprint(oracle, dataset))
        bar = Progress(ledger, delta=target_delta, total=oracle.planned_queries) if progress else None
        curve = _trained(state, checkpoints, loss_fn, public_data, bar)
        return _finished(state, curve, delta=target_delta, chosen=chosen.words, folder=run_folder)


class _Chosen:
    """What public rules chose because the caller did not.

    Attributes:
        words: For the statement.
    """

    def __init__(self) -> None:
        self.words: list[str] = []

    def filled(self, name: str, value: Any, default: Any) -> Any:
        """``value``, or ``default`` where it is ``None``."""
        if value is not None:
            return value
        self.words.append(f"{name} = {default}")
        return default


def _clipper(clipper: Clipper | None, max_grad_norm: float | None, chosen: _Chosen) -> Clipper:
    if clipper is None:
        return FlatClipper(max_grad_norm=chosen.filled("max_grad_norm", max_grad_norm, 1.0))
    if max_grad_norm is not None:
        raise ValueError("max_grad_norm and clipper were both given: the clipper has its own threshold.")
    return clipper


def _opened(folder: str | Path | None, randomness: Randomness | None) -> tuple[RunFolder | None, Randomness]:
    """The run's folder and key: those of an unfinished run, or new ones; the key is on disk before it is used."""
    if folder is None:
        return None, randomness or Randomness.system()
    run_folder = RunFolder(folder)
    with run_folder.starting():
        if run_folder.tidying:
            return run_folder, randomness or Randomness.system()
        if run_folder.unfinished:
            return run_folder, Randomness.load(run_folder.key)
        run_folder.start()
        randomness = randomness or Randomness.system()
        randomness.save(run_folder.key)
        return run_folder, randomness


def _check_there(ledger: Ledger, folder: RunFolder | None) -> None:
    """Raise ``ResumeError`` for a run whose ledger was lost: it would be paid for anew, and forget what was spent."""
    if folder is not None and folder.checkpoint.exists() and not ledger.sessions:
        raise ResumeError(f"{folder.ledger.name} of the run that was started here is missing: restore it.")


@contextmanager
def closing_on_error(ledger: Ledger) -> Iterator[None]:
    """Close ``ledger`` if the block fails, so that the run can be resumed in this process."""
    try:
        yield
    except BaseException:
        ledger.close()
        raise


def _trained(
    state: TrainingState, checkpoints: Checkpoints | None, loss_fn: LossFn, public_data: Any, bar: Progress | None
) -> PublicCurve:
    """Use up the plan; the loss on public data, as it was on the way."""
    oracle = state.oracle
    with bar or nullcontext():
        curve = PublicCurve(state.model, loss_fn, public_data, oracle.planned_queries, bar, flush=oracle.ledger.flush)
        train(state, checkpoints=checkpoints, progress=bar, on_step=curve)
    return curve


def _finished(
    state: TrainingState, curve: PublicCurve, *, delta: float, chosen: list[str], folder: RunFolder | None
) -> Run:
    """Close the session, write what may be shared, and only then remove checkpoint and key."""
    ledger = state.oracle.ledger
    if not state.oracle.session.closed:
        state.oracle.session.close()
    caveats = [] if curve.data is None else ["A loss was shown on data that the caller declares to be public."]
    words = statement(ledger, delta, chosen_by_tacita=chosen, caveats=[*caveats, *state.changes_in_words()])
    points = tuple(curve.points)
    if folder is None:
        return Run(state.model, ledger, words, public_losses=points)
    weights = {name: value.detach().contiguous() for name, value in state.model.state_dict().items()}
    replace_durably(folder.path / MODEL, safetensors.torch.save(_untied(weights)))
    replace_durably(folder.path / "statement.txt", words.text.encode())
    replace_durably(folder.path / STATEMENT, words.to_bytes())
    ledger.close()
    folder.finish()
    return Run(state.model, ledger, words, folder.path, points)


def _tidied(state: TrainingState, *, delta: float, chosen: list[str], folder: RunFolder) -> Run:
    """The run that was killed when all but the removal of private files was done."""
    ledger = state.oracle.ledger
    standing = statement(ledger, delta).to_json()["caveats"]
    try:
        state.model.load_state_dict(safetensors.torch.load_file(folder.path / MODEL))
        caveats = json.loads((folder.path / STATEMENT).read_bytes())["caveats"][len(standing) :]
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, safetensors.SafetensorError):
        raise ResumeError(f"{MODEL} or {STATEMENT} is not of the run that was finished here.") from None
    words = statement(ledger, delta, chosen_by_tacita=chosen, caveats=caveats)
    ledger.close()
    folder.finish()
    return Run(state.model, ledger, words, folder.path)


def _untied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies, since safetensors refuses tensors that share memory."""
    return {name: value.clone() for name, value in weights.items()}


def _adam(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=2e-3)
