"""From a raw table to a private model, in one folder.

Place: source, plan, purchases, training, score, report -> [pipeline.train] -> command line. The order is what makes it
private: sessions are registered together, what is bought is written down, then the training starts. A run killed at any
instant goes on when it is asked for again with the same settings and data.
"""

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from tacita.accounting import Ledger
from tacita.clipping import FlatClipper
from tacita.errors import LedgerError, ResumeError
from tacita.mechanisms import GaussianMechanism
from tacita.methods import SuffixAverage
from tacita.oracles import ClippedGradientOracle, Records, trainable
from tacita.pipeline import report, rules, score
from tacita.pipeline.models import ModelSpec, check_model, loss_fn
from tacita.pipeline.plan import HELD_OUT, KEPT, SPLIT, Plan, Sessions
from tacita.pipeline.preprocessing import Preprocessing
from tacita.pipeline.purchases import survey
from tacita.pipeline.settings import TableSettings
from tacita.pipeline.source import Source, declared, private_rows, read, unit_in_words
from tacita.random import Randomness
from tacita.tables.budget import PurchasePlan
from tacita.tables.encoding import Encoded
from tacita.tables.readers import read_table
from tacita.tables.recipe import make_encoder
from tacita.tables.score import histograms
from tacita.tables.table import Table
from tacita.tables.units import cap_rows, held_out
from tacita.training.checkpoint import TrainingState
from tacita.training.files import RunFolder, remove, write_atomically
from tacita.training.fingerprint import data_fingerprint
from tacita.training.loop import Checkpoints, train
from tacita.training.progress import Progress

Say = Callable[[str], Any]
CONFIG = "config.toml"


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
    settings: TableSettings, *, say: Say = lambda words: None, progress: bool = False, randomness: Randomness | None = None
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
    check_model(settings.model)
    source = read(settings, declared(settings))
    plan = make_plan(settings, source)
    test = None if settings.test_file is None else _read_test(settings, source)
    folder = RunFolder(settings.output)
    randomness = _start(folder, settings, randomness)
    if (folder.path / report.STATEMENT).exists():  # it was killed while it tidied up
        return _finish(folder)
    _bind(folder, settings, source, randomness)
    ledger = Ledger(
        folder.ledger, neighboring_relation=settings.neighboring_relation, privacy_unit=unit_in_words(source.schema)
    )
    with ledger:
        return _Run(settings, source, plan, folder, ledger, randomness, say, progress).go(test)


def make_plan(settings: TableSettings, source: Source) -> Plan:
    """What will be registered: from the settings, the declarations, and the file's structure."""
    schema = source.schema
    buys_score = settings.test_file is None and not settings.non_private_holdout
    target = schema.target
    assert target is not None
    # a regression's score is two histograms; registered as two unless the task is declared
    regression = target.task != "classification" and target.classes is None
    return Plan(
        purchases=PurchasePlan(
            epsilon=settings.epsilon,
            delta=settings.delta,
            relation=settings.neighboring_relation,
            max_rows_per_unit=schema.max_rows_per_unit or 1,
        ),
        training=rules.training(settings),
        columns_to_buy=len(source.to_buy),
        score_histograms=(2 if regression else 1) if buys_score else 0,
        holds_out=settings.test_file is None,
    )


class _Run:
    """One run between its start and its statement."""

    def __init__(
        self,
        settings: TableSettings,
        source: Source,
        plan: Plan,
        folder: RunFolder,
        ledger: Ledger,
        randomness: Randomness,
        say: Say,
        progress: bool,
    ) -> None:
        self.settings, self.source, self.plan = settings, source, plan
        self.folder, self.ledger, self.randomness = folder, ledger, randomness
        self.say, self.progress = say, progress

    def go(self, test: Table | None) -> TableRun:
        table, kept, held = self._rows()
        public = {name: value for name, value in self.settings.to_dict().items() if name not in ("data", "output")}
        sessions = self.plan.register(self.ledger, public, secure=self.randomness.secure)
        self._say_plan(sessions)
        preprocessing = self._preprocessing(table, sessions)
        encoder = preprocessing.encoder
        with private_rows("encoding the rows"):
            rows = encoder.encode(table)
            public_rows = None if test is None else encoder.encode(test)
        state = self._state(preprocessing, rows, kept, sessions)
        self._train(state, preprocessing, public_rows)
        found = self._score(state, preprocessing, rows, held, public_rows, sessions)
        return self._write(state, preprocessing, found)

    def _rows(self) -> tuple[Table, np.ndarray, np.ndarray]:
        """The table of rows that count, and the numbers of the rows kept for the training and held out. Private."""
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
        return table, np.flatnonzero(kept), np.flatnonzero(out)

    def _say_plan(self, sessions: Sessions) -> None:
        planned = self.ledger.epsilon(self.settings.delta)
        if planned > self.settings.epsilon * (1 + 1e-9):
            raise LedgerError(f"the plan would spend epsilon {planned:.6g}, more than {self.settings.epsilon:g}.")
        training = self.plan.training
        self.say(
            f"plan: {training.queries} queries at sample rate {training.sample_rate:g}, clipping threshold "
            f"{training.max_grad_norm:g}, epsilon {planned:.4g} at delta {self.settings.delta:g} in all"
        )

    def _preprocessing(self, table: Table, sessions: Sessions) -> Preprocessing:
        path = self.folder.path / report.PREPROCESSING
        if path.exists():
            return Preprocessing.load(path)
        schema = self.source.schema
        found = survey(self.source, table, self.plan, sessions, self.randomness)
        encoder = make_encoder(schema, found, columns=self.source.names)
        rows = float(schema.rows) if schema.rows is not None else max(found.rows if found else 0.0, 1.0)
        spec = ModelSpec.of(self.settings.model, self.plan.training.width, encoder)
        preprocessing = Preprocessing(encoder=encoder, survey=found, model=spec, rows=rows)
        self.ledger.flush()
        preprocessing.save(path)
        self.say(f"bought: what is needed about {len(self.source.to_buy)} columns" if found else "bought: nothing about columns")
        return preprocessing

    def _num_records(self, preprocessing: Preprocessing, kept: np.ndarray) -> int:
        if self.settings.neighboring_relation != "add_or_remove_one":
            return max(len(kept), 1)  # the number of rows is public, and the coins know no row
        share = 1 - rules.HOLDOUT if self.plan.holds_out else 1.0
        return max(round(share * preprocessing.rows), 1)

    def _state(
        self, preprocessing: Preprocessing, rows: Encoded, kept: np.ndarray, sessions: Sessions
    ) -> TrainingState:
        assert sessions.train is not None and rows.target is not None
        training, event = self.plan.training, sessions.train.event
        seed = self.randomness.session_key("model").stream("first weights").seed()
        model = preprocessing.model.build(seed)
        dataset = (score.model_input(rows.features), rows.target, rows.valid.to(torch.float32))
        records = Records(
            dataset=dataset,
            rows=kept,
            part=self.plan.part(KEPT),
            max_rows_per_unit=self.plan.purchases.max_rows_per_unit,
        )
        oracle = ClippedGradientOracle(
            model,
            loss_fn(preprocessing.encoder.task),
            records,
            ledger=self.ledger,
            sampler=self.plan.sampler(self._num_records(preprocessing, kept)),
            clipper=FlatClipper(max_grad_norm=training.max_grad_norm),
            mechanism=_mechanism(self.plan, event),
            planned_queries=training.queries,
            session=sessions.train,
            randomness=self.randomness,
        )
        self._records = records
        encoder = preprocessing.encoder
        lr = self.learning_rate = rules.learning_rate(
            self.settings, encoder.task or "", encoder.num_features, training.max_grad_norm
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=rules.MOMENTUM)
        average = SuffixAverage(trainable(model), skip=training.queries - math.ceil(rules.TAIL * training.queries))
        return TrainingState(model, optimizer, oracle, average)

    def _train(self, state: TrainingState, preprocessing: Preprocessing, public_rows: Encoded | None) -> None:
        queries = self.plan.training.queries
        binding = data_fingerprint(state.oracle, self._records, state.optimizer)
        checkpoints = Checkpoints.planned(self.folder, state.oracle, binding)
        bar = Progress(self.ledger, delta=self.settings.delta, total=queries) if self.progress else None

        def note(made: int) -> None:
            if bar is not None and public_rows is not None and made % max(queries // 20, 1) == 0:
                value = score.exact_value(state.model, preprocessing.encoder, public_rows)
                bar.note = "" if value is None else f"{score.measure(preprocessing.encoder)} {value:.3f} on public rows"
                state.model.train()

        with bar or nullcontext():
            train(state, checkpoints=checkpoints, progress=bar, on_step=note)
        if not state.oracle.session.closed:
            state.oracle.session.close()

    def _score(
        self,
        state: TrainingState,
        preprocessing: Preprocessing,
        rows: Encoded,
        held: np.ndarray,
        public_rows: Encoded | None,
        sessions: Sessions,
    ) -> dict[str, Any] | None:
        model, encoder = state.model, preprocessing.encoder
        if public_rows is not None:
            return score.exact(model, encoder, public_rows, score.words_for(self.settings.test_file or ""))
        own = Encoded(rows.features[held], None if rows.target is None else rows.target[held], rows.valid[held])
        if sessions.score is None:
            return score.exact(model, encoder, own, "computed exactly on held-out rows, by --non-private-holdout")
        noise_std = self.plan.score_noise_std(sessions.score, histograms(encoder))
        return score.bought(model, encoder, own, sessions.score, noise_std, self.randomness)

    def _write(self, state: TrainingState, preprocessing: Preprocessing, found: dict[str, Any] | None) -> TableRun:
        self.ledger.flush()
        path = self.folder.path
        weights = {name: value.detach().contiguous().clone() for name, value in state.model.state_dict().items()}
        write_atomically(path / report.MODEL, safetensors.torch.save(weights))
        files = {name: report.file_sha256(path / name) for name in (report.MODEL, report.PREPROCESSING)}
        words = report.make_statement(
            self.ledger,
            self.settings.delta,
            source=self.source,
            plan=self.plan,
            preprocessing=preprocessing,
            chosen=self._chosen(),
            score=found,
            files=files,
        )
        write_atomically(path / report.TEXT, words.text.encode())
        write_atomically(path / report.STATEMENT, words.to_bytes())
        return _finish(self.folder)

    def _chosen(self) -> list[str]:
        """Settings that public rules chose, in words."""
        settings, words = self.settings, list(self.plan.training.chosen)
        if settings.lr is None:
            words.append(f"lr = {self.learning_rate:g}")
        words.append(f"optimizer = SGD, momentum {rules.MOMENTUM:g}, average of the last {rules.TAIL:.0%} of the iterates")
        if self.plan.holds_out:
            words.append(f"held out = {rules.HOLDOUT:.0%} of the rows, by coin")
        if self.plan.columns_to_buy:
            words.append("purchases = 0.3 of the total mu")
        if self.source.schema.privacy_unit is None:
            words.append(f"privacy_unit = {unit_in_words(self.source.schema)!r}")
        return words


def _mechanism(plan: Plan, event: Any) -> GaussianMechanism:
    """The mechanism whose event is the one registered: its multiplier, recovered to the last bit."""
    sensitivity = plan.train_event(1.0).noise_std[0]  # type: ignore[attr-defined]
    guess = event.noise_std[0] / sensitivity
    near = [guess]
    for _ in range(4):
        near = [math.nextafter(near[0], 0.0), *near, math.nextafter(near[-1], math.inf)]
    return GaussianMechanism(noise_multiplier=next(x for x in near if plan.train_event(x) == event))


def _read_test(settings: TableSettings, source: Source) -> Table:
    assert source.schema.target is not None
    with private_rows("reading the test file"):
        try:
            return read_table(
                settings.test_file or "", source.schema.reading, only=(*source.names, source.schema.target.column)
            )
        except ValueError as error:
            raise type(error)(f"test_file: {error}") from None


def _start(folder: RunFolder, settings: TableSettings, randomness: Randomness | None) -> Randomness:
    """Begin a run, or go on with one that was stopped here."""
    config = folder.path / CONFIG
    if folder.unfinished:
        if config.exists() and _without_paths(config) != _plain(settings):
            raise ResumeError(
                f"output {folder.path.name!r} holds an unfinished run with other settings: repeat those, or choose another folder."
            )
        found = Randomness.load(folder.key)
    else:
        folder.start()
        found = randomness or Randomness.system()
        found.save(folder.key)
    if not config.exists():
        write_atomically(config, settings.to_toml().encode())
    return found


def _plain(settings: TableSettings) -> dict[str, Any]:
    return {name: value for name, value in settings.to_dict().items() if name != "output"}


def _without_paths(config: Path) -> dict[str, Any]:
    return _plain(TableSettings.from_toml(config.read_text(encoding="utf-8")))


def _bind(folder: RunFolder, settings: TableSettings, source: Source, randomness: Randomness) -> None:
    """Hold the data and the schema against those the run started with, by a keyed tag that never leaves ``private/``."""
    path = folder.private / "input.json"
    declared_words = json.dumps(source.schema.to_dict(), sort_keys=True, default=str).encode()
    with private_rows("reading the table"):
        content = Path(settings.data).read_bytes()
        tag = randomness.session_key("input").tag("input", parts=[declared_words, content])
    if not path.exists():
        write_atomically(path, json.dumps({"tag": tag}).encode(), mode=0o600)
    elif json.loads(path.read_bytes())["tag"] != tag:
        raise ResumeError("data or schema are not those that the run in output started with: restore them, or choose another folder.")


def _finish(folder: RunFolder) -> TableRun:
    """Remove what is private, the key last, and return the run."""
    remove(folder.private / "input.json")
    folder.finish()
    words = (folder.path / report.TEXT).read_text(encoding="utf-8")
    return TableRun(folder.path, words, report.read_statement(folder.path))
