r"""Accelerated SGD (AC-SA) for a smooth convex risk.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithms 2
and 5, with the parameters of Proposition 30. The private oracle is handed in, so this file is post-processing.
"""

from collections.abc import Mapping

from torch import Tensor

from tacita import _validate
from tacita.convex.proximal_operators import ProximalOperator
from tacita.convex.solver import Solver, Tensors, less
from tacita.oracles import Queryable


class AcceleratedSGD(Solver):
    r"""Take steps that grow with t, and average so that early noise is forgotten.

    With :math:`\alpha_t = 2/(t+1)` and g the gradient at :math:`w^{md}`, for t = 1, 2, ...

    .. math::
        w^{md}_t = (1 - \alpha_t) w^{ag}_{t-1} + \alpha_t w_{t-1}, \quad
        w_t = \Pi_W(w_{t-1} - \text{lr}\, t\, g_t), \quad
        w^{ag}_t = (1 - \alpha_t) w^{ag}_{t-1} + \alpha_t w_t .

    The solution is :math:`w^{ag}_T`. The paper's :math:`\eta` is :math:`1/(2\,\text{lr})`. Its bound
    (``tacita.convex.heavy_tailed``) needs lr <= 1/(4 smoothness), and fresh records in each query.

    Args:
        oracle, params, steps, domain: As in :class:`~tacita.convex.Solver`.
        lr: Step size of the first step, > 0; step t has t times as much.

    Example:
        >>> import torch, tacita
        >>> x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) + 1
        >>> oracle = tacita.ClippedGradientOracle(
        ...     model := torch.nn.Linear(3, 1, bias=False),
        ...     lambda model, batch: (model.weight - batch[0]).square().sum(1) / 2, (x,),
        ...     ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"),
        ...     sampler=tacita.DisjointSampler(num_batches=10, num_records=1000),
        ...     clipper=tacita.FlatClipper(max_grad_norm=3.0),
        ...     mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=10)
        >>> found = AcceleratedSGD(oracle, {"weight": torch.zeros(1, 3)}, steps=10, lr=0.1, domain=None).run()
        >>> bool((found["weight"] - 1).norm() < 0.5)
        True
    """

    def __init__(
        self,
        oracle: Queryable,
        params: Mapping[str, Tensor],
        *,
        steps: int,
        lr: float,
        domain: ProximalOperator | None,
    ) -> None:
        super().__init__(oracle, params, steps=steps, domain=domain)
        self.lr = _validate.positive("lr", lr)
        self._average = {name: tensor.clone() for name, tensor in self._iterate.items()}

    def _asked(self) -> Tensors:
        alpha = 2 / (self.made + 2)
        return {name: mean.lerp(self._iterate[name], alpha) for name, mean in self._average.items()}

    def _move(self, gradient: Tensors) -> None:
        lr = self.lr * (self.made + 1)
        self._iterate = self._within(less(self._iterate, gradient, lr), lr)
        for name, mean in self._average.items():
            mean.lerp_(self._iterate[name], 2 / (self.made + 2))

    def _answer(self) -> Tensors:
        return self._average

    def _kept(self) -> dict[str, Tensors]:
        return {"iterate": self._iterate, "average": self._average}
