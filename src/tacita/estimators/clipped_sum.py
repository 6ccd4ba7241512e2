r"""The clipped sum of DP-SGD: :math:`\sum_i w_i g_i` with :math:`\lVert w_i g_i \rVert_2 \le C`.

Place: gradients, clipping -> [estimators.clipped_sum] -> mechanisms.
Source: Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133.
Differs from the source in one point: the sum is released, and divided by a public number afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacita.accounting import Event, NeighboringRelation, gaussian_sum_event, moved
from tacita.clipping.clipper import Clipper
from tacita.estimators.estimator import Estimator, Values
from tacita.gradients import NetworkSource
from tacita.gradients.data import BatchRows
from tacita.gradients.engine import Engine, Shapes
from tacita.sampling import Sampler

MOST_CONTRIBUTION = 1e25  # 10^13 rows of it, noise included, stay finite in float32


@dataclass(frozen=True)
class ClippedSum(Estimator):
    r"""Sum of clipped per-sample gradients, one block for each of the clipper's groups.

    Guarantee: one record adds to block :math:`l` a vector of L2 norm at most :math:`C_l`, the clipper's
    ``max_contribution``. So the sensitivity of the block is :math:`C_l` when a record is added, removed or zeroed
    out, and :math:`2 C_l` when it is replaced.

    Attributes:
        clipper: The weight rule.
    """

    clipper: Clipper

    def sensitivity(self, relation: NeighboringRelation, shapes: Shapes) -> dict[str, float]:
        return {block: moved(relation) * bound for block, bound in self.clipper.max_contribution(shapes).items()}

    def event(
        self, sampler: Sampler, noise_std: Mapping[str, float], relation: NeighboringRelation, shapes: Shapes
    ) -> Event:
        bounds = self.clipper.max_contribution(shapes)
        if max(bounds.values(), default=0.0) > MOST_CONTRIBUTION:
            raise ValueError(
                f"max_grad_norm must be at most {MOST_CONTRIBUTION:g}, got {max(bounds.values()):g}: a sum of such "
                "rows in float32 may be infinite, which no noise hides."
            )
        return gaussian_sum_event(
            sampler.law, tuple(bounds.values()), tuple(noise_std[block] for block in bounds), relation
        )

    def block_sizes(self, shapes: Shapes) -> dict[str, int]:
        return {
            block: sum(shapes[name].numel() for name in names) for block, names in self.clipper.groups(shapes).items()
        }

    def __call__(self, engine: Engine, state: None) -> tuple[Values, None]:
        groups = self.clipper.groups(engine.shapes)
        (clipped,) = engine.weighted_sums(self.clipper.weights, groups).values
        return {block: {name: clipped[name] for name in names} for block, names in groups.items()}, state

    def gradient(self, released: Values, divisor: float) -> dict[str, Tensor]:
        named = {name: noisy for block in released.values() for name, noisy in block.items()}
        if len({type(noisy) for noisy in named.values()}) > 1:  # shards beside whole parameters
            return {name: noisy / divisor for name, noisy in named.items()}
        means = torch._foreach_div([*named.values()], divisor)  # pyright: ignore[reportPrivateImportUsage]
        return dict(zip(named, means, strict=True))


@dataclass(frozen=True)
class ClippedGradientSum:
    """A clipped sum without noise, for tests and benchmarks. All of it is private.

    Attributes:
        sum: Sum of the clipped per-sample gradients, by parameter name.
        norms: Upper bounds on the norms before clipping, shape (batch, groups).
        max_contribution: Largest L2 norm that one record adds, by group.
        unclipped_sum: The sum of the unclipped gradients, if it was asked for.
    """

    sum: dict[str, Tensor]
    norms: Tensor
    max_contribution: dict[str, float]
    unclipped_sum: dict[str, Tensor] | None = None


def clipped_gradient_sum(
    model: nn.Module,
    loss_fn,
    batch,
    clipper: Clipper,
    method: str = "auto",
    *,
    unclipped: bool = False,
    max_physical_batch_size: int | None = None,
) -> ClippedGradientSum:
    r"""Clip and sum the per-sample gradients of one batch, without noise, ledger or privacy.

    Args:
        model: Any module; not modified.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,).
        batch: Tensors with the batch axis first, nested in tuples, lists, mappings and dataclasses.
        clipper: The weight rule.
        method: ``"auto"`` or ``"program"``, or ``"loop"``; they agree.
        unclipped: Also return the sum of the unclipped gradients, from the same pass.
        max_physical_batch_size: Rows in memory at once.

    Raises:
        UnsupportedModuleError: The model mixes samples, or ``method`` cannot serve it.

    Example:
        >>> from tacita import FlatClipper
        >>> model = nn.Linear(2, 1, bias=False)
        >>> found = clipped_gradient_sum(
        ...     model, lambda model, x: model(x).squeeze(1), torch.tensor([[3.0, 4.0], [0.3, 0.4]]),
        ...     FlatClipper(max_grad_norm=1.0), method="loop")
        >>> [round(x, 3) for x in found.sum["weight"].flatten().tolist()]
        [0.9, 1.2]
    """
    rows = BatchRows(batch)
    source = NetworkSource(model, loss_fn, rows, method=method, max_physical_batch_size=max_physical_batch_size)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = source.engine(params, torch.arange(rows.num_rows).numpy())
    groups = clipper.groups(engine.shapes)

    def rule(norms: Tensor) -> tuple[Tensor, ...]:
        weights = clipper.weights(norms)
        return (weights, torch.ones_like(weights)) if unclipped else (weights,)

    sums = engine.weighted_sums(rule, groups)
    return ClippedGradientSum(
        sum=sums.values[0],
        norms=sums.norms,
        max_contribution=clipper.max_contribution(engine.shapes),
        unclipped_sum=sums.values[1] if unclipped else None,
    )
