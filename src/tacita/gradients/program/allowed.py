"""What may stand on a tape: which torch functions, and which arguments.

Everything here is private. Proof: docs/derivations/program.md, section 1.
"""

import contextlib
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, SupportsFloat, SupportsIndex

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload
from torch.overrides import get_ignored_functions, get_overridable_functions

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import ModuleTree
from tacita.gradients.program.tape import tensors_of

_TORCH, _HERE = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
_HOOKING = {  # gives hooks to a tensor, or the node of the graph that takes them
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.backward,
    getattr(torch.Tensor, "grad_fn").__get__,  # noqa: B009 - its type is that of a tensor's attribute
}
_ASSIGNING = {getattr(torch.Tensor, name).__set__ for name in ("data", "real", "imag")}
_EXACT = {
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(torch.FloatTensor),
}
HOOKED = (
    "a hook is put on a parameter, or on what was computed from parameters or records (grad_fn gives the node that "
    "takes one), which only the loop calls: leave it out"
)


def check_function(func: Any, args: tuple, *, inside: bool) -> None:
    """Refuse a function whose effect is not written down."""
    if func is torch.autograd.grad:
        if not inside and not any(map(_functorch.is_functorch_wrapped_tensor, tensors_of(args))):
            raise UnsupportedModuleError(
                f"{code_line()}: takes a gradient in a record's tensor by torch.autograd.grad: call torch.func.grad"
            )
        return
    if isinstance(func, HigherOrderOperator):
        if inside and func is custom_function_call:
            return
        raise UnsupportedModuleError(
            f"{code_line()}: calls torch.{func.__name__}, which chooses by values what to run: use torch.where"
        )
    _check_trusting(func)
    if func in _ASSIGNING:
        raise UnsupportedModuleError(f"{code_line()}: assigns to .data, .real or .imag: make a new tensor")
    if func in _HOOKING and args[0].requires_grad:
        raise UnsupportedModuleError(HOOKED)


def _check_trusting(func: Any) -> None:
    name = getattr(func, "__name__", "").removesuffix(".default")
    pointwise = isinstance(func, OpOverload) and torch.Tag.pointwise in func.tags
    if ("_backward" in name and not pointwise) or "lu_solve" in name:
        raise UnsupportedModuleError(
            f"{code_line()}: calls {name}, which trusts the sizes and indices that it is given: for a gradient call "
            "the function whose gradient it is, for linear equations torch.linalg.solve"
        )


@cache
def known_functions() -> set[Any]:
    """Return PyTorch's functions: those that it lists, and what its own modules and tensors have in C."""
    found = {one for listed in get_overridable_functions().values() for one in listed} | get_ignored_functions()
    own: Any = torch._C
    homes = torch, torch.linalg, torch.fft, torch.special, torch.nn.functional, own._nn, own._VariableFunctions
    named = [getattr(home, name) for home in homes for name in dir(home)]
    found |= {one for one in named if isinstance(one, types.BuiltinFunctionType)}
    descriptors = [one for kind in torch.Tensor.__mro__[:-1] for one in vars(kind).values()]
    attributes = [one for one in descriptors if isinstance(one, types.GetSetDescriptorType)]
    found |= {way for one in attributes for way in (one.__get__, one.__set__)}
    return found | {
        one for one in descriptors if isinstance(one, types.MethodDescriptorType | types.WrapperDescriptorType)
    }


def check_backward_hooks(tree: ModuleTree) -> None:
    """Refuse backward hooks of modules, which may change a gradient."""
    of_all = torch.nn.modules.module
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        raise UnsupportedModuleError(
            "a backward hook is registered for all modules (register_module_full_backward_hook or one like it), which "
            "only the loop calls: remove the hook"
        )
    for name, module in tree.modules:
        if module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModuleError(
                f"the module {name!r} has a backward hook, which only the loop calls: remove the hook"
            )


def exact(value: Any) -> Any:
    """Return an argument without code of the user's own: of a subclass of int, float or str, the plain value.

    Raises:
        UnsupportedModuleError: It is of another type than PyTorch's operators take.
    """
    if type(value) in _EXACT or isinstance(value, (Tensor, torch.Generator)):
        return value
    if isinstance(value, (list, tuple)):
        return [exact(one) for one in value] if isinstance(value, list) else tuple(exact(one) for one in value)
    for kind, plain in ((str, str.__str__), (float, float.__float__), (SupportsIndex, int), (SupportsFloat, float)):
        if isinstance(value, kind) and type(found := plain(value)) in _EXACT:  # type: ignore[arg-type]
            return found
    raise UnsupportedModuleError(f"a {type(value).__name__} may have code of its own: give an operator plain numbers")


def code_line() -> str:
    """Return ``file:line`` of the user's code that runs now, or of a library's."""
    return _said([(frame.f_code.co_filename, frame.f_lineno) for frame in _users_frames()])


def line_of(error: BaseException) -> str:
    """Return ``file:line`` of the user's code, or of a library's, that an error came through while it was written down;
    of what was played afterwards, that of the call.
    """
    frames = list(walk_tb(error.__traceback__))
    begun = next((k for k, (frame, _) in enumerate(frames) if _begins(frame.f_code)), None)
    if begun is None:
        return getattr(error, "__notes__", [""])[-1]
    lines = [(frame.f_code.co_filename, line) for frame, line in reversed(frames[begun:])]
    return _said([one for one in lines if not one[0].startswith((_TORCH, _HERE, contextlib.__file__, "<"))])


def _said(lines: list[tuple[str, int]]) -> str:
    own = [one for one in lines if "site-packages" not in one[0]] or lines
    return f"{Path(own[0][0]).name}:{own[0][1]}" if own else ""


def _begins(code: types.CodeType) -> bool:
    return code.co_name == "written_down" and code.co_filename.startswith(_HERE)


def _users_frames() -> Iterator[FrameType]:
    """Yield the frames of code that is neither PyTorch's nor tacita's, innermost first."""
    frame = sys._getframe(1)
    while frame is not None and not _begins(frame.f_code):
        if not frame.f_code.co_filename.startswith((_TORCH, _HERE, "<")):
            yield frame
        frame = frame.f_back
