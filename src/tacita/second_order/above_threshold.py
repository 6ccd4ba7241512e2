r"""AboveThreshold: compare many private values with a threshold, at the price of one.

Place: oracles -> [mechanisms.above_threshold] -> ┃ answers. Proof: docs/derivations/noisy-sgd.md.
Source: Dwork and Roth (2014), Algorithm 1, Theorems 3.23 and 3.24, https://doi.org/10.1561/0400000042; here a value
passes if it is below the threshold, there if it is above.
"""

import math
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting import Event, Guarantee, NeighboringRelation
from tacita.accounting.events.event import over_noise
from tacita.accounting.events.guarantee import no_guarantee
from tacita.accounting.events.pure import pure_guarantee

Reals = float | np.ndarray


@dataclass(frozen=True, kw_only=True)
class AboveThresholdEvent(Event):
    r"""Values are compared with a threshold, with Laplace noise on both, until one passes.

    Only the comparisons are released, and the session ends with the first value that passes. Let :math:`s` be the
    ``sensitivity`` of every value (values may be chosen adaptively), :math:`b_t` = ``threshold_scale`` (that noise is
    drawn once) and :math:`b_q` = ``query_scale`` (that noise is drawn for each value). The whole session is
    :math:`(s/b_t + 2 s/b_q)`-private.

    Attributes:
        sensitivity: Largest change of any value between neighbours under ``relation`` (no factor is added to it).
        threshold_scale: Scale of the Laplace noise on the threshold; 0 is allowed and not private.
        query_scale: Scale of the Laplace noise on each value; 0 is allowed and not private.

    Example:
        >>> event = AboveThresholdEvent(
        ...     relation="replace_one", sensitivity=0.5, threshold_scale=1.0, query_scale=2.0)
        >>> event.guarantee(1).pure_epsilon, event.guarantee(1000).pure_epsilon
        (1.0, 1.0)
    """

    sensitivity: float
    threshold_scale: float
    query_scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "sensitivity", "threshold_scale", "query_scale")

    @property
    def epsilon(self) -> float:
        """The pure epsilon of the whole session."""
        return over_noise(self.sensitivity, self.threshold_scale) + over_noise(2 * self.sensitivity, self.query_scale)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return "Comparisons on all records"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("only the comparisons leave, and the first value that passes ends the session",)

    def describe(self) -> str:
        return (
            f"AboveThreshold on values with sensitivity {self.sensitivity:.6g}, Laplace noise of scale "
            f"{self.threshold_scale:.6g} on the threshold, once, and {self.query_scale:.6g} on each value"
        )

    def _guarantee(self, queries: int) -> Guarantee:
        return no_guarantee() if math.isinf(self.epsilon) else pure_guarantee(self.epsilon if queries else 0.0)


@dataclass(frozen=True, kw_only=True)
class AboveThreshold:
    r"""Compare values with a threshold until one is below it, with Laplace noise on both.

    Value :math:`q_j` *passes* if :math:`q_j + \nu_j \le h + \rho`, where :math:`\rho \sim \text{Lap}(2 s/\epsilon)` is
    drawn once for the whole session and :math:`\nu_j \sim \text{Lap}(4 s/\epsilon)` for each value. The session ends
    with the first value that passes. Then all its answers together are :math:`(\epsilon, 0)`-private, however many
    values fail, and even if later values depend on earlier answers.

    Accuracy for at most k values: with probability at least :math:`1 - \beta`, every value that passes is at most
    :math:`h + a` and every value that fails is at least :math:`h - a`, with
    :math:`a = 8 s (\ln k + \ln(2/\beta))/\epsilon`.

    Assumes: no value changes by more than ``sensitivity`` between neighbours; the draws are used nowhere else. Nothing
    continuous is released. The draws are floats of 53 bits, however, and each changes the probability of an answer by
    about 1e-16, which is not accounted. No class can be derived from this one, whose guarantee it would inherit.

    Attributes:
        epsilon: The epsilon that the session spends, > 0.
        sensitivity: s, the largest change of any value between neighbours, > 0.

    Example:
        >>> mechanism = AboveThreshold(epsilon=1.0, sensitivity=0.01)
        >>> mechanism.threshold_scale, mechanism.query_scale, round(mechanism.accuracy(20, 0.05), 3)
        (0.02, 0.04, 0.535)
        >>> bool(mechanism(0.2, threshold=1.0, threshold_draw=-0.5, query_draw=2.0))
        True
    """

    epsilon: float
    sensitivity: float

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _validate.check_no_promise_inherited(cls, "Write a class of its own, and state its own event.")

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        _validate.positive("sensitivity", self.sensitivity)

    @property
    def threshold_scale(self) -> float:
        """Scale of the Laplace noise on the threshold, drawn once: 2 s / epsilon."""
        return 2 * self.sensitivity / self.epsilon

    @property
    def query_scale(self) -> float:
        """Scale of the Laplace noise on each value: 4 s / epsilon."""
        return 4 * self.sensitivity / self.epsilon

    def event(self, relation: NeighboringRelation) -> AboveThresholdEvent:
        """Return the session's event, which states the noise that is added."""
        return AboveThresholdEvent(
            relation=relation,
            sensitivity=self.sensitivity,
            threshold_scale=self.threshold_scale,
            query_scale=self.query_scale,
        )

    def accuracy(self, queries: int, failure_probability: float) -> float:
        """Return a: with probability 1 - ``failure_probability``, ``queries`` answers are wrong by at most a."""
        _validate.count("queries", queries)
        beta = _validate.delta("failure_probability", failure_probability)
        return 8 * self.sensitivity * (math.log(queries) + math.log(2 / beta)) / self.epsilon

    def __call__(
        self, value: Reals, *, threshold: float, threshold_draw: Reals, query_draw: Reals
    ) -> bool | np.ndarray:
        """Return whether ``value`` passes.

        Args:
            value: Private; a NaN does not pass.
            threshold: h, public.
            threshold_draw: A Laplace draw of scale 1, the same for the whole session.
            query_draw: A Laplace draw of scale 1, a fresh one for each value.
        """
        return value + self.query_scale * query_draw <= threshold + self.threshold_scale * threshold_draw
