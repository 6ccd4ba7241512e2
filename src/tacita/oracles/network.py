"""Short ways to build an oracle for a network: clipped gradients, gradients with error feedback, unclipped gradients.

Place: each builds a :class:`~tacita.oracles.gradient_oracle.GradientOracle` with one estimator.
Sources: Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133 (clipped). Zhang, Bu, Wu, Hong,
"Differentially Private SGD Without Clipping Bias: An Error-Feedback Approach", DiceSGD (error feedback). Avdiukhin,
Dinitz, Fan and Yaroslavtsev, "Noise is All You Need", Algorithm 2; docs/derivations/noisy-sgd.md (unclipped).
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tacita.clipping.clipper import Clipper
from tacita.estimators import CappedSum, ClippedSum, Estimator, GridSum, UnclippedSum
from tacita.estimators.error_feedback import Feedback, as_feedback
from tacita.gradients.engine_choice import GHOSTS
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.reservations import BLOCK
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism, Mechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.records import Network
from tacita.oracles.session_options import SessionOptions
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler


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
        clipper: Bounds each sample's gradient.
        mechanism: ``GaussianMechanism`` or ``CalibratedGaussian``; ``RoundedGaussian`` or ``DiscreteGaussian`` against
            attacks on floating point, with sums on a grid: :class:`~tacita.GridSum` with the methods ``"loop"`` and
            ``"vmap"``, :class:`~tacita.CappedSum` with ``"ghost"`` and ``"traced"``.
        planned_queries: Number of queries that the guarantee covers.
        collate_fn: As in ``torch.utils.data.DataLoader``.
        num_workers: Number of loader processes. It changes no bit of the result.
        method: The engine that computes per-sample gradients: ``"auto"``, ``"ghost"``, ``"program"`` (the
            model's code runs before any record is read: docs/program.md), ``"traced"`` (ghost with the model's code
            run once: docs/traced.md), ``"vmap"`` or ``"loop"``. All agree.
        max_physical_batch_size: Rows in memory at once. It changes nothing but the order of summation.
        process_group: The processes that share the rows of each batch, such as ``torch.distributed.group.WORLD``. Every
            rank builds the oracle and makes the same calls; rank 0 draws, pays and adds the noise, so that ``ledger``
            is ``None`` on all others. The model may be sharded by FSDP2 (``fully_shard``). Do not wrap it in
            ``DistributedDataParallel`` (docs/process-group.md).
        planned_restarts, purpose, settings, session, share, randomness, reservation: As in :class:`GradientOracle`.

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
        clipper: Clipper,
        mechanism: Mechanism | CalibratedGaussian,
        planned_queries: int,
        collate_fn: Callable[[list], Any] | None = None,
        num_workers: int = 0,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        process_group: Any = None,
        planned_restarts: int = 0,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        network = Network(
            model, loss_fn, dataset, collate_fn, num_workers, method, max_physical_batch_size, process_group
        )
        chosen = randomness or Randomness.system()
        options = SessionOptions(purpose, settings, session, chosen, planned_restarts, reservation, share)
        data = network.data()
        estimator = _clipped(clipper, mechanism, data.source.method)
        self._build(data, options, estimator, mechanism, sampler, ledger=ledger, planned_queries=planned_queries)


def _clipped(clipper: Clipper, mechanism: Mechanism | CalibratedGaussian, method: str) -> Estimator:
    """Return the clipped sum that fits the noise: one on a grid if the noise is a whole number of grid steps."""
    if not (isinstance(mechanism, Mechanism | CalibratedGaussian) and mechanism.on_grid):
        return ClippedSum(clipper)
    return CappedSum(clipper) if method in GHOSTS else GridSum(clipper, together=method != "loop")


class ErrorFeedbackOracle(GradientOracle):
    r"""Private gradients with error feedback: :math:`\frac1b\big(\sum_i w_i g_i + \text{clip}(E) + N(0, s^2 I)\big)`.

    The error :math:`E` is what clipping has removed so far and was not given back yet. ``feedback`` decides whether it
    is hidden (:class:`PrivateFeedback`, the paper's algorithm), hidden with bounded residuals
    (:class:`BoundedFeedback`) or made of noisy releases (:class:`ReleasedFeedback`). Their guarantees and costs differ
    widely: see ``docs/error-feedback.md``. Any torch optimizer takes the steps; the paper uses SGD and AdamW.

    Args:
        model, loss_fn, dataset, ledger, sampler, mechanism, planned_queries: As in :class:`ClippedGradientOracle`.
        clipper: ``FlatClipper``; with ``PrivateFeedback`` also ``AutomaticClipper``.
        feedback: The settings of one of the three kinds.
        collate_fn, num_workers, method, max_physical_batch_size, process_group: As in :class:`ClippedGradientOracle`.
        planned_restarts, purpose, settings, session, share, randomness, reservation: As in :class:`GradientOracle`.

    Raises:
        UnsupportedEventError: No guarantee is proved for feedback x sampler x relation; the message names what is.
        ValueError: A setting is wrong; the message names it and the way out.

    Example:
        >>> import torch, tacita
        >>> model = torch.nn.Linear(3, 1)
        >>> data = (torch.zeros(100, 3), torch.zeros(100, 1))
        >>> oracle = tacita.ErrorFeedbackOracle(
        ...     model, lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1), data,
        ...     ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        ...     sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=100),
        ...     clipper=tacita.FlatClipper(max_grad_norm=1.0),
        ...     feedback=tacita.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0),
        ...     mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=5)
        >>> release = oracle.backward()
        >>> sorted(release.released), oracle.remaining_queries
        (['gradient', 'residual'], 4)
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        dataset: Any,
        *,
        ledger: Ledger | None,
        sampler: Sampler,
        clipper: Clipper,
        feedback: Feedback,
        mechanism: Mechanism | CalibratedGaussian,
        planned_queries: int,
        collate_fn: Callable[[list], Any] | None = None,
        num_workers: int = 0,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        process_group: Any = None,
        planned_restarts: int = 0,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        feedback = as_feedback(feedback)
        network = Network(
            model, loss_fn, dataset, collate_fn, num_workers, method, max_physical_batch_size, process_group
        )
        chosen = randomness or Randomness.system()
        options = SessionOptions(purpose, settings, session, chosen, planned_restarts, reservation, share)
        estimator = feedback.estimator(clipper, as_sampler(sampler).expected_batch_size)
        data, allocated = network.data(), feedback.allocated(mechanism)
        self._build(data, options, estimator, allocated, sampler, ledger=ledger, planned_queries=planned_queries)


class UnclippedGradientOracle(GradientOracle):
    r"""Noisy sums of gradients that are not clipped: :math:`\frac{1}{b}\big(\sum_{i \in B} g_i + N(0, s^2 I)\big)`.

    :math:`s` is ``noise_multiplier`` times the sensitivity that the sum would have if every gradient stayed below
    ``declared_max_grad_norm``. There is a guarantee under that condition alone: the statement prints no epsilon without
    it, and a ledger with a cap refuses the session. Prefer :class:`~tacita.ClippedGradientOracle` with the same bound
    as its threshold. It needs no condition, and wherever the condition holds it takes the same path, bit for bit under
    the same key.

    Args:
        model: Any module whose samples do not mix.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,): one loss a sample, never a mean.
        dataset: A map-style ``Dataset``; tensors, NumPy arrays or memory maps in a tuple, mapping or dataclass; or
            :class:`Records`.
        ledger: Pays for the queries; sets the neighboring relation and the privacy unit.
        sampler: Draws the records of a query.
        declared_max_grad_norm, failure_probability, because, monitor_weight, debug_monitor: As in
            :class:`~tacita.UnclippedSum`.
        mechanism: ``GaussianMechanism`` or ``CalibratedGaussian``.
        planned_queries: Number of queries that the guarantee covers.
        collate_fn, num_workers, method, max_physical_batch_size, process_group: As in :class:`ClippedGradientOracle`.
        planned_restarts, purpose, settings, session, share, randomness, reservation: As in :class:`GradientOracle`.

    Warns:
        UserWarning: The noise alone is so large that one step of size 1 / L may pass the bound. The lemma behind the
            bound leaves the noise out.

    Example:
        >>> import torch, tacita
        >>> oracle = tacita.UnclippedGradientOracle(
        ...     torch.nn.Linear(3, 1), lambda model, batch: model(batch[0]).sigmoid()[:, 0], (torch.zeros(100, 3),),
        ...     ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        ...     sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=100),
        ...     declared_max_grad_norm=0.5, failure_probability=0.0, because="features are in the unit ball",
        ...     mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=5)
        >>> oracle.backward().query, oracle.ledger.epsilon(1e-5)
        (0, inf)
        >>> oracle.ledger.conditions[0][:58]
        "every record's gradient has an L2 norm of at most 0.5 at e"
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        dataset: Any,
        *,
        ledger: Ledger | None,
        sampler: Sampler,
        declared_max_grad_norm: float,
        failure_probability: float,
        because: str = "",
        monitor_weight: float = 0.0,
        debug_monitor: bool = False,
        mechanism: GaussianMechanism | CalibratedGaussian,
        planned_queries: int,
        collate_fn: Callable[[list], Any] | None = None,
        num_workers: int = 0,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        process_group: Any = None,
        planned_restarts: int = 0,
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        network = Network(
            model, loss_fn, dataset, collate_fn, num_workers, method, max_physical_batch_size, process_group
        )
        chosen = randomness or Randomness.system()
        options = SessionOptions(purpose, settings, session, chosen, planned_restarts, reservation, share)
        estimator = UnclippedSum(
            declared_max_grad_norm=declared_max_grad_norm,
            failure_probability=failure_probability,
            because=because,
            monitor_weight=monitor_weight,
            debug_monitor=debug_monitor,
        )
        data = network.data()
        self._build(data, options, estimator, mechanism, sampler, ledger=ledger, planned_queries=planned_queries)
        _warn_of_noise(self.noise_std["all"] / self.divisor, self.source.shapes, declared_max_grad_norm)

    @property
    def exceeded(self) -> int:
        """Number of rows so far whose gradient was longer than declared. Private; needs ``debug_monitor``."""
        if self.line.state is None:
            raise ValueError(
                "debug_monitor is False, and whether the bound held is private. Buy a noisy count with monitor_weight, "
                "or give up the guarantee with debug_monitor=True."
            )
        return int(self.line.state)


def _warn_of_noise(noise_std: float, shapes: Mapping[str, Any], bound: float) -> None:
    """Warn if a step along the noise alone could make a gradient longer than ``bound``.

    A step of size 1 / L or less moves a gradient by at most the length of the mean gradient's noise, which is about
    ``noise_std`` times the square root of the number of coordinates.
    """
    length = noise_std * math.sqrt(sum(shape.numel() for shape in shapes.values()))
    if length > bound:
        warnings.warn(
            f"declared_max_grad_norm is {bound:g}, and the noise of one mean gradient is about {length:.3g} long: one "
            "step of size 1 / smoothness can make a gradient longer than declared, whatever the records are. Take "
            "smaller steps, or clip.",
            stacklevel=3,
        )
