"""DiceSGD and its variants: error feedback inside the oracle, its events, its audits and the noise that was published.

Derivation: docs/derivations/dicesgd.md.
"""

from tacita.error_feedback.bounded import BoundedErrorSum, BoundedFeedback
from tacita.error_feedback.bounded_residuals import BoundedResidualEvent
from tacita.error_feedback.feedback import Feedback, FeedbackSum, as_feedback
from tacita.error_feedback.first_draw import FirstDrawEvent
from tacita.error_feedback.hidden_errors import HiddenErrorEvent
from tacita.error_feedback.interleaved import InterleavedEvent
from tacita.error_feedback.oracle import ErrorFeedbackOracle
from tacita.error_feedback.private import HiddenErrorSum, PrivateFeedback
from tacita.error_feedback.proved_events import feedback_table
from tacita.error_feedback.released import ReleasedErrorSum, ReleasedFeedback

__all__ = [
    "BoundedErrorSum",
    "BoundedFeedback",
    "BoundedResidualEvent",
    "ErrorFeedbackOracle",
    "Feedback",
    "FeedbackSum",
    "FirstDrawEvent",
    "HiddenErrorEvent",
    "HiddenErrorSum",
    "InterleavedEvent",
    "PrivateFeedback",
    "ReleasedErrorSum",
    "ReleasedFeedback",
    "as_feedback",
    "feedback_table",
]
