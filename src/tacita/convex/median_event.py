r"""The event of a coordinate-wise median of means with Gaussian noise.

It is no sum. But a record of a batch moves the values by a vector of L2 norm at most ``max_contribution``, whatever the
other records are. That is all that the proofs for sums use, so the same pairs hold
(docs/derivations/heavy-tailed-sco.md, section 8).
"""

from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events.gaussian_sums import NoisySumEvent, moved_in_sampled_queries, moved_in_some_queries
from tacita.accounting.events.sampled import Charges, Proof, SampledEvent
from tacita.accounting.sampling_laws import DisjointLaw, FullBatchLaw, PoissonLaw, ShuffledEpochsLaw


@dataclass(frozen=True, kw_only=True)
class MedianOfMeansEvent(NoisySumEvent, SampledEvent):
    """A coordinate-wise median over groups of records, with Gaussian noise; the divisor is public.

    Attributes:
        num_groups: Number of groups; the group of a record follows from its place in the data set.

    Example:
        >>> MedianOfMeansEvent(relation="replace_one", sampling=FullBatchLaw(), max_contribution=(5.0,),
        ...                    noise_std=(20.0,), num_groups=5).describe()
        'Full batch, noise_std 20 on a median of means in 5 groups, which one record moves by at most 5'
    """

    num_groups: int

    released = "a median of means"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("num_groups", self.num_groups)
        if len(self.noise_std) != 1:
            raise ValueError(
                f"noise_std must have one entry, because a median is one block, got {len(self.noise_std)}."
            )

    def describe(self) -> str:
        (std,), (contribution,) = self.noise_std, self.max_contribution
        return (
            f"{self.sampler}, noise_std {std:.6g} on a median of means in {self.num_groups} groups, which one record "
            f"moves by at most {contribution:.6g}"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            *self.sampling.assumptions(self.relation),
            "a record's group follows from its place in the data set, which no other record changes",
        )


_ONCE: Charges = {"replace_one": "one query in all, 2C", "zero_out_one": "one query in all"}
_EPOCHS: Charges = {
    "replace_one": "one query an epoch, no amplification, 2C",
    "zero_out_one": "one query an epoch, no amplification",
}
# Under add_or_remove_one nothing is proved: one more record moves all that follow it to other groups.
MedianOfMeansEvent.proofs = {
    PoissonLaw: Proof(
        {"replace_one": "amplified, by its own pair", "zero_out_one": "amplified"}, moved_in_sampled_queries
    ),
    FullBatchLaw: Proof({"replace_one": "every query, 2C", "zero_out_one": "every query"}, moved_in_some_queries),
    DisjointLaw: Proof(_ONCE, moved_in_some_queries),
    ShuffledEpochsLaw: Proof(_EPOCHS, moved_in_some_queries),
}
