"""A finished run: its model, its ledger and its statement, whether it ended now or was sealed by an earlier process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import nn

from tacita.errors import ResumeError, TacitaError
from tacita.ledger import Ledger, Statement, statement
from tacita.ledger.sections import PUBLIC_LOSSES
from tacita.runs.checkpoint import TrainingState
from tacita.runs.run_facts import run_facts
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import MODEL, publish


@dataclass(frozen=True)
class Run:
    """A finished private run.

    Attributes:
        model: The trained network, which is the one that was handed in.
        ledger: What was spent; of several ranks, rank 0's.
        statement: The guarantee in words: epsilon of the plan, the unit, the assumptions.
        folder: Where the run was written; ``None`` for a run in memory.
        public_losses: Pairs (queries made, mean loss on ``public_data``).
    """

    model: nn.Module
    ledger: Ledger
    statement: Statement
    folder: Path | None = None
    public_losses: tuple[tuple[int, float], ...] = ()


def finished_run(run: RunLifecycle, state: TrainingState, public: bool, delta: float, said: Mapping[str, Any]) -> Run:
    """Seal the trained run, and return it with its statement, which repeats what is ``said``."""
    ledger, model = state.oracle.ledger, state.model
    caveats = ["A loss was shown on data that the caller declares to be public."] if public else []
    caveats += state.changes_in_words()

    facts: dict[str, Any] = {"run": run_facts(run.randomness)}
    facts |= {PUBLIC_LOSSES: [list(pair) for pair in state.public_losses]} if public else {}

    def make_statement(hashes: dict[str, str]) -> Statement:
        files: dict[str, Any] = {"files": hashes} if hashes else {}
        return statement(ledger, delta, caveats=caveats, **said, **facts, **files)

    ledger.flush()  # no weights leave before the lines of their queries
    words = make_statement({}) if run.folder is None else publish(ledger, make_statement, weights=model.state_dict())
    return Run(model, ledger, words, None if run.folder is None else run.folder.path, tuple(state.public_losses))


def restored_run(run: RunLifecycle, state: TrainingState, delta: float, said: Mapping[str, Any]) -> Run:
    """Load the model of a run that was sealed before, and return it with the statement that it was sealed with."""
    assert run.folder is not None
    ledger, sealed = state.oracle.ledger, run.sealed_run()
    standing = len(statement(ledger, delta).to_json()["caveats"])
    try:
        state.model.load_state_dict(safetensors.torch.load(sealed.read(MODEL)))
        stated, caveats = sealed.stated, sealed.stated["caveats"][standing:]
        kept = {name: stated[name] for name in ("about", "run", PUBLIC_LOSSES, "files") if name in stated}
        losses = tuple((int(made), float(loss)) for made, loss in kept.get(PUBLIC_LOSSES, ()))
    except TacitaError as error:
        raise ResumeError(f"the run that was finished here was changed since: {error}") from None
    except (RuntimeError, LookupError, TypeError, ValueError, safetensors.SafetensorError):
        raise ResumeError(f"{MODEL} is not of the model that was trained here.") from None
    words = statement(ledger, delta, chosen_by_tacita=said["chosen_by_tacita"], caveats=caveats, **kept)
    return Run(state.model, ledger, words, run.folder.path, losses)
