"""Audit the configuration of a table's training in one run: train anew with canaries, publish no model.

Place: train, canaries, audit -> [pipeline.one_run] -> command line. The retraining has the configuration's settings,
purchases, noise and queries, a ledger of its own, and no key on disk: its randomness lives in this process alone. What
was trained is dropped; the ledger, its statement and the result stay. A run that is killed cannot go on: what it spent
stands in its ledger.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tacita._files import replace_durably
from tacita.accounting import Ledger, Statement, statement
from tacita.audit.one_run_attack import Attack, FinalLoss, GradientMatch, OwnParameter
from tacita.audit.one_run_canaries import Trial, insert, plant
from tacita.audit.one_run_report import OneRunAudit
from tacita.audit.one_run_training import check_numbers, judged, train_with_canaries
from tacita.errors import ResumeError
from tacita.oracles import Records
from tacita.pipeline import report, rules, score
from tacita.pipeline.canaries import crafted
from tacita.pipeline.models import check_model, loss_fn
from tacita.pipeline.plan import Plan
from tacita.pipeline.preprocessing import Preprocessing
from tacita.pipeline.register import record
from tacita.pipeline.settings import TableSettings
from tacita.pipeline.source import declared, private_rows, read, unit_in_words
from tacita.pipeline.train import Say, TableTask
from tacita.random import Randomness
from tacita.training.folder import RunFolder

CanaryKind = Literal["planted", "rows"]
AttackKind = Literal["white_box", "black_box"]
RESULT, LEDGER = "audit.json", "ledger.jsonl"
CAVEATS = (
    "This is an audit: it trained anew with canaries among the rows, and published no model. What it spent adds up "
    "with what any other training on the same rows spent.",
    "The audit's result is computed from the releases of this ledger alone; a result of 'refuted' says that these, "
    "too, cost more than is stated here.",
)


@dataclass(frozen=True)
class TableAudit:
    """A finished audit.

    Attributes:
        result: Claim, lower bound, verdict.
        statement: The statement of the audit's own ledger, in words.
        folder: Where ledger, statement and result are.
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
    """Retrain by ``settings`` with canaries in the data, and hold the claimed epsilon against what was measured.

    The claim that is tested is the training session's own, at the settings' delta: canaries are put in after the
    purchases. Guarantee of the lower bound: see :func:`~tacita.audit.one_run.one_run_bound`.

    Args:
        settings: Those of a run, ``output`` replaced by a new folder for the audit.
        canaries: How many, >= 50. Each row that is left out or taken in is a coin; real rows have none.
        kind: "planted": each canary has a parameter of its own, the worst case of the accounting; "rows": rows of the
            table's form with extreme cells and random answers.
        attack: For rows: by all releases, or by the final model's loss alone.
        confidence: Of the lower bound.
        guesses: How many canaries are guessed; six numbers are tried if ``None``.
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
    source = read(settings, declared(settings))
    plan = replace(Plan.of(settings, source), score_histograms=0)  # a score is of no use here: none is bought
    randomness = randomness or Randomness.system()
    with _working_folder(settings) as work:
        ledger = Ledger(
            work.path.parent / LEDGER,
            neighboring_relation=settings.neighboring_relation,
            privacy_unit=unit_in_words(source.schema),
        )
        with ledger:
            say(
                f"this spends at most epsilon {settings.epsilon:g} at delta {settings.delta:g} more on the same rows: "
                "it adds up with what their other runs spent"
            )
            record(settings, randomness)
            task = TableTask(settings, source, plan, work, ledger, randomness, say, progress=False)
            audit = _Audit(task, canaries, kind, attack)
            result = audit.run(confidence=confidence, guesses=guesses)
            words = audit.statement(result)
            folder = work.path.parent
            replace_durably(folder / report.TEXT, words.text.encode())
            replace_durably(folder / RESULT, words.to_bytes())  # the statement's fields, the result among them
    return TableAudit(result, words.text, folder)


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
        rows = task.deal(None)
        sessions = task.register()
        self.preprocessing = preprocessing = task.preprocess(rows, sessions)
        records = task.records(task.encoded(rows, preprocessing).private, rows)
        with private_rows("putting the canaries in"):
            trial, candidates = self._trial(preprocessing, records)
        state = task.state(trial.model, trial.loss_fn, trial.records, preprocessing=preprocessing, sessions=sessions)
        attack = self._attack(state.oracle, trial, candidates)
        average = state.average
        task.say(f"training with {self.canaries} canaries among the rows, each of them in by a fair coin")

        def step(params: dict[str, Tensor]) -> None:
            if average is not None:
                average.update(params)

        train_with_canaries(state.oracle, state.optimizer, attack, step)
        if average is not None:
            average.copy_to(dict(state.model.named_parameters()))
        return judged(trial, state.oracle, attack, delta=task.settings.delta, confidence=confidence, guesses=guesses)

    def statement(self, result: OneRunAudit) -> Statement:
        """Of the audit's ledger: what it spent on the rows."""
        task, preprocessing = self.task, self.preprocessing
        return statement(
            task.ledger,
            task.settings.delta,
            purchases=report.purchases(task.plan, preprocessing, {}),
            chosen_by_tacita=rules.chosen(
                task.settings, preprocessing.encoder, holds_out=task.plan.holds_out, buys=task.plan.columns_to_buy > 0
            ),
            caveats=CAVEATS,
            audit=result.to_json(),
        )

    def _trial(self, preprocessing: Preprocessing, records: Records) -> tuple[Trial, list[Any]]:
        """The model and data with canaries, and the rows that were candidates (with what stands in for them)."""
        relation, coins = self.task.settings.neighboring_relation, self.task.randomness
        model, loss = self.task.untrained(preprocessing), loss_fn(preprocessing.encoder.task)
        if self.kind == "planted":
            planted = plant(model, loss, records, self.canaries, relation=relation, randomness=coins)
            return planted, []
        candidates = [self._rows(preprocessing, "canaries")]
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
        """Crafted rows as the training's records: features, target, weight."""
        stream = self.task.randomness.session_key("canaries").stream(name)
        encoded = preprocessing.encoder.encode(crafted(preprocessing.encoder, self.canaries, stream))
        assert encoded.target is not None
        return score.model_input(encoded.features), encoded.target, encoded.valid.to(torch.float32)

    def _attack(self, oracle: Any, trial: Trial, candidates: list[Any]) -> Attack:
        if self.kind == "planted":
            return OwnParameter(oracle)
        return (FinalLoss if self.attack == "black_box" else GradientMatch)(oracle, trial.loss_fn, *candidates)


@contextmanager
def _working_folder(settings: TableSettings) -> Iterator[RunFolder]:
    """A private folder inside ``output``, gone whatever happens."""
    folder = RunFolder(settings.output)
    try:
        with folder.starting():
            folder.start()
    except ResumeError:
        raise ResumeError(
            f"output must be a new or an empty folder, got {str(folder.path)!r}: an audit is never gone on with, each "
            "spends a session of its own. Choose another one."
        ) from None
    try:
        yield RunFolder(folder.private)
    finally:
        shutil.rmtree(folder.private)


def _check_kind(kind: str, attack: str, settings: TableSettings) -> None:
    for name, value, known in (("kind", kind, get_args(CanaryKind)), ("attack", attack, get_args(AttackKind))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    if attack == "black_box" and kind == "planted":
        raise ValueError("attack must be white_box with planted canaries: they show in no loss but their own.")
    if settings.sweep is not None:
        raise ValueError("sweep must be left out of the configuration: an audit is of one training.")
