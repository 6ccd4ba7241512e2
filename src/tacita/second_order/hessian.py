r"""Hessians by products with vectors: :math:`v \mapsto \frac1b \sum_i \nabla^2 \ell_i(\theta)\, v`, never a matrix.

Products with the Hessian of private records are private, and so is everything computed from them. They leave only
through :class:`~tacita.StationaryTest`. For public records and functions there is
:func:`~tacita.second_order.stationarity.public_stationarity`.
Source: Pearlmutter (1994), https://doi.org/10.1162/neco.1994.6.1.147, by two backward passes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine_choice import GRADIENT_BYTES
from tacita.gradients.functional import trainable
from tacita.gradients.loop import LoopEngine
from tacita.gradients.network_source import NetworkSource
from tacita.gradients.program.hessian_products import HessianProducts
from tacita.gradients.weighted_sums import exact_device, full_precision, to_exact

Function = Callable[[Mapping[str, Tensor]], Tensor]  # parameters by name -> a number, differentiable twice


class Hessian:
    r"""The Hessian of a public function at one point.

    The graph of the gradient is kept, so that a product costs two backward passes. Products are taken in the
    parameters' dtype, without TF32, and returned in float64.

    Args:
        function: A function of the parameters, differentiable twice.
        params: The point, by name; detached and never written. The order of the names is that of the coordinates.

    Example:
        >>> point = {"x": torch.tensor(1.0, dtype=torch.float64), "y": torch.tensor(2.0, dtype=torch.float64)}
        >>> hessian = Hessian(lambda p: p["x"] ** 2 * p["y"] + p["y"] ** 3, point)
        >>> hessian.gradient().tolist(), hessian.product(torch.ones(2)).tolist()
        ([4.0, 13.0], [6.0, 14.0])
    """

    def __init__(self, function: Function, params: Mapping[str, Tensor]) -> None:
        self._params = {name: p.detach().requires_grad_() for name, p in params.items()}
        leaves = [*self._params.values()]
        with torch.enable_grad(), full_precision(leaves[0].device), sdpa_kernel(SDPBackend.MATH):
            self._gradient = _gradient(function(self._params), leaves)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return sum(p.numel() for p in self._params.values())

    def gradient(self) -> Tensor:
        """Return the gradient, shape (dim,), float64."""
        return _flat(self._gradient)

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian times ``vector`` (dim,), float64."""
        leaves = [*self._params.values()]
        with full_precision(leaves[0].device):
            return _flat(_product(self._gradient, leaves, _parts(vector, leaves)))


class BatchHessian:
    r"""The Hessian of the losses of an engine's batch (all records, or a few) over ``divisor``, at its point. Private.

    No record can move another's Hessian. With ``products`` the model's code does not run on records at all. Without, it
    runs on one record at a time, on copies, as in :class:`~tacita.gradients.LoopEngine`: many times slower. Products
    are taken in the parameters' dtype, without autocast or TF32, and added up in float64.

    Args:
        engine: The engine of the batch, at the point. Its seed makes the model's own randomness the same in every
            product.
        divisor: The divisor of the sum over rows.
        rows: Which rows count, bool, (batch,); all by default.
        products: The products with each record's Hessian, from :func:`hessian_products`.
    """

    def __init__(
        self,
        engine: ChunkedEngine,
        *,
        divisor: float,
        rows: Tensor | None = None,
        products: HessianProducts | None = None,
    ) -> None:
        self._engine, self._divisor = engine, divisor
        self._rows = torch.ones(len(engine.labels), dtype=torch.bool) if rows is None else rows.cpu()
        self._leaves = [*engine.params.values()]
        self._program = None if products is None else products.at(engine.params)
        given = engine.model, engine.loss_fn, engine.params, (), engine.labels
        self._loop = engine if isinstance(engine, LoopEngine) else LoopEngine(*given, seed=engine.seed)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return sum(p.numel() for p in self._leaves)

    @property
    def device(self) -> torch.device:
        """Where products are added up: the device of the parameters, or the CPU if that has no float64."""
        return exact_device(self._leaves[0].device)

    def product(self, vector: Tensor) -> Tensor:
        """Return the Hessian times ``vector`` (dim,), float64."""
        return self._times(vector.unsqueeze(0))[0]

    def dense(self) -> Tensor:
        """Return the whole matrix, (dim, dim), float64, by ``dim`` products; symmetric up to rounding."""
        return self._times(torch.eye(self.dim, device=self.device))

    def _times(self, vectors: Tensor) -> Tensor:
        """Return the Hessian times each of ``vectors`` (count, dim), float64."""
        split = [_parts(vector, self._leaves) for vector in vectors]
        total, start = torch.zeros(vectors.shape, dtype=torch.float64, device=self.device), 0
        of_chunk = self._by_loop if self._program is None else self._by_program
        with full_precision(self.device):
            for chunk in self._engine.chunks():
                kept = self._rows[start : start + chunk.size].nonzero().squeeze(1)
                start += chunk.size
                if len(kept):
                    total += of_chunk(chunk, kept, split)
        return total / self._divisor

    def _by_program(self, chunk: Chunk, kept: Tensor, vectors: Sequence[list[Tensor]]) -> Tensor:
        assert self._program is not None
        tensors, rebuild = flatten(chunk.batch, chunk.size)
        at_once = max(1, GRADIENT_BYTES // (8 * self.dim))
        # Rows are taken out, as weight 0 would not silence NaN.
        batches = [(rebuild([t[rows.to(t.device)] for t in tensors]), len(rows)) for rows in kept.split(at_once)]
        found = []
        for vector in vectors:
            with self._engine._seeded(chunk):
                parts = [self._program(batch, rows, vector) for batch, rows in batches]
            found.append(sum(_flat(to_exact(one).double().sum(0) for one in part) for part in parts))
        return torch.stack(found)

    def _by_loop(self, chunk: Chunk, kept: Tensor, vectors: Sequence[list[Tensor]]) -> Tensor:
        def of_record(loss: Tensor, params: dict[str, Tensor]) -> Tensor:
            leaves = [*params.values()]
            gradient = _gradient(loss, leaves)
            return torch.stack([_flat(_product(gradient, leaves, vector)) for vector in vectors])

        recurrent = any(isinstance(module, nn.RNNBase) for module in self._engine.model.modules())
        of_cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()  # differentiates once only
        with self._engine._seeded(chunk), of_cudnn, sdpa_kernel(SDPBackend.MATH):
            return torch.stack([*self._loop.each_record(chunk, kept.tolist(), of_record)]).sum(0)


def hessian_products(source: NetworkSource) -> HessianProducts | None:
    """Return the products with each record's Hessian, for the network of a source; no record is read.

    Returns:
        ``None`` if the source's method is the loop, or there is no record to take shapes from: then the model's code
        runs on one record at a time.

    Raises:
        UnsupportedModuleError: The products cannot be written down as a program.
    """
    if source.method == "loop" or source.trial_row is None:
        return None
    try:
        return HessianProducts(source.model, source.loss_fn, trainable(source.model), source.trial_row)
    except Exception as error:  # it holds no data: a trace has no values
        raise UnsupportedModuleError(
            f"products with the Hessian of each record cannot be written down before records are read: {error}. "
            'Rewrite that; or use method="loop", which runs code on one record at a time, many times slower.'
        ) from error


def _gradient(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return the gradient of a number, with its graph."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in leaves]
    return [*torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True, materialize_grads=True)]


def _product(gradient: list[Tensor], leaves: list[Tensor], vector: list[Tensor]) -> list[Tensor]:
    curved = [(g, v) for g, v in zip(gradient, vector, strict=True) if g.requires_grad]
    if not curved:  # linear: the gradient is a constant
        return [torch.zeros_like(p) for p in leaves]
    outputs, weights = zip(*curved, strict=True)
    return [
        *torch.autograd.grad(outputs, leaves, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
    ]


def _parts(vector: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return ``vector`` (dim,) in pieces of the shapes of the parameters."""
    parts = vector.split([p.numel() for p in leaves])
    return [part.view(p.shape).to(p.device, p.dtype) for part, p in zip(parts, leaves, strict=True)]


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([to_exact(t.detach()).double().reshape(-1) for t in tensors])
