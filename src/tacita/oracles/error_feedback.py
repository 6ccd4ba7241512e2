"""The oracle of DP-SGD with error feedback: what clipping removes is remembered, and given back later.

Place: a short way to build :class:`~tacita.oracles.gradient_oracle.GradientOracle`.
Source: Zhang, Bu, Wu, Hong, "Differentially Private SGD Without Clipping Bias: An Error-Feedback Approach" (DiceSGD).
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from tacita.accounting import Ledger, Session
from tacita.clipping.clipper import Clipper
from tacita.estimators.error_feedback import Feedback
from tacita.gradients import NetworkSource
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.records import data_and_rows
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler


class ErrorFeedbackOracle(GradientOracle):
    r"""Private gradients with error feedback: :math:`\frac1b\big(\sum_i w_i g_i + \text{clip}(E) + N(0, s^2 I)\big)`.

    :math:`E` is what clipping has removed so far and was not given back yet. ``feedback`` says whether it is hidden
    (:class:`PrivateFeedback`, the paper's algorithm), hidden with bounded residuals (:class:`BoundedFeedback`) or made
    of noisy releases (:class:`ReleasedFeedback`); the guarantee, and what it costs, differ widely: see
    ``docs/error-feedback.md``. Any torch optimizer goes below the line; SGD and AdamW are the paper's.

    Args:
        model, loss_fn, dataset, ledger, sampler, mechanism, planned_queries: As in :class:`ClippedGradientOracle`.
        clipper: ``FlatClipper``; with ``PrivateFeedback`` also ``AutomaticClipper``.
        feedback: One of the three.
        collate_fn, num_workers, method, max_physical_batch_size, process_group: As in :class:`ClippedGradientOracle`.
        purpose, settings, session, randomness: As in :class:`GradientOracle`.

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
        loss_fn: Callable[[nn.Module, Any], Tensor],
        dataset: Any,
        *,
        ledger: Ledger,
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
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        if not isinstance(feedback, Feedback):
            raise TypeError(
                "feedback must be a PrivateFeedback, a BoundedFeedback or a ReleasedFeedback, "
                f"got {type(feedback).__name__}."
            )
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
            estimator=feedback.estimator(clipper, as_sampler(sampler).expected_batch_size),
            mechanism=feedback.allocated(mechanism),
            sampler=sampler,
            ledger=ledger,
            planned_queries=planned_queries,
            **taken,
            purpose=purpose,
            settings=settings,
            session=session,
            randomness=randomness,
        )
