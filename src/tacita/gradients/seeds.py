"""Secret seeds of 256 bits, and generators that keep every bit of them.

The draws of a model and a data set themselves (dropout, augmentation) must be as secret as the sampling coins: whoever
knows them knows how each record's contribution follows from its data. All seeds of 32 bits could be tried, so torch's
generator (a Mersenne twister of 624 words) gets all its words from SHAKE-256 of the seed. The twister is no cipher: no
guarantee is claimed against attacks on its output other than guessing the seed.
"""

import hashlib
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

BITS = 256
_FIRST, _WORDS = 24, 624  # in get_state(): the byte at which the twister's words begin; their number, 8 bytes each


def fresh_seed() -> int:
    """Draw a seed of 256 bits from the operating system."""
    return secrets.randbits(BITS)


def derived_seed(*labels: int | str) -> int:
    """Derive a seed of 256 bits from ``labels`` (SHA-256). It is as secret as the most secret label, and no more."""
    plain = tuple(label if isinstance(label, str) else int(label) for label in labels)
    return int.from_bytes(hashlib.sha256(repr(plain).encode()).digest(), "big")


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators of the CPU and of ``device``, and restore them on leaving.

    The CPU's generator keeps all of ``seed``. A GPU's generator has a key of 64 bits and gets 63 of the seed's.
    """
    with torch.random.fork_rng(devices=[]):
        fill(torch.default_generator, seed)  # torch.manual_seed would also reseed devices that are not forked
        before = generator_state(device)
        with _generator_of(device) as there:
            if there is not None:
                there.manual_seed(seed % 2**63)
        try:
            yield
        finally:
            with _generator_of(device) as there:
                if there is not None:
                    there.set_rng_state(before)


def generator_state(device: torch.device) -> Tensor:
    """Return the state of torch's generator of ``device``, whichever kind of device it is."""
    with _generator_of(device) as there:
        return torch.get_rng_state() if there is None else there.get_rng_state()


@contextmanager
def _generator_of(device: torch.device) -> Iterator[Any]:
    """Make ``device`` the current one; yield torch's module of its kind (``torch.cuda``, ...), ``None`` for the CPU."""
    if device.type in ("cpu", "meta"):
        yield None
        return
    module = torch.get_device_module(device)
    several = device.index is not None and hasattr(module, "device")  # torch.mps knows one device, and no index
    with module.device(device.index) if several else nullcontext():
        yield module


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore Python's, NumPy's and torch's (CPU) generators on leaving."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's and torch's (CPU) generators with all of ``seed``, each differently."""
    random.seed(derived_seed(seed, "python"))
    np.random.seed(np.frombuffer(derived_seed(seed, "numpy").to_bytes(BITS // 8, "big"), "<u4"))
    fill(torch.default_generator, seed)


def fill(generator: torch.Generator, seed: int) -> None:
    """Seed a generator of the CPU with all bits of ``seed``; ``manual_seed`` would keep 32 of them."""
    generator.manual_seed(seed % 2**63)
    state = generator.get_state()
    words = state[_FIRST : _FIRST + 8 * _WORDS].view(torch.int64)
    if int(words[0]) != seed % 2**32:  # manual_seed sets the first word so: else the words are not where we expect them
        raise RuntimeError("the state of torch's CPU generator has another layout than this version of tacita knows.")
    stream = hashlib.shake_256(repr(int(seed)).encode()).digest(4 * _WORDS)
    words.copy_(torch.from_numpy(np.frombuffer(stream, "<u4").astype(np.int64)))
    generator.set_state(state)
