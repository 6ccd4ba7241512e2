"""Events around an event: the best of several runs; a guarantee that rests on something nobody enforces; one that holds
but for a failure.

Place: [accounting.wrapped_events] -> accountant. Proof of the last: docs/derivations/noisy-sgd.md.
"""

from dataclasses import dataclass

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from tacita import _validate
from tacita.accounting.events import DEFAULT_INTERVAL, Event
from tacita.errors import UnsupportedEventError

LEAST_DIVERGENCE = 1e-12  # below, dp_accounting takes 1 - exp(-divergence), which bounds a delta, to be 0


@dataclass(frozen=True, kw_only=True)
class OuterEvent(Event):
    """An event around another, which speaks for it; subclasses say what it spends.

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

    @property
    def disclaimer(self) -> str | None:
        return self.inner.disclaimer

    def is_private(self) -> bool:
        return self.inner.is_private()


@dataclass(frozen=True, kw_only=True)
class RepeatAndSelectEvent(OuterEvent):
    """A random number of independent runs, of which only the best is released.

    The number of runs is secret, drawn from a truncated negative binomial distribution (shape 1 is geometric, 0
    logarithmic) or, with shape ``inf``, from a Poisson distribution. The whole session is charged once.
    Source: Papernot and Steinke (2022), Theorems 2 and 6, https://arxiv.org/abs/2110.03620.

    Attributes:
        inner: What one run spends, its score included.
        inner_queries: Queries of one run.
        mean: Mean number of runs, >= 1.
        shape: >= 0, ``inf`` for Poisson.
    """

    inner_queries: int
    mean: float
    shape: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("inner_queries", self.inner_queries)
        self._check(_validate.positive, "mean")
        if not self.mean >= 1:
            raise ValueError(f"mean must be >= 1, got {self.mean!r}.")
        if isinstance(self.shape, bool) or not self.shape >= 0:
            raise ValueError(f"shape must be >= 0 (inf for a Poisson number of runs), got {self.shape!r}.")
        object.__setattr__(self, "shape", float(self.shape))
        failing = self.inner.additive_delta(self.inner_queries) > 0 or self.inner.coupling_gap(self.inner_queries) > 0
        if failing or self._inner_rdp(np.array([2.0])) is None:
            raise UnsupportedEventError(
                f"RepeatAndSelectEvent needs an inner event with a Rényi curve and no additive delta, "
                f"which {type(self.inner).__name__} is not."
            )

    @property
    def per_query(self) -> bool:
        return False

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*self.inner.assumptions, "only the best run is released, and the number of runs stays secret")

    def describe(self) -> str:
        law = "Poisson" if self.shape == np.inf else f"truncated negative binomial of shape {self.shape:.6g}"
        return f"Best of {self.mean:.6g} runs on average ({law}), each of {self.inner_queries} queries: " + (
            self.inner.describe()
        )

    def gaussian_mu(self, queries: int) -> float | None:
        return 0.0 if queries == 0 or self.inner.gaussian_mu(self.inner_queries) == 0 else None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        inner = self._inner_rdp(np.asarray(orders, dtype=float))
        if inner is not None and self.shape == np.inf:
            inner = np.maximum(inner, LEAST_DIVERGENCE)
        return np.asarray(
            rdp_privacy_accountant._compute_rdp_repeat_and_select(  # the formula alone: our curves have no DpEvent
                orders,  # type: ignore[arg-type]
                inner,  # type: ignore[arg-type]
                self.mean,
                self.shape,
            )
        )

    def _inner_rdp(self, orders: np.ndarray) -> np.ndarray | None:
        return self.inner.rdp(self.inner_queries, orders) if self.inner.is_private() else np.full(len(orders), np.inf)


@dataclass(frozen=True, kw_only=True)
class WrappedEvent(OuterEvent):
    """An event with the bounds of the one inside; subclasses say what is different."""

    def gaussian_mu(self, queries: int) -> float | None:
        return self.inner.gaussian_mu(queries)

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        return self.inner.pld(queries, interval)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        return self.inner.rdp(queries, orders)

    def delta(self, epsilon: float, queries: int) -> float | None:
        return self.inner.delta(epsilon, queries)

    def pure_epsilon(self, queries: int) -> float | None:
        return self.inner.pure_epsilon(queries)

    def additive_delta(self, queries: int) -> float:
        return self.inner.additive_delta(queries)

    def coupling_gap(self, queries: int) -> float:
        return self.inner.coupling_gap(queries)

    def loss_range(self, queries: int) -> float:
        return self.inner.loss_range(queries)

    def compositions(self, queries: int) -> int:
        return self.inner.compositions(queries)


@dataclass(frozen=True, kw_only=True)
class ConditionalEvent(WrappedEvent):
    """A guarantee that holds only if something holds which nobody enforces (a declared Hessian bound, say).

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


@dataclass(frozen=True, kw_only=True)
class CoupledEvent(WrappedEvent):
    r"""A session that is, but for a failure, one whose bounds are known.

    On every data set the session can be coupled with one that ``inner`` bounds so that both release the same with
    probability at least :math:`1 - p`. Both worlds of a neighbouring pair have to be swapped, the second inside a
    factor :math:`e^\epsilon`, so delta grows by :math:`(1 + e^\epsilon) p`: where ``inner`` is :math:`(\epsilon,
    p)`-private, the session is :math:`(\epsilon, (2 + e^\epsilon) p)`-private, not :math:`(\epsilon, 2p)`.

    Attributes:
        failure_probability: p in [0, 1), of the whole session, however many queries it makes.
    """

    failure_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.below_one, "failure_probability")

    def describe(self) -> str:
        return (
            f"{self.inner.describe()}; but for a failure of probability {self.failure_probability:.3g}, which adds "
            "(1 + e^epsilon) times that to delta"
        )

    def coupling_gap(self, queries: int) -> float:
        return self.inner.coupling_gap(queries) + (self.failure_probability if queries else 0.0)
