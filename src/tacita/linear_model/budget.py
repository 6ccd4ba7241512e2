r"""How an estimator spends its budget: shares of :math:`\mu^2`, fixed before anything is seen, and the noise they give.

The total is the Gaussian :math:`\mu` of (epsilon, delta), or :math:`\sqrt{2 \rho}` where rho was given, because a
Gaussian query of :math:`\mu` is :math:`\mu^2 / 2`-zCDP (Bun and Steinke, 2016, Proposition 1.6,
https://arxiv.org/abs/1605.02065). Every release is Gaussian, over all records, so that sessions with shares :math:`f_i`
of :math:`\mu^2` are together one Gaussian query of :math:`\mu \sqrt{\sum f_i}`. Counts of texts that only one record
holds (the classes, where they are bought) take a tenth of delta besides.
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting import (
    HistogramGaussianEvent,
    NeighboringRelation,
    StableCountsEvent,
    gaussian_epsilon,
    gaussian_mu,
    moved,
    stable_threshold,
)

NEW_CLASSES = 0.1  # share of delta, for classes of one record alone
ROOM = 1 - 1e-9  # of mu, for the rounding of sums of squares
LEAST_EPSILON = 1e-9  # of a rho so small that delta alone covers it


@dataclass(frozen=True, kw_only=True)
class FitBudget:
    """The noise of each release of one fit.

    Attributes:
        epsilon, delta: The total; epsilon is ``None`` where rho was given.
        rho: The total in zero-concentrated privacy, in place of epsilon.
        relation: The neighboring relation.
        scales: Share of mu^2 for the histograms of scales; 0 if none is bought.
        classes: Share for the counts of classes; 0 if they were given.
        labels: Share for the counts of labels by the classes that were given; 0 if they are bought.
        moments: Share for the second moments; 0 if none are released.

    Example:
        >>> budget = FitBudget(epsilon=1.0, delta=1e-6, relation="zero_out_one", moments=0.2)
        >>> budget.rest, round(1 / budget.noise_multiplier(0.2) ** 2 + 1 / budget.noise_multiplier(0.8) ** 2, 4)
        (0.8, 0.056)
        >>> round(gaussian_mu(1.0, 1e-6) ** 2, 4)
        0.056
    """

    epsilon: float | None = None
    delta: float
    rho: float | None = None
    relation: NeighboringRelation
    scales: float = 0.0
    classes: float = 0.0
    labels: float = 0.0
    moments: float = 0.0

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.rho is None):
            raise ValueError("epsilon or rho must be given, and not both.")
        name, total = ("rho", self.rho) if self.epsilon is None else ("epsilon", self.epsilon)
        assert total is not None, "one of the two was given"
        object.__setattr__(self, name, _validate.positive(name, total))
        _validate.delta("delta", self.delta)
        moved(self.relation)

    @property
    def rest(self) -> float:
        """The share that is left for the gradients."""
        return 1.0 - self.scales - self.classes - self.labels - self.moments

    @property
    def mu(self) -> float:
        """The Gaussian mu of everything together."""
        if self.rho is not None:
            return ROOM * math.sqrt(2 * self.rho)
        assert self.epsilon is not None, "one of the two was given"
        return ROOM * gaussian_mu(self.epsilon, self._gaussian_delta)

    @property
    def total_epsilon(self) -> float:
        """The epsilon that all releases keep to, at delta: the one that was given, or that of rho."""
        if self.epsilon is not None:
            return self.epsilon
        assert self.rho is not None, "one of the two was given"
        return max(gaussian_epsilon(math.sqrt(2 * self.rho), self._gaussian_delta), LEAST_EPSILON)

    @property
    def _gaussian_delta(self) -> float:
        """The part of delta that is not kept for classes."""
        return self.delta - (NEW_CLASSES * self.delta if self.classes else 0.0)

    def noise_multiplier(self, share: float, queries: int = 1) -> float:
        """Return the noise multiplier of each of ``queries`` full-batch queries that together get ``share``."""
        return 1 / (self.mu * math.sqrt(share / queries))

    def labels_event(self) -> HistogramGaussianEvent:
        """Return what the counts of labels by given classes spend: a record is in one bin."""
        return self.scales_event(1, self.labels)

    def scales_event(self, histograms: int, share: float | None = None) -> HistogramGaussianEvent:
        """Return what the histograms of scales spend: one record is once in each of them.

        Args:
            histograms: Their number.
            share: Their share, if it is not ``scales``.
        """
        contribution = math.sqrt(histograms)
        return HistogramGaussianEvent(
            relation=self.relation,
            max_contribution=(contribution,),
            noise_std=(self._counts_noise_std(self.scales if share is None else share, contribution),),
        )

    def classes_event(self) -> StableCountsEvent:
        """Return what the counts of classes spend: a record holds one."""
        return StableCountsEvent(
            relation=self.relation,
            max_contribution=(1.0,),
            noise_std=(self._counts_noise_std(self.classes, 1.0),),
            failure_probability=NEW_CLASSES * self.delta / moved(self.relation),
        )

    def classes_threshold(self, event: StableCountsEvent) -> float:
        """Return the noisy count from which a class is released."""
        return stable_threshold(event.noise_std[0], event.failure_probability, new_bins=1)

    def _counts_noise_std(self, share: float, contribution: float) -> float:
        return self.noise_multiplier(share) * contribution * math.sqrt(moved(self.relation))
