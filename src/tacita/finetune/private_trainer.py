"""A ``transformers.Trainer`` that trains privately, for scripts that are written around one."""

import copy
import dataclasses
import os
import secrets
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tacita import _validate
from tacita.clipping import FlatClipper
from tacita.finetune import base_model
from tacita.finetune.losses import sequence_losses
from tacita.gradients import mean_over_views
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Statement, statement
from tacita.mechanisms import CalibratedGaussian
from tacita.oracles import ClippedGradientOracle
from tacita.random import Randomness
from tacita.runs import run_facts, seal_run
from tacita.runs.edits import LEDGER
from tacita.sampling import PoissonSampler
from tacita.training.loop import warn_if_drowned
from tacita.user_records import UserRecords

try:
    from transformers import Trainer  # pyright: ignore[reportMissingImports]
except ImportError:  # the constructor says what to install
    Trainer: Any = object

# What would scale gradients, change the model or take a step twice.
REFUSED = ("fp16", "bf16", "auto_find_batch_size", "fsdp", "deepspeed", "torch_compile")
REFUSED += ("neftune_noise_alpha", "label_smoothing_factor")
ARGUMENTS = "training_args.bin"
TIMES = ("_runtime", "_per_second")  # how the names of what is logged of them end


class PrivateTrainer(Trainer):
    """Fine-tune with DP-SGD: each step is one query, which draws one Poisson sample, clips and adds noise once.

    The arguments mean what they mean in any script: ``per_device_train_batch_size`` x ``gradient_accumulation_steps``
    records are drawn in expectation, of which the first number are in memory at once; ``max_steps``, or
    ``num_train_epochs`` in expectation, is the plan. ``args.max_grad_norm``, which would clip the noisy gradient, is
    set to 0. The ledger lies in ``output_dir``; once the training has ended, :meth:`save_model` seals it over what it
    writes. No training loss is computed or logged, and ``eval_dataset`` must be public. A run that was stopped is not
    continued; :func:`tacita.fit` has runs that are.

    Args:
        model: The model, or what PEFT made of it; it is put into training mode and not wrapped.
        args: ``transformers.TrainingArguments`` for one process in float32; the model may be bfloat16.
        train_dataset: The private records, all of one shape.
        target_epsilon, target_delta, num_records, privacy_unit: As in :func:`tacita.fit`.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,); by default :func:`sequence_losses`, a mean a record.
        max_grad_norm: Clipping threshold of a record's gradient.
        units, rows_per_query: The user of each record, if users are protected, as in :class:`~tacita.UserRecords`.
        data_collator: Makes a batch of one record, and never sees two: pad to a public length.
        others: What else a Trainer takes. Only tests hand in ``randomness``.

    Raises:
        ValueError: A setting would take gradients from elsewhere than the oracle, or scale them.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Any,
        *,
        train_dataset: Any,
        target_epsilon: float,
        target_delta: float,
        num_records: int,
        loss_fn: LossFn | None = None,
        max_grad_norm: float = 0.1,
        units: Iterable[Hashable] | None = None,
        rows_per_query: int = 1,
        privacy_unit: str | None = None,
        data_collator: Any = None,
        randomness: Randomness | None = None,
        **others: Any,
    ) -> None:
        base_model.library("transformers")
        for name in REFUSED:
            if found := getattr(args, name, None):
                raise ValueError(f"{name} must be left at its default with a PrivateTrainer, got {found!r}.")
        if others.get("compute_loss_func") is not None:
            raise ValueError("compute_loss_func is never called, as no loss is computed: give loss_fn in its place.")
        _check_adapters(model)
        if args.accelerator_config.gradient_accumulation_kwargs:
            raise ValueError("accelerator_config must leave gradient_accumulation_kwargs out: an argument says it.")
        if args.world_size > 1 or args.n_gpu > 1:
            raise ValueError("args must be for one device: tacita.fit has process_group= for several.")
        self._delta = _validate.delta_below("target_delta", target_delta, num_records)
        physical, loss_fn = args.per_device_train_batch_size, loss_fn or sequence_losses()
        batch = physical * args.gradient_accumulation_steps
        sampler = PoissonSampler(expected_batch_size=batch, num_records=num_records)
        if units is not None:
            train_dataset = UserRecords(train_dataset, units, rows_per_query, collate_fn=data_collator)
            loss_fn, data_collator, physical = mean_over_views(loss_fn), None, max(physical // rows_per_query, 1)
        unit = privacy_unit or ("one record" if units is None else "one user")
        self.oracle = ClippedGradientOracle(
            model.train(),
            loss_fn,
            train_dataset,
            ledger=Ledger(Path(args.output_dir) / LEDGER, neighboring_relation="add_or_remove_one", privacy_unit=unit),
            sampler=sampler,
            clipper=FlatClipper(max_grad_norm=max_grad_norm),
            mechanism=CalibratedGaussian(target_epsilon=target_epsilon, target_delta=target_delta),
            planned_queries=args.max_steps if args.max_steps > 0 else sampler.queries_for(args.num_train_epochs),
            collate_fn=data_collator,
            max_physical_batch_size=physical,
            randomness=randomness,
        )
        warn_if_drowned(self.oracle, model)
        args = copy.copy(args)
        args.gradient_accumulation_steps, args.max_grad_norm, args.max_steps = 1, 0.0, self.oracle.planned_queries
        super().__init__(model=model, args=args, **others)

    def __setattr__(self, name: str, value: Any) -> None:
        """Write each state of the training that a Trainer makes without the folders of this machine."""
        if name == "state":
            value.save_to_json = partial(_save_state, value)
        super().__setattr__(name, value)

    def get_epsilon(self) -> float:
        """Return epsilon of the plan at the target's delta."""
        return self.oracle.ledger.epsilon(self._delta)

    def statement(self) -> Statement:
        """Return the privacy statement."""
        return statement(self.oracle.ledger, self._delta, run=run_facts(self.oracle.randomness))

    def get_train_dataloader(self) -> DataLoader:
        """Count steps, in place of reading records."""
        return DataLoader([{}] * self.oracle.planned_queries, batch_size=None)  # pyright: ignore[reportArgumentType]

    def train(self, resume_from_checkpoint: Any = None, **others: Any) -> Any:
        """Train to the end of the plan, or until a callback ends it; the guarantee is that of the plan."""
        if resume_from_checkpoint:
            raise ValueError("resume_from_checkpoint must be left out: tacita.fit(folder=...) has runs that continue.")
        found = super().train(**others)
        if self.oracle.session.opened and not self.oracle.session.closed:
            self.oracle.session.close()
        return found._replace(metrics=_public(found.metrics))

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch: Any = None) -> Tensor:
        """Ask the oracle for a gradient, which is in ``.grad`` afterwards. There is no loss to return."""
        model.train()
        if self.oracle.remaining_queries == self.oracle.planned_queries:
            self.oracle.retrace()  # accelerate has left its mark on the model
        self.oracle.backward()
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: dict) -> int:
        """Count none: a step has no inputs here, and a model that is asked takes a note, which changes it."""
        return 0

    def log(self, logs: dict[str, float], *_: Any, **__: Any) -> None:
        """Log what is public."""
        super().log(_public(logs))  # without the time of the start, of which times would be made

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as ever; into ``output_dir`` after the training, seal what was saved with the statement.

        What lies there already is neither sealed nor hashed. Of an adapter no path or name of its base is written, in
        checkpoints neither, nor are the arguments, which name paths of this machine.
        """
        _check_adapters(self.model)
        folder, own = Path(output_dir or self.args.output_dir).resolve(), Path(self.args.output_dir).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        before = _written(folder)
        with _put_by(folder / "README.md"):
            super().save_model(str(folder), _internal_call)
        self.oracle.retrace()  # transformers has left a note in the model's configuration
        (folder / ARGUMENTS).unlink(missing_ok=True)
        if _written(folder).get(base_model.ADAPTER) != before.get(base_model.ADAPTER):
            base_model.name_no_base(folder)
        if folder == own and self.oracle.session.closed and not self.oracle.ledger.sealed:
            files = {name for name, written in _written(folder).items() if before.get(name) != written}
            seal_run(self.oracle.ledger, self.statement(), files=sorted(files))


def _public(found: dict[str, float]) -> dict[str, float]:
    """Return what may be shown: no constant in place of a loss; no time and no memory, which tell of the records."""
    return {
        name: one for name, one in found.items()
        if name not in ("loss", "train_loss") and "_mem_" not in name and not name.endswith(TIMES)
    }  # fmt: skip


def _save_state(state: Any, path: str) -> None:
    """Write the state as ever, with the last part alone of the path of the best checkpoint."""
    best = state.best_model_checkpoint
    type(state).save_to_json(dataclasses.replace(state, best_model_checkpoint=best and Path(best).name), path)


@contextmanager
def _put_by(notes: Path) -> Iterator[None]:
    """Keep a user's file while PEFT, which reads and writes one of this name, has none; what PEFT writes there goes."""
    kept = notes.with_name(f".{notes.name}.{secrets.token_hex(8)}")  # nobody else's name
    theirs = os.path.lexists(notes)
    if theirs:
        notes.replace(kept)
    try:
        yield
    finally:
        notes.unlink(missing_ok=True)
        if theirs:
            kept.replace(notes)


def _check_adapters(model: Any) -> None:
    if {*getattr(model, "peft_config", {})} - {"default"}:
        raise ValueError("the adapter must be named 'default', as PEFT names it, and be the only one.")


def _written(folder: Path) -> dict[str, int]:
    """Return the paths of the files below a folder, and when each was last written."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()
    }
