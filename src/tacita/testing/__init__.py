"""Contract tests, and audits that bound epsilon from below; third parties can run both on parts of their own."""

from tacita.testing.adversaries import ADVERSARIES, Adversary
from tacita.testing.audit import audit_oracle
from tacita.testing.bounds import epsilon_lower_bound, mu_lower_bound
from tacita.testing.claims import Claim
from tacita.testing.event_contract import check_event
from tacita.testing.membership import Membership
from tacita.testing.named_audits import READY, ReadyAudit
from tacita.testing.one_run.bound import OneRunBound, one_run_bound
from tacita.testing.one_run.canaries import planted_collate
from tacita.testing.one_run.report import OneRunAudit
from tacita.testing.one_run.training import audit_one_run
from tacita.testing.oracle_contract import check_oracle
from tacita.testing.result import AuditResult
from tacita.testing.rule_contracts import check_clipper, check_layer_rule
from tacita.testing.sampler_contract import check_sampler

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
    "check_clipper",
    "check_event",
    "check_layer_rule",
    "check_oracle",
    "check_sampler",
    "epsilon_lower_bound",
    "mu_lower_bound",
    "one_run_bound",
    "planted_collate",
]
