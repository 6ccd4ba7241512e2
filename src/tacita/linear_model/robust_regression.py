"""Regressions that one far target moves little: the Huber loss, and quantiles. They are fitted by clipped gradients."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacita import _validate
from tacita.linear.losses import HuberLoss, MultipliedLoss, OutputLoss, QuantileLoss
from tacita.linear_model import rules
from tacita.linear_model.base import DescentModel
from tacita.linear_model.fitting import Descent, Paying, ScaledTable
from tacita.linear_model.regression import PrivateRegressor, Solution

LEAST_THRESHOLD, MOST_THRESHOLD = 1e-6, 1e6  # in units of the scale of the targets


@dataclass(eq=False, repr=False, kw_only=True)
class DescentRegressor(PrivateRegressor, DescentModel):
    """What the robust regressions share: second moments of rows, then steps on clipped gradients.

    The clipping threshold is the largest derivative of the loss, so that rows of ``data_norm`` are not clipped. The
    classifiers' smaller threshold would move the minimum: clipping shrinks the larger side of a quantile's loss more.
    """

    def _solver(self, size: float) -> rules.SolverName:
        """Return the solver that was asked for, else that of the public rule."""
        return rules.chosen_solver(self.solver)

    def _moments_share(self, size: float) -> float:
        return rules.MATRICES[self._solver(size)]

    @property
    @abstractmethod
    def _max_derivative(self) -> float:
        """The largest derivative of the loss, which no purchase changes."""

    @abstractmethod
    def _scaled_loss(self, target_scale: float, solver: rules.SolverName) -> tuple[OutputLoss, float]:
        """Return the loss of scaled targets, and what the loss of targets is divided by to get it."""

    def _curvatures(self) -> Sequence[float]:
        """Return kappa of each of several phases; none to take the loss's own bound."""
        return ()

    def _register(self, paying: Paying, size: float) -> Any:
        solver = self._solver(size)
        rule = rules.descent_rule(
            solver=solver,
            max_derivative=self._max_derivative,
            share=rules.WHOLE,
            steps=self.steps or (rules.QUANTILE_STEPS if solver == "preconditioned" and self._curvatures() else None),
            max_grad_norm=self.max_grad_norm,
        )
        return rule, paying.plan_descent(rule)

    def _solve(
        self, paying: Paying, registered: Any, table: ScaledTable, targets: np.ndarray, target_scale: float
    ) -> Solution:
        rule, plans = registered
        loss, unit = self._scaled_loss(target_scale, rule.solver)
        penalty = self._penalty(paying, table) * target_scale**2 / unit
        descent = Descent(paying, plans, table, targets, loss, rule, penalty, self._curvatures())
        found, damping = descent.fit()
        return found, rule, damping


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateHuberRegressor(DescentRegressor):
    r"""Linear regression with the Huber loss under (epsilon, delta)-differential privacy.

    The loss of a residual r is :math:`r^2 / 2` where :math:`|r| \le h` and :math:`h |r| - h^2 / 2` elsewhere. Second
    moments of clipped rows are released once; then full-batch gradients, clipped and noisy, are stepped with the
    inverse of those moments (:class:`~tacita.linear_model.PreconditionedDescent`).

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together, by the ledger ``ledger_``; the number
    of rows is public. Nothing has to be true of the data: longer rows are clipped, and a target moves a gradient by its
    residual, at most h.

    Args:
        threshold: h > 0, in the units of the targets. scikit-learn calls it ``epsilon``, in units of a scale that it
            estimates. ``None`` is 0.15 of the scale of the targets: of half the width of ``target_range``, or of the
            scale that is bought.
        alpha: L2 penalty >= 0: :math:`\frac{\alpha}{2} \lVert w \rVert^2` beside the sum of losses.
        steps, max_grad_norm: Number and clipping threshold of the gradients (of the loss divided by h, in scaled
            units), by a public rule if ``None``.
        solver: "preconditioned", "newton" or "momentum", by a public rule if ``None``.
        target_range: Public (low, high) of most targets. If it is ``None``, their size is bought. The model starts in
            the middle, and targets far from 0 compared to their spread need it.
        epsilon, delta, rho, fit_intercept, data_norm, neighboring_relation, privacy_unit, ledger, insecure_seed: As in
            :class:`PrivateRidge`.

    Attributes:
        coef_, intercept_, plan_, ledger_, statement_: As in :class:`PrivateRidge`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((5000, 3)); y = X @ [1.0, 2.0, -1.0] + rng.standard_t(1.5, 5000)
        >>> model = PrivateHuberRegressor(epsilon=1.0, delta=1e-6, data_norm=3.0, target_range=(-6.0, 6.0)).fit(X, y)
        >>> bool(abs(model.coef_ - [1.0, 2.0, -1.0]).max() < 0.3), round(model.ledger_.epsilon(1e-6), 3)
        (True, 1.0)
    """

    threshold: float | None = None

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.threshold is not None:
            _validate.positive("threshold", self.threshold)

    @property
    def _max_derivative(self) -> float:
        return 1.0

    def _scaled_loss(self, target_scale: float, solver: rules.SolverName) -> tuple[OutputLoss, float]:
        share = rules.HUBER if self.threshold is None else self.threshold / target_scale
        share = min(max(share, LEAST_THRESHOLD), MOST_THRESHOLD)
        return MultipliedLoss(HuberLoss(share), 1 / share), share * target_scale**2


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateQuantileRegressor(DescentRegressor):
    r"""Linear regression of a quantile under (epsilon, delta)-differential privacy.

    The loss of a residual :math:`r = y - z` is :math:`\max(q r, (q - 1) r)`, whose kink is rounded over a hundredth of
    the scale of the targets (a tenth, where the solver is not "preconditioned"). It is fitted as
    :class:`PrivateHuberRegressor` is, whose other parameters, attributes and guarantee it has, in 49 steps. Far from
    the median, and with a small budget for its rows and columns, the default is Newton steps
    (:class:`~tacita.linear_model.NewtonDescent`).

    Args:
        quantile: q in (0, 1).
        alpha: L2 penalty >= 0: :math:`\frac{\alpha}{2} \lVert w \rVert^2` beside the sum of losses. scikit-learn has an
            L1 penalty here.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((20_000, 2)); y = X @ [1.0, 2.0] + rng.standard_normal(20_000)
        >>> model = PrivateQuantileRegressor(
        ...     epsilon=1.0, delta=1e-6, quantile=0.8, data_norm=3.0, target_range=(-6.0, 6.0)).fit(X, y)
        >>> bool(0.77 < (y <= model.predict(X)).mean() < 0.83)
        True
    """

    quantile: float = 0.5

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.inside("quantile", self.quantile)

    @property
    def _max_derivative(self) -> float:
        return max(self.quantile, 1 - self.quantile)

    def _solver(self, size: float) -> rules.SolverName:
        return rules.chosen_solver(self.solver, rules.quantile_solver(size, self.quantile))

    def _curvatures(self) -> Sequence[float]:
        return rules.QUANTILE_CURVATURES

    def _scaled_loss(self, target_scale: float, solver: rules.SolverName) -> tuple[OutputLoss, float]:
        width = rules.FINE_WIDTH if solver == "preconditioned" else rules.WIDTH
        return QuantileLoss(self.quantile, width), target_scale
