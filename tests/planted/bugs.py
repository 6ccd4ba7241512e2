"""All planted bugs, by the room they are planted in; importing this registers them."""

from tests.planted import (
    accounting_bugs,
    audit_bugs,
    audit_one_run_bugs,
    fault_bugs,
    feedback_bugs,
    gradient_bugs,
    hardened_bugs,
    in_place_bugs,
    ledger_bugs,
    noise_bugs,
    run_bugs,
    sampling_bugs,
    selection_bugs,
    sosp_bugs,
    table_bugs,
    theory_bugs,
)
from tests.planted.plant import BUGS

__all__ = [
    "BUGS",
    "accounting_bugs",
    "audit_bugs",
    "audit_one_run_bugs",
    "fault_bugs",
    "feedback_bugs",
    "gradient_bugs",
    "hardened_bugs",
    "in_place_bugs",
    "ledger_bugs",
    "noise_bugs",
    "run_bugs",
    "sampling_bugs",
    "selection_bugs",
    "sosp_bugs",
    "table_bugs",
    "theory_bugs",
]
