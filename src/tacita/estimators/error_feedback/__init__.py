"""Error feedback: what clipping removes is remembered, and given back later. Hidden, bounded, or released."""

from tacita.estimators.error_feedback.bounded import BoundedErrorSum, BoundedFeedback
from tacita.estimators.error_feedback.feedback import Feedback, FeedbackSum, as_feedback
from tacita.estimators.error_feedback.private import HiddenErrorSum, PrivateFeedback
from tacita.estimators.error_feedback.released import ReleasedErrorSum, ReleasedFeedback

__all__ = [
    "BoundedErrorSum",
    "BoundedFeedback",
    "Feedback",
    "FeedbackSum",
    "HiddenErrorSum",
    "PrivateFeedback",
    "ReleasedErrorSum",
    "ReleasedFeedback",
    "as_feedback",
]
