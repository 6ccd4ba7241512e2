"""The short way to build an oracle of clipped gradients for a network.

Place: it builds a :class:`~tacita.oracles.gradient_oracle.GradientOracle` with a clipped sum.
Source: Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tacita.clipping.clipper import Clipper
from tacita.estimators import ClippedSum, Estimator
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.session import BLOCK
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.payment import Payment, SessionPlan
from tacita.oracles.records import network_data
from tacita.random import Randomness
from tacita.sampling import Sampler


class ClippedGradientOracle(GradientOracle):
    r"""Private gradients of a network: :math:`\frac{1}{b}\big(\sum_{i \in B} w_i g_i + N(0, s^2 I)\big)`.

    The sampler draws the batch :math:`B`, the weight :math:`w_i` bounds the gradient :math:`g_i` of sample :math:`i`,
    :math:`b` is the public expected batch size, and :math:`s` = ``noise_multiplier`` x sensitivity. The model is not
    wrapped, and no key is renamed.

    Args:
        model: Any module whose samples do not mix.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,): one loss a sample, never a mean.
        dataset: A map-style ``Dataset``; tensors, NumPy arrays or memory maps in a tuple, mapping or dataclass; or
            :class:`Records`.
        ledger: Pays for the queries; sets the neighboring relation and the privacy unit.
        sampler: Draws the records of a query.
        clipper: Bounds each sample's gradient; or an estimator that does so, such as
            :class:`~tacita.AdaptiveClippedSum`.
        mechanism: ``GaussianMechanism`` or ``CalibratedGaussian``; ``RoundedGaussian`` against attacks on floating
            point, with sums on a grid: :class:`~tacita.CappedSum`, or :class:`~tacita.GridSum` with ``method="loop"``.
        planned_queries: Number of queries that the guarantee covers.
        collate_fn: As in ``torch.utils.data.DataLoader``.
        num_workers: Number of loader processes. It changes no bit of the result.
        method: The engine that computes per-sample gradients. ``"auto"`` is ``"program"``: the code of the model and
            the loss runs before any record is read, and never on one (docs/program.md). ``"loop"`` runs it on records,
            one at a time; that it keeps nothing of one is then a condition of the guarantee. Both agree.
        max_physical_batch_size: Rows in memory at once. It changes nothing but the order of summation; with hardened
            noise, 1 computes each record alone.
        process_group: The processes that share the rows of each batch, such as ``torch.distributed.group.WORLD``. Every
            rank builds the oracle and makes the same calls; rank 0 draws, pays and adds the noise, so that ``ledger``
            is ``None`` on all others. The model may be sharded by FSDP2 (``fully_shard``). Do not wrap it in
            ``DistributedDataParallel`` (docs/process-group.md).
        purpose, settings, session, share, randomness, reservation: As in :class:`GradientOracle`.

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
        loss_fn: LossFn,
        dataset: Any,
        *,
        ledger: Ledger | None,
        sampler: Sampler,
        clipper: Clipper | Estimator,
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
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        data = network_data(
            model, loss_fn, dataset, collate_fn, num_workers, method, max_physical_batch_size, process_group
        )
        payment = Payment(ledger, purpose, settings, session, share, randomness, reservation)
        estimator = _clipped(clipper, mechanism, alone=data.source.rows_alone)
        self._build(SessionPlan(data, estimator, sampler, payment, planned_queries), mechanism)


def _clipped(clipper: Clipper | Estimator, mechanism: Mechanism | CalibratedGaussian, *, alone: bool) -> Estimator:
    """Return the clipped sum that fits the noise: the mechanism's own if it has one."""
    if isinstance(clipper, Estimator):
        return clipper
    form = mechanism.form if isinstance(mechanism, CalibratedGaussian) else mechanism
    own = form.clipped_sum(clipper, alone=alone) if isinstance(mechanism, Mechanism | CalibratedGaussian) else None
    return ClippedSum(clipper) if own is None else own
