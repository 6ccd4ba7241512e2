"""Reference settings of the theorems, and random ones."""

from typing import Any

import numpy as np

from tacita.clipped_sgd import ConvexProblem, NonConvexProblem

ORDER = ("max_grad_norm", "dim", "steps", "failure_probability", "mean_noise_std")


def convex(*, L, R, sigma, alpha, rest):
    """A problem, and the arguments of ``convergence_bound``; ``rest`` as in ORDER."""
    named = dict(zip(ORDER, rest, strict=True))
    problem = ConvexProblem(smoothness=L, radius=R, moment_scale=sigma, moment_order=alpha, dim=named.pop("dim"))
    return problem, named


def non_convex(*, L, gap, sigma, alpha, rest):
    named = dict(zip(ORDER, rest, strict=True))
    problem = NonConvexProblem(
        smoothness=L, initial_gap=gap, moment_scale=sigma, moment_order=alpha, dim=named.pop("dim")
    )
    return problem, named


C_A = convex(L=1, R=1, sigma=0.1, alpha=1.5, rest=(5, 10, 9999, 0.05, 0.0))
C_B = convex(L=1, R=1, sigma=0.1, alpha=1.5, rest=(5, 10, 9999, 0.05, 0.01))
C_C = convex(L=1, R=1, sigma=0.5, alpha=1.5, rest=(2, 10, 9999, 0.05, 0.01))
C_D = convex(L=2, R=3, sigma=0.2, alpha=2, rest=(30, 5, 99999, 0.01, 0.0))
C_E = convex(L=1, R=1, sigma=0.001, alpha=2, rest=(4, 5, 99999, 0.05, 0.0))
N_A = non_convex(L=1, gap=1, sigma=0.1, alpha=1.5, rest=(5, 10, 9999, 0.05, 0.0))
N_B = non_convex(L=2, gap=0.5, sigma=0.1, alpha=1.5, rest=(5, 10, 9999, 0.05, 0.01))
N_C = non_convex(L=2, gap=0.5, sigma=0.5, alpha=1.5, rest=(2, 10, 9999, 0.05, 0.01))


def random_settings(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """``count`` random ones of either kind at once, as arrays: [convex, non-convex]."""
    rng = np.random.default_rng(seed)

    def e(low: float, high: float) -> np.ndarray:
        return np.exp(rng.uniform(low, high, count))

    shared = {"smoothness": e(-5, 5), "moment_scale": e(-5, 5), "moment_order": rng.uniform(1 + 1e-9, 2, count)}
    shared["dim"] = np.ceil(e(0, 14))
    scale = e(-5, 5)
    settings = {
        "max_grad_norm": e(-5, 5),
        "steps": np.ceil(e(0, 14)),
        "failure_probability": e(-20, 0),
        "mean_noise_std": e(-10, 10),
    }
    return [
        {"problem": ConvexProblem(radius=scale, **shared), **settings},
        {"problem": NonConvexProblem(initial_gap=scale, **shared), **settings},
    ]
