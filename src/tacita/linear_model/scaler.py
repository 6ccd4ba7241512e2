"""A private standard scaler: the mean and the spread of every column, each a bounded sum with noise."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacita.accounting import NeighboringRelation
from tacita.linear_model import rules
from tacita.linear_model.base import PrivateEstimator
from tacita.linear_model.clamped_rows import ClampedRows, by_column, declared_scale
from tacita.linear_model.fitting import bounded_sum, released_mean
from tacita.linear_model.purchases import buy_scales

SCALES = 0.3  # share of mu^2 for the histograms of column sizes
LEAST_VARIANCE = 1e-4  # of the square of a column's scale: what noise may leave of a variance
# What is taken from each square, and the most that u^2 + (u^2 - shift)^2 then is: docs/derivations/linear-models.md, 3.
SQUARES: dict[NeighboringRelation, tuple[float, float]] = {"zero_out_one": (0.0, 2.0), "replace_one": (1.0, 1.0)}


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateStandardScaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    r"""Standardise columns by means and variances that were released under (epsilon, delta)-differential privacy.

    A noisy histogram of every column gives its scale B, unless ``column_scale`` declares it. Entries are clamped to
    [-B, B]. The sum of the vectors of :math:`u_j = x_j / B_j` and :math:`u_j^2` is released once. A row that is zeroed
    out moves it by at most :math:`\sqrt{2 d}` and one that is replaced by at most :math:`2 \sqrt d`.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together; the number of rows is public. Rows
    that are transformed are not protected by it: pass them on to a private model alone.

    Args:
        epsilon, delta: The budget of a fit. ``fit`` raises where one is missing.
        rho: The budget in zero-concentrated privacy, in place of epsilon. delta is still what epsilon is stated at.
        column_scale: Public sizes of columns, a number or (columns,); larger entries are clamped. Bought if ``None``.
        neighboring_relation: "zero_out_one" or "replace_one".
        privacy_unit: What one row is, for the statement.
        ledger: The ledger that pays; ``None`` makes one with epsilon as its cap. To share one with a model in a
            pipeline, give it a ``filter_order``, because the model's settings are fixed after the scaler's release.
        insecure_seed: For tests: noise from this seed. The statement then says that nothing is private.

    Attributes:
        mean_, var_, scale_: As in scikit-learn, (columns,).
        column_scale_: B, (columns,).
        ledger_: The ledger that paid; ``None`` in a copy that was unpickled.
        statement_: What is guaranteed, in words.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scaler = PrivateStandardScaler(epsilon=1.0, delta=1e-6).fit(5 + 2 * rng.standard_normal((20_000, 2)))
        >>> bool(abs(scaler.mean_ - 5).max() < 0.2), bool(abs(scaler.scale_ - 2).max() < 0.2)
        (True, True)
    """

    column_scale: Any = None

    def fit(self, X: Any, y: Any = None) -> Any:
        """Release the mean and the variance of each column of ``X``, (rows, columns), dense.

        A row that holds NaN or an infinity contributes nothing, which is as if it were zeros.

        Raises:
            ValueError: The budget is missing, delta is not below 1 / rows, or a setting is wrong.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        self._check_privacy()
        rows = np.asarray(self._numbers(X))
        columns = rows.shape[1]
        declared = declared_scale(self.column_scale, columns)
        scales = 0.0 if declared is not None else SCALES
        paying = self._paying(len(rows), scales=scales, moments=1.0 - scales)
        for_scales = paying.register(paying.budget.scales_event(columns), 1, "bounds") if scales else None
        shift, most = SQUARES[paying.budget.relation]
        norm = math.sqrt(most * columns)
        for_moments = paying.plan(bounded_sum(norm), paying.budget.moments)
        if for_scales is None:
            self.column_scale_ = np.array(declared, np.float64)
        else:
            found = buy_scales(for_scales, by_column(rows), paying.randomness, rules.MOST)
            self.column_scale_ = np.array([found[str(j)] for j in range(columns)])
        rows_and_squares = ClampedRows(rows, self.column_scale_, shift=shift)
        released, _ = released_mean(paying, for_moments, rows_and_squares)
        first, second = released[:columns].clip(-1, 1), (released[columns:] + shift).clip(0, 1)
        self.mean_ = first * self.column_scale_
        self.var_ = np.maximum(second - first**2, LEAST_VARIANCE) * self.column_scale_**2
        self.scale_ = np.sqrt(self.var_)
        self._said(paying, [] if declared is not None else ["column_scale (bought)"])
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return ``(X - mean_) / scale_``, (rows, columns). It is as private as ``X`` is."""
        check_is_fitted(self, "scale_")
        rows = self._numbers(X, reset=False)
        return ((rows - self.mean_) / self.scale_).astype(rows.dtype)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Return ``X * scale_ + mean_``, (rows, columns)."""
        check_is_fitted(self, "scale_")
        rows = np.asarray(X)
        return rows * self.scale_ + self.mean_
