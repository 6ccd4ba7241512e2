"""scikit-learn estimators with differential privacy; they need the extra ``tacita[sklearn]``."""

from tacita.linear_model.base import LinearPlan
from tacita.linear_model.classification import PrivateLogisticRegression
from tacita.linear_model.regression import PrivateLinearRegression, PrivateRidge
from tacita.linear_model.scaler import PrivateStandardScaler

__all__ = [
    "LinearPlan",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateRidge",
    "PrivateStandardScaler",
]
