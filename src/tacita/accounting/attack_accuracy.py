r"""What epsilon and delta mean for an attacker who guesses between two neighbouring data sets.

Place: accountant -> [accounting.attack_accuracy] -> statement and report.
Source: Kairouz, Oh and Viswanath (2015), Theorem 2.1 (the region of both error rates), and the derivation in
docs/derivations/accounting.md, section 12.
"""

import math

from tacita import _validate

_LARGEST = 700.0  # exp() of more overflows
_ROUNDING = 4 * 2.0**-53  # of the few operations below, relative


def attack_accuracy(epsilon: float, delta: float, *, prior: float = 0.5) -> float:
    r"""Return the largest chance that an attacker is right who must tell two neighbouring data sets apart.

    The attacker knows all other units, holds one of the two data sets for the true one with probability ``prior``
    before, sees everything that was released, and names one of them. Over the releases and the attacker's belief, the
    guess is right with probability at most

    .. math:: \max\left(1 - \frac{1 - \delta}{1 + e^{\epsilon}},\; p + (1 - p) \delta,\; 1 - p + p \delta\right),
              \qquad p = \text{prior}.

    Guarantee: an upper bound for every method that is (epsilon, delta)-private under the neighbouring relation, rounded
    up. At ``prior`` 1/2 it is :math:`(e^\epsilon + \delta) / (1 + e^\epsilon)`.

    Args:
        epsilon: >= 0; ``inf`` for no guarantee.
        delta: In [0, 1).
        prior: The attacker's belief before, in (0, 1).

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> [round(attack_accuracy(epsilon, 1e-5), 3) for epsilon in (0.0, 0.1, 1.0, 4.0)]
        [0.5, 0.525, 0.731, 0.982]
        >>> round(attack_accuracy(1.0, 1e-5, prior=0.9), 3)  # the prior alone is right more often
        0.9
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be >= 0, got {epsilon!r}.")
    _validate.below_one("delta", delta)
    _validate.inside("prior", prior)
    if epsilon == math.inf:
        return 1.0
    told_apart = 1 - (1 - delta) / (1 + math.exp(min(epsilon, _LARGEST)))
    likelier = max(prior, 1 - prior)
    return min(1.0, max(told_apart, likelier + (1 - likelier) * delta) * (1 + _ROUNDING))
