"""The two ways to fit a linear model: steps on clipped gradients, and the solution from released second moments."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum, Estimator
from tacita.gradients.engine import GradientSource
from tacita.ledger import Ledger, Session
from tacita.linear.losses import OutputLoss
from tacita.linear.row_blocks import RowBlocks, WithColumns
from tacita.linear.second_moment import SecondMoment
from tacita.linear.source import LinearSource, hessian_rows, table_rows
from tacita.linear_model import adaptive_ridge, rules
from tacita.linear_model.adaptive_ridge import adaptive_elastic_net
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.newton import NewtonDescent
from tacita.linear_model.preconditioned import MomentumDescent, PreconditionedDescent
from tacita.linear_model.rules import DescentRule
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import GradientOracle
from tacita.random import Randomness
from tacita.sampling import FullBatchSampler

ROW_NORM = 1.0
MOSTLY_MEAN, SEEN = 0.75, 4.0  # share of a mean in the squares from which on a warning is given; in noise deviations
OFF_CENTRE = {
    "rows": "take public means off the columns, or those of PrivateStandardScaler",
    "targets": "declare target_range, or take a public mean off them",
}


@dataclass(frozen=True)
class Planned:
    """Releases that are registered, and what their oracle is built from."""

    session: Session
    estimator: Estimator
    mechanism: GaussianMechanism


DescentPlan = tuple[Planned | None, Planned]  # the matrices, if the solver has any; the gradients


@dataclass(frozen=True)
class Paying:
    """What pays for a fit, and what its sessions are bound to.

    Attributes:
        ledger: The ledger.
        budget: The noise of each release.
        num_records: The public number of rows.
        randomness: The key of the run.
        settings: Public settings, for the hash of every session.
    """

    ledger: Ledger
    budget: FitBudget
    num_records: int
    randomness: Randomness
    settings: Mapping[str, Any]

    @property
    def sampler(self) -> FullBatchSampler:
        """Every query reads every row."""
        return FullBatchSampler(num_records=self.num_records)

    def register(self, event: Any, queries: int, purpose: str) -> Session:
        """Register a session before the first release of the fit."""
        return self.ledger.register(
            event,
            planned_queries=queries,
            purpose=purpose,
            settings=self.settings,
            secure_randomness=self.randomness.secure,
        )

    def plan(self, estimator: Estimator, share: float, *, queries: int = 1, purpose: str = "moments") -> Planned:
        """Register releases of an estimator over all rows; together they have this share of the budget."""
        mechanism = GaussianMechanism(noise_multiplier=self.budget.noise_multiplier(share, queries))
        shapes = {"weight": torch.Size([1, 1])}  # no event here depends on them
        event = estimator.session_event(mechanism, self.sampler, self.budget.relation, shapes)
        return Planned(self.register(event, queries, purpose), estimator, mechanism)

    def plan_moments(self, queries: int = 1) -> Planned:
        """Register the release of second moments, or of so many Hessians."""
        return self.plan(SecondMoment(max_row_norm=ROW_NORM), self.budget.moments, queries=queries)

    def plan_descent(self, rule: DescentRule) -> DescentPlan:
        """Register the matrices that the solver needs, and the gradients."""
        matrices = self.plan_moments(rule.matrices) if rule.matrices else None
        return matrices, self.plan(
            bounded_sum(rule.max_grad_norm), self.budget.rest, queries=rule.steps, purpose="train"
        )

    def oracle(self, planned: Planned, source: GradientSource) -> GradientOracle:
        """Return the oracle of releases that were registered before."""
        return GradientOracle(
            source,
            estimator=planned.estimator,
            mechanism=planned.mechanism,
            sampler=self.sampler,
            ledger=self.ledger,
            planned_queries=planned.session.planned_queries,
            settings=self.settings,
            session=planned.session,
            randomness=self.randomness,
        )


def bounded_sum(max_norm: float) -> ClippedSum:
    """Return the estimator of the sum of vectors of norm at most ``max_norm``; longer ones are clipped."""
    return ClippedSum(FlatClipper(max_grad_norm=max_norm))


def released_mean(paying: Paying, planned: Planned, rows: RowBlocks) -> tuple[np.ndarray, float]:
    """Return the noisy mean of ``rows``, (columns,), clipped as was planned, and its noise's deviation."""
    oracle = paying.oracle(planned, table_rows(rows, intercept=None))
    released = oracle.query({}).gradient["weight"][0].numpy()
    planned.session.close()
    (noise_std,) = oracle.noise_std.values()
    return released, noise_std / oracle.divisor


def released_moments(paying: Paying, planned: Planned, source: LinearSource) -> tuple[Tensor, float]:
    """Return the noisy mean of the second moments of the rows, and the noise on its released numbers."""
    oracle = paying.oracle(planned, source)
    release = oracle.query({})
    planned.session.close()
    return release.gradient["matrix"], oracle.noise_std["second_moment"] / oracle.divisor


def warn_of_offsets(moments: Tensor, noise_std: float, constant: int) -> None:
    """Warn of rows or targets that lie far from 0 compared to their spread, by released second moments.

    ``constant`` is the place of the constant: the columns stand before it, and a target may stand behind it.
    """
    squared_means = moments[constant].square() / moments[constant, constant].clamp(min=noise_std)
    for name, part in {"rows": slice(constant), "targets": slice(constant + 1, None)}.items():
        squares = moments.diagonal()[part].clamp(min=0.0).sum() + SEEN * noise_std
        if squared_means[part].sum() > MOSTLY_MEAN * squares:
            warnings.warn(
                f"{name} lie far from 0 compared to their spread, and the noise is in proportion to how far: "
                f"{OFF_CENTRE[name]}.",
                stacklevel=5,
            )


@dataclass(frozen=True)
class ScaledTable:
    """A table in units in which most rows, constant included, are no longer than 1.

    Attributes:
        features: The rows. Private.
        scale: What each column is multiplied by, (columns,).
        constant: The constant whose weight is the bias; ``None`` for a model without one.
        weights: What the loss of each row is multiplied by, in [0, 1], (rows,); 1 each if ``None``. Private.
        largest_weight: The public weight that 1 stands for.
    """

    features: RowBlocks
    scale: Tensor
    constant: float | None
    weights: np.ndarray | None = None
    largest_weight: float = 1.0

    @property
    def unit(self) -> dict[str, Any]:
        """What a source of gradients takes beside rows and targets."""
        return {"scale": self.scale, "intercept": self.constant, "weights": self.weights}

    @property
    def root_unit(self) -> dict[str, Any]:
        """The same for second moments, of which a weight multiplies both sides."""
        return {**self.unit, "weights": None if self.weights is None else np.sqrt(self.weights)}


@dataclass(frozen=True)
class Descent:
    """A descent on clipped gradients of a linear model, in scaled units, and what its solver needs.

    Attributes:
        paying: What pays.
        plans: The matrices and the gradients, registered.
        table: The rows.
        targets: (rows,), as the loss takes them. Private.
        loss: The loss.
        rule: Solver, T and C.
        penalty: alpha, in scaled units.
        curvatures: kappa of each of several phases that share the steps of the preconditioned solver, in place of the
            loss's own bound.
    """

    paying: Paying
    plans: DescentPlan
    table: ScaledTable
    targets: np.ndarray
    loss: OutputLoss
    rule: DescentRule
    penalty: float
    curvatures: Sequence[float] = ()

    def fit(self) -> tuple[dict[str, Tensor], float]:
        """Return the weight and the bias, in scaled units, and lambda; 0 with momentum, which has none."""
        table = self.table
        source = LinearSource(table.features, self.targets, self.loss, **table.unit)
        oracle = self.paying.oracle(self.plans[1], source)
        start = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in source.shapes.items()}
        solve = {"preconditioned": self._preconditioned, "newton": self._newton, "momentum": self._momentum}
        found = solve[self.rule.solver](oracle, start)
        self.plans[1].session.close()
        return found

    def _preconditioned(self, oracle: GradientOracle, found: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        table, steps, damping = self.table, self.rule.steps, 0.0
        assert self.plans[0] is not None, "registered by plan_descent"
        rows = table_rows(table.features, **table.root_unit)
        moment, noise_std = released_moments(self.paying, self.plans[0], rows)
        if table.constant is not None:
            warn_of_offsets(moment, noise_std, len(moment) - 1)
        phases = tuple(self.curvatures[:steps]) or (self.loss.curvature,)
        for phase, curvature in enumerate(phases):
            damping = self._damping(len(moment), curvature)
            found = PreconditionedDescent(
                oracle,
                found,
                steps=(phase + 1) * steps // len(phases) - phase * steps // len(phases),
                second_moment=moment,
                curvature=curvature,
                damping=damping,
                penalty=self.penalty,
                momentum=self.rule.momentum,
            ).run()
        return found, damping

    def _newton(self, oracle: GradientOracle, start: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        table, planned, curvature = self.table, self.plans[0], self.loss.curvature
        assert planned is not None, "registered by plan_descent"
        rows = hessian_rows(table.features, self.targets, self.loss, **table.root_unit)
        damping = self._damping(sum(len(part.t()) for part in start.values()), curvature)
        found = NewtonDescent(
            oracle,
            start,
            steps=self.rule.steps,
            hessians=self.paying.oracle(planned, rows),
            refresh=rules.REFRESH,
            curvature=curvature,
            damping=damping,
            penalty=self.penalty,
        ).run()
        planned.session.close()
        return found, damping

    def _momentum(self, oracle: GradientOracle, start: dict[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        paying, rule = self.paying, self.rule
        lr = rules.momentum_lr(
            num_records=paying.num_records, curvature=self.loss.curvature, rule=rule, budget=paying.budget
        )
        solver = MomentumDescent(oracle, start, steps=rule.steps, lr=lr, momentum=rules.MOMENTUM, penalty=self.penalty)
        return solver.run(), 0.0

    def _damping(self, columns: int, curvature: float) -> float:
        return rules.damping(
            num_records=self.paying.num_records,
            dim=columns,
            outputs=self.loss.num_outputs(),
            curvature=curvature,
            rule=self.rule,
            budget=self.paying.budget,
        )


def fit_by_moments(
    paying: Paying,
    planned: Planned,
    table: ScaledTable,
    targets: np.ndarray,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
) -> dict[str, Tensor]:
    """Return the weight and the bias, in scaled units, of least squares on released second moments, with penalties.

    Args:
        paying: What pays.
        planned: The release of the second moments.
        table: The rows.
        targets: (rows,), scaled. Private.
        l1, l2: Penalties of :func:`~tacita.linear_model.adaptive_elastic_net`, in scaled units; not on the bias.
    """
    columns = table.features.shape[1]
    rows = WithColumns(table.features, torch.from_numpy(np.asarray(targets, np.float64)).unsqueeze(1))
    source = table_rows(rows, **{**table.root_unit, "scale": torch.cat([table.scale, torch.ones(1)])})
    moment, noise_std = released_moments(paying, planned, source)
    order = [*range(columns), *([] if table.constant is None else [columns + 1]), columns]  # the target comes last
    moment = moment[order][:, order]
    if table.constant is not None:
        warn_of_offsets(moment, noise_std, columns)
    penalised = torch.ones(len(moment) - 1, dtype=torch.float64)
    penalised[columns:] = 0.0
    if l1:
        found = adaptive_elastic_net(moment, noise_std=noise_std, l1=l1 * penalised, l2=l2 * penalised)
    else:
        found = adaptive_ridge(moment, noise_std=noise_std, penalty=l2 * penalised)
    bias = {} if table.constant is None else {"bias": found[columns:]}
    return {"weight": found[:columns].unsqueeze(0), **bias}
