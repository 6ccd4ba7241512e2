"""The oracle of DP-SGD: clipped sums of per-sample gradients with Gaussian noise.

Place: a short way to build :class:`~tacita.oracles.gradient_oracle.GradientOracle`.
Source: Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from tacita.accounting import Ledger, Session
from tacita.clipping.clipper import Clipper
from tacita.estimators import CappedSum, ClippedSum, Estimator, GridSum
from tacita.gradients import NetworkSource
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.records import data_and_rows
from tacita.random import Randomness
from tacita.sampling import Sampler


class ClippedGradientOracle(GradientOracle):
    r"""Private gradients of a network: :math:`\frac{1}{b}\big(\sum_{i \in B} w_i g_i + N(0, s^2 I)\big)`.

    :math:`B` is drawn by the sampler, :math:`w_i` bounds sample :math:`i`'s gradient, :math:`b` is the public expected
    batch size and :math:`s` = ``noise_multiplier`` x sensitivity. The model stays as it is: no wrapper, no renamed
    keys.

    Args:
        model: Any module whose samples do not mix.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,): one loss a sample, never a mean.
        dataset: A map-style ``Dataset``, a tuple of tensors / NumPy arrays / memory maps, or :class:`Records`.
        ledger: Has the neighboring relation and the privacy unit; pays.
        sampler: How the records of a query are drawn.
        clipper: Bounds each sample's gradient.
        mechanism: ``GaussianMechanism`` or ``CalibratedGaussian``; ``RoundedGaussian`` or ``DiscreteGaussian`` against
            attacks on floating point, with sums on a grid: :class:`~tacita.GridSum` with the methods ``"loop"`` and
            ``"vmap"``, :class:`~tacita.CappedSum` with ``"ghost"``.
        planned_queries: Number of queries the guarantee is for.
        collate_fn: As in ``torch.utils.data.DataLoader``.
        num_workers: Loader processes; changes no bit.
        method: Engine: ``"auto"``, ``"ghost"``, ``"vmap"`` or ``"loop"``; all agree.
        max_physical_batch_size: Rows in memory at once; changes nothing but the order of summation.
        process_group: Only ``None`` so far.
        purpose, settings, session, randomness: As in :class:`GradientOracle`.

    Example:
        >>> import torch, tacita
        >>> model = torch.nn.Linear(3, 1)
        >>> data = (torch.zeros(100, 3), torch.zeros(100, 1))
        >>> oracle = tacita.ClippedGradientOracle(
        ...     model, lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1), data,
        ...     ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        ...     sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=100),
        ...     clipper=tacita.FlatClipper(max_grad_norm=1.0),
        ...     mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=5)
        >>> release = oracle.backward()
        >>> release.query, oracle.remaining_queries, model.weight.grad.shape
        (0, 4, torch.Size([1, 3]))
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        dataset: Any,
        *,
        ledger: Ledger,
        sampler: Sampler,
        clipper: Clipper,
        mechanism: Mechanism | CalibratedGaussian,
        planned_queries: int,
        collate_fn: Callable[[list], Any] | None = None,
        num_workers: int = 0,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        process_group: Any = None,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        data, taken = data_and_rows(dataset)
        source = NetworkSource(
            model,
            loss_fn,
            data,
            collate_fn=collate_fn,
            num_workers=num_workers,
            method=method,
            max_physical_batch_size=max_physical_batch_size,
            process_group=process_group,
        )
        super().__init__(
            source,
            estimator=_estimator(clipper, getattr(mechanism, "on_grid", False), source.method),
            mechanism=mechanism,
            sampler=sampler,
            ledger=ledger,
            planned_queries=planned_queries,
            **taken,
            purpose=purpose,
            settings=settings,
            session=session,
            randomness=randomness,
        )


def _estimator(clipper: Clipper, on_grid: bool, method: str) -> Estimator:
    if not on_grid:
        return ClippedSum(clipper)
    return CappedSum(clipper) if method == "ghost" else GridSum(clipper, together=method != "loop")
