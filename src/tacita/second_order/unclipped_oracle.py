"""The short way to build an oracle of unclipped gradients for a network.

Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need", Algorithm 2; docs/derivations/noisy-sgd.md.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.session import BLOCK
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.payment import Payment, SessionPlan
from tacita.oracles.records import network_data
from tacita.random import Randomness
from tacita.sampling import Sampler
from tacita.second_order.unclipped_sum import UnclippedSum


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
        declared_max_grad_norm, failure_probability, because: As in :class:`~tacita.UnclippedSum`.
        mechanism: ``GaussianMechanism`` or ``CalibratedGaussian``.
        planned_queries: Number of queries that the guarantee covers.
        collate_fn, num_workers, method, max_physical_batch_size, process_group: As in
            :class:`~tacita.ClippedGradientOracle`.
        purpose, settings, session, share, randomness, reservation: As in
            :class:`~tacita.GradientOracle`.

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
        mechanism: GaussianMechanism | CalibratedGaussian,
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
        estimator = UnclippedSum(
            declared_max_grad_norm=declared_max_grad_norm,
            failure_probability=failure_probability,
            because=because,
        )
        self._build(SessionPlan(data, estimator, sampler, payment, planned_queries), mechanism)
        _warn_of_noise(self.noise_std["all"] / self.divisor, self.source.shapes, declared_max_grad_norm)


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
