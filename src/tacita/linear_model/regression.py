"""Regressions from released second moments: private least squares, with or without a ridge."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.gradients.row_blocks import RowBlocks
from tacita.ledger import Ledger
from tacita.linear_model import rules
from tacita.linear_model.base import LinearPlan, PrivateLinearModel
from tacita.linear_model.fitting import fit_by_moments


class PrivateRegressor(RegressorMixin, PrivateLinearModel):
    """What the regressors share: targets in units of their scale, and predictions."""

    target_range: tuple[float, float] | None

    def _range(self) -> tuple[float, float] | None:
        """Return the middle and half the width of the declared range of targets; ``None`` if it is bought."""
        if self.target_range is None:
            return None
        low, high = (float(end) for end in self.target_range)
        return (low + high) / 2, _validate.positive("target_range[1] - target_range[0]", high - low) / 2

    def _read(self, X: Any, y: Any) -> tuple[RowBlocks, np.ndarray]:
        """Return the rows and the targets of a fit, float64; both may hold NaN."""
        self._check_privacy()
        self._check_settings()
        table = self._table(X, reset=True)
        targets = np.asarray(column_or_1d(y, warn=True))
        if targets.dtype.kind not in "fiub":
            raise ValueError(f"Unknown label type: y must hold numbers, got dtype {targets.dtype}.")
        if len(targets) != table.shape[0]:
            raise ValueError(f"y must have one target for each of {table.shape[0]} rows, got {len(targets)}.")
        with np.errstate(all="ignore"):  # a warning would tell what a target is
            return table, targets.astype(np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted targets, (rows,)."""
        return self._outputs(X)[:, 0]


class PrivateRidge(PrivateRegressor):
    r"""Ridge regression under (epsilon, delta)-differential privacy, from one release of second moments (AdaSSP).

    Rows and targets, scaled and joined, are clipped to norm 1, and the matrix of their second moments is released once.
    The solution is computed from it, with a further ridge where the noise needs one:
    :func:`~tacita.methods.adaptive_ridge`.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together, by the ledger ``ledger_``; the number
    of rows is public. Nothing has to be true of the data: longer rows and larger targets are clipped.

    Args:
        epsilon, delta: The budget of a fit. ``fit`` raises where one is missing.
        alpha: L2 penalty >= 0, as in scikit-learn: :math:`\alpha \lVert w \rVert^2` beside the sum of squares.
        fit_intercept: Whether the model has a constant.
        data_norm: A public guess of how long rows are; rows may be longer. If it is ``None``, it is bought.
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

    steps = None
    max_grad_norm = None

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        data_norm: float | None = None,
        target_range: tuple[float, float] | None = None,
        neighboring_relation: NeighboringRelation = "zero_out_one",
        privacy_unit: str = "one row",
        ledger: Ledger | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to the rows of ``X``, (rows, columns), dense or CSR, and the targets ``y``, (rows,).

        A row whose features or target hold NaN or an infinity contributes nothing.

        Raises:
            ValueError: epsilon or delta is missing, delta is not below 1 / rows, or a setting is wrong.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        table, targets = self._read(X, y)
        declared = self._range()
        bought = (self.data_norm is None) + (declared is None)
        scales = rules.SCALES if bought else 0.0
        paying = self._paying(table.shape[0], scales=scales, moments=1.0 - scales)
        for_scales = paying.register(paying.budget.scales_event(bought), 1, "bounds") if bought else None
        session = paying.moments_session(table.shape[1] + self.fit_intercept + 1)
        data_norm, size = self._bought_scales(paying, for_scales, table, targets if declared is None else None)
        centre, size = declared or (0.0, size)
        scaled = self._scaled(table, data_norm)
        with np.errstate(all="ignore"):  # a warning would tell what a target is
            targets = (targets - centre) / size
        found = fit_by_moments(paying, session, scaled, targets, self._penalty(paying, scaled))
        self.coef_ = (found["weight"][0] * scaled.scale).numpy() * size
        constant = float(found["bias"][0]) * scaled.constant if scaled.constant else 0.0
        self.intercept_ = constant * size + centre
        self.plan_ = LinearPlan("moments", 0, 0.0, 0.0, data_norm, size)
        self._said(
            paying, [f"{name} (bought)" for name in ("data_norm", "target_range") if getattr(self, name) is None]
        )
        return self


class PrivateLinearRegression(PrivateRegressor):
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

    alpha = 0.0
    steps = None
    max_grad_norm = None
    fit = PrivateRidge.fit

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        fit_intercept: bool = True,
        data_norm: float | None = None,
        target_range: tuple[float, float] | None = None,
        neighboring_relation: NeighboringRelation = "zero_out_one",
        privacy_unit: str = "one row",
        ledger: Ledger | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self._keep(locals())
