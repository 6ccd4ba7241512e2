"""The two ways to fit a linear model: steps on clipped gradients, and the solution from released second moments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum, Estimator, SecondMoment
from tacita.gradients.engine import GradientSource
from tacita.gradients.linear_blocks import LinearBlocksSource
from tacita.gradients.linear_losses import OutputLoss
from tacita.gradients.row_blocks import RowBlocks
from tacita.gradients.table_rows import TableRowsSource
from tacita.ledger import Ledger, Session
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.rules import DescentRule
from tacita.mechanisms import GaussianMechanism
from tacita.methods import PreconditionedDescent, adaptive_ridge
from tacita.oracles import GradientOracle
from tacita.random import Randomness
from tacita.sampling import FullBatchSampler

ROW_NORM = 1.0


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

    def moments_session(self, columns: int) -> Session:
        """Register the release of second moments."""
        shapes = {"row": torch.Size([columns])}
        estimator, mechanism = SecondMoment(max_row_norm=ROW_NORM), self.moments_mechanism
        event = estimator.session_event(mechanism, self.sampler, self.budget.relation, shapes)
        return self.register(event, 1, "moments")

    @property
    def moments_mechanism(self) -> GaussianMechanism:
        """The noise of the second moments."""
        return GaussianMechanism(noise_multiplier=self.budget.noise_multiplier(self.budget.moments))

    def gradients_session(self, rule: DescentRule) -> Session:
        """Register the gradients."""
        estimator = ClippedSum(FlatClipper(max_grad_norm=rule.max_grad_norm))
        event = estimator.session_event(
            self.gradients_mechanism(rule), self.sampler, self.budget.relation, {"weight": torch.Size([1, 1])}
        )
        return self.register(event, rule.steps, "train")

    def gradients_mechanism(self, rule: DescentRule) -> GaussianMechanism:
        """Return the mechanism that adds the noise of each gradient."""
        return GaussianMechanism(noise_multiplier=self.budget.noise_multiplier(self.budget.rest, rule.steps))

    def oracle(
        self, session: Session, source: GradientSource, estimator: Estimator, mechanism: GaussianMechanism
    ) -> GradientOracle:
        """Return the oracle of a session that was registered before, on all rows."""
        return GradientOracle(
            source,
            estimator=estimator,
            mechanism=mechanism,
            sampler=self.sampler,
            ledger=self.ledger,
            planned_queries=session.planned_queries,
            settings=self.settings,
            session=session,
            randomness=self.randomness,
        )


def released_moments(paying: Paying, session: Session, source: TableRowsSource) -> tuple[Tensor, float]:
    """Return the noisy mean of the second moments of the rows, and the noise on its released numbers."""
    oracle = paying.oracle(session, source, SecondMoment(max_row_norm=ROW_NORM), paying.moments_mechanism)
    release = oracle.query({})
    session.close()
    return release.gradient["matrix"], oracle.noise_std["second_moment"] / oracle.divisor


@dataclass(frozen=True)
class ScaledTable:
    """A table in units in which most rows, constant included, are no longer than 1.

    Attributes:
        features: The rows. Private.
        scale: What each column is multiplied by, (columns,).
        constant: The constant whose weight is the bias; ``None`` for a model without one.
    """

    features: RowBlocks
    scale: Tensor
    constant: float | None


def fit_by_descent(
    paying: Paying,
    sessions: tuple[Session, Session],
    table: ScaledTable,
    targets: np.ndarray,
    *,
    loss: OutputLoss,
    rule: DescentRule,
    penalty: float,
) -> dict[str, Tensor]:
    """Return the weight and the bias, in scaled units, after preconditioned steps on clipped gradients.

    Args:
        paying: What pays.
        sessions: The session of the second moments, and that of the gradients.
        table: The rows.
        targets: (rows,), as the loss takes them. Private.
        loss: The loss.
        rule: T, C and lambda.
        penalty: alpha, in scaled units.
    """
    moment, _ = released_moments(
        paying, sessions[0], TableRowsSource(table.features, scale=table.scale, intercept=table.constant)
    )
    source = LinearBlocksSource(table.features, targets, loss, scale=table.scale, intercept=table.constant)
    estimator = ClippedSum(FlatClipper(max_grad_norm=rule.max_grad_norm))
    oracle = paying.oracle(sessions[1], source, estimator, paying.gradients_mechanism(rule))
    start = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in source.shapes.items()}
    solver = PreconditionedDescent(
        oracle,
        start,
        steps=rule.steps,
        second_moment=moment,
        curvature=loss.curvature,
        damping=rule.damping,
        penalty=penalty,
    )
    found = solver.run()
    sessions[1].close()
    return found


def fit_by_moments(
    paying: Paying, session: Session, table: ScaledTable, targets: np.ndarray, penalty: float
) -> dict[str, Tensor]:
    """Return the weight and the bias, in scaled units, of the ridge regression on released second moments.

    Args:
        paying: What pays.
        session: The session of the second moments.
        table: The rows.
        targets: (rows,), scaled. Private.
        penalty: alpha, in scaled units; not on the bias.
    """
    more = torch.from_numpy(np.asarray(targets, np.float64)).unsqueeze(1)
    source = TableRowsSource(table.features, scale=table.scale, intercept=table.constant, more=more)
    moment, noise_std = released_moments(paying, session, source)
    columns = table.features.shape[1]
    diagonal = torch.full((len(moment) - 1,), penalty, dtype=torch.float64)
    diagonal[columns:] = 0.0
    found = adaptive_ridge(moment, noise_std=noise_std, penalty=diagonal)
    bias = {} if table.constant is None else {"bias": found[columns:]}
    return {"weight": found[:columns].unsqueeze(0), **bias}
