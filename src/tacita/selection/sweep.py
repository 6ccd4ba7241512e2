"""``tacita train --sweep``: the best of several trainings on a table, and the price of choosing it.

Place: pipeline, best_of -> [selection.sweep] -> command line. Purchases are made once and serve every run; rows are
held out once, by coin, and each run is scored on them beside its training. All of it is one budget: the purchases and
the selection are registered together, before the first release.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
from rich.console import Console

from tacita.accounting import Event, Ledger, RepeatAndSelectEvent, Session, Spend
from tacita.errors import LedgerError
from tacita.pipeline import TableRun, TableSettings
from tacita.pipeline import score as scores
from tacita.pipeline.models import ModelSpec, check_model
from tacita.pipeline.plan import Plan, Sessions
from tacita.pipeline.preprocessing import Preprocessing
from tacita.pipeline.report import PREPROCESSING, Selected
from tacita.pipeline.source import Source, declared, read, read_test
from tacita.pipeline.train import EncodedRows, Rows, Say, TableTask, in_folder
from tacita.random import Randomness
from tacita.selection import words
from tacita.selection.best_of import best_of, one_run_epsilon, register
from tacita.selection.grid import Point, Sweep
from tacita.selection.inner import calibrated, check_ledger, largest_mu, one_of, selection_event
from tacita.selection.workplace import Found, Workplace
from tacita.tables.table import Table

TUNABLE = ("lr", "max_grad_norm", "model", "width", "sample_rate", "queries")
FOLDER = "selection"  # in the run's private folder


def sweep_table(
    settings: TableSettings,
    *,
    say: Say = lambda words: None,
    progress: bool = False,
    randomness: Randomness | None = None,
) -> TableRun:
    """Train on a table under several settings and keep the best run, all of it (epsilon, delta)-private together.

    Args:
        settings: All of them public; ``sweep`` is the text of a grid file (:meth:`Sweep.from_toml`), whose names are
            among lr, max_grad_norm, model, width, sample_rate and queries.
        say: Called with a line of public words at every stage.
        progress: Show on the error stream that work goes on, and nothing of how far it is.
        randomness: Only tests hand it in; the statement then says that the run is not private.

    Raises:
        ValueError: A setting is wrong, in the grid or outside; the message names it and the way out.
        DataStructureError, ResumeError: As :func:`~tacita.pipeline.train_table`.
    """
    candidates = Candidates.of(settings)
    source = read(settings, declared(settings))
    plans = candidates.plans(source)
    test = None if settings.test_file is None else read_test(settings.test_file, source)

    def work(task: TableTask) -> None:
        _Selecting(task, candidates, plans).go(test)

    return in_folder(settings, source, plans[0], work, say=say, progress=progress, randomness=randomness)


@dataclass(frozen=True)
class Candidates:
    """The points of a sweep as settings of a run each.

    Attributes:
        sweep: What was asked for.
        points: The grid's.
        settings: One a point.
    """

    sweep: Sweep
    points: list[Point]
    settings: list[TableSettings]

    @classmethod
    def of(cls, settings: TableSettings) -> "Candidates":
        """Every combination of the grid as settings; a wrong one is refused here."""
        if settings.sweep is None:
            raise ValueError("sweep is missing: give the text of a grid file.")
        sweep = Sweep.from_toml(settings.sweep)
        for name in sweep.grid.values:
            if name not in TUNABLE:
                raise ValueError(f"grid cannot have {name!r}: it may have {', '.join(TUNABLE)}.")
            if getattr(settings, name) != _DEFAULTS[name]:
                raise ValueError(f"{name} is given twice: leave it out of the settings, or out of the grid.")
        points = sweep.grid.points
        each = [replace(settings, sweep=None, **point) for point in points]
        for one in each:
            check_model(one.model)
        return cls(sweep, points, each)

    def plans(self, source: Source) -> list[Plan]:
        """The plan of each candidate; purchases are the same in all."""
        return [Plan.of(settings, source) for settings in self.settings]


@dataclass
class _Selecting:
    """A selection between its start and its statement.

    Attributes:
        task: What all runs share: rows, ledger, key.
        candidates: The settings to choose among.
        plans: One a candidate.
    """

    task: TableTask
    candidates: Candidates
    plans: list[Plan]

    def go(self, test: Table | None) -> None:
        task, sweep = self.task, self.candidates.sweep
        rows = task.deal(test)
        bought, session, noise = self._register()
        preprocessing = task.preprocess(rows, bought)
        encoded = task.encoded(rows, preprocessing)
        runs = _Runs(self, noise, rows, encoded, preprocessing)
        place = Workplace(task.folder.private / FOLDER)
        with _busy(task.progress):
            if not session.opened:
                runs.check()
            best = best_of(session, sweep, task.randomness, runs.attempt, place)
        self._write(best, preprocessing, self._said(best, bought, session))
        place.destroy()

    def inner(self, noise_multiplier: float) -> Event:
        """What one run spends: a record is in its training or in its score, and the grid's point is a public draw."""
        trains = self._trains(noise_multiplier)
        if not self.plans[0].score_histograms:
            return one_of(trains)
        return one_of([*trains, Spend(self.plans[0].score_event(self.score_noise_multiplier(noise_multiplier)), 1)])

    def score_noise_multiplier(self, noise_multiplier: float) -> float:
        """The least noise at which the score spends no more than the training, order by order."""
        mu = largest_mu(one_of(self._trains(noise_multiplier)))
        return (1 + 1e-9) / mu if mu > 0 else 1.0

    def _trains(self, noise_multiplier: float) -> list[Spend]:
        """One for each sampling rate and number of queries: of the clipping threshold the curve does not depend."""
        distinct = {(plan.training.sample_rate, plan.training.queries): plan for plan in reversed(self.plans)}
        return [Spend(plan.train_event(noise_multiplier), queries) for (_, queries), plan in distinct.items()]

    def _register(self) -> tuple[Sessions, Session, float]:
        """Purchases and selection, together, before the first release."""
        task, settings, plan = self.task, self.task.settings, self.plans[0]
        secure = task.randomness.secure
        bought = plan.register_purchases(task.ledger, task.public_settings, secure=secure)
        runs, target = self.candidates.sweep.runs, (settings.epsilon, settings.delta)
        noise = calibrated(self.inner, runs, settings.neighboring_relation, target, bought.spends)
        event = selection_event(self.inner(noise), runs)
        session = register(task.ledger, event, task.public_settings, secure=secure)
        planned = task.ledger.epsilon(settings.delta)
        if planned > settings.epsilon * (1 + 1e-9):
            raise LedgerError(f"the plan would spend epsilon {planned:.6g}, more than {settings.epsilon:g}.")
        task.say(
            f"plan: the best of a secret number of runs ({runs}) over {len(self.plans)} settings; epsilon "
            f"{settings.epsilon:g} at delta {settings.delta:g} for everything together, the choice included. No "
            "progress is shown: it would show that number"
        )
        return bought, session, noise

    def _said(self, best: Found | None, bought: Sessions, session: Session) -> Selected:
        assert isinstance(session.event, RepeatAndSelectEvent)
        sweep, delta = self.candidates.sweep, self.task.settings.delta
        said = words.selection(
            sweep,
            chosen=None if best is None else self.candidates.points[best.point],
            one_run_epsilon=one_run_epsilon(bought.spends, session.event, delta),
        )
        chosen = () if sweep.shape_given else (f"shape = {sweep.runs.shape:g}, of the number of runs",)
        return Selected(said, tuple(words.caveats(sweep, said)), chosen)

    def _write(self, best: Found | None, preprocessing: Preprocessing, said: Selected) -> None:
        if best is None:
            nothing = {"measure": scores.measure(preprocessing.encoder), "value": None, "private": True, "how": NO_RUN}
            self.task.write(None, preprocessing, nothing, said)
            return
        winner = replace(self.task, settings=self.candidates.settings[best.point], plan=self.plans[best.point])
        own = _with_model(preprocessing, winner)
        own.save(self.task.folder.path / PREPROCESSING)
        winner.write(best.weights, own, best.facts["score"], said)


@dataclass(frozen=True)
class _Runs:
    """Makes one run after another, each with a ledger in memory and a key of its own."""

    selecting: _Selecting
    noise_multiplier: float
    rows: Rows
    encoded: EncodedRows
    preprocessing: Preprocessing

    def check(self) -> None:
        """Make every candidate ready to train, so that one that cannot is refused before the number of runs is drawn.

        Refused inside a run, it would tell that it was drawn, and the budget would be gone.
        """
        for point in range(len(self.selecting.plans)):
            task, sessions, own = self._prepared(point, Randomness.system())
            task.ready(own, task.records(self.encoded.private, self.rows), sessions)

    def attempt(self, point: int, randomness: Randomness) -> Found:
        task, sessions, own = self._prepared(point, randomness)
        state, found = task.trained(self.rows, self.encoded, own, sessions)
        value = -math.inf if found["value"] is None else float(found["value"])
        return Found(point=point, score=value, facts={"score": found}, weights=state.model.state_dict())

    def _prepared(self, point: int, randomness: Randomness) -> tuple[TableTask, Sessions, Preprocessing]:
        """A run of its own, with a ledger in memory that plans no more than was declared, and its model."""
        selecting, shared = self.selecting, self.selecting.task
        task = replace(
            shared,
            settings=selecting.candidates.settings[point],
            plan=selecting.plans[point],
            ledger=Ledger(
                neighboring_relation=shared.ledger.neighboring_relation, privacy_unit=shared.ledger.privacy_unit
            ),
            randomness=randomness,
            progress=False,
            say=lambda words: None,
            mechanism=selecting.plans[point].form(noise_multiplier=self.noise_multiplier),
        )
        score_noise = selecting.score_noise_multiplier(self.noise_multiplier)
        sessions = task.plan.register_run(task.ledger, self.noise_multiplier, score_noise, task.public_settings)
        check_ledger(task.ledger, selecting.inner(self.noise_multiplier))
        return task, sessions, _with_model(self.preprocessing, task)


def _with_model(preprocessing: Preprocessing, task: TableTask) -> Preprocessing:
    """What was bought, with the model of one candidate."""
    spec = ModelSpec.of(task.settings.model, task.plan.training.width, preprocessing.encoder)
    return msgspec.structs.replace(preprocessing, model=spec)


def _busy(show: bool) -> AbstractContextManager[Any]:
    """Something that moves, and says neither how far it is nor how long it took."""
    return Console(stderr=True).status("choosing among runs") if show else nullcontext()


NO_RUN = "the number of runs drawn was 0, so that there is nothing to score"
_DEFAULTS = {field.name: field.default for field in fields(TableSettings)}
