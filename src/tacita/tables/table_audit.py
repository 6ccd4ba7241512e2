"""Audit a table's training in one run: train again with canaries, and publish no model.

The second training has the settings, purchases, noise and queries of the first, a ledger of its own, and no key on
disk: its randomness lives in this process alone. The trained model is dropped; the ledger, its statement and the
result stay. An audit that is killed cannot be resumed; what it spent stands in its ledger.

Canary rows are rows that an attacker could add to a table, with cells at the edges of what the encoder accepts. They
follow from the encoder, which is public, and from random bits that belong to no row. Nothing about them depends on
the table.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tacita._files import replace_durably
from tacita.ledger import Statement, statement
from tacita.oracles import Records, trainable
from tacita.random import Randomness, Stream
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import TEXT
from tacita.tables import rules
from tacita.tables.encoding import Encoder
from tacita.tables.features import (
    ArrayPiece,
    BinsPiece,
    CategoryPiece,
    ClassTarget,
    NumberPiece,
    NumberTarget,
    ScatteringPiece,
)
from tacita.tables.models import check_model, loss_fn
from tacita.tables.plan import TablePlan
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.run_audit import RESULT
from tacita.tables.settings import TableSettings
from tacita.tables.source import check_additive, declared_schema, open_source, private_rows, unit_in_words
from tacita.tables.table import ArrayColumn, Column, NumberColumn, Table, TextColumn
from tacita.tables.table_statement import list_purchases
from tacita.tables.table_task import Say, TableTask
from tacita.testing.one_run.attacks import Attack, FinalLoss, GradientMatch, OwnParameter
from tacita.testing.one_run.canaries import CanaryTrial, insert, plant
from tacita.testing.one_run.report import OneRunAudit
from tacita.testing.one_run.training import check_numbers, judged, train_with_canaries

CanaryKind = Literal["planted", "rows"]
AttackKind = Literal["white_box", "black_box"]
CAVEATS = (
    "This is an audit: it trained again with canaries among the rows, and published no model. What it spent adds up "
    "with what every other training on the same rows spent.",
    "The audit's result is computed from the releases of this ledger alone; a result of 'refuted' means that they, "
    "too, cost more than is stated here.",
)


@dataclass(frozen=True)
class TableAudit:
    """A finished audit.

    Attributes:
        result: The claim, the lower bound and the verdict.
        statement: The statement of the audit's own ledger, in words.
        folder: The folder of the ledger, the statement and the result.
    """

    result: OneRunAudit
    statement: str
    folder: Path


def audit_table(
    settings: TableSettings,
    *,
    canaries: int = 1000,
    kind: CanaryKind = "planted",
    attack: AttackKind = "white_box",
    confidence: float = 0.95,
    guesses: int | None = None,
    say: Say = lambda words: None,
    randomness: Randomness | None = None,
) -> TableAudit:
    """Train again by ``settings`` with canaries in the data, and compare the claimed epsilon with what was measured.

    The claim that is tested is that of the training session, at the settings' delta, because canaries are put in after
    the purchases. Guarantee of the lower bound: see :func:`~tacita.testing.one_run_bound`.

    Args:
        settings: The settings of a run, with ``output`` replaced by a new folder for the audit.
        canaries: The number of canaries, >= 50. A fair coin decides whether each is in the data; real rows have no
            coin.
        kind: ``"planted"`` gives each canary a parameter of its own, the worst case of the accounting; ``"rows"`` adds
            rows of the table's form with extreme cells and random targets.
        attack: For ``"rows"``: guess by all releases (``"white_box"``) or by the final model's loss (``"black_box"``).
        confidence: The confidence of the lower bound.
        guesses: The number of canaries that are guessed; ``None`` tries six numbers.
        say: Called with a line of public words at every stage.
        randomness: Only tests hand it in; the statement then says that the run is not private.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        DataStructureError: The file's structure is not the declared one.
        ResumeError: ``settings.output`` holds something already.
    """
    check_numbers(canaries, delta=settings.delta, confidence=confidence, guesses=guesses)
    _check_kind(kind, attack, settings)
    check_model(settings.model)
    source = open_source(settings, declared_schema(settings))
    check_additive(settings, source)
    plan = replace(TablePlan.of(settings, source), buys_score=False)  # an audit needs no score, so none is bought
    output = RunFolder(settings.output)
    run = RunLifecycle.start(output, randomness, argument="output", resumable=False)
    relation, unit = settings.neighboring_relation, unit_in_words(source.schema)
    try:
        with run.ledger(neighboring_relation=relation, privacy_unit=unit) as ledger:
            say(
                f"this spends up to another epsilon {settings.epsilon:g} at delta {settings.delta:g} on the same rows: "
                "it adds up with what their other runs spent"
            )
            run.record(settings.listed(unit))
            private = RunFolder(output.private, private=output.private, ledger=output.ledger)  # so nothing is published
            task = TableTask(settings, source, plan, private, ledger, run.randomness, say, progress=False)
            audit = _Audit(task, canaries, kind, attack)
            result = audit.run(confidence=confidence, guesses=guesses)
            words = audit.statement(result)
            replace_durably(output.path / TEXT, words.text.encode())
            replace_durably(output.path / RESULT, words.to_bytes())  # the statement's fields, the result among them
    finally:
        run.finish()
    return TableAudit(result, words.text, output.path)


@dataclass
class _Audit:
    """One audit between its start and its result."""

    task: TableTask
    canaries: int
    kind: CanaryKind
    attack: AttackKind
    preprocessing: Preprocessing = field(init=False)

    def run(self, *, confidence: float, guesses: int | None) -> OneRunAudit:
        task = self.task
        table = task.capped()
        sessions = task.register()
        self.preprocessing = preprocessing = task.preprocess(table, sessions)
        kept = task.encoded(table, None, preprocessing).kept
        records = replace(task.records(kept), dataset=kept.whole(), rows=np.arange(kept.num_rows))
        with private_rows("putting the canaries in"):
            trial, candidates = self._trial(preprocessing, records)
        state = task.state(preprocessing, trial.records, sessions, trial.model, trial.loss_fn)
        attack = self._attack(state.oracle, trial, candidates)
        average = state.average
        task.say(f"training with {self.canaries} canaries among the rows, each of them included by a fair coin")

        def step(params: dict[str, Tensor]) -> None:
            if average is not None:
                average.update(params)

        train_with_canaries(state.oracle, state.optimizer, attack, step)
        if average is not None:
            average.copy_to(dict(state.model.named_parameters()))
        return judged(
            attack.scores(trainable(trial.model)), trial.included, state.oracle.session, state.oracle.ledger,
            adversary=attack.words, delta=task.settings.delta, confidence=confidence, guesses=guesses,
        )  # fmt: skip

    def statement(self, result: OneRunAudit) -> Statement:
        """Return the statement of the audit's ledger, with what the audit spent on the rows."""
        task, preprocessing = self.task, self.preprocessing
        return statement(
            task.ledger,
            task.settings.delta,
            purchases=list_purchases(task.plan, preprocessing, {}),
            chosen_by_tacita=rules.chosen(
                task.settings,
                preprocessing.encoder,
                model=preprocessing.model.name,
                rows=preprocessing.rows,
                holds_out=task.plan.holds_out,
                purchases=task.plan.purchases_share,
            ),
            caveats=CAVEATS,
            audit=result.to_json(),
        )

    def _trial(self, preprocessing: Preprocessing, records: Records) -> tuple[CanaryTrial, list[Any]]:
        """Return the model and data with canaries, and the candidate rows, with substitutes if there are any."""
        relation, coins = self.task.settings.neighboring_relation, self.task.randomness
        model, loss = self.task.untrained(preprocessing), loss_fn(preprocessing.encoder.task)
        if self.kind == "planted":
            planted = plant(model, loss, records, self.canaries, relation=relation, randomness=coins)
            return planted, []
        candidates = [self._rows(preprocessing, "canaries")]
        # What stands in for a canary that is left out: under zero_out_one the same row with weight 0, under
        # replace_one another crafted row. Under add_or_remove_one nothing does.
        if relation == "zero_out_one":
            candidates.append((*candidates[0][:2], torch.zeros(self.canaries)))
        if relation == "replace_one":
            candidates.append(self._rows(preprocessing, "in their place"))
        substitutes = candidates[1] if len(candidates) > 1 else None
        rows = candidates[0]
        return (
            insert(model, loss, records, rows, relation=relation, randomness=coins, substitutes=substitutes),
            candidates,
        )

    def _rows(self, preprocessing: Preprocessing, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Make canary rows as records of the training: features, target, weight."""
        stream = self.task.randomness.session_key("canaries").stream(name)
        encoded = preprocessing.encoder.encode(crafted(preprocessing.encoder, self.canaries, stream))
        assert encoded.target is not None
        return encoded.features, encoded.target, encoded.valid.to(torch.float32)

    def _attack(self, oracle: Any, trial: CanaryTrial, candidates: list[Any]) -> Attack:
        if self.kind == "planted":
            return OwnParameter(oracle)
        return (FinalLoss if self.attack == "black_box" else GradientMatch)(oracle, trial.loss_fn, *candidates)


def _check_kind(kind: str, attack: str, settings: TableSettings) -> None:
    for name, value, known in (("kind", kind, get_args(CanaryKind)), ("attack", attack, get_args(AttackKind))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    if attack == "black_box" and kind == "planted":
        raise ValueError("attack must be white_box with planted canaries, which show in no loss but their own.")
    if settings.sweep is not None:
        raise ValueError("sweep must be left out of the configuration: an audit covers one training.")


NOBODY = "no such value"  # a cell that no encoder knows


def crafted(encoder: Encoder, rows: int, stream: Stream) -> Table:
    """Make rows with random cells at the edges and a random target, which no model of the table can know beforehand.

    A number is its lower bound, its upper bound or a value in between, with equal chance. A category is any of its
    values or an unknown one. An array has the lower or the upper bound in each place. The target is any class, or
    either bound.

    Args:
        encoder: Knows the columns and what they hold.
        rows: The number of rows.
        stream: Random bits that serve these rows alone.

    Example:
        >>> from tacita.random import Randomness
        >>> answer = ClassTarget(column="ill", classes=("no", "yes"))
        >>> age = NumberPiece(column="age", lower=18.0, upper=90.0, centre=50.0, scale=20.0)
        >>> encoder = Encoder(pieces=(age,), target=answer, missing=("",))
        >>> table = crafted(encoder, 100, Randomness.insecure(0).key.stream("rows"))
        >>> features = encoder.encode(table).features
        >>> tuple(features.shape), features.min().item(), features.max().item()
        ((100, 1), -1.600000023841858, 2.0)
    """
    draw = np.random.default_rng(np.frombuffer(stream.bytes(32), dtype=np.uint64))
    columns: dict[str, Column] = {}
    for piece in encoder.pieces:  # a column may have two pieces, a number and its frequent values: take the number
        if piece.column not in columns or isinstance(piece, NumberPiece | BinsPiece):
            columns[piece.column] = _cells(piece, rows, draw)
    if encoder.target is not None:
        columns[encoder.target.column] = _answers(encoder.target, rows, draw)
    return Table(columns, np.ones(rows, dtype=bool))


def _cells(
    piece: NumberPiece | BinsPiece | CategoryPiece | ArrayPiece | ScatteringPiece, rows: int, draw: np.random.Generator
) -> Column:
    if isinstance(piece, NumberPiece):
        inside = draw.uniform(piece.lower, piece.upper, rows)
        storage = "number" if piece.date_format is None else "date"
        edge = np.where(draw.random(rows) < 0.5, piece.lower, piece.upper)
        return NumberColumn(np.where(draw.random(rows) < 2 / 3, edge, inside), storage=storage)
    if isinstance(piece, BinsPiece):
        edges = np.array([0.0, np.nan, *piece.edges])
        return NumberColumn(edges[draw.integers(0, len(edges), rows)])
    if isinstance(piece, CategoryPiece):
        values = (*piece.values, NOBODY)
        return TextColumn.of(values[i] for i in draw.integers(0, len(values), rows))
    return ArrayColumn(np.where(draw.random((rows, *piece.shape)) < 0.5, piece.lower, piece.upper))


def _answers(target: ClassTarget | NumberTarget, rows: int, draw: np.random.Generator) -> Column:
    if isinstance(target, NumberTarget):
        return NumberColumn(np.where(draw.random(rows) < 0.5, target.lower, target.upper))
    classes = target.classes or (NOBODY,)  # without a known class no row counts, and no canary does
    return TextColumn.of(classes[i] for i in draw.integers(0, len(classes), rows))
