"""Private principal components: the eigenvectors of second moments that were released once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacita import _validate
from tacita.linear.row_blocks import as_row_blocks
from tacita.linear.source import table_rows
from tacita.linear_model import rules
from tacita.linear_model.base import PrivateEstimator
from tacita.linear_model.fitting import released_moments, warn_of_offsets
from tacita.linear_model.purchases import buy_scales


@dataclass(eq=False, repr=False, kw_only=True)
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):
    r"""Principal components under (epsilon, delta)-differential privacy, from one release of second moments.

    Rows and a constant, :math:`(x / R, 1) / \sqrt 2` with R = ``data_norm``, are clipped to norm 1, and the matrix of
    their second moments is released once (Dwork, Talwar, Thakurta and Zhang, 2014). Means and covariances are read from
    it, and the components are eigenvectors of the covariance.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together; the number of rows is public. Nothing
    has to be true of the data: longer rows are clipped. Rows that are transformed are not protected by it.

    Args:
        epsilon, delta, rho, neighboring_relation, privacy_unit, ledger, insecure_seed: As in
            :class:`PrivateStandardScaler`.
        n_components: Number of components, at most that of columns, which ``None`` stands for.
        data_norm: A public guess of how long rows are; rows may be longer. If it is ``None``, it is bought. The noise
            is in proportion to its square: take columns to the same scale first, with means near 0.

    Attributes:
        components_, mean_, explained_variance_, explained_variance_ratio_, n_components_: As in scikit-learn.
        ledger_: The ledger that paid; ``None`` in a copy that was unpickled.
        statement_: What is guaranteed, in words.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((20_000, 3)) * [3.0, 1.0, 0.3]
        >>> model = PrivatePCA(epsilon=1.0, delta=1e-6, n_components=1, data_norm=6.0).fit(X)
        >>> model.transform(X).shape, bool(abs(model.components_[0, 0]) > 0.99)
        ((20000, 1), True)
    """

    n_components: int | None = None
    data_norm: float | None = None

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit to the rows of ``X``, (rows, columns), dense. A row that holds NaN or an infinity contributes nothing.

        Raises:
            ValueError: The budget is missing, delta is not below 1 / rows, or a setting is wrong.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        self._check_privacy()
        if self.data_norm is not None:
            _validate.positive("data_norm", self.data_norm)
        table = as_row_blocks(self._numbers(X))
        columns = table.shape[1]
        kept = columns if self.n_components is None else _validate.count("n_components", self.n_components)
        if kept > columns:
            raise ValueError(f"n_components must be at most the number of columns, {columns}, got {kept}.")
        scales = rules.SCALES if self.data_norm is None else 0.0
        paying = self._paying(table.shape[0], scales=scales, moments=1.0 - scales)
        for_scales = paying.register(paying.budget.scales_event(1), 1, "bounds") if scales else None
        planned = paying.plan_moments()
        norm = float(self.data_norm or 1.0)
        if for_scales is not None:
            lengths = {"rows": table.norms(torch.ones(columns, dtype=torch.float64), 0.0).numpy()}
            norm = buy_scales(for_scales, lengths, paying.randomness, rules.QUANTILE)["rows"]
        source = table_rows(table, scale=2**-0.5 / norm, intercept=2**-0.5)
        moments, noise_std = released_moments(paying, planned, source)
        warn_of_offsets(moments, noise_std, columns)
        found = 2 * moments.numpy()  # of (x / R, 1), where the last entry is the share of rows that count
        found /= max(found[-1, -1], 1 / paying.num_records)
        mean = found[-1, :-1]
        values, vectors = np.linalg.eigh(found[:-1, :-1] - np.outer(mean, mean))
        variances = np.maximum(values[::-1], 0.0) * norm**2
        signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), range(columns)])  # the largest entry is positive
        self.components_ = (vectors * signs).T[::-1][:kept]
        self.mean_, self.n_components_ = mean * norm, kept
        self.explained_variance_ = variances[:kept]
        self.explained_variance_ratio_ = self.explained_variance_ / (variances.sum() or 1.0)
        self._said(paying, [] if for_scales is None else ["data_norm (bought)"])
        return self

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def transform(self, X: Any) -> np.ndarray:
        """Return ``(X - mean_) @ components_.T``, (rows, components). It is as private as ``X`` is."""
        check_is_fitted(self, "components_")
        rows = np.asarray(self._numbers(X, reset=False))
        return ((rows - self.mean_) @ self.components_.T).astype(rows.dtype)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Return ``X @ components_ + mean_``, (rows, columns)."""
        check_is_fitted(self, "components_")
        return np.asarray(X) @ self.components_ + self.mean_
