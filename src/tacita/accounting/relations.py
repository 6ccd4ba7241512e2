"""Neighboring relations: how two data sets that must not be told apart may differ.

The factor 2 of replace-one is written here and nowhere else.
"""

from tacita._choices import RELATIONS, NeighboringRelation, check_relation

__all__ = ["RELATIONS", "NeighboringRelation", "check_relation", "moved"]


def moved(relation: NeighboringRelation) -> int:
    r"""Return how many contributions of one record differ between neighbours: 1, or 2 under replace-one.

    A clipped sum with contributions of L2 norm at most :math:`C` has L2 sensitivity ``moved(relation)`` times
    :math:`C`.

    Example:
        >>> moved("add_or_remove_one"), moved("replace_one")
        (1, 2)
    """
    return 2 if check_relation(relation) == "replace_one" else 1
