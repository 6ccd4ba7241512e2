"""Events of sessions that fail, with a known probability, to be what is accounted.

Proof: docs/derivations/noisy-sgd.md, section 1.
"""

from dataclasses import dataclass, replace

from tacita import _validate
from tacita.accounting.events.guarantee import Guarantee
from tacita.accounting.events.wrapped import WrappedEvent


@dataclass(frozen=True, kw_only=True)
class CoupledEvent(WrappedEvent):
    r"""A session that equals, except in the event of a failure, one whose guarantee is known.

    On every data set the session can be coupled with one that ``inner`` bounds, so that both release the same with
    probability at least :math:`1 - p`. Both data sets of a neighbouring pair have to be swapped, the second inside a
    factor :math:`e^\epsilon`, so delta grows by :math:`(1 + e^\epsilon) p`. If ``inner`` is :math:`(\epsilon,
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

    def _guarantee(self, queries: int) -> Guarantee:
        inner = self.inner.guarantee(queries)
        return replace(inner, coupling_gap=inner.coupling_gap + (self.failure_probability if queries else 0.0))
