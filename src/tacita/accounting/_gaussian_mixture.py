r"""A Gaussian query whose mu is random and shown: the mean of Gaussian deltas, at one epsilon or on a grid.

Place: the ground of accounting; numbers in, numbers out. Where there are many values of mu, they are moved to fewer
nodes, mean and all: along a chord of :math:`\delta(\epsilon; \mu)`, which lies above it where it is convex in mu and by
at most a share :math:`\kappa` below it elsewhere. Proof: docs/derivations/dicesgd.md, "Bounded residuals".
"""

import numpy as np
from scipy.special import erfcx, log_ndtr

from tacita.accounting.gaussian import SMALL_MU, SQRT2

NODES_FROM = 300  # so many values stay as they are
NODE_STEP = 2.5e-4  # between nodes: of mu, or of 1 if that is less
SAG = 0.3 * NODE_STEP**2  # the share kappa
AT_ONCE = 2**21  # deltas in memory


def mixed_deltas(epsilons: np.ndarray, chances: np.ndarray, mus: np.ndarray) -> np.ndarray:
    """Return the mean of the Gaussian deltas at each epsilon, of either sign; chances > 0, mus >= 0 or infinite."""
    size = np.abs(epsilons)
    portion = max(1, AT_ONCE // len(mus))
    found = [chances @ gaussian_deltas(size[i : i + portion], mus[:, None]) for i in range(0, len(size), portion)]
    above = np.concatenate(found)
    turned = float(np.sum(chances)) * -np.expm1(-size) + np.exp(-size) * above  # 1 - g + g H_{1/g}
    return np.where(epsilons < 0, turned, above)


def gaussian_deltas(epsilons: np.ndarray, mus: np.ndarray) -> np.ndarray:
    """Return Gaussian deltas at epsilons >= 0: :func:`tacita.accounting.gaussian.gaussian_delta` for arrays."""
    epsilons, mus = np.broadcast_arrays(np.asarray(epsilons, dtype=float), np.asarray(mus, dtype=float))
    found = np.where(np.isinf(mus), 1.0, 0.0)
    large, small = (mus >= SMALL_MU) & np.isfinite(mus), (mus > 0) & (mus < SMALL_MU)
    m, e = mus[large], epsilons[large]
    upper, lower = log_ndtr(m / 2 - e / m), e + log_ndtr(-m / 2 - e / m)
    found[large] = -np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper))
    if small.any():
        found[small] = _small_mu_deltas(epsilons[small], mus[small])
    return found


def _small_mu_deltas(epsilons: np.ndarray, mus: np.ndarray) -> np.ndarray:
    """Return deltas for small mu by Simpson's rule, as ``tacita.accounting.gaussian`` does."""
    t = np.minimum(epsilons / mus, 45.0)
    low, middle, high = (1 - z * np.sqrt(np.pi / 2) * erfcx(z / SQRT2) for z in (t - mus / 2, t, t + mus / 2))
    density = np.exp(-((t - mus / 2) ** 2) / 2) / np.sqrt(2 * np.pi)
    return np.where(t > 40, 0.0, density * mus / 6 * (low + 4 * middle + high))


def on_fewer_nodes(chances: np.ndarray, mus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace many increasing ``mus`` by few whose mean delta is at least that of all of them, at every epsilon."""
    nodes = [0]
    for i in range(1, len(mus)):
        if i == len(mus) - 1 or mus[i + 1] - mus[nodes[-1]] > NODE_STEP * min(1.0, mus[nodes[-1]]):
            nodes.append(i)
    if len(mus) <= NODES_FROM or not np.isfinite(mus[-1]):
        return chances, mus
    at = mus[nodes]
    after = np.clip(np.searchsorted(at, mus), 1, len(at) - 1)
    share = np.clip((mus - at[after - 1]) / (at[after] - at[after - 1]), 0.0, 1.0)
    moved = np.bincount(after - 1, chances * (1 - share), len(at)) + np.bincount(after, chances * share, len(at))
    return moved * (1 + SAG), at
