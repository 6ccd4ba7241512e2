"""Audits to run by name: an oracle of each kind, with settings at which an audit has power, and its worst case.

To add one, add an entry to ``_AUDITS``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from tacita.accounting import Event, NeighboringRelation
from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.clipping.clipper import Clipper
from tacita.estimators import ClippedSum
from tacita.gradients.given import GivenSource
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism, Mechanism
from tacita.oracles import GradientOracle
from tacita.sampling import (
    AllocatedSampler,
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    Sampler,
    UnitPoissonSampler,
)
from tacita.testing.adversaries import CONSTANT, EMPTY, Adversary
from tacita.testing.claims import Claim
from tacita.testing.sessions import MakeOracle

STATED, HALF = "stated", "half"
DECLARED = 1000  # declared number of records, where it may be a guess
RowsToGradients = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ReadyAudit:
    """An audit that can be run by its name.

    Attributes:
        name: The name, as typed on the command line.
        help: The audited oracle, in one line.
        make: Noise -> ``make_oracle(rows, ledger)``.
        relation: How the two data sets differ.
        adversaries: The adversaries to choose from.
        noises: The values of ``--noise``; the first is the default.
        claim: (noise, delta) -> the claim to test, or ``None`` for the ledger's claim.
        columns: Number of columns of the rows.
    """

    name: str
    help: str
    make: Callable[[str], MakeOracle]
    relation: NeighboringRelation = "add_or_remove_one"
    adversaries: tuple[Adversary, ...] = (EMPTY,)
    noises: tuple[str, ...] = (STATED, HALF)
    claim: Callable[[str, float], Claim | None] = lambda noise, delta: None
    columns: int = 1


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(Mechanism):
    """A mechanism that adds half of the noise that it states. It is not private, and shows that an audit can refute."""

    def event(self, event: Event) -> Event:
        return event

    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> "HalfTheNoise":
        return self

    def __call__(self, values, noise_std, normals):
        plain = GaussianMechanism(noise_multiplier=self.noise_multiplier, allocation=self.allocation)
        return plain(values, {block: std / 2 for block, std in noise_std.items()}, normals)


def mechanism_of(noise: str) -> type[Mechanism]:
    """Return the class of the mechanism that adds the stated noise, or half of it."""
    return HalfTheNoise if noise == HALF else GaussianMechanism


def clipped_sums(
    sampler: Callable[[int], Sampler],
    *,
    noise_multiplier: float,
    queries: int,
    clipper: Clipper = FlatClipper(max_grad_norm=1.0),  # noqa: B008 - frozen
    gradients: RowsToGradients = lambda rows: {"theta": rows},
    max_rows_per_unit: int = 1,
) -> Callable[[str], MakeOracle]:
    """Build oracles of clipped sums with Gaussian noise.

    Args:
        sampler: Number of rows -> sampler.
        noise_multiplier: The mechanism's noise multiplier.
        queries: Planned queries.
        clipper: The clipper.
        gradients: Rows -> gradients by parameter name.
        max_rows_per_unit: Largest number of rows of a unit.
    """

    def make(noise: str) -> MakeOracle:
        mechanism = mechanism_of(noise)

        def make_oracle(rows: Tensor, ledger: Ledger) -> GradientOracle:
            return GradientOracle(
                GivenSource(gradients(rows)),
                estimator=ClippedSum(clipper),
                mechanism=mechanism(noise_multiplier=noise_multiplier),
                sampler=sampler(len(rows)),
                ledger=ledger,
                planned_queries=queries,
                max_rows_per_unit=max_rows_per_unit,
            )

        return make_oracle

    return make


def _two_layers(rows: Tensor) -> Mapping[str, Tensor]:
    half = rows.shape[1] // 2
    return {"first.weight": rows[:, :half], "second.weight": rows[:, half:]}


_AUDITS = (
    ReadyAudit(
        name="gaussian",
        help="one Gaussian query, noise multiplier 1",
        make=clipped_sums(lambda n: FullBatchSampler(num_records=DECLARED), noise_multiplier=1.0, queries=1),
    ),
    ReadyAudit(
        name="dp-sgd",
        help="DP-SGD: Poisson sampling at rate 0.02, 150 queries, noise multiplier 1",
        make=clipped_sums(
            lambda n: PoissonSampler(sample_rate=0.02, num_records=DECLARED), noise_multiplier=1.0, queries=150
        ),
    ),
    ReadyAudit(
        name="full-batch",
        help="full batch, 10 queries, noise multiplier 4",
        make=clipped_sums(lambda n: FullBatchSampler(num_records=DECLARED), noise_multiplier=4.0, queries=10),
    ),
    ReadyAudit(
        name="per-layer",
        help="two layers clipped apart, full batch, 4 queries, noise multiplier 2",
        make=clipped_sums(
            lambda n: FullBatchSampler(num_records=DECLARED),
            noise_multiplier=2.0,
            queries=4,
            clipper=PerLayerClipper(max_grad_norm=1.0),
            gradients=_two_layers,
        ),
        columns=4,
    ),
    ReadyAudit(
        name="replace-one",
        help="Poisson sampling at rate 0.2 under replace_one, 20 queries, noise multiplier 1",
        make=clipped_sums(lambda n: PoissonSampler(sample_rate=0.2, num_records=n), noise_multiplier=1.0, queries=20),
        relation="replace_one",
        adversaries=(replace(CONSTANT, num_others=0),),
    ),
    ReadyAudit(
        name="fixed-size",
        help="2 of 20 records without replacement, 20 queries, noise multiplier 1",
        make=clipped_sums(lambda n: FixedSizeSampler(batch_size=2, num_records=n), noise_multiplier=1.0, queries=20),
        relation="replace_one",
        adversaries=(replace(CONSTANT, num_others=19),),
    ),
    ReadyAudit(
        name="one-pass",
        help="each record in one of 4 batches, noise multiplier 1",
        make=clipped_sums(
            lambda n: AllocatedSampler(batches_per_epoch=4, num_records=DECLARED),
            noise_multiplier=1.0,
            queries=4,
        ),
    ),
    ReadyAudit(
        name="allocation",
        help="each record in one of 4 batches of each of 3 epochs, noise multiplier 2",
        make=clipped_sums(
            lambda n: AllocatedSampler(batches_per_epoch=4, num_records=DECLARED),
            noise_multiplier=2.0,
            queries=12,
        ),
    ),
    ReadyAudit(
        name="units",
        help="persons with 3 rows each, rows drawn at rate 0.1, 20 queries, noise_std 2 C",
        make=clipped_sums(
            lambda n: UnitPoissonSampler(sample_rate=0.1, num_records=DECLARED, max_rows_per_unit=3),
            noise_multiplier=2.0,
            queries=20,
            max_rows_per_unit=3,
        ),
        adversaries=(replace(EMPTY, copies=3),),
    ),
)
READY: dict[str, ReadyAudit] = {ready.name: ready for ready in _AUDITS}
