"""Audits: lower bounds on epsilon, measured on whole runs. Above every stage, below the front ends."""

from tacita.audit.adversaries import ADVERSARIES, Adversary
from tacita.audit.audit import audit_oracle
from tacita.audit.bounds import epsilon_lower_bound, mu_lower_bound
from tacita.audit.claims import Claim
from tacita.audit.membership import Membership
from tacita.audit.one_run import OneRunBound, one_run_bound
from tacita.audit.one_run_canaries import planted_collate
from tacita.audit.one_run_report import OneRunAudit
from tacita.audit.one_run_training import audit_one_run
from tacita.audit.ready import READY, ReadyAudit
from tacita.audit.result import AuditResult

__all__ = [
    "ADVERSARIES",
    "READY",
    "Adversary",
    "AuditResult",
    "Claim",
    "Membership",
    "OneRunAudit",
    "OneRunBound",
    "ReadyAudit",
    "audit_one_run",
    "audit_oracle",
    "epsilon_lower_bound",
    "mu_lower_bound",
    "one_run_bound",
    "planted_collate",
]
