"""Parts: which sessions can see the same record, and which cannot.

The sessions that can see a record are those of its *class of records*. The guarantee for the record composes them, and
the guarantee for all records is the worst over classes. This is parallel composition; proof:
docs/derivations/composition.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, get_args

from tacita import _validate
from tacita.accounting.relations import NeighboringRelation
from tacita.errors import LedgerError, UnsupportedEventError

PartKind = Literal["coin", "range"]
MAX_CLASSES = 4096
ROUNDING = 1e-9  # of a sum of fractions


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a split of the records.

    Two parts of the same split share no record if both are by coin and their indices differ, or both are by range and
    the ranges are disjoint. All other parts, also those of two different splits, are assumed to share records.

    Assumes: ``split`` names one drawing of the coins (or one order of the rows). Two splits of the same name count as
    the same split, so the name must be unique within a ledger.

    Attributes:
        split: The split's name.
        kind: "coin" (each record, or each person if that is the unit, draws its part independently of all others) or
            "range" (rows ``start`` to ``stop - 1``, fixed without looking at the data).
        index: The number of the part within the split, from 0.
        fraction: With "coin": the probability of this part, in (0, 1].
        start: With "range": the first row.
        stop: With "range": one past the last row.
        units: With "coin": ``True`` if all rows of a unit (a person) share that unit's coin; ``None`` if each row has
            its own.

    Example:
        >>> first = Part(split="phases", kind="range", index=0, start=0, stop=100)
        >>> first.overlaps(Part(split="phases", kind="range", index=1, start=100, stop=300))
        False
    """

    split: str
    kind: PartKind
    index: int
    fraction: float | None = None
    start: int | None = None
    stop: int | None = None
    units: bool | None = None

    def __post_init__(self):
        if not isinstance(self.split, str) or not self.split:
            raise ValueError(f"split must be a name, got {self.split!r}.")
        if self.kind not in get_args(PartKind):
            raise ValueError(f"kind must be coin or range, got {self.kind!r}.")
        _validate.count("index", self.index, at_least=0)
        if self.units not in (None, True) or (self.units and self.kind != "coin"):
            raise ValueError(f"units must be True or None, and True only with kind='coin', got {self.units!r}.")
        if self.kind == "coin":
            if self.start is not None or self.stop is not None:
                raise ValueError("start and stop belong to a part by range, got them with kind='coin'.")
            if self.fraction is not None:
                _validate.probability("fraction", self.fraction)
            return
        if self.start is None or self.stop is None:
            raise ValueError("A part by range needs start and stop.")
        _validate.count("start", self.start, at_least=0)
        _validate.count("stop", self.stop, at_least=self.start + 1)

    def overlaps(self, other: "Part") -> bool:
        """Return whether a record may be in both parts."""
        if self.split != other.split or self.kind != other.kind:
            return True
        if self.kind == "coin":
            return self.index == other.index
        return max(self.rows.start, other.rows.start) < min(self.rows.stop, other.rows.stop)

    @property
    def rows(self) -> range:
        """The rows of a part by range."""
        if self.start is None or self.stop is None:
            raise ValueError("A part by coin has no rows of its own.")
        return range(self.start, self.stop)

    def to_dict(self) -> dict[str, Any]:
        """Return the part as a line of the ledger holds it."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> "Part":
        """Read what :meth:`to_dict` wrote; raise ``TypeError`` for an unknown name, ``ValueError`` for a bad value."""
        return Part(**fields)


def overlap(one: Part | None, other: Part | None) -> bool:
    """Return whether a record may be in both parts; ``None`` is all records."""
    return one is None or other is None or one.overlaps(other)


def check_part(part: Part, relation: NeighboringRelation) -> None:
    """Raise unless ``part`` is disjoint from the other parts of its split under ``relation``.

    A range of rows is fixed only if the number of rows is: under ``add_or_remove_one``, one more record moves all
    records that follow it to other rows. Units can be split under ``add_or_remove_one`` only: the unit that replaces
    another has another name, therefore another coin, and may be in another part.

    Raises:
        UnsupportedEventError: ``part`` is by range under ``add_or_remove_one``, or by units under another relation.
    """
    if part.units and relation != "add_or_remove_one":
        raise UnsupportedEventError(
            f"A part by units (split {part.split!r}) needs add_or_remove_one, got {relation}: a unit that takes the "
            "place of another has another coin, and the sizes of the parts reveal it. Make one row of each unit and "
            "split rows, or use add_or_remove_one."
        )
    if part.kind == "range" and relation == "add_or_remove_one":
        raise UnsupportedEventError(
            f"A part by range of rows (split {part.split!r}) is not disjoint under add_or_remove_one: one more record "
            "moves the others. Split by coin, or use replace_one or zero_out_one."
        )


def check_drawing(part: Part, others: Iterable[Part | None]) -> None:
    """Raise unless a part by coin can be of the same drawing as the ``others`` of its split.

    Raises:
        LedgerError: The fractions of the drawing add up to more than 1, or one index has two fractions; or units have
            coins in some parts, and rows in others.
    """
    if part.kind != "coin":
        return
    drawing = [part, *(one for one in others if one is not None and one.kind == "coin" and one.split == part.split)]
    fractions: dict[int, float | None] = {}
    for one in drawing:
        if one.units != part.units or fractions.setdefault(one.index, one.fraction) != one.fraction:
            raise LedgerError(
                f"split {part.split!r} was drawn with other fractions or units: its parts are not disjoint from those "
                "of the first drawing. Give each drawing a name of its own."
            )
    if sum(fraction or 0.0 for fraction in fractions.values()) > 1 + ROUNDING:
        raise LedgerError(
            f"the fractions of split {part.split!r} add up to more than 1: its parts are not those of one drawing. "
            "Give each drawing a name of its own."
        )


def record_classes(parts: Sequence[Part | None]) -> list[tuple[int, ...]]:
    """Return the largest sets of positions in ``parts`` that one record can be in.

    Every record is in the parts of one of these sets, or in fewer. Within a split there is one set for each index,
    or for each run of rows between two boundaries; the sets of different splits combine freely. If there
    would be more than ``MAX_CLASSES`` sets, only the splits with the most parts are combined, and a record is counted
    in all parts of the other splits, which gives an upper bound.

    Example:
        >>> coin = [Part(split="s", kind="coin", index=i) for i in (0, 1)]
        >>> record_classes([None, coin[0], coin[1]])
        [(0, 1), (0, 2)]
    """
    splits: dict[tuple[str, str], list[int]] = {}
    for position, part in enumerate(parts):
        if part is not None:
            splits.setdefault((part.split, part.kind), []).append(position)
    shared = {position for position, part in enumerate(parts) if part is None}
    choices: list[list[frozenset[int]]] = []
    size = 1
    for positions in sorted(splits.values(), key=len, reverse=True):
        cells = _cells([(position, parts[position]) for position in positions])
        if choices and size * len(cells) > MAX_CLASSES:
            shared.update(positions)
            continue
        size *= len(cells)
        choices.append(cells)
    classes = {tuple(sorted(shared.union(*choice))) for choice in product(*choices)}
    return sorted(classes)


def _cells(members: list[tuple[int, Any]]) -> list[frozenset[int]]:
    """Return the largest sets of positions within one split that one record can be in."""
    if members[0][1].kind == "coin":
        groups: dict[int, set[int]] = {}
        for position, part in members:
            groups.setdefault(part.index, set()).add(position)
        return [frozenset(group) for group in groups.values()]
    # Ranges that share a row also share the first row of the one that starts last.
    starts = {part.start for _, part in members}
    at_starts = {frozenset(position for position, part in members if part.start <= row < part.stop) for row in starts}
    return [cell for cell in at_starts if not any(cell < other for other in at_starts)]
