"""Events of a selection among runs: several events in sequence, the worst of several, and the best of many runs.

Proofs: docs/derivations/selection.md.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from tacita import _validate
from tacita.accounting.dominating_pairs import Part
from tacita.accounting.events.event import Event, all_known, all_said
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee
from tacita.accounting.events.wrapped import OuterEvent
from tacita.accounting.profile_pairs import SelectedPair, WorstPair
from tacita.errors import UnsupportedEventError

LEAST_DIVERGENCE = 1e-12  # below it, dp_accounting's 1 - exp(-divergence), which bounds a delta, vanishes

Pairs = Callable[[], tuple[Part, ...]]


@dataclass(frozen=True, kw_only=True)
class SeveralEvent(Event):
    """Several events with a number of queries each. Subclasses say whether a record meets all of them or one.

    One query of this event is one round: each part i makes ``part_queries[i]`` queries.

    Attributes:
        parts: At least one event, all under this event's relation. The first one gives the words for the sampler.
        part_queries: Number of queries of each part in a round, >= 1.
    """

    parts: tuple[Event, ...]
    part_queries: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(
            self, "part_queries", tuple(_validate.count("part_queries", queries) for queries in self.part_queries)
        )
        if not self.parts or len(self.parts) != len(self.part_queries):
            raise ValueError(
                f"parts and part_queries must have the same length, at least 1, got {len(self.parts)} and "
                f"{len(self.part_queries)}."
            )
        for part in self.parts:
            if not isinstance(part, Event):
                raise ValueError(f"parts must be Events, got {type(part).__name__}.")
            if part.relation != self.relation:
                raise ValueError(f"relation must be that of every part, {part.relation}, got {self.relation}.")

    @property
    def components(self) -> tuple[Event, ...]:
        return self.parts

    @property
    def per_query(self) -> bool:
        return all(part.per_query for part in self.parts)

    @property
    def sampler(self) -> str:
        return self.parts[0].sampler

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(words for part in self.parts for words in part.assumptions))

    @property
    def condition(self) -> str | None:
        return all_said(part.condition for part in self.parts)

    def describe(self) -> str:
        each = zip(self.parts, self.part_queries, strict=True)
        words = (f"{queries} x ({part.describe()})" if queries > 1 else part.describe() for part, queries in each)
        return self._joined(list(words))

    def _guarantee(self, queries: int) -> Guarantee:
        made = [
            part.guarantee(number if queries else 0) for part, number in zip(self.parts, self.part_queries, strict=True)
        ]
        pures = all_known(part.pure_epsilon for part in made)
        forms: dict[str, Any] = {
            "additive_delta": queries * self._largest_or_sum(part.additive_delta for part in made),
            "coupling_gap": queries * self._largest_or_sum(part.coupling_gap for part in made),
            "pure_epsilon": None if pures is None else queries * self._largest_or_sum(pures),
            "rdp_may_be_less": any(part.rdp_may_be_less for part in made),
        }
        curves = all_known(part.rdp for part in made)
        if curves is not None:
            forms["rdp"] = lambda orders: (
                queries * self._together(np.stack([np.asarray(curve(orders), dtype=float) for curve in curves]))
            )
        if not all(part.private for part in made):
            return gaussian(math.inf, **forms)
        mus = all_known(part.mu for part in made)
        if mus is not None:
            return gaussian(math.sqrt(queries) * self._joint_mu(mus), **forms)
        pairs, unsampled = all_known(part.pairs for part in made), all_known(part.unsampled_mu for part in made)
        if unsampled is not None:
            forms["unsampled_mu"] = math.sqrt(queries) * self._joint_mu(unsampled)
        return Guarantee(pairs=None if pairs is None else lambda: self._joint_pairs(pairs, queries), **forms)

    @abstractmethod
    def _joined(self, words: list[str]) -> str:
        """Join the descriptions of the parts in one line."""

    @abstractmethod
    def _together(self, curves: np.ndarray) -> np.ndarray:
        """Return the Rényi curve of one round, from those of the parts, shape (parts, orders)."""

    @abstractmethod
    def _joint_mu(self, mus: Sequence[float]) -> float:
        """Return ``mu`` of one round of Gaussian queries."""

    @abstractmethod
    def _joint_pairs(self, pairs: Sequence[Pairs], queries: int) -> tuple[Part, ...]:
        """Return the dominating pairs of ``queries`` rounds, from those of the parts."""

    @abstractmethod
    def _largest_or_sum(self, values: Iterable[float]) -> float:
        """Return the total of one round: the sum over the parts, or the largest."""


@dataclass(frozen=True, kw_only=True)
class ComposedEvent(SeveralEvent):
    """Several events on the same records in sequence, such as a training and then its score.

    Rényi curves add up; privacy loss distributions are convolved; Gaussian queries add up as ``mu`` squared.

    Example:
        >>> from tacita.accounting import HistogramGaussianEvent
        >>> def noisy(noise_std):
        ...     return HistogramGaussianEvent(
        ...         relation="zero_out_one", max_contribution=(1.0,), noise_std=(noise_std,))
        >>> both = ComposedEvent(relation="zero_out_one", parts=(noisy(3.0), noisy(4.0)), part_queries=(1, 1))
        >>> round(both.guarantee(1).mu, 6), round(math.hypot(1 / 3, 1 / 4), 6)
        (0.416667, 0.416667)
    """

    def _joint_mu(self, mus: Sequence[float]) -> float:
        return math.hypot(*mus)

    def _joint_pairs(self, pairs: Sequence[Pairs], queries: int) -> tuple[Part, ...]:
        return tuple((pair, queries * made) for each in pairs for pair, made in each())

    def _joined(self, words: list[str]) -> str:
        return "; then ".join(words)

    def _together(self, curves: np.ndarray) -> np.ndarray:
        return curves.sum(axis=0)

    def _largest_or_sum(self, values: Iterable[float]) -> float:
        return math.fsum(values)


@dataclass(frozen=True, kw_only=True)
class WorstOfEvent(SeveralEvent):
    r"""One of several events; each form of the bound is the largest of theirs.

    It serves two cases. A record can meet only one of the events, as with a training on rows kept by coin beside a
    score on the rows held out. Or no record influences the choice between the events, as with a point of a grid that is
    drawn at random and released.

    The Rényi curve is the maximum at each order. The dominating pair is that of the largest delta at each epsilon.

    Example:
        >>> from tacita.accounting import HistogramGaussianEvent, ZCDPEvent
        >>> noisy = HistogramGaussianEvent(relation="zero_out_one", max_contribution=(1.0,), noise_std=(2.0,))
        >>> either = WorstOfEvent(
        ...     relation="zero_out_one", parts=(noisy, ZCDPEvent(relation="zero_out_one", rho=0.1)), part_queries=(1, 1)
        ... )
        >>> [each.guarantee(1).rdp(np.array([2.0, 8.0])).tolist() for each in (noisy, either)]
        [[0.25, 1.0], [0.25, 1.0]]
    """

    def _joint_mu(self, mus: Sequence[float]) -> float:
        return max(mus)

    def _joint_pairs(self, pairs: Sequence[Pairs], queries: int) -> tuple[Part, ...]:
        return ((WorstPair(tuple(each() for each in pairs)), queries),)

    def _joined(self, words: list[str]) -> str:
        return words[0] if len(words) == 1 else "the worst of: " + " | ".join(words)

    def _together(self, curves: np.ndarray) -> np.ndarray:
        return curves.max(axis=0)

    def _largest_or_sum(self, values: Iterable[float]) -> float:
        return max(values)


@dataclass(frozen=True, kw_only=True)
class RepeatAndSelectEvent(OuterEvent):
    """A random number of independent runs, of which only the best is released.

    The number of runs is secret, drawn from a truncated negative binomial distribution (shape 1 is geometric, 0
    logarithmic) or, with shape ``inf``, from a Poisson distribution. The whole session is charged once.
    The Rényi curve is that of Papernot and Steinke (2022), Theorems 2 and 6, https://arxiv.org/abs/2110.03620. The
    privacy loss distribution follows from the privacy profile of one run, as in Koskela, Redberg and Wang (2024),
    https://arxiv.org/abs/2402.06701. Both bound the same session, and the smaller epsilon counts.
    Proofs: docs/derivations/selection.md.

    Attributes:
        inner: What one run spends, including its score.
        inner_queries: Number of queries of one run.
        mean: Mean number of runs, >= 1.
        shape: >= 0, ``inf`` for Poisson.
    """

    inner_queries: int
    mean: float
    shape: float

    selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("inner_queries", self.inner_queries)
        self._check(_validate.positive, "mean")
        if not self.mean >= 1:
            raise ValueError(f"mean must be >= 1, got {self.mean!r}.")
        if isinstance(self.shape, bool) or not self.shape >= 0:
            raise ValueError(f"shape must be >= 0 (inf for a Poisson number of runs), got {self.shape!r}.")
        object.__setattr__(self, "shape", float(self.shape))
        run = self.inner.guarantee(self.inner_queries)
        if run.additive_delta > 0 or run.coupling_gap > 0 or run.rdp is None:
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

    def _guarantee(self, queries: int) -> Guarantee:
        run = self.inner.guarantee(self.inner_queries)
        if queries == 0 or run.mu == 0:
            return gaussian(0.0, rdp_may_be_less=True)
        if not run.private:
            return no_guarantee()
        return Guarantee(rdp=self._rdp, pairs=None if run.pairs is None else self._pairs, rdp_may_be_less=True)

    def _rdp(self, orders: np.ndarray) -> np.ndarray:
        curve = self.inner.guarantee(self.inner_queries).rdp
        assert curve is not None  # checked when this was built
        inner = curve(np.asarray(orders, dtype=float))
        if self.shape == np.inf:
            inner = np.maximum(inner, LEAST_DIVERGENCE)
        return np.asarray(
            rdp_privacy_accountant._compute_rdp_repeat_and_select(  # the formula alone: our curves have no DpEvent
                orders,  # type: ignore[arg-type]
                inner,  # type: ignore[arg-type]
                self.mean,
                self.shape,
            )
        )

    def _pairs(self) -> tuple[Part, ...]:
        """Return the pair that follows from the privacy profile of one run."""
        run = self.inner.guarantee(self.inner_queries).pairs
        assert run is not None
        return ((SelectedPair(run(), self.mean, self.shape), 1),)
