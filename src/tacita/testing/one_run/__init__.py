"""Audits in one run: a lower bound on epsilon from a single training with canaries in its data."""

from tacita.testing.one_run.bound import OneRunBound, one_run_bound
from tacita.testing.one_run.canaries import planted_collate
from tacita.testing.one_run.report import OneRunAudit
from tacita.testing.one_run.training import audit_one_run

__all__ = ["OneRunAudit", "OneRunBound", "audit_one_run", "one_run_bound", "planted_collate"]
