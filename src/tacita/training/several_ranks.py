"""One run on several ranks: rank 0 has the folder and the checkpoints, and the others start and end where it does.

Place: gradients.processes, oracles -> [training.several_ranks] -> training.loop, training.fit.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tacita._tree import from_bytes, to_bytes
from tacita.gradients.processes import Processes
from tacita.runs.checkpoint import TrainingState

START, BEGUN, WATCHED, WEIGHTS = "start of a run", "run begun", "step watched", "weights"  # when rank 0 tells
SEALED = "sealed"  # the step at which rank 0 tells whether the run was finished before


class Resumable(Protocol):
    """Where rank 0 saves the run."""

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        ...

    def begin(self, state: TrainingState) -> None:
        """Continue from the checkpoint, or write the first one."""
        ...


def same_weights(ranks: Processes, model: nn.Module) -> None:
    """Give the model on every rank the parameters and buffers of rank 0.

    Raises:
        RankError: The models differ in names, shapes or dtypes.
    """
    if ranks.size == 1:
        return
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    described = [(name, tuple(one.shape), str(one.dtype)) for name, one in tensors.items()]
    _, data = ranks.broadcast(
        WEIGHTS, {} if ranks.leads else None, to_bytes(tensors) if ranks.leads else b"",
        what="model", own=repr(described).encode(),
    )  # fmt: skip
    if not ranks.leads:
        _copy(tensors, from_bytes(data))


def begin(state: TrainingState, checkpoints: Resumable | None) -> None:
    """Start or resume a run on every rank: rank 0 as ``checkpoints`` says, and the others where rank 0 stands then.

    Args:
        state: Changed in place.
        checkpoints: Rank 0's; ``None`` for a run in memory.
    """
    ranks = state.oracle.source.ranks
    if not ranks.leads:
        _take_over(state, ranks)
        return
    ranks.broadcast(START, {"resumes": checkpoints is not None and checkpoints.started})
    if checkpoints is not None:
        checkpoints.begin(state)
    if ranks.size > 1:
        head = {"position": state.oracle.gate.position, "losses": state.public_losses, "stopped": state.stopped}
        ranks.broadcast(BEGUN, head, to_bytes(_shared(state)))


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


def _take_over(state: TrainingState, ranks: Processes) -> None:
    if ranks.broadcast(START, None)[0]["resumes"]:
        state.oracle.load_state_dict({})
    head, data = ranks.broadcast(BEGUN, None)
    state.take_over(from_bytes(data))
    state.public_losses, state.stopped = [(made, loss) for made, loss in head["losses"]], head["stopped"]
    gate: Any = state.oracle.gate
    gate.position = head["position"]  # numbers may have been left behind since the checkpoint


def _shared(state: TrainingState) -> dict[str, Any]:
    tree = state.to_tree()
    return {name: tree[name] for name in ("model", "optimizer", "scheduler")}


def _copy(tensors: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(values[name])
