"""From a raw table to a private model, in one folder.

Place: source, plan, purchases, training, score, report -> [pipeline.train] -> command line. The order is what makes it
private: sessions are registered together, what is bought is written down, then the training starts. A run killed at any
instant goes on when it is asked for again with the same settings and data.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from tacita._files import replace_durably
from tacita.accounting import Ledger
from tacita.clipping import FlatClipper
from tacita.errors import DataStructureError, LedgerError
from tacita.estimators import GridSum
from tacita.gradients import LinearSource
from tacita.gradients.functional import LossFn
from tacita.mechanisms import CalibratedGaussian, Mechanism
from tacita.methods import SuffixAverage
from tacita.oracles import ClippedGradientOracle, GradientOracle, Records, trainable
from tacita.pipeline import folder as folders
from tacita.pipeline import report, rules, score
from tacita.pipeline.models import ModelSpec, check_model, closed_form, loss_fn
from tacita.pipeline.plan import KEPT, SPLIT, Plan, Sessions
from tacita.pipeline.preprocessing import Preprocessing
from tacita.pipeline.purchases import survey
from tacita.pipeline.register import record, recorded
from tacita.pipeline.settings import TableSettings
from tacita.pipeline.source import Source, declared, private_rows, read, read_test, unit_in_words
from tacita.random import Randomness
from tacita.tables.encoding import Encoded
from tacita.tables.recipe import make_encoder
from tacita.tables.score import histograms
from tacita.tables.table import Table
from tacita.tables.units import cap_rows, held_out
from tacita.training.checkpoint import TrainingState
from tacita.training.fingerprint import data_fingerprint
from tacita.training.folder import RunFolder
from tacita.training.loop import Checkpoints, train
from tacita.training.progress import Progress

Say = Callable[[str], Any]


@dataclass(frozen=True)
class TableRun:
    """A finished run.

    Attributes:
        folder: Where it is.
        statement: Its statement, in words.
        fields: Its statement, as JSON values.
    """

    folder: Path
    statement: str
    fields: dict[str, Any]


def train_table(
    settings: TableSettings,
    *,
    say: Say = lambda words: None,
    progress: bool = False,
    randomness: Randomness | None = None,
) -> TableRun:
    """Train on a table so that everything together is (epsilon, delta)-differentially private.

    Args:
        settings: All of them public.
        say: Called with a line of public words at every stage.
        progress: Show a bar on the error stream.
        randomness: Only tests hand it in; the statement then says that the run is not private.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        DataStructureError: The file's structure is not the declared one. What rows hold never raises.
        ResumeError: The folder holds a finished run, or one with other settings or data.
    """
    if settings.sweep is not None:
        raise ValueError("sweep is for tacita.selection.sweep_table, which chooses among runs: leave it out here.")
    check_model(settings.model)
    source = read(settings, declared(settings))
    plan = Plan.of(settings, source)
    test = None if settings.test_file is None else read_test(settings.test_file, source)
    return in_folder(
        settings, source, plan, lambda task: task.go(test), say=say, progress=progress, randomness=randomness
    )


def in_folder(
    settings: TableSettings,
    source: Source,
    plan: Plan,
    work: "Callable[[TableTask], None]",
    *,
    say: Say,
    progress: bool,
    randomness: Randomness | None,
) -> TableRun:
    """Begin the run of ``settings`` in its folder, or go on with it; do ``work``; leave nothing private behind."""
    folder = RunFolder(settings.output)
    randomness = folders.start(folder, settings, randomness)
    if not folders.tidying(folder):
        folders.bind(folder, settings, source, randomness)
        with Ledger(
            folder.ledger,
            neighboring_relation=settings.neighboring_relation,
            privacy_unit=unit_in_words(source.schema),
        ) as ledger:
            record(settings, randomness)
            work(TableTask(settings, source, plan, folder, ledger, randomness, say, progress))
    folders.finish(folder)
    words = (folder.path / report.TEXT).read_text(encoding="utf-8")
    return TableRun(folder.path, words, report.read_statement(folder.path))


@dataclass(frozen=True)
class Rows:
    """Encoded rows, and what they are for. Private, but for ``public``."""

    table: Table = field(repr=False)
    kept: np.ndarray = field(repr=False)  # numbers of the rows to train on
    held: np.ndarray = field(repr=False)  # numbers of the rows held out
    test: Table | None = field(repr=False)  # declared public


@dataclass(frozen=True)
class EncodedRows:
    """Rows as features and targets."""

    private: Encoded = field(repr=False)
    public: Encoded | None = field(repr=False)  # of the table declared public


@dataclass
class TableTask:
    """One run between its start and its statement; or one of several that a selection makes.

    Attributes:
        settings, source, plan, folder, ledger, randomness, say, progress: As in :func:`train_table`.
        mechanism: The training's noise, if somebody else calibrated it; without checkpoints then.
        notes: What the statement has to say of the training, once it is done.
    """

    settings: TableSettings
    source: Source
    plan: Plan
    folder: RunFolder
    ledger: Ledger
    randomness: Randomness
    say: Say
    progress: bool
    mechanism: Mechanism | None = None
    notes: list[str] = field(default_factory=list)

    def go(self, test: Table | None) -> None:
        """From the rows to the statement."""
        rows = self.deal(test)
        sessions = self.register()
        preprocessing = self.preprocess(rows, sessions)
        state, found = self.trained(rows, self.encoded(rows, preprocessing), preprocessing, sessions)
        self.write(state.model.state_dict(), preprocessing, found)

    def trained(
        self, rows: Rows, encoded: EncodedRows, preprocessing: Preprocessing, sessions: Sessions
    ) -> tuple[TrainingState, dict[str, Any]]:
        """Train, then score."""
        records = self.records(encoded.private, rows)
        state = self.ready(preprocessing, records, sessions)
        self._train(state, records, preprocessing, encoded.public)
        held = encoded.public or _taken(encoded.private, rows.held)
        return state, self._score(state, preprocessing, held, sessions)

    def encoded(self, rows: Rows, preprocessing: Preprocessing) -> EncodedRows:
        """All rows as features and targets."""
        with private_rows("encoding the rows"):
            encoder = preprocessing.encoder
            public = None if rows.test is None else encoder.encode(rows.test)
            return EncodedRows(encoder.encode(rows.table), public)

    def deal(self, test: Table | None) -> Rows:
        """Drop rows beyond a person's cap, and hold rows out by coin: each row's own, or its person's."""
        schema, table = self.source.schema, self.source.table
        key = self.randomness.session_key(SPLIT)
        with private_rows("dealing out the rows"):
            if schema.unit is not None:
                table = cap_rows(table, schema.unit, schema.max_rows_per_unit or 1, schema.missing, key)
            out = np.zeros(table.num_rows, dtype=bool)
            if self.plan.holds_out:
                out = held_out(table, rules.HOLDOUT, key, unit=schema.unit, missing=schema.missing)
        kept = ~out
        if self.settings.neighboring_relation == "add_or_remove_one":
            kept &= table.valid  # rows that do not count need no place; elsewhere the number of rows is public
        return Rows(table, np.flatnonzero(kept), np.flatnonzero(out), test)

    @property
    def public_settings(self) -> dict[str, Any]:
        """What the sessions are bound to: not the step size, but in a sweep, where runs must be alike."""
        bound = folders.bound_settings(self.settings)
        return {name: value for name, value in bound.items() if name not in ("data", "output")}

    def register(self) -> Sessions:
        """Register the sessions of the plan, or find them."""
        sessions = self.plan.register(self.ledger, self.public_settings, secure=self.randomness.secure)
        planned, asked = self.ledger.epsilon(self.settings.delta), self.settings.epsilon
        if planned > asked * (1 + 1e-9):
            raise LedgerError(f"the plan would spend epsilon {planned:.6g}, more than {asked:g}.")
        training = self.plan.training
        self.say(
            f"plan: {training.queries} queries at sample rate {training.sample_rate:g}, clipping threshold "
            f"{training.max_grad_norm:g}; epsilon {asked:g} at delta {self.settings.delta:g} for everything together"
        )
        return sessions

    def preprocess(self, rows: Rows, sessions: Sessions) -> Preprocessing:
        """Buy what is not declared, and write it down before the training starts; or read what was written."""
        path = self.folder.path / report.PREPROCESSING
        if path.exists():
            if sessions.survey is not None and not sessions.survey.closed:
                raise LedgerError(f"{self.ledger!r} does not match the run: it lacks the purchases that were made.")
            return Preprocessing.load(path)
        schema = self.source.schema
        found = survey(self.source, rows.table, self.plan, sessions, self.randomness)
        encoder = make_encoder(schema, found, columns=self.source.names)
        count = float(schema.rows) if schema.rows is not None else max(found.rows if found else 0.0, 1.0)
        spec = ModelSpec.of(self.settings.model, self.plan.training.width, encoder)
        preprocessing = Preprocessing(encoder=encoder, survey=found, model=spec, rows=count)
        self.ledger.flush()
        preprocessing.save(path)
        what = f"what is needed of {len(self.source.to_buy)} columns" if found else "nothing: all is declared"
        self.say(f"bought: {what}")
        return preprocessing

    def records(self, encoded: Encoded, rows: Rows) -> Records:
        """The rows to train on."""
        assert encoded.target is not None
        return Records(
            dataset=(score.model_input(encoded.features), encoded.target, encoded.valid.to(torch.float32)),
            rows=rows.kept,
            part=self.plan.part(KEPT),
            max_rows_per_unit=self.plan.purchases.max_rows_per_unit,
        )

    def ready(self, preprocessing: Preprocessing, records: Records, sessions: Sessions) -> TrainingState:
        """The training before its first query."""
        loss = loss_fn(preprocessing.encoder.task)
        return self.state(self.untrained(preprocessing), loss, records, preprocessing=preprocessing, sessions=sessions)

    def untrained(self, preprocessing: Preprocessing) -> nn.Module:
        """The model with its first weights."""
        return preprocessing.model.build(self.randomness.session_key("model").stream("first weights").seed())

    def state(
        self, model: nn.Module, loss: LossFn, records: Records, *, preprocessing: Preprocessing, sessions: Sessions
    ) -> TrainingState:
        """What trains ``model`` on ``records`` by the settings."""
        training, encoder = self.plan.training, preprocessing.encoder
        shared: dict[str, Any] = {
            "ledger": self.ledger,
            "sampler": self.plan.sampler(self._num_records(preprocessing, records)),
            "mechanism": self.mechanism
            or CalibratedGaussian(
                target_epsilon=self.settings.epsilon, target_delta=self.settings.delta, form=self.plan.form
            ),
            "planned_queries": training.queries,
            "settings": self.public_settings,
            "session": sessions.train,
            "randomness": self.randomness,
        }
        oracle = _oracle(model, loss, records, FlatClipper(max_grad_norm=training.max_grad_norm), shared)
        lr = rules.learning_rate(self.settings, encoder)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=rules.MOMENTUM)
        average = SuffixAverage(trainable(model), skip=training.queries - math.ceil(rules.TAIL * training.queries))
        return TrainingState(model, optimizer, oracle, average)

    def _num_records(self, preprocessing: Preprocessing, records: Records) -> int:
        """For the divisor: declared or bought, less what is held out."""
        if self.settings.neighboring_relation != "add_or_remove_one":
            if not len(records.rows):  # the number of rows is public here, and the coins know no row
                raise DataStructureError(
                    f"data must have a row to train on under {self.settings.neighboring_relation}, and none is left. "
                    "With add_or_remove_one a table may be empty."
                )
            return len(records.rows)
        share = 1 - rules.HOLDOUT if self.plan.holds_out else 1.0
        return max(round(share * preprocessing.rows), 1)

    def _train(
        self, state: TrainingState, records: Records, preprocessing: Preprocessing, public: Encoded | None
    ) -> None:
        queries, encoder = self.plan.training.queries, preprocessing.encoder
        checkpoints = None
        if self.mechanism is None:
            checkpoints = Checkpoints.planned(self.folder, state.oracle, data_fingerprint(state.oracle, records))
        bar = Progress(self.ledger, delta=self.settings.delta, total=queries) if self.progress else None

        def note(made: int) -> None:
            """A curve on rows declared public, and on no others."""
            if bar is not None and public is not None and made % max(queries // 20, 1) == 0:
                self.ledger.flush()  # before anything of the releases is shown
                value = score.exact_value(state.model, encoder, public)
                bar.note = "" if value is None else f"{score.measure(encoder)} {value:.3f} on public rows"
                state.model.train()

        with bar or nullcontext():
            train(state, checkpoints=checkpoints, progress=bar, on_step=note)
        self.notes = state.changes_in_words()
        if not state.oracle.session.closed:
            state.oracle.session.close()

    def _score(
        self, state: TrainingState, preprocessing: Preprocessing, rows: Encoded, sessions: Sessions
    ) -> dict[str, Any]:
        model, encoder = state.model, preprocessing.encoder
        if self.settings.test_file is not None:
            return score.exact(model, encoder, rows, score.words_for(self.settings.test_file))
        if sessions.score is None:
            return score.exact(model, encoder, rows, "computed exactly on held-out rows, by --non-private-holdout")
        with private_rows("scoring the held-out rows"):
            counts = score.exact_counts(model, encoder, rows, alone=self.plan.form.on_grid)
        noise_std = self.plan.score_noise_std(sessions.score, histograms(encoder))
        return score.bought(encoder, counts, sessions.score, noise_std, self.randomness)

    def write(
        self,
        weights: Mapping[str, Tensor] | None,
        preprocessing: Preprocessing,
        found: Mapping[str, Any],
        selection: report.Selected | None = None,
    ) -> None:
        """Weights, then what is said about them: the statement's JSON last, since it says that the run is finished."""
        self.ledger.flush()
        path = self.folder.path
        written = [report.PREPROCESSING]
        if weights is not None:
            owned = {name: value.detach().contiguous().clone() for name, value in weights.items()}
            replace_durably(path / report.MODEL, safetensors.torch.save(owned))
            written.append(report.MODEL)
        words = report.make_statement(
            self.ledger,
            self.settings,
            source=self.source,
            plan=self.plan,
            preprocessing=preprocessing,
            score=found,
            files={name: report.file_sha256(path / name) for name in written},
            selection=selection,
            dataset=recorded(self.settings, self.randomness),
            notes=self.notes,
        )
        replace_durably(path / report.TEXT, words.text.encode())
        replace_durably(path / report.STATEMENT, words.to_bytes())


def _oracle(
    model: nn.Module, loss: LossFn, records: Records, clipper: FlatClipper, shared: dict[str, Any]
) -> GradientOracle:
    """Hardened, each row is computed alone: linear models in closed form, others in a loop."""
    if not shared["mechanism"].on_grid:
        return ClippedGradientOracle(model, loss, records, clipper=clipper, **shared)
    kind = closed_form(model, loss)
    if kind is None:
        return ClippedGradientOracle(model, loss, records, clipper=clipper, method="loop", **shared)
    return GradientOracle(
        LinearSource(cast(nn.Linear, model), kind, cast(Any, records.dataset)),
        estimator=GridSum(clipper, together=False),
        rows=records.rows,
        part=records.part,
        max_rows_per_unit=records.max_rows_per_unit,
        **shared,
    )


def _taken(encoded: Encoded, rows: np.ndarray) -> Encoded:
    """Some of the rows."""
    target = None if encoded.target is None else encoded.target[rows]
    return Encoded(encoded.features[rows], target, encoded.valid[rows])
