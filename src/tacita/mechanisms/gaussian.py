r"""The Gaussian mechanism: one fresh normal draw for every coordinate of bounded values.

Place: estimators -> [mechanisms.gaussian] -> ┃ released. ``noise_std`` is at the level of the sum.
Source: Balle and Wang (2018), https://arxiv.org/abs/1805.06530.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from tacita import _validate
from tacita.accounting import Event, NeighboringRelation, Spend, calibrate
from tacita.mechanisms.mechanism import Allocation, Blocks, Mechanism, check_allocation

LARGE = 2**16  # coordinates of a tensor whose release is written over its draws
Draw = Callable[[str, Mapping[str, Tensor]], Mapping[str, Tensor]]  # (block, like) -> standard normals of like's shapes


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(Mechanism):
    r"""Release bounded values with Gaussian noise of standard deviation ``noise_multiplier`` x sensitivity.

    Releases :math:`x + s z`, :math:`z \sim N(0, I)`. With several blocks, of sensitivity :math:`\Delta_l` and noise
    :math:`s_l`, the noise satisfies :math:`1/\text{noise\_multiplier}^2 = \sum_l (\Delta_l / s_l)^2`: divided by their
    noise, the blocks are one Gaussian query. ``allocation`` says how the noise is shared among the blocks:

    * ``"single"``: one :math:`s = \text{noise\_multiplier} \sqrt{\sum_l \Delta_l^2}` for all blocks;
    * ``"least_power"``: :math:`s_l^2 \propto \Delta_l / \sqrt{d_l}`, which gives the least total noise
      :math:`\sum_l d_l s_l^2` (:math:`d_l` coordinates in block :math:`l`).

    With ``noise_multiplier = 0``, which tests and ablations need, the ledger reports epsilon = inf.

    Assumes: the sensitivity bounds the values under the session's relation; nothing rescales them between clipping and
    this mechanism; the stream's draws are used nowhere else. It does not protect against floating-point attacks
    (https://arxiv.org/abs/2112.05307); :class:`~tacita.RoundedGaussian` does.

    Attributes:
        noise_multiplier: Noise standard deviation over sensitivity; no unit; >= 0.
        allocation: How several blocks share the noise.

    Example:
        >>> GaussianMechanism(noise_multiplier=2.0).noise_std({"gradient": 1.5}, {"gradient": 10})
        {'gradient': 3.0}
    """

    in_stretches: ClassVar[bool] = True

    def event(self, event: Event) -> Event:
        return event

    def on(self, steps: Mapping[str, float] | None, noise_std: Mapping[str, float]) -> Self:
        if steps is not None:
            raise ValueError(
                "mechanism must add integer noise when the estimator's values are on a grid, got "
                f"{type(self).__name__}: use RoundedGaussian."
            )
        return self

    def __call__(self, values: Blocks, noise_std: Mapping[str, float], normals: Draw) -> dict[str, dict[str, Tensor]]:
        """Add the noise; ``normals(block, like)`` returns fresh standard normals, in float32 or better.

        The release of a large tensor is written over the draws where its dtype is the same, which saves memory; small
        ones are added in one operation.
        """
        released: dict[str, dict[str, Tensor]] = {}
        for block, tensors in values.items():
            draws, std = normals(block, tensors), noise_std[block]
            small = [name for name, x in tensors.items() if x.numel() < LARGE and type(x) is Tensor]  # no shard
            pairs = ([given[name] for name in small] for given in (tensors, draws))
            added = torch._foreach_add(*pairs, alpha=std) if small else ()  # pyright: ignore[reportPrivateImportUsage]
            noisy = dict(zip(small, added, strict=True))
            for name, value in tensors.items():
                if name not in noisy:
                    fits = torch.result_type(value, draws[name]) == draws[name].dtype
                    noisy[name] = torch.add(value, draws[name], alpha=std, out=draws[name] if fits else None)
            released[block] = {name: noisy[name] for name in tensors}
        return released


@dataclass(frozen=True, kw_only=True)
class CalibratedGaussian:
    """Gaussian noise whose noise multiplier is computed from a target when the oracle is built.

    It becomes the smallest noise multiplier with which the planned session, beside the sessions already registered, is
    (target_epsilon, target_delta)-DP. The epsilon that results is within 0.5 % of the target and never above it.

    Attributes:
        target_epsilon: The epsilon to reach, > 0.
        target_delta: The delta to reach, in (0, 1); it should be well below one over the number of records.
        allocation: As in :class:`GaussianMechanism`.
        form: The kind of noise: :class:`GaussianMechanism`; or, against floating-point attacks,
            :class:`~tacita.RoundedGaussian`. Or a mechanism with settings of its own, such as a
            :class:`~tacita.CorrelatedGaussian`, whose noise multiplier and allocation are replaced.
    """

    target_epsilon: float
    target_delta: float
    allocation: Allocation = "single"
    form: type[Mechanism] | Mechanism = GaussianMechanism

    def __post_init__(self) -> None:
        _validate.positive("target_epsilon", self.target_epsilon)
        _validate.delta("target_delta", self.target_delta)
        check_allocation(self.allocation)
        if isinstance(self.form, type) and issubclass(self.form, Mechanism):
            own = "=..., ".join(one.name for one in fields(self.form) if one.init and one.default is MISSING)
            if own != "noise_multiplier":
                raise ValueError(f"form must be a mechanism with its settings: {self.form.__name__}({own}=...).")
        elif not isinstance(self.form, Mechanism):
            raise ValueError(f"form must be a class of mechanisms, such as RoundedGaussian, got {self.form!r}.")

    @property
    def on_grid(self) -> bool:
        """Whether the noise needs values that are whole multiples of public steps (a grid)."""
        return self.form.on_grid

    def at(self, noise_multiplier: float) -> Mechanism:
        """Return the mechanism with this noise multiplier."""
        if isinstance(self.form, Mechanism):
            return replace(self.form, noise_multiplier=noise_multiplier, allocation=self.allocation)
        return self.form(noise_multiplier=noise_multiplier, allocation=self.allocation)

    def resolve(
        self,
        event_at: Callable[[float], Event],
        relation: NeighboringRelation,
        queries: int,
        alongside: Sequence[Spend] = (),
    ) -> Mechanism:
        """Return the mechanism that meets the target.

        Args:
            event_at: Noise multiplier -> event of the session.
            relation: The neighboring relation.
            queries: Planned queries of the session.
            alongside: What other sessions spend of the same target.
        """
        multiplier = calibrate(
            event_at,
            relation,
            self.target_epsilon,
            self.target_delta,
            alongside,
            queries=queries,
        )
        return self.at(multiplier)
