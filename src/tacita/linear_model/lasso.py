"""Least squares with an L1 penalty, from released second moments."""

from abc import ABC
from dataclasses import dataclass

from tacita import _validate
from tacita.linear_model.fitting import Paying, ScaledTable
from tacita.linear_model.regression import MomentsRegressor


@dataclass(eq=False, repr=False, kw_only=True)
class L1Regressor(MomentsRegressor, ABC):
    """What least squares with an L1 penalty share: the penalties in scaled units."""

    alpha: float = 1.0
    l1_ratio = 1.0

    def _check_settings(self) -> None:
        super()._check_settings()
        ratio = _validate.non_negative("l1_ratio", self.l1_ratio)
        if ratio > 1:
            raise ValueError(f"l1_ratio must be in [0, 1], got {ratio}.")

    def _penalties(self, paying: Paying, table: ScaledTable, target_scale: float) -> tuple[float, float]:
        unit, alpha = float(table.scale[0]), self.alpha / table.largest_weight
        return alpha * self.l1_ratio * unit / target_scale, alpha * (1 - self.l1_ratio) * unit**2


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateElasticNet(L1Regressor):
    r"""Least squares with an L1 and an L2 penalty under (epsilon, delta)-differential privacy.

    As :class:`PrivateRidge`: second moments of rows and targets are released once, and the penalised solution is
    computed from them: :func:`~tacita.linear_model.adaptive_elastic_net`. Coefficients are exactly 0 where ``alpha`` is
    larger than what data *and noise* say of them: with little budget, a penalty of the non-private size leaves few
    zeros.

    Guarantee, attributes and the parameters that are not named here: those of :class:`PrivateRidge`.

    Args:
        alpha: Penalty >= 0, as in scikit-learn: :math:`\alpha r \lVert w \rVert_1 + \frac12 \alpha (1 - r)
            \lVert w \rVert^2` beside half the *mean* of squares, over all rows whatever their weights.
        l1_ratio: r in [0, 1].

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((20_000, 3)); y = 2 * X[:, 0]
        >>> model = PrivateElasticNet(
        ...     epsilon=1.0, delta=1e-6, alpha=0.3, l1_ratio=0.9, data_norm=3.0, target_range=(-6.0, 6.0),
        ...     insecure_seed=0)
        >>> (model.fit(X, y).coef_ != 0).tolist()
        [True, False, False]
    """

    l1_ratio: float = 0.5


class PrivateLasso(L1Regressor):
    r"""Least squares with an L1 penalty under (epsilon, delta)-differential privacy.

    This is :class:`PrivateElasticNet` with ``l1_ratio`` = 1, and has its other parameters, attributes and guarantee.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((20_000, 3)); y = 2 * X[:, 0]
        >>> model = PrivateLasso(
        ...     epsilon=1.0, delta=1e-6, alpha=0.3, data_norm=3.0, target_range=(-6.0, 6.0), insecure_seed=0)
        >>> (model.fit(X, y).coef_ != 0).tolist()
        [True, False, False]
    """

    l1_ratio = 1.0
