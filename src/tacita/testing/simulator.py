r"""A simulator of whole runs in two worlds, many at once, by the oracle's own estimator and mechanism.

The estimator is a pure function that takes leading axes: here one for the two worlds under the same coins, and one for
runs. Derivation: docs/derivations/audit.md.

Every run has an actual world, with or without the canary, and a *reference* world: the same rows, coins and releases,
but no canary. The trace keeps the *residual*, which is the release minus the reference's value, over the noise. It is
the view of the adversary in a privacy proof, who knows all records but one and all coins but that record's. The
reference must not depend on the canary's own coin; which rows it has depends on the sampling law.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.accounting import FixedSizeLaw, NeighboringRelation, SamplingLaw, TruncatedPoissonLaw
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients.engine import GradientSource
from tacita.gradients.given import GivenEngine
from tacita.hardened import CappedSum
from tacita.mechanisms.mechanism import Mechanism
from tacita.random import Key, QueryCoins, Randomness, Stream
from tacita.sampling import Sampler
from tacita.testing.adversaries import Adversary

CACHED = 2**16  # elements of a chunk's tensors in one query; small enough for the processor's cache
KEPT = 2**22  # elements of a chunk's trace


@dataclass(frozen=True)
class Trace:
    """The releases of several runs in one world.

    Attributes:
        residual: Release minus the reference's value, over noise_std: (runs, queries, coordinates). Correlated noise
            is whitened, so that the noise in it is independent.
        shift: The same without the noise, which is the canary's effect.
        drawn: Number of the canary's rows in the batch, (runs, queries); ``None`` if unknown.
        others: Number of other rows in the batch, likewise.
    """

    residual: Tensor
    shift: Tensor
    drawn: Tensor | None
    others: Tensor | None

    def __len__(self) -> int:
        return len(self.residual)


@dataclass(frozen=True)
class Parts:
    """The parts of an oracle that a simulation needs.

    Attributes:
        estimator: The oracle's own estimator.
        mechanism: The oracle's own mechanism: ``(values, noise_std, normals) -> released``.
        sampler: The oracle's own sampler.
        noise_std: Standard deviation of the noise on each block.
        queries: Number of queries in a run.
        relation: How the two data sets differ.
    """

    estimator: Estimator
    mechanism: Callable[..., Values]
    sampler: Sampler
    noise_std: Mapping[str, float]
    queries: int
    relation: NeighboringRelation

    @property
    def coins_known(self) -> bool:
        """Whether the claim holds even for an adversary who knows in which queries the canary is."""
        return self.sampler.law.coins_known(self.relation)


@dataclass(frozen=True)
class Worlds:
    """Per-sample gradients of both data sets, as the oracle's own engine computes them.

    Attributes:
        present: Parameter name -> (rows, size), with the canary.
        absent: The same with the canary's rows replaced; ``None`` if these rows are missing instead.
        canary: Which rows are the canary's, (rows,).
        reference_has_replacement: Whether the reference has ``absent``'s rows in the canary's place, or none.
        factor: Query -> factor that multiplies the canary.
    """

    present: Mapping[str, Tensor]
    absent: Mapping[str, Tensor] | None
    canary: Tensor
    reference_has_replacement: bool
    factor: Callable[[int], float]

    @property
    def num_rows(self) -> int:
        return len(self.canary)

    def engine(self, query: int, masks: Tensor, present: bool) -> GivenEngine:
        """Return the engine of (actual world, reference) for batches ``masks`` (runs, rows)."""
        actual = self.present if present or self.absent is None else self.absent
        reference = self.absent if self.reference_has_replacement and self.absent is not None else self.present
        grads = {name: torch.stack([actual[name], reference[name]]).unsqueeze(1) for name in actual}
        factor = self.factor(query)
        if factor != 1:
            scale = torch.where(self.canary, factor, 1.0).unsqueeze(-1)
            grads = {name: (scale * g).to(g.dtype) for name, g in grads.items()}
        others = masks & ~self.canary
        of_actual = masks if present or self.absent is not None else others
        of_reference = masks if self.reference_has_replacement else others
        return GivenEngine(grads, mask=torch.stack([of_actual, of_reference]))


def worlds_of(adversary: Adversary, parts: Parts, present: Mapping[str, Tensor], absent) -> Worlds:
    """Return the worlds of ``adversary``, given the gradients of its two data sets.

    Under fixed-size sampling a batch without the canary has another record in its place, so the reference has the
    replacement there. Under the other laws the canary's rows are absent from the reference.
    """
    kept = None if parts.relation == "add_or_remove_one" else absent
    num_rows = len(next(iter(present.values())))
    return Worlds(
        present=present,
        absent=kept,
        canary=torch.arange(num_rows) >= num_rows - adversary.copies,
        reference_has_replacement=isinstance(parts.sampler.law, FixedSizeLaw),
        factor=adversary.factor,
    )


def simulate(parts: Parts, worlds: Worlds, *, present: bool, runs: int, seed: int) -> Iterator[Trace]:
    """Simulate runs in the world with or without the canary; yield their traces in chunks.

    Args:
        parts: The oracle's parts.
        worlds: Gradients of the two data sets.
        present: Whether the canary is in the data.
        runs: Number of runs.
        seed: Seed of coins and noise, which also depend on the world. The noise is torch's, so runs are not private.
    """
    size = sum(g.shape[-1] for g in worlds.present.values())
    height = max(1, min(CACHED // (2 * worlds.num_rows * size), KEPT // (parts.queries * size)))
    for chunk, start in enumerate(range(0, runs, height)):
        yield _simulated(parts, worlds, present, min(height, runs - start), (seed, chunk))


def _simulated(parts: Parts, worlds: Worlds, present: bool, runs: int, name: tuple[int, int]) -> Trace:
    key = Randomness.insecure(name[0])
    coins = QueryCoins(key, f"audit-{'present' if present else 'absent'}-{name[1]}")
    generator = torch.Generator().manual_seed(key.key.stream("audit noise", int(present), name[1]).seed())

    def masks(query: int) -> Tensor:
        return torch.from_numpy(masks_of(parts.sampler)(query, coins, worlds.num_rows, runs))

    noise = _Noise(generator, key.key.derive("audit noise", int(present), name[1]))

    def release(query: int, values: Values) -> Values:
        noise.query = query
        return parts.mechanism(values, parts.noise_std, noise)

    return replay(parts, worlds, present, (masks, release))


def masks_of(sampler: Sampler) -> Callable[[int, QueryCoins, int, int], np.ndarray]:
    """Return the sampler's ``masks``, or the default that calls ``draw`` if ``draw`` was overridden after ``masks``."""
    kinds = type(sampler).__mro__
    first = {name: next(i for i, kind in enumerate(kinds) if name in vars(kind)) for name in ("draw", "masks")}
    own = first["masks"] <= first["draw"] and not {"draw", "mask"} & vars(sampler).keys()
    return sampler.masks if own else lambda *args: Sampler.masks(sampler, *args)


class _Noise:
    """Torch's normals, and for noise of another law a stream whose key is drawn from torch's generator."""

    def __init__(self, generator: torch.Generator, key: Key) -> None:
        self._generator, self._key = generator, key
        self.query, self.memory = 0, {}

    def __call__(self, block: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.randn(x.shape, dtype=x.dtype, generator=self._generator) for name, x in like.items()}

    def stream(self, block: str) -> Stream:
        return Key.insecure(int(torch.randint(2**62, (), generator=self._generator))).stream(block)

    def lagged(self, lag: int, block: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        seeds = {name: self._key.stream(self.query - lag, block, name).seed() for name in like}
        return {
            name: torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seeds[name]))
            for name, x in like.items()
        }


def replay(
    parts: Parts,
    worlds: Worlds,
    present: bool,
    world: tuple[Callable[[int], Tensor], Callable[[int, Values], Values]],
) -> Trace:
    """Step both worlds through all queries, with given batches and releases.

    Args:
        parts: The oracle's parts.
        worlds: Gradients of the two data sets.
        present: Whether the canary is in the actual world.
        world: Two functions: query -> batches (runs, rows), and (query, bounded values) -> releases.
    """
    masks, release = world
    residuals, shifts, drawn, others = [], [], [], []
    shapes = {name: g.shape[-1:] for name, g in worlds.present.items()}
    state = None
    for query in range(parts.queries):
        batches = masks(query)
        if query == 0:
            state = parts.estimator.initial_state(shapes, lead=(2, len(batches)))
        values, state = parts.estimator(worlds.engine(query, batches, present), state)
        released = release(query, _world(values, 0))
        state = parts.estimator.after(state, _in_both(released))
        residuals.append(_whitened(released, _world(values, 1), parts.noise_std))
        shifts.append(_whitened(_world(values, 0), _world(values, 1), parts.noise_std))
        drawn.append((batches & worlds.canary).sum(dim=-1))
        others.append((batches & ~worlds.canary).sum(dim=-1))
    residual, shift, *counts = (torch.stack(kept, 1) for kept in (residuals, shifts, drawn, others))
    whitened = getattr(parts.mechanism, "whitened", lambda x: x)
    return Trace(whitened(residual), whitened(shift), *counts)


def _world(values: Values, index: int) -> Values:
    return {block: {name: x[index] for name, x in tensors.items()} for block, tensors in values.items()}


def _in_both(values: Values) -> Values:
    return {block: {name: x.expand(2, *x.shape) for name, x in tensors.items()} for block, tensors in values.items()}


def _whitened(values: Values, reference: Values, noise_std: Mapping[str, float]) -> Tensor:
    """Return (values - reference) / noise_std with all blocks side by side, (runs, coordinates)."""
    parts = [
        ((x - reference[block][name]) / noise_std[block]).flatten(1)
        for block, tensors in values.items()
        for name, x in tensors.items()
    ]
    return torch.cat(parts, dim=1)


def parts_of(oracle: Any, queries: int, relation: NeighboringRelation) -> Parts | None:
    """Return the parts of an oracle; ``None`` if they are missing or its sampling law is unknown."""
    gate = getattr(oracle, "gate", None)
    noise_std = getattr(gate, "noise_std", None) or getattr(oracle, "noise_std", None)
    kinds = {"estimator": Estimator, "mechanism": Mechanism, "sampler": Sampler, "source": GradientSource}
    if noise_std is None or not all(isinstance(getattr(oracle, name, None), kind) for name, kind in kinds.items()):
        return None
    if not _can_simulate(oracle.sampler.law, relation) or isinstance(oracle.estimator, CappedSum):
        return None  # a capped sum needs the activations of its own engine
    return Parts(oracle.estimator, oracle.mechanism, oracle.sampler, dict(noise_std), queries, relation)


def _can_simulate(law: SamplingLaw, relation: NeighboringRelation) -> bool:
    """Return whether the reference tells an adversary no more than a guarantee lets it know.

    Where an absent record moves others, the others' batches may tell the canary's coin. Under fixed-size sampling the
    reference has a replacement. Truncated batches lack a record that the canary pushed out: a weaker adversary.
    """
    return (
        not law.absence_moves_others or law.coins_known(relation) or isinstance(law, FixedSizeLaw | TruncatedPoissonLaw)
    )


def gradients_of(oracle: Any) -> dict[str, Tensor]:
    """Return every row's gradient from the oracle's own engine: parameter name -> (rows, size)."""
    source = oracle.source
    params = {name: torch.zeros(shape) for name, shape in source.shapes.items()}
    chunks = list(source.engine(params, np.arange(source.num_rows)).materialise())
    if not chunks:
        return {name: torch.zeros(0, shape.numel()) for name, shape in source.shapes.items()}
    return {name: torch.cat([chunk[name].flatten(1) for chunk in chunks]) for name in chunks[0]}
