"""A private mean of columns: found roughly first, then measured around what was found."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacita.linear_model.base import PrivateEstimator
from tacita.linear_model.clamped_rows import ClampedRows, by_column, declared_scale
from tacita.linear_model.fitting import bounded_sum, released_mean
from tacita.linear_model.purchases import buy_widths

COLUMN_SIZES = 0.15  # share of mu^2 for the histograms of column sizes
CENTER = 0.15  # ... of what is left, for the first mean
WIDTHS = 0.2  # ... and for the histograms of distances from it


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateMean(PrivateEstimator):
    r"""The mean of each column under (epsilon, delta)-differential privacy.

    A noisy histogram of every column gives a width B at which clamping and noise cost little, unless ``column_scale``
    declares it, and a noisy mean of entries clamped to [-B, B] gives a center c. A noisy histogram of the distances
    from c gives a second width R, and the mean of :math:`\mathrm{clamp}(x - c, -R, R)`, with noise, is added to c. So
    the noise is in proportion to the spread of a column, not to its size, and R grows with the number of rows, as heavy
    tails need.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together; the number of rows is public. Nothing
    has to be true of the data. ``noise_std_`` leaves out what clamping costs.

    Args:
        epsilon, delta: The budget of a fit. ``fit`` raises where one is missing.
        rho: The budget in zero-concentrated privacy, in place of epsilon. delta is still what epsilon is stated at.
        column_scale: Public sizes of columns, a number or (columns,); larger entries are clamped when the center is
            sought. Bought if ``None``.
        neighboring_relation: "zero_out_one" or "replace_one".
        privacy_unit: What one row is, for the statement.
        ledger: The ledger that pays; ``None`` makes one with epsilon as its cap.
        insecure_seed: For tests: noise from this seed. The statement then says that nothing is private.

    Attributes:
        mean_: The means, (columns,).
        noise_std_: The standard deviation of their noise, (columns,), in the units of the columns.
        center_, width_: c and R, (columns,).
        ledger_: The ledger that paid; ``None`` in a copy that was unpickled.
        statement_: What is guaranteed, in words.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> mean = PrivateMean(epsilon=1.0, delta=1e-6).fit(1000 + 2 * rng.standard_normal((20_000, 2)))
        >>> bool(abs(mean.mean_ - 1000).max() < 0.1), bool(mean.noise_std_.max() < 0.02)
        (True, True)
    """

    column_scale: Any = None

    def fit(self, X: Any, y: Any = None) -> Any:
        """Release the mean of each column of ``X``, (rows, columns), dense.

        A row that holds NaN or an infinity contributes nothing, which is as if it stood at the center.

        Raises:
            ValueError: The budget is missing, delta is not below 1 / rows, or a setting is wrong.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        rows = np.asarray(self._numbers(X))
        columns = rows.shape[1]
        declared = declared_scale(self.column_scale, columns)
        paying = self._paying(len(rows), scales=COLUMN_SIZES if declared is None else 0.0)
        budget = paying.budget
        rest, norm = budget.rest, math.sqrt(columns)  # of a row whose entries are in [-1, 1]
        center, widths, last = CENTER * rest, WIDTHS * rest, (1 - CENTER - WIDTHS) * rest
        for_scales = paying.register(budget.scales_event(columns), 1, "bounds") if declared is None else None
        for_center = paying.plan(bounded_sum(norm), center)
        for_widths = paying.register(budget.scales_event(columns, widths), 1, "bounds")
        for_mean = paying.plan(bounded_sum(norm), last)
        if declared is not None or for_scales is None:
            scale = np.asarray(declared)
        else:
            noise = budget.noise_multiplier(center) * norm
            found = buy_widths(for_scales, by_column(rows), paying.randomness, noise)
            scale = np.array([found[str(j)] for j in range(columns)])
        first, _ = released_mean(paying, for_center, ClampedRows(rows, scale))
        self.center_ = first.clip(-1, 1) * scale
        with np.errstate(all="ignore"):  # a warning would tell what a row holds
            distances = by_column(rows.astype(np.float64) - self.center_)
        noise = budget.noise_multiplier(last) * norm
        found = buy_widths(for_widths, distances, paying.randomness, noise)
        self.width_ = np.array([found[str(j)] for j in range(columns)])
        within = ClampedRows(rows, self.width_, center=self.center_)
        moved, noise_std = released_mean(paying, for_mean, within)
        self.mean_ = self.center_ + moved * self.width_
        self.noise_std_ = noise_std * self.width_
        self._said(paying, [] if declared is not None else ["column_scale (bought)"])
        return self
