"""One run on several ranks: rank 0 has the folder and the checkpoints, and the others start and end where it does.

Place: gradients.processes, oracles -> [training.several_ranks] -> training.loop, training.fit.

What rank 0 has read from a file is whole. It is sent tensor by tensor, of which a rank with shards keeps its own.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_map_with_path

from tacita._tree import with_tensors, without_tensors
from tacita.gradients.processes import ALONE, is_dtensor
from tacita.runs.checkpoint import TrainingState

START, BEGUN, WATCHED, WEIGHTS = "start of a run", "run begun", "step watched", "weights"  # when rank 0 tells
SEALED = "sealed"  # the step at which rank 0 tells whether the run was finished before


class Resumable(Protocol):
    """Where rank 0 saves the run, and after how many queries."""

    @property
    def every(self) -> int:
        """Number of queries from one checkpoint to the next."""
        ...

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        ...

    def begin(self, state: TrainingState) -> tuple[Mapping[str, Any] | None, bool]:
        """Continue from the checkpoint. Return what was restored, and whether another one must be written first."""
        ...

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint."""
        ...


def same_weights(ranks: Any, model: nn.Module, read: Mapping[str, Tensor] | None = None) -> None:
    """Give the model on every rank the parameters and buffers of rank 0; of shards, what the ranks have together.

    Args:
        ranks: The ranks of the run.
        model: Changed in place.
        read: Whole tensors that rank 0 has read from a file, by name: they take the place of its model's own.

    Raises:
        RankError: The models differ in names, shapes or dtypes.
    """
    if ranks is ALONE:
        return
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    described = [(name, tuple(one.shape), str(one.dtype)) for name, one in tensors.items()]
    ranks.check_equal("model", repr(described).encode())
    for name, own in tensors.items():
        full = ranks.gathered(own.detach()) if is_dtensor(own) else own.detach()
        if read is not None and name in read:
            full = read[name].to(full)
        (sent,) = ranks.broadcast_tensors([full])
        with torch.no_grad():
            own.copy_(ranks.shard(sent, own))


def begin(state: TrainingState, checkpoints: Resumable | None) -> int:
    """Start or resume a run on every rank: rank 0 as ``checkpoints`` says, and the others where rank 0 stands then.

    Args:
        state: Changed in place.
        checkpoints: Rank 0's; ``None`` for a run in memory.

    Returns:
        After how many queries this rank has to call :func:`save`; 0 for never.
    """
    ranks = state.ranks
    own = {"resumes": False, "every": 0}
    if checkpoints is not None:
        own = {"resumes": checkpoints.started, "every": checkpoints.every}
    told, _ = ranks.broadcast(START, own if ranks.leads else None)
    every: int = told["every"] if ranks.leads or state.sharded else 0
    if every:
        _ = state.frozen  # which all ranks read at once
    restored, unsaved = None, False
    if checkpoints is not None:
        restored, unsaved = checkpoints.begin(state)
    elif told["resumes"]:
        state.oracle.load_state_dict({})
    if ranks is not ALONE:
        unsaved = _follow(state, ranks, restored, unsaved)
    if unsaved and every:
        save(state, checkpoints)
    return every


def save(state: TrainingState, checkpoints: Resumable | None) -> None:
    """Write a checkpoint on rank 0, for which ranks that have shards gather them."""
    if checkpoints is not None:
        checkpoints.save(state)
    else:
        state.to_tree()


def tell_watched(state: TrainingState, since: int) -> None:
    """Tell the other ranks what was seen after a step: the losses on public data, and whether they end the run.

    Callbacks and public data are rank 0's. A schedule that goes by the loss moves on here on the others.

    Args:
        state: Changed in place on the other ranks.
        since: The number of losses before the step.
    """
    ranks = state.oracle.source.ranks
    if ranks.size == 1:
        return
    message = {"losses": state.public_losses[since:], "stopped": state.stopped} if ranks.leads else None
    head, _ = ranks.broadcast(WATCHED, message)
    if ranks.leads:
        return
    for made, loss in head["losses"]:
        state.public_losses.append((made, loss))
        if isinstance(state.scheduler, ReduceLROnPlateau):
            state.scheduler.step(loss)
    state.stopped = head["stopped"]


def _follow(state: TrainingState, ranks: Any, restored: Mapping[str, Any] | None, unsaved: bool) -> bool:
    """Tell the other ranks where rank 0 stands, and stand there; return rank 0's ``unsaved``."""
    tensors: dict[str, Tensor] = {}
    layout = None if restored is None else without_tensors(restored, tensors)
    kinds = {name: ([*one.shape], str(one.dtype).removeprefix("torch.")) for name, one in tensors.items()}
    told = {"position": state.oracle.gate.position, "losses": state.public_losses, "stopped": state.stopped}
    head, _ = ranks.broadcast(
        BEGUN, {**told, "layout": layout, "kinds": kinds, "unsaved": unsaved} if ranks.leads else None
    )
    if not ranks.leads:
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in head["kinds"].items()
        }

    def taken(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        (sent,) = ranks.broadcast_tensors([leaf])
        return None if ranks.leads else state.shard_of(path, sent)

    tree = None if head["layout"] is None else tree_map_with_path(taken, with_tensors(head["layout"], tensors))
    if not ranks.leads:
        if tree is not None:
            state.take_over(tree)
        state.public_losses, state.stopped = [(made, loss) for made, loss in head["losses"]], head["stopped"]
        gate: Any = state.oracle.gate
        gate.position = head["position"]  # numbers may have been left behind since the checkpoint
    return head["unsaved"]
