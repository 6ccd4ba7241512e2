r"""Statistics: from what a run released to one score, high where the canary seems present.

Place: simulator, sessions -> [audit.statistics] -> bounds. A statistic is fitted on pilot runs, which judge nothing,
and then scores others. Any function of the residuals is allowed; a poor one costs power, never validity.

The exact likelihood ratio is known where nothing is remembered between queries. With x the residual of a query and m
what one row of the canary moves there: a canary that is in for certain gives :math:`\log \Lambda = \langle x, m \rangle
- |m|^2/2 =: \ell(m)`; one that is in with chance q, :math:`\log(1 - q + q e^{\ell(m)})`; k rows,
:math:`\log \sum_j \mathrm{Binom}(k, q)(j)\, e^{\ell(jm)}`; under replace_one the same for what is in its place is
subtracted. Queries add up.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from tacita.accounting import FixedSizeLaw, PoissonLaw, PoissonUnitLaw, SamplingLaw
from tacita.audit.simulator import Trace

PATTERNS = 256
RIDGE = 1e-6
MOST_FEATURES = 64
Score = Callable[[Trace], np.ndarray]


@dataclass(frozen=True)
class Pilot:
    """Runs that statistics are fitted on.

    Attributes:
        present: With the canary.
        absent: Without.
        law: How records are drawn, if it is known.
        copies: Rows of the canary.
        coins_known: The claim holds for an adversary who knows in which queries the canary is.
        remembers: Whether the estimator has a state.
    """

    present: Trace
    absent: Trace
    law: SamplingLaw | None
    copies: int
    coins_known: bool
    remembers: bool


class Statistic(ABC):
    """A name, and a way to make a score."""

    name: str

    @abstractmethod
    def fit(self, pilot: Pilot) -> Score | None:
        """The score; ``None`` where this statistic says nothing new."""


class LikelihoodRatio(Statistic):
    """The exact likelihood ratio, of estimators without a state."""

    name = "exact likelihood ratio"

    def fit(self, pilot: Pilot) -> Score | None:
        if pilot.remembers or pilot.law is None:
            return None
        if pilot.coins_known:
            return _known_coins(pilot)
        rate = _rate(pilot.law)
        return None if rate is None else _mixtures(pilot, rate)


class GivenTheOthers(Statistic):
    """The likelihood ratio of a canary whose chance to be in depends on the query and on how many others are.

    Under Poisson sampling it does not. An adversary of that claim knows the others' coins, which tell of the canary's
    where batches are in truth of one size, or assigned by number.
    """

    name = "likelihood ratio given the others"

    def fit(self, pilot: Pilot) -> Score | None:
        if pilot.remembers or pilot.copies != 1 or not isinstance(pilot.law, PoissonLaw):
            return None
        chances = _chances(pilot)
        one_row = _one_row(pilot.present), _one_row(pilot.absent)

        def log_mixture(x: Tensor, chance: Tensor, m: Tensor) -> Tensor:
            return torch.logaddexp(torch.log(1 - chance), torch.log(chance) + x @ m - m.square().sum() / 2)

        def score(trace: Trace) -> np.ndarray:
            assert trace.others is not None
            x = trace.residual.double()
            chance = chances[torch.arange(x.shape[1]), trace.others.clamp(max=chances.shape[1] - 1)]
            return (log_mixture(x, chance, one_row[0]) - log_mixture(x, chance, one_row[1])).sum(dim=1).numpy()

        return score


class Patterns(Statistic):
    """A likelihood ratio in which the canary's coins are averaged over sampled runs: for estimators with a state."""

    name = "averaged likelihood ratio"

    def fit(self, pilot: Pilot) -> Score | None:
        if not pilot.remembers:
            return None
        present, absent = (_flat(trace.shift[:PATTERNS]).double() for trace in (pilot.present, pilot.absent))

        def score(trace: Trace) -> np.ndarray:
            x = _flat(trace.residual).double()
            return (_log_average(x, present) - _log_average(x, absent)).numpy()

        return score


class Total(Statistic):
    """The sum along what the canary moves on average, in each query and coordinate."""

    name = "total along the canary"

    def fit(self, pilot: Pilot) -> Score | None:
        weights = _mean_shift(pilot)

        def score(trace: Trace) -> np.ndarray:
            return (_flat(trace.residual).double() @ weights.flatten()).numpy()

        return score


class FinalParameters(Statistic):
    """What the last parameters of SGD show: every query's release added up, along the canary."""

    name = "final parameters"

    def fit(self, pilot: Pilot) -> Score | None:
        direction = _mean_shift(pilot).sum(dim=0)

        def score(trace: Trace) -> np.ndarray:
            return (trace.residual.double().sum(dim=1) @ direction).numpy()

        return score


class Largest(Statistic):
    """The largest query along the canary."""

    name = "largest query"

    def fit(self, pilot: Pilot) -> Score | None:
        if pilot.present.residual.shape[1] == 1:
            return None
        direction = _mean_shift(pilot).sum(dim=0)

        def score(trace: Trace) -> np.ndarray:
            return (trace.residual.double() @ direction).amax(dim=1).numpy()

        return score


class Squares(Statistic):
    """The sum of squares, in whatever direction."""

    name = "sum of squares"

    def fit(self, pilot: Pilot) -> Score | None:
        return lambda trace: _flat(trace.residual).double().square().sum(dim=1).numpy()


class LinearDiscriminant(Statistic):
    """Fisher's linear discriminant of the pilot runs: sees noise that cancels between queries or coordinates."""

    name = "linear discriminant"

    def fit(self, pilot: Pilot) -> Score | None:
        fitted = _moments(pilot)
        if fitted is None:
            return None
        (mean, covariance), (other, others) = fitted
        weights = torch.linalg.solve((covariance + others) / 2, mean - other)
        return lambda trace: (_flat(trace.residual).double() @ weights).numpy()


class QuadraticDiscriminant(Statistic):
    """The likelihood ratio of two normal laws fitted to the pilot runs: sees noise that is used again."""

    name = "quadratic discriminant"

    def fit(self, pilot: Pilot) -> Score | None:
        fitted = _moments(pilot)
        if fitted is None:
            return None

        def density(x: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
            root = torch.linalg.cholesky(covariance)
            z = torch.linalg.solve_triangular(root, (x - mean).mT, upper=False)
            return -z.square().sum(dim=0) / 2 - root.diagonal().log().sum()

        def score(trace: Trace) -> np.ndarray:
            x = _flat(trace.residual).double()
            return (density(x, *fitted[0]) - density(x, *fitted[1])).numpy()

        return score


STATISTICS: tuple[Statistic, ...] = (
    LikelihoodRatio(),
    GivenTheOthers(),
    Patterns(),
    Total(),
    FinalParameters(),
    Largest(),
    Squares(),
    LinearDiscriminant(),
    QuadraticDiscriminant(),
)


def _chances(pilot: Pilot) -> Tensor:
    """How often the canary was drawn, by query and by the number of other rows in the batch: (queries, numbers)."""
    assert pilot.present.drawn is not None
    assert pilot.absent.drawn is not None
    drawn = torch.cat([pilot.present.drawn, pilot.absent.drawn]).double()
    others = torch.cat([t.others for t in (pilot.present, pilot.absent) if t.others is not None])
    here = torch.nn.functional.one_hot(others).double()  # (runs, queries, numbers)
    return torch.einsum("rq,rqn->qn", drawn, here) / here.sum(dim=0).clamp(min=1)


def _known_coins(pilot: Pilot) -> Score:
    one_row = _one_row(pilot.present), _one_row(pilot.absent)

    def score(trace: Trace) -> np.ndarray:
        assert trace.drawn is not None
        x, drawn = trace.residual.double(), trace.drawn.double()
        ratios = [drawn * (x @ m) - drawn.square() * m.square().sum() / 2 for m in one_row]
        return (ratios[0] - ratios[1]).sum(dim=1).numpy()

    return score


def _mixtures(pilot: Pilot, rate: float) -> Score:
    chances = stats.binom.pmf(range(pilot.copies + 1), pilot.copies, rate)
    one_row = _one_row(pilot.present), _one_row(pilot.absent)

    def log_mixture(x: Tensor, m: Tensor) -> Tensor:
        along, square = x @ m, m.square().sum()
        if not m.any():
            return torch.zeros_like(along)
        terms = [math.log(chance) + j * along - j * j * square / 2 for j, chance in enumerate(chances) if chance > 0]
        return functools.reduce(torch.logaddexp, terms[1:], terms[0])

    def score(trace: Trace) -> np.ndarray:
        x = trace.residual.double()
        return (log_mixture(x, one_row[0]) - log_mixture(x, one_row[1])).sum(dim=1).numpy()

    return score


def _one_row(trace: Trace) -> Tensor:
    """What one row of the canary moves: the mean of shift over the number of rows drawn, (coordinates,)."""
    assert trace.drawn is not None
    drawn = trace.drawn.double()
    here = drawn > 0
    if not here.any():
        return trace.shift.new_zeros(trace.shift.shape[-1], dtype=torch.float64)
    return _finite(trace.shift[here].double() / drawn[here].unsqueeze(-1)).mean(dim=0)


def _rate(law: SamplingLaw) -> float | None:
    if isinstance(law, PoissonLaw | PoissonUnitLaw):
        return law.sample_rate
    return law.batch_size / law.num_records if isinstance(law, FixedSizeLaw) else None


def _mean_shift(pilot: Pilot) -> Tensor:
    """(queries, coordinates), float64: what the canary moves on average."""
    return _finite(pilot.present.shift).double().mean(dim=0) - _finite(pilot.absent.shift).double().mean(dim=0)


def _moments(pilot: Pilot) -> list[tuple[Tensor, Tensor]] | None:
    """Mean and covariance (with a ridge) of all queries and coordinates, of both worlds."""
    found = []
    for trace in (pilot.present, pilot.absent):
        x = _finite(_flat(trace.residual)).double()
        if not 1 < x.shape[1] <= MOST_FEATURES:
            return None
        found.append((x.mean(dim=0), torch.cov(x.mT) + RIDGE * torch.eye(x.shape[1], dtype=torch.float64)))
    return found


def _log_average(x: Tensor, patterns: Tensor) -> Tensor:
    """log of the average over patterns m of exp(<x, m> - |m|^2 / 2)."""
    return torch.logsumexp(x @ patterns.mT - patterns.square().sum(dim=1) / 2, dim=1) - math.log(len(patterns))


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 1e6, -1e6).clamp(-1e6, 1e6)
