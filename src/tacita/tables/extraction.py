"""Extract fixed features of many images: in one call, image by image, to an array or to a file.

Place: features.scattering -> [features.extraction] -> the data of an oracle. Features of private images are private.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita._files import replace_in_pieces
from tacita.tables.wavelets import Scattering

IMAGES_AT_ONCE = 2**6  # images that one thread takes, and whose features are in memory at once
FILE_MODE = 0o600  # the features show the images


def scattering(
    images: np.ndarray | Tensor,
    *,
    lower: float | None = None,
    upper: float | None = None,
    num_scales: int = 2,
    num_orientations: int = 8,
    groups: int | None = None,
    mirrored: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> np.ndarray:
    r"""Return the scattering features of images, float16, one image at a time (:class:`Scattering`).

    Pixels are clamped to [``lower``, ``upper``] and mapped to [0, 1]; one that is not finite counts as 0. The features
    follow from each image alone and from public settings, so that they cost no privacy. They are as private as the
    images.

    Args:
        images: Shape (rows, height, width), or with 1, 3 or 4 channels before or after these two; an array, a memory
            map or a tensor.
        lower, upper: The public range of a pixel; 0 and 255 by default for bytes. Never take it from the images.
        num_scales, num_orientations, groups, mirrored: As in :class:`Scattering`.
        cache: A file that keeps the features (safetensors, readable by its owner alone); the result is then a
            read-only memory map, and memory does not grow with the number of images. It is made again if images or
            settings are not those it was made of. Keep it as you keep the images, and choose its name without looking
            at them.

    Returns:
        Shape (rows, \*feature_shape).

    Raises:
        ValueError: A setting is wrong, or the range of pixels that are not bytes is missing.

    Example:
        >>> scattering(np.zeros((5, 28, 28), np.uint8), groups=27).shape
        (5, 81, 7, 7)
    """
    found = torch.as_tensor(images) if isinstance(images, Tensor) else images
    pixels: np.ndarray = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asanyarray(found)
    lower, upper = pixel_range(pixels.dtype, lower, upper)
    transform = Scattering(
        shape=pixels.shape[1:],
        num_scales=num_scales,
        num_orientations=num_orientations,
        groups=groups,
        mirrored=mirrored,
    )
    shape = (len(pixels), *transform.feature_shape)
    if cache is None:
        return np.concatenate([np.empty((0, *shape[1:]), np.float16), *extracted(transform, pixels, lower, upper)])
    path, head = Path(cache), _head(_made_of(transform, pixels, lower, upper), shape)
    if not _is_whole(path, head, shape):
        parts = (part.tobytes() for part in extracted(transform, pixels, lower, upper))
        replace_in_pieces(path, chain([head], parts), mode=FILE_MODE)
    return np.memmap(path, np.float16, "r", len(head), shape)


def pixel_range(dtype: np.dtype, lower: float | None, upper: float | None) -> tuple[float, float]:
    """Return the public range of a pixel: as given, or 0 and 255 for bytes.

    Raises:
        ValueError: It is missing or empty.
    """
    if lower is None and upper is None and dtype == np.uint8:
        return 0.0, 255.0
    if lower is None or upper is None or not (np.isfinite(lower) and np.isfinite(upper) and lower < upper):
        raise ValueError(
            f"lower and upper must be the public range of a pixel, lower below upper, got {lower!r} and {upper!r}. "
            "Only bytes have a default, 0 and 255."
        )
    return float(lower), float(upper)


def extracted(transform: Scattering, pixels: np.ndarray, lower: float, upper: float) -> Iterator[np.ndarray]:
    """Yield the features in order, float16, a bounded number of images at a time. Each image is computed alone."""

    def part(first: int) -> np.ndarray:
        rows = pixels[first : first + IMAGES_AT_ONCE]
        out = np.empty((len(rows), *transform.feature_shape), np.float16)
        for i, row in enumerate(rows):
            out[i] = transform(torch.from_numpy(scaled(row, lower, upper))).numpy()
        return out

    threads = torch.get_num_threads()
    starts = range(0, len(pixels), IMAGES_AT_ONCE)
    if threads == 1 or len(starts) < 2:
        yield from map(part, starts)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for group in range(0, len(starts), threads):
                yield from pool.map(part, starts[group : group + threads])
    finally:
        torch.set_num_threads(threads)  # a thread's own number is its own in torch, but not in MKL


def scaled(values: np.ndarray, lower: float, upper: float) -> np.ndarray:
    """Return values clamped to [lower, upper] and mapped to [0, 1], float32; what is not finite becomes 0."""
    given = values.astype(np.float32)
    unit = (np.clip(given, lower, upper) - np.float32(lower)) / (upper - lower)
    return np.where(np.isfinite(given), unit, 0.0).astype(np.float32)


def _made_of(transform: Scattering, pixels: np.ndarray, lower: float, upper: float) -> str:
    """Return what a file of features was made of: the settings, and a hash of the images."""
    digest = hashlib.sha256(f"{transform!r} {lower!r} {upper!r} {pixels.dtype.str}".encode())
    for first in range(0, len(pixels), IMAGES_AT_ONCE):
        digest.update(pixels[first : first + IMAGES_AT_ONCE].tobytes())
    return digest.hexdigest()


def _head(made_of: str, shape: tuple[int, ...]) -> bytes:
    """Return the head of a safetensors file with one tensor, padded so that the tensor begins at a multiple of 8."""
    size = 2 * int(np.prod(shape, dtype=np.int64))
    fields: dict[str, Any] = {
        "__metadata__": {"made_of": made_of},
        "features": {"dtype": "F16", "shape": list(shape), "data_offsets": [0, size]},
    }
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _is_whole(path: Path, head: bytes, shape: tuple[int, ...]) -> bool:
    """Return whether a file has this head, hence was made of these images by these settings, and its whole length."""
    try:
        with path.open("rb") as file:
            return file.read(len(head)) == head and path.stat().st_size == len(head) + 2 * math.prod(shape)
    except FileNotFoundError:
        return False
