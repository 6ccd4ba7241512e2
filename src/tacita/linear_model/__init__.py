"""scikit-learn estimators with differential privacy; they need the extra ``tacita[sklearn]``."""

from tacita.linear_model.base import LinearPlan
from tacita.linear_model.classification import PrivateLogisticRegression

__all__ = ["LinearPlan", "PrivateLogisticRegression"]
