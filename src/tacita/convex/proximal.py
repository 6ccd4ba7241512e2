r"""Noisy SGD with a projection or a proximal step: weighted averages, last iterates, and a regulariser of the distance.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithms 6
and 7 (:class:`WeightedSGD`), 3 (:class:`RegularizedSubgradient`), 8 and 9 (:class:`ProximalSGD`). The private oracle is
handed in, so this file is post-processing.
"""

import itertools
from collections.abc import Mapping, Sequence

from torch import Tensor

from tacita import _validate
from tacita.convex.proximal_operators import ProximalOperator
from tacita.convex.solver import Solver, Tensors, less
from tacita.oracles import Queryable


class WeightedSGD(Solver):
    r"""Projected SGD whose solution is a weighted average: :math:`\frac{1}{Z}\sum_t \zeta_t w_{t+1}`.

    :math:`w_{t+1} = \Pi_W(w_t - \eta_t g_t)` for t = 0, ..., ``len(lrs) - 1``, with one query each. The paper calls the
    last t "T", so its loop has T + 1 queries, and the batches are n / (T + 1) records. The schedule of its Lemma 33 is
    ``tacita.convex.heavy_tailed.strongly_convex_schedule``.

    Args:
        oracle, params, domain: As in :class:`~tacita.convex.Solver`.
        lrs: Step sizes :math:`\eta_t` > 0, one a query.
        weights: Averaging weights :math:`\zeta_t` >= 0, one a query; the last one must be > 0.
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        lrs: Sequence[float],
        weights: Sequence[float],
        domain: ProximalOperator | None,
    ) -> None:
        self.lrs = tuple(_validate.positive("lrs", float(lr)) for lr in lrs)
        self.weights = tuple(_validate.non_negative("weights", float(weight)) for weight in weights)
        if len(self.weights) != len(self.lrs) or not self.weights or not self.weights[-1] > 0:
            raise ValueError(
                f"weights must be as many as lrs, {len(self.lrs)}, and the last one > 0, got {len(self.weights)}."
            )
        super().__init__(oracle, params, steps=len(self.lrs), domain=domain)
        self._totals = tuple(itertools.accumulate(self.weights))
        self._average = {name: tensor.clone() for name, tensor in self._iterate.items()}

    def _move(self, gradient: Tensors) -> None:
        t = self.made
        self._iterate = self._within(less(self._iterate, gradient, self.lrs[t]), self.lrs[t])
        if self.weights[t]:
            for name, mean in self._average.items():
                mean.lerp_(self._iterate[name], self.weights[t] / self._totals[t])

    def _answer(self) -> Tensors:
        return self._average if self.made and self._totals[self.made - 1] else self._iterate

    def _kept(self) -> dict[str, Tensors]:
        return {"iterate": self._iterate, "average": self._average}


class RegularizedSubgradient(Solver):
    r"""The subgradient method for :math:`F(w) + \tfrac{\lambda}{2}\lVert w - w_0\rVert^2`; its last iterate.

    :math:`w_{t+1} = \Pi_W(w_t - \eta (g_t + \lambda (w_t - w_0)))`. The regulariser is added below the line: it is not
    clipped and needs no noise.

    Args:
        oracle, params, steps, domain: As in :class:`~tacita.convex.Solver`; ``params`` are also :math:`w_0`.
        lr: Step size :math:`\eta` in (0, 2 / reg_strength].
        reg_strength: :math:`\lambda` >= 0.
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        lr: float,
        reg_strength: float,
        domain: ProximalOperator | None,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=domain)
        self.lr = _validate.positive("lr", lr)
        self.reg_strength = _validate.non_negative("reg_strength", reg_strength)
        if self.lr * self.reg_strength > 2 * (1 + 1e-9):
            raise ValueError(
                f"lr must be at most 2 / reg_strength = {2 / self.reg_strength:g}, got {self.lr:g}: the regulariser's "
                "own step would move away from the starting point."
            )
        self._center = {name: tensor.clone() for name, tensor in self._iterate.items()}

    def _move(self, gradient: Tensors) -> None:
        pull = {
            name: gradient[name] + self.reg_strength * (tensor - self._center[name])
            for name, tensor in self._iterate.items()
        }
        self._iterate = self._within(less(self._iterate, pull, self.lr), self.lr)

    def _kept(self) -> dict[str, Tensors]:
        return {"iterate": self._iterate, "center": self._center}


class ProximalSGD(Solver):
    r"""SGD with a proximal step, for :math:`F_0(w) + f_1(w)` under the proximal-PL inequality; its last iterate.

    :math:`w_{t+1} = \mathrm{prox}_{\eta f_1}(w_t - \eta g_t)`, where g estimates the gradient of :math:`F_0` alone: the
    penalty is applied below the line, keeps exact zeros (:func:`~tacita.convex.L1`) and is not clipped.

    Args:
        oracle, params, steps: As in :class:`~tacita.convex.Solver`.
        lr: Step size :math:`\eta` > 0; the paper's is 1 / (2 smoothness).
        penalty: :math:`f_1` as a proximal operator. Include a bounded domain (``L1(weight=0.1) + Ball(radius=3.0)``):
            on the whole space the gradients of a least-squares loss have no bounded moment.
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        lr: float,
        penalty: ProximalOperator,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=penalty)
        self.lr = _validate.positive("lr", lr)

    def _move(self, gradient: Tensors) -> None:
        self._iterate = self._within(less(self._iterate, gradient, self.lr), self.lr)
