"""The short way to build an oracle with error feedback for a network.

Source: Zhang, Bu, Wu, Hong, "Differentially Private SGD Without Clipping Bias: An Error-Feedback Approach", DiceSGD.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tacita.clipping.clipper import Clipper
from tacita.error_feedback.feedback import Feedback, as_feedback
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Session, Share
from tacita.ledger.session import BLOCK
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.oracles.gradient_oracle import GradientOracle
from tacita.oracles.payment import Payment, SessionPlan
from tacita.oracles.records import network_data
from tacita.random import Randomness
from tacita.sampling import Sampler, as_sampler


class ErrorFeedbackOracle(GradientOracle):
    r"""Private gradients with error feedback: :math:`\frac1b\big(\sum_i w_i g_i + \text{clip}(E) + N(0, s^2 I)\big)`.

    The error :math:`E` is what clipping has removed so far and was not given back yet. ``feedback`` decides whether it
    is hidden (:class:`PrivateFeedback`, the paper's algorithm), hidden with bounded residuals
    (:class:`BoundedFeedback`) or made of noisy releases (:class:`ReleasedFeedback`). Their guarantees and costs differ
    widely: see ``docs/error-feedback.md``. Any torch optimizer takes the steps; the paper uses SGD and AdamW.

    Args:
        model, loss_fn, dataset, ledger, sampler, mechanism, planned_queries: As in
            :class:`~tacita.ClippedGradientOracle`.
        clipper: ``FlatClipper``; with ``PrivateFeedback`` also ``AutomaticClipper``.
        feedback: The settings of one of the three kinds.
        collate_fn, num_workers, method, max_physical_batch_size, process_group: As in
            :class:`~tacita.ClippedGradientOracle`.
        purpose, settings, session, share, randomness, reservation: As in
            :class:`~tacita.GradientOracle`.

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
        purpose: str = "train",
        settings: Mapping[str, Any] | None = None,
        session: Session | None = None,
        share: Share | None = None,
        randomness: Randomness | None = None,
        reservation: int = BLOCK,
    ) -> None:
        feedback = as_feedback(feedback)
        data = network_data(
            model, loss_fn, dataset, collate_fn, num_workers, method, max_physical_batch_size, process_group
        )
        payment = Payment(ledger, purpose, settings, session, share, randomness, reservation)
        estimator = feedback.estimator(clipper, as_sampler(sampler).expected_batch_size)
        plan = SessionPlan(data, estimator, sampler, payment, planned_queries)
        self._build(plan, feedback.allocated(mechanism))
