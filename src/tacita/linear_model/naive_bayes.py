"""Private Gaussian naive Bayes: sizes, means and variances of the classes, from one bounded sum with noise."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from tacita.linear.row_blocks import RowBlocks
from tacita.linear_model.answers import read_labels
from tacita.linear_model.clamped_rows import ClampedRows, by_column, declared_scale
from tacita.linear_model.classes import WithClasses
from tacita.linear_model.fitting import bounded_sum, released_mean
from tacita.linear_model.purchases import buy_scales
from tacita.linear_model.rules import MOST
from tacita.linear_model.scaler import LEAST_VARIANCE, SCALES, SQUARES


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateGaussianNB(WithClasses):
    r"""Gaussian naive Bayes under (epsilon, delta)-differential privacy.

    Each column has a scale B, declared or bought. With :math:`u_j = \mathrm{clamp}(x_j / B_j, -1, 1)` a row adds the
    vector :math:`(1, u, u^2 - s)` to the sums of its own class, whose norm is at most :math:`\sqrt{1 + 2 d}` (s = 0;
    :math:`\sqrt{1 + d}` and s = 1 under replace_one). The sums of all classes are one release.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together, by the ledger ``ledger_``; the number
    of rows is public. Nothing has to be true of the data: longer vectors are clipped.

    Args:
        epsilon, delta, rho, neighboring_relation, privacy_unit, ledger, insecure_seed: As in
            :class:`PrivateStandardScaler`.
        classes: The labels, given or bought, as in :class:`PrivateLogisticRegression`.
        column_scale: Public sizes of columns, a number or (columns,); larger entries are clamped. Bought if ``None``.

    Attributes:
        classes_: The labels.
        class_prior_: Their shares of the rows, (classes,).
        theta_, var_: Means and variances, (classes, columns).
        column_scale_: B, (columns,).
        ledger_: The ledger that paid; ``None`` in a copy that was unpickled.
        statement_: What is guaranteed, in words.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 2, 20_000); X = rng.standard_normal((20_000, 3)) + 2 * y[:, None]
        >>> model = PrivateGaussianNB(epsilon=1.0, delta=1e-6, classes=[0, 1], column_scale=6.0).fit(X, y)
        >>> bool(model.score(X, y) > 0.94), bool(abs(model.theta_[1] - 2).max() < 0.2)
        (True, True)
    """

    column_scale: Any = None

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to the rows of ``X``, (rows, columns), dense, with one label each in ``y``.

        A row that holds NaN or an infinity, and a label outside ``classes``, contribute nothing.

        Raises:
            ValueError: The budget is missing, delta is not below 1 / rows, a setting is wrong, or the classes are not
                among the labels, or too rare to be bought.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        self._check_privacy()
        rows = np.asarray(self._numbers(X))
        count, columns = rows.shape
        labels, declared = read_labels(y, count, self.classes), declared_scale(self.column_scale, columns)
        shares = {"scales": SCALES if declared is None else 0.0, **self._class_shares()}
        paying = self._paying(count, **shares, moments=1.0 - sum(shares.values()))
        budget = paying.budget
        self._check_classes(budget, count)
        for_scales = paying.register(budget.scales_event(columns), 1, "bounds") if declared is None else None
        for_labels = self._plan_classes(paying)
        shift, most = SQUARES[budget.relation]
        for_sums = paying.plan(bounded_sum(math.sqrt(1 + most * columns)), budget.moments)
        numbers = self._class_numbers(paying, for_labels, y, labels)
        if for_scales is None:
            self.column_scale_ = np.array(declared, np.float64)
        else:
            found = buy_scales(for_scales, by_column(rows), paying.randomness, MOST)
            self.column_scale_ = np.array([found[str(j)] for j in range(columns)])
        numbers = np.where(np.isfinite(rows).all(axis=1), numbers, math.nan)
        by_class = _ByClass(ClampedRows(rows, self.column_scale_, shift=shift), numbers, len(self.classes_))
        sums, noise_std = released_mean(paying, for_sums, by_class)
        sums = sums.reshape(len(self.classes_), 1 + 2 * columns)
        share = np.maximum(sums[:, :1], noise_std)  # a class that the noise hides is taken to be as large as the noise
        first, second = (sums[:, 1 : 1 + columns] / share).clip(-1, 1), (sums[:, 1 + columns :] / share + shift)
        least = np.maximum(LEAST_VARIANCE, noise_std / share)  # what noise may leave of a variance
        self.theta_ = first * self.column_scale_
        self.var_ = np.maximum(second.clip(0, 1) - first**2, least) * self.column_scale_**2
        self.class_prior_ = share[:, 0] / share.sum()
        self._said(paying, [] if declared is not None else ["column_scale (bought)"])
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the classes' probabilities, (rows, classes); entries are clamped as in ``fit``."""
        check_is_fitted(self, "theta_")
        rows = np.nan_to_num(self._numbers(X, reset=False).astype(np.float64))
        rows = rows.clip(-self.column_scale_, self.column_scale_)[:, None, :]
        each = np.log(2 * math.pi * self.var_) + (rows - self.theta_) ** 2 / self.var_
        joint = np.log(self.class_prior_) - 0.5 * each.sum(axis=2)
        return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the classes' probabilities, (rows, classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class, (rows,)."""
        likeliest = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[likeliest]


class _ByClass(RowBlocks):
    """Rows (1, row) at the place of their class, zeros at the places of the others. Private."""

    def __init__(self, rows: RowBlocks, numbers: np.ndarray, classes: int) -> None:
        self._rows, self._numbers, self._classes = rows, numbers, classes
        self.shape = (rows.shape[0], classes * (1 + rows.shape[1]))
        self.dtype = torch.float64

    def _read(self, rows: slice | np.ndarray) -> torch.Tensor:
        own = torch.nn.functional.pad(self._rows.dense(rows), (1, 0), value=1.0)
        here = torch.from_numpy(self._numbers[rows])[:, None] == torch.arange(self._classes)
        return torch.where(here[:, :, None], own[:, None, :], 0.0).flatten(1)
