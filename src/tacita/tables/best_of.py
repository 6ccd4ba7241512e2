"""The best of a random number of runs: open the session, make the runs, release the best one.

The proof needs runs that are independent and identically distributed, a number of runs that stays secret, and a ranking
by what each run itself released (docs/derivations/selection.md).
Source: Liu and Talwar (2019), https://arxiv.org/abs/1811.07971; Papernot and Steinke (2022),
https://arxiv.org/abs/2110.03620.
"""

import json
from collections.abc import Callable, Mapping
from decimal import ROUND_UP, Context
from typing import Any

import torch

from tacita.accounting import Spend, epsilon
from tacita.errors import LedgerError, ResumeError
from tacita.ledger import Ledger, Session, settings_sha256
from tacita.random import Key, Randomness
from tacita.tables.grid import Point, Sweep
from tacita.tables.selection_events import RepeatAndSelectEvent
from tacita.tables.working_folder import RunResult, WorkingFolder

PURPOSE = "select"
Attempt = Callable[[int, Randomness], RunResult]  # (number of the grid's point, the run's own randomness) -> result


def register(ledger: Ledger, event: RepeatAndSelectEvent, settings: dict[str, Any], *, secure: bool) -> Session:
    """Return the session of a selection: a new one, or the one that an interrupted process left.

    Raises:
        LedgerError: The session in the ledger was registered for another event or other settings.
    """
    left = [one for one in ledger.sessions if one.purpose == PURPOSE and one.state != "withdrawn"]
    if not left:
        return ledger.register(event, planned_queries=1, purpose=PURPOSE, settings=settings, secure_randomness=secure)
    session = left[-1]
    if session.event != event or session.registration.settings_sha256 != settings_sha256(settings):
        raise LedgerError(
            f"session {session.id!r} was registered for another selection: repeat its settings, or use another ledger."
        )
    if session.registration.secure_randomness and not secure:
        raise LedgerError(f"session {session.id!r} was registered for secure randomness, and the given one is not.")
    return session


def best_of(
    session: Session, sweep: Sweep, randomness: Randomness, attempt: Attempt, folder: WorkingFolder
) -> RunResult | None:
    """Make the runs and release the best; return ``None`` if the number of runs drawn is 0.

    The session is open and its query reserved, on disk, before the number is drawn. The number and the points follow
    from the session's key, so an interrupted selection continues with the same ones. A run that was cut off is made
    again from its start, with noise of its own; nothing of it was released. If several runs have the highest score, the
    first one wins.
    """
    name = randomness.claim(session.id, ledger=session.ledger, resumed=session.opened)
    if not session.opened:
        session.open()
    if not session.closed:
        session.reserve(0, 0)
    randomness.renew(name, 0)
    randomness.mark_drawn(name)
    runs = _number_of_runs(session, sweep, randomness)
    for number in range(folder.done, max(runs, sweep.pad_to or 0)):
        point = sweep.grid.draw(_session_key(session, randomness).stream("point", number))
        result = attempt(point, Randomness(randomness.query_key(name, 0).derive(name, "run", number)))
        folder.record(result if number < runs else None)
    _spend(session, randomness, folder.best)
    return folder.best


def one_run_epsilon(alongside: list[Spend], event: RepeatAndSelectEvent, delta: float) -> float:
    """Return the epsilon of one run with the same noise together with ``alongside``, for the statement."""
    return epsilon([*alongside, Spend(event.inner, 1)], delta).epsilon


def _number_of_runs(session: Session, sweep: Sweep, randomness: Randomness) -> int:
    if not session.is_reserved(0):
        raise LedgerError(f"session {session.id!r} must be open before its number of runs is drawn.")
    return sweep.runs.draw(_session_key(session, randomness).stream("number of runs"))


def _session_key(session: Session, randomness: Randomness) -> Key:
    return randomness.session_key(randomness.name_for(session.id, session.ledger))


def _spend(session: Session, randomness: Randomness, best: RunResult | None) -> None:
    """Write the ledger's line of the release and close the session; after a crash, compare with the line there."""
    words = json.dumps(None if best is None else best.to_json(), sort_keys=True).encode()
    weights = [] if best is None else [best.weights[name].detach().cpu() for name in sorted(best.weights)]
    parts = [words, *(value.contiguous().view(-1).view(torch.uint8).numpy() for value in weights if value.numel())]
    tag = _session_key(session, randomness).tag("winner", parts=parts)
    line = session.lookup(0)
    if line is None:
        session.spend(0, tag)
    elif line != tag:
        raise ResumeError(
            f"session {session.id!r} released another winner before: the data or the settings are not those with which "
            "it started. Repeat it with those."
        )
    if not session.closed:
        session.close()
    session.flush()


NONE = "none"


def field_of(sweep: Sweep, *, chosen: Point | None, one_run_epsilon: float) -> dict[str, Any]:
    """Return the statement's field ``selection``; all of it is public."""
    fields: dict[str, Any] = {
        "settings_in_grid": len(sweep.grid.points),
        "grid": {name: list(values) for name, values in sweep.grid.values.items()},
        "number_of_runs": f"secret, {sweep.runs}",
        "result": NONE if chosen is None else dict(chosen),
        "one_run_epsilon": one_run_epsilon,
        "pad_to": sweep.pad_to,
    }
    if sweep.grid.weights:
        fields["weights"] = {name: list(weights) for name, weights in sweep.grid.weights.items()}
    return fields


def caveats(sweep: Sweep, selection: Mapping[str, Any]) -> list[str]:
    """Return what the reader of the statement must know about the choice.

    Args:
        sweep: The settings of the selection.
        selection: The statement's field, from :func:`field_of`.
    """
    found = [
        f"The best of a random number of runs ({sweep.runs}) over {selection['settings_in_grid']} settings was "
        "released, and epsilon includes the price of that choice: one run with the same noise would have cost epsilon "
        f"{_up(selection['one_run_epsilon'])} at the same delta.",
        _time(sweep),
    ]
    if selection["result"] == NONE:
        found.append(
            "The number of runs drawn was 0, so nothing was trained and there is no model. This was as likely with any "
            "other data. The planned budget counts as spent."
        )
    else:
        found.append(
            "The held-out score chose the run: it is the best of several scores, and so too good on average. Score the "
            "model on other rows before you rely on it."
        )
    return found


def _time(sweep: Sweep) -> str:
    if sweep.pad_to is None:
        return (
            "The number of runs is secret, but the time that they took reveals something about it, and so do the times "
            "of files. The guarantee holds towards those who do not learn that time."
        )
    chance = f"{Context(prec=2, rounding=ROUND_UP).create_decimal(sweep.runs.chance_above(sweep.pad_to)):g}"
    return (
        f"The number of runs is secret. At least {sweep.pad_to} were made; those beyond the number drawn were "
        f"discarded. So the time that they took reveals the number with probability {chance} at most. For those who "
        "learn the time, delta is larger by (1 + e^epsilon) times this probability. The length of a single run is not "
        "padded."
    )


def _up(value: float) -> str:
    return f"{value * 1.0005:.4g}"  # rounded up, so that the printed number is still a bound
