r"""What the purchases may spend, and the noise that follows: public rules, fixed before anything is bought.

Place: accounting -> [tables.budget] -> purchases. The total is the Gaussian :math:`\mu` of (epsilon, delta). Survey and
refinement get 0.3 of it together and are registered with the training, whose noise is calibrated alongside them. The
score on held-out rows runs beside the training (no row is in both), in sequence with the purchases: it may have what
:math:`\mu^2` leaves.
"""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.gaussian import gaussian_mu
from tacita.accounting.gaussian_events import HistogramGaussianEvent
from tacita.accounting.relations import NeighboringRelation, moved
from tacita.accounting.stable_counts import StableCountsEvent, stable_threshold

PURCHASES = 0.3  # of the total mu
SURVEY = 0.5  # of the purchases' mu^2; the refinement gets the rest (0.35 to 0.8 score alike)
NEW_TEXTS = 0.1  # of delta: for texts that only one record holds


@dataclass(frozen=True, kw_only=True)
class PurchasePlan:
    r"""The noise of every purchase, by public rules from epsilon and delta alone.

    One record adds a vector of L2 norm ``rows`` :math:`\sqrt m` to m histograms (``rows``: of one person, else 1), and
    under replace-one moves it by :math:`\sqrt 2` times that.

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
        """mu of the whole, at the delta that new texts leave."""
        return gaussian_mu(self.epsilon, (1 - NEW_TEXTS) * self.delta)

    @property
    def failure_probability(self) -> float:
        """Chance that a text of one record alone is released; replace-one pays it twice."""
        return NEW_TEXTS * self.delta / moved(self.relation)

    def survey_noise_std(self, num_columns: int) -> float:
        """Noise on each count of the survey of ``num_columns`` columns: 2 histograms a column."""
        return self._noise_std(2 * num_columns, PURCHASES * math.sqrt(SURVEY))

    def refinement_noise_std(self, num_columns: int) -> float:
        """Noise on each count of the refinement of ``num_columns`` numeric columns."""
        return self._noise_std(num_columns, PURCHASES * math.sqrt(1 - SURVEY))

    def score_noise_std(self, histograms: int = 1) -> float:
        """Noise on each count of the score: all that the purchases leave, as the training has it."""
        return self._noise_std(histograms, math.sqrt(1 - PURCHASES**2))

    def threshold(self, num_columns: int) -> float:
        """The noisy count from which a text is released; a record holds at most ``num_columns`` new ones a row."""
        noise_std = self.survey_noise_std(num_columns)
        return text_threshold(noise_std, self.failure_probability, num_columns, self.max_rows_per_unit)

    def survey_event(self, num_columns: int) -> Event:
        """The survey as one query: noisy counts, and the texts' failure probability."""
        return StableCountsEvent(
            relation=self.relation,
            max_contribution=(self._contribution(2 * num_columns),),
            noise_std=(self.survey_noise_std(num_columns),),
            failure_probability=self.failure_probability,
        )

    def refinement_event(self, num_columns: int) -> Event:
        r"""The refinement, registered before the number m of numeric columns is known.

        Stated for ``num_columns``, of which the survey may find m to be numeric: the noise is then scaled with
        :math:`\sqrt m`, so that contribution over noise, which is all that counts, is the same whatever m.
        """
        return self._event(num_columns, self.refinement_noise_std(num_columns))

    def score_event(self, histograms: int = 1) -> Event:
        """The score: ``histograms`` histograms over the held-out rows."""
        return self._event(histograms, self.score_noise_std(histograms))

    def _event(self, histograms: int, noise_std: float) -> Event:
        return HistogramGaussianEvent(
            relation=self.relation, max_contribution=(self._contribution(histograms),), noise_std=(noise_std,)
        )

    def _contribution(self, histograms: int) -> float:
        return self.max_rows_per_unit * math.sqrt(histograms)

    def _noise_std(self, histograms: int, share: float) -> float:
        exact = math.sqrt(moved(self.relation)) * self._contribution(histograms) / (share * self.total_mu)
        return exact * (1 + 1e-9)  # so that rounding never passes the budget


def text_threshold(noise_std: float, failure_probability: float, new_texts: int, rows: int = 1) -> float:
    """The smallest whole noisy count at which a text is released: one row brings ``new_texts``, one unit ``rows`` rows.

    Counts are rounded to integers first, and what was rounded to t was at least t - 1/2: hence the integer at or above
    the threshold + 1/2.

    Example:
        >>> text_threshold(10.0, 1e-6, 1)
        50.0
    """
    exact = stable_threshold(noise_std, failure_probability, new_bins=new_texts, rows_per_unit=rows)
    return float(math.ceil(exact + 0.5))
