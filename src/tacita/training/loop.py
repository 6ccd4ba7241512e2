"""The training loop: query, step, average, checkpoint. A new run and a resumed one take the same loop.

Nothing here sees raw data.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tacita.errors import BudgetExceededError, ResumeError
from tacita.methods import RandomIterate
from tacita.oracles import GradientOracle, Release, trainable
from tacita.runs import checkpoint as checkpoints
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.training.callbacks import Watch
from tacita.training.progress import Progress
from tacita.training.several_ranks import begin, save, tell_watched

DROWNED = 0.3  # of the noise's length: what the gradients of a whole run may add up to before it is said


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When and where a run is saved.

    Attributes:
        folder: The run's folder.
        every: Number of queries between checkpoints. The key moves on at each checkpoint, so that this number decides
            the bits of the run; it never depends on time.
        binding: A text that must be the same when the run is resumed: a keyed tag of settings and data.
    """

    folder: RunFolder
    every: int
    binding: str

    @classmethod
    def planned(cls, folder: RunFolder, oracle: GradientOracle, binding: str) -> "Checkpoints":
        """Return about twenty checkpoints a run."""
        return cls(folder=folder, every=math.ceil(oracle.planned_queries / 20), binding=binding)

    def save(self, state: TrainingState) -> None:
        """Write the ledger, a checkpoint and the next key. A run killed in between can be resumed."""

        def write(oracle: dict[str, Any]) -> None:
            head = {"binding": self.binding, "anchor": list(state.oracle.ledger.anchor)}
            checkpoints.save(self.folder.checkpoint, {**state.to_tree(), "oracle": oracle}, head)

        state.oracle.checkpoint(write, self.folder.key)

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.folder.checkpoint.exists()

    def begin(self, state: TrainingState) -> tuple[Mapping[str, Any] | None, bool]:
        """Continue from the checkpoint, if there is one.

        Returns:
            What was restored, for other ranks to take over: the model, and the optimizer, scheduler and average that go
            on; ``None`` in a new run. And whether a checkpoint must be written before the first query.

        Raises:
            ResumeError: As in :meth:`restore`; or queries were made, and there is no checkpoint.
        """
        if self.started:
            return self.restore(state)
        if state.oracle.session.opened:  # a new checkpoint would move the key on, and make the old one useless
            raise ResumeError(
                f"session {state.oracle.session.id!r} was opened by an earlier run, and its checkpoint is missing: "
                f"restore {self.folder.checkpoint.name}, or choose another folder."
            )
        return None, True

    def restore(self, state: TrainingState) -> tuple[Mapping[str, Any], bool]:
        """Continue from the checkpoint. :meth:`TrainingState.from_tree` says what another optimizer changes.

        Raises:
            ResumeError: The checkpoint is of other privacy settings or data, or the ledger does not continue from the
                state that the checkpoint names.
        """
        tree, head = checkpoints.load(self.folder.checkpoint)
        try:
            self._check(state, head)
            state.from_tree(tree)
            changed = state.optimizer_settings != tree["optimizer_settings"]
            kept = ("model", "average") if changed else ("model", "average", "optimizer", "scheduler")
            restored = {name: tree[name] for name in kept}
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise ResumeError(f"{self.folder.checkpoint.name} does not fit this run.") from error
        return restored, changed  # a changed run that is killed before its next checkpoint would skip numbers again

    def _check(self, state: TrainingState, head: Mapping[str, Any]) -> None:
        if head["binding"] != self.binding:
            raise ResumeError(
                "this run was started with other settings or other data: rerun with those, or choose another folder."
            )
        count, digest = head["anchor"][:2]
        found = state.oracle.ledger.verify(anchor=(count, digest, "the checkpoint"))
        if not found.ok:
            raise ResumeError(f"the ledger does not go on from the checkpoint: {found.reason}.")


def train(
    state: TrainingState,
    *,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    on_step: Callable[[int], Any] | None = None,
) -> None:
    """Alternate queries and optimizer steps until the plan of ``state.oracle`` is used up, or ``watch`` ends the run.

    Args:
        state: Model, optimizer and oracle; changed in place. With a process group every rank calls this.
        checkpoints: When and where to save; of several ranks, rank 0's. If the folder holds a checkpoint, the run
            continues from it.
        progress: Shows steps, their epsilon and the time left.
        watch: Sees each step before it is saved.
        on_step: Called after each step with the number of steps made. It is handed nothing private.
    """
    every = begin(state, checkpoints)
    if state.oracle.source.ranks.leads:
        warn_if_drowned(state.oracle, state.model)
    if not state.model.training:  # else its modules keep their modes: frozen statistics of a batch norm, say
        state.model.train()
    while state.oracle.remaining_queries and not state.stopped:
        try:
            releases: tuple[Release, ...] = (state.oracle.backward(),)
        except BudgetExceededError:
            if state.oracle.remaining_queries:
                raise
            break  # a redone query did not match, and no number is left: the run ends here
        if watch is None or not watch.sees_releases:
            releases = ()  # their memory is free for the step
        _step(state)
        seen = len(state.public_losses)
        if watch is not None:
            watch.step(releases)
        tell_watched(state, seen)
        releases = ()  # and for the next query
        made, last = state.oracle.gate.position, state.stopped or not state.oracle.remaining_queries
        if every and (made % every == 0 or last):
            save(state, checkpoints)
        if progress is not None:
            progress.show(made)
        if on_step is not None:
            on_step(made)
    _end(state)
    if watch is not None:
        watch.end()


def warn_if_drowned(oracle: GradientOracle, model: nn.Module) -> None:
    r"""Warn if noise is much longer than all clipped gradients of the run, were they alike and as long as they may be.

    The ratio of both is :math:`B \sqrt T / (\sigma \sqrt d)`, where B is the expected batch, T the number of queries,
    :math:`\sigma` the noise multiplier and d the number of weights; it is that of a step times :math:`\sqrt T`. All of
    them are public.
    """
    weights, noise = sum(p.numel() for p in trainable(model).values()), oracle.noise_multiplier
    ratio = oracle.divisor * math.sqrt(oracle.planned_queries) / max(noise * math.sqrt(weights), 1e-300)
    if ratio < DROWNED:
        warnings.warn(
            f"noise drowns this training: over all {oracle.planned_queries} queries it is at least {1 / ratio:.2g} "
            "times as long as the clipped gradients together. A larger epsilon, more records or fewer weights help.",
            stacklevel=2,
        )


def _step(state: TrainingState) -> None:
    """Take a step with the gradients that are there; move on the schedule and the average."""
    state.optimizer.step()
    if state.scheduler is not None and not isinstance(state.scheduler, ReduceLROnPlateau):
        state.scheduler.step()
    params = trainable(state.model)
    if isinstance(state.average, RandomIterate):
        state.average.update(params, state.oracle.gate.position)
    elif state.average is not None:
        state.average.update(params)


def _end(state: TrainingState) -> None:
    """Put the model at the point where the run ends."""
    params = trainable(state.model)
    if isinstance(state.average, RandomIterate):
        state.average.update(params, state.oracle.gate.position)  # numbers that were left behind at the end count, too
    if state.average is not None:
        state.average.copy_to(params)
