"""Events of error feedback that are proved, by the sampling of records and by neighboring relation.

A combination without a proof (a *cell* of the table below) is refused when the oracle is built.
Proofs: docs/derivations/dicesgd.md.
"""

from tacita.accounting import (
    Event,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonLaw,
    SamplingLaw,
    check_relation,
    gaussian_sum_event,
)
from tacita.accounting.events.sampled import Cells, table_of
from tacita.error_feedback.bounded_residuals import BoundedResidualEvent
from tacita.error_feedback.first_draw import FirstDrawEvent
from tacita.error_feedback.hidden_errors import AMPLIFIED, HiddenErrorEvent
from tacita.error_feedback.interleaved import InterleavedEvent
from tacita.errors import UnsupportedEventError


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
    """Return the event of a sum with a hidden error that is injected every ``every``-th query.

    Args:
        law: How records are drawn; a sampler states it.
        relation: The neighboring relation.
        max_contribution: Largest L2 norm one row adds to the sum.
        max_error_change: Twice the largest norm of what is injected.
        noise_std: Standard deviation of the noise on the sum.
        every: 1, or the error is injected in queries ``every``, 2 ``every``, ... only.
        first_draw: Whether to account by the first draw of a record (O3), which is tighter.

    Raises:
        UnsupportedEventError: No guarantee is proved; the message names what is proved.

    Example:
        >>> hidden_error_event(PoissonLaw(0.02), "add_or_remove_one", max_contribution=1.0, max_error_change=2.0,
        ...                    noise_std=50.0).describe()[:38]
        'Poisson sampling, sample rate 0.02, hi'
    """

    def hidden(change: float) -> HiddenErrorEvent:
        return HiddenErrorEvent(
            relation=check_relation(relation),
            sampling=law,
            max_contribution=max_contribution,
            max_error_change=change,
            noise_std=noise_std,
        )

    injecting = hidden(max_error_change)
    if first_draw:
        if not isinstance(law, PoissonLaw) or relation not in AMPLIFIED or every != 1:
            raise UnsupportedEventError(
                "first_draw is proved for PoissonSampler under add_or_remove_one and zero_out_one, with the error "
                "injected in every query. Leave it out, and the session is charged query by query."
            )
        return FirstDrawEvent(relation=relation, inner=injecting)
    if every == 1:
        return injecting
    amplified = injecting.amplified
    plain = gaussian_sum_event(law, (max_contribution,), (noise_std,), relation) if amplified else hidden(0.0)
    return InterleavedEvent(relation=relation, inner=injecting, between=plain, every=every)


def bounded_residual_event(
    law: SamplingLaw,
    relation: NeighboringRelation,
    *,
    max_contribution: float,
    max_residual: float,
    noise_std: float,
    injected_share: float | None = None,
    leak: float = 0.0,
) -> BoundedResidualEvent:
    """Return the event of a sum with a hidden error of bounded residuals, charged once for the whole session.

    Args:
        law: How records are drawn; a sampler states it.
        relation: The neighboring relation.
        max_contribution: Largest L2 norm one record adds to the sum.
        max_residual: Largest L2 norm one record adds to the error.
        noise_std: Standard deviation of the noise on the sum.
        injected_share: The share of the error that every query injects; None if the error is clipped first.
        leak: Share of the rest that is forgotten.

    Raises:
        UnsupportedEventError: No guarantee is proved; the message names what is proved.
    """
    return BoundedResidualEvent(
        relation=relation,
        sampling=law,
        max_contribution=max_contribution,
        max_residual=max_residual,
        noise_std=noise_std,
        injected_share=injected_share,
        leak=leak,
    )


def released_residual_event(
    law: SamplingLaw,
    relation: NeighboringRelation,
    *,
    max_contribution: tuple[float, float],
    noise_std: tuple[float, float],
    every: int = 1,
) -> Event:
    """Return the event of a clipped sum that comes with its clipped residuals every ``every``-th query (M3).

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
    if every == 1 or not both.per_query:  # if a record is in one query of a pass, that query may ask for both
        return both
    alone = gaussian_sum_event(law, max_contribution[:1], noise_std[:1], relation)
    return InterleavedEvent(relation=relation, inner=both, between=alone, every=every)


def feedback_table() -> dict[str, dict[str, Cells]]:
    """Return the table of cells of each kind of error feedback."""
    return {
        "PrivateFeedback": table_of(HiddenErrorEvent),
        "BoundedFeedback": table_of(BoundedResidualEvent),
        "ReleasedFeedback": table_of(GaussianSumEvent),
    }
