"""ChaCha20 in eager PyTorch, on int32 of any device; with ``definition.pairs``, the definition where a model lives."""

import torch
from torch import Tensor

from tacita._normals.definition import LANES, PAIRS, pairs

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"


def normals(key: bytes, first: int, groups: int, device: torch.device) -> Tensor:
    """Return the normals of groups, made on the device from its own words; flat."""
    used = blocks(key, first * LANES, groups * LANES, device)[: 3 * PAIRS]
    words = used.view(PAIRS, 3, groups, LANES).permute(1, 2, 0, 3).contiguous()
    return torch.stack(pairs(*words.unbind(0)), dim=2).flatten()


def blocks(key: bytes, first: int, count: int, device: torch.device) -> Tensor:
    """Return word j of each block, int32 (16, count)."""
    counters = range(first, first + count)
    state = torch.tensor(
        [
            *([_signed(word)] * count for word in CONSTANTS),
            *([int.from_bytes(key[i : i + 4], "little", signed=True)] * count for i in range(0, 32, 4)),
            [_signed(i & 0xFFFFFFFF) for i in counters],
            [_signed(i >> 32) for i in counters],
            *([0] * count for _ in range(2)),
        ],
        dtype=torch.int32,
        device=device,
    )
    a, b, c, d = (state[i : i + 4].clone() for i in (0, 4, 8, 12))
    for _ in range(10):
        _quarters(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarters(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]) + state


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    for to, by, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        to.add_(by)
        turned.bitwise_xor_(to)
        turned.copy_((turned << bits) | ((turned >> (32 - bits)) & (2**bits - 1)))


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
