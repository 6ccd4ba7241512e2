"""The work of a run on a table: deal, buy, encode, train, score, state.

The order makes it private. All sessions are registered together before the first release, and what is bought is written
down before the training starts.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacita.errors import DataStructureError, LedgerError, TacitaError
from tacita.gradients.functional import LossFn
from tacita.ledger import Ledger, Statement
from tacita.ledger.text_lines import rounded_up
from tacita.mechanisms import Mechanism
from tacita.oracles import Records
from tacita.oracles.records import num_rows
from tacita.random import Randomness
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_facts
from tacita.runs.sealed_run import publish
from tacita.tables import held_out_score as score
from tacita.tables import rules
from tacita.tables.additive import FilteredSteps, row_weight, start
from tacita.tables.dry_run import what_survives
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.encoded_rows import EncodedRows, encode_rows
from tacita.tables.encoder_rules import make_additive_encoder, make_encoder, public_rows
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.final_constant import set_constant
from tacita.tables.lost_rows import nothing_to_train_on, rare_class, unknown_targets, wrong_targets
from tacita.tables.models import ModelSpec, loss_fn
from tacita.tables.plan import KEPT, SPLIT, Sessions, TablePlan
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.purchases import TablePurchases
from tacita.tables.score import largest_error
from tacita.tables.settings import CONFIG, TableSettings, bound_settings
from tacita.tables.source import TableSource, private_rows
from tacita.tables.survey import Survey
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile
from tacita.tables.table_oracle import make_table_oracle
from tacita.tables.table_statement import PREPROCESSING, Selected, classes_as_given, make_statement, what_was_bought
from tacita.tables.units import cap_rows
from tacita.training.chosen_settings import ChosenSettings, chosen_average
from tacita.training.fingerprint import data_fingerprint
from tacita.training.loop import Checkpoints, train
from tacita.training.progress import Progress

Say = Callable[[str], Any]
ANOTHER_RUN = (
    "A run with other settings has a budget of its own: give it another --output. It spends on the same rows again: "
    "the epsilons and deltas of both runs add up."
)
MENDED = "Mend the file and repeat the same command: the run goes on, and pays for nothing twice."


@dataclass
class TableTask:
    """One run between its start and its statement, or one of several runs that a selection makes.

    Attributes:
        settings, say, progress: As in :func:`~tacita.tables.train_table`.
        source: The table and what is declared about it.
        plan: The sessions to register.
        folder: The run's folder.
        ledger: Pays for everything.
        randomness: The run's key.
        fingerprint: That of the data for the statement, from before they are read; no reading survives a change.
        mechanism: The noise of the training, if somebody else calibrated it; the training then writes no checkpoints.
        notes: What the statement says about the training, once it is done.
    """

    settings: TableSettings
    source: TableSource
    plan: TablePlan
    folder: RunFolder
    ledger: Ledger
    randomness: Randomness
    say: Say
    progress: bool
    fingerprint: str | None = None
    mechanism: Mechanism | None = None
    notes: list[str] = field(default_factory=list)

    def go(self, test: Table | None) -> None:
        """Do all the work, from the rows to the statement; ``test`` is a table that the user declares public."""
        table = self.capped()
        sessions = self.register()
        preprocessing = self.preprocess(table, sessions)
        state, found = self.trained(self.encoded(table, test, preprocessing), preprocessing, sessions)
        self.write(state.model.state_dict(), preprocessing, found)

    def capped(self) -> TableFile:
        """Return the private table, without each person's rows beyond the cap."""
        schema, table = self.source.schema, self.source.table
        if schema.unit is None:
            return table
        key = self.randomness.session_key(SPLIT)
        with private_rows("dealing out the rows"):
            return cap_rows(table, schema.unit, schema.max_rows_per_unit or 1, schema.missing, key)

    @property
    def public_settings(self) -> dict[str, Any]:
        """The settings that the sessions are bound to."""
        bound = bound_settings(self.settings)
        return {name: value for name, value in bound.items() if name not in ("data", "output")}

    def register(self) -> Sessions:
        """Register the sessions of the plan, or find them in the ledger of a resumed run."""
        sessions = self.plan.register(self.ledger, self.public_settings, secure=self.randomness.secure)
        planned, asked = self.ledger.epsilon(self.settings.delta), self.settings.epsilon
        if planned > asked * (1 + 1e-9):
            raise LedgerError(f"the plan would spend epsilon {planned:.6g}, more than {asked:g}.")
        training = self.plan.training
        self.say(
            f"plan: {training.queries} queries at sample rate {training.sample_rate:g}, clipping threshold "
            f"{training.max_grad_norm:g}; epsilon {asked:g} at delta {self.settings.delta:g} for everything together"
        )
        for words in (*what_survives(self.plan), *classes_as_given(self.source)):
            self.say(words)
        return sessions

    def preprocess(self, table: TableFile, sessions: Sessions) -> Preprocessing:
        """Buy what is not declared, or read it in a resumed run.

        Raises:
            TacitaError: What was bought shows that there is nothing to train on.
        """
        preprocessing = self._bought(table, sessions)
        if (why := nothing_to_train_on(preprocessing, self.source)) is not None:
            raise self._stopped(f"nothing to train on: {why}", ANOTHER_RUN)
        noise = None if sessions.score is None else self.plan.score_noise_std(sessions.score)
        for words in rare_class(preprocessing, noise, balanced=self.settings.balanced):
            self.say(words)
        return preprocessing

    def _stopped(self, why: str, way: str) -> TacitaError:
        """Return the error that ends a run before its training: the reason, what was spent, and the way out."""
        spent, asked = rounded_up(self.ledger.epsilon_spent(self.settings.delta)), self.settings.epsilon
        return TacitaError(
            f"{why}. Stopped before the training; what was bought has spent epsilon {spent} of {asked:g}. {way}"
        )

    def _bought(self, table: TableFile, sessions: Sessions) -> Preprocessing:
        """Buy what is not declared, and write it down before the training starts; in a resumed run, read it."""
        path = self.folder.path / PREPROCESSING
        if path.exists():
            if any(one is not None and not one.closed for one in (sessions.rows, sessions.survey)):
                raise LedgerError(f"{self.ledger!r} does not match the run: it lacks the purchases that were made.")
            return Preprocessing.load(path)
        schema = self.source.schema
        purchases = TablePurchases(self.source, table, self.plan, sessions, self.randomness)
        counted, target = purchases.rows_and_task(), schema.target
        if counted is not None:
            task = (target and target.task) or counted.task
            if (why := wrong_targets(counted.kinds, self.source, task)) is not None:
                raise self._stopped(why, ANOTHER_RUN)
        found = purchases.survey(counted)
        encoder = self._encoder(found)
        spec = ModelSpec.of(self.settings.model, self.plan.training.width, encoder)
        preprocessing = Preprocessing(encoder=encoder, survey=found, model=spec, rows=public_rows(schema, found))
        self.ledger.flush()
        preprocessing.save(path)
        for words in what_was_bought(preprocessing, self.source):
            self.say(words)
        return preprocessing

    def _encoder(self, found: Survey | None) -> Encoder:
        """Return what turns cells into features, by the kind of model."""
        schema, names = self.source.schema, self.source.names
        by_row = self.plan.purchases.total_mu / self.plan.purchases.max_rows_per_unit
        if self.settings.model == "additive":
            assert found is not None
            return make_additive_encoder(schema, found, columns=names, total_mu=by_row)
        return make_encoder(schema, found, columns=names, total_mu=by_row)

    def encoded(self, table: TableFile, test: Table | None, preprocessing: Preprocessing) -> EncodedRows:
        """Turn all rows into features and targets, in files, and hold some of them out by coin.

        Raises:
            TacitaError: The model can predict no target of ``test``.
        """
        encoded = encode_rows(
            table,
            test,
            preprocessing.encoder,
            self.source.schema,
            key=self.randomness.session_key(SPLIT),
            holds_out=self.plan.holds_out,
            keeps_invalid=self.settings.neighboring_relation != "add_or_remove_one",
            by_class=self.loss_weights(preprocessing),
            folder=self.folder.private,
        )
        if test is None or encoded.public is None:
            return encoded
        if (words := unknown_targets(preprocessing.encoder, test, encoded.public)) is not None:
            if not encoded.public.valid.any():
                raise self._stopped(words, ANOTHER_RUN if self.settings.sweep is not None else MENDED)
            self.say(f"{words}. Each counts as wrong")
        return encoded

    def loss_weights(self, preprocessing: Preprocessing) -> Tensor | None:
        """Return what the loss of a row is multiplied by, a number or one for each class; ``None`` for 1.

        With ``balanced`` it is at most 1, from bought counts; for an additive model it sets the bound on a residual.
        """
        if preprocessing.model.name == "additive":
            return torch.tensor(row_weight(preprocessing.encoder, self.plan.training.max_grad_norm))
        counts = list(preprocessing.label_counts.values())
        if not self.settings.balanced or len(counts) < 2:
            return None
        return torch.tensor([min(counts) / count for count in counts], dtype=torch.float32)

    def trained(
        self, encoded: EncodedRows, preprocessing: Preprocessing, sessions: Sessions
    ) -> tuple[TrainingState, dict[str, Any]]:
        """Train, then score; return the trained state and the statement's fields of the score."""
        records = self.records(encoded.kept)
        state = self.state(preprocessing, records, sessions)
        self._train(state, records, preprocessing, encoded.public)
        return state, self._score(state, preprocessing, encoded, sessions)

    def records(self, kept: EncodedFile) -> Records:
        """Return the rows to train on as the records of an oracle."""
        return Records(
            dataset=kept,
            part=self.plan.part(KEPT),
            max_rows_per_unit=self.plan.purchases.max_rows_per_unit,
        )

    def untrained(self, preprocessing: Preprocessing) -> nn.Module:
        """Return the model with its first weights."""
        model = preprocessing.model.build(self.randomness.session_key("model").stream("first weights").seed())
        if preprocessing.model.name == "additive":
            start(cast(nn.Linear, model), preprocessing)
        return model

    def state(
        self,
        preprocessing: Preprocessing,
        records: Records,
        sessions: Sessions,
        model: nn.Module | None = None,
        loss: LossFn | None = None,
    ) -> TrainingState:
        """Return what trains a model on ``records`` by the settings: oracle, optimizer and average.

        Model and loss are the run's own if they are not given.
        """
        training, settings = self.plan.training, self.settings
        model = self.untrained(preprocessing) if model is None else model
        oracle = make_table_oracle(
            model,
            loss or loss_fn(preprocessing.encoder.task),
            records,
            self.plan,
            ledger=self.ledger,
            sampler=self.plan.sampler(self._num_records(preprocessing, records)),
            mechanism=self.mechanism or self.plan.calibrated,
            planned_queries=training.queries,
            settings=self.public_settings,
            session=sessions.train,
            randomness=self.randomness,
        )
        encoder, rows = preprocessing.encoder, preprocessing.rows
        if preprocessing.model.name == "additive":
            optimizer = FilteredSteps(
                cast(nn.Linear, model),
                preprocessing,
                queries=training.queries,
                sample_rate=training.sample_rate,
                noise_std=max(oracle.noise_std.values()) / oracle.divisor,
                weight=row_weight(encoder, training.max_grad_norm),
            )
        else:
            lr = rules.learning_rate(settings, encoder, rows)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=rules.MOMENTUM)
        average = chosen_average(settings.average or rules.AVERAGE, oracle, model, ChosenSettings())
        return TrainingState(model, optimizer, oracle, average)

    def _num_records(self, preprocessing: Preprocessing, records: Records) -> int:
        """Return the number of records for the divisor: declared or bought, less the share that is held out."""
        if self.settings.neighboring_relation != "add_or_remove_one":
            if not num_rows(records):  # the number of rows is public here, and the coins know no row
                raise DataStructureError(
                    f"data must have a row to train on under {self.settings.neighboring_relation}, and none is left. "
                    "With add_or_remove_one a table may be empty."
                )
            return num_rows(records)
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
            """Show the score on rows declared public, and on no others."""
            if bar is not None and public is not None and made % max(queries // 20, 1) == 0:
                self.ledger.flush()  # before anything of the releases is shown
                value = score.exact_value(state.model, encoder, [public])
                bar.note = "" if value is None else f"{score.measure(encoder)} {value:.3f} on public rows"
                state.model.train()

        with bar or nullcontext():
            train(state, checkpoints=checkpoints, progress=bar, on_step=note)
        self.notes = state.changes_in_words()
        set_constant(state.model, preprocessing, self.settings, self.plan.training.max_grad_norm)
        if not state.oracle.session.closed:
            state.oracle.session.close()

    def _score(
        self, state: TrainingState, preprocessing: Preprocessing, encoded: EncodedRows, sessions: Sessions
    ) -> dict[str, Any]:
        model, encoder, alone = state.model, preprocessing.encoder, self.plan.form.on_grid
        if self.settings.test_file is not None:
            how = score.words_for(self.settings.test_file)
            return score.exact(model, encoder, encoded.scored(), how, public=True)
        if sessions.score is None:
            how = "computed exactly on held-out rows, by --non-private-holdout"
            return score.exact(model, encoder, encoded.scored(), how, public=False)
        noise_std = self.plan.score_noise_std(sessions.score)
        largest = largest_error(noise_std, rules.HOLDOUT * preprocessing.rows)
        centre = 0.0 if self.settings.balanced else preprocessing.log_odds
        coins = self.randomness.session_key(SPLIT).stream("rounding", sessions.score.id)
        with private_rows("scoring the held-out rows"):
            together = score.exact_counts(
                model, encoder, encoded.scored(), coins=coins, largest=largest, centre=centre, alone=alone
            )
        return score.bought(
            encoder,
            together,
            sessions.score,
            noise_std,
            self.randomness,
            guess=preprocessing.guess,
            largest=largest,
            centre=centre,
        )

    def write(
        self,
        weights: Mapping[str, Tensor] | None,
        preprocessing: Preprocessing,
        found: Mapping[str, Any],
        selection: Selected | None = None,
    ) -> None:
        """Write the weights, then the statement, then the seal of the ledger over all; the seal finishes the run."""

        def make(files: dict[str, str]) -> Statement:
            return make_statement(
                self.ledger,
                self.settings,
                source=self.source,
                plan=self.plan,
                preprocessing=preprocessing,
                score=found,
                files=files,
                fingerprint=self.fingerprint,
                selection=selection,
                dataset=self.settings.listed(self.ledger.privacy_unit).stated(self.randomness),
                run=run_facts(self.randomness),
                notes=self.notes,
            )

        publish(self.ledger, make, weights=weights, files=(PREPROCESSING, CONFIG))
