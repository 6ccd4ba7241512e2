"""``tacita train --sweep``: the best of several trainings on a table, and the price of choosing it.

Purchases are made once and serve every run. Rows are held out once, by coin, and each run is scored on them in parallel
with its training. There is one budget: purchases and selection are registered together, before the first release.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace

import msgspec
from rich.console import Console

from tacita.accounting import Event, Spend
from tacita.errors import LedgerError
from tacita.ledger import Ledger, Session
from tacita.random import Randomness
from tacita.tables import held_out_score as scores
from tacita.tables.best_of import best_of, caveats, field_of, one_run_epsilon, register
from tacita.tables.encoded_rows import EncodedRows
from tacita.tables.grid import Sweep
from tacita.tables.models import ModelSpec, check_model
from tacita.tables.plan import Sessions, TablePlan
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.run_cost import calibrated, check_ledger, free_noise_multiplier, one_of, selection_event
from tacita.tables.selection_events import RepeatAndSelectEvent
from tacita.tables.settings import TableSettings
from tacita.tables.source import declared_schema, open_source, read_test
from tacita.tables.table import Table
from tacita.tables.table_run import TableRun, run_in_folder
from tacita.tables.table_statement import PREPROCESSING, Selected
from tacita.tables.table_task import Say, TableTask
from tacita.tables.working_folder import FOLDER, RunResult, WorkingFolder

TUNABLE = ("lr", "max_grad_norm", "model", "width", "sample_rate", "queries")


def sweep_table(
    settings: TableSettings,
    *,
    say: Say = lambda words: None,
    progress: bool = False,
    randomness: Randomness | None = None,
) -> TableRun:
    """Train on a table under several settings and keep the best run; everything together is (epsilon, delta)-DP.

    Args:
        settings: Public settings; ``sweep`` is the text of a grid file (:meth:`Sweep.from_toml`), which may name lr,
            max_grad_norm, model, width, sample_rate and queries.
        say: Called with a line of public text at every stage.
        progress: Show on the error stream that the work continues, but not how far it is.
        randomness: Only tests pass it; the statement then says that the run is not private.

    Raises:
        ValueError: A setting is wrong, in the grid or outside; the message names it and the way out.
        DataStructureError, ResumeError: As :func:`~tacita.tables.train_table`.
    """
    sweep, candidates = read_sweep(settings)
    source = open_source(settings, declared_schema(settings))
    plans = [TablePlan.of(candidate, source) for candidate in candidates]
    test = None if settings.test_file is None else read_test(settings.test_file, source)

    def work(task: TableTask) -> None:
        _SweepTask(task, sweep, candidates, plans).go(test)

    return run_in_folder(settings, source, plans[0], work, say=say, progress=progress, randomness=randomness)


def read_sweep(settings: TableSettings) -> tuple[Sweep, list[TableSettings]]:
    """Return the sweep of ``settings``, and the settings of the run at each point of its grid.

    Raises:
        ValueError: One of them is wrong.
    """
    if settings.sweep is None:
        raise ValueError("sweep is missing: give the text of a grid file.")
    sweep = Sweep.from_toml(settings.sweep)
    for name in sweep.grid.values:
        if name not in TUNABLE:
            raise ValueError(f"grid cannot have {name!r}: it may have {', '.join(TUNABLE)}.")
        if getattr(settings, name) != _DEFAULTS[name]:
            raise ValueError(f"{name} is given twice: remove it from the settings or from the grid.")
    candidates = [replace(settings, sweep=None, **point) for point in sweep.grid.points]
    for one in candidates:
        check_model(one.model)
        if one.model == "additive":
            raise ValueError("grid cannot have model = additive, which has bins in place of features: leave it out.")
    return sweep, candidates


@dataclass
class _SweepTask:
    """A selection on a table, from its start to its statement; its runs have a ledger in memory and a key of their own.

    Attributes:
        task: The rows, ledger and key that all runs share.
        sweep: The grid and the law of the number of runs.
        settings: The settings of the run at each point of the grid.
        plans: Their plans; the purchases are the same in all.
        noise_multiplier: The noise of each training, calibrated with the price of the choice.
        preprocessing, encoded: What all runs share.
    """

    task: TableTask
    sweep: Sweep
    settings: list[TableSettings]
    plans: list[TablePlan]
    noise_multiplier: float = field(init=False)
    preprocessing: Preprocessing = field(init=False)
    encoded: EncodedRows = field(init=False)

    def go(self, test: Table | None) -> None:
        task, table = self.task, self.task.capped()
        bought, session = self._register()
        self.preprocessing = task.preprocess(table, bought)
        self.encoded = task.encoded(table, test, self.preprocessing)
        place = WorkingFolder(task.folder.private / FOLDER)
        with Console(stderr=True).status("choosing among runs") if task.progress else nullcontext():
            if not session.opened:
                self.check()
            best = best_of(session, self.sweep, task.randomness, self.attempt, place)
        self._write(best, self._said(best, bought, session))

    def inner(self, noise_multiplier: float) -> Event:
        """Return the event of one run: a record is in its training or in its score, and the point's draw is public."""
        trains = self._trains(noise_multiplier)
        if not self.plans[0].buys_score:
            return one_of(trains)
        return one_of([*trains, Spend(self.plans[0].score_event(self.score_noise_multiplier(noise_multiplier)), 1)])

    def score_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return the least noise at which the score spends no more than the training at any order."""
        return free_noise_multiplier(one_of(self._trains(noise_multiplier)))

    def _trains(self, noise_multiplier: float) -> list[Spend]:
        """Return the cost of training for each sample rate and number of queries.

        The clipping threshold does not matter, since the cost does not depend on it.
        """
        distinct = {(plan.training.sample_rate, plan.training.queries): plan for plan in reversed(self.plans)}
        return [Spend(plan.train_event(noise_multiplier), queries) for (_, queries), plan in distinct.items()]

    def _register(self) -> tuple[Sessions, Session]:
        """Register purchases and selection together, before the first release; the noise is calibrated to both."""
        task, settings, plan = self.task, self.task.settings, self.plans[0]
        secure = task.randomness.secure
        bought = plan.register_purchases(task.ledger, task.public_settings, secure=secure)
        runs, target = self.sweep.runs, (settings.epsilon, settings.delta)
        self.noise_multiplier = calibrated(self.inner, runs, settings.neighboring_relation, target, bought.spends)
        event = selection_event(self.inner(self.noise_multiplier), runs)
        session = register(task.ledger, event, task.public_settings, secure=secure)
        planned = task.ledger.epsilon(settings.delta)
        if planned > settings.epsilon * (1 + 1e-9):
            raise LedgerError(f"the plan would spend epsilon {planned:.6g}, more than {settings.epsilon:g}.")
        task.say(
            f"plan: the best of a secret number of runs ({runs}) over {len(self.plans)} settings; epsilon "
            f"{settings.epsilon:g} at delta {settings.delta:g} for everything together, the choice included. Progress "
            "is not shown, since it would reveal the number of runs"
        )
        return bought, session

    def _said(self, best: RunResult | None, bought: Sessions, session: Session) -> Selected:
        assert isinstance(session.event, RepeatAndSelectEvent)
        sweep, delta = self.sweep, self.task.settings.delta
        stated = field_of(
            sweep,
            chosen=None if best is None else sweep.grid.points[best.point],
            one_run_epsilon=one_run_epsilon(bought.spends, session.event, delta),
        )
        chosen = () if sweep.shape_given else (f"shape = {sweep.runs.shape:g}, of the number of runs",)
        return Selected(stated, tuple(caveats(sweep, stated)), chosen)

    def _write(self, best: RunResult | None, said: Selected) -> None:
        if best is None:
            self.task.write(None, self.preprocessing, scores.none_for(self.preprocessing.encoder, NO_RUN), said)
            return
        winner = replace(self.task, settings=self.settings[best.point], plan=self.plans[best.point])
        own = _with_model(self.preprocessing, winner)
        own.save(self.task.folder.path / PREPROCESSING)
        winner.write(best.weights, own, best.facts["score"], said)

    def check(self) -> None:
        """Prepare every candidate for training once, so that one that cannot train raises before the runs begin.

        An error inside a run would reveal that this candidate was drawn, and the budget would be spent.
        """
        for point in range(len(self.plans)):
            task, sessions, own = self._prepared(point, Randomness.system())
            task.state(own, task.records(self.encoded.kept), sessions)

    def attempt(self, point: int, randomness: Randomness) -> RunResult:
        """Make one run."""
        task, sessions, own = self._prepared(point, randomness)
        state, found = task.trained(self.encoded, own, sessions)
        value = -math.inf if found["value"] is None else float(found["value"])
        if found["value"] is None and found.get("interval"):  # too uncertain to print, but good enough to rank by
            value = sum(found["interval"]) / 2
        return RunResult(point=point, score=value, facts={"score": found}, weights=state.model.state_dict())

    def _prepared(self, point: int, randomness: Randomness) -> tuple[TableTask, Sessions, Preprocessing]:
        """Return the task, sessions and preprocessing of one run, whose own ledger plans no more than was declared."""
        shared, plan, noise = self.task.ledger, self.plans[point], self.noise_multiplier
        task = replace(
            self.task,
            settings=self.settings[point],
            plan=plan,
            ledger=Ledger(neighboring_relation=shared.neighboring_relation, privacy_unit=shared.privacy_unit),
            randomness=randomness,
            progress=False,
            say=lambda words: None,
            mechanism=plan.calibrated.at(noise),
        )
        sessions = plan.register_run(task.ledger, noise, self.score_noise_multiplier(noise), task.public_settings)
        check_ledger(task.ledger, self.inner(noise))
        return task, sessions, _with_model(self.preprocessing, task)


def _with_model(preprocessing: Preprocessing, task: TableTask) -> Preprocessing:
    """Return the purchased preprocessing with the model of one candidate."""
    spec = ModelSpec.of(task.settings.model, task.plan.training.width, preprocessing.encoder)
    return msgspec.structs.replace(preprocessing, model=spec)


NO_RUN = "the number of runs drawn was 0, so there is nothing to score"
_DEFAULTS = {one.name: one.default for one in fields(TableSettings)}
