"""Classifiers: private logistic regression, and a private linear support vector machine."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacita.linear.losses import LogisticLoss, MultinomialLoss, OutputLoss, SquaredHingeLoss
from tacita.linear_model import rules
from tacita.linear_model.answers import read_labels
from tacita.linear_model.base import DescentModel, LinearPlan
from tacita.linear_model.classes import WithClasses
from tacita.linear_model.fitting import Descent


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(WithClasses, DescentModel, ABC):
    """What the linear classifiers share: scores, and labels of the largest score."""

    @abstractmethod
    def _loss(self, num_classes: int) -> OutputLoss:
        """Return the loss for this number of classes."""

    def _few_steps(self, size: float, solver: rules.SolverName) -> bool:
        r"""Return whether few steps do, by a public rule of :math:`\mu n / d`, ``size``."""
        return False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit to the rows of ``X``, (rows, columns), dense or CSR, with one label each in ``y``.

        The loss of a row is multiplied by its ``sample_weight``, at most ``max_sample_weight``. A row that holds NaN or
        an infinity, and a label outside ``classes``, contribute nothing.

        Raises:
            ValueError: The budget is missing, delta is not below 1 / rows, a setting is wrong, or no class was
                given and none is frequent enough to be bought, or a given class is not among many other labels.
            BudgetExceededError: The ledger's cap does not allow the fit.
        """
        self._check_privacy()
        self._check_settings()
        table = self._table(X, reset=True)
        labels, weights = read_labels(y, table.shape[0], self.classes), self._weights(sample_weight, table.shape[0])
        shares = {"scales": rules.SCALES if self.data_norm is None else 0.0, **self._class_shares()}
        solver = rules.chosen_solver(self.solver)
        shares["moments"] = rules.MATRICES[solver] * (1 - sum(shares.values()))
        paying = self._paying(table.shape[0], **shares)
        self._check_classes(paying.budget, table.shape[0])
        # The classes are not known yet. No event depends on their number: a gradient has one threshold for all classes.
        loss = self._loss(2 if self.classes is None else len(self.classes))
        rule = rules.descent_rule(
            solver=solver,
            max_derivative=loss.max_derivative,
            steps=self.steps,
            max_grad_norm=self.max_grad_norm,
            few=self._few_steps(self._size(table), solver),
        )
        budget = paying.budget
        for_scales = paying.register(budget.scales_event(1), 1, "bounds") if shares["scales"] else None
        for_labels = self._plan_classes(paying)
        plans = paying.plan_descent(rule)
        numbers = self._class_numbers(paying, for_labels, y, labels)
        data_norm, _ = self._bought_scales(paying, for_scales, table, None)
        scaled = self._scaled(table, data_norm, weights)
        loss = self._loss(max(2, len(self.classes_)))
        penalty = self._penalty(paying, scaled)
        found, damping = Descent(paying, plans, scaled, numbers, loss, rule, penalty).fit()
        self.coef_, self.intercept_ = self._unscaled(found, scaled)
        self.n_iter_ = rule.steps
        self.plan_ = LinearPlan(rule.solver, rule.steps, rule.max_grad_norm, damping, data_norm, 1.0)
        self._said(paying, rule.in_words())
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores of rows: (rows,) for two classes, positive for the second; else (rows, classes)."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of the largest score, (rows,)."""
        scores = self.decision_function(X)
        if len(self.classes_) == 1:
            return np.repeat(self.classes_, len(scores))
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]


class PrivateLogisticRegression(PrivateClassifier):
    r"""Logistic regression under (epsilon, delta)-differential privacy: two classes, or several (multinomial).

    Second moments of clipped rows are released once. Then full-batch gradients, clipped and noisy, are stepped with the
    inverse of those moments, and the last half of the iterates is averaged
    (:class:`~tacita.linear_model.PreconditionedDescent`). Other solvers release Hessians, or no matrix.

    Guarantee: everything that ``fit`` sets is (epsilon, delta)-private together, by the ledger ``ledger_``; the number
    of rows is public. Nothing has to be true of the data: longer rows are clipped.

    Args:
        epsilon, delta: The budget of a fit. ``fit`` raises where one is missing.
        rho: The budget in zero-concentrated privacy, in place of epsilon. delta is still what epsilon is stated at.
        alpha: L2 penalty >= 0: :math:`\frac{\alpha}{2} \lVert w \rVert^2` beside the sum of losses; 1 / C in
            scikit-learn.
        fit_intercept: Whether the model has a constant.
        classes: The labels. If they are ``None``, those that are frequent enough are bought.
            A row whose label is none of those given contributes nothing. If noisy counts show that many are such rows,
            and that one of the classes has none, ``fit`` raises.
        data_norm: A public guess of how long rows are; rows may be longer. If it is ``None``, it is bought.
        max_sample_weight: A public bound of the weights that ``fit`` is given; larger ones are cut to it.
        steps, max_grad_norm: Number and clipping threshold of the gradients, by a public rule if ``None``.
        solver: "preconditioned", "newton" (:class:`~tacita.linear_model.NewtonDescent`) or "momentum"
            (:class:`~tacita.linear_model.MomentumDescent`), by a public rule if ``None``.
        neighboring_relation: "zero_out_one" or "replace_one".
        privacy_unit: What one row is, for the statement.
        ledger: The ledger that pays; ``None`` makes one with epsilon as its cap.
        insecure_seed: For tests: noise from this seed. The statement then says that nothing is private.

    Attributes:
        coef_, intercept_: As in scikit-learn.
        classes_: The labels, sorted.
        n_iter_: Steps made.
        plan_: What was planned (:class:`LinearPlan`).
        ledger_: The ledger that paid; ``None`` in a copy that was unpickled.
        statement_: What is guaranteed, in words.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((2000, 3)); y = (X[:, 0] > 0).astype(int)
        >>> model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, classes=[0, 1], data_norm=2.0).fit(X, y)
        >>> bool(model.score(X, y) > 0.9), round(model.ledger_.epsilon(1e-6), 3)
        (True, 1.0)
    """

    def _loss(self, num_classes: int) -> OutputLoss:
        return LogisticLoss() if num_classes == 2 else MultinomialLoss(num_classes)

    def _few_steps(self, size: float, solver: rules.SolverName) -> bool:
        return rules.few_steps(size, solver)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, (rows, classes)."""
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:
            outputs = np.hstack([np.zeros_like(outputs), outputs])[:, : max(1, len(self.classes_))]
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities, (rows, classes)."""
        return np.log(self.predict_proba(X))


class PrivateLinearSVC(PrivateClassifier):
    r"""A linear support vector machine under (epsilon, delta)-differential privacy, with the squared hinge loss.

    Fitted as :class:`PrivateLogisticRegression` is, whose other parameters, attributes and guarantee it has. With
    several classes there is one output for each class against all others, and all share one clipping threshold.

    Args:
        alpha: L2 penalty >= 0: :math:`\frac{\alpha}{2} \lVert w \rVert^2` beside the sum of :math:`\max(0, 1 - s z)^2 /
            2`; 1 / (2 C) in scikit-learn. The constant is not penalised.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((2000, 3)); y = (X[:, 0] > 0).astype(int)
        >>> model = PrivateLinearSVC(epsilon=1.0, delta=1e-6, classes=[0, 1], data_norm=2.0).fit(X, y)
        >>> bool(model.score(X, y) > 0.9), round(model.ledger_.epsilon(1e-6), 3)
        (True, 1.0)
    """

    def _loss(self, num_classes: int) -> OutputLoss:
        return SquaredHingeLoss(num_classes)
