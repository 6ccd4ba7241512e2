"""Which guarantee is proved for error feedback: kind of feedback x how records are drawn x neighboring relation.

Place: [accounting.feedback_cells] -> accountant. What is not in these tables is refused when an oracle is built.
Proofs: docs/derivations/dicesgd.md.
"""

from typing import Any

from tacita.accounting.bounded_residual_events import (
    BoundedResidualEvent,
    BoundedResidualGaussianEvent,
    BoundedResidualPoissonEvent,
)
from tacita.accounting.cells import (
    EVERY_LAW,
    REFUSED,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    gaussian_sum_event,
)
from tacita.accounting.events import Event
from tacita.accounting.feedback_events import (
    AMPLIFIED,
    HiddenErrorEvent,
    HiddenErrorGaussianEvent,
    HiddenErrorPoissonEvent,
)
from tacita.accounting.first_draw_event import FirstDrawEvent
from tacita.accounting.interleaved_event import InterleavedEvent
from tacita.accounting.relations import RELATIONS, NeighboringRelation, check_relation
from tacita.errors import UnsupportedEventError

Cells = dict[NeighboringRelation, str]


def hidden_error_cells(law: SamplingLaw) -> Cells:
    """Relations under which a hidden error is accounted for, with what is charged."""
    each = "every query, no amplification"
    if isinstance(law, PoissonLaw):
        mixture = "the batch amplified, the error not"
        return {"add_or_remove_one": mixture, "replace_one": each, "zero_out_one": mixture}
    if isinstance(law, PoissonUnitLaw):
        return {"add_or_remove_one": "the batch amplified, the error not"}
    return _indexed_cells(law, each, (FullBatchLaw, FixedSizeLaw, DisjointLaw, ShuffledEpochsLaw))


def bounded_residual_cells(law: SamplingLaw) -> Cells:
    """Relations under which bounded residuals are accounted for, with what is charged."""
    if isinstance(law, PoissonLaw):
        charge = "once a session, by the number of draws"
        return dict.fromkeys(RELATIONS, charge)
    return _indexed_cells(law, "once a session", (FullBatchLaw, DisjointLaw, ShuffledEpochsLaw))


def _indexed_cells(law: SamplingLaw, charge: str, served: tuple[type[SamplingLaw], ...]) -> Cells:
    """For samplers whose batches may be conditioned on: a record's absence must not move the others."""
    if not isinstance(law, served):
        return {}
    cells: Cells = {"replace_one": charge, "zero_out_one": charge}
    alone = isinstance(law, FullBatchLaw) or getattr(law, "own_coin", False)
    return {"add_or_remove_one": charge, **cells} if alone else cells


def hidden_error_event(
    law: SamplingLaw,
    relation: NeighboringRelation,
    *,
    max_contribution: float,
    max_error_change: float,
    noise_std: float,
    every: int = 1,
    first_draw: bool = False,
) -> Event:
    """The event of a sum with a hidden error that is injected every ``every``-th query.

    Args:
        law: How records are drawn; a sampler states it.
        relation: The neighboring relation.
        max_contribution: Largest L2 norm one row adds to the sum.
        max_error_change: Twice the largest norm of what is injected.
        noise_std: Standard deviation of the noise on the sum.
        every: 1, or the error is injected in queries ``every``, 2 ``every``, ... only.
        first_draw: By the first draw (O3), the tight one.

    Raises:
        UnsupportedEventError: No guarantee is proved; the message names what is.

    Example:
        >>> hidden_error_event(PoissonLaw(0.02), "add_or_remove_one", max_contribution=1.0, max_error_change=2.0,
        ...                    noise_std=50.0).describe()[:38]
        'Poisson sampling, sample rate 0.02, hi'
    """
    _check(law, relation, hidden_error_cells(law), "a hidden error")
    values: dict[str, Any] = dict(relation=relation, max_contribution=max_contribution, noise_std=noise_std)
    injecting = _hidden(law, max_error_change, values)
    if first_draw:
        if not isinstance(law, PoissonLaw) or relation not in AMPLIFIED or every != 1:
            raise UnsupportedEventError(
                "first_draw is proved for PoissonSampler under add_or_remove_one and zero_out_one, with the error "
                "injected in every query. Leave it out, and the session is charged query by query."
            )
        return FirstDrawEvent(relation=relation, inner=injecting)
    if every == 1:
        return injecting
    plain: Event = _hidden(law, 0.0, values)
    if isinstance(injecting, HiddenErrorPoissonEvent):
        plain = gaussian_sum_event(law, (max_contribution,), (noise_std,), relation)
    return InterleavedEvent(relation=relation, inner=injecting, between=plain, every=every)


def _hidden(law: SamplingLaw, max_error_change: float, values: dict[str, Any]) -> HiddenErrorEvent:
    rows = law.max_rows_per_unit if isinstance(law, PoissonUnitLaw) else 1
    values = dict(values, max_error_change=max_error_change, max_rows_per_unit=rows)
    if isinstance(law, (PoissonLaw, PoissonUnitLaw)) and values["relation"] in AMPLIFIED:
        return HiddenErrorPoissonEvent(**values, sampling_probability=law.sample_rate)
    return HiddenErrorGaussianEvent(**values, sampling=law.words)


def bounded_residual_event(
    law: SamplingLaw,
    relation: NeighboringRelation,
    *,
    max_contribution: float,
    max_residual: float,
    noise_std: float,
    queries_per_epoch: int,
    injected_share: float | None = None,
    leak: float = 0.0,
) -> BoundedResidualEvent:
    """The event of a sum with a hidden error of bounded residuals: one for the session.

    Args:
        law: How records are drawn; a sampler states it.
        relation: The neighboring relation.
        max_contribution: Largest L2 norm one record adds to the sum.
        max_residual: Largest L2 norm one record adds to the error.
        noise_std: Standard deviation of the noise on the sum.
        queries_per_epoch: A record is in one of so many queries; not used under Poisson sampling.
        injected_share: The share of the error that every query injects; None if the error is clipped first.
        leak: Share of the rest that is forgotten.

    Raises:
        UnsupportedEventError: No guarantee is proved; the message names what is.
    """
    _check(law, relation, bounded_residual_cells(law), "bounded residuals")
    values: dict[str, Any] = dict(
        relation=relation,
        max_contribution=max_contribution,
        max_residual=max_residual,
        noise_std=noise_std,
        injected_share=injected_share,
        leak=leak,
    )
    if isinstance(law, PoissonLaw):
        return BoundedResidualPoissonEvent(**values, sampling_probability=law.sample_rate)
    return BoundedResidualGaussianEvent(**values, queries_per_epoch=queries_per_epoch, sampling=law.words)


def released_residual_event(
    law: SamplingLaw,
    relation: NeighboringRelation,
    *,
    max_contribution: tuple[float, float],
    noise_std: tuple[float, float],
    every: int = 1,
) -> Event:
    """The event of a clipped sum and, every ``every``-th query, of its clipped residuals beside it (M3).

    Args:
        law: How records are drawn; a sampler states it.
        relation: The neighboring relation.
        max_contribution: Largest L2 norm one record adds to the sum, and to the residuals.
        noise_std: Standard deviation of the noise on the sum, and on the residuals.
        every: 1, or the residuals are asked for in queries ``every``, 2 ``every``, ... only.

    Raises:
        UnsupportedEventError: No guarantee is proved for a clipped sum under this law and relation.
    """
    both = gaussian_sum_event(law, max_contribution, noise_std, relation)
    if every == 1 or not both.per_query:  # where a record is in one query of a pass, that one may ask for both
        return both
    alone = gaussian_sum_event(law, max_contribution[:1], noise_std[:1], relation)
    return InterleavedEvent(relation=relation, inner=both, between=alone, every=every)


def feedback_table() -> dict[str, dict[str, Cells]]:
    """Every cell: kind of feedback -> kind of sampling -> relation -> what is charged, or ``"refused"``."""
    kinds = {
        "PrivateFeedback": hidden_error_cells,
        "BoundedFeedback": bounded_residual_cells,
        "ReleasedFeedback": lambda law: law.cells,
    }
    return {
        kind: {law.words: {relation: cells(law).get(relation, REFUSED) for relation in RELATIONS} for law in EVERY_LAW}
        for kind, cells in kinds.items()
    }


def _check(law: SamplingLaw, relation: NeighboringRelation, cells: Cells, what: str) -> None:
    if check_relation(relation) in cells:
        return
    if cells:
        raise UnsupportedEventError(
            f"{law.words}: no guarantee is proved for {what} under {relation}; there is one under "
            f"{' and '.join(cells)}."
        )
    raise UnsupportedEventError(
        f"{law.words}: no guarantee is proved for {what} under any relation; there is one with PoissonSampler, "
        "FullBatchSampler, DisjointSampler and ShuffledEpochsSampler."
    )
