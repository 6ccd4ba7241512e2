"""The Triton kernel of float32 normals: one thread makes a block of ChaCha20, and ten normals of it.

Contraction to fused multiply-adds is off, so that the bits are those of the definition.
"""

# pyright: reportMissingImports=false, reportInvalidTypeForm=false
import importlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita._normals.definition import GROUP, LANES

triton: Any
tl: Any
try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # the file is read, and not run: tools import every module
    triton, tl = SimpleNamespace(jit=lambda *_, **__: lambda one: one), SimpleNamespace(constexpr=int)

_BLOCKS = 128  # of ChaCha20 in one program
OPTIONS = {"enable_fp_fusion": False}
_LANES, _GROUP = tl.constexpr(LANES), tl.constexpr(GROUP)


def load(device: torch.device) -> Callable[[bytes, int, int], Tensor]:
    """Return ``(key, first group, groups) -> normals``, which :func:`normals` makes on the device.

    Raises:
        ModuleNotFoundError: There is no Triton.
    """
    importlib.import_module("triton")
    return partial(normals, device)


def normals(device: torch.device, key: bytes, first: int, groups: int) -> Tensor:
    """Return the normals of ``groups`` from group ``first`` on, float32, on the device."""
    out = torch.empty(groups * GROUP, dtype=torch.float32, device=device)
    words = np.frombuffer(key, "<i4").tolist()
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _normals[triton.cdiv(groups * LANES, _BLOCKS),](out, groups, first, *words, _BLOCKS, **OPTIONS)
    return out


@triton.jit
def _rotated(x, n: tl.constexpr):
    return (x << n) | (x >> (32 - n))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _logarithm(x):
    value = x * 3.486881732940674 - 4.9528985023498535
    value = value * x + 3.941861391067505
    value = value * x - 1.1845371723175049
    value = value * x + 0.6801363825798035
    value = value * x + 0.35174909234046936
    value = value * x + 0.5037372708320618
    value = value * x + 0.6665264964103699
    value = value * x + 1.0000017881393433
    return value * x + 2.0


@triton.jit
def _cosine(g):
    value = g * 0.0008935071527957916 - 0.020855240523815155
    value = value * g + 0.25366851687431335
    value = value * g - 1.2337005138397217
    return value * g + 1.0


@triton.jit
def _sine(g):
    value = g * -0.0045560323633253574 + 0.0796605572104454
    value = value * g - 0.6459611058235168
    return value * g + 1.570796251296997


@triton.jit
def _square_root(square):
    inverse = (0x5F1FFFF9 - (square.to(tl.int32, bitcast=True) >> 1)).to(tl.float32, bitcast=True)
    inverse = inverse * 0.703952253 * (2.38924456 - inverse * inverse * square)
    inverse = inverse * (1.5 - inverse * inverse * (square * 0.5))
    root = square * inverse
    return root + (square - root * root) * (inverse * 0.5)


@triton.jit
def _pair(high, low, angle, out, mask):
    high, angle = high.to(tl.int32, bitcast=True), angle.to(tl.int32, bitcast=True)
    mirrored = high >> 31
    low = ((low ^ mirrored.to(tl.uint32, bitcast=True)) >> 1).to(tl.int32, bitcast=True)
    v = (low.to(tl.float32) + 0.5) * 4.656612873077393e-10 + (high ^ mirrored).to(tl.float32)  # 2^-31
    bits = v.to(tl.int32, bitcast=True)
    x = 1.0 - ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    x = tl.where(mirrored == 0, x, v * 2.3283064365386963e-10)  # 2^-32
    k = tl.where(mirrored == 0, 158 - (bits >> 23), 0).to(tl.float32)
    root = _square_root(_logarithm(x) * x + k * 1.3862943611198906)
    t = ((angle << 2) >> 2).to(tl.float32) * 9.313225746154785e-10  # 2^-30
    g = t * t
    cosine, sine = _cosine(g) * root, _sine(g) * t * root
    cosine = tl.where(angle < 0, -cosine, cosine)
    change = ((angle >> 30) & 1) != 0
    tl.store(out, tl.where(change, sine, cosine), mask=mask)
    tl.store(out + _LANES, tl.where(change, cosine, sine), mask=mask)


@triton.jit
def _word(zero, word):
    return zero + word.to(tl.uint32, bitcast=True)


@triton.jit(do_not_specialize=["groups", "first", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])
def _normals(out, groups, first, k0, k1, k2, k3, k4, k5, k6, k7, BLOCKS: tl.constexpr):  # noqa: PLR0917
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    counter = block + first.to(tl.int64) * _LANES
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    zero = low ^ low
    s4, s5, s6, s7 = _word(zero, k0), _word(zero, k1), _word(zero, k2), _word(zero, k3)
    s8, s9, s10, s11 = _word(zero, k4), _word(zero, k5), _word(zero, k6), _word(zero, k7)
    x0, x1, x2, x3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = s4, s5, s6, s7, s8, s9, s10, s11
    x12, x13, x14, x15 = low, high, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    at, mask = out + block // _LANES * _GROUP + block % _LANES, block < groups.to(tl.int64) * _LANES
    _pair(x0 + 0x61707865, x1 + 0x3320646E, x2 + 0x79622D32, at, mask)
    _pair(x3 + 0x6B206574, x4 + s4, x5 + s5, at + 2 * _LANES, mask)
    _pair(x6 + s6, x7 + s7, x8 + s8, at + 4 * _LANES, mask)
    _pair(x9 + s9, x10 + s10, x11 + s11, at + 6 * _LANES, mask)
    _pair(x12 + low, x13 + high, x14, at + 8 * _LANES, mask)
