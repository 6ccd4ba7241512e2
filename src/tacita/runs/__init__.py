"""One run's life: its folder, checkpoints, facts, the seal of what it made, and signatures."""

from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_facts
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import SealedRun, seal_run
from tacita.runs.signing import Signature, public_key_of, sign_run, signatures

__all__ = [
    "RunFolder",
    "RunLifecycle",
    "SealedRun",
    "Signature",
    "public_key_of",
    "run_facts",
    "seal_run",
    "sign_run",
    "signatures",
]
