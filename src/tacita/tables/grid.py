"""The grid of settings among which a selection chooses, and the probability of each; both are public.

Each run draws its point at random with replacement, independently of earlier draws. Only then are the runs independent
and identically distributed, as the proof requires.
"""

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacita import _validate
from tacita._near_names import did_you_mean
from tacita.random import Stream
from tacita.tables.number_of_runs import NumberOfRuns

Value = str | int | float | bool
Point = dict[str, Value]
MOST_POINTS = 100_000
SWEEP_KEYS = {"mean_runs", "shape", "pad_to", "grid", "weights"}
GEOMETRIC = 1.0  # the shape that a front end chooses if none is given; there is always at least one run


@dataclass(frozen=True)
class Grid:
    """All combinations of the values of several settings, each drawn with a public probability.

    Attributes:
        values: Name -> values, at least one each.
        weights: Name -> a positive weight for each value; for other names, values are drawn uniformly.

    Example:
        >>> grid = Grid({"lr": (0.1, 1.0), "max_grad_norm": (0.5, 1.0)}, weights={"lr": (1, 3)})
        >>> len(grid.points), grid.points[0], grid.chances.round(3).tolist()
        (4, {'lr': 0.1, 'max_grad_norm': 0.5}, [0.125, 0.125, 0.375, 0.375])
    """

    values: Mapping[str, Sequence[Value]]
    weights: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or not self.values:
            raise ValueError("grid must name at least one setting, with a list of values.")
        object.__setattr__(self, "values", {name: _values(name, given) for name, given in self.values.items()})
        object.__setattr__(self, "weights", {name: self._weights(name, w) for name, w in self.weights.items()})
        if math.prod(len(values) for values in self.values.values()) > MOST_POINTS:
            raise ValueError(f"grid must have at most {MOST_POINTS} combinations.")

    @property
    def points(self) -> list[Point]:
        """All combinations, in the order of the names and values."""
        return [dict(zip(self.values, values, strict=True)) for values in itertools.product(*self.values.values())]

    @property
    def chances(self) -> np.ndarray:
        """The probability of each point, in the order of :attr:`points`."""
        each = [self.weights.get(name, (1.0,) * len(values)) for name, values in self.values.items()]
        products = np.array([math.prod(chosen) for chosen in itertools.product(*each)])
        return products / products.sum()

    def draw(self, stream: Stream) -> int:
        """Draw a point, uniformly or by the weights; return its number."""
        if not self.weights:
            return int(stream.integers(1, len(self.points))[0])
        at = int(stream.words(1)[0]) / 2.0**64
        return int(np.searchsorted(np.cumsum(self.chances)[:-1], at, side="right"))

    def to_dict(self) -> dict[str, Any]:
        """Return the grid as plain JSON values."""
        plain: dict[str, Any] = {"values": {name: list(values) for name, values in self.values.items()}}
        return plain | ({"weights": {n: list(w) for n, w in self.weights.items()}} if self.weights else {})

    def _weights(self, name: str, given: Any) -> tuple[float, ...]:
        if name not in self.values:
            raise ValueError(f"weights must only name settings of the grid, got {name!r}.")
        weights = tuple(_validate.positive(f"weights of {name}", weight) for weight in given)
        if len(weights) != len(self.values[name]):
            raise ValueError(
                f"weights of {name} must be as many as its values, {len(self.values[name])}, got {len(weights)}."
            )
        return weights


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The settings of a selection, as read from a grid file.

    Attributes:
        grid: The settings to choose among.
        runs: The law of the number of runs.
        pad_to: Smallest number of runs to make. Those beyond the number drawn are discarded; they hide how many were
            drawn from whoever sees the elapsed time. ``None`` for no more than the number drawn.
        shape_given: Whether the file gives the shape; otherwise a front end chose it.
    """

    grid: Grid
    runs: NumberOfRuns
    pad_to: int | None = None
    shape_given: bool = True

    def __post_init__(self) -> None:
        if self.pad_to is not None:
            _validate.count("pad_to", self.pad_to)

    @classmethod
    def from_toml(cls, text: str) -> "Sweep":
        """Read a grid file, strictly.

        Example:
            >>> sweep = Sweep.from_toml('mean_runs = 5' + chr(10) + '[grid]' + chr(10) + 'lr = [0.5, 1.0]')
            >>> str(sweep.runs), sweep.grid.points
            ('geometric, 5 on average', [{'lr': 0.5}, {'lr': 1.0}])
        """
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"sweep must be the text of a TOML file: {error}.") from None
        for name in found:
            if name not in SWEEP_KEYS:
                known = f"it may have {', '.join(sorted(SWEEP_KEYS))}"
                raise ValueError(f"sweep has the unknown key {name!r}; {known}.{did_you_mean(name, SWEEP_KEYS)}")
        for name in ("mean_runs", "grid"):
            if name not in found:
                raise ValueError(f"{name} is missing in the sweep: say {_EXAMPLES[name]}.")
        for name in ("mean_runs", "shape"):
            if isinstance(found.get(name, 1), bool) or not isinstance(found.get(name, 1), int | float):
                raise ValueError(f"{name} must be a number, got {found[name]!r}.")
        for name in ("grid", "weights"):
            if not isinstance(found.get(name, {}), dict):
                raise ValueError(f"{name} must be a table of lists, such as {_EXAMPLES['grid']}.")
        return cls(
            grid=Grid(found["grid"], weights=found.get("weights", {})),
            runs=NumberOfRuns(mean_runs=found["mean_runs"], shape=found.get("shape", GEOMETRIC)),
            pad_to=found.get("pad_to"),
            shape_given="shape" in found,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values; the session is bound to them."""
        shape = self.runs.shape if math.isfinite(self.runs.shape) else "inf"
        return {"grid": self.grid.to_dict(), "mean_runs": self.runs.mean_runs, "shape": shape, "pad_to": self.pad_to}


_EXAMPLES = {"mean_runs": "mean_runs = 5", "grid": "[grid] with lr = [0.5, 1.0] below it"}


def _values(name: str, given: Any) -> tuple[Value, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not given:
        raise ValueError(f"grid must have a list of values for {name}, at least one, got {given!r}.")
    for value in given:
        if not isinstance(value, str | int | float) or (isinstance(value, float) and math.isnan(value)):
            raise ValueError(f"grid must have texts and numbers for {name}, got {value!r}.")
    if len(set(given)) != len(given):
        raise ValueError(
            f"grid must have every value of {name} once, got {list(given)!r}. To try a value more often, use a weight."
        )
    return tuple(given)
