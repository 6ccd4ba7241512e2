"""Neighboring relations: how two data sets that must not be told apart may differ.

The factor 2 of replace-one is written here and nowhere else.
"""

from typing import get_args

from tacita._choices import NeighboringRelation

RELATIONS: tuple[NeighboringRelation, ...] = get_args(NeighboringRelation)


def check_relation(relation: str) -> NeighboringRelation:
    """Return ``relation`` if it is one of :data:`RELATIONS`, else raise ``ValueError``."""
    for known in RELATIONS:
        if relation == known:
            return known
    raise ValueError(f"neighboring_relation must be one of {', '.join(RELATIONS)}, got {relation!r}.")


def moved(relation: NeighboringRelation) -> int:
    r"""Return how many contributions of one record differ between neighbours: 1, or 2 under replace-one.

    A clipped sum with contributions of L2 norm at most :math:`C` has L2 sensitivity ``moved(relation)`` times
    :math:`C`.

    Example:
        >>> moved("add_or_remove_one"), moved("replace_one")
        (1, 2)
    """
    return 2 if check_relation(relation) == "replace_one" else 1
