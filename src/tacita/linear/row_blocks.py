"""Rows of a table in blocks that stay in the cache: dense, memory-mapped or sparse, each by the same few products.

Everything here is private. A row that holds a number which is not finite is zero in every product, because 0 * nan is
nan; its norm is infinite, so that a clipper gives it weight 0.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tacita._row_numbers import RowNumbers, RowRange, pieces
from tacita.gradients.weighted_sums import round_up

BLOCK_ROWS = 2**15  # the numbers of one kind, one a row, stay in a core's cache, and torch takes one thread
BLOCK_NUMBERS = 2**23  # elements of a block that is not a view
CHUNK_NUMBERS, LEAST_ROWS = 2**18, 256  # elements of a chunk that is widened to float64, and the rows it has at least
LARGEST_FACTOR = 2.0**100  # of a norm that is scaled after its squares, below 2^-1074, were lost; 2^-437 is no length
RUN = 64  # rows whose float32 terms are added up in float32; sums of runs are added in float64


class RowBlocks(ABC):
    """A table of real numbers, (rows, columns), float32 or float64, read a block of rows at a time.

    Attributes:
        shape: (rows, columns).
        dtype: The dtype of products.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    _gone = np.zeros(0, np.int64)  # rows in whose place there are zeros, sorted

    @abstractmethod
    def _read(self, rows: "slice | np.ndarray") -> Tensor:
        """Return these rows as they are, (rows, columns), a copy or a view that nobody writes to."""

    def dense(self, rows: "slice | np.ndarray") -> Tensor:
        """Return these rows, (rows, columns), a copy or a view that must not be written to."""
        block, gone = self._read(rows), _within(self._gone, rows)
        return block if not len(gone) else block.index_fill(0, torch.from_numpy(gone), 0.0)

    def products(self, rows: "slice | np.ndarray", weights: Tensor) -> Tensor:
        """Return ``X[rows] @ weights``, (rows, outputs), for weights (columns, outputs)."""
        return self.dense(rows) @ weights.to(self.dtype)

    def sums(self, rows: "slice | np.ndarray", factors: Tensor) -> Tensor:
        """Return ``X[rows].T @ factors``, (columns, outputs), for factors (rows, outputs).

        At most ``RUN`` terms are added up in float32, so that the rounding of a sum hides less than one row's term.
        """
        return self.dense(rows).double().t() @ factors.double()

    def without(self, rows: np.ndarray) -> Self:
        """Return the table with zeros in place of these rows; it shares memory with this one, which stays as it is.

        Another source may show a constant beside each row, and must go on to see that a row is not finite.
        """
        found = copy.copy(self)
        found._gone = np.union1d(self._gone, rows)
        return found

    _kept: "tuple[Tensor, float, Tensor] | None" = None

    def kept_norms(self, scale: Tensor, constant: float) -> Tensor:
        """Return :meth:`norms`, taken once: nobody writes these rows as long as they are read."""
        if self._kept is None or self._kept[1] != constant or not torch.equal(self._kept[0], scale):
            self._kept = scale.clone(), constant, self.norms(scale, constant)
        return self._kept[2]

    def norms(self, scale: Tensor, constant: float) -> Tensor:
        """Return upper bounds of the norms of (scale * row, constant), float64; ``inf`` where a row is not finite."""
        found = torch.empty(self.shape[0], dtype=torch.float64)
        height = max(LEAST_ROWS, CHUNK_NUMBERS // max(1, self.shape[1]))
        one = len(scale) > 0 and bool((scale == scale[0]).all()) and bool(scale[0].abs() <= LARGEST_FACTOR)
        for start in range(0, self.shape[0], height):
            rows = slice(start, min(start + height, self.shape[0]))
            dense = self.dense(rows).to(torch.float64)
            lengths = torch.linalg.vector_norm(dense, dim=1).mul_(scale[0]) if one else torch.tensor(torch.inf)
            if not lengths.isfinite().all():  # also where squares overflow before they are scaled
                lengths = torch.linalg.vector_norm(dense.mul(scale), dim=1)
            found[rows] = lengths.square_().add_(constant**2).sqrt_()
        return round_up(found, self.shape[1] + 4).nan_to_num(torch.inf, torch.inf)


class DenseBlocks(RowBlocks):
    """Rows of a tensor, an array or a memory map."""

    def __init__(self, table: Tensor | np.ndarray) -> None:
        self._table = table
        self.shape = (int(table.shape[0]), int(table.shape[1]))
        narrow = str(table.dtype).rpartition(".")[2] == "float32"
        self.dtype = torch.float32 if narrow else torch.float64

    def products(self, rows: slice | np.ndarray, weights: Tensor) -> Tensor:
        with np.errstate(all="ignore"):  # a warning would tell what a row holds
            return torch.from_numpy(self.dense(rows).numpy() @ weights.numpy())

    def sums(self, rows: slice | np.ndarray, factors: Tensor) -> Tensor:
        block, terms = self.dense(rows).numpy(), factors.numpy()
        with np.errstate(all="ignore"):
            found = _summed_by_runs(block, terms) if self.dtype == torch.float32 else block.T @ terms
        return torch.from_numpy(found)

    def _read(self, rows: slice | np.ndarray) -> Tensor:
        if isinstance(self._table, Tensor):
            return self._table[rows if isinstance(rows, slice) else torch.from_numpy(rows)].detach().to(self.dtype)
        part = self._table[rows]
        return torch.from_numpy(part if part.flags.writeable else part.copy()).to(self.dtype)


class SparseBlocks(RowBlocks):
    """Rows of a SciPy CSR matrix; products take time in proportion to the stored numbers.

    Numbers that are stored for the same entry are added up first: SciPy's products add them, and a norm must, too.
    """

    def __init__(self, table: Any) -> None:
        import scipy.sparse

        self._csr = scipy.sparse.csr_matrix
        table = _summed(self._csr(table))
        narrow = table.dtype == np.float32
        self._data = np.asarray(table.data, np.float32 if narrow else np.float64)
        self._indices, self._starts = table.indices, table.indptr
        self.shape = (int(table.shape[0]), int(table.shape[1]))
        self.dtype = torch.float32 if narrow else torch.float64

    def products(self, rows: slice | np.ndarray, weights: Tensor) -> Tensor:
        return torch.from_numpy(self._block(rows) @ weights.numpy())

    def sums(self, rows: slice | np.ndarray, factors: Tensor) -> Tensor:
        return torch.from_numpy(self._block(rows).T @ factors.double().numpy())  # SciPy adds in the wider dtype

    def _read(self, rows: slice | np.ndarray) -> Tensor:
        return torch.from_numpy(self._block(rows).toarray())

    def without(self, rows: np.ndarray) -> Self:
        found = copy.copy(self)
        if len(rows):
            found._data = self._data.copy()
        for row in rows.tolist():
            found._data[self._starts[row] : self._starts[row + 1]] = 0
        return found

    def norms(self, scale: Tensor, constant: float) -> Tensor:
        summed = np.zeros(self.shape[0])
        full = np.diff(self._starts) > 0  # reduceat gives an empty row its neighbour's number
        with np.errstate(all="ignore"):  # a warning would tell what a row holds
            squares = np.square(self._data.astype(np.float64) * scale.numpy()[self._indices])
            summed[full] = np.add.reduceat(squares, self._starts[:-1][full]) if full.any() else 0.0
        found = torch.from_numpy(np.sqrt(summed + constant**2))
        return round_up(found, self.shape[1] + 4).nan_to_num(torch.inf, torch.inf)

    def _block(self, rows: slice | np.ndarray) -> Any:
        """Return these rows as a matrix; a slice of them shares its memory with the whole."""
        if not isinstance(rows, slice):
            whole = self._csr((self._data, self._indices, self._starts), shape=self.shape)
            return whole[rows]
        first, last = self._starts[rows.start], self._starts[rows.stop]
        starts = self._starts[rows.start : rows.stop + 1] - first
        shape = (rows.stop - rows.start, self.shape[1])
        return self._csr((self._data[first:last], self._indices[first:last], starts), shape=shape, copy=False)


class WithColumns(RowBlocks):
    """The rows of a table, and further columns (rows, k) after its own: scaled targets, say. float64."""

    def __init__(self, table: RowBlocks, more: Tensor) -> None:
        self._table, self._more = table, more
        self.shape = (table.shape[0], table.shape[1] + more.shape[1])
        self.dtype = torch.float64

    def _read(self, rows: slice | np.ndarray) -> Tensor:
        own = self._more[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        return torch.cat([self._table.dense(rows).double(), own.double()], dim=1)


def _summed(table: Any) -> Any:
    """Return a CSR matrix with one stored number an entry; what SciPy remembers of ``table``'s order is not trusted."""
    found = type(table)((table.data, table.indices, table.indptr), shape=table.shape)
    if found.has_canonical_format:
        return found
    found = found.copy()  # the caller's arrays stay as they are
    found.sum_duplicates()
    return found


def as_row_blocks(table: Any) -> RowBlocks:
    """Return the rows of a tensor, an array, a memory map or a SciPy sparse matrix, (rows, columns)."""
    if isinstance(table, RowBlocks):
        return table
    if hasattr(table, "tocsr"):
        return SparseBlocks(table)
    if getattr(table, "ndim", 0) != 2:
        raise ValueError(f"a table must have two axes, (rows, columns), got {getattr(table, 'ndim', 0)}.")
    return DenseBlocks(table)


def owned_row_blocks(table: Any) -> RowBlocks:
    """Return rows that nobody else can write, so that norms which are taken once stay those of the rows.

    Memory maps that were opened to be read only, and :class:`RowBlocks`, are taken as they are; all else is copied.

    Raises:
        ValueError: A memory map is open for writing.
    """
    if isinstance(table, RowBlocks):
        return table
    if isinstance(table, np.memmap):
        if table.flags.writeable:
            raise ValueError("a memory map must be open for reading only: np.load(path, mmap_mode='r'), say.")
        return as_row_blocks(table)
    if isinstance(table, Tensor):
        return as_row_blocks(table.detach().clone())
    return as_row_blocks(table.copy() if hasattr(table, "tocsr") else np.array(table))


def blocks(
    indices: np.ndarray | RowNumbers, num_rows: int, columns: int, most: int | None = None
) -> Iterator[slice | np.ndarray]:
    """Yield the rows of a batch, at most ``most`` at a time: slices where they are all rows in order, else indices."""
    most = min(most or BLOCK_ROWS, BLOCK_ROWS)
    if not isinstance(indices, RowNumbers) and len(indices) == num_rows and bool((indices[1:] > indices[:-1]).all()):
        indices = RowRange(0, num_rows)  # as many rows as there are, each greater than the one before
    if not isinstance(indices, RowRange):
        yield from pieces(indices, max(1, min(most, BLOCK_NUMBERS // max(1, columns))))
        return
    for start in range(indices.start, indices.stop, most):
        yield slice(start, min(start + most, indices.stop))


def _summed_by_runs(block: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return ``block.T @ factors``, float64: products, and sums of ``RUN`` rows, are float32."""
    columns, outputs = block.shape[1], factors.shape[1]
    whole = len(block) - len(block) % RUN
    total = (block[whole:].T @ factors[whole:]).astype(np.float64)
    height = max(1, BLOCK_NUMBERS // max(1, columns * outputs)) * RUN
    for start in range(0, whole, height):
        some = slice(start, min(start + height, whole))
        runs, weights = block[some].reshape(-1, RUN, columns), factors[some].reshape(-1, RUN, outputs)
        total += np.matmul(weights.swapaxes(1, 2), runs).sum(axis=0, dtype=np.float64).T
    return total


def _within(gone: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Return the places in a block of the rows that are gone, which are sorted."""
    if not len(gone):
        return gone
    if isinstance(rows, slice):
        first, last = np.searchsorted(gone, (rows.start, rows.stop))
        return gone[first:last] - rows.start
    return np.flatnonzero(np.isin(rows, gone))
