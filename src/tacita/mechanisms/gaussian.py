r"""The Gaussian mechanism: one fresh normal draw for every coordinate of bounded values.

Place: estimators -> [mechanisms.gaussian] -> ┃ released. ``noise_std`` is at the level of the sum.
Source: Balle and Wang (2018), https://arxiv.org/abs/1805.06530.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, Spend, calibrate
from tacita.mechanisms.mechanism import Allocation, Blocks, Mechanism, check_allocation

Draw = Callable[[str, Mapping[str, Tensor]], Mapping[str, Tensor]]  # (block, like) -> standard normals, shaped alike


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(Mechanism):
    r"""Release bounded values with Gaussian noise of standard deviation ``noise_multiplier`` x sensitivity.

    Releases :math:`x + s z`, :math:`z \sim N(0, I)`. With blocks of sensitivity :math:`\Delta_l` and noise
    :math:`s_l`, :math:`1/\text{noise\_multiplier}^2 = \sum_l (\Delta_l / s_l)^2`: whitened, the blocks are one Gaussian
    query. ``allocation`` says how the noise is shared:

    * ``"single"``: one :math:`s = \text{noise\_multiplier} \sqrt{\sum_l \Delta_l^2}` for all blocks;
    * ``"least_power"``: :math:`s_l^2 \propto \Delta_l / \sqrt{d_l}`, the least total noise :math:`\sum_l d_l s_l^2`
      (:math:`d_l` coordinates in block :math:`l`).

    With ``noise_multiplier = 0``, which tests and ablations need, the ledger says epsilon = inf.

    Assumes: the sensitivity bounds the values under the session's relation; nothing rescales them between clipping and
    here; the stream's draws are used nowhere else. Floating-point attacks (https://arxiv.org/abs/2112.05307) are out of
    its scope: :class:`~tacita.RoundedGaussian` is for those.

    Attributes:
        noise_multiplier: Noise standard deviation over sensitivity; no unit; >= 0.
        allocation: How several blocks share the noise.

    Example:
        >>> GaussianMechanism(noise_multiplier=2.0).noise_std({"gradient": 1.5}, {"gradient": 10})
        {'gradient': 3.0}
    """

    in_stretches: ClassVar[bool] = True

    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        if steps is not None:
            raise ValueError(
                "mechanism must add whole numbers to an estimator whose values are on a grid: use RoundedGaussian or "
                "DiscreteGaussian."
            )
        return self

    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Draw) -> dict[str, dict[str, Tensor]]:
        """Add the noise; ``normals(block, like)`` gives fresh standard normals, float32 or better.

        What is released lies in the memory of the draws.
        """
        return {block: _noisy(tensors, noise_std[block], normals(block, tensors)) for block, tensors in values.items()}


def _noisy(values: Mapping[str, Tensor], std: float, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``values + std * draws``, in the memory of the draws if that holds it."""
    fits = {name: torch.result_type(value, draws[name]) == draws[name].dtype for name, value in values.items()}
    return {
        name: torch.add(value, draws[name], alpha=std, out=draws[name] if fits[name] else None)
        for name, value in values.items()
    }


@dataclass(frozen=True, kw_only=True)
class CalibratedGaussian:
    """A mechanism of Gaussian noise whose noise multiplier follows from a target, when the oracle is built.

    The smallest noise multiplier (within 0.5 % of the target, never above it) with which the planned session, beside
    the sessions already registered, is (target_epsilon, target_delta)-DP.

    Attributes:
        target_epsilon: > 0.
        target_delta: In (0, 1); well below one over the number of records.
        allocation: As in :class:`GaussianMechanism`.
        form: The kind of noise: :class:`GaussianMechanism`, or :class:`~tacita.RoundedGaussian` or
            :class:`~tacita.DiscreteGaussian` against attacks on floating point.
    """

    target_epsilon: float
    target_delta: float
    allocation: Allocation = "single"
    form: type[Mechanism] = GaussianMechanism

    def __post_init__(self) -> None:
        _validate.positive("target_epsilon", self.target_epsilon)
        _validate.delta("target_delta", self.target_delta)
        check_allocation(self.allocation)
        if not (isinstance(self.form, type) and issubclass(self.form, Mechanism)):
            raise ValueError(f"form must be a class of mechanisms, such as RoundedGaussian, got {self.form!r}.")

    @property
    def on_grid(self) -> bool:
        """Whether it needs values that are whole multiples of public steps."""
        return self.form.on_grid

    def at(self, noise_multiplier: float) -> Mechanism:
        """The mechanism with this noise multiplier."""
        return self.form(noise_multiplier=noise_multiplier, allocation=self.allocation)

    def resolve(
        self,
        event_at: Callable[[float], Event],
        relation: NeighboringRelation,
        queries: int,
        alongside: Sequence[Spend] = (),
    ) -> Mechanism:
        """The mechanism that meets the target for ``queries`` queries of ``event_at(noise_multiplier)``."""
        return self.at(
            calibrate(event_at, relation, self.target_epsilon, self.target_delta, alongside, queries=queries)
        )
