r"""Linear regression from one release of second moments, with the ridge that their noise needs (AdaSSP).

Source: Wang (2018), "Revisiting Differentially Private Linear Regression", Algorithm 2 (AdaSSP),
https://arxiv.org/abs/1803.02596. Differs from it in two points: the second moments of features and target are released
together, as one matrix, and the least eigenvalue is read off the released matrix in place of a third release.
"""

import math

import torch
from torch import Tensor

from tacita import _validate

FAILURE = 0.05  # rho of the paper: chance that the noise of the matrix is larger than what the ridge is made for


def adaptive_ridge(second_moment: Tensor, *, noise_std: float, penalty: Tensor | float = 0.0) -> Tensor:
    r"""Return :math:`(A_+ + \Lambda + \lambda I)^{-1} b` from the released second moments of (x, y).

    A holds the second moments of x and b those of x with y. With the paper,
    :math:`\lambda = \max(0,\; s \sqrt{d \ln(2 d^2 / \rho)} - \lambda_{\min}(A_+))`, where s is the standard deviation
    of the noise of an entry off the diagonal and :math:`\rho` = 0.05: a ridge that is 0 where the data outweigh the
    noise. This is post-processing.

    Args:
        second_moment: (d + 1, d + 1), symmetric; the target comes last.
        noise_std: Standard deviation of the noise on the numbers of the release
            (:class:`~tacita.estimators.SecondMoment`), in the units of ``second_moment``; s is noise_std / sqrt(2).
        penalty: Lambda: what is added to the diagonal besides, a number or (d,).

    Returns:
        The weights, (d,), float64.

    Example:
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0], [4.0]])
        >>> rows = torch.cat([x, y], dim=1)
        >>> adaptive_ridge(rows.t() @ rows, noise_std=0.0)
        tensor([3., 2.], dtype=torch.float64)
    """
    _validate.non_negative("noise_std", noise_std)
    if second_moment.ndim != 2 or second_moment.shape[0] != second_moment.shape[1] or len(second_moment) < 2:
        raise ValueError(f"second_moment must be (d + 1, d + 1) with d >= 1, got {tuple(second_moment.shape)}.")
    whole = second_moment.double()
    size = len(whole) - 1
    values, vectors = torch.linalg.eigh(whole[:size, :size])
    values = values.clamp(min=0.0)
    noise = noise_std / math.sqrt(2) * math.sqrt(size * math.log(2 * size**2 / FAILURE))
    ridge = max(0.0, noise - float(values.min()))
    positive = (vectors * (values + ridge)) @ vectors.t()
    positive = positive + torch.diag(torch.as_tensor(penalty, dtype=torch.float64).expand(size))
    return torch.linalg.lstsq(positive, whole[:size, size:], driver="gelsd").solution[:, 0]
