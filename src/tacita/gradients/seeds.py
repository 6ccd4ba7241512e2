"""Secret seeds of 256 bits, and generators that keep every bit of them.

Place: the ground of engines and of reading. What a model and a data set draw themselves (dropout, augmentation) must be
as secret as the sampling coins: who knows it knows each record's contribution but for the data. A generator of 32 bits
could be enumerated, so torch's (a Mersenne twister of 624 words) gets all its words from SHAKE-256 of the seed. The
twister is no cipher; no guarantee is claimed against attacks on its output beyond guessing the seed.
"""

import hashlib
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

BITS = 256
_FIRST, _WORDS = 24, 624  # of the twister in what get_state() gives: byte of the first word; words, 8 bytes each


def fresh_seed() -> int:
    """A seed of 256 bits from the operating system."""
    return secrets.randbits(BITS)


def derived_seed(*labels: int | str) -> int:
    """The seed of 256 bits that belongs to ``labels`` (SHA-256). As secret as the most secret of them, no more."""
    plain = tuple(label if isinstance(label, str) else int(label) for label in labels)
    return int.from_bytes(hashlib.sha256(repr(plain).encode()).digest(), "big")


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators of the CPU and of ``device``, and restore them on leaving.

    The CPU's keeps all of ``seed``. A GPU's has a key of 64 bits, and gets 63 of them.
    """
    cuda = [device.index if device.index is not None else torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        fill(torch.default_generator, seed)  # not torch.manual_seed: it would reseed devices not forked
        for index in cuda:
            torch.cuda.default_generators[index].manual_seed(_short(seed))
        yield


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
    """Seed a generator of the CPU with all of ``seed``; ``manual_seed`` would keep 32 bits."""
    generator.manual_seed(_short(seed))
    state = generator.get_state()
    words = state[_FIRST : _FIRST + 8 * _WORDS].view(torch.int64)
    if int(words[0]) != seed % 2**32:  # what manual_seed makes of it: the words are where we think they are
        raise RuntimeError("the state of torch's CPU generator has another layout than this version of tacita knows.")
    stream = hashlib.shake_256(repr(int(seed)).encode()).digest(4 * _WORDS)
    words.copy_(torch.from_numpy(np.frombuffer(stream, "<u4").astype(np.int64)))
    generator.set_state(state)


def _short(seed: int) -> int:
    return seed % 2**63
