"""The interface of estimators: bounded values of a batch, their sensitivity, and what a session of them spends.

Place: clipping -> [estimators] -> mechanisms. The promise is known before any data; the values are private.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation
from tacita.gradients.engine import Engine, Shapes
from tacita.mechanisms import Mechanism
from tacita.sampling import Sampler

Values = dict[str, dict[str, Tensor]]  # block -> parameter name -> tensor (..., *param)


class Estimator(ABC):
    """Public settings, a promise, and one pure function of (engine, state).

    Because it is pure and takes leading axes, an audit runs this same function over many runs at once. No estimator can
    be derived from another one, whose promise it would inherit; an estimator of your own derives from this class.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _validate.check_no_promise_inherited(
            cls, "Derive it from tacita.estimators.Estimator, and state its own sensitivity and event."
        )

    @abstractmethod
    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        """Return the L2 sensitivity of each block, which is the unit of ``noise_multiplier``."""

    @abstractmethod
    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        """Return what a whole session spends.

        Raises:
            UnsupportedEventError: No guarantee is proved for this sampler and relation.
        """

    @abstractmethod
    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return the number of coordinates of each block."""

    @abstractmethod
    def __call__(self, engine: Engine, state: Any) -> tuple[Values, Any]:
        """Return the bounded values of one batch, by block, and the next state. Both are private."""

    @abstractmethod
    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        """Return the gradient that a release stands for; this is post-processing."""

    def noise_std(self, mechanism: Mechanism, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        """Return the standard deviation of the noise that ``mechanism`` adds to each block."""
        return mechanism.noise_std(self.sensitivity(relation, shapes), self.block_sizes(shapes))

    def session_event(
        self, mechanism: Mechanism, sampler: Sampler, relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        """Return what a whole session with the noise of ``mechanism`` spends.

        Every session of this estimator is registered with this event, whether an oracle or a plan registers it.

        Raises:
            UnsupportedEventError: No guarantee is proved for this sampler, relation or noise.
        """
        noise_std = self.noise_std(mechanism, relation, shapes)
        return mechanism.event(self.event(sampler, noise_std, relation, shapes))

    @property
    def rounded_last(self) -> bool:
        """Whether values keep a wider dtype than their sums until the noise is in them, and are rounded then."""
        return False

    @property
    def any_change(self) -> bool:
        """Whether the guarantee covers any change of the whole data, so that not even the number of rows is public."""
        return False

    @property
    def needs_rows_alone(self) -> bool:
        """Whether the claim holds only if each record is computed alone."""
        return False

    def steps(self, shapes: Shapes) -> dict[str, float] | None:
        """Return the step of the public grid, by block, if values are multiples of it; else ``None``."""
        return None

    def check_batch(self, expected_batch_size: float, shapes: Shapes) -> None:  # noqa: B027 - optional
        """Raise ``ValueError`` if the promise does not hold for batches of that size."""

    def initial_state(self, shapes: Shapes, lead: tuple[int, ...] = ()) -> Any:
        """Return the state before the first query; ``None`` if nothing is remembered."""
        return None

    def bound(self, engine: Engine, state: Any) -> tuple[Values, Any]:
        """Return the bounded values of one batch, and what :meth:`apply` needs; ``state`` is not changed.

        Calling the estimator does both. An oracle calls :meth:`apply` later, once the query counts, because it keeps
        a single state.
        """
        return self(engine, state)

    def apply(self, state: Any, update: Any) -> Any:
        """Return the next state, which is ``update`` by default. It may reuse the memory of ``state``."""
        return update

    def after(self, state: Any, released: Values) -> Any:
        """Return the state once the release is known; unchanged by default."""
        return state

    def shareable(self, state: Any) -> Any:
        """Return the state if it is a function of releases; ``None``, the default, if it is private."""
        return None
