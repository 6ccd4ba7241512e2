"""The best of a random number of runs: what is written before the number is drawn, and what is released of it all.

Place: number_of_runs, grid, workplace -> [selection.best_of] -> choose, sweep. Source: Liu and Talwar (2019),
https://arxiv.org/abs/1811.07971; Papernot and Steinke (2022), https://arxiv.org/abs/2110.03620. The proof needs runs
that are independent and alike, a number of runs that nobody learns, and a ranking by what a run released itself
(docs/derivations/selection.md).
"""

import json
from collections.abc import Callable
from typing import Any

import torch

from tacita.accounting import Ledger, RepeatAndSelectEvent, Session, Spend, epsilon, settings_sha256
from tacita.errors import LedgerError, ResumeError
from tacita.random import Randomness
from tacita.selection.grid import Sweep
from tacita.selection.workplace import Found, Workplace

PURPOSE = "select"
Attempt = Callable[[int, Randomness], Found]  # (number of the point, the run's own randomness) -> what it found


def register(ledger: Ledger, event: RepeatAndSelectEvent, settings: dict[str, Any], *, secure: bool) -> Session:
    """The session of a selection: a new one, or the one that an interrupted process left open.

    Raises:
        LedgerError: The one found was registered for another event or other settings.
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
        raise LedgerError(f"session {session.id!r} was registered for secure randomness, and this is not.")
    return session


def best_of(session: Session, sweep: Sweep, randomness: Randomness, attempt: Attempt, place: Workplace) -> Found | None:
    """Make the runs and release the best; ``None`` if the number drawn is 0.

    The session is open and its query reserved, on disk, before the number is drawn. Number, points and the runs' own
    keys follow from the session's key, so that an interrupted selection goes on with the same ones: a run that was cut
    off is made again from its start, bit for bit, and nobody has seen anything of it. Of equal scores the first wins.
    """
    randomness.claim(session.id, resumed=session.opened)
    if not session.opened:
        session.open()
    if not session.closed:
        session.reserve(0, 0)
    randomness.mark_drawn(session.id)
    runs = _number_of_runs(session, sweep, randomness)
    for number in range(place.done, max(runs, sweep.pad_to or 0)):
        key = randomness.session_key(session.id)
        found = attempt(sweep.grid.draw(key.stream("point", number)), Randomness(key.derive("run", number)))
        place.keep(found if number < runs else None)
    _spend(session, randomness, place.best)
    return place.best


def one_run_epsilon(alongside: list[Spend], event: RepeatAndSelectEvent, delta: float) -> float:
    """What one run with the same noise would have cost, with all that stands beside it: for the statement."""
    return epsilon([*alongside, Spend(event.inner, 1)], delta).epsilon


def _number_of_runs(session: Session, sweep: Sweep, randomness: Randomness) -> int:
    if not session.covered(0):
        raise LedgerError(f"session {session.id!r} must be open before its number of runs is drawn.")
    return sweep.runs.draw(randomness.session_key(session.id).stream("number of runs"))


def _spend(session: Session, randomness: Randomness, best: Found | None) -> None:
    """Write the line of the release and close; after a crash, hold the winner against the line that is there."""
    words = json.dumps(None if best is None else best.words(), sort_keys=True).encode()
    weights = [] if best is None else [best.weights[name].detach().cpu() for name in sorted(best.weights)]
    parts = [words, *(value.contiguous().view(-1).view(torch.uint8).numpy() for value in weights if value.numel())]
    tag = randomness.session_key(session.id).tag("winner", parts=parts)
    line = session.lookup(0)
    if line is None:
        session.spend(0, tag)
    elif line != tag:
        raise ResumeError(
            f"session {session.id!r} released another winner before: the data or settings are not those that it "
            "started with."
        )
    if not session.closed:
        session.close()
    session.flush()
