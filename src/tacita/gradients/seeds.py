"""One law for coins: while user code runs on records, all global generators are seeded from the query's secret.

The draws of a model and a data set themselves (dropout, augmentation) must be as secret as the sampling coins: whoever
knows them knows how each record's contribution follows from its data. Afterwards the generators are put back: their
state would tell how many records were drawn. All seeds of 32 bits could be tried, so torch's generator (a Mersenne
twister of 624 words) gets all its words from SHAKE-256 of the seed. The twister is no cipher: no
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

from tacita.gradients.functional import IN_TURN

BITS = 256
_CPU = torch.device("cpu")
_FIRST, _WORDS = 24, 624  # in get_state(): the byte at which the twister's words begin; their number, 8 bytes each


def fresh_seed() -> int:
    """Draw a seed of 256 bits from the operating system."""
    return secrets.randbits(BITS)


def derived_seed(*labels: int | str) -> int:
    """Derive a seed of 256 bits from ``labels`` (SHA-256). It is as secret as the most secret label, and no more."""
    plain = tuple(label if isinstance(label, str) else int(label) for label in labels)
    return int.from_bytes(hashlib.sha256(repr(plain).encode()).digest(), "big")


@contextmanager
def generators_kept(device: torch.device = _CPU) -> Iterator[None]:
    """Restore the global generators of Python, of NumPy and of torch (the CPU's and that of ``device``) on leaving.

    They belong to the process, so threads take turns: else one would draw from another's secret seed, or keep it.
    """
    with IN_TURN:
        python, numpy, before = random.getstate(), np.random.get_state(), generator_state(device)
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            with _generator_of(device) as there:
                if there is not None:
                    there.set_rng_state(before)


def seed_generators(seed: int, device: torch.device = _CPU) -> None:
    """Seed the same generators, each differently. Those of the CPU keep all bits of ``seed``.

    A GPU's generator has a key of 64 bits and gets 63 of the seed's.
    """
    random.seed(derived_seed(seed, "python"))
    np.random.seed(np.frombuffer(derived_seed(seed, "numpy").to_bytes(BITS // 8, "big"), "<u4"))
    fill(torch.default_generator, seed)  # torch.manual_seed would also reseed devices that are not forked
    with _generator_of(device) as there:
        if there is not None:
            there.manual_seed(seed % 2**63)


@contextmanager
def seeded(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Seed all global generators with ``seed``, and restore them on leaving."""
    with generators_kept(device):
        seed_generators(seed, device)
        yield


def generator_states(device: torch.device = _CPU) -> tuple[object, ...]:
    """Return the states of the same generators, to see whether something draws or seeds."""
    numpy = repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()])
    states = torch.get_rng_state(), generator_state(device)
    return random.getstate(), numpy, *(state.numpy().tobytes() for state in states)


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


def is_global(generator: torch.Generator) -> bool:
    """Return whether a generator is one of the process, which a query seeds and puts back."""
    known = (torch.default_generator, *getattr(torch.cuda, "default_generators", ()))
    return any(_address(generator) == _address(one) for one in known)  # each call below Python makes a new object


def _address(generator: torch.Generator) -> int:
    return generator._cdata  # pyright: ignore[reportAttributeAccessIssue]
