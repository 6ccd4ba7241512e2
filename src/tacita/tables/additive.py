r"""The additive model: one number for each bin of each column, learned in a few filtered steps.

:math:`f(x) = b + \sum_c w_c[\mathrm{bin}_c(x)]`: a linear model on features of which each column switches on one. The
gradient of a row is its residual times a vector of :math:`d + 1` ones, so that clipping rows at C bounds residuals at

.. math:: c = \frac{C}{k \sqrt{d + 1}}

where k is what the loss puts before the residual, and :func:`row_weight` is the factor on the loss that makes c a
constant. The oracle, its queries and their price are those of any other model; all that is here reads releases.

*The first quarter of the queries* is asked at the constant model, and their mean shows how much each column matters.
H is diagonal with the bought masses of a column's bins, weighted by the variance of a residual, and
:math:`w \sim N(0, \sigma^2 S)`, S that of a random walk over the bins of a number, the identity for a category. Then
the gradient is :math:`N(0, \sigma^2 H S H + N)`, N the law of its noise. That likelihood is the chance of each
:math:`\sigma`, over which steps are averaged: the largest alone would lose a column whose 0 is a little likelier.

*The others* are dealt out to T steps, whose queries are averaged. A step is the posterior mean of one noisy gradient:

.. math:: w \leftarrow w - \tfrac1\gamma \, \sigma^2 S H (\sigma^2 H S H + N)^{-1} g

so that what is well determined takes a Newton step and what drowned in noise takes none. Columns share rows, so that
:math:`\gamma = 1.6`; the constant lies in all of them, so that it is taken out of each and moves b alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor, nn

from tacita.tables.encoding import Encoder
from tacita.tables.features import BinsPiece, CategoryPiece
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.refinement import bins_of_all_rows
from tacita.tables.rules import HOLDOUT
from tacita.tables.survey import Facts

FIRST = 0.25  # share of the queries that are asked at the constant model
STEPS = 20  # filtered steps, among which the other queries are dealt out
RESIDUAL = {"classification": 0.5, "regression": 1.0}  # bound on a residual of the usual rows
GAMMA = 1.6  # steps are divided by it, because columns share rows
SIGMAS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # spread of a step of the random walk, or of a category
SPARE_MASS = 0.002  # of the rows, in every bin: a bin that noise emptied may hold some
MISSING_VARIANCE = 16.0  # of a number's missing cells, in steps of its random walk
SURE = 0.02  # bought class shares are taken to be at least this


def row_weight(encoder: Encoder, max_grad_norm: float) -> float:
    """Return the factor on the loss with which clipping at ``max_grad_norm`` bounds residuals at ``RESIDUAL``."""
    task = encoder.task or "classification"
    before = 2.0 if task == "regression" else math.sqrt(2)  # of a squared error; two classes have opposite residuals
    return max_grad_norm / (before * RESIDUAL[task] * math.sqrt(len(encoder.pieces) + 1))


@dataclass(frozen=True)
class BinnedColumn:
    """What is known about the bins of a column before the training.

    Attributes:
        place: Where its features stand.
        rows: Bought number of rows of each bin, above 0.
        prior: S, the prior covariance at sigma = 1.
        order: Its bins in increasing order, with zero where it lies, if a direction is declared; the missing cell is
            none of them.
        up: Whether the output rises along ``order``, or falls.
    """

    place: slice
    rows: np.ndarray
    prior: np.ndarray
    order: np.ndarray | None = None
    up: bool = True

    def project(self, weight: np.ndarray) -> np.ndarray:
        """Return the nearest weights, (outputs, bins), by bought masses, that keep the declared direction.

        The last output has it; the first of two classes the opposite one.
        """
        if self.order is not None:
            for output, own in enumerate(weight):
                up = self.up == (output == len(weight) - 1)
                own[self.order] = isotonic_regression(own[self.order], weights=self.rows[self.order], increasing=up).x
        return weight


def binned_columns(preprocessing: Preprocessing) -> list[BinnedColumn]:
    """Return the columns of an additive model with their bought masses."""
    survey, rows, first, found = preprocessing.survey, preprocessing.rows, 0, list[BinnedColumn]()
    assert survey is not None
    for piece in preprocessing.encoder.pieces:
        facts = survey.facts(piece.column)
        order, up = None, True
        if isinstance(piece, BinsPiece):
            counts, prior = masses(piece, facts), _walk(piece)
            if piece.monotone is not None:
                order, up = np.argsort(positions(piece)), piece.monotone == "up"
        else:
            assert isinstance(piece, CategoryPiece)
            known = [dict(facts.values).get(value, 0.0) for value in piece.values]
            counts, prior = np.array([*known, rows - sum(known)]), np.eye(piece.width)
        mass = 0.9 * np.maximum(counts, 0.0) + SPARE_MASS * rows
        found.append(BinnedColumn(slice(first, first + piece.width), mass, prior, order, up))
        first += piece.width
    return found


def masses(piece: BinsPiece, facts: Facts) -> np.ndarray:
    """Return the bought rows of each feature of a number: of its bins, of zero, and of cells that are no number."""
    counts, edges = np.zeros(piece.width), np.array([-np.inf, *piece.edges, np.inf])
    for bin in bins_of_all_rows(facts):
        share = np.maximum(np.minimum(edges[1:], bin.upper) - np.maximum(edges[:-1], bin.lower), 0.0)
        counts[:-2] += bin.count * share / share.sum()
    counts[-2:] = sum(bin.count for bin in facts.bins if bin.lower == bin.upper == 0), facts.missing
    return counts


def positions(piece: BinsPiece) -> np.ndarray:
    """Return where the bins of a number lie, with zero in its place."""
    order = np.arange(len(piece.edges) + 1, dtype=np.float64)
    return np.append(order, np.searchsorted(piece.edges, 0.0, side="right") - 0.5)


def _walk(piece: BinsPiece) -> np.ndarray:
    """Return the covariance of a random walk over the bins, with zero where it lies, and missing cells apart."""
    order = positions(piece)
    order -= order.min() - 1
    prior = np.zeros((piece.width, piece.width))
    prior[:-1, :-1] = np.minimum.outer(order, order)
    prior[-1, -1] = MISSING_VARIANCE
    return prior


def class_shares(preprocessing: Preprocessing) -> np.ndarray:
    """Return the bought share of each class, between 0.02 and 0.98; equal ones if classes are declared."""
    found = np.array([preprocessing.label_counts.get(name, 1.0) for name in preprocessing.encoder.classes])
    found = np.clip(found / found.sum(), SURE, 1 - SURE)
    return found / found.sum()


def start(model: nn.Linear, preprocessing: Preprocessing) -> None:
    """Set the constant of an untrained model to the log shares of the bought classes."""
    if preprocessing.encoder.task == "classification":
        logs = np.log(class_shares(preprocessing))
        with torch.no_grad():
            model.bias.copy_(torch.from_numpy(logs - logs.mean()))


class FilteredSteps(torch.optim.Optimizer):
    """The steps of an additive model: see the module. It reads gradients, which are releases, and nothing else.

    Args:
        model: A linear model on the features of an additive encoder.
        preprocessing: Knows the masses.
        queries, sample_rate: Of the training.
        noise_std: Of the mean gradient that a query releases.
        weight: The factor on the loss, of :func:`row_weight`.
    """

    def __init__(
        self,
        model: nn.Linear,
        preprocessing: Preprocessing,
        *,
        queries: int,
        sample_rate: float,
        noise_std: float,
        weight: float,
    ) -> None:
        super().__init__(model.parameters(), {"gamma": GAMMA})
        self._weight, self._bias = model.weight, model.bias
        self._columns = binned_columns(preprocessing)
        task, classes = preprocessing.encoder.task, len(preprocessing.encoder.classes)
        rows = (1 - HOLDOUT) * preprocessing.rows
        # ``scale`` turns a released mean gradient into a sum of residuals over the rows to train on.
        self._scale = rows / (weight * (2.0 if task == "regression" else 1.0))
        self._share = 1.0 if task == "regression" else (classes - 1) / classes  # of the noise, once classes are centred
        shares = np.array([1.0]) if task == "regression" else class_shares(preprocessing)
        self._curvature = shares * (1 - shares) / self._share if task != "regression" else shares
        self._rows, self._noise = rows, self._share * (noise_std * self._scale) ** 2
        self._sampling = (1 - sample_rate) / sample_rate  # Poisson sampling adds this share of h to the variance
        self._first = max(round(FIRST * queries), 1)
        steps = max(min(STEPS, queries - self._first), 1)
        self._ends = self._first + np.ceil(np.arange(1, steps + 1) * (queries - self._first) / steps)
        for parameter, width in ((self._weight, len(self._columns)), (self._bias, 1)):
            # An optimizer that is loaded has state of its parameters' dtype, so that it has no other here.
            self.state[parameter] = {
                "sum": torch.zeros_like(parameter),
                "made": torch.zeros(2),  # queries in the sum, and all of them
                "sigma": torch.zeros(width, len(SIGMAS)),  # the chance of each spread, by column
            }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one gradient in; move the model where the queries of a step are complete."""
        for parameter in (self._weight, self._bias):
            state, gradient = self.state[parameter], parameter.grad
            assert gradient is not None
            state["sum"] += gradient
            state["made"] += 1
            parameter.mul_(1.0)  # for the oracle, which asks that each release is taken in
        together, made = map(int, self.state[self._weight]["made"].tolist())
        if made == self._first or made in self._ends:
            self._move(together, choose=made == self._first)

    def _move(self, together: int, *, choose: bool) -> None:
        sums, totals = (self._mean_residuals(parameter, together) for parameter in (self._weight, self._bias))
        noise = self._noise / together
        sigma = self.state[self._weight]["sigma"]
        for number, column in enumerate(self._columns):
            mass = column.rows * self._rows / column.rows.sum()
            own = sums[:, column.place] - totals[:, None] * mass / mass.sum()
            laws = [_Law(v * mass, column.prior, noise, self._sampling / together) for v in self._curvature]
            if choose:
                sigma[number] = torch.from_numpy(_chances(laws, own, self._share))
            moved = np.stack([law.filtered(sigma[number].tolist(), g) for law, g in zip(laws, own, strict=True)])
            moved -= moved @ mass[:, None] / mass.sum()
            kept = column.project(self._weight[:, column.place].double().numpy() - moved / GAMMA)
            self._weight[:, column.place] = torch.from_numpy(kept).to(self._weight.dtype)
        self._bias -= torch.from_numpy(totals / (self._curvature * self._rows * GAMMA)).to(self._bias.dtype)

    def _mean_residuals(self, parameter: Tensor, together: int) -> np.ndarray:
        """Return the sums of residuals that the averaged queries show, with classes centred, and begin anew."""
        state = self.state[parameter]
        found = state["sum"].double().numpy() * (self._scale / together)
        found = found - found.mean(0) * (len(found) > 1)
        state["sum"].zero_()
        state["made"][0] = 0
        return found


class _Law:
    """The law of a column's gradient around the best weights, for one output."""

    def __init__(self, mass: np.ndarray, prior: np.ndarray, noise: float, sampling: float) -> None:
        self._mass, self._prior = mass, prior
        self._noise = np.diag(noise + sampling * mass)

    def _covariance(self, sigma: float) -> np.ndarray:
        return sigma**2 * self._mass[:, None] * self._prior * self._mass + self._noise

    def log_likelihood(self, sigma: float, gradient: np.ndarray) -> float:
        """Return the log likelihood of a gradient, but for a constant."""
        factor = np.linalg.cholesky(self._covariance(sigma))
        return -0.5 * float(np.square(np.linalg.solve(factor, gradient)).sum()) - float(np.log(np.diag(factor)).sum())

    def filtered(self, chances: Sequence[float], gradient: np.ndarray) -> np.ndarray:
        """Return the posterior mean of the weights that explain a gradient, over the spreads and their chances."""
        spreads = zip(SIGMAS, chances, strict=True)
        explained = sum(chance * s**2 * np.linalg.solve(self._covariance(s), gradient) for s, chance in spreads)
        return self._prior @ (self._mass * explained)


def _chances(laws: list[_Law], gradients: np.ndarray, share: float) -> np.ndarray:
    """Return the chance of each of ``SIGMAS`` given all outputs, of which centred ones say only ``share``."""
    found = [share * sum(law.log_likelihood(s, g) for law, g in zip(laws, gradients, strict=True)) for s in SIGMAS]
    chances = np.exp(np.array(found) - max(found))
    return chances / chances.sum()
