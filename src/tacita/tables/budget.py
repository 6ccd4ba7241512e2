r"""The budget of the purchases and of the score, and the noise that follows, by public rules fixed beforehand.

The total is the Gaussian :math:`\mu` of (epsilon, delta). Three purchases get shares of :math:`\mu^2`: the number of
rows and the task; the target's values; the other columns, whose share is split between the survey and the refinement.
All are registered with the training, whose noise is calibrated alongside them. The score on held-out rows comes after
the purchases and beside the training, because no row is in both. So it may spend what the purchases leave of
:math:`\mu^2`.
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.events.counts import HistogramGaussianEvent, StableCountsEvent, stable_threshold
from tacita.accounting.gaussian import gaussian_mu
from tacita.accounting.relations import NeighboringRelation, moved
from tacita.tables.score import CLASSES, SCORES

ROWS = 0.02  # share of the total mu^2: the number of rows, and the task
TARGET = 0.06  # ... the target's values, because without classes there is no model
COLUMNS = 0.3  # ... all other columns together, from three on: what is left gives the training 0.79 of the total mu
SURVEY = 0.5  # the survey's share of what the columns get; 0.35 to 0.8 give about the same accuracy
SCORE_SHARES = {SCORES: 0.75, CLASSES: 0.25}  # of what the score spends, by block
NEW_TEXTS = 0.1  # share of delta for texts that only one record holds


@dataclass(frozen=True, kw_only=True)
class PurchasePlan:
    r"""The noise of every purchase and of the score, by public rules from epsilon and delta alone.

    One unit adds a vector of L2 norm at most k :math:`\sqrt m` to m histograms, where k is ``max_rows_per_unit``. Under
    replace-one it moves the counts by at most :math:`\sqrt 2` times that.

    Attributes:
        epsilon, delta: The total, training included.
        relation: The neighboring relation.
        max_rows_per_unit: Rows of one person that count; 1 if the unit is a row.
    """

    epsilon: float
    delta: float
    relation: NeighboringRelation
    max_rows_per_unit: int = 1

    def __post_init__(self):
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)
        moved(self.relation)

    @property
    def total_mu(self) -> float:
        """The Gaussian mu of everything together, at the delta that new texts leave."""
        return gaussian_mu(self.epsilon, (1 - NEW_TEXTS) * self.delta)

    @property
    def failure_probability(self) -> float:
        """The chance that a text of one record alone is released; replace-one pays it twice."""
        return NEW_TEXTS * self.delta / moved(self.relation)

    def rows_noise_std(self) -> float:
        """Return the noise on each count of the one histogram that shows the number of rows and the task."""
        return self._noise_std(1, math.sqrt(ROWS))

    def target_noise_std(self) -> float:
        """Return the noise on each count of the one histogram of the target's values."""
        return self._noise_std(1, math.sqrt(TARGET))

    def survey_noise_std(self, num_columns: int, histograms: int = 2) -> float:
        """Return the noise on each count of a survey of ``num_columns`` columns with ``histograms`` histograms each."""
        return self._noise_std(histograms * num_columns, math.sqrt(SURVEY) * columns_share(num_columns))

    def refinement_noise_std(self, num_columns: int, of: int | None = None) -> float:
        """Return the noise on each count of a refinement of ``num_columns`` histograms at the share of ``of``."""
        share = columns_share(num_columns if of is None else of)
        return self._noise_std(num_columns, math.sqrt(1 - SURVEY) * share)

    def contribution(self, histograms: int) -> float:
        """Return the largest L2 norm that one unit adds to so many histograms."""
        return self.max_rows_per_unit * math.sqrt(histograms)

    def threshold(self, num_columns: int, histograms: int = 2) -> float:
        """Return the noisy count from which a column's text is released: a row has at most ``num_columns`` new ones."""
        noise_std = self.survey_noise_std(num_columns, histograms)
        return text_threshold(noise_std, self.failure_probability / 2, num_columns, self.max_rows_per_unit)

    def target_threshold(self) -> float:
        """Return the noisy count from which a label is released; a row holds one label."""
        return text_threshold(self.target_noise_std(), self.failure_probability / 2, 1, self.max_rows_per_unit)

    def rows_event(self) -> Event:
        """Return what the counts of rows and of kinds of targets spend."""
        return self._event(1, self.rows_noise_std())

    def survey_event(self, num_columns: int, *, target: bool = False) -> Event:
        """Return what the survey spends: one query of noisy counts, with the failure probability of the texts."""
        columns = ((self.contribution(2 * num_columns), self.survey_noise_std(num_columns)),) if num_columns else ()
        blocks = (*columns, *(((self.contribution(1), self.target_noise_std()),) if target else ()))
        return StableCountsEvent(
            relation=self.relation,
            max_contribution=tuple(contribution for contribution, _ in blocks),
            noise_std=tuple(noise_std for _, noise_std in blocks),
            failure_probability=self.failure_probability,
        )

    def refinement_event(self, num_columns: int) -> Event:
        r"""Return what the refinement spends, which is registered before the number m of its histograms is known.

        The event is stated for ``num_columns`` histograms. The survey may find that m of the columns are numbers: the
        noise is then scaled with :math:`\sqrt m`, so that the ratio of contribution to noise, on which alone the
        guarantee depends, is the same for every m.
        """
        return self._event(num_columns, self.refinement_noise_std(num_columns))

    def score_event(self, noise_multiplier: float) -> Event:
        """Return what the score spends: one query of two histograms of the held-out rows, a block each."""
        sensitivity = self._sensitivity(1)
        return HistogramGaussianEvent(
            relation=self.relation,
            max_contribution=(self.contribution(1),) * len(SCORE_SHARES),
            noise_std=tuple(noise_multiplier * sensitivity / math.sqrt(share) for share in SCORE_SHARES.values()),
        )

    def _event(self, histograms: int, noise_std: float) -> Event:
        return HistogramGaussianEvent(
            relation=self.relation, max_contribution=(self.contribution(histograms),), noise_std=(noise_std,)
        )

    def _sensitivity(self, histograms: int) -> float:
        """Return the L2 sensitivity of the counts of so many histograms."""
        return math.sqrt(moved(self.relation)) * self.contribution(histograms)

    def _noise_std(self, histograms: int, share: float) -> float:
        exact = self._sensitivity(histograms) / (share * self.total_mu)
        return exact * (1 + 1e-9)  # so that rounding never passes the budget


def columns_share(num_columns: int) -> float:
    """Return what ``num_columns`` columns may spend, as a share of mu (the square root of a share of mu^2).

    Example:
        >>> round(columns_share(1) ** 2, 9), round(columns_share(1000) ** 2, 9)
        (0.1, 0.3)
    """
    return math.sqrt(COLUMNS * min(num_columns, 3) / 3)


def text_threshold(noise_std: float, failure_probability: float, new_texts: int, rows: int = 1) -> float:
    """Return the smallest whole noisy count at which a text is released.

    A row brings at most ``new_texts`` new texts, and a unit has at most ``rows`` rows. Counts are rounded to integers
    first, and a count that was rounded to t was at least t - 1/2: hence the integer at or above the threshold + 1/2.

    Example:
        >>> text_threshold(10.0, 1e-6, 1)
        50.0
    """
    exact = stable_threshold(noise_std, failure_probability, new_bins=new_texts, rows_per_unit=rows)
    return float(math.ceil(exact + 0.5))
