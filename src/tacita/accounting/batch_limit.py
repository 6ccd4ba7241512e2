"""The least limit of a batch that costs hardly anything, from public settings alone.

Place: accountant -> [accounting.batch_limit] -> users. Derivation: docs/derivations/truncation.md.
"""

import math
from dataclasses import replace

from tacita import _validate
from tacita.accounting.accountant import epsilon
from tacita.accounting.events import Spend
from tacita.accounting.events.gaussian_sums import GaussianSumEvent
from tacita.accounting.sampling_laws import PoissonLaw, TruncatedPoissonLaw


def least_max_batch_size(
    event: GaussianSumEvent, queries: int, delta: float, *, num_records: int, excess: float = 0.005
) -> int:
    """Return the least ``max_batch_size`` with which Poisson sampling costs hardly more epsilon than without one.

    Only public settings decide. The noise is that of ``event``: if it is calibrated, ask with what was found.

    Args:
        event: The session without a limit: a clipped sum under Poisson sampling.
        queries: Queries planned.
        delta: Where epsilon is compared, in (0, 1).
        num_records: As in :class:`tacita.PoissonSampler`: under add_or_remove_one, the most that there may be.
        excess: Largest increase of epsilon, as a share of it.

    Raises:
        ValueError: ``event`` is not under a :class:`PoissonLaw`, or is not private.

    Example:
        >>> from tacita.accounting import GaussianSumEvent, PoissonLaw
        >>> event = GaussianSumEvent(
        ...     relation="zero_out_one", sampling=PoissonLaw(0.02), max_contribution=(1.0,), noise_std=(1.0,))
        >>> least_max_batch_size(event, 150, 1e-5, num_records=10_000)  # 200 on average
        265
    """
    law = event.sampling
    if not isinstance(law, PoissonLaw) or not event.private:
        raise ValueError("event must be a clipped sum with noise under Poisson sampling without max_batch_size.")
    most = (1 + _validate.positive("excess", excess)) * epsilon([Spend(event, queries)], delta).epsilon

    def is_enough(size: int) -> bool:
        truncated = replace(event, sampling=TruncatedPoissonLaw(law.sample_rate, size, num_records))
        return epsilon([Spend(truncated, queries)], delta).epsilon <= most

    mean = law.sample_rate * num_records
    low, high = 0, min(num_records + 1, math.ceil(mean + math.sqrt(mean)))
    while not is_enough(high):
        low, high = high, min(num_records + 1, 2 * high)  # beyond num_records nothing is cut off
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
