"""A finished run: its model, its ledger and its statement, whether it ended now or was sealed by an earlier process."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors
import safetensors.torch
from torch import Tensor, nn

from tacita._files import make_folder, replace_in_pieces
from tacita.errors import ResumeError, TacitaError
from tacita.ledger import Ledger, Statement, statement
from tacita.ledger.run_sections import leaving
from tacita.ledger.sections import PUBLIC_LOSSES
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_facts
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import MODEL, STATEMENT, TEXT, publish

Publish = Literal["all", "trainable", "exported"]
RESTORED = ("holdout_score", "purchases")  # of a sealed statement, beside the fields that no ledger has
_PIECE = 2**22  # bytes of a file in memory at once


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


Export = Callable[[Run, Path], Any]


@dataclass(frozen=True)
class Published:
    """What a run's folder keeps of its model; :func:`tacita.fit` has ``publish`` and ``export``."""

    publish: Publish
    export: Export | None
    folder: str | Path | None

    def __post_init__(self) -> None:
        if self.publish not in get_args(Publish):
            raise ValueError(f"publish must be one of {', '.join(get_args(Publish))}, got {self.publish!r}.")
        if self.publish == "exported" and self.export is None:
            raise ValueError("publish='exported' needs export, which writes the files.")
        if (self.export is not None or self.publish != "all") and self.folder is None:
            raise ValueError("publish and export need folder, where the run keeps what it publishes.")

    def weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """Return what goes into ``model.safetensors``; ``None`` for no such file."""
        if self.publish == "exported":
            return None
        named = model.named_parameters(remove_duplicate=False)
        left_out = {name for name, p in named if not p.requires_grad} if self.publish == "trainable" else ()
        return {name: value for name, value in model.state_dict().items() if name not in left_out}

    def exported(self, run: Run, folder: RunFolder) -> list[str]:
        """Call ``export``, move what it wrote into the run's folder, and return the files' names.

        Raises:
            ValueError: A file would replace one of the run's own.
        """
        if self.export is None:
            return []
        written = folder.private / "exported"
        shutil.rmtree(written, ignore_errors=True)  # of a process that was killed
        make_folder(written)
        self.export(run, written)
        names = sorted(path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file())
        own = {MODEL, STATEMENT, TEXT, folder.ledger.name, folder.ledger.with_suffix(".head.json").name}
        if taken := [name for name in names if name in own or name.split("/")[0] == folder.private.name]:
            raise ValueError(f"export must not write {taken[0]}, which is a file of the run itself: rename it.")
        for name in {name.split("/")[0] for name in names if "/" in name}:
            shutil.rmtree(folder.path / name, ignore_errors=True)  # else files of a killed process stay, unsealed
        for name in names:
            make_folder((folder.path / name).parent)
            replace_in_pieces(folder.path / name, _pieces(written / name))
        return names


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def finished_run(
    run: RunLifecycle, state: TrainingState, written: Published, *, public: bool, delta: float, said: Mapping[str, Any]
) -> Run:
    """Seal the trained run, and return it with its statement, which repeats what is ``said``.

    Of a sharded model the other ranks gather what is published, too.
    """
    ledger, model = state.oracle.ledger, state.model
    caveats = ["A loss was shown on data that the caller declares to be public."] if public else []
    caveats += state.changes_in_words()

    facts: dict[str, Any] = {"run": run_facts(run.randomness)}
    facts |= {PUBLIC_LOSSES: [list(pair) for pair in state.public_losses]} if public else {}

    def make_statement(hashes: dict[str, str]) -> Statement:
        files: dict[str, Any] = {"files": hashes, "files_policy": leaving(hashes)} if hashes else {}
        return statement(ledger, delta, caveats=caveats, **said, **facts, **files)

    ledger.flush()  # no weights leave before the lines of their queries
    done = Run(model, ledger, make_statement({}), public_losses=tuple(state.public_losses))
    if run.folder is None:
        return done
    done = replace(done, folder=run.folder.path)
    files = written.exported(done, run.folder)
    weights = state.gathered(written.weights(model))
    words = publish(ledger, make_statement, weights=weights, files=files)
    return replace(done, statement=words)


def restored_run(
    run: RunLifecycle, state: TrainingState, written: Published, *, delta: float, said: Mapping[str, Any]
) -> tuple[Run, dict[str, Tensor]]:
    """Load the model of a run that was sealed before.

    Returns:
        The run, with the statement that it was sealed with; and the tensors that were read, which are whole.
    """
    assert run.folder is not None
    ledger, sealed = state.oracle.ledger, run.sealed_run()
    if (expected := written.weights(state.model)) is None:
        run.finish()
        raise ResumeError("the run in folder is finished: load its model from the files that export wrote.")
    standing = statement(ledger, delta).to_json()
    try:
        weights = safetensors.torch.load(sealed.read(MODEL))
        if weights.keys() != expected.keys():
            raise LookupError
        if any(weights[name].shape != own.shape for name, own in expected.items()):
            raise ValueError
        if not state.sharded:  # else all ranks do it together
            state.model.load_state_dict(weights, strict=False)
        stated, caveats = sealed.stated, sealed.stated["caveats"][len(standing["caveats"]) :]
        kept = {name: value for name, value in stated.items() if name in RESTORED or name not in standing}
        losses = tuple((int(made), float(loss)) for made, loss in kept.get(PUBLIC_LOSSES, ()))
    except TacitaError as error:
        raise ResumeError(f"the run that was finished here was changed since: {error}") from None
    except (RuntimeError, LookupError, TypeError, ValueError, safetensors.SafetensorError):
        raise ResumeError(f"{MODEL} is not of the model that was trained here.") from None
    words = statement(ledger, delta, chosen_by_tacita=said["chosen_by_tacita"], caveats=caveats, **kept)
    return Run(state.model, ledger, words, run.folder.path, losses), weights
