"""Audits: lower bounds on epsilon, measured on whole runs. Above every stage, below the front ends."""

from tacita.audit.membership import Membership
from tacita.audit.one_run import OneRunBound, one_run_bound
from tacita.audit.one_run_canaries import planted_collate
from tacita.audit.one_run_report import OneRunAudit
from tacita.audit.one_run_training import audit_one_run

__all__ = ["Membership", "OneRunAudit", "OneRunBound", "audit_one_run", "one_run_bound", "planted_collate"]
