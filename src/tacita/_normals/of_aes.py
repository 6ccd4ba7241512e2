"""Float32 normals of streams that began before ChaCha20: from AES-256, by PyTorch's own functions.

Nothing new is drawn so; a run that began so ends so, with the same bits (docs/derivations/noise.md).
"""

import math
from typing import Any

import numpy as np
import torch

from tacita._box_muller import BLOCK, PAIR

COUNTER, CONTINUED = 2**96, 2**97  # of AES, from which the words stand, and those that continue them
_CHUNK = 128 * BLOCK
_EDGE = 2.0**-12  # a uniform this near to 0 or 1 is computed anew, in float64 and with a second word


def fill(stream: Any, out: np.ndarray, first: int) -> None:
    """Fill ``out``, a number of whole blocks, with the normals of ``stream`` from place ``first`` on."""
    for start in range(0, len(out), _CHUNK):
        values = out[start : start + _CHUNK]
        pairs = np.frombuffer(stream.bytes(4 * len(values), 16 * COUNTER + 4 * (first + start)), "<i4").reshape(
            -1, 2, PAIR
        )
        of_radius, of_angle = (torch.from_numpy(pairs[:, i].copy()) for i in range(2))
        of_radius &= 2**31 - 1
        uniform = of_radius.float().mul_(2.0**-31)
        edges = ((uniform < _EDGE) | (uniform > 1 - _EDGE)).numpy().nonzero()
        radius, angle = uniform.log_().mul_(-2.0).sqrt_(), of_angle.float().mul_(math.pi * 2.0**-31)
        columns = values.reshape(-1, 2, PAIR)
        columns[:, 0], columns[:, 1] = angle.cos().mul_(radius), angle.sin().mul_(radius)
        rest = stream._blocks(CONTINUED, first + start + edges[0] * BLOCK + edges[1])[:, 0].astype(np.uint64)
        columns[edges[0], :, edges[1]] = _continued(of_radius.numpy()[edges], of_angle.numpy()[edges], rest)


def _continued(of_radius: np.ndarray, of_angle: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return pairs of normals, in float64 and from radius words that go on for 53 bits, as (pairs, 2).

    31 bits would end the tail at 6.6 standard deviations, and float32 has few numbers near 1, where radii are small.
    """
    word = of_radius.astype(np.float64)
    rest = ((second >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    low = of_radius < 2**30
    u = np.where(low, word + rest, 2.0**30) * 2.0**-31
    below_one = np.where(low, 0.5, (2.0**31 - word) - rest) * 2.0**-31
    radius = np.sqrt(-2 * np.where(low, np.log(u), np.log1p(-below_one)))
    angle = of_angle * (math.pi * 2.0**-31)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
