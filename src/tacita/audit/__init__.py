"""Audits: lower bounds on epsilon, measured on whole runs."""

from tacita.audit.adversaries import ADVERSARIES, Adversary
from tacita.audit.audit import audit_oracle
from tacita.audit.bounds import epsilon_lower_bound, mu_lower_bound
from tacita.audit.claims import Claim
from tacita.audit.membership import Membership
from tacita.audit.named_audits import READY, ReadyAudit
from tacita.audit.one_run import OneRunAudit, OneRunBound, audit_one_run, one_run_bound, planted_collate
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
