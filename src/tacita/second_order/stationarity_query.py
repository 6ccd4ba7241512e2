r"""How far a point is from being second-order stationary, as one number with a bounded sensitivity.

Place: gradients -> [estimators.stationarity_query] -> mechanisms.above_threshold. The value is private.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need", section 3.4. Differs from it in its
sensitivities: twice as large where a record is replaced, and the Hessian's from a bound on every *record's* Hessian:
the smoothness of the average says nothing of one record. Proof: docs/derivations/noisy-sgd.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import NeighboringRelation, moved
from tacita.clipping.flat import FlatClipper
from tacita.gradients.chunked import ChunkedEngine
from tacita.gradients.program.hessian_products import HessianProducts
from tacita.second_order.hessian import BatchHessian
from tacita.second_order.lanczos import lanczos, lanczos_steps
from tacita.second_order.stationarity import curvature_limit

DENSE = 1000  # coordinates up to which the whole Hessian may be built
SMALL = 64  # coordinates up to which it always is


@dataclass(frozen=True, kw_only=True)
class StationarityQuery:
    r"""The value :math:`q = \max\bigl(\lVert \frac1n \sum_i \text{clip}_C(\nabla f_i) \rVert / \alpha,\;
    -\lambda_{\min}(\frac1n \sum_i \nabla^2 f_i) / \sqrt{\rho\alpha}\bigr)`, below 1 at stationary points.

    Guarantee: if no record's Hessian is larger than :math:`L_i` = ``declared_max_hessian_norm`` (spectral norm) at the
    point, one record moves q by at most :meth:`sensitivity`. Gradients are clipped, so they need no condition. A record
    whose gradient is not finite counts as zero in both. The model must draw nothing (no dropout): the Hessian leaves
    such records out of the batch, and draws belong to places in it.

    Attributes:
        alpha: Accuracy :math:`\alpha`, > 0, in the gradient's units.
        hessian_lipschitz: :math:`\rho`, > 0.
        max_grad_norm: Clipping threshold C of each gradient.
        declared_max_hessian_norm: L_i, a public constant.
        num_records: The public divisor n.
        eigenvalue_error: :math:`\tau`, by how much the computed eigenvalue may be too large; 0 for exact ones.
        solver_failure: Chance, for one value, that the eigenvalue is off by more; 0 where it is exact.
    """

    alpha: float
    hessian_lipschitz: float
    max_grad_norm: float
    declared_max_hessian_norm: float
    num_records: int
    eigenvalue_error: float = 0.0
    solver_failure: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "hessian_lipschitz", "max_grad_norm", "declared_max_hessian_norm"):
            checked = _validate.threshold if name == "max_grad_norm" else _validate.positive
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        object.__setattr__(self, "eigenvalue_error", _validate.non_negative("eigenvalue_error", self.eigenvalue_error))

    @property
    def curvature_limit(self) -> float:
        r""":math:`\sqrt{\rho\alpha}`."""
        return curvature_limit(self.alpha, self.hessian_lipschitz)

    def sensitivity(self, relation: NeighboringRelation, max_rows_per_unit: int = 1) -> float:
        r""":math:`\max\bigl(\frac{m C}{n\alpha}, \frac{m L_i/n + \tau}{\sqrt{\rho\alpha}}\bigr)`, m rows moved: 1, or 2
        under replace_one, times the rows of a unit."""
        share = moved(relation) * max_rows_per_unit / self.num_records
        curvature = share * self.declared_max_hessian_norm + self.eigenvalue_error
        return max(share * self.max_grad_norm / self.alpha, curvature / self.curvature_limit)

    def condition(self, relation: NeighboringRelation, because: str) -> str:
        """Describe the condition of the guarantee, for the statement; ``because`` says why it holds, if not empty."""
        why = f"declared because {because}" if because else "declared without a reason"
        at_most = ""
        if self.solver_failure and relation == "add_or_remove_one":
            at_most = f", and there are at most {self.num_records} records"
        return (
            f"every record's loss has a Hessian of spectral norm at most {self.declared_max_hessian_norm:g} at every "
            f"point that is tested{at_most} ({why})"
        )

    def steps(self, dim: int) -> int:
        """Return how many products with the Hessian one value takes; ``dim`` where the eigenvalue is exact.

        Raises:
            ValueError: Exact eigenvalues were asked for, and the model has too many parameters.
        """
        if dim <= SMALL or (dim <= DENSE and self.eigenvalue_error == 0):
            return dim
        if self.eigenvalue_error == 0:
            raise ValueError(
                f"eigenvalue_error must be > 0 for a model with {dim} parameters: eigenvalues are exact up to {DENSE}. "
                f"A fraction of declared_max_hessian_norm ({self.declared_max_hessian_norm:g}) is a start."
            )
        spread = min(0.99, self.eigenvalue_error / (2 * self.declared_max_hessian_norm))
        failure = self.solver_failure or 0.5  # with 0 the caller only checks whether a failure has to be paid for
        return lanczos_steps(dim, spread, failure)

    def is_exact(self, dim: int) -> bool:
        """Return whether eigenvalues are exact, so that the solver draws nothing."""
        return dim <= SMALL or (dim <= DENSE and self.eigenvalue_error == 0)

    def on(self, dim: int) -> "StationarityQuery":
        """Return this query for a model of ``dim`` parameters, whose solver does not fail where nothing is random.

        Raises:
            ValueError: It cannot be computed as stated.
        """
        self.steps(dim)
        if self.is_exact(dim):
            return replace(self, solver_failure=0.0)
        if not self.solver_failure:
            raise ValueError(
                f"solver_failure_probability must be in (0, 1) where eigenvalues are not exact ({dim} parameters), "
                "got 0.0: the solver is random, and its failures are paid for in delta. A hundredth of delta will do."
            )
        return self

    def __call__(self, engine: ChunkedEngine, start: Tensor, products: HessianProducts | None = None) -> float:
        """Return q, private, at the engine's point over its rows; infinite if the curvature is not finite.

        Args:
            engine: The engine of all records.
            start: Independent normals, (dim,), for the eigen-solver.
            products: As for :class:`~tacita.second_order.BatchHessian`.
        """
        names = {"all": tuple(engine.shapes)}
        sums = engine.weighted_sums(FlatClipper(max_grad_norm=self.max_grad_norm).weights, names)
        gradient_norm = _norm(sums.values[0]) / self.num_records
        present = sums.norms[:, 0].isfinite()
        hessian = BatchHessian(engine, divisor=self.num_records, rows=present, products=products)
        eigenvalue = self._eigenvalue(hessian, start)
        return max(gradient_norm / self.alpha, -eigenvalue / self.curvature_limit)

    def _eigenvalue(self, hessian: BatchHessian, start: Tensor) -> float:
        if not self.is_exact(hessian.dim):
            return lanczos(hessian, start.to(hessian.device), self.steps(hessian.dim)).smallest
        matrix = hessian.dense()
        return float(torch.linalg.eigvalsh((matrix + matrix.T) / 2)[0]) if matrix.isfinite().all() else -math.inf


def _norm(gradient: Mapping[str, Tensor]) -> float:
    return math.sqrt(math.fsum(float(part.double().square().sum()) for part in gradient.values()))
