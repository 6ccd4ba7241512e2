"""The base of the estimators: what is given or bought, what pays, what is said; each estimator adds a loss.

They keep scikit-learn's conventions, and one of ours: epsilon (or rho) and delta have no default value that would
serve, and ``fit`` raises where they are missing. What a row holds never raises; only shapes and dtypes do.
"""

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from tacita import _validate
from tacita.accounting import NeighboringRelation
from tacita.errors import LedgerError
from tacita.ledger import Ledger, Session, statement
from tacita.ledger.text_lines import names_in_words
from tacita.linear.row_blocks import RowBlocks, as_row_blocks
from tacita.linear_model import rules
from tacita.linear_model.answers import read_weights
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.fitting import Paying, ScaledTable
from tacita.linear_model.purchases import HIGHEST, LOWEST, buy_scales
from tacita.random import Randomness

ONE_ROW = "one row"  # the unit of which nothing is said
RELATIONS = ("zero_out_one", "replace_one")
GOOD_OF_200_ROWS = 20.0  # epsilon
LEAST_NORM, MOST_NORM = 2.0**LOWEST, 2.0 ** (HIGHEST + 1)  # of rows, declared or bought: sums of float32 stay finite
LONG = 100.0  # a row norm over that of a row of ones, from which on scaling is advised
MOST_CLIP = 1e25  # of gradients in scaled units, whose rows are no longer than 1: the same


class LedgerLeftBehind:
    """Stands for the ledger of an estimator that was copied by pickling: a copy of it would not see what is spent.

    It is not ``None``, with which a fit would be paid from a new ledger, and the one that was handed in never know.
    """

    def __repr__(self) -> str:
        return "LedgerLeftBehind()"


ROWS_STAND_ALONE = (
    "Each row that fit was given, its label, its weight and whether it is there must come from one record, and from "
    "numbers that are public or that this ledger paid for. An ordinary scaler, imputer or encoder that was fitted on "
    "the rows, balanced weights, folds by label and rows drawn with replacement let one record change others: none of "
    "that is in epsilon."
)


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """What every estimator has: the privacy parameters, the ledger, the statement, and the checks of a table.

    Fields are parameters, which scikit-learn reads from the signature of ``__init__``; subclasses add theirs.
    """

    epsilon: float | None = None
    delta: float | None = None
    _: KW_ONLY
    rho: float | None = None
    neighboring_relation: NeighboringRelation = "zero_out_one"
    privacy_unit: str = ONE_ROW
    ledger: Ledger | None = None
    insecure_seed: int | None = None

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy that is paid from the same ledger, if one was handed in."""
        given = self.get_params(deep=False)
        kept: dict[str, Any] = {
            name: value if name == "ledger" else clone(value, safe=False) for name, value in given.items()
        }
        return type(self)(**kept)

    def __getstate__(self) -> Any:
        """Return the state without ledgers: a copy, by pickling or ``copy``, would not see what is spent."""
        state: Any = super().__getstate__()
        left = {"ledger": LedgerLeftBehind(), "ledger_": None}
        return {name: left[name] if name in left and value is not None else value for name, value in state.items()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.insecure_seed is None
        return tags

    def _poor_of_200_rows(self) -> bool:
        """Return whether the score on so few rows, by which scikit-learn's checks judge a model, may be poor."""
        return not isinstance(self.epsilon, Real) or self.epsilon < GOOD_OF_200_ROWS  # checked in fit alone

    def _check_privacy(self) -> None:
        """Raise ``ValueError`` if the budget is missing, given twice, or no number."""
        if self.delta is None or (self.epsilon is None and self.rho is None):
            raise ValueError(
                f"epsilon and delta must be given: {type(self).__name__}(epsilon=1.0, delta=1e-6), say, with delta "
                "well below 1 / (number of rows), or rho and delta. tacita never chooses them."
            )
        if self.epsilon is not None and self.rho is not None:
            raise ValueError(f"epsilon and rho must not both be given, got {self.epsilon} and {self.rho}.")
        _validate.positive(*(("rho", self.rho) if self.epsilon is None else ("epsilon", self.epsilon)))  # type: ignore[arg-type]
        if self.neighboring_relation not in RELATIONS:
            raise ValueError(
                f"neighboring_relation must be one of {', '.join(RELATIONS)}, got {self.neighboring_relation!r}: the "
                "number of rows is public here, so whether a record is present cannot be protected."
            )
        _validate.delta("delta", self.delta)

    def _paying(self, num_records: int, **shares: float) -> Paying:
        """Return what pays for a fit of ``num_records`` rows, with these shares of the budget."""
        self._check_privacy()
        assert self.delta is not None, "it was just checked"
        delta = _validate.delta_below("delta", self.delta, num_records)
        relation = self.neighboring_relation
        budget = FitBudget(epsilon=self.epsilon, delta=delta, rho=self.rho, relation=relation, **shares)
        ledger = self.ledger
        if ledger is None:
            ledger = Ledger(
                neighboring_relation=self.neighboring_relation,
                privacy_unit=self.privacy_unit,
                max_epsilon=budget.total_epsilon,
                max_delta=delta,
            )
        elif isinstance(ledger, LedgerLeftBehind):
            raise LedgerError(
                "the ledger of this estimator was left behind when it was copied by pickling (n_jobs=, copy.deepcopy), "
                "and a fit would not be charged to it: fit in threads (with joblib.parallel_config(backend="
                "'threading'): ...) or without n_jobs, or hand a ledger in by set_params(ledger=)."
            )
        elif not isinstance(ledger, Ledger):
            raise TypeError(f"ledger must be a Ledger, got {type(ledger).__name__}.")
        elif ledger.neighboring_relation != self.neighboring_relation:
            raise ValueError(
                f"neighboring_relation must be that of the ledger, {ledger.neighboring_relation}, got "
                f"{self.neighboring_relation}."
            )
        elif self.privacy_unit not in (ONE_ROW, ledger.privacy_unit):
            raise ValueError(
                f"privacy_unit must be that of the ledger, {ledger.privacy_unit!r}, got {self.privacy_unit!r}."
            )
        self.ledger_ = ledger  # also of a fit that raises after a release
        seed = self.insecure_seed
        randomness = (
            Randomness.system()
            if seed is None
            else Randomness.insecure(_validate.count("insecure_seed", seed, at_least=0))
        )
        named = {name: repr(value) for name, value in self.get_params().items() if name != "ledger"}
        return Paying(ledger, budget, num_records, randomness, {"estimator": type(self).__name__, **named})

    def _size(self, table: RowBlocks) -> float:
        r"""Return :math:`\mu n / d`, a public number: how much the budget says about each weight."""
        assert self.delta is not None, "it was just checked"
        relation = self.neighboring_relation
        budget = FitBudget(epsilon=self.epsilon, delta=self.delta, rho=self.rho, relation=relation)
        return budget.mu * table.shape[0] / table.shape[1]

    def _said(self, paying: Paying, chosen: list[str]) -> None:
        """Set ``statement_``."""
        ledger, delta, rows = paying.ledger, paying.budget.delta, paying.num_records
        words = statement(ledger, delta, chosen_by_tacita=chosen, caveats=[ROWS_STAND_ALONE], num_units=rows)
        self.statement_ = str(words)

    def _table(self, X: Any, *, reset: bool) -> RowBlocks:
        """Return the rows of ``X``, which may hold NaN and infinities, and remember or check their columns."""
        return as_row_blocks(self._numbers(X, reset=reset, accept_sparse="csr"))

    def _numbers(self, X: Any, **more: Any) -> Any:
        """Return ``X`` as scikit-learn reads it, float64 or float32, without its warnings of what a row holds.

        Raises:
            ValueError: ``X`` is no table of numbers. scikit-learn's message would quote entries.
        """
        with np.errstate(all="ignore"):
            try:
                return validate_data(self, X, dtype=[np.float64, np.float32], ensure_all_finite=False, **more)
            except ValueError:
                if why := _no_table(X):
                    raise ValueError(why) from None
                raise


def _no_table(X: Any) -> str:
    """Say why ``X`` is no table of numbers, without a word of what it holds; empty if it is one."""
    if _holds_numbers(X):
        axes = getattr(X, "ndim", 0) or np.ndim(X)
        words = (
            f"Expected 2D array, got {axes}D array instead. Reshape your data: X.reshape(-1, 1) if it has one column, "
            "X.reshape(1, -1) if it is one row."
        )
        return words if axes < 2 else ""
    texts = [str(name) for name in getattr(X, "columns", ()) if not _holds_numbers(X[name])]
    where = f"; columns with something else: {names_in_words(texts)}" if texts else ""
    return (
        f"X must hold numbers alone{where}. Turn texts into numbers first: "
        "sklearn.preprocessing.OneHotEncoder(categories=[...]), say, with categories that are public."
    )


def _holds_numbers(X: Any) -> bool:
    try:
        np.asarray(X.data if hasattr(X, "tocsr") else X, np.float64)
    except (TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class LinearPlan:
    """What a fit was planned to do, from public numbers and the settings alone.

    Attributes:
        method: The solver, "preconditioned", "newton" or "momentum"; "moments" where second moments give the solution.
        steps: Gradients asked for; 0 with "moments".
        max_grad_norm: Clipping threshold, in scaled units; 0 with "moments".
        damping: lambda of the steps; 0 with "moments" and with "momentum".
        data_norm: The row norm that was declared or bought.
        target_scale: What targets were divided by; 1 for classes.
    """

    method: str
    steps: int
    max_grad_norm: float
    damping: float
    data_norm: float
    target_scale: float


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearModel(PrivateEstimator):
    """What every linear model has: scales given or bought, then a fit by descent or by second moments."""

    alpha = 0.0
    fit_intercept: bool = True
    data_norm: float | None = None
    max_sample_weight: float | None = None
    coef_: np.ndarray = field(init=False)
    intercept_: Any = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _weights(self, sample_weight: Any, num_rows: int) -> np.ndarray | None:
        """Return the weights of rows in units of ``max_sample_weight``, (rows,); ``None`` if none were given."""
        if sample_weight is None:
            return None
        if self.max_sample_weight is None:
            raise ValueError(
                "sample_weight needs max_sample_weight, a public bound of the weights: larger ones are cut to it. "
                f"Write {type(self).__name__}(max_sample_weight=...)."
            )
        return read_weights(sample_weight, num_rows, self.max_sample_weight)

    def _scaled(self, table: RowBlocks, data_norm: float, weights: np.ndarray | None) -> ScaledTable:
        """Return the table in units in which a row of norm ``data_norm``, constant included, has norm 1."""
        if data_norm > LONG * table.shape[1] ** 0.5:
            warnings.warn(
                f"rows are about {data_norm:.2g} long (data_norm), and the noise is the same for all columns: those of "
                "size 1 drown in it. Scale the columns first, by public numbers or with PrivateStandardScaler.",
                stacklevel=3,
            )
        constant = None if not self.fit_intercept else 2**-0.5
        scale = (1.0 if constant is None else constant) / data_norm
        largest = 1.0 if weights is None else float(self.max_sample_weight or 1.0)
        scales = torch.full((table.shape[1],), scale, dtype=torch.float64)
        return ScaledTable(table, scales, constant, weights, largest)

    def _penalty(self, paying: Paying, table: ScaledTable) -> float:
        r"""Return alpha of the sum of losses in units of scaled rows and of their mean."""
        return self.alpha * float(table.scale[0]) ** 2 / (paying.num_records * table.largest_weight)

    def _bought_scales(
        self, paying: Paying, session: Session | None, table: RowBlocks, targets: np.ndarray | None
    ) -> tuple[float, float]:
        """Return the row norm and the scale of the targets: what was declared, else quantiles of noisy histograms."""
        if session is None:
            return float(self.data_norm or 1.0), 1.0
        columns = torch.ones(table.shape[1], dtype=torch.float64)
        values = {} if self.data_norm is not None else {"rows": table.norms(columns, 0.0).numpy()}
        if targets is not None:
            values["targets"] = targets
        found = buy_scales(session, values, paying.randomness, rules.QUANTILE)
        return found.get("rows", float(self.data_norm or 1.0)), found.get("targets", 1.0)

    def _unscaled(self, found: Mapping[str, torch.Tensor], table: ScaledTable) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight, (outputs, columns), and the bias, (outputs,), in the units of the features."""
        weight = (found["weight"] * table.scale).numpy()
        bias = found["bias"].numpy() * table.constant if table.constant else np.zeros(len(weight))
        return weight, bias

    def _check_settings(self) -> None:
        if self.data_norm is not None:
            norm = _validate.positive("data_norm", self.data_norm)
            if not LEAST_NORM <= norm <= MOST_NORM:
                raise ValueError(
                    f"data_norm must be between {LEAST_NORM:.2g} and {MOST_NORM:.2g}, got {norm:g}: sums of other rows "
                    "may overflow. Scale the columns by public numbers."
                )
        _validate.non_negative("alpha", self.alpha)
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(f"fit_intercept must be True or False, got {self.fit_intercept!r}.")
        if self.max_sample_weight is not None:
            _validate.positive("max_sample_weight", self.max_sample_weight)

    def _outputs(self, X: Any) -> np.ndarray:
        """Return the outputs of the fitted model, (rows, outputs), float64."""
        check_is_fitted(self, "coef_")
        table = self._table(X, reset=False)
        weight = np.atleast_2d(self.coef_)
        rows = table.dense(slice(0, table.shape[0])).double().nan_to_num().numpy()
        return rows @ weight.T + np.atleast_1d(self.intercept_)


@dataclass(eq=False, repr=False, kw_only=True)
class DescentModel(PrivateLinearModel):
    """What the models share that are fitted by steps on clipped gradients."""

    alpha: float = 0.0
    steps: int | None = None
    max_grad_norm: float | None = None
    solver: str | None = None

    def _check_settings(self) -> None:
        super()._check_settings()
        rules.chosen_solver(self.solver)
        if self.steps is not None:
            _validate.count("steps", self.steps)
        if self.max_grad_norm is not None:
            clip = _validate.threshold("max_grad_norm", self.max_grad_norm)
            if clip > MOST_CLIP:
                raise ValueError(f"max_grad_norm must be at most {MOST_CLIP:g}, got {clip:g}: sums may overflow.")
