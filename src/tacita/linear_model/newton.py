r"""Private Newton steps for linear models: gradients from one oracle, Hessians from another, both released.

Source: the idea of Ganesh, Haghifam, Steinke and Thakurta (2023), "Faster Differentially Private Convex Optimization
via Second-Order Methods", https://arxiv.org/abs/2305.13209: Newton steps with the Hessian of a quadratic above the
logistic loss. What is released differs from it: gradients and Hessians are Gaussian releases of their own, a public
damping is added to the eigenvalues, a Hessian may serve several steps, and the last half of the iterates is averaged.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tacita import _validate
from tacita.convex.solver import Tensors
from tacita.linear_model.preconditioned import HalfAveraged, columns_of, damped_inverse, joint_step
from tacita.oracles import Queryable


class NewtonDescent(HalfAveraged):
    r"""Steps :math:`w_{t+1} = w_t - (\kappa M_+ + (\lambda + \alpha) I)^{-1} g_t` with Hessians :math:`\kappa M`.

    M is asked for at the iterate of every ``refresh``-th step, and serves until the next. :math:`M_+` is M without its
    negative eigenvalues, which only noise makes. There is no step size: with the matrices of
    :func:`~tacita.linear.hessian_rows`, which bound the loss from above by a quadratic, exact releases never
    increase the risk, unless one matrix serves several steps. This is post-processing; each oracle is charged for its
    own queries.

    Args:
        oracle, params, steps: As in :class:`~tacita.convex.Solver`; ``params`` holds "weight", (outputs, columns), and
            maybe "bias", (outputs,).
        hessians: Answers with M, ``gradient["matrix"]``, (d, d), in the columns of the weight, then the constant whose
            weight is the bias: an oracle with :class:`~tacita.linear.SecondMoment`. It is asked
            ``ceil(steps / refresh)`` times.
        refresh: Steps that one Hessian serves, >= 1.
        curvature: kappa > 0, that of the loss.
        damping: lambda > 0.
        penalty: alpha >= 0 of :math:`\frac{\alpha}{2} \lVert w \rVert^2` on the weight, not on the bias.

    Example:
        >>> from tacita.oracles import Release
        >>> class Gradients:  # of (4 w^2 - 24 w) / 2
        ...     def query(self, params):
        ...         return Release({"weight": 4 * (params["weight"] - 3)}, {}, 1.0, {}, "", 0)
        >>> class Hessians:
        ...     def query(self, params):
        ...         return Release({"matrix": torch.tensor([[8.0]])}, {}, 1.0, {}, "", 0)
        >>> solver = NewtonDescent(Gradients(), {"weight": torch.zeros(1, 1)}, steps=2, hessians=Hessians(), refresh=2,
        ...                        curvature=0.5, damping=1e-6)
        >>> solver.run()["weight"].round(decimals=3)
        tensor([[3.]])
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        hessians: Queryable,
        refresh: int,
        curvature: float,
        damping: float,
        penalty: float = 0.0,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=None, penalty=penalty)
        self.hessians = hessians
        self.refresh = _validate.count("refresh", refresh)
        self.curvature = _validate.positive("curvature", curvature)
        self.damping = _validate.positive("damping", damping)
        columns = columns_of(self._iterate)
        self._inverse = torch.zeros(columns, columns, dtype=torch.float64)

    def _next(self, gradient: Tensors) -> Tensors:
        if self.made % self.refresh == 0:
            matrix = self.hessians.query(self._iterate).gradient["matrix"]
            added = self.damping + self.penalty
            self._inverse.copy_(damped_inverse(self.curvature * matrix, added, len(self._inverse), "a Hessian"))
        return joint_step(self._iterate, gradient, self._inverse)

    def _kept(self) -> dict[str, Tensors]:
        return {**super()._kept(), "inverse": {"inverse": self._inverse}}
