"""scikit-learn estimators with differential privacy; they need the extra ``sklearn``."""

from tacita._extras import not_installed

try:
    import sklearn  # noqa: F401 - the message of its absence names the extra
except ImportError as error:
    raise ImportError(f"tacita.linear_model: {not_installed('scikit-learn', 'sklearn')}") from error

from tacita.linear_model.adaptive_ridge import adaptive_elastic_net, adaptive_ridge
from tacita.linear_model.base import LinearPlan
from tacita.linear_model.classification import PrivateLinearSVC, PrivateLogisticRegression
from tacita.linear_model.lasso import PrivateElasticNet, PrivateLasso
from tacita.linear_model.mean import PrivateMean
from tacita.linear_model.naive_bayes import PrivateGaussianNB
from tacita.linear_model.newton import NewtonDescent
from tacita.linear_model.pca import PrivatePCA
from tacita.linear_model.preconditioned import MomentumDescent, PreconditionedDescent
from tacita.linear_model.regression import PrivateLinearRegression, PrivateRidge
from tacita.linear_model.robust_regression import PrivateHuberRegressor, PrivateQuantileRegressor
from tacita.linear_model.scaler import PrivateStandardScaler

__all__ = [
    "LinearPlan",
    "MomentumDescent",
    "NewtonDescent",
    "PreconditionedDescent",
    "PrivateElasticNet",
    "PrivateGaussianNB",
    "PrivateHuberRegressor",
    "PrivateLasso",
    "PrivateLinearRegression",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateMean",
    "PrivatePCA",
    "PrivateQuantileRegressor",
    "PrivateRidge",
    "PrivateStandardScaler",
    "adaptive_elastic_net",
    "adaptive_ridge",
]
