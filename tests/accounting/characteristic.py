r"""Delta of T Poisson queries by an inversion of the characteristic function of their total loss: no grid of losses."""

import itertools

import numpy as np


def excess(s, q, mu, swapped):
    r"""Return M(s) - 1, M(s) = E exp(s loss) of one query, at complex s with Im s >= 0; the contour in x is shifted."""
    s = np.atleast_1d(s)[:, None]
    a = -s if swapped else s + 1  # E_Q (P/Q)^a
    alpha = min(1.5, np.pi / (2 * mu)) * (-1 if swapped else 1) * (s.imag > 0)
    most = float(np.abs(a.real).max())
    wide = np.concatenate(
        [np.arange(-14.0, 14.0, 0.25), 14.0 + np.expm1(np.linspace(0, np.log1p(mu * most + 1), 3000))]
    )
    with np.errstate(all="ignore"):
        logs = (
            np.abs(most) * np.abs(np.log1p(q * np.expm1(np.minimum(mu * wide - mu * mu / 2, 700.0)))) - wide * wide / 2
        )
    kept = wide[logs > logs.max() - 45]
    top = max(14.0, float(kept[-1]) + 1.0)
    step = min(0.05, 0.05 / mu)
    x = np.arange(-14.0, top, step)[None, :]
    z = x + 1j * alpha
    u = q * np.expm1(mu * z - mu * mu / 2)
    log = np.where(np.abs(u) < 1e-5, u - u * u / 2 + u**3 / 3, np.log1p(u))
    au = a * log
    bracket = np.expm1(au) - a * u
    small = np.abs(a * u) < 1e-3
    series = a * (a - 1) * u * u / 2 * (1 + (a - 2) * u / 3 * (1 + (a - 3) * u / 4))
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return np.sum(np.where(small, series, bracket) * density, axis=1) * step


def log_moment(s, q, mu, T, swapped):
    found = []
    s = np.atleast_1d(np.asarray(s, complex))
    for i in range(0, len(s), 2000):
        e = excess(s[i : i + 2000], q, mu, swapped)
        found.append(T * np.where(np.abs(e) < 1e-5, e - e * e / 2 + e**3 / 3, np.log1p(e)))
    return np.concatenate(found)


def delta(epsilon, q, mu, T, swapped=False):
    r"""1/(2 pi i) int (M^T - 1) e^{-s eps} / (s (s + 1)) ds along Re s = c, where K(c) - c eps - log is least."""
    cs = np.exp(np.linspace(np.log(1e-2), np.log(1e13), 120))
    best, c = np.inf, 1e-2
    for one in cs:
        with np.errstate(all="ignore"):
            k = log_moment(np.array([one]), q, mu, T, swapped)[0].real if one < 1e13 else np.inf
        if not np.isfinite(k) or k > 600:
            break
        value = np.log(np.expm1(k)) if k < 30 else k
        value -= one * epsilon + np.log(one * (one + 1))
        if value < best:
            best, c = value, one
    nodes, weights = np.polynomial.legendre.leggauss(12)
    edges = list(np.exp(np.arange(np.log(c) - 9, np.log(max(c, 1 / epsilon)) + 0.01, 0.25)))
    last = edges[-1]
    edges = [0.0, *edges]
    total, _terms = 0.0, []
    min(np.pi / epsilon, last * 0.28)

    def panel(a, b):
        t = (a + b) / 2 + (b - a) / 2 * nodes
        s = c + 1j * t
        k = log_moment(s, q, mu, T, swapped)
        with np.errstate(all="ignore"):
            value = np.where(k.real < -30, np.exp(k) - 1, np.expm1(k))
        return float((b - a) / 2 * np.sum(weights * (value * np.exp(-s * epsilon) / (s * (s + 1))).real)) / np.pi

    for a, b in itertools.pairwise(edges):
        total += panel(a, b)
    sums = []
    a = last
    for turn in range(60):
        b = a + np.pi / epsilon
        n = max(1, int(np.ceil((b - a) / (0.3 * a))))
        total += sum(panel(a + (b - a) * i / n, a + (b - a) * (i + 1) / n) for i in range(n))
        sums.append(total)
        a = b
        if turn > 20 and abs(sums[-1] - sums[-2]) < 1e-9 * abs(total):
            break
    # average of alternating partial sums (Euler)
    tail = np.array(sums[-16:])
    while len(tail) > 1:
        tail = (tail[1:] + tail[:-1]) / 2
    return float(tail[0])
