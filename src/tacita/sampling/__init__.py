"""Samplers: how the records of each query are drawn."""

from tacita.sampling.cyclic import CyclicSampler as CyclicSampler
from tacita.sampling.disjoint import DisjointSampler as DisjointSampler
from tacita.sampling.epochs import AllocatedSampler as AllocatedSampler
from tacita.sampling.epochs import ShuffledEpochsSampler as ShuffledEpochsSampler
from tacita.sampling.fixed_size import FixedSizeSampler as FixedSizeSampler
from tacita.sampling.full_batch import FullBatchSampler as FullBatchSampler
from tacita.sampling.poisson import PoissonSampler as PoissonSampler
from tacita.sampling.poisson import UnitPoissonSampler as UnitPoissonSampler
from tacita.sampling.sampler import Coins as Coins
from tacita.sampling.sampler import Sampler as Sampler
from tacita.sampling.sampler import as_sampler as as_sampler
