"""A device that is not the CPU, simulated on one: tests run on it what would otherwise need a GPU.

``torch.device("simulated")`` is PyTorch's PrivateUse1 device. Its memory is the CPU's, its kernels are the CPU's, and
everything else is as on a real device: its tensors are not the CPU's, ``.numpy()`` and operations that mix both raise,
it has a generator of its own, and sums into places that meet (``index_add_``) are added up in an order that varies.
:func:`counted` counts what a real device would charge for: kernels launched, copies, and waits of the host.

Importing this module registers the device for the rest of the process, which tests of the CPU do not notice. A test
that is to run on both takes the fixture ``device`` of ``tests.devices``.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tacita.gradients.weighted_sums import exact_device

NAME = "simulated"
_DLPACK = {"cpu": 1, NAME: 12}  # DLPack's numbers of the kinds of devices; 12 is one that PyTorch calls PrivateUse1

# The host has to wait for a result that decides a shape, or that it reads.
_WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "bincount",
    "unique_consecutive",
}
_VIEWS = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "view.dtype",
    "set_.source_Tensor",
    "set_.source_Storage_storage_offset",
)
_FUSED = ("_foreach_add.List", "_foreach_div.Scalar")  # over a list of tensors; devices have one kernel for all
_ANY_ORDER = {"index_add", "index_add_", "scatter_add", "scatter_add_"}


@dataclass
class Counts:
    """What was asked of the device.

    Attributes:
        launches: Kernels; copies and views are none.
        float64: Those of ``launches`` that read or write float64.
        waits: Times the host waited for a value, or for memory to be copied to it.
        copies: Copies from the CPU or to it.
    """

    launches: int = 0
    float64: int = 0
    waits: int = 0
    copies: int = 0


_running: list[Counts] = []
_lacks_float64: list[bool] = []
_generator = torch.Generator()
_shuffles = itertools.count()


@contextmanager
def counted() -> Iterator[Counts]:
    """Count what is asked of the device within the block."""
    counts = Counts()
    _running.append(counts)
    try:
        yield counts
    finally:
        _running.remove(counts)


@contextmanager
def without_float64() -> Iterator[None]:
    """Make the device one that has no float64, as Apple's has none."""
    _lacks_float64.append(True)
    exact_device.cache_clear()
    try:
        yield
    finally:
        _lacks_float64.pop()
        exact_device.cache_clear()


class _Module:
    """What ``torch.simulated`` offers, as ``torch.cuda`` does."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def device(self, index: int) -> AbstractContextManager[None]:
        return nullcontext()

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_stream(self) -> "_Stream":
        return _STREAM

    def stream(self, stream: "_Stream") -> AbstractContextManager[None]:
        return nullcontext()

    def manual_seed(self, seed: int) -> None:
        _generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return _generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        _generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class _Stream:
    """The only stream: work is done when it is asked for. Checkpoints of several processes copy on one."""

    def synchronize(self) -> None:
        pass


_STREAM = _Stream()


class _DLDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _at(tensor: Tensor, device: str) -> Tensor:
    """Return a tensor on ``device`` that shares ``tensor``'s memory."""
    if tensor.dtype == torch.float64 and device == NAME and _lacks_float64:
        raise TypeError("the simulated device has no float64.")
    capsule = torch._C._to_dlpack(tensor)
    field = _DLDevice.from_address(_pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
    field.kind, field.index = _DLPACK[device], 0
    return torch._C._from_dlpack(capsule)


def _on_host(value: Any) -> Any:
    return tree_map_only(Tensor, lambda x: _at(x, "cpu") if x.device.type == NAME else x, value)


def _launched(name: str, tensors: list[Tensor]) -> None:
    for counts in _running:
        counts.launches += 1
        counts.float64 += any(x.dtype == torch.float64 for x in tensors)
        counts.waits += name in _WAITS


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation of the device as the CPU runs it, on the same memory."""
    schema, name = op._schema, op._schema.name.removeprefix("aten::")
    given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
    others = [x for x in tensors if x.device.type != NAME and x.ndim]
    if others and not name.startswith(("index", "_index_put")):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found simulated and cpu.")
    _launched("masked_select" if _has_mask(name, given) else name, tensors)
    if given.get("generator") is not None:
        raise RuntimeError(f"{name}: expected a generator of the simulated device, found one of the CPU.")
    if given.get("device") is not None:
        given["device"] = torch.device("cpu")
    hosted = _on_host(given)
    outputs = [a.name for a in schema.arguments if a.is_out and given[a.name].numel() == 0]
    hosted |= {one: torch.empty(0, dtype=given[one].dtype) for one in outputs}  # which may be resized
    numbers = any(isinstance(hosted.get(a.name), int | float) and str(a.type) == "Tensor" for a in schema.arguments)
    kernel = op.overloadpacket if numbers else op  # a number comes as a tensor, and is one no more in Python
    with _own_generator() if torch.Tag.nondeterministic_seeded in op.tags else nullcontext():
        found = kernel(**(_shuffled(hosted) if name in _ANY_ORDER else hosted))
    for one in outputs:
        given[one].set_(_at(hosted[one], NAME))
    written = tuple(given[a.name] for r in schema.returns for a in schema.arguments if _same(a, r))
    if not written:
        return tree_map_only(Tensor, lambda x: _at(x, NAME), found)
    return written[0] if len(schema.returns) == 1 else written


@contextmanager
def _own_generator() -> Iterator[None]:
    """Let the CPU's kernels draw from the device's generator."""
    before = torch.get_rng_state()
    torch.set_rng_state(_generator.get_state())
    try:
        yield
    finally:
        _generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _same(argument: Any, result: Any) -> bool:
    """Return whether a result of an operation is its argument, written in place."""
    one, other = argument.alias_info, result.alias_info
    return one is not None and other is not None and one.before_set == other.before_set


def _has_mask(name: str, given: dict[str, Any]) -> bool:
    """Return whether an index is a mask, whose number of ones decides a shape."""
    indices = given.get("indices")
    listed = indices if name.startswith(("index", "_index_put")) and isinstance(indices, list | tuple) else ()
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in listed)


def _shuffled(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a sum into places with its terms in another order each time."""
    source = "src" if "src" in given else "source"
    dim, index, terms = given["dim"], given["index"], given[source]
    if terms.ndim == 0:
        return given
    along = 0 if index.ndim == 1 else dim
    order = torch.randperm(index.shape[along], generator=torch.Generator().manual_seed(next(_shuffles)))
    return {**given, "index": index.index_select(along, order), source: terms.index_select(dim, order)}


def _empty(size: Any, **options: Any) -> Tensor:
    options = {**options, "device": "cpu", "pin_memory": None}
    return _at(torch.empty(size, **{k: v for k, v in options.items() if v is not None}), NAME)


def _empty_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    return _at(torch.empty_strided(size, stride, dtype=options.get("dtype")), NAME)


def _resize(tensor: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    return tensor.set_(_empty(size, dtype=tensor.dtype))  # type: ignore[arg-type]


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    kinds = {source.device.type, target.device.type}
    for counts in _running:
        counts.copies += len(kinds) == 2
        counts.waits += target.device.type == "cpu"
        counts.launches += len(kinds) == 1
        counts.float64 += len(kinds) == 1 and torch.float64 in (source.dtype, target.dtype)
    _on_host(target).copy_(_on_host(source))
    return target


def _local_scalar(tensor: Tensor) -> Any:
    for counts in _running:
        counts.waits += 1
    return _at(tensor, "cpu").item()


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _as_on_cpu(name: str) -> Callable[..., Any]:
    """Return the CPU's implementation of a view, which serves every device whose memory it does not touch."""
    op = _operator(name)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return lambda *args, **kwargs: op.redispatch(keys, *args, **kwargs)


def _convolution(*args: Any) -> Tensor:
    return _run(torch.ops.aten.convolution.default, *args)


def _convolution_backward(grad: Tensor, input: Tensor, weight: Tensor, *settings: Any) -> Any:
    return _run(torch.ops.aten.convolution_backward.default, grad, input, weight, [grad.shape[1]], *settings)


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Copy a storage, as ``copy.deepcopy`` does; PyTorch would ask an allocator, which only C++ can register."""
    return (
        torch.empty(0, dtype=torch.uint8, device=NAME).set_(storage, 0, (storage.nbytes(),)).clone().untyped_storage()
    )


def _register() -> list[torch.library.Library]:
    # PyTorch's engine starts a thread a device at the first backward pass, and can then not be used in a fork. That
    # pass is made here, before there is a device: backward passes stay in the thread that asks for them.
    torch.ones(1, requires_grad=True).sum().backward()
    torch.autograd.set_multithreading_enabled(False)
    clone, run = torch.UntypedStorage.clone, threading.Thread.run
    torch.UntypedStorage.clone = lambda self: _cloned(self) if self.device.type == NAME else clone(self)
    threading.Thread.run = lambda self: (torch.autograd.set_multithreading_enabled(False), run(self))[1]
    _setup_privateuseone_for_python_backend(NAME, _Module())
    rest, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    rest.fallback(_run, "PrivateUse1")
    own = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": _resize,
        "_copy_from": _copy_from,
        "_copy_from_and_resize": _copy_from,
        "_local_scalar_dense": _local_scalar,
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
    }
    own |= {name: partial(_run, _operator(name)) for name in _FUSED}
    for name, kernel in (own | {view: _as_on_cpu(view) for view in _VIEWS}).items():
        aten.impl(name, kernel, "PrivateUse1")
    return [rest, aten]


_LIBRARIES = _register()
