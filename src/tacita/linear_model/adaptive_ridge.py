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
MOST_STEPS, TOLERANCE = 20_000, 1e-10  # of an elastic net


def adaptive_ridge(second_moment: Tensor, *, noise_std: float, penalty: Tensor | float = 0.0) -> Tensor:
    r"""Return :math:`(A_+ + \Lambda + \lambda I)^{-1} b` from the released second moments of (x, y).

    A holds the second moments of x and b those of x with y. With the paper,
    :math:`\lambda = \max(0,\; s \sqrt{d \ln(2 d^2 / \rho)} - \lambda_{\min}(A_+))`, where s is the standard deviation
    of the noise of an entry off the diagonal and :math:`\rho` = 0.05: a ridge that is 0 where the data outweigh the
    noise. This is post-processing.

    Args:
        second_moment: (d + 1, d + 1), symmetric; the target comes last.
        noise_std: Standard deviation of the noise on the numbers of the release
            (:class:`~tacita.linear.SecondMoment`), in the units of ``second_moment``; s is noise_std / sqrt(2).
        penalty: Lambda: what is added to the diagonal besides, a number or (d,).

    Returns:
        The weights, (d,), float64.

    Example:
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0], [4.0]])
        >>> rows = torch.cat([x, y], dim=1)
        >>> adaptive_ridge(rows.t() @ rows, noise_std=0.0)
        tensor([3., 2.], dtype=torch.float64)
    """
    positive, joint = ridged_moments(second_moment, noise_std=noise_std)
    positive = positive + torch.diag(torch.as_tensor(penalty, dtype=torch.float64).expand(len(joint)))
    return torch.linalg.lstsq(positive, joint.unsqueeze(1), driver="gelsd").solution[:, 0]


def adaptive_elastic_net(
    second_moment: Tensor, *, noise_std: float, l1: Tensor | float = 0.0, l2: Tensor | float = 0.0
) -> Tensor:
    r"""Return the minimum of :math:`\frac12 w^\top (A_+ + \lambda I) w - b^\top w + \lVert \Lambda_1 w \rVert_1 +
    \frac12 w^\top \Lambda_2 w`, with the same A, b and :math:`\lambda` as :func:`adaptive_ridge`.

    This is post-processing: accelerated proximal gradient steps on the released numbers (Beck and Teboulle, 2009,
    https://doi.org/10.1137/080716542), started again where they turn uphill (O'Donoghue and Candès, 2015).

    Args:
        second_moment, noise_std: As for :func:`adaptive_ridge`.
        l1, l2: The diagonals of :math:`\Lambda_1` and :math:`\Lambda_2`, >= 0, a number or (d,).

    Returns:
        The weights, (d,), float64, with exact zeros.

    Example:
        >>> moments = torch.tensor([[2.0, 0.0, 3.0], [0.0, 2.0, 0.4], [3.0, 0.4, 5.0]])
        >>> adaptive_elastic_net(moments, noise_std=0.0, l1=1.0)
        tensor([1., 0.], dtype=torch.float64)
    """
    matrix, joint = ridged_moments(second_moment, noise_std=noise_std)
    matrix = matrix + torch.diag(torch.as_tensor(l2, dtype=torch.float64).expand(len(joint)))
    step = 1 / max(float(torch.linalg.eigvalsh(matrix)[-1]), torch.finfo(torch.float64).tiny)
    shrink = step * torch.as_tensor(l1, dtype=torch.float64).expand(len(joint))
    found, ahead, pace = torch.zeros_like(joint), torch.zeros_like(joint), 1.0
    for _ in range(MOST_STEPS):
        moved = ahead - step * (matrix @ ahead - joint)
        moved = moved.sign() * (moved.abs() - shrink).clamp(min=0.0)
        change = moved - found
        if float(change.abs().max()) <= TOLERANCE * float(moved.abs().max()):
            return moved
        uphill = float((ahead - moved) @ change) > 0
        faster = 1.0 if uphill else (1 + math.sqrt(1 + 4 * pace**2)) / 2
        ahead = moved if uphill else moved + (pace - 1) / faster * change
        found, pace = moved, faster
    return found


def ridged_moments(second_moment: Tensor, *, noise_std: float) -> tuple[Tensor, Tensor]:
    r"""Return :math:`A_+ + \lambda I`, (d, d), and b, (d,), of :func:`adaptive_ridge`, float64."""
    _validate.non_negative("noise_std", noise_std)
    if second_moment.ndim != 2 or second_moment.shape[0] != second_moment.shape[1] or len(second_moment) < 2:
        raise ValueError(f"second_moment must be (d + 1, d + 1) with d >= 1, got {tuple(second_moment.shape)}.")
    whole = second_moment.double()
    size = len(whole) - 1
    values, vectors = torch.linalg.eigh(whole[:size, :size])
    values = values.clamp(min=0.0)
    noise = noise_std / math.sqrt(2) * math.sqrt(size * math.log(2 * size**2 / FAILURE))
    ridge = max(0.0, noise - float(values.min()))
    return (vectors * (values + ridge)) @ vectors.t(), whole[:size, size]
