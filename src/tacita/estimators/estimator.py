"""What every estimator promises: bounded values of a batch, their sensitivity, and what a session of them spends.

Place: clipping -> [estimators] -> mechanisms. The promise is known before any data; the values are private.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacita.accounting import Event, NeighboringRelation
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler

Values = dict[str, dict[str, Tensor]]  # block -> parameter name -> tensor (..., *param)


class Estimator(ABC):
    """Public settings, a promise, and one pure function of (engine, state).

    Because it is pure and takes leading axes, an audit runs this same function over many runs at once.
    """

    @abstractmethod
    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        """L2 sensitivity of each block: the unit that ``noise_multiplier`` counts in."""

    @abstractmethod
    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        """What a whole session spends; raises ``UnsupportedEventError`` where nothing is proved."""

    @abstractmethod
    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        """How many coordinates each block has."""

    @abstractmethod
    def __call__(self, engine: Engine, state: Any) -> tuple[Values, Any]:
        """The bounded values of one batch, by block, and the next state. Both private."""

    @abstractmethod
    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        """The gradient that a release stands for. Post-processing."""

    @property
    def rounded_last(self) -> bool:
        """Whether values are in a better dtype than the sums they are made of, to be rounded once they have noise."""
        return False

    def steps(self, shapes: Shapes) -> dict[str, float] | None:
        """The public grid, by block, if the values are whole multiples of it; ``None`` for values of any kind."""
        return None

    def check_batch(self, expected_batch_size: float, shapes: Shapes) -> None:  # noqa: B027 - optional
        """Raise ``ValueError`` if batches of that size are too large for what is promised."""

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> Any:
        """State before the first query; ``None`` where nothing is remembered."""
        return None

    def look(self, engine: Engine, state: Any) -> tuple[Values, Any]:
        """The bounded values of one batch, and what :meth:`remember` needs; ``state`` stays as it is.

        Calling the estimator is both. An oracle, which keeps one state and no other, remembers once the query counts.
        """
        return self(engine, state)

    def remember(self, state: Any, seen: Any) -> Any:
        """The next state, maybe in the memory of ``state``, which is gone then; by default ``seen``."""
        return seen

    def after(self, state: Any, released: Values) -> Any:
        """State once the release is known; unchanged by default."""
        return state

    def shareable(self, state: Any) -> Any:
        """The state if it is a function of releases; ``None``, as by default, if it is private: never to be shared."""
        return None
