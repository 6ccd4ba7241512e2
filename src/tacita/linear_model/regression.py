"""Regressions from released second moments: private least squares, with or without a ridge."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from torch import Tensor

from tacita import _validate
from tacita.linear_model import rules
from tacita.linear_model.answers import read_targets
from tacita.linear_model.base import LinearPlan, PrivateLinearModel
from tacita.linear_model.fitting import Paying, ScaledTable, fit_by_moments

Solution = tuple[Mapping[str, Tensor], rules.DescentRule | None, float]  # in scaled units; the rule and lambda of steps


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, PrivateLinearModel, ABC):
    """What the regressors share: targets in units of their scale, the order of a fit, and predictions."""

    target_range: tuple[float, float] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self._poor_of_200_rows()
        return tags

    @abstractmethod
    def _moments_share(self, size: float) -> float:
        """Return the share of the budget for second moments, of what purchases leave; ``size`` is mu n / d."""

    @abstractmethod
    def _register(self, paying: Paying, size: float) -> Any:
        """Register the sessions of a fit before its first release."""

    @abstractmethod
    def _solve(
        self, paying: Paying, registered: Any, table: ScaledTable, targets: np.ndarray, target_scale: float
    ) -> Solution:
        """Return the weight and the bias, in scaled units, from the sessions that were registered."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit to the rows of ``X``, (rows, columns), dense or CSR, and the targets ``y``, (rows,).

        The loss of a row is multiplied by its ``sample_weight``, at most ``max_sample_weight``. A row whose features or
        target hold NaN or an infinity contributes nothing.

        Raises:
            ValueError: The budget is missing, delta is not below 1 / rows, or a setting is wrong.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        self._check_privacy()
        self._check_settings()
        table = self._table(X, reset=True)
        targets, weights = read_targets(y, table.shape[0]), self._weights(sample_weight, table.shape[0])
        declared = self._range()
        bought = (self.data_norm is None) + (declared is None)
        scales = rules.SCALES if bought else 0.0
        size = self._size(table)
        paying = self._paying(table.shape[0], scales=scales, moments=self._moments_share(size) * (1.0 - scales))
        for_scales = paying.register(paying.budget.scales_event(bought), 1, "bounds") if bought else None
        registered = self._register(paying, size)
        data_norm, width = self._bought_scales(paying, for_scales, table, targets if declared is None else None)
        centre, width = declared or (0.0, width)
        scaled = self._scaled(table, data_norm, weights)
        with np.errstate(all="ignore"):  # a warning would tell what a target is
            targets = (targets - centre) / width
        found, rule, damping = self._solve(paying, registered, scaled, targets, width)
        weight, bias = self._unscaled(found, scaled)
        self.coef_ = weight[0] * width
        self.intercept_ = float(bias[0]) * width + centre
        steps, clip = (rule.steps, rule.max_grad_norm) if rule else (0, 0.0)
        self.plan_ = LinearPlan(rule.solver if rule else "moments", steps, clip, damping, data_norm, width)
        chosen = [f"{name} (bought)" for name in ("data_norm", "target_range") if getattr(self, name) is None]
        self._said(paying, chosen + (rule.in_words() if rule else []))
        return self

    def _range(self) -> tuple[float, float] | None:
        """Return the middle and half the width of the declared range of targets; ``None`` if it is bought."""
        if self.target_range is None:
            return None
        try:
            low, high = (float(end) for end in self.target_range)
        except (TypeError, ValueError):
            raise ValueError(f"target_range must be two numbers, (low, high), got {self.target_range!r}.") from None
        return (low + high) / 2, _validate.positive("target_range[1] - target_range[0]", high - low) / 2

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted targets, (rows,)."""
        return self._outputs(X)[:, 0]


class MomentsRegressor(PrivateRegressor):
    """What least squares with any penalty share: second moments of rows and targets are the only release."""

    def _moments_share(self, size: float) -> float:
        return 1.0

    def _register(self, paying: Paying, size: float) -> Any:
        return paying.plan_moments()

    def _solve(
        self, paying: Paying, registered: Any, table: ScaledTable, targets: np.ndarray, target_scale: float
    ) -> Solution:
        l1, l2 = self._penalties(paying, table, target_scale)
        return fit_by_moments(paying, registered, table, targets, l1=l1, l2=l2), None, 0.0

    def _penalties(self, paying: Paying, table: ScaledTable, target_scale: float) -> tuple[float, float]:
        """Return the L1 and the L2 penalty, in scaled units and those of a mean of losses."""
        return 0.0, self._penalty(paying, table)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRidge(MomentsRegressor):
    r"""Ridge regression under (epsilon, delta)-differential privacy, from one release of second moments (AdaSSP).

    Rows and targets, scaled and joined, are clipped to norm 1, and the matrix of their second moments is released once.
    The solution is computed from it, with a further ridge where the noise needs one:
    :func:`~tacita.linear_model.adaptive_ridge`.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together, by the ledger ``ledger_``; the number
    of rows is public. Nothing has to be true of the data: longer rows and larger targets are clipped.

    Args:
        epsilon, delta: The budget of a fit. ``fit`` raises where one is missing.
        rho: The budget in zero-concentrated privacy, in place of epsilon. delta is still what epsilon is stated at.
        alpha: L2 penalty >= 0, as in scikit-learn: :math:`\alpha \lVert w \rVert^2` beside the sum of squares.
        fit_intercept: Whether the model has a constant.
        data_norm: A public guess of how long rows are; rows may be longer. If it is ``None``, it is bought.
        max_sample_weight: A public bound of the weights that ``fit`` is given; larger ones are cut to it.
        target_range: Public (low, high) of most targets. If it is ``None``, their size is bought. Targets far from 0
            compared to their spread are fitted much better with a range.
        neighboring_relation: "zero_out_one" or "replace_one".
        privacy_unit: What one row is, for the statement.
        ledger: The ledger that pays; ``None`` makes one with epsilon as its cap.
        insecure_seed: For tests: noise from this seed. The statement then says that nothing is private.

    Attributes:
        coef_, intercept_: As in scikit-learn.
        plan_: What was planned (:class:`LinearPlan`).
        ledger_: The ledger that paid; ``None`` in a copy that was unpickled.
        statement_: What is guaranteed, in words.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((5000, 3)); y = X @ [1.0, 2.0, -1.0] + 0.1 * rng.standard_normal(5000)
        >>> model = PrivateRidge(epsilon=1.0, delta=1e-6, data_norm=3.0, target_range=(-6.0, 6.0)).fit(X, y)
        >>> bool(model.score(X, y) > 0.95), round(model.ledger_.epsilon(1e-6), 3)
        (True, 1.0)
    """

    alpha: float = 1.0


class PrivateLinearRegression(MomentsRegressor):
    """Least squares under (epsilon, delta)-differential privacy: :class:`PrivateRidge` with ``alpha`` = 0.

    A ridge is still added where the noise needs one. Parameters, attributes and guarantee are those of
    :class:`PrivateRidge`, without ``alpha``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((5000, 3)); y = X @ [1.0, 2.0, -1.0]
        >>> model = PrivateLinearRegression(epsilon=1.0, delta=1e-6, data_norm=3.0, target_range=(-6.0, 6.0))
        >>> bool(model.fit(X, y).score(X, y) > 0.95)
        True
    """
