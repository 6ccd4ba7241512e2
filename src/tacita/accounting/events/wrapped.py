"""Events around another event, such as under conditions that nobody enforces."""

from dataclasses import dataclass

from tacita.accounting.events.event import Event
from tacita.accounting.events.guarantee import Guarantee


@dataclass(frozen=True, kw_only=True)
class OuterEvent(Event):
    """An event around another one. Everything but the guarantee is that of the event inside.

    Attributes:
        inner: The event inside, under the same relation.
    """

    inner: Event

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Event):
            raise ValueError(f"inner must be an Event, got {type(self.inner).__name__}.")
        if self.inner.relation != self.relation:
            raise ValueError(f"relation must be the inner event's, {self.inner.relation}, got {self.relation}.")

    @property
    def components(self) -> tuple[Event, ...]:
        return (self.inner,)

    @property
    def per_query(self) -> bool:
        return self.inner.per_query

    @property
    def sampler(self) -> str:
        return self.inner.sampler

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.inner.assumptions

    @property
    def condition(self) -> str | None:
        return self.inner.condition


@dataclass(frozen=True, kw_only=True)
class WrappedEvent(OuterEvent):
    """An event with the guarantee of the event inside; subclasses say what is different."""

    @property
    def costs_by_prefix(self) -> bool:
        return self.inner.costs_by_prefix

    def _guarantee(self, queries: int) -> Guarantee:
        return self.inner.guarantee(queries)


@dataclass(frozen=True, kw_only=True)
class ConditionalEvent(WrappedEvent):
    """A guarantee that rests on a condition which nobody enforces, such as a declared Hessian bound.

    The bounds are those of ``inner``; the statement prints the condition and no unconditional epsilon.

    Attributes:
        condition_text: The condition, a sentence without data in it.
    """

    condition_text: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.condition_text, str) or not self.condition_text.strip():
            raise ValueError(f"condition_text must say the condition, got {self.condition_text!r}.")

    @property
    def condition(self) -> str:
        deeper = self.inner.condition
        return self.condition_text if deeper is None else f"{self.condition_text}; {deeper}"

    def describe(self) -> str:
        return f"{self.inner.describe()}, if {self.condition_text}"
