"""Oracles on a linear problem, one of each kind: the loss of a row is its inner product with the parameters."""

from dataclasses import replace

import torch
from torch import nn

from tacita import (
    AllocatedSampler,
    AutomaticClipper,
    BoundedFeedback,
    ClippedGradientOracle,
    ClippedSum,
    CorrelatedGaussian,
    CyclicSampler,
    DisjointSampler,
    ErrorFeedbackOracle,
    FixedSizeSampler,
    FlatClipper,
    FullBatchSampler,
    GaussianMechanism,
    GradientOracle,
    GridSum,
    PerLayerClipper,
    PoissonSampler,
    PrivateFeedback,
    ReleasedFeedback,
    RoundedGaussian,
    ShuffledEpochsSampler,
)
from tacita.convex import MedianOfMeans
from tacita.errors import UnsupportedEventError
from tacita.federated import ClippedDifference
from tacita.gradients.given import GivenSource
from tacita.linear import HuberLoss, LinearSource, SecondMoment
from tacita.linear.losses import HessianRowLoss

FLAT = FlatClipper(max_grad_norm=1.0)
MEDIAN = MedianOfMeans(max_coordinate=1.0, num_groups=3)


def difference(clipper):
    """A client's message of Clip21-SGDM, from the mean of two rows."""
    return ClippedDifference(clipper=clipper, momentum_weight=0.5, divisor=2.0)


def samples(clipper):
    """The same of clipped rows, whose message has a smaller threshold."""
    return replace(difference(FlatClipper(max_grad_norm=0.3)), sample_clipper=clipper)


class Layers(nn.Module):
    """Two layers without bias, each on its half of the row."""

    def __init__(self, columns):
        super().__init__()
        self.half = columns // 2
        self.first = nn.Linear(self.half, 1, bias=False)
        self.second = nn.Linear(columns - self.half, 1, bias=False)

    def forward(self, rows):
        return (self.first(rows[:, : self.half]) + self.second(rows[:, self.half :])).squeeze(1)


class Columns(nn.Module):
    """A layer for each column of the row."""

    def __init__(self, columns):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(columns))

    def forward(self, rows):
        return sum(layer(column) for layer, column in zip(self.layers, rows.split(1, dim=1), strict=True)).squeeze(1)


class Tied(nn.Module):
    """One layer that is used twice, each time for half of the inner product."""

    def __init__(self, columns):
        super().__init__()
        self.first = nn.Linear(columns, 1, bias=False)
        self.second = self.first

    def forward(self, rows):
        return ((self.first(rows) + self.second(rows)) / 2).squeeze(1)


def losses(model, batch):
    return model(batch[0])


def declared(rows, ledger, sampler):
    """The sampler, with a declared number of records where one record more or less is the secret."""
    if ledger.neighboring_relation != "add_or_remove_one":
        return sampler(len(rows))
    if sampler(10).requires_public_count:
        raise UnsupportedEventError("the number of records is public")
    return sampler(10)


def network(sampler, relation, *, method, model=Layers, clipper=FLAT, noise_multiplier=1.0, queries=2, **more):
    kind = more.pop("kind", ClippedGradientOracle)

    def make_oracle(rows, ledger):
        if ledger.neighboring_relation != relation:  # one each: networks take their time
            raise UnsupportedEventError("audited under another relation")
        return kind(
            model(rows.shape[1]),
            losses,
            (rows,),
            ledger=ledger,
            sampler=declared(rows, ledger, sampler),
            clipper=clipper,
            mechanism=GaussianMechanism(noise_multiplier=noise_multiplier),
            planned_queries=queries,
            method=method,
            **more,
        )

    return make_oracle


def feedback(kind, sampler, relation, *, method, **more):
    return network(sampler, relation, method=method, kind=ErrorFeedbackOracle, feedback=kind, **more)


class HessiansAtTheStart(LinearSource):
    """Hessians at weights of zero and targets of zero, where the vector of a Huber loss is the row itself."""

    def __init__(self, rows):
        super().__init__(rows, torch.zeros(len(rows)), HessianRowLoss(HuberLoss(1.0)), intercept=None)

    def engine(self, params, indices, **options):
        return super().engine({"weight": torch.zeros(self.shapes["weight"])}, indices, **options)


def given(
    sampler,
    *,
    clipper=FLAT,
    noise_multiplier=1.0,
    queries=2,
    mechanism=None,
    kind=GradientOracle,
    estimator=ClippedSum,
    source=GivenSource,
):
    def make_oracle(rows, ledger):
        return kind(
            source(rows),
            estimator=estimator(clipper),
            mechanism=mechanism or GaussianMechanism(noise_multiplier=noise_multiplier),
            sampler=declared(rows, ledger, sampler),
            ledger=ledger,
            planned_queries=queries,
        )

    return make_oracle


def under(relation, make):
    """The oracles of ``make``, under one relation only: the other one is tested exactly."""

    def make_oracle(rows, ledger):
        if ledger.neighboring_relation != relation:
            raise UnsupportedEventError("audited under another relation")
        return make(rows, ledger)

    return make_oracle


def poisson(n):
    return PoissonSampler(sample_rate=0.5, num_records=n)


def full(n):
    return FullBatchSampler(num_records=n)


def fixed_size(n):
    return FixedSizeSampler(batch_size=3, num_records=n)


def one_pass(n):
    return DisjointSampler(num_batches=4, num_records=n)


def cyclic(assignment, turn_rate=1.0):
    return lambda n: CyclicSampler(batches_per_cycle=2, num_records=n, assignment=assignment, turn_rate=turn_rate)


def allocated(batches):
    return lambda n: AllocatedSampler(batches_per_epoch=batches, num_records=n)


def shuffled(n):
    return ShuffledEpochsSampler(batches_per_epoch=2, num_records=n)


ORACLES = {
    "program": network(poisson, "add_or_remove_one", method="program"),
    "replaced": network(poisson, "replace_one", method="program"),
    "loop": network(poisson, "zero_out_one", method="loop"),
    "tied": network(poisson, "add_or_remove_one", method="program", model=Tied),
    "chunks": network(full, "zero_out_one", method="program", noise_multiplier=2.0, max_physical_batch_size=1),
    "per-layer": network(
        full,
        "add_or_remove_one",
        method="program",
        model=Columns,
        clipper=PerLayerClipper(max_grad_norm=1.0),
        noise_multiplier=2.0,
    ),
    "automatic": given(poisson, clipper=AutomaticClipper(max_grad_norm=1.0, gamma=0.01)),
    "full-batch": given(full),
    "poisson": given(poisson),
    "fixed-size": given(fixed_size),
    "one-pass": given(one_pass, queries=4),
    "allocated-one-pass": given(allocated(4), queries=4),
    "allocated": given(allocated(2), noise_multiplier=2.0, queries=4),
    "shuffled-epochs": given(shuffled, noise_multiplier=2.0, queries=4),
    "cyclic-coin": given(cyclic("coin"), noise_multiplier=2.0, queries=4),
    "correlated-coin": given(
        cyclic("coin"), mechanism=CorrelatedGaussian(noise_multiplier=3.0, bands=2, power=0.7), queries=6
    ),
    "correlated-index": given(
        cyclic("index"), mechanism=CorrelatedGaussian(noise_multiplier=3.0, bands=3, power=0.5), queries=4
    ),
    "correlated-one-pass": given(
        one_pass, mechanism=CorrelatedGaussian(noise_multiplier=1.5, bands=2, power=0.9), queries=4
    ),
    "cyclic-poisson": given(cyclic("coin", turn_rate=0.5), noise_multiplier=1.5, queries=4),
    "banded-matrix": given(
        cyclic("coin", turn_rate=0.5),
        mechanism=CorrelatedGaussian(noise_multiplier=2.0, bands=2, power=0.7, banded_matrix=True),
        queries=5,
    ),
    "banded-matrix-whole-groups": given(
        cyclic("coin"),
        mechanism=CorrelatedGaussian(noise_multiplier=3.0, bands=2, power=0.7, banded_matrix=True),
        queries=5,
    ),
    "median-of-means": under("replace_one", given(full, noise_multiplier=2.0, estimator=lambda clipper: MEDIAN)),
    "second-moment": under(
        "add_or_remove_one",
        given(full, noise_multiplier=2.0, estimator=lambda clipper: SecondMoment(max_row_norm=1.0)),
    ),
    "hessian": under(
        "zero_out_one",
        given(
            full,
            noise_multiplier=2.0,
            estimator=lambda clipper: SecondMoment(max_row_norm=1.0),
            source=HessiansAtTheStart,
        ),
    ),
    "clipped-difference": under(
        "add_or_remove_one", given(full, noise_multiplier=2.0, queries=4, estimator=difference)
    ),
    "clipped-samples": under("add_or_remove_one", given(allocated(2), noise_multiplier=0.5, estimator=samples)),
    "hidden-error": feedback(
        PrivateFeedback(max_feedback_norm=0.2),
        poisson,
        "add_or_remove_one",
        method="program",
        noise_multiplier=2.0,
        queries=4,
    ),
    "bounded-residuals": feedback(
        BoundedFeedback(max_feedback_norm=1.0, max_residual_norm=2.0),
        allocated(2),
        "zero_out_one",
        method="program",
        noise_multiplier=2.0,
        queries=4,
    ),
    "released-residuals": feedback(
        ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=2.0),
        poisson,
        "replace_one",
        method="program",
        noise_multiplier=2.0,
        queries=4,
    ),
    "rounded": given(full, mechanism=RoundedGaussian(noise_multiplier=2.0), estimator=GridSum),
}


class Foreign:
    """A third party's oracle: ``query`` and nothing else. Full batch, clipped sum, torch's noise.

    Args:
        rows, ledger: As ``make_oracle`` gets them.
        quiet: What the stated noise is multiplied by.
    """

    queries = 2

    def __init__(self, rows, ledger, quiet=1.0):
        from tacita.accounting import FullBatchLaw, GaussianSumEvent, moved

        relation = ledger.neighboring_relation
        self._noise_std = 2.0 * moved(relation)
        event = GaussianSumEvent(
            sampling=FullBatchLaw(), relation=relation, max_contribution=(1.0,), noise_std=(self._noise_std,)
        )
        self._session = ledger.register(event, planned_queries=self.queries)
        self._rows, self._quiet, self._made = rows, quiet, 0

    def query(self, params):
        from tacita import Release

        if self._made == 0:
            self._session.open()
        self._session.reserve(self._made, self._made)
        norms = self._rows.double().norm(dim=1, keepdim=True)
        clipped = torch.where(norms.isfinite(), self._rows / norms.clamp(min=1.0), 0.0).nan_to_num(0.0)
        value = {"theta": clipped.sum(dim=0).float()}
        self._session.spend(self._made)
        self._made += 1
        released = {n: v + self._quiet * self._noise_std * torch.randn(v.shape) for n, v in value.items()}
        return Release(
            gradient={name: r / 10 for name, r in released.items()},
            released={"gradient": released},
            divisor=10.0,
            noise_std={"gradient": self._noise_std},
            session=self._session.id,
            query=self._made - 1,
        )
