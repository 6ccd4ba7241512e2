r"""Full-batch descent for linear models: preconditioned by released second moments, or with momentum.

Both answer with the mean of the last half of their iterates. The oracle is handed in, and the second moments were
released before, so this file is post-processing.
Source: the step is Newton's with a bound on the Hessian in its place (Böhning and Lindsay, 1988,
https://doi.org/10.1007/BF00049423); released second moments: Dwork, Talwar, Thakurta and Zhang (2014).
"""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from tacita import _validate
from tacita.convex.proximal_operators import ProximalOperator
from tacita.convex.solver import Solver, Tensors, less
from tacita.oracles import Queryable


class HalfAveraged(Solver):
    """A solver whose answer is the mean of its last iterates: of T steps, those after the first T // 2."""

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        domain: ProximalOperator | None,
        penalty: float,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=domain)
        self.penalty = _validate.non_negative("penalty", penalty)
        self._average = {name: tensor.clone() for name, tensor in self._iterate.items()}

    @abstractmethod
    def _next(self, gradient: Tensors) -> Tensors:
        """Return the next iterate; ``gradient`` includes that of the penalty."""

    def _move(self, gradient: Tensors) -> None:
        if self.penalty and "weight" in gradient:  # never the bias
            gradient["weight"] = gradient["weight"] + self.penalty * self._asked()["weight"]
        self._iterate = self._next(gradient)
        averaged = self.made + 1 - self.steps // 2
        if averaged >= 1:
            for name, mean in self._average.items():
                mean.lerp_(self._iterate[name], 1 / averaged)

    def _answer(self) -> Tensors:
        return self._average if self.made > self.steps // 2 else self._iterate

    def _kept(self) -> dict[str, Tensors]:
        return {"iterate": self._iterate, "average": self._average}


class PreconditionedDescent(HalfAveraged):
    r"""Steps :math:`w_{t+1} = v_t - (\kappa M_+ + \lambda I)^{-1} g(v_t)` with released second moments M; no step size.

    The gradient is asked for at :math:`v_t = w_t + \beta (w_t - w_{t-1})` (Nesterov, 1983); with :math:`\beta = 0`, the
    default, at the iterate itself.
    With :math:`\kappa` a bound on the second derivative of the loss, :math:`\kappa M` bounds the Hessian of a linear
    model, so that a full step never overshoots where M is exact. :math:`M_+` is M without its negative eigenvalues,
    which noise makes. :math:`\lambda` keeps the noise of gradients small in directions in which the data say little.

    Args:
        oracle, params, steps: As in :class:`~tacita.convex.Solver`. ``params`` are those of a linear model: "weight",
            (outputs, columns), and maybe "bias", (outputs,).
        second_moment: M: the released mean of :math:`x x^\top`, (d, d), symmetric. The order of its d entries is that
            of the columns of the weight, then the constant whose weight is the bias.
        curvature: kappa > 0.
        damping: lambda > 0.
        penalty: alpha >= 0 of :math:`\frac{\alpha}{2} \lVert w \rVert^2` on the weight, not on the bias.
        momentum: beta in [0, 1). Fewer steps then reach the minimum where the loss is flatter than :math:`\kappa` says.

    Example:
        >>> from tacita.oracles import Release
        >>> class Exact:  # the mean of (x w - 3 x)^2 / 2 with x^2 = 4
        ...     def query(self, params):
        ...         return Release({"weight": 4 * (params["weight"] - 3)}, {}, 1.0, {}, "", 0)
        >>> solver = PreconditionedDescent(Exact(), {"weight": torch.zeros(1, 1)}, steps=2,
        ...                                second_moment=torch.tensor([[4.0]]), curvature=1.0, damping=1e-6)
        >>> solver.run()["weight"].round(decimals=3)
        tensor([[3.]])
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        second_moment: Tensor,
        curvature: float,
        damping: float,
        penalty: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=None, penalty=penalty)
        self.momentum = _validate.below_one("momentum", momentum)
        curvature = _validate.positive("curvature", curvature)
        damping = _validate.positive("damping", damping)
        self._inverse = damped_inverse(
            curvature * second_moment.double(), damping + self.penalty, columns_of(self._iterate), "second_moment"
        )

        self._ahead = {name: tensor.clone() for name, tensor in self._iterate.items()}

    def _asked(self) -> Tensors:
        return self._ahead

    def _next(self, gradient: Tensors) -> Tensors:
        found = joint_step(self._ahead, gradient, self._inverse)
        for name, tensor in found.items():
            self._ahead[name] = torch.lerp(self._iterate[name], tensor, 1 + self.momentum)
        return found

    def _kept(self) -> dict[str, Tensors]:
        return {**super()._kept(), "ahead": self._ahead}


class MomentumDescent(HalfAveraged):
    r"""Steps :math:`v_{t+1} = \beta v_t + g_t`, :math:`w_{t+1} = \Pi_W(w_t - \eta v_{t+1})`, on full batches.

    Args:
        oracle, params, steps, domain: As in :class:`~tacita.convex.Solver`.
        lr: Step size eta > 0.
        momentum: beta in [0, 1).
        penalty: alpha >= 0 of :math:`\frac{\alpha}{2} \lVert w \rVert^2` on the parameter "weight".
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        lr: float,
        momentum: float,
        penalty: float = 0.0,
        domain: ProximalOperator | None = None,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=domain, penalty=penalty)
        self.lr = _validate.positive("lr", lr)
        self.momentum = _validate.below_one("momentum", momentum)
        self._velocity = {name: torch.zeros_like(tensor) for name, tensor in self._iterate.items()}

    def _next(self, gradient: Tensors) -> Tensors:
        for name, velocity in self._velocity.items():
            velocity.mul_(self.momentum).add_(gradient[name])
        return self._within(less(self._iterate, self._velocity, self.lr), self.lr)

    def _kept(self) -> dict[str, Tensors]:
        return {**super()._kept(), "velocity": self._velocity}


def damped_inverse(matrix: Tensor, added: float, columns: int, name: str) -> Tensor:
    r"""Return :math:`(A_+ + a I)^{-1}`, float64, for a symmetric A, (columns, columns), and a = ``added`` > 0.

    ``name`` is that of the matrix in an error.
    """
    if matrix.shape != (columns, columns):
        raise ValueError(
            f"{name} must have shape {(columns, columns)}, got {tuple(matrix.shape)}: the columns of the "
            "weight, then the constant of the bias."
        )
    values, vectors = torch.linalg.eigh(matrix.double())
    return (vectors / (values.clamp(min=0.0) + added)) @ vectors.t()


def joint_step(point: Tensors, gradient: Tensors, inverse: Tensor) -> Tensors:
    """Return ``point`` less the gradient times ``inverse``, the bias taken as one more column of the weight."""
    joint = torch.cat(_as_columns(gradient), dim=1).double() @ inverse
    width = gradient["weight"].shape[1]
    step = {"weight": joint[:, :width], "bias": joint[:, -1]}
    return {name: tensor - step[name].to(tensor) for name, tensor in point.items()}


def columns_of(params: Tensors) -> int:
    """Return the number of columns of the weight, and one more for a bias."""
    return sum(part.shape[1] for part in _as_columns(params))


def _as_columns(params: Tensors) -> list[Tensor]:
    """Return the weight, (outputs, columns), and the bias as one more column."""
    unknown = set(params) - {"weight", "bias"}
    if unknown or "weight" not in params or params["weight"].ndim != 2:
        raise ValueError(f"params must be a weight (outputs, columns) and maybe a bias, got {sorted(params)}.")
    return [params["weight"], *([params["bias"].unsqueeze(1)] if "bias" in params else [])]
