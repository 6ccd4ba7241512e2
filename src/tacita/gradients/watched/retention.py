"""Refuse models and losses that keep something of a record: the next record, or the next query, would meet it.

In every pass a record's tensors are *marked*, and so is whatever a torch function makes of a marked tensor. When the
pass is over, no marked tensor may be left, no parameter or buffer may have been written, and no plain attribute of a
module may have changed. A trial on synthetic rows also looks for numbers kept elsewhere (:func:`changes_of_state`); see
docs/threat-model.md for what remains.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import memory_address, memory_key
from tacita.gradients.functional import PLAIN, LossFn, ModuleTree
from tacita.gradients.program.writer import written_by
from tacita.gradients.watched.reachable import held

EXACT = {bool, int, str, bytes, type(None)}  # attributes that are compared as they are
SIZED = (list, dict, set, tuple)  # and by their length


class RemembersError(UnsupportedModuleError):
    """The model or the loss keeps what it computed from a record."""


@contextmanager
def nothing_is_written(tree: ModuleTree) -> Iterator[None]:
    """Raise if the code inside writes parameters or buffers of a model, or changes plain attributes of its modules.

    Args:
        tree: The modules of the network, and the tensors that the code gets (:func:`on_copies`).

    Raises:
        RemembersError: The code does one of these.
    """
    versions = [t._version for t in tree.tensors]
    before = [seen(module) for _, module in tree.modules]
    yield
    if [t._version for t in tree.tensors] != versions:
        raise RemembersError(
            "the forward pass writes parameters or buffers of the model, which would remember data: take that out "
            "(max_norm of an embedding, counters, running statistics), or put its module in eval mode if that "
            "stops it."
        )
    for (prefix, module), earlier in zip(tree.modules, before, strict=True):
        _check_same(prefix, module, earlier)


def _check_same(prefix: str, module: nn.Module, earlier: "_Seen") -> None:
    if same_objects(after := seen(module), earlier):
        return
    now, then = _state(after), _state(earlier)
    if changed := sorted(key for key in {*now, *then} if now.get(key, ...) != then.get(key, ...)):
        raise RemembersError(
            f"the forward pass changes {f'{prefix}.{changed[0]}'!r} of the model, which would remember data, or "
            "how many records there are: take that out."
        )


class _Seen(NamedTuple):
    """A module at one moment."""

    attributes: dict[str, Any]
    modules: dict[str, Any]
    buffers: dict[str, Any]
    inside: list[Any]  # lengths of containers, texts of plain values that may change: in the order of the attributes


def seen(module: nn.Module) -> _Seen:
    """Look at a module's plain attributes, submodules, buffers and the lengths of its containers."""
    attributes = vars(module)
    inside = [look(value) for value in attributes.values() if (look := _INSIDE[type(value)]) is not None]
    return _Seen(attributes.copy(), module._modules.copy(), module._buffers.copy(), inside)


def same_objects(one: _Seen, other: _Seen) -> bool:
    """Return whether two moments show the same objects, which takes a fraction of the time of comparing values."""
    pairs = ((one.attributes, other.attributes), (one.modules, other.modules), (one.buffers, other.buffers))
    return one.inside == other.inside and all(
        a.keys() == b.keys() and all(map(is_, a.values(), map(b.get, a))) for a, b in pairs
    )


def _state(seen: _Seen) -> dict[str, Any]:
    """Return a module's plain values, the lengths of its containers, and the identities of its modules and buffers."""
    inside, found = iter(seen.inside), dict[str, Any]()
    for name, value in seen.attributes.items():
        if _INSIDE[type(value)] is not None:
            found[name] = next(inside)
        elif isinstance(value, PLAIN) or value is None:
            found[name] = value if type(value) in EXACT else repr(value)
    found["_modules"] = {name: id(one) for name, one in seen.modules.items()}
    found["_buffers"] = {name: id(one) for name, one in seen.buffers.items()}
    return found


class _Inside(dict[type, Callable[[Any], Any] | None]):
    """By type of an attribute: the function that gives what is compared of it; ``None`` if it is the object itself."""

    def __missing__(self, kind: type) -> Callable[[Any], Any] | None:
        sized, plain = issubclass(kind, SIZED), issubclass(kind, PLAIN) and kind not in {*PLAIN}
        self[kind] = len if sized else repr if plain else None
        return self[kind]


_INSIDE = _Inside()


class Marks(TorchFunctionMode):
    """Follow which tensors come from a record while code runs on it.

    Args:
        protected: Parameters and buffers. Nothing inside may write them, even where no version counts it (``.data``).
        of_a_record: Returns whether a tensor differs between records; others are never marked. By default all do.
    """

    def __init__(self, protected: Iterable[Tensor] = (), of_a_record: Callable[[Tensor], bool] | None = None) -> None:
        super().__init__()
        self._marked: dict[int, ReferenceType[Tensor]] = {}
        self._protected = {place for t in protected for place in _places(t)}
        self._of_a_record = of_a_record

    def mark(self, value: Any) -> None:
        """Mark a tensor, or each tensor in a tuple or list."""
        if isinstance(value, Tensor):
            key = id(value)
            if key not in self._marked and (self._of_a_record is None or self._of_a_record(value)):
                self._marked[key] = ref(value, lambda _: self._marked.pop(key, None))
        elif isinstance(value, (tuple, list)):
            for part in value:
                self.mark(part)

    def marked(self, value: Any) -> bool:
        """Return whether a value is marked, or holds a marked tensor."""
        if isinstance(value, Tensor):
            return id(value) in self._marked
        if isinstance(value, (tuple, list)):
            return any(self.marked(part) for part in value)
        return False

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        targets = self.check_targets(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.marked(args) or self.marked(tuple(kwargs.values())):
            self.mark(result)
            self.mark(targets)
        return result

    def check_targets(self, func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors that a function writes; raise ``RemembersError`` if one is protected, by whatever name."""
        targets = written_by(func, args, kwargs)
        running = _running(func, args, kwargs) if func in _RUNNING else ()
        written = [*targets, *(one for one in running if isinstance(one, Tensor))]
        if self._protected and any(_places(one) & self._protected for one in written):
            raise RemembersError(
                "the forward pass writes parameters or buffers of the model in place, which would remember data: take "
                "that out."
            )
        return targets

    def check_nothing_is_kept(self) -> None:
        """Raise ``RemembersError`` if a marked tensor is still alive."""
        if self._marked:
            gc.collect()  # tensors that only a cycle holds are gone
        if self._marked:
            raise RemembersError(
                "the model or the loss keeps a tensor that it computed from a record (in an attribute, a list, a "
                "global), and the next query would meet it: do not store it, or store a public value."
            )


def _places(tensor: Tensor) -> set[int]:
    """Return what two names of one memory have in common: a tensor without values has no address."""
    return {memory_address(tensor), memory_key(tensor)} - {0}


def _running(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the running statistics that a normalisation writes: PyTorch counts no version of them."""
    place = _RUNNING[func]
    given = (*args, *[None] * 6)
    training = kwargs.get(place.switch, given[place.training])
    found = (kwargs.get("running_mean", given[place.mean]), kwargs.get("running_var", given[place.mean + 1]))
    return found if training or (training is None and place.default) else ()


class _Statistics(NamedTuple):
    """Where a function takes its running statistics, and whether it writes them."""

    mean: int
    training: int
    switch: str
    default: bool


_RUNNING: dict[Any, _Statistics] = {
    F.batch_norm: _Statistics(1, 5, "training", default=False),
    torch.batch_norm: _Statistics(3, 5, "training", default=False),
    torch.native_batch_norm: _Statistics(3, 5, "training", default=False),
    F.instance_norm: _Statistics(1, 5, "use_input_stats", default=True),
    torch.instance_norm: _Statistics(3, 5, "use_input_stats", default=True),
}


class StateCheck:
    """Hold what a model and its loss can reach against what it was when this was built.

    Compared are tensors that are no parameters or buffers of the model (by identity, address, version and value),
    numbers, texts and NumPy arrays. See ``reachable.py`` for what can be reached.

    Args:
        model: The network.
        loss_fn: Its loss.
        inside: Compare the tensors in plain attributes of the model's modules, too.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, inside: bool = True) -> None:
        self._look = partial(held, loss_fn, model, inside=inside)
        self._before = {where: _remembered(one) for where, one in self._look().items()}

    def changed(self) -> list[str]:
        """Return what was changed, replaced, added or removed, by its path. Tensors that were written are put right."""
        now = self._look()
        found = [name for name in {**now, **self._before} if not _same(self._before.get(name), now.get(name, ...))]
        for before in (self._before.get(name) for name in found):
            if isinstance(before, _TensorAsItWas):
                before.put_right()
        return found

    def __enter__(self) -> "StateCheck":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.changed()  # puts right

    def check(self) -> None:
        """Raise ``RemembersError`` if anything has changed."""
        if found := self.changed():
            raise RemembersError(
                f"{found[0]!r} is changed by a pass over a record, and the next record would meet it: let model and "
                "loss depend on parameters and the batch alone, and count outside of them."
            )


@contextmanager
def changes_of_state(model: nn.Module, loss_fn: LossFn) -> Iterator[list[str]]:
    """Watch calls of ``loss_fn``: afterwards the list names what they changed, replaced or added.

    A constant that the first call makes and keeps shows as a change of that call alone.
    """
    state, changed = StateCheck(model, loss_fn, inside=False), list[str]()
    try:
        yield changed
    finally:
        changed += state.changed()


class _TensorAsItWas(NamedTuple):
    """A tensor as it was."""

    tensor: Tensor  # itself, so that its identity stays its own
    version: int
    address: int
    values: Tensor

    def put_right(self) -> None:
        one, values = self.tensor, self.values
        if (memory_address(one), one.shape, one.dtype) == (self.address, values.shape, values.dtype):
            one.detach().copy_(values)
        else:  # its memory was replaced (.data = other, set_, resize_)
            one.data = values


def _remembered(one: Any) -> Any:
    return (
        _TensorAsItWas(one, one._version, memory_address(one), one.detach().clone()) if isinstance(one, Tensor) else one
    )


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, _TensorAsItWas):
        same = now is before.tensor and now._version == before.version and memory_address(now) == before.address
        return same and now.shape == before.values.shape and _equal(now.detach(), before.values)
    if isinstance(before, np.ndarray) and isinstance(now, np.ndarray):
        return before.dtype == now.dtype and before.shape == now.shape and before.tobytes() == now.tobytes()
    return type(before) is type(now) and bool(before == now)


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())
