r"""The event of a matrix of second moments with Gaussian noise.

A record adds :math:`x x^\top` with :math:`\lVert x \rVert \le 1`. Two such matrices have the inner product
:math:`(x^\top y)^2 \ge 0`, so that replacing one by the other moves the sum by at most :math:`\sqrt 2` times what one
of them adds (docs/derivations/linear-models.md, section 1).
"""

import math
from dataclasses import dataclass

from tacita.accounting.events.gaussian_sums import NoisySumEvent, moved_in_some_queries
from tacita.accounting.events.sampled import Proof, SampledEvent, every_relation
from tacita.accounting.relations import moved
from tacita.accounting.sampling_laws import FullBatchLaw


@dataclass(frozen=True, kw_only=True)
class SecondMomentEvent(NoisySumEvent, SampledEvent):
    r"""A sum of matrices :math:`x x^\top`, with Gaussian noise; one block, over all records.

    ``max_contribution`` is the largest Frobenius norm of one record's matrix.

    Example:
        >>> event = SecondMomentEvent(relation="replace_one", sampling=FullBatchLaw(), max_contribution=(1.0,),
        ...                           noise_std=(20.0,))
        >>> event.describe(), round(event.query_mu, 4)
        ('Full batch, noise_std 20 on second moments, to which one record adds at most 1', 0.0707)
    """

    released = "second moments"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.noise_std) != 1:
            raise ValueError(f"noise_std must have one entry, because it is one block, got {len(self.noise_std)}.")

    @property
    def query_mu(self) -> float:
        return math.sqrt(moved(self.relation)) * self.ratio

    def describe(self) -> str:
        (std,), (contribution,) = self.noise_std, self.max_contribution
        return (
            f"{self.sampler}, noise_std {std:.6g} on second moments, to which one record adds at most "
            f"{contribution:.6g}"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*self.sampling.assumptions(self.relation), "a record adds the outer product of a vector with itself")


# Other laws are left out because nobody needs them: the pairs of sampled queries would have to be derived anew.
SecondMomentEvent.proofs = {
    FullBatchLaw: Proof(every_relation("every query", replacing="every query, sqrt(2) C"), moved_in_some_queries)
}
