r"""Adversaries: two neighbouring data sets of a linear problem, chosen so that bounded values differ as much as can be.

The loss of a row is its inner product with the parameters, so a row is its own gradient at every point. A *schedule*
multiplies the canary from query to query: a loss may depend on earlier releases, so an adversary may send any gradient
at any time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import RELATIONS, NeighboringRelation, check_relation

Direction = Literal["slanted", "first coordinate", "all coordinates"]
Schedule = Literal["always", "first query", "alternating"]


@dataclass(frozen=True, kw_only=True)
class Adversary:
    r"""A canary beside other rows: for a unit vector u, the canary is ``canary`` u and every other row ``others`` u.

    Attributes:
        name: A short description.
        canary: Size of the canary; may be NaN or infinite.
        others: Signed size of the other rows.
        num_others: Number of other rows.
        replacement: Signed size of the canary's replacement under replace_one; by default the canary's opposite. Under
            that relation the other rows have this size too.
        opposed: Whether every second other row has the opposite sign, under every relation: the canary then decides
            between them, as in a median.
        copies: Number of rows of the canary (a person may have several).
        direction: The vector u: all coordinates different, the first coordinate only, or all coordinates equal.
        schedule: When the canary (and its replacement) is sent: in every query, in the first only, or with alternating
            signs.
        relations: The relations for which the adversary is suited.

    Example:
        >>> pair = CONSTANT.pair("add_or_remove_one", columns=2)
        >>> pair.present.shape, pair.absent.shape, pair.canary.tolist()
        (torch.Size([4, 2]), torch.Size([3, 2]), [False, False, False, True])
    """

    name: str
    canary: float
    others: float = 0.0
    num_others: int = 3
    replacement: float | None = None
    opposed: bool = False
    copies: int = 1
    direction: Direction = "slanted"
    schedule: Schedule = "always"
    relations: tuple[NeighboringRelation, ...] = RELATIONS

    def __post_init__(self) -> None:
        _validate.count("num_others", self.num_others, at_least=0)
        _validate.count("copies", self.copies)

    def pair(self, relation: NeighboringRelation, columns: int) -> "Pair":
        """Return the two data sets, float32 rows of ``columns`` entries; the canary's rows come last.

        Under replace_one the other rows equal the canary's replacement (up to signs, if ``opposed``). A
        batch of equal rows is the same whichever rows it holds, so it reveals nothing about the canary's own coin.
        """
        check_relation(relation)
        unit = self._unit(_validate.count("columns", columns))
        replacement = self._replacement * unit
        others = (replacement if relation == "replace_one" else self.others * unit).expand(self.num_others, columns)
        if self.opposed:
            others = others * (1 - 2 * (torch.arange(self.num_others) % 2)).unsqueeze(1).to(others.dtype)
        canary = (self.canary * unit).expand(self.copies, columns)
        instead = {
            "add_or_remove_one": canary[:0],
            "zero_out_one": torch.zeros_like(canary),
            "replace_one": replacement.expand(self.copies, columns),
        }[relation]
        return Pair(
            present=torch.cat([others, canary]),
            absent=torch.cat([others, instead]),
            canary=torch.arange(self.num_others + self.copies) >= self.num_others,
        )

    def factor(self, query: int) -> float:
        """Return the factor that multiplies the canary in this query."""
        factors = {"always": 1.0, "first query": float(query == 0), "alternating": 1.0 - 2.0 * (query % 2)}
        return factors[self.schedule]

    @property
    def _replacement(self) -> float:
        return -self.canary if self.replacement is None else self.replacement

    def _unit(self, columns: int) -> Tensor:
        if self.direction == "first coordinate":
            return torch.eye(columns)[0]
        steps = torch.arange(columns, dtype=torch.float64)
        slanted = torch.cos(1 + steps) + 0.1 * torch.sin(7 * steps)  # no two alike, none zero, both signs
        found = slanted if self.direction == "slanted" else torch.ones_like(steps)
        return (found / found.norm()).float()


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets; the canary's rows come last.

    Attributes:
        present: With the canary, (n, d).
        absent: Without the canary: its rows are missing, zero, or replaced.
        canary: Which rows of ``present`` are the canary's, bool, (n,).
    """

    present: Tensor = field(repr=False)
    absent: Tensor = field(repr=False)
    canary: Tensor = field(repr=False)


LARGE = 1e4  # against thresholds of 1 or so
FLIP = -64.0  # larger than the sum of any two thresholds of 1 or so, so that the estimator's state saturates

CONSTANT = Adversary(name="constant gradient", canary=LARGE)
EMPTY = Adversary(name="empty data set", canary=LARGE, num_others=0, relations=("add_or_remove_one",))
AGAINST = Adversary(name="against the others", canary=-1.0, others=1.0, replacement=1.0)
FLIPS_STATE = Adversary(name="flips accumulated state", canary=1e6, others=FLIP, replacement=FLIP)
FIRST_QUERY = Adversary(name="in the first query only", canary=1e6, schedule="first query")
ALTERNATING = Adversary(name="alternating signs", canary=LARGE, schedule="alternating")
COORDINATE = Adversary(name="one coordinate", canary=LARGE, direction="first coordinate")
ALL_COORDINATES = Adversary(name="all coordinates", canary=LARGE, direction="all coordinates")
NEAR_ROUNDING = Adversary(name="rescaled by a factor near rounding", canary=1 + 2**-20)
QUOTIENT = Adversary(name="rescaled by a quotient that rounds", canary=1e7 / 3)
BETWEEN = Adversary(  # a median moves where the others disagree
    name="between the others",
    canary=LARGE,
    others=LARGE,
    num_others=2,
    opposed=True,
    relations=("replace_one", "zero_out_one"),
)
SMALL = Adversary(name="small gradient", canary=1e-3)
ZERO = Adversary(name="zero gradient", canary=0.0, others=1.0, replacement=1.0)
HUGE = Adversary(name="huge gradient (1e30)", canary=1e30, others=1.0, replacement=1.0)
NOT_A_NUMBER = Adversary(name="NaN gradient", canary=torch.nan, others=1.0, replacement=1.0)
INFINITE = Adversary(name="infinite gradient", canary=torch.inf, others=1.0, replacement=1.0)

ADVERSARIES: Mapping[str, Adversary] = {
    adversary.name: adversary
    for adversary in (
        CONSTANT,
        EMPTY,
        AGAINST,
        FLIPS_STATE,
        FIRST_QUERY,
        ALTERNATING,
        COORDINATE,
        ALL_COORDINATES,
        NEAR_ROUNDING,
        QUOTIENT,
        BETWEEN,
        SMALL,
        ZERO,
        HUGE,
        NOT_A_NUMBER,
        INFINITE,
    )
}
HOSTILE = (HUGE, NOT_A_NUMBER, INFINITE)
