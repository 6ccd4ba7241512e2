"""A model and its loss as a function of the parameters, without side effects on the model.

Every engine of a network evaluates losses through this file.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.utils import checkpoint

from tacita.errors import UnsupportedModuleError

LossFn = Callable[[Any, Any], Tensor]  # (model, batch) -> losses (batch,)
PER_SAMPLE = 'Pass reduction="none" and average over all axes but the first'  # what to do about a wrong shape


def losses_at(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], batch: Any, size: int) -> Tensor:
    """Return the losses of ``batch``, shape ``(size,)``, with ``params`` in place of the model's own parameters.

    Tied parameters are replaced together, whichever of their names is given. On return the model is as before.

    Raises:
        UnsupportedModuleError: ``loss_fn`` did not return one loss a sample.
    """
    with with_tensors(model, params), _WHOLE_GRAPHS:
        losses = loss_fn(model, batch)
    if not is_per_sample(losses, size):
        refuse_losses(losses, size)
    return losses


class _WholeGraphs:
    """Let ``torch.utils.checkpoint(use_reentrant=True)`` call its function and keep the activations.

    Its own way hides the parameters inside from every backward pass that asks for named gradients: PyTorch raises, or
    gives zeros. The switch belongs to the process, so the last of several threads turns it back.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, checkpoint.CheckpointFunction

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before, checkpoint.CheckpointFunction = checkpoint.CheckpointFunction, _CallsOnly
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                checkpoint.CheckpointFunction = self._before


class _CallsOnly:
    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


_WHOLE_GRAPHS = _WholeGraphs()


@contextmanager
def with_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Give ``model`` other parameters and buffers while the code inside runs; afterwards it has its own again.

    ``torch.func.functional_call`` does the same, but leaves the tensors behind in a module that stands at several
    places of the model (the embedding that an encoder and a decoder share).

    Args:
        model: The network.
        tensors: The tensors, by name of a parameter or buffer. A tensor that is tied to it is replaced, too.

    Raises:
        KeyError: ``model`` has no parameter or buffer of that name.
    """
    own: dict[str, Tensor] = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    new = {id(own[name]): tensor for name, tensor in tensors.items()}
    places: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            places += [(held, name, old) for name, old in held.items() if old is not None and id(old) in new]
    try:
        for held, name, old in places:
            held[name] = new[id(old)]
        yield
    finally:
        for held, name, old in places:
            held[name] = old


def refuse_losses(losses: Any, size: int) -> NoReturn:
    """Raise ``UnsupportedModuleError``, which says what ``loss_fn`` must return but not how many rows there are."""
    got = described(losses) if size == 1 else "something else"
    raise UnsupportedModuleError(
        f"loss_fn(model, batch) must return one floating-point loss a sample, shape (batch,), got {got}"
        f"{' for one sample' if size == 1 else ''}. {PER_SAMPLE}."
    )


def is_per_sample(losses: Any, size: int) -> bool:
    """Return whether ``losses`` has the shape and dtype of one loss a sample."""
    return isinstance(losses, Tensor) and losses.shape == (size,) and losses.is_floating_point()


def described(losses: Any) -> str:
    """Describe ``losses`` by shape and dtype or by type, without a value."""
    if isinstance(losses, Tensor):
        return f"shape {tuple(losses.shape)}, {losses.dtype}"
    return type(losses).__name__


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters, detached, by name. A tied parameter appears once, under its first name."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
