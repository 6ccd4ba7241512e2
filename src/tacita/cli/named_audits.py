"""All audits that ``tacita audit`` runs by name: those of the core, and those of the systems."""

from tacita.error_feedback import audits as feedback
from tacita.testing import named_audits as core

READY = {**core.READY, **feedback.READY}
