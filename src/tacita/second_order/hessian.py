r"""Hessians by products with vectors: :math:`v \mapsto \frac1b \sum_i \nabla^2 \ell_i(\theta)\, v`, never a matrix.

Products with the Hessian of private records are private, and so is everything computed from them. They leave only
through :class:`~tacita.StationaryTest`. For public records and functions there is
:func:`~tacita.second_order.stationarity.public_stationarity`.
Source: Pearlmutter (1994), https://doi.org/10.1162/neco.1994.6.1.147, by two backward passes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import losses_at
from tacita.gradients.weighted_sums import full_precision

Term = Callable[[Mapping[str, Tensor]], Tensor]  # parameters by name -> a number, differentiable twice


class Hessian:
    r"""The Hessian of a sum of terms over ``divisor``, at one point.

    With one term (one chunk of rows) the graph of the gradient is kept, and a product costs two backward passes, about
    two gradients. With several terms the graph is built anew for each product, which costs one gradient more. Any
    network that autograd differentiates twice is served, on its own device. Products are taken in the parameters'
    dtype, without autocast or TF32, and added up in float64.

    Args:
        terms: Functions of the parameters; iterated anew for each product.
        params: The point, by name; detached and never written. The order of the names is that of the coordinates.
        divisor: The divisor of the sum.

    Example:
        >>> point = {"x": torch.tensor(1.0, dtype=torch.float64), "y": torch.tensor(2.0, dtype=torch.float64)}
        >>> hessian = Hessian([lambda p: p["x"] ** 2 * p["y"] + p["y"] ** 3], point)
        >>> hessian.gradient().tolist(), hessian.product(torch.ones(2)).tolist()
        ([4.0, 13.0], [6.0, 14.0])
    """

    def __init__(self, terms: Iterable[Term], params: Mapping[str, Tensor], *, divisor: float = 1.0) -> None:
        self.divisor = divisor
        self._terms = terms
        self._params = {name: p.detach().requires_grad_() for name, p in params.items()}
        self._kept: list[Tensor] | None = None

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return sum(p.numel() for p in self._params.values())

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(iter(self._params.values())).device

    def gradient(self) -> Tensor:
        """Return the gradient of the same sum over the divisor, shape (dim,), float64."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        for gradient in self._gradients():
            total += _flat(gradient)
        return total / self.divisor

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian times ``vector`` (dim,), float64."""
        parts = [
            part.view(p.shape).to(p.device, p.dtype)
            for part, p in zip(vector.split([p.numel() for p in self._params.values()]), self._leaves, strict=True)
        ]
        total = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        for gradient in self._gradients():
            total += _flat(self._backward(gradient, parts))
        return total / self.divisor

    def dense(self) -> Tensor:
        """Return the whole matrix, (dim, dim), float64, by ``dim`` products; symmetric up to rounding."""
        return torch.stack([self.product(row) for row in torch.eye(self.dim, device=self.device)])

    @property
    def _leaves(self) -> list[Tensor]:
        return list(self._params.values())

    def _gradients(self) -> Iterator[list[Tensor]]:
        """Yield the gradient of each term, with its graph."""
        if self._kept is not None:
            yield self._kept
            return
        gradients, count = [], 0
        for term in self._terms:
            gradients, count = self._gradient(term), count + 1
            yield gradients
        if count == 1:
            self._kept = gradients

    def _gradient(self, term: Term) -> list[Tensor]:
        # Fused attention kernels can be differentiated only once.
        with torch.enable_grad(), full_precision(self.device), sdpa_kernel(SDPBackend.MATH):
            value = term(self._params)
            if not value.requires_grad:
                return [torch.zeros_like(p) for p in self._leaves]
            return list(
                torch.autograd.grad(value, self._leaves, create_graph=True, allow_unused=True, materialize_grads=True)
            )

    def _backward(self, gradient: list[Tensor], vector: list[Tensor]) -> list[Tensor]:
        curved = [(g, v) for g, v in zip(gradient, vector, strict=True) if g.requires_grad]
        if not curved:  # linear: the gradient is a constant
            return [torch.zeros_like(p) for p in self._leaves]
        outputs, weights = zip(*curved, strict=True)
        with full_precision(self.device):
            return list(
                torch.autograd.grad(
                    outputs, self._leaves, weights, retain_graph=True, allow_unused=True, materialize_grads=True
                )
            )


def batch_hessian(engine: ChunkedEngine, *, divisor: float, rows: Tensor | None = None) -> Hessian:
    """Return the Hessian of the losses of an engine's batch (all records, or a few), chunk by chunk. Private.

    Args:
        engine: The engine of the batch, at the point. Its seed makes the model's own randomness the same in every
            product.
        divisor: The divisor of the sum over rows.
        rows: Which rows count, bool, (batch,); all by default.
    """
    return Hessian(_ChunkLosses(engine, rows), engine.params, divisor=divisor)


class _ChunkLosses:
    """The summed loss of each chunk of an engine, as functions of the parameters."""

    def __init__(self, engine: ChunkedEngine, rows: Tensor | None) -> None:
        self._engine = engine
        self._rows = torch.ones(len(engine.labels), dtype=torch.bool) if rows is None else rows.cpu()

    def __iter__(self) -> Iterator[Term]:
        start = 0
        for chunk in self._engine._chunks:
            kept = self._rows[start : start + chunk.size]
            start += chunk.size
            if kept.any():
                yield self._term(chunk, kept)

    def _term(self, chunk: Chunk, kept: Tensor) -> Term:
        engine = self._engine

        def summed(params: Mapping[str, Tensor]) -> Tensor:
            batch, size = _selected(chunk, kept)
            with engine._seeded(chunk), _no_cudnn_recurrence(engine.model):
                return losses_at(engine.model, engine.loss_fn, params, batch, size).sum()

        return summed


def _selected(chunk: Chunk, kept: Tensor) -> tuple[object, int]:
    """Return the kept rows of ``chunk`` and their number. Rows are taken out, as weight 0 would not silence NaN."""
    if kept.all():
        return chunk.batch, chunk.size
    tensors, rebuild = flatten(chunk.batch, chunk.size)
    return rebuild([t[kept.to(t.device)] for t in tensors]), int(kept.sum())


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def _no_cudnn_recurrence(model: nn.Module) -> AbstractContextManager:
    """Switch cuDNN off if the model has a recurrent layer, whose cuDNN kernel can be differentiated only once."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    return torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
