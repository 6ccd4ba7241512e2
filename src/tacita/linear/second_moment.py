r"""Second moments of clipped rows, :math:`\sum_i \mathrm{clip}(x_i)\,\mathrm{clip}(x_i)^\top`, in one release.

Place: gradients, clipping -> [linear.second_moment] -> mechanisms. Here a "per-sample gradient" is the row itself.
Source: Dwork, Talwar, Thakurta and Zhang (2014), "Analyze Gauss", Algorithm 1, https://doi.org/10.1145/2591796.2591883.
Differs from it in two points: rows are clipped, and off-diagonal entries are released once, scaled by the square root
of 2, so that the vector of released numbers has the Frobenius norm of the matrix. Noise of standard deviation s on the
vector is s on the diagonal of the matrix and s / sqrt(2) elsewhere.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from scipy.linalg.blas import dsyrk  # pyright: ignore[reportAttributeAccessIssue] - made by f2py
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, FullBatchLaw, NeighboringRelation, moved
from tacita.accounting.events.gaussian_sums import NoisySumEvent, moved_in_some_queries
from tacita.accounting.events.sampled import Proof, SampledEvent, every_relation
from tacita.clipping.flat import clip_weights
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import Engine, Shapes
from tacita.gradients.weighted_sums import norm_over, round_down, with_room
from tacita.linear.source import WEIGHT, LinearEngine
from tacita.sampling import Sampler

BLOCK = "second_moment"
NAME = "entries"


@dataclass(frozen=True, kw_only=True)
class SecondMomentEvent(NoisySumEvent, SampledEvent):
    r"""A sum of matrices :math:`x x^\top`, with Gaussian noise; one block, over all records.

    ``max_contribution`` is the largest Frobenius norm of one record's matrix. Two such matrices have the inner product
    :math:`(x^\top y)^2 \ge 0`, so that replacing one by the other moves the sum by at most :math:`\sqrt 2` times what
    one of them adds (docs/derivations/linear-models.md, section 1).

    Example:
        >>> event = SecondMomentEvent(relation="replace_one", sampling=FullBatchLaw(), max_contribution=(1.0,),
        ...                           noise_std=(20.0,))
        >>> event.describe(), round(event.query_mu, 4)
        ('Full batch, noise_std 20 on second moments, to which one record adds at most 1', 0.0707)
    """

    released = "second moments"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.noise_std) != 1:
            raise ValueError(f"noise_std must have one entry, because it is one block, got {len(self.noise_std)}.")

    @property
    def query_mu(self) -> float:
        return math.sqrt(moved(self.relation)) * self.ratio

    def describe(self) -> str:
        (std,), (contribution,) = self.noise_std, self.max_contribution
        return (
            f"{self.sampler}, noise_std {std:.6g} on second moments, to which one record adds at most "
            f"{contribution:.6g}"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*self.sampling.assumptions(self.relation), "a record adds the outer product of a vector with itself")


# Other laws are left out because nobody needs them: the pairs of sampled queries would have to be derived anew.
SecondMomentEvent.proofs = {
    FullBatchLaw: Proof(every_relation("every query", replacing="every query, sqrt(2) C"), moved_in_some_queries)
}


@dataclass(frozen=True, kw_only=True)
class SecondMoment(Estimator):
    r"""Sum of :math:`x_i x_i^\top` over rows clipped to norm R: the d (d + 1) / 2 numbers of :func:`symmetric_entries`.

    Guarantee: one record adds a matrix of Frobenius norm at most :math:`R^2`. So the sensitivity is :math:`R^2` when a
    record is added, removed or zeroed out, and :math:`\sqrt 2 R^2` when it is replaced, because two such matrices have
    no negative inner product. A row that is not finite counts as zero.

    Only full batches are proved. ``Release.gradient`` holds the noisy mean of the matrices, (d, d), as ``"matrix"``; it
    may have negative eigenvalues.

    Attributes:
        max_row_norm: R, finite and >= 2^-40, in the units of the rows.

    Example:
        >>> from tacita.gradients.given import GivenEngine
        >>> values, _ = SecondMoment(max_row_norm=1.0)(GivenEngine(torch.tensor([[0.6, 0.8], [3.0, 4.0]])), None)
        >>> symmetric_matrix(values["second_moment"]["entries"]).round(decimals=2)
        tensor([[0.7200, 0.9600],
                [0.9600, 1.2800]], dtype=torch.float64)
    """

    max_row_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_row_norm", _validate.threshold("max_row_norm", self.max_row_norm))

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return {BLOCK: math.sqrt(moved(relation)) * self.max_row_norm**2}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        return SecondMomentEvent(
            relation=relation,
            sampling=sampler.law,
            max_contribution=(self.max_row_norm**2,),
            noise_std=(noise_std[BLOCK],),
        )

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        columns = _columns(shapes)
        return {BLOCK: columns * (columns + 1) // 2}

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        columns = _columns(engine.shapes)
        total = torch.zeros(columns, columns, dtype=torch.float64)
        for rows in self._clipped(engine):
            total = total + _outer_products(rows)
        (summed,) = engine.over_ranks([{NAME: symmetric_entries(total)}])
        return {BLOCK: summed}, state

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        return {"matrix": symmetric_matrix(released[BLOCK][NAME]) / divisor}

    def _clipped(self, engine: Engine) -> Iterator[Tensor]:
        """Yield the clipped rows in chunks, (..., rows, d), float64; a row is at most R long, rounding too."""
        if isinstance(engine, LinearEngine) and engine.shapes[WEIGHT][0] == 1:  # which knows the norms
            yield from engine.weighted_rows(partial(clip_weights, self.max_row_norm))
            return
        for chunk in engine.materialise():
            rows = _joined(chunk, engine.shapes)
            weights = clip_weights(self.max_row_norm, norm_over([rows], lead=rows.ndim - 1))
            factors = round_down(with_room(weights, rows.dtype), rows.dtype)
            clipped = factors.unsqueeze(-1).double() * rows  # in float64, because their products may overflow float32
            absent = weights == 0
            if absent.any():
                clipped[absent] = 0.0  # 0 * nan is nan
            yield clipped


def _joined(chunk: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """Return the rows of a chunk as vectors, (..., rows, d)."""
    parts = [rows.flatten(rows.ndim - len(shapes[name])) for name, rows in chunk.items()]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def symmetric_entries(matrix: Tensor) -> Tensor:
    r"""Return a symmetric matrix as a vector of the same norm: the upper triangle, off-diagonals times sqrt(2).

    Args:
        matrix: (..., d, d), symmetric.

    Returns:
        (..., d (d + 1) / 2), row by row.

    Example:
        >>> symmetric_entries(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
        tensor([1.0000, 2.8284, 3.0000])
    """
    rows, columns = torch.triu_indices(*matrix.shape[-2:])
    return matrix[..., rows, columns] * _scales(rows == columns, matrix)


def symmetric_matrix(entries: Tensor) -> Tensor:
    """Return the matrix of :func:`symmetric_entries`.

    Args:
        entries: (..., d (d + 1) / 2).

    Returns:
        (..., d, d).

    Example:
        >>> symmetric_matrix(torch.tensor([1.0, 2.0 * 2**0.5, 3.0]))
        tensor([[1., 2.],
                [2., 3.]])
    """
    size = (math.isqrt(8 * entries.shape[-1] + 1) - 1) // 2
    rows, columns = torch.triu_indices(size, size)
    values = entries / _scales(rows == columns, entries)
    matrix = entries.new_zeros(*entries.shape[:-1], size, size)
    matrix[..., rows, columns] = values
    matrix[..., columns, rows] = values
    return matrix


def _outer_products(rows: Tensor) -> Tensor:
    """Return ``rows.T @ rows``, (..., d, d), float64; maybe without what is below the diagonal."""
    if rows.ndim > 2 or not len(rows) or rows.device.type != "cpu":
        return rows.mT @ rows
    return torch.from_numpy(dsyrk(1.0, rows.numpy().T))  # half of the products


def _scales(on_diagonal: Tensor, like: Tensor) -> Tensor:
    """Return 1 on the diagonal and sqrt(2) elsewhere, in the dtype of ``like``."""
    return torch.where(on_diagonal, torch.ones((), dtype=like.dtype), torch.tensor(math.sqrt(2), dtype=like.dtype))


def _columns(shapes: Shapes) -> int:
    return sum(shape.numel() for shape in shapes.values())
