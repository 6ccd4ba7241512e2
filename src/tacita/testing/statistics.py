r"""Statistics: functions from the releases of a run to one score, high if the canary seems present.

A statistic is fitted on pilot runs, which are not used to judge, and then scores other runs. Any function of the
residuals is allowed; a poor one costs power, never validity.

For estimators without a state the exact likelihood ratio is known. Let x be the residual of a query and m the effect of
one row of the canary. A canary that is in for certain gives :math:`\log \Lambda = \langle x, m \rangle - |m|^2/2 =:
\ell(m)`; a canary that is in with probability q, :math:`\log(1 - q + q e^{\ell(m)})`; one with k rows,
:math:`\log \sum_j \mathrm{Binom}(k, q)(j)\, e^{\ell(jm)}`. Under replace_one the same term for the replacement is
subtracted. The terms of all queries are added. A canary that is in one of b batches, in secret, gives :math:`\log
\frac1b \sum_i e^{\ell_i(m)}` an epoch, where batches not yet released count as 1.
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

from tacita.accounting import FixedSizeLaw, PoissonLaw, PoissonUnitLaw, SamplingLaw, TruncatedPoissonLaw
from tacita.accounting.sampling_laws import AssignedLaw, CyclicPoissonLaw
from tacita.testing.simulator import Trace

PATTERNS = 256
RIDGE = 1e-6
MOST_FEATURES = 64
Score = Callable[[Trace], np.ndarray]


@dataclass(frozen=True)
class Pilot:
    """The runs on which statistics are fitted.

    Attributes:
        present: Runs with the canary.
        absent: Runs without it.
        law: The sampling law, if it is known.
        copies: Number of rows of the canary.
        coins_known: Whether the claim holds even for an adversary who knows in which queries the canary is.
        remembers: Whether the estimator has a state.
    """

    present: Trace
    absent: Trace
    law: SamplingLaw | None
    copies: int
    coins_known: bool
    remembers: bool


class Statistic(ABC):
    """Base of the statistics."""

    name: str

    @abstractmethod
    def fit(self, pilot: Pilot) -> Score | None:
        """Return the score; ``None`` if this statistic adds nothing for such runs."""


class LikelihoodRatio(Statistic):
    """The exact likelihood ratio, for estimators without a state."""

    name = "exact likelihood ratio"

    def fit(self, pilot: Pilot) -> Score | None:
        if pilot.remembers or pilot.law is None or isinstance(pilot.law, CyclicPoissonLaw):
            return None
        if pilot.coins_known:
            return _known_coins(pilot)
        if isinstance(pilot.law, AssignedLaw):
            return _allocated(pilot, pilot.law.batches or 1)
        rate = _rate(pilot.law)
        return None if rate is None else _mixtures(pilot, rate)


class GivenTheOthers(Statistic):
    """The likelihood ratio if the canary's probability to be drawn depends on the query and on the number of others.

    Under Poisson sampling it does not. The claim must hold against an adversary who knows the others' coins. These
    reveal the canary's coin if batches in truth have a fixed size, or are assigned by row number.
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
    """A likelihood ratio that averages over the canary's coins in pilot runs, where these act on several queries."""

    name = "averaged likelihood ratio"

    def fit(self, pilot: Pilot) -> Score | None:
        if not pilot.remembers and not isinstance(pilot.law, CyclicPoissonLaw):
            return None
        present, absent = (_flat(trace.shift[:PATTERNS]).double() for trace in (pilot.present, pilot.absent))

        def score(trace: Trace) -> np.ndarray:
            x = _flat(trace.residual).double()
            return (_log_average(x, present) - _log_average(x, absent)).numpy()

        return score


class Total(Statistic):
    """The inner product of all residuals with the canary's average effect."""

    name = "total along the canary"

    def fit(self, pilot: Pilot) -> Score | None:
        weights = _mean_shift(pilot)

        def score(trace: Trace) -> np.ndarray:
            return (_flat(trace.residual).double() @ weights.flatten()).numpy()

        return score


class FinalParameters(Statistic):
    """The sum of all queries' residuals along the canary, which the last parameters of SGD reveal."""

    name = "final parameters"

    def fit(self, pilot: Pilot) -> Score | None:
        direction = _mean_shift(pilot).sum(dim=0)

        def score(trace: Trace) -> np.ndarray:
            return (trace.residual.double().sum(dim=1) @ direction).numpy()

        return score


class Largest(Statistic):
    """The largest of the queries' residuals along the canary."""

    name = "largest query"

    def fit(self, pilot: Pilot) -> Score | None:
        if pilot.present.residual.shape[1] == 1:
            return None
        direction = _mean_shift(pilot).sum(dim=0)

        def score(trace: Trace) -> np.ndarray:
            return (trace.residual.double() @ direction).amax(dim=1).numpy()

        return score


class Squares(Statistic):
    """The sum of squares over all directions."""

    name = "sum of squares"

    def fit(self, pilot: Pilot) -> Score | None:
        return lambda trace: _flat(trace.residual).double().square().sum(dim=1).numpy()


class LinearDiscriminant(Statistic):
    """Fisher's linear discriminant of the pilot runs, which detects noise that cancels elsewhere."""

    name = "linear discriminant"

    def fit(self, pilot: Pilot) -> Score | None:
        fitted = _moments(pilot)
        if fitted is None:
            return None
        (mean, covariance), (other, others) = fitted
        weights = torch.linalg.solve((covariance + others) / 2, mean - other)
        return lambda trace: (_flat(trace.residual).double() @ weights).numpy()


class QuadraticDiscriminant(Statistic):
    """The likelihood ratio of two normal laws fitted to the pilot runs, which detects noise that is reused."""

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
    """Return how often the canary was drawn, by query and by number of other rows in the batch: (queries, numbers)."""
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


def _allocated(pilot: Pilot, batches: int) -> Score:
    one_row = _one_row(pilot.present), _one_row(pilot.absent)

    def log_means(x: Tensor, m: Tensor) -> Tensor:
        ratios = x @ m - m.square().sum() / 2
        epochs = torch.nn.functional.pad(ratios, (0, -ratios.shape[1] % batches)).unflatten(1, (-1, batches))
        return epochs.logsumexp(dim=-1) - math.log(batches)

    def score(trace: Trace) -> np.ndarray:
        x = trace.residual.double()
        return (log_means(x, one_row[0]) - log_means(x, one_row[1])).sum(dim=1).numpy()

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
    """Return the effect of one row of the canary: the mean of shift over the number of rows drawn, (coordinates,)."""
    assert trace.drawn is not None
    drawn = trace.drawn.double()
    here = drawn > 0
    if not here.any():
        return trace.shift.new_zeros(trace.shift.shape[-1], dtype=torch.float64)
    return _finite(trace.shift[here].double() / drawn[here].unsqueeze(-1)).mean(dim=0)


def _rate(law: SamplingLaw) -> float | None:
    if isinstance(law, PoissonLaw | PoissonUnitLaw | TruncatedPoissonLaw):
        return law.sample_rate
    return law.batch_size / law.num_records if isinstance(law, FixedSizeLaw) else None


def _mean_shift(pilot: Pilot) -> Tensor:
    """Return the canary's average effect, (queries, coordinates), float64."""
    return _finite(pilot.present.shift).double().mean(dim=0) - _finite(pilot.absent.shift).double().mean(dim=0)


def _moments(pilot: Pilot) -> list[tuple[Tensor, Tensor]] | None:
    """Return mean and covariance (with a ridge) of all queries and coordinates, for each world."""
    found = []
    for trace in (pilot.present, pilot.absent):
        x = _finite(_flat(trace.residual)).double()
        if not 1 < x.shape[1] <= MOST_FEATURES:
            return None
        found.append((x.mean(dim=0), torch.cov(x.mT) + RIDGE * torch.eye(x.shape[1], dtype=torch.float64)))
    return found


def _log_average(x: Tensor, patterns: Tensor) -> Tensor:
    """Return the logarithm of the average of exp(<x, m> - |m|^2 / 2) over the patterns m."""
    return torch.logsumexp(x @ patterns.mT - patterns.square().sum(dim=1) / 2, dim=1) - math.log(len(patterns))


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 1e6, -1e6).clamp(-1e6, 1e6)
