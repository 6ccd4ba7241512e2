"""Events by short names, for the tests of accounting."""

import math

import pytest

from tacita import accounting as acc
from tacita import convex, error_feedback, federated
from tacita.correlated import CorrelatedEvent
from tacita.error_feedback import InterleavedEvent
from tacita.linear import SecondMomentEvent
from tacita.second_order import AboveThresholdEvent
from tacita.tables.selection_events import ComposedEvent, RepeatAndSelectEvent, WorstOfEvent


class Events:
    """Builders of events with max_contribution 1 unless said otherwise."""

    @staticmethod
    def poisson(rate, std, relation="add_or_remove_one", contribution=1.0):
        return acc.GaussianSumEvent(
            relation=relation, max_contribution=(contribution,), noise_std=(std,), sampling=acc.PoissonLaw(rate)
        )

    @staticmethod
    def full(std, relation="add_or_remove_one", contribution=1.0):
        return acc.GaussianSumEvent(
            sampling=acc.FullBatchLaw(), relation=relation, max_contribution=(contribution,), noise_std=(std,)
        )

    @staticmethod
    def fixed(std, batch=100, records=10_000, contribution=1.0):
        return acc.GaussianSumEvent(
            relation="replace_one",
            max_contribution=(contribution,),
            noise_std=(std,),
            sampling=acc.FixedSizeLaw(batch, records),
        )

    @staticmethod
    def unit(rate, std, rows, contribution=1.0):
        return acc.GaussianSumEvent(
            relation="add_or_remove_one",
            max_contribution=(contribution,),
            noise_std=(std,),
            sampling=acc.PoissonUnitLaw(rate, rows),
        )

    @staticmethod
    def share(epsilon, delta, relation="add_or_remove_one"):
        return acc.ApproximateDPEvent(relation=relation, epsilon=epsilon, delta_share=delta)

    @staticmethod
    def hidden(std=50.0, error=2.0, contribution=1.0, rate=0.02, *, relation="add_or_remove_one", rows=1):
        return error_feedback.HiddenErrorEvent(
            relation=relation,
            max_contribution=contribution,
            max_error_change=error,
            noise_std=std,
            sampling=acc.PoissonLaw(rate) if rows == 1 else acc.PoissonUnitLaw(rate, rows),
        )

    @staticmethod
    def hidden_anyhow(std=50.0, error=2.0, contribution=1.0, relation="replace_one"):
        return error_feedback.HiddenErrorEvent(
            relation=relation,
            max_contribution=contribution,
            max_error_change=error,
            noise_std=std,
            sampling=acc.FullBatchLaw(),
        )

    @staticmethod
    def bounded(std=20.0, contribution=1.0, residual=1.0, rate=0.02, relation="add_or_remove_one"):
        return error_feedback.BoundedResidualEvent(
            relation=relation,
            max_contribution=contribution,
            max_residual=residual,
            noise_std=std,
            sampling=acc.PoissonLaw(rate),
        )

    @staticmethod
    def bounded_in_epochs(std=20.0, contribution=1.0, residual=1.0, per_epoch=50, relation="add_or_remove_one"):
        return error_feedback.BoundedResidualEvent(
            relation=relation,
            max_contribution=contribution,
            max_residual=residual,
            noise_std=std,
            sampling=acc.ShuffledEpochsLaw(per_epoch, own_coin=True),
        )

    @classmethod
    def one_of_each(cls):
        relation, blocks = "add_or_remove_one", {"max_contribution": (1.0, 0.5), "noise_std": (2.0, 3.0)}
        return [
            cls.poisson(0.02, 1.1, "replace_one"),
            acc.GaussianSumEvent(relation="zero_out_one", sampling=acc.TruncatedPoissonLaw(0.1, 15, 100), **blocks),
            cls.full(1.5, "zero_out_one"),
            cls.fixed(2.0),
            acc.GaussianSumEvent(sampling=acc.DisjointLaw(own_coin=True), relation=relation, **blocks),
            acc.HistogramGaussianEvent(relation="replace_one", **blocks),
            acc.GaussianSumEvent(relation=relation, sampling=acc.ShuffledEpochsLaw(7, own_coin=True), **blocks),
            acc.GaussianSumEvent(relation=relation, sampling=acc.CyclicLaw(7, own_coin=True), **blocks),
            acc.GaussianSumEvent(relation=relation, sampling=acc.CyclicPoissonLaw(7, 0.2, own_coin=True), **blocks),
            CorrelatedEvent(
                relation=relation,
                inner=acc.GaussianSumEvent(
                    relation=relation, sampling=acc.CyclicPoissonLaw(7, 0.2, own_coin=True), **blocks
                ),
                bands=5,
                power=0.7,
                banded_matrix=True,
            ),
            CorrelatedEvent(
                relation=relation,
                inner=acc.GaussianSumEvent(relation=relation, sampling=acc.CyclicLaw(7, own_coin=True), **blocks),
                bands=2,
                power=0.7,
            ),
            cls.unit(0.02, 1.0, 4),
            convex.MedianOfMeansEvent(
                relation="zero_out_one",
                sampling=acc.PoissonLaw(0.1),
                max_contribution=(3.0,),
                noise_std=(6.0,),
                num_groups=5,
            ),
            SecondMomentEvent(
                relation="replace_one", sampling=acc.FullBatchLaw(), max_contribution=(1.0,), noise_std=(20.0,)
            ),
            convex.ShuffledSumEvent(
                relation="replace_one",
                sampling=acc.DisjointLaw(own_coin=False),
                users=500,
                coordinates=10,
                grid=23,
                noise_bits=113,
                bit_prob=0.5,
                l2_bounded=True,
            ),
            acc.MixtureOfGaussiansEvent(
                relation=relation, shifts=(0.0, 1.0, 2.0), probabilities=(0.9, 0.08, 0.02), noise_std=1.0
            ),
            acc.LaplaceEvent(relation=relation, l1_sensitivity=1.0, scale=4.0),
            acc.ZCDPEvent(relation=relation, rho=0.02),
            cls.share(0.5, 1e-6),
            acc.HardenedEvent(relation=relation, inner=cls.full(1.5), sums="alone"),
            acc.StableCountsEvent(relation=relation, failure_probability=1e-7, **blocks),
            RepeatAndSelectEvent(
                relation=relation, inner=cls.poisson(0.02, 1.1), inner_queries=50, mean=5.0, shape=math.inf
            ),
            acc.ConditionalEvent(relation=relation, inner=cls.full(2.0), condition_text="every loss is 1-smooth"),
            ComposedEvent(relation=relation, parts=(cls.poisson(0.02, 1.1), cls.full(5.0)), part_queries=(50, 1)),
            WorstOfEvent(relation=relation, parts=(cls.poisson(0.02, 1.1), cls.full(5.0)), part_queries=(50, 1)),
            acc.CoupledEvent(relation=relation, inner=cls.poisson(0.02, 1.1), failure_probability=1e-9),
            cls.hidden(),
            cls.hidden_anyhow(),
            cls.bounded(),
            cls.bounded_in_epochs(),
            error_feedback.FirstDrawEvent(relation=relation, inner=cls.hidden()),
            InterleavedEvent(relation=relation, inner=cls.hidden(), between=cls.poisson(0.02, 50.0), every=5),
            federated.ClientMessagesEvent(relation="replace_one", **blocks),
            federated.ClippedSamplesEvent(
                relation=relation,
                sampling=acc.PoissonLaw(0.1),
                max_message_norm=1.0,
                max_sample_norm=1.0,
                momentum_weight=0.5,
                divisor=2.0,
                noise_std=4.0,
            ),
            AboveThresholdEvent(relation=relation, sensitivity=0.1, threshold_scale=0.4, query_scale=0.8),
        ]


@pytest.fixture
def events():
    return Events
