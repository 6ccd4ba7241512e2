"""The classes of a classifier: given, with noisy counts that show whether they are the labels, or bought."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from tacita.ledger import Ledger, Session
from tacita.linear_model import rules
from tacita.linear_model.answers import named_classes
from tacita.linear_model.base import PrivateEstimator
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.fitting import Paying
from tacita.linear_model.purchases import buy_counts, class_counts, class_numbers


@dataclass(eq=False, repr=False, kw_only=True)
class WithClasses(ClassifierMixin, PrivateEstimator):
    """What all classifiers share: classes given or bought."""

    classes: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self._poor_of_200_rows()
        return tags

    def _class_shares(self) -> dict[str, float]:
        """Return the shares of the budget that the classes, or the counts of the given ones, take."""
        given = self.classes is not None
        return {"classes": 0.0 if given else rules.CLASSES, "labels": rules.LABELS if given else 0.0}

    def _plan_classes(self, paying: Paying) -> Session:
        """Register the purchase of the classes, or of the counts of the given ones."""
        if self.classes is None:
            return paying.register(paying.budget.classes_event(), 1, "classes")
        return paying.register(paying.budget.labels_event(), 1, "labels")

    def _class_numbers(self, paying: Paying, session: Session, y: Any, labels: np.ndarray) -> np.ndarray:
        """Set ``classes_``, and return the place of each row's label in it, float64, NaN for others. Private."""
        if self.classes is None:
            self.classes_, known = named_classes(y, self._bought_classes(paying, session, labels))
            return class_numbers(labels, known)
        self.classes_ = np.unique(np.asarray(self.classes))
        numbers = class_numbers(labels, self.classes_)
        self._check_labels(paying, session, numbers)
        return numbers

    def _check_classes(self, budget: FitBudget, num_rows: int) -> None:
        """Raise ``ValueError`` before anything is spent if fewer than two classes are given, or can be bought."""
        if self.classes is not None:
            if isinstance(self.classes, str) or len(set(self.classes)) < 2:
                raise ValueError(f"classes must be a list of at least 2 labels, got {self.classes!r}.")
            return
        if isinstance(self.ledger, Ledger) and (self.ledger.filter or self.ledger.filter_order):
            raise ValueError(
                "classes cannot be bought from a ledger with a filter: pass classes=, the labels, which are then not "
                "bought. Nothing was spent."
            )
        needed = math.ceil(budget.classes_threshold(budget.classes_event()) + 0.5)
        if num_rows < 2 * needed:
            raise ValueError(
                f"two classes cannot be bought from {num_rows} rows at this budget, maybe not even one class: each "
                f"takes about {needed} rows. Pass classes=, the labels, which are then not bought. Nothing was spent."
            )

    def _check_labels(self, paying: Paying, session: Any, numbers: np.ndarray) -> None:
        """Raise ``ValueError`` before most is spent if a class is not seen, and many labels are none of the classes."""
        places = np.where(np.isnan(numbers), len(self.classes_), numbers).astype(np.int64)
        counts = np.bincount(places, minlength=len(self.classes_) + 1)
        *known, others = buy_counts(session, {"labels": counts}, paying.randomness)["labels"]
        seen = rules.SEEN * session.event.noise_std[0]
        if min(known) < seen <= others and others >= rules.OTHERS * paying.num_records:
            unseen = [name for name, count in zip(self.classes_.tolist(), known, strict=True) if count < seen]
            about = min(others, paying.num_records)
            raise ValueError(
                f"classes must be the labels of y: about {about:.0f} of {paying.num_records} labels are none of "
                f"{self.classes_.tolist()}, and {unseen} is not seen among them. {rules.LABELS:.1%} of the "
                "budget was spent on these noisy counts."
            )

    def _bought_classes(self, paying: Paying, session: Any, labels: np.ndarray) -> np.ndarray:
        """Return the labels whose noisy count is above the threshold, sorted."""
        names, counts = class_counts(labels)
        noisy = buy_counts(session, {"classes": counts}, paying.randomness)["classes"]
        # noisy counts were rounded to whole numbers, by at most a half
        needed, rows = paying.budget.classes_threshold(session.event) + 0.5, paying.num_records
        bought = noisy > needed
        if not bought.any():
            raise ValueError("not even one class is frequent enough to be bought at this epsilon. Pass classes=.")
        others = rows - float(noisy[bought].sum())
        if bought.sum() < 2 or others > max(needed, rules.OTHERS * rows):
            warnings.warn(
                f"classes: only {names[bought].tolist()} could be bought, and about {max(others, 0):.0f} of {rows} "
                f"rows have another label. Each takes about {needed:.0f} rows: pass classes=, the labels.",
                stacklevel=2,
            )
        return names[bought]
