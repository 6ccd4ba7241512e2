r"""How fast private learning gets with the number of records, on the paper's hard instance; and without a curator.

On the hard instance a record is 0, or :math:`q^{-1/k} v` with probability q. So a run depends on the data through the
number of records in each batch that are not 0, and sizes in the millions take no time.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Theorems 7, 8,
31 and 34, and Algorithm 10.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.accounting import gaussian_mu
from tacita.clipping import FlatClipper
from tacita.convex import AcceleratedSGD, Ball, ShuffleMeanOracle1, WeightedSGD
from tacita.convex.heavy_tailed import (
    HeavyTailedSetting,
    accelerated_bound,
    strongly_convex_schedule,
    strongly_convex_theorem,
)
from tacita.convex.shuffle_calibration import Calibration
from tacita.estimators import ClippedSum
from tacita.gradients.given import DEFAULT_NAME, GivenSource
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle, Queryable, Release
from tacita.random import Randomness
from tacita.sampling import DisjointSampler
from tacita_reproductions import figures
from tacita_reproductions.convex_runs import mean_and_error, slope
from tacita_reproductions.runner import Check, Progress, Result, Row

ORDERS = (2, 4, 8)
NAME = "w"


@dataclass(frozen=True, kw_only=True)
class HardInstance:
    """The instance of the lower bounds: all mass of the moment is in few, long records of the same direction.

    Attributes:
        num_records, dim, order, mu: n, d, k and the ratio of one Gaussian query.
    """

    num_records: int
    dim: int
    order: int
    mu: float

    @property
    def share(self) -> float:
        """q, the probability that a record is not 0."""
        return min(1.0, math.sqrt(2 * self.dim) / (self.num_records * self.mu))

    @property
    def record(self) -> Tensor:
        """The record that is not 0; the moment of order k is exactly 1."""
        return torch.full((self.dim,), self.share ** (-1 / self.order) / math.sqrt(self.dim), dtype=torch.float64)

    @property
    def mean(self) -> Tensor:
        """The mean of a record."""
        return self.share * self.record

    def setting(self, bound: float, **more: Any) -> HeavyTailedSetting:
        """Return the public constants, with ``bound`` for all moments, on a ball of radius 1."""
        n, rho, moments = self.num_records, self.mu**2 / 2, {float(self.order): bound}
        return HeavyTailedSetting(num_records=n, dim=self.dim, rho=rho, diameter=2, moment_bounds=moments, **more)


class CountedOracle:
    """A mean oracle on the hard instance: draws how many records of a batch are not 0, clips both kinds, adds noise.

    Args:
        instance: The instance.
        batch_size: Records of one query.
        max_grad_norm: C.
        gradients: ``w -> (gradient of a record that is 0, gradient of one that is not)``.
        generator: Draws the records and the noise.
    """

    def __init__(
        self,
        instance: HardInstance,
        batch_size: int,
        max_grad_norm: float,
        gradients: Callable[[Tensor], tuple[Tensor, Tensor]],
        generator: np.random.Generator,
    ) -> None:
        self._instance, self._size, self._clip = instance, batch_size, max_grad_norm
        self._gradients, self._generator = gradients, generator

    def query(self, params: Mapping[str, Tensor], /) -> Release:
        share = self._generator.binomial(self._size, self._instance.share) / self._size
        zero, other = (g * min(1.0, self._clip / max(float(g.norm()), 1e-300)) for g in self._gradients(params[NAME]))
        std = 2 * self._clip / (self._size * self._instance.mu)
        noise = std * torch.from_numpy(self._generator.standard_normal(self._instance.dim))
        gradient = {NAME: (1 - share) * zero + share * other + noise}
        return Release(gradient, {}, self._size, {}, "synthetic", 0)


def affine_excess(instance: HardInstance, generator: np.random.Generator) -> float:
    """Return the excess of Algorithm 2, whose risk -<w, E x> needs one step."""
    n, d = instance.num_records, instance.dim
    setting, threshold = instance.setting(1.0), (instance.mu * n / math.sqrt(d)) ** (1 / instance.order)
    lr = float(accelerated_bound(setting, steps=1, max_grad_norm=threshold, order=instance.order).lr)
    x = instance.record
    oracle = CountedOracle(instance, n, threshold, lambda w: (torch.zeros_like(w), -x), generator)
    solver = AcceleratedSGD(oracle, _start(d), steps=1, lr=lr, domain=Ball(radius=1.0))
    return float(instance.mean.norm() - solver.run()[NAME] @ instance.mean)


def quadratic_excess(instance: HardInstance, generator: np.random.Generator) -> float:
    """Return the excess of Algorithm 6 at the settings of Theorem 34, for the loss |w - x|^2 / 2."""
    setting = instance.setting(2.0, smoothness=1.0, strong_convexity=1.0)
    theorem = strongly_convex_theorem(setting, order=instance.order)
    schedule = strongly_convex_schedule(setting, steps=theorem.steps)
    x, size = instance.record, instance.num_records // (theorem.steps + 1)
    oracle = CountedOracle(instance, size, theorem.max_grad_norm, lambda w: (w, w - x), generator)
    solver = WeightedSGD(
        oracle, _start(instance.dim), lrs=schedule.lrs.tolist(), weights=schedule.weights.tolist(),
        domain=Ball(radius=1.0),
    )  # fmt: skip
    return float((solver.run()[NAME] - instance.mean).square().sum() / 2)


def _start(dim: int) -> dict[str, Tensor]:
    return {NAME: torch.zeros(dim, dtype=torch.float64)}


def rates(full: bool, seed: int, progress: Progress) -> Result:
    """Measure the slopes of the excess risk in the number of records, for three orders of the moment."""
    kinds = {"convex": (affine_excess, range(14, 23), 20), "strongly convex": (quadratic_excess, range(18, 23), 6)}
    dim, rows, checks = 2000, list[Row](), list[Check]()
    for done, (kind, (excess, exponents, repeats)) in enumerate(kinds.items()):
        sizes = [2**e for e in (exponents if full else exponents[-5::2])]
        means: dict[int, list[float]] = {}
        for order in ORDERS:
            progress((done + ORDERS.index(order) / 3) / 2, f"{kind}, k = {order}")
            means[order] = []
            for n in sizes:
                instance = HardInstance(num_records=n, dim=dim, order=order, mu=0.2)
                found = [
                    excess(instance, np.random.default_rng([seed, 1, n, order, repeat]))
                    for repeat in range(repeats if full else 6)
                ]
                mean, error = mean_and_error(found)
                means[order].append(mean)
                rows.append({"risk": kind, "k": order, "n": n, "excess risk": mean, "s.e.": error})
        checks += _slope_checks(kind, sizes, means)
    return Result(rows=rows, checks=checks, notes=[
        "The hard instance of the lower bounds, d = 2000, mu 0.2, ball of radius 1, moments of 1 (convex: -<w, x>, one "
        "step) and declared as 2 (strongly convex: |w - x|^2 / 2, Theorem 34's steps). The theory's slopes are "
        "-(k - 1) / k and -(2k - 2) / k, the second up to a power of ln n; for k = 8 the sampling error of order "
        "n^-1/2 mixes in."
    ], draw=lambda: figures.rates(rows))  # fmt: skip


def _slope_checks(kind: str, sizes: list[int], means: dict[int, list[float]]) -> list[Check]:
    power = 1 if kind == "convex" else 2
    checks = []
    for order, found in means.items():
        theory, measured = -power * (order - 1) / order, slope(sizes, found)
        within = abs(measured - theory) <= 0.1
        says = f"{kind}, k = {order}: the slope is {theory:g} within 0.1"
        checks.append(Check(says, within, found=f"{measured:.3f}"))
    better = all(a > b > c for a, b, c in zip(*(means[order] for order in ORDERS), strict=True))
    return [*checks, Check(f"{kind}: at every n a larger order is better", better)]


# -- Without a curator

EPSILON, DELTA, THRESHOLD, COORDINATES, BATCHES = 2.0, 1e-5, 20.0, 5, 5
CALIBRATIONS: dict[Calibration, str] = {"least": "least bits", "hockey_stick": "coordinates exact", "paper": "Lemma 56"}


def _students(generator: np.random.Generator, rows: int) -> Tensor:
    return torch.from_numpy(generator.standard_t(4, (rows, COORDINATES)) / math.sqrt(2) + 0.5)


def _oracles(rows: Tensor, seed: int) -> dict[str, GradientOracle | ShuffleMeanOracle1]:
    """Return the oracles that are compared, each over the same disjoint batches, at the same epsilon and delta."""

    def common() -> dict:
        return {
            "sampler": DisjointSampler(num_batches=BATCHES, num_records=len(rows)),
            "ledger": Ledger(neighboring_relation="replace_one", privacy_unit="one user"),
            "planned_queries": BATCHES, "randomness": Randomness.insecure(seed),
        }  # fmt: skip

    central = GradientOracle(
        GivenSource(rows), estimator=ClippedSum(FlatClipper(max_grad_norm=THRESHOLD)),
        mechanism=GaussianMechanism(noise_multiplier=1 / gaussian_mu(EPSILON, DELTA)), **common(),
    )  # fmt: skip
    shuffled = {
        name: ShuffleMeanOracle1(
            GivenSource(rows), max_grad_norm=THRESHOLD, target_epsilon=EPSILON, target_delta=DELTA,
            calibration=calibration, **common(),
        )
        for calibration, name in CALIBRATIONS.items()
    }  # fmt: skip
    return {"central": central, **shuffled}


def shuffle(full: bool, seed: int, progress: Progress) -> Result:
    """Compare mean oracles in the shuffle model with the central one, at equal epsilon and delta."""
    sizes, groups = ((2**10, 2**12, 2**14), 10) if full else ((2**10, 2**12), 3)
    rows: list[Row] = []
    for done, users in enumerate(sizes):
        progress(done / len(sizes), f"{users:,} users")
        found: dict[str, list[float]] = {}
        settings: dict[str, dict] = {}
        for group in range(groups):  # a session has fewer users than 1 / delta
            data = _students(np.random.default_rng([seed, 7, users, group]), users * BATCHES)
            for method, oracle in _oracles(data, seed + group).items():
                bits = None if isinstance(oracle, GradientOracle) else oracle.sums.bits.noise_bits
                noise = COORDINATES * (oracle.noise_std["all"] / users) ** 2
                settings[method] = {"n": users, "method": method, "noise bits": bits, "noise, squared": noise}
                counted = method != CALIBRATIONS["paper"]  # its noise would take minutes to draw
                found.setdefault(method, []).extend(_error(oracle) for _ in range(BATCHES if counted else 0))
        for method, errors in found.items():
            mean, error = mean_and_error(errors) if errors else (None, None)
            rows.append({**settings[method], "squared error": mean, "s.e.": error})
    return Result(rows=rows, checks=_shuffle_checks(rows, sizes), notes=[
        "5 coordinates of (Student t with 4 degrees of freedom) / sqrt 2 + 0.5, C = 20, epsilon 2, delta 1e-5. Squared"
        f" error of the mean, over {groups * BATCHES} batches of users; noise is its part that does not depend on the "
        "data.",
        f"'{CALIBRATIONS['least']}': this library's Rényi accounting of all coordinates together. "
        f"'{CALIBRATIONS['hockey_stick']}': each coordinate by its exact privacy curve, then composed. "
        f"'{CALIBRATIONS['paper']}': the paper's calibration; its noise is computed, not drawn.",
    ], draw=lambda: figures.mean_oracles(rows, ("central", *CALIBRATIONS.values())))  # fmt: skip


def _error(oracle: Queryable) -> float:
    """Return the squared error of one mean."""
    zero = {DEFAULT_NAME: torch.zeros(COORDINATES, dtype=torch.float64)}
    return float((oracle.query(zero).gradient[DEFAULT_NAME].double() - 0.5).square().sum())


def _shuffle_checks(rows: list[Row], sizes: tuple[int, ...]) -> list[Check]:
    noise = {(row["method"], row["n"]): row["noise, squared"] for row in rows}
    least, exact, paper = CALIBRATIONS.values()
    over = {name: [noise[name, n] / noise["central", n] for n in sizes] for name in CALIBRATIONS.values()}
    more = [noise[paper, n] / noise[exact, n] for n in sizes]
    slopes = [slope(sizes, [noise[name, n] for n in sizes]) for name in ("central", *over)]
    measured = [row for row in rows if row["squared error"] is not None and row["method"] != "central"]
    return [
        Check("all noises fall like n^-2",
              all(abs(found + 2) <= 0.1 for found in slopes), found=f"slopes {min(slopes):.2f} to {max(slopes):.2f}"),
        Check("the least bits cost at most 1.5 times the central noise",
              max(over[least]) <= 1.5, found=f"{_range(over[least])} times"),
        Check("exact coordinates cost 26 to 31 times",
              all(26 <= found <= 31 for found in over[exact]), found=_range(over[exact])),
        Check("Lemma 56 costs 40 to 50 times as much again",
              all(40 <= found <= 50 for found in more), found=_range(more)),
        Check("measured errors are at least the noise, less 4 standard errors",
              all(row["squared error"] >= row["noise, squared"] - 4 * row["s.e."] for row in measured)),
    ]  # fmt: skip


def _range(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
