"""What watches a run from below the line: callbacks, the loss on public data, and the end that it may decide.

Nothing here sees raw data: a callback is handed releases, which are private for good, and public numbers of the ledger.
Whatever it computes from them is post-processing. Place: oracles -> training loop -> [training.callbacks].
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from tacita import _validate
from tacita._near_names import did_you_mean
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger
from tacita.methods import RandomIterate
from tacita.oracles import GradientOracle, Release
from tacita.runs.checkpoint import TrainingState
from tacita.training.progress import Progress
from tacita.training.public_loss import SHARE, EarlyStop, end_point, public_loss


class Spent:
    """Public numbers of a run: how far it has come, and what that costs. None of them depends on a record.

    Attributes:
        queries: Queries used so far.
        planned_queries: Queries of the plan.
        delta: The delta at which epsilon is stated.
    """

    def __init__(self, oracle: GradientOracle, delta: float) -> None:
        self.queries, self.planned_queries, self.delta = oracle.gate.position, oracle.planned_queries, delta
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


HOOKS = {  # what is called of a callback, and with what
    "on_step": ("releases", "spent"),
    "on_public_loss": ("loss", "spent"),
    "on_end": ("spent",),
}


class Callback:
    """Base of the callbacks of :func:`tacita.fit`: override what you need. Nothing is handed in that is private.

    Record no times where others may see them: how long a step takes depends on how many records it drew.

    The ledger is on disk before a callback is called, so that what it is handed may leave the process. A run that was
    killed makes the steps since its last checkpoint again, with the same releases, and calls again: go by
    ``spent.queries``. An exception ends the run, which can then be resumed.

    Attributes:
        every: Call ``on_step`` after each so many queries, and after the last one. A run in a folder waits for the disk
            before each call.

    Example:
        >>> class Lengths(Callback):
        ...     def __init__(self):
        ...         self.found = []
        ...     def on_step(self, releases, spent):
        ...         self.found.append((spent.queries, releases[-1].gradient["weight"].norm().item()))
    """

    every: int = 1

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
        self.function = function

    def on_step(self, releases: Sequence[Release], spent: Spent) -> Any:
        return self.function(releases, spent)


def as_callbacks(callbacks: Iterable[Any]) -> tuple[Callback, ...]:
    """Return callbacks; a function stands for its ``on_step``.

    Raises:
        TypeError: One is neither a :class:`Callback` nor a function, has a method ``on_...`` that nobody calls, or does
            not take the arguments that it is called with.
    """
    if isinstance(callbacks, Callback) or callable(callbacks):
        raise TypeError("callbacks must be a list of callbacks: write callbacks=[...].")
    found = tuple(one if isinstance(one, Callback) else _OnStep(_callable(one)) for one in callbacks)
    for one in found:
        _validate.count("every", one.every)
        _check_hooks(one)
    return found


def _check_hooks(callback: Callback) -> None:
    """Refuse what would go wrong only once a release was paid for: a hook of another name, or of other arguments."""
    if isinstance(callback, _OnStep):
        _check_arguments("a function in callbacks", callback.function, HOOKS["on_step"])
        return
    kind = type(callback).__name__
    for name in dir(callback):
        if name.startswith("on_") and name not in HOOKS and callable(getattr(callback, name)):
            near = did_you_mean(name, HOOKS) or f" The methods that are called are {', '.join(HOOKS)}."
            raise TypeError(f"callback {kind} has a method {name!r}, which is never called.{near}")
    for name, given in HOOKS.items():
        _check_arguments(f"{kind}.{name}", getattr(callback, name), given)


def _check_arguments(what: str, function: Any, given: Sequence[str]) -> None:
    """Refuse a function that cannot be called with as many arguments as are ``given``."""
    try:
        taken = signature(function)
    except (TypeError, ValueError):  # a function in C may not say what it takes
        return
    try:
        taken.bind(*given)
    except TypeError as error:
        raise TypeError(f"{what} must take ({', '.join(given)}), got {taken}: {error}.") from None


def _callable(one: Any) -> Callable:
    if not callable(one) or isinstance(one, type):
        raise TypeError(
            f"callbacks must be objects of tacita.Callback, or functions (releases, spent) -> None; got "
            f"{one.__name__ if isinstance(one, type) else type(one).__name__}."
        )
    return one


@dataclass(frozen=True)
class Watching:
    """What is watched in a run.

    Attributes:
        loss_fn: ``(model, batch) -> losses``, for the loss on public data.
        callbacks: See :class:`Callback`.
        public_data: Rows that the caller declares to be public; ``None`` to record nothing.
        collate_fn: As the oracle's, for ``public_data``.
        every: Queries from one loss on public data to the next; ``None`` for about twenty losses in a run.
        early_stop: When to end the run; ``None`` for the end of the plan.
    """

    loss_fn: LossFn
    callbacks: Sequence[Callback] = ()
    public_data: Any = None
    collate_fn: Callable[[list], Any] | None = None
    every: int | None = None
    early_stop: EarlyStop | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            _validate.count("public_every", self.every)
        if self.early_stop is not None and self.public_data is None:
            raise ValueError(
                "early_stop needs public_data: when the run ends must not depend on the loss on private rows."
            )

    def check(self, state: TrainingState) -> None:
        """Refuse a schedule or an average that does not go with what is watched."""
        if isinstance(state.scheduler, ReduceLROnPlateau) and self.public_data is None:
            raise ValueError("scheduler must not be ReduceLROnPlateau without public_data, whose loss it follows.")
        if self.early_stop is not None and isinstance(state.average, RandomIterate):
            raise ValueError("early_stop must go without a RandomIterate: the iterate that was drawn may never come.")


class Watch:
    """Call the callbacks after each step, record the loss on public data, and decide whether the run ends.

    The losses and the decision are in the run's checkpoint, so that a resumed run ends where an uninterrupted one does.

    Args:
        state: The run.
        watching: What is watched.
        delta: The delta at which callbacks are told epsilon.
        bar: Shows the last loss on public data.
    """

    def __init__(self, state: TrainingState, watching: Watching, *, delta: float, bar: Progress | None = None) -> None:
        self._state, self._watching, self._delta, self._bar = state, watching, delta, bar
        self._every = watching.every or max(1, state.oracle.planned_queries // SHARE)

    @property
    def sees_releases(self) -> bool:
        """Whether anybody asks for the releases of a step; else the loop drops them at once."""
        return bool(self._watching.callbacks)

    def step(self, releases: Sequence[Release]) -> None:
        """Take in one step of the optimizer, after which the run is at a new point."""
        callbacks = [callback for callback in self._watching.callbacks if self._now(callback.every)]
        validated = self._watching.public_data is not None and self._now(self._every)
        if not (validated or callbacks):
            return
        self._state.oracle.ledger.flush()  # on disk before anything of the releases is shown
        spent = Spent(self._state.oracle, self._delta)
        self._call(callbacks, lambda callback: callback.on_step(releases, spent))
        if validated:
            self._validate(spent)

    def end(self) -> None:
        """Tell the callbacks that the run is over."""
        spent = Spent(self._state.oracle, self._delta)
        self._call(self._watching.callbacks, lambda callback: callback.on_end(spent))

    def _now(self, every: int) -> bool:
        """Return whether this is one of the queries that count in steps of ``every``, or the last one."""
        return self._state.oracle.gate.position % every == 0 or not self._state.oracle.remaining_queries

    def _validate(self, spent: Spent) -> None:
        state, watching = self._state, self._watching
        loss = public_loss(
            state.model,
            watching.loss_fn,
            watching.public_data,
            collate_fn=watching.collate_fn,
            point=end_point(state.average),
        )
        state.public_losses.append((spent.queries, loss))
        if isinstance(state.scheduler, ReduceLROnPlateau):
            state.scheduler.step(loss)
        if self._bar is not None:
            self._bar.note = f"loss on public data {loss:.4g}"
        self._call(watching.callbacks, lambda callback: callback.on_public_loss(loss, spent))
        if watching.early_stop is not None:
            state.stopped = watching.early_stop.ends([value for _, value in state.public_losses])

    def _call(self, callbacks: Sequence[Callback], call: Callable[[Callback], Any]) -> None:
        """Call the callbacks, and put the model into the modes that it had: a callback may evaluate it."""
        modes = [(module, module.training) for module in self._state.model.modules()] if callbacks else []
        for callback in callbacks:
            call(callback)
        for module, training in modes:
            module.training = training
