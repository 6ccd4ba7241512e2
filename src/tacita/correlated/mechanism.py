r"""Correlated Gaussian noise: each query's noise takes back part of the noise of the queries before it.

Place: estimators -> [correlated.mechanism] -> ┃ released. ``noise_std`` is at the level of the sum.
Sources: DP-lambda-CGD, https://arxiv.org/abs/2601.22334; BISR, https://arxiv.org/abs/2505.12128; BandMF,
https://arxiv.org/abs/2306.08153. Proof and keys: docs/derivations/correlated-noise.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event
from tacita.accounting.events.wrapped import OuterEvent
from tacita.correlated.event import CorrelatedEvent
from tacita.correlated.strategy import Factorization, coefficients, matrix_bands
from tacita.errors import LedgerError
from tacita.mechanisms.mechanism import Blocks, Mechanism


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(Mechanism):
    r"""Release bounded values with Gaussian noise that later queries partly take back, so that running sums keep less.

    Query t releases :math:`x_t + s \sum_{j < p} r_j z_{t-j}` with standard normals :math:`z_t`, one fresh one a query
    and coordinate; p is ``bands``, and :math:`r_0 = 1, r_1 < 0, \ldots` are the coefficients of :math:`(1 - x)^\gamma`,
    :math:`\gamma` is ``power``. Nothing is stored: earlier :math:`z` are drawn again from their streams. Two bands are
    DP-lambda-CGD, and the power 1/2 is BISR. Two bands give most of what there is to gain;
    :func:`tacita.correlated.recommended_power` gives a power. Each band more costs one draw a coordinate.

    The whole session is one Gaussian query, or less where each record's own secret coin draws its group. Records must
    rest between their queries: samplers are :class:`~tacita.CyclicSampler` and :class:`~tacita.DisjointSampler`.

    With ``banded_matrix`` it is the inverse of the noise's matrix that has so many bands (BandMF): the noise is
    :math:`s w_t`, :math:`w_t = z_t - \sum_{0 < j < p} c_j w_{t-j}`, and c are the coefficients of
    :math:`(1 - x)^{-\gamma}`. It goes with ``CyclicSampler(batches_per_cycle=bands, turn_rate=...)``, and then costs
    ``queries / bands`` queries of Poisson sampling of :math:`|c|` times the contribution, which is best for several
    passes over many batches. The last ``bands - 1`` noises are kept in memory, each as large as a gradient in float64;
    a resumed run draws all earlier :math:`z` again to make them.

    ``noise_multiplier`` is s over the sensitivity of *one* query. It is no measure of privacy, and that of two
    strategies cannot be compared: give a target (:class:`CalibratedGaussian` with ``form=``) instead.

    Assumes: as :class:`GaussianMechanism`. The private key file opens, at a checkpoint, the noise of the last
    ``bands - 1`` queries before it; with ``banded_matrix`` that of the whole session. The first checkpoint after
    the session has ended drops these keys.

    Attributes:
        noise_multiplier: s over the sensitivity of one query; no unit; >= 0.
        allocation: How several blocks share the noise.
        bands: Number of draws in the noise of a query, >= 2.
        power: In (0, 1); the larger, the more of the noise is taken back.
        banded_matrix: Whether the matrix has the bands (BandMF), and not the noise.

    Example:
        >>> CorrelatedGaussian(noise_multiplier=3.0, bands=2, power=0.7).noise_std({"gradient": 1.0}, {"gradient": 10})
        {'gradient': 3.0}
    """

    bands: int
    power: float
    banded_matrix: bool = False

    in_stretches = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("bands", self.bands, at_least=2, hint="One band is independent noise: GaussianMechanism.")
        coefficients(self.bands, self.power)

    @property
    def factorization(self) -> Factorization:
        """Of the noise: which draws a query adds up, with which weights."""
        return Factorization(self.bands, self.power, self.banded_matrix)

    @property
    def lags(self) -> float:
        return math.inf if self.banded_matrix else self.bands - 1

    def event(self, event: Event) -> Event:
        return CorrelatedEvent(
            relation=event.relation,
            inner=event,
            bands=self.bands,
            power=self.power,
            banded_matrix=self.banded_matrix,
        )

    def check_paid(
        self, event: Event, noise_std: Mapping[str, float], contribution: Mapping[str, float] | None = None
    ) -> None:
        paid = event
        while isinstance(paid, OuterEvent) and not isinstance(paid, CorrelatedEvent):
            paid = paid.inner  # the same queries; an event of several sessions would pay for other ones
        if not isinstance(paid, CorrelatedEvent) or paid.factorization != self.factorization:
            raise LedgerError(
                f"mechanism adds correlated noise of {self.factorization.words}, and the session's event promises "
                "other noise: register the session with the noise that is added."
            )
        super().check_paid(event, noise_std, contribution)

    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        if steps is not None:
            raise ValueError(
                "mechanism must add integer noise when the estimator's values are on a grid, and correlated noise has "
                "no proved form on one: use RoundedGaussian, or an estimator without a grid."
            )
        return self

    def whitened(self, over_noise: Tensor) -> Tensor:
        shown = torch.from_numpy(self.factorization.column(over_noise.shape[1]))
        steps = torch.arange(len(shown))
        later = steps[:, None] - steps  # how many queries the release comes after the one that it shows
        matrix = torch.where(later >= 0, shown[later.clamp(min=0)], 0.0)
        return torch.einsum("tq,rq...->rt...", matrix, over_noise.double()).to(over_noise.dtype)

    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Any) -> dict[str, dict[str, Tensor]]:
        """Add the noise; ``normals.lagged(lag, block, like)`` draws an earlier query's normals again, in float64."""
        noise_of = self._recursion if self.banded_matrix else self._weighted_draws
        released: dict[str, dict[str, Tensor]] = {}
        for block, tensors in values.items():
            noise = noise_of(block, tensors, noise_std[block], normals)
            released[block] = {
                name: x + noise[name].to(x.device, torch.promote_types(x.dtype, torch.float32))
                for name, x in tensors.items()
            }
        return released

    def _weighted_draws(self, block: str, like: Mapping[str, Tensor], std: float, normals: Any) -> dict[str, Tensor]:
        noise = {name: torch.zeros(x.shape, dtype=torch.float64) for name, x in like.items()}
        for lag, weight in enumerate(coefficients(self.bands, self.power)[: normals.query + 1].tolist()):
            for name, draw in normals.lagged(lag, block, like).items():
                noise[name].add_(draw, alpha=weight * std)
        return noise

    def _recursion(self, block: str, like: Mapping[str, Tensor], std: float, normals: Any) -> dict[str, Tensor]:
        """Return the noise of a banded matrix, from those before it, which are in memory or made again from the first.

        Products and differences are rounded one by one, so that noise that is made again has the same bits.
        """
        taken_back, noise = matrix_bands(self.bands, self.power)[1:].tolist(), dict[str, Tensor]()
        for name, x in like.items():
            made, last = normals.memory.get((block, name), (0, list[Tensor]()))
            if made > normals.query + 1:  # after a step back
                made, last = 0, []
            for query in range(made, normals.query + 1):
                draw = normals.lagged(normals.query - query, block, {name: x})[name]
                for weight, earlier in zip(taken_back, last, strict=False):  # the last one first
                    draw = draw - weight * earlier
                last = [draw, *last][: self.bands - 1]
            normals.memory[block, name] = normals.query + 1, last
            noise[name] = std * last[0]
        return noise
