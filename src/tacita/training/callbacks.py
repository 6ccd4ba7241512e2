"""What watches a run from below the line: callbacks, the loss on public data, and the end that it may decide.

Nothing here sees raw data: a callback is handed releases, which are private for good, and public numbers of the ledger.
Whatever it computes from them is post-processing. Place: oracles -> training loop -> [training.callbacks].
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger
from tacita.oracles import GradientOracle, Release
from tacita.training.checkpoint import TrainingState
from tacita.training.progress import Progress
from tacita.training.public import SHARE, EarlyStop, end_point, public_loss


class Spent:
    """Public numbers of a run: how far it has come, and what that costs. None of them depends on a record.

    Attributes:
        queries: Queries used so far.
        planned_queries: Queries of the plan.
        delta: The delta at which epsilon is stated.
    """

    def __init__(self, oracle: GradientOracle, delta: float) -> None:
        self.queries, self.planned_queries, self.delta = oracle.line.position, oracle.planned_queries, delta
        self._ledger: Ledger = oracle.ledger

    @property
    def epsilon(self) -> float:
        """Epsilon of the plan, which is the guarantee of the run, wherever it ends."""
        return self._ledger.epsilon(self.delta)

    @property
    def epsilon_so_far(self) -> float:
        """Epsilon of the queries made so far. It takes the accountant some milliseconds: not for every step."""
        return self._ledger.made_epsilon(self.delta)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queries} of {self.planned_queries} queries, delta={self.delta:g})"


class Callback:
    """Base of the callbacks of :func:`tacita.fit`: override what you need. Nothing is handed in that is private.

    Record no times where others may see them: how long a step takes depends on how many records it drew.

    The ledger is on disk before a callback is called, so that what it is handed may leave the process. A run that was
    killed makes the steps since its last checkpoint again, with the same releases, and calls again: go by
    ``spent.queries``. An exception ends the run, which can then be resumed.

    Example:
        >>> class Lengths(Callback):
        ...     def __init__(self):
        ...         self.found = []
        ...     def on_step(self, releases, spent):
        ...         self.found.append((spent.queries, releases[-1].gradient["weight"].norm().item()))
    """

    def on_step(self, releases: Sequence[Release], spent: Spent) -> Any:
        """Take in one step of the optimizer.

        Args:
            releases: What the step was made of; one release in :func:`tacita.fit`. The optimizer may have changed
                ``gradient`` in place; ``released`` is as it left the oracle.
            spent: Public numbers of the run.
        """

    def on_public_loss(self, loss: float, spent: Spent) -> Any:
        """Take in the mean loss on the rows that the caller declared to be public."""

    def on_end(self, spent: Spent) -> Any:
        """Take in the end of the run. The model is at the point where the run ends, an average for example."""


class _OnStep(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Sequence[Release], Spent], Any]) -> None:
        self._function = function

    def on_step(self, releases: Sequence[Release], spent: Spent) -> Any:
        return self._function(releases, spent)


def as_callbacks(callbacks: Iterable[Any]) -> tuple[Callback, ...]:
    """Return callbacks; a function stands for its ``on_step``.

    Raises:
        TypeError: One is neither a :class:`Callback` nor a function.
    """
    if isinstance(callbacks, Callback) or callable(callbacks):
        raise TypeError("callbacks must be a list of callbacks: write callbacks=[...].")
    return tuple(one if isinstance(one, Callback) else _OnStep(_callable(one)) for one in callbacks)


def _callable(one: Any) -> Callable:
    if not callable(one) or isinstance(one, type):
        raise TypeError(
            f"callbacks must be objects of tacita.Callback, or functions (releases, spent) -> None; got "
            f"{one.__name__ if isinstance(one, type) else type(one).__name__}."
        )
    return one


class Watch:
    """Call the callbacks after each step, record the loss on public data, and decide whether the run ends.

    The losses and the decision are in the run's checkpoint, so that a resumed run ends where an uninterrupted one does.

    Args:
        state: The run.
        loss_fn: ``(model, batch) -> losses``; for the loss on public data.
        delta: The delta at which callbacks are told epsilon.
        callbacks: See :class:`Callback`.
        public_data: Rows that the caller declares to be public; ``None`` to record nothing.
        collate_fn: As the oracle's, for ``public_data``.
        every: Queries from one loss on public data to the next; by default about twenty in a run.
        early_stop: When to end the run; ``None`` for the end of the plan.
        bar: Shows the last loss on public data.
    """

    def __init__(
        self,
        state: TrainingState,
        loss_fn: LossFn,
        *,
        delta: float,
        callbacks: Sequence[Callback] = (),
        public_data: Any = None,
        collate_fn: Callable[[list], Any] | None = None,
        every: int | None = None,
        early_stop: EarlyStop | None = None,
        bar: Progress | None = None,
    ) -> None:
        self._state, self._loss_fn, self._delta, self._callbacks = state, loss_fn, delta, callbacks
        self._public_data, self._collate_fn, self._bar = public_data, collate_fn, bar
        self._every = every or max(1, state.oracle.planned_queries // SHARE)
        self._early_stop = early_stop

    @property
    def sees_releases(self) -> bool:
        """Whether anybody asks for the releases of a step; else the loop drops them at once."""
        return bool(self._callbacks)

    def step(self, releases: Sequence[Release]) -> None:
        """Take in one step of the optimizer, after which the run is at a new point."""
        oracle = self._state.oracle
        now = oracle.line.position % self._every == 0 or not oracle.remaining_queries
        due = self._public_data is not None and now
        if not (due or self._callbacks):
            return
        self._state.oracle.ledger.flush()  # on disk before anything of the releases is shown
        spent = Spent(self._state.oracle, self._delta)
        self._call(lambda callback: callback.on_step(releases, spent))
        if due:
            self._validate(spent)

    def end(self) -> None:
        """Tell the callbacks that the run is over."""
        spent = Spent(self._state.oracle, self._delta)
        self._call(lambda callback: callback.on_end(spent))

    def _validate(self, spent: Spent) -> None:
        state = self._state
        point = end_point(state.average)
        loss = public_loss(state.model, self._loss_fn, self._public_data, collate_fn=self._collate_fn, point=point)
        state.public_losses.append((spent.queries, loss))
        if isinstance(state.scheduler, ReduceLROnPlateau):
            state.scheduler.step(loss)
        if self._bar is not None:
            self._bar.note = f"loss on public data {loss:.4g}"
        self._call(lambda callback: callback.on_public_loss(loss, spent))
        if self._early_stop is not None:
            state.stopped = self._early_stop.ends([value for _, value in state.public_losses])

    def _call(self, call: Callable[[Callback], Any]) -> None:
        """Call every callback, and put the model into the modes that it had: a callback may evaluate it."""
        modes = [(module, module.training) for module in self._state.model.modules()] if self._callbacks else []
        for callback in self._callbacks:
            call(callback)
        for module, training in modes:
            module.training = training
