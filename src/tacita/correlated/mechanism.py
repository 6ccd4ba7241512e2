r"""Correlated Gaussian noise: each query's noise takes back part of the noise of the queries before it.

Place: estimators -> [correlated.mechanism] -> ┃ released. ``noise_std`` is at the level of the sum.
Sources: DP-lambda-CGD, https://arxiv.org/abs/2601.22334; BISR, https://arxiv.org/abs/2505.12128. Proof and keys:
docs/derivations/correlated-noise.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event
from tacita.accounting.events.wrapped import OuterEvent
from tacita.correlated.event import CorrelatedEvent
from tacita.correlated.strategy import coefficients, column
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
    ``noise_multiplier`` is s over the sensitivity of *one* query. It is no measure of privacy, and that of two
    strategies cannot be compared: give a target (:class:`CalibratedGaussian` with ``form=``) instead.

    Assumes: as :class:`GaussianMechanism`. The private key file opens, at a checkpoint, the noise of the last
    ``bands - 1`` queries before it.

    Attributes:
        noise_multiplier: s over the sensitivity of one query; no unit; >= 0.
        allocation: How several blocks share the noise.
        bands: Number of draws in the noise of a query, >= 2.
        power: In (0, 1); the larger, the more of the noise is taken back.

    Example:
        >>> CorrelatedGaussian(noise_multiplier=3.0, bands=2, power=0.7).noise_std({"gradient": 1.0}, {"gradient": 10})
        {'gradient': 3.0}
    """

    bands: int
    power: float

    in_stretches = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("bands", self.bands, at_least=2, hint="One band is independent noise: GaussianMechanism.")
        coefficients(self.bands, self.power)

    @property
    def lags(self) -> int:
        return self.bands - 1

    def event(self, event: Event) -> Event:
        return CorrelatedEvent(relation=event.relation, inner=event, bands=self.bands, power=self.power)

    def check_paid(
        self, event: Event, noise_std: Mapping[str, float], contribution: Mapping[str, float] | None = None
    ) -> None:
        paid = event
        while isinstance(paid, OuterEvent) and not isinstance(paid, CorrelatedEvent):
            paid = paid.inner  # the same queries; an event of several sessions would pay for other ones
        if not isinstance(paid, CorrelatedEvent) or (paid.bands, paid.power) != (self.bands, self.power):
            raise LedgerError(
                f"mechanism adds correlated noise of {self.bands} bands and power {self.power:.6g}, and the session's "
                "event promises other noise: register the session with the noise that is added."
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
        shown = torch.from_numpy(column(self.bands, self.power, over_noise.shape[1]))
        steps = torch.arange(len(shown))
        later = steps[:, None] - steps  # how many queries the release comes after the one that it shows
        matrix = torch.where(later >= 0, shown[later.clamp(min=0)], 0.0)
        return torch.einsum("tq,rq...->rt...", matrix, over_noise.double()).to(over_noise.dtype)

    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Any) -> dict[str, dict[str, Tensor]]:
        """Add the noise; ``normals.lagged(lag, block, like)`` draws an earlier query's normals again, in float64."""
        weights = coefficients(self.bands, self.power)[: normals.query + 1].tolist()
        released: dict[str, dict[str, Tensor]] = {}
        for block, tensors in values.items():
            noise = {name: torch.zeros(x.shape, dtype=torch.float64) for name, x in tensors.items()}
            for lag, weight in enumerate(weights):
                for name, draw in normals.lagged(lag, block, tensors).items():
                    noise[name].add_(draw, alpha=weight * noise_std[block])
            released[block] = {
                name: x + noise[name].to(x.device, torch.promote_types(x.dtype, torch.float32))
                for name, x in tensors.items()
            }
        return released
