"""A model and its loss as a function of parameters and a batch, without side effects on the model.

Every engine of a network evaluates losses through this file.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from tacita.errors import UnsupportedModuleError

LossFn = Callable[[Any, Any], Tensor]  # (model, batch) -> losses (batch,)
IN_TURN = threading.RLock()  # while a model has other tensors than its own, other threads keep away from all models
if hasattr(os, "register_at_fork"):  # Windows has no fork
    # Another thread of a worker's parent may hold it.
    os.register_at_fork(after_in_child=IN_TURN._at_fork_reinit)  # pyright: ignore[reportAttributeAccessIssue]
PLAIN = (bool, int, float, complex, str, bytes)  # attributes that are compared by their text: NaN equals itself
_FILLED = (list, dict, set, OrderedDict)  # containers whose contents are put back
PER_SAMPLE = 'Pass reduction="none" and average over all axes but the first'  # what to do about a wrong shape


def check_loss_fn(loss_fn: Any) -> None:
    """Raise ``ValueError`` for a loss of PyTorch's own, which takes outputs and targets in place of (model, batch)."""
    if getattr(loss_fn, "__module__", "") in ("torch.nn.modules.loss", "torch.nn.functional"):
        name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        call = (
            f'nn.{name}(reduction="none")' if isinstance(loss_fn, nn.Module) else f'partial({name}, reduction="none")'
        )
        raise ValueError(
            f"loss_fn must take (model, batch) and return one loss a record, got {name}, which takes outputs and "
            f"targets. Write def loss_fn(model, batch): return {call}(model(batch[0]), batch[1])"
        )


class ModuleTree:
    """The modules of a network and the places of its tensors, found in one walk, which takes as long as several layers.

    Attributes:
        model: The network.
        modules: Each module, once, with its first name.
        places: Each place of a parameter or buffer, once: the dictionary that holds it, its key there, the tensor.
        tensors: The tensors of these places; a tied one stands there several times.
        by_name: The tensors, by each of their names.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: list[tuple[str, nn.Module]] = []
        self.places: list[tuple[dict[str, Any], str, Tensor]] = []
        self.by_name: dict[str, Tensor] = {}
        seen: set[nn.Module] = set()
        with IN_TURN:  # so that the tensors are its own, not those that another thread has put in their places
            for prefix, module in model.named_modules(remove_duplicate=False):
                kinds = module._parameters, module._buffers
                held = [(d, key, t) for d in kinds for key, t in d.items() if t is not None]
                self.by_name |= {f"{prefix}.{key}" if prefix else key: t for _, key, t in held}
                if module not in seen:
                    seen.add(module)
                    self.modules.append((prefix, module))
                    self.places += held
        self.tensors = [tensor for _, _, tensor in self.places]

    def holding(self, copies: Mapping[int, Tensor]) -> "ModuleTree":
        """Return the tree of the same modules with other tensors, by the ``id`` of the one whose place each takes."""
        other = object.__new__(ModuleTree)
        other.model, other.modules = self.model, self.modules
        other.places = [(held, key, copies[id(old)]) for held, key, old in self.places]
        other.by_name = {name: copies[id(old)] for name, old in self.by_name.items()}
        other.tensors = [tensor for _, _, tensor in other.places]
        return other


@contextmanager
def attributes_kept(tree: ModuleTree) -> Iterator[set[str]]:
    """Give the modules back, whatever happens inside, what they held: attributes, and the contents of containers.

    An LSTM, for example, lists the weights of its last forward pass.

    Yields:
        The names of the attributes that the code inside has set, once it is over; also of one that begins as a plain
        value of the class.
    """
    written: set[str] = set()
    before = [(vars(module), vars(module).copy()) for _, module in tree.modules]
    inside = [(one, one.copy()) for _, held in before for one in held.values() if type(one) in _FILLED]
    try:
        yield written
    finally:
        for (prefix, module), (own, held) in zip(tree.modules, before, strict=True):
            of_class = {name: getattr(type(module), name, None) for name in own.keys() - held.keys()}
            known = held | {name: one for name, one in of_class.items() if isinstance(one, PLAIN)}
            changed = (name for name, one in known.items() if not _is_same(one, own.get(name, own)))
            written |= {f"{prefix}.{name}" if prefix else name for name in changed}
            for name in own.keys() - held.keys():
                del own[name]
            own.update(held)
        for one, held in inside:
            one.clear()
            (one.extend if isinstance(one, list) else one.update)(held)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two attributes are the same object, or two plain values of the same text."""
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and repr(one) == repr(other))


@contextmanager
def on_copies(model: nn.Module, params: Mapping[str, Tensor]) -> Iterator[tuple[ModuleTree, dict[str, Tensor]]]:
    """Give a model copies of all its parameters and buffers while its code runs on records; drop them afterwards.

    Whatever the code does to the tensors that it is given (in place, by ``.data``, ``.grad``, ``swap_tensors``, an
    attribute of a tensor, compiled code) is gone with the copies, also if it raises. Other threads keep away meanwhile.

    Args:
        model: The network.
        params: The point, by parameter name.

    Yields:
        The modules with the copies in their places; and the copy of each tensor in ``params``, by name.
    """
    with IN_TURN:
        tree = ModuleTree(model)
        point = {id(tree.by_name[name]): p for name, p in params.items()}
        copies = {id(old): _copy(point.get(id(old), old)) for old in tree.tensors}
        with with_tensors(tree, {name: copies[id(old)] for name, old in tree.by_name.items()}):
            yield tree.holding(copies), {name: copies[id(tree.by_name[name])] for name in params}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


class ZeroedMemory(TorchDispatchMode):
    """Fill memory that an operator gives as it is with zeros: it may still hold a record of an earlier query."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found.zero_() if "empty" in func._opname and isinstance(found, Tensor) else found


class WrittenMemory(ZeroedMemory):
    """Refuse a tensor that is made larger in place, or gets the memory of another, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if "resize" in func._opname or func._opname.startswith("set_"):
            raise UnsupportedModuleError(f"{func} gives memory that nobody has written: use torch.zeros")
        return super().__torch_dispatch__(func, types, args, kwargs)


def losses_at(
    model: nn.Module | ModuleTree, loss_fn: LossFn, params: Mapping[str, Tensor], batch: Any, size: int
) -> Tensor:
    """Return the losses of ``batch``, shape ``(size,)``, with ``params`` in place of the model's own parameters.

    Tied parameters are replaced together, whichever of their names is given. On return the model is as before.

    Raises:
        UnsupportedModuleError: ``loss_fn`` did not return one loss a sample.
    """
    tree = model if isinstance(model, ModuleTree) else ModuleTree(model)
    with with_tensors(tree, params), _WHOLE_GRAPHS():
        losses = loss_fn(tree.model, batch)
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

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._before, checkpoint.CheckpointFunction = checkpoint.CheckpointFunction, _CallsOnly
            self._inside += 1
        try:
            yield
        finally:
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
def with_tensors(tree: ModuleTree, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a model other parameters and buffers while the code inside runs; afterwards it has its own again.

    ``torch.func.functional_call`` does the same, but leaves the tensors behind in a module that stands at several
    places of the model (the embedding that an encoder and a decoder share).

    Args:
        tree: The modules and tensors of the model.
        tensors: The tensors, by name of a parameter or buffer. A tensor that is tied to it is replaced, too.

    Raises:
        KeyError: The model has no parameter or buffer of that name.
    """
    new = {id(tree.by_name[name]): tensor for name, tensor in tensors.items()}
    places = [(held, key, old) for held, key, old in tree.places if id(old) in new]
    with IN_TURN:
        try:
            for held, key, old in places:
                held[key] = new[id(old)]
            yield
        finally:
            for held, key, old in places:
                held[key] = old


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
