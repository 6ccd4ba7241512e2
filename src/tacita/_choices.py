"""The names of closed sets of settings, which the command line shows in its help before anything else is imported."""

from typing import Literal, get_args

NeighboringRelation = Literal["add_or_remove_one", "replace_one", "zero_out_one"]
PlannedSampling = Literal["poisson", "full_batch", "one_pass"]

RELATIONS: tuple[NeighboringRelation, ...] = get_args(NeighboringRelation)


def check_relation(relation: str) -> NeighboringRelation:
    """Return ``relation`` if it is one of :data:`RELATIONS`, else raise ``ValueError``."""
    for known in RELATIONS:
        if relation == known:
            return known
    raise ValueError(f"neighboring_relation must be one of {', '.join(RELATIONS)}, got {relation!r}.")
