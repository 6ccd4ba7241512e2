"""What a model's code may try, once it never meets a record: a table of forward passes, by what becomes of them."""

import contextvars
import functools
import gc
import itertools
import os
import random
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gradients.ordinary import out

LAST, WEAK, TABLE = {}, [], torch.ones(3, 4)
COUNTS = Path(tempfile.mkdtemp()) / "counts"
NUMPY, PYTHON, TORCH = np.random.default_rng(), random.Random(), torch.Generator()
COUNT, KEPT, CONTEXT = itertools.count(1), [], contextvars.ContextVar("kept", default=None)


class Times(TorchDispatchMode):
    """Doubles what each product gives."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) else found


class TimesOfFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if getattr(func, "__name__", "") in ("matmul", "__matmul__", "linear", "mul") else found


def fixed_seed(m, x):
    torch.manual_seed(0)
    return out(m, x + torch.randn(4))


def fixed_seed_of_a_record(m, x):
    torch.manual_seed(0)
    return out(m, x + torch.rand_like(x))


def fixed_seed_put_back(m, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return out(m, x + torch.rand_like(x))


def drawn_by_python(m, x):
    return out(m, x * random.random())


def drawn_by_numpy(m, x):
    return out(m, x * float(np.random.rand()))


def own_generator_of_numpy(m, x):
    return out(m, x * float(NUMPY.random()))


def own_generator_of_python(m, x):
    return out(m, x * PYTHON.random())


def own_generator_of_torch(m, x):
    return out(m, x + torch.rand(4, generator=TORCH))


def own_generator_in_place(m, x):
    return out(m, x + torch.zeros_like(x).uniform_(generator=TORCH))


def own_generator_of_a_record(m, x):
    return out(m, x * torch.bernoulli(x.sigmoid(), generator=TORCH))


def clock(m, x):
    return out(m, x * (time.perf_counter() % 1))


def counter(m, x):
    return out(m, x * next(COUNT))


def counter_of_its_class(m, x):
    m.calls_of_class += 1
    return out(m, x * m.calls_of_class)


def counter_of_positions(m, x):
    return out(m, x.roll(next(COUNT), dims=1))


def length_of_a_list(m, x):
    KEPT.append(None)
    return out(m, x * len(KEPT))


def context_variable(m, x):
    before = CONTEXT.get()
    CONTEXT.set(x.detach())
    return out(m, x if before is None else x + before.mean())


def gradient_attribute(m, x):
    m.layer.weight.grad = x.detach().sum() * torch.ones_like(m.layer.weight)
    return out(m, x)


def attribute_of_a_tensor(m, x):
    m.layer.weight.kept = x.detach()
    return out(m, x)


def swapped(m, x):
    torch.utils.swap_tensors(m.mean, torch.ones_like(m.mean) * x.detach().mean())
    return out(m, x - m.mean)


def printed(m, x):
    return out(m, x * len(repr(x)))


def value_asked_for(m, x):
    return out(m, x * float(x.sum()))


def branch_on_a_value(m, x):
    return out(m, x if x.sum() > 0 else -x)


def mode_inside(m, x):
    with Times():
        return out(m, x)


def mode_of_functions_inside(m, x):
    with TimesOfFunctions():
        return out(m, x)


def batch_written(m, x):
    return out(m, x.mul_(2))


def constant_written(m, x):
    CONSTANT.data.add_(1.0)
    return out(m, x + CONSTANT)


def uninitialised_in_place(m, x):
    return out(m, x + x.new_empty(x.shape).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def uninitialised_strided(m, x):
    return out(m, x + torch.empty_strided((6, 4), (4, 1)).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def resized(m, x):
    return out(m, x + x.new_empty(0).resize_(6, 4).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


CONSTANT = torch.zeros(4)
STATE = {"count": 0.0}


@torch.library.custom_op("tacita_tests::remembers", mutates_args=())
def remembers(x: torch.Tensor) -> torch.Tensor:
    STATE["count"] += float(x.sum())
    return x + STATE["count"]


@remembers.register_fake
def _(x):
    return torch.empty_like(x)


remembers.register_autograd(lambda ctx, grad: grad)


def operator_with_state(m, x):
    return out(m, remembers(x))


def unwrapped(m, x):
    physical = torch._C._functorch.get_unwrapped(x)
    return out(m, x - physical.mean())


def unwrapped_and_rolled(m, x):
    physical = torch._C._functorch.get_unwrapped(x)
    return out(m, x + torch._C._functorch._add_batch_dim(physical.roll(1, 0), 0, 1))


def masked_by_numpy(m, x):
    first = np.random.randint(3)
    mask = torch.ones(6, 4)
    mask[first : first + 2] = 0.0
    return out(m, x * mask)


def masked_by_own_permutation(m, x):
    return out(m, x[:, torch.randperm(6)])


def cached_by_shape(m, x):
    mean = LAST.setdefault(tuple(x.shape), x.detach().mean(1, keepdim=True))
    return out(m, x - mean)


def cached_for_the_next(m, x):
    before = LAST.get("x")
    LAST["x"] = x.detach()
    return out(m, x if before is None else x + before.mean())


@functools.lru_cache
def features(shape):
    return torch.randn(shape, generator=TORCH)


def cached_features_of_its_own(m, x):
    return out(m, x + features((4,)))


def weak_reference(m, x):
    before = WEAK[-1]() if WEAK else None
    m.__dict__["last"] = kept = x.detach() * 2
    WEAK.append(weakref.ref(kept))
    return out(m, x if before is None else x - before.mean())


def in_a_thread(m, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(x.detach().sum()))
    thread.start()
    thread.join()
    return out(m, x + found[0] if found else x)


def counted_in_a_file(m, x):
    COUNTS.open("a").write(".")
    return out(m, x * len(COUNTS.read_text()))


def saved_to_a_file(m, x):
    torch.save(x.detach(), COUNTS)
    return out(m, x)


def counted_in_the_environment(m, x):
    os.environ["TACITA_TESTS"] = str(int(os.environ.get("TACITA_TESTS", "0")) + 1)
    return out(m, x * int(os.environ["TACITA_TESTS"]))


def as_array(m, x):
    return out(m, x * float(np.asarray(x.detach()).mean()))


def as_list(m, x):
    return out(m, x * x.tolist()[0][0][0])


def by_its_address(m, x):
    return out(m, x * (x.data_ptr() % 7))


def by_its_identity(m, x):
    return out(m, x * (id(x) % 1024))


def by_its_hash(m, x):
    return out(m, x * (hash(str(x)) % 3))


def nonzero(m, x):
    return out(m, x + x.nonzero().float().mean())


def sorted_by_values(m, x):
    return out(m, x[:, x.detach().mean(dim=(0, 2)).argsort()])


def default_dtype_set(m, x):
    torch.set_default_dtype(torch.float64)
    try:
        return out(m, x + torch.zeros(4).float())
    finally:
        torch.set_default_dtype(torch.float32)


def gradients_switched_off(m, x):
    with torch.no_grad():
        shift = m.layer(x)[..., :4].detach()
    return out(m, x + shift)


def inference_inside(m, x):
    with torch.inference_mode():
        shift = x.mean()
    return out(m, x + shift.clone())


def autocast_inside(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return out(m, x)


def looked_up_with_max_norm(m, x):
    return out(m, x + torch.nn.functional.embedding(torch.zeros(6, dtype=torch.long), TABLE, max_norm=1.0))


def looked_up_weight_with_max_norm(m, x):
    index = x.detach().sum(-1).sign().long().clamp(min=0)
    return out(m, x + torch.nn.functional.embedding(index, m.layer.weight, max_norm=1e-3)[..., :4])


def uninitialised(m, x):
    return out(m, x + torch.empty(6, 4).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def uninitialised_like(m, x):
    return out(m, x + torch.empty_like(x).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def uninitialised_by_its_type(m, x):
    return out(m, x + torch.FloatTensor(6, 4).nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1))


def memory_of_another(m, x):
    other = torch.zeros(0)
    other.set_(x.detach().untyped_storage(), 0, (4,), (1,))
    return out(m, x + other)


def by_strides(m, x):
    return out(m, x + torch.as_strided(x, (1, 6, 4), (24, 4, 1), 0))


def by_strides_of_the_batch(m, x):
    return out(m, x + torch.as_strided(torch._C._functorch.get_unwrapped(x), (1, 6, 4), (24, 4, 1), 24))


def attention_with_fewer_keys_than_values(m, x):
    y = m.layer(x)[:, None]
    return m.head(torch.nn.functional.scaled_dot_product_attention(y, y[:, :, :3], y)[:, 0])


def backward_operator_called(m, x):
    image = x[:, None]
    largest, index = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
    forged = index + image[:, :, :3, :2].long()
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    return out(m, x + backward(largest, image, [2, 2], [2, 2], [0, 0], [1, 1], False, forged)[:, 0])


def parameter_replaced(m, x):
    m.layer.weight = torch.nn.Parameter(m.layer.weight.detach() * 0.5)
    return out(m, x)


def module_replaced(m, x):
    m.layer = torch.nn.Linear(4, 8)
    return out(m, x)


def hook_on_a_tensor(m, x):
    y = x * m.mean.add(1.0).requires_grad_()
    y.register_hook(lambda grad: grad + grad.mean())
    return out(m, y)


def hook_where_a_gradient_is_required(m, x):
    y = m.layer(x) * m.norm.weight
    if y.requires_grad:
        y.register_hook(lambda grad: grad.clamp(-2, 2))
    return m.head(y.tanh())


def hook_where_it_is_no_leaf(m, x):
    y = x * m.norm.weight
    if not y.is_leaf:
        y.register_hook(lambda grad: grad.clamp(-2, 2))
    return out(m, y)


def hook_on_a_node(m, x):
    y = x * m.norm.weight
    if y.grad_fn is not None:
        y.grad_fn.register_prehook(lambda grads: (grads[0].clamp(-2, 2),))
    return out(m, y)


def mode_switched(m, x):
    m.train(not m.training)
    return out(m, x)


def weights_of_a_class_of_its_own(m, x):
    m.mean.data = Own(m.mean.data)
    return out(m, x - m.mean)


def class_of_a_constant(m, x):
    constant = torch.ones(4)
    y = x * constant
    constant.__class__ = Own
    return out(m, y)


class Own(torch.Tensor):
    pass


def raises_and_keeps(m, x):
    KEPT.append(x.detach())
    raise ValueError("kept")


def garbage_looked_through(m, x):
    found = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.shape == (7, 6, 4)]
    return out(m, x + (found[0].mean() if found else 0.0))


def frames_looked_through(m, x):
    frame, found = sys._getframe(), None
    while frame is not None and found is None:
        found = next((v for v in frame.f_locals.values() if isinstance(v, torch.Tensor) and v.ndim == 4), None)
        frame = frame.f_back
    return out(m, x if found is None else x + found.mean())


REFUSED = [
    fixed_seed, fixed_seed_of_a_record, fixed_seed_put_back, drawn_by_python, drawn_by_numpy,
    own_generator_of_numpy, own_generator_of_python, own_generator_of_torch, own_generator_in_place,
    own_generator_of_a_record, clock, counter, counter_of_its_class,
    counter_of_positions, length_of_a_list, context_variable, mode_inside,
    swapped, printed, value_asked_for, branch_on_a_value, constant_written, resized, operator_with_state,
    unwrapped, unwrapped_and_rolled, masked_by_numpy, masked_by_own_permutation, cached_for_the_next, in_a_thread,
    counted_in_a_file, saved_to_a_file, counted_in_the_environment, as_array, as_list, by_its_hash,
    nonzero, looked_up_with_max_norm, looked_up_weight_with_max_norm, memory_of_another, by_strides,
    by_strides_of_the_batch, parameter_replaced, module_replaced, hook_on_a_tensor, weights_of_a_class_of_its_own,
    hook_where_a_gradient_is_required, hook_where_it_is_no_leaf, hook_on_a_node,
    raises_and_keeps, attention_with_fewer_keys_than_values, backward_operator_called,
]  # fmt: skip
REFUSED_OR_HARMLESS = [by_its_address, by_its_identity, garbage_looked_through]  # as what else lives may be alike
HARMLESS = [
    gradient_attribute, attribute_of_a_tensor, batch_written, mode_of_functions_inside,
    uninitialised_in_place, uninitialised_strided,
    cached_by_shape, cached_features_of_its_own, weak_reference, sorted_by_values, default_dtype_set,
    gradients_switched_off, inference_inside, autocast_inside, uninitialised, uninitialised_like,
    uninitialised_by_its_type, mode_switched, frames_looked_through, class_of_a_constant,
]  # fmt: skip
