"""The oracle of noisy SGD without clipping: private only under a condition that its statement prints.

Place: a short way to build :class:`~tacita.oracles.gradient_oracle.GradientOracle`.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need", Algorithm 2; docs/derivations/noisy-sgd.md.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from tacita.accounting import Ledger, Session
from tacita.estimators import UnclippedSum
from tacita.gradients import NetworkSource
from tacita.mechanisms import CalibratedGaussian, GaussianMechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.records import data_and_rows
from tacita.random import Randomness
from tacita.sampling import Sampler


class UnclippedGradientOracle(GradientOracle):
    r"""Noisy sums of gradients that are not clipped: :math:`\frac{1}{b}\big(\sum_{i \in B} g_i + N(0, s^2 I)\big)`.

    :math:`s` = ``noise_multiplier`` x the sensitivity that the sum would have if every gradient stayed below
    ``declared_max_grad_norm``. Under that condition alone is there a guarantee, and the statement prints no epsilon
    without it; a ledger with a cap refuses the session. :class:`~tacita.ClippedGradientOracle` with the same bound as
    its threshold takes the same path, bit for bit under the same key, wherever the condition holds, and needs none:
    prefer it.

    Args:
        model: Any module whose samples do not mix.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,): one loss a sample, never a mean.
        dataset: A map-style ``Dataset``, a tuple of tensors / NumPy arrays / memory maps, or :class:`Records`.
        ledger: Has the neighboring relation and the privacy unit; pays.
        sampler: How the records of a query are drawn.
        declared_max_grad_norm, failure_probability, because, monitor_weight, debug_monitor: As in
            :class:`~tacita.UnclippedSum`.
        mechanism: ``GaussianMechanism`` or ``CalibratedGaussian``.
        planned_queries: Number of queries the guarantee is for.
        collate_fn, num_workers, method, max_physical_batch_size: As in :class:`~tacita.ClippedGradientOracle`.
        purpose, settings, session, randomness: As in :class:`GradientOracle`.

    Warns:
        UserWarning: The noise alone is so large that one step of size 1 / L may pass the bound (the lemma that the
            bound rests on leaves the noise out).

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
        loss_fn: Callable[[nn.Module, Any], Tensor],
        dataset: Any,
        *,
        ledger: Ledger,
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
        )
        super().__init__(
            source,
            estimator=UnclippedSum(
                declared_max_grad_norm=declared_max_grad_norm,
                failure_probability=failure_probability,
                because=because,
                monitor_weight=monitor_weight,
                debug_monitor=debug_monitor,
            ),
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
        _warn_of_noise(self.noise_std["all"] / self.divisor, source.shapes, declared_max_grad_norm)

    @property
    def exceeded(self) -> int:
        """How many rows were longer than the declared bound so far. Private: only with ``debug_monitor``."""
        if self._state is None:
            raise ValueError(
                "debug_monitor is False: whether the bound held is private. Buy a noisy count with monitor_weight, or "
                "give up the guarantee with debug_monitor=True."
            )
        return int(self._state)


def _warn_of_noise(noise_std: float, shapes: Mapping[str, Any], bound: float) -> None:
    """A step of at most 1 / L moves a gradient by at most the length of the noise of the mean, about Delta sqrt(d)."""
    length = noise_std * math.sqrt(sum(shape.numel() for shape in shapes.values()))
    if length > bound:
        warnings.warn(
            f"declared_max_grad_norm is {bound:g}, and the noise of one mean gradient is about {length:.3g} long: one "
            "step of size 1 / smoothness can make a gradient longer than declared, whatever the records are. Take "
            "smaller steps, or clip.",
            stacklevel=3,
        )
