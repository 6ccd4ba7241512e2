r"""Sensitivity of all releases of a session with a hidden error of bounded residuals, by participations of a record.

The unit is one record that is added or removed. Proof: docs/derivations/dicesgd.md, "Bounded residuals".
"""

import math

LEAST_SHARE = 1e-6  # below it, float64 does not distinguish the part that is kept from the whole
ROUNDED_UP = 1e-9


def checked_share(share: float) -> float:
    """Return ``injected_share`` if it is in [``LEAST_SHARE``, 1], else raise ``ValueError``."""
    if isinstance(share, bool) or not LEAST_SHARE <= share <= 1:
        raise ValueError(f"injected_share must be in [{LEAST_SHARE:g}, 1], got {share!r}.")
    return float(share)


def moved_when_clipped(participations: int, contribution: float, residual: float) -> float:
    r"""Return :math:`\sqrt{k}\, C + k\, R`, a bound that holds however the error is clipped before it is injected."""
    return math.sqrt(participations) * contribution + participations * residual


def moved_by_shares(
    participations: int, contribution: float, residual: float, *, share: float, leak: float, queries_per_epoch: int
) -> float:
    r"""Return the smaller bound for an error of which every query injects a fixed share :math:`\rho`.

    The share does not depend on the length of the error. The square of the bound is
    :math:`k A(0) + 2 (\lceil \frac{k-1}{2} \rceil A(1) + \lfloor \frac{k-1}{2} \rfloor A(Q)) + 2 (k-2)^+
    \sum_{m=2}^{k-1} A((m-1) Q + 1)`, with A the inner product of two participations by their distance.

    Args:
        participations: How often the record is drawn, k.
        contribution: Largest norm it adds to a query's sum, C.
        residual: Largest norm it adds to the error, R.
        share: The share :math:`\rho`, at least ``LEAST_SHARE``, at most 1.
        leak: Share of the rest that is forgotten.
        queries_per_epoch: Q, if a record is in at most one of the Q queries of an epoch; 1 if nothing is known.

    Example:
        >>> round(moved_by_shares(1, 0.05, 0.95, share=0.1, leak=0.0, queries_per_epoch=1), 4)  # root of 0.1 / 2
        0.2236
    """
    scale = max(contribution, residual)  # squares of very small or very large norms would underflow or overflow
    if participations == 0 or scale == 0:
        return 0.0
    contribution, residual = contribution / scale, residual / scale
    gone = share + leak - share * leak
    kept = 1 - gone
    tail = share * residual / (gone * (2 - gone))  # of the sum over queries of what a residual injects

    def product(distance: int) -> float:
        return kept ** (distance - 1) * (share * residual * contribution + kept * share * residual * tail)

    pairs = participations - 1
    square = participations * (contribution**2 + share * residual * tail)
    square += 2 * ((pairs - pairs // 2) * product(1) + pairs // 2 * product(queries_per_epoch))
    if pairs > 1:
        log_ratio = queries_per_epoch * (math.log1p(-gone) if gone < 1 else -math.inf)
        farther = math.expm1((pairs - 1) * log_ratio) / math.expm1(log_ratio)
        square += 2 * (pairs - 1) * product(queries_per_epoch + 1) * farther
    return scale * math.sqrt(square) * (1 + ROUNDED_UP)
