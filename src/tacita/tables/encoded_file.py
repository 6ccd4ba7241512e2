"""Encoded rows in a file: features, target and weight of each row, and the answers that its score needs. Private.

The file is on disk but in no folder, so that it is gone when the process ends, however it ends. Rows are read chunk by
chunk, so that the memory does not grow with their number.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.features import BLOCK_ROWS, ArrayPiece, NumberPiece, ScatteringPiece
from tacita.tables.mapped_rows import MappedRows

CHUNK_ROWS = 2**13  # rows of a chunk of :meth:`EncodedFile.chunks`
_ROWS_AT_ONCE = 2**9  # rows that are unpacked at once, in the processor's cache
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)  # the eight bits of a byte
_VALID, _LABELLED = 1, 2  # bits of a row's flags


class EncodedFile(MappedRows):
    """A data set of encoded rows for an oracle: rows are appended, then read in any order.

    A feature that is always 0 or 1 takes one bit on disk, any other takes four bytes, or two if all are scattering
    features. Reading gives back the exact bits.

    Args:
        encoder: The encoder that made the rows.
        folder: A folder on the disk that is to hold the file.
        by_class: Public training weights: one for each class, or one number, shape (), for all; ``None`` means 1.
    """

    def __init__(self, encoder: Encoder, folder: Path, *, by_class: Tensor | None = None):
        self._encoder = encoder
        self._by_class = by_class
        self._floats = _float_features(encoder)
        super().__init__(_row_type(encoder, self._floats), folder)

    def append(self, encoded: Encoded, rows: np.ndarray) -> None:
        """Append the rows that the mask ``rows`` selects."""
        features, chosen = encoded.features.numpy(), np.flatnonzero(rows)
        packed = np.zeros(len(chosen), self._dtype)
        for start in range(0, len(chosen), BLOCK_ROWS):
            block, own = packed[start : start + BLOCK_ROWS], features[chosen[start : start + BLOCK_ROWS]]
            if self._floats is None:
                block["features"] = own
            else:
                block["bits"] = np.packbits(own != 0, axis=1)
                block["floats"] = own[:, self._floats]
        if encoded.target is not None:
            packed["target"] = encoded.target.numpy()[rows]
        packed["flags"] = _VALID * encoded.valid.numpy()[rows]
        if encoded.answers is not None and encoded.labelled is not None:
            packed["flags"] |= (_LABELLED * encoded.labelled.numpy()[rows]).astype(np.uint8)
            if "answer" in self._dtype.names:  # pyright: ignore[reportOperatorIssue]
                packed["answer"] = encoded.answers.numpy()[rows]
        self.append_packed(packed)

    def fetch(self, indices: np.ndarray, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, targets and weights of some rows.

        Without any feature there is one column of zeros. A row that does not count has weight 0.
        """
        packed = self.packed(np.asarray(indices, np.int64))
        features = self._features(packed)
        if not features.shape[1]:
            features = torch.zeros(len(packed), 1)
        target = torch.from_numpy(packed["target"].copy())
        weight = torch.from_numpy((packed["flags"] & _VALID).astype(np.float32))
        if self._by_class is not None:
            weight = weight * (self._by_class[target] if self._by_class.ndim else self._by_class)
        return features, target, weight

    def _features(self, packed: np.ndarray) -> Tensor:
        if self._floats is None:
            return torch.from_numpy(packed["features"].astype(np.float32))
        bits, floats = packed["bits"], packed["floats"]
        width, whole = self._encoder.num_features, 8 * bits.shape[1]  # whole: with the bits that fill up the last byte
        features = np.empty((len(bits), width), np.float32)  # without gaps, which would slow down every product
        spare = None if width == whole else np.empty((_ROWS_AT_ONCE, whole), np.float32)
        for start in range(0, len(bits), _ROWS_AT_ONCE):  # several times as fast as unpacking and converting all rows
            rows = slice(start, start + _ROWS_AT_ONCE)
            own = features[rows] if spare is None else spare[: len(bits[rows])]
            np.take(_BITS, bits[rows], axis=0, out=own.reshape(len(own), whole // 8, 8), mode="clip")
            own[:, self._floats] = floats[rows]
            if spare is not None:
                features[rows] = own[:, :width]
        return torch.from_numpy(features)

    def like(self) -> tuple[Tensor, Tensor, Tensor]:
        features, target, weight = self.fetch(np.zeros(0, np.int64), 0)
        return tuple(torch.ones(1, *part.shape[1:], dtype=part.dtype) for part in (features, target, weight))  # pyright: ignore

    def chunks(self) -> Iterator[Encoded]:
        """Yield all rows in order, in at least one chunk, which may be empty."""
        for first in range(0, max(self._rows, 1), CHUNK_ROWS):
            packed = self.packed(np.arange(first, min(first + CHUNK_ROWS, self._rows)))
            target = torch.from_numpy(packed["target"].copy())
            answers = torch.from_numpy(packed["answer"].copy()) if "answer" in packed.dtype.names else target  # pyright: ignore
            valid, labelled = (torch.from_numpy(packed["flags"] & bit > 0) for bit in (_VALID, _LABELLED))
            yield Encoded(self._features(packed), target, valid, answers, labelled)

    def whole(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return all rows in memory, as :meth:`fetch` gives them."""
        return self.fetch(np.arange(self._rows), 0)

    def parts(self) -> Iterator[bytes]:
        """Yield the weights of the classes and all bytes of the file, for a fingerprint."""
        if self._by_class is not None:
            yield self._by_class.numpy().tobytes()
        yield from super().parts()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._encoder.num_features} features)"


def _float_features(encoder: Encoder) -> np.ndarray | None:
    """Return the features that can be other than 0 and 1; ``None`` if they are so many that packing saves nothing."""
    found: list[int] = []
    first = 0
    for piece in encoder.pieces:
        width = piece.width
        if isinstance(piece, ArrayPiece | ScatteringPiece):
            found += range(first, first + width)
        elif isinstance(piece, NumberPiece):
            found.append(first)  # its steps, buckets and indicator are 0 or 1
        first += width
    return None if 2 * len(found) > first else np.array(found, np.int64)


def _row_type(encoder: Encoder, floats: np.ndarray | None) -> np.dtype:
    width = encoder.num_features
    target = [("target", "<i8")] if encoder.task == "classification" else [("target", "<f4"), ("answer", "<f8")]
    bits = [("bits", "u1", (-(-width // 8),)), ("floats", "<f4", (0 if floats is None else len(floats),))]
    half = all(isinstance(piece, ScatteringPiece) for piece in encoder.pieces)  # they are rounded to float16
    features = [("features", "<f2" if half else "<f4", (width,))] if floats is None else bits
    return np.dtype([*features, *target, ("flags", "u1")])
