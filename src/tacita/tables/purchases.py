"""Purchases: exact counts go in, the ledger is written, and noisy integers come out.

A purchase is one query of its own session. What is read from the noisy counts is post-processing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from torch import Tensor

from tacita.accounting import hardening
from tacita.hardened import RoundedGaussian
from tacita.ledger import Session
from tacita.mechanisms import GaussianMechanism, Mechanism
from tacita.oracles.single_query import answer_once
from tacita.random import Randomness
from tacita.tables.lean_survey import COARSE, in_groups
from tacita.tables.plan import Sessions, TablePlan
from tacita.tables.refinement import read_refinement, refinement_counts
from tacita.tables.released_counts import survey_of, target_facts, with_scales
from tacita.tables.schema import Schema
from tacita.tables.source import TableSource, private_rows
from tacita.tables.survey import BINS, LEAN, Survey, survey_counts
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile
from tacita.tables.task import RowsAndTask, Task, read_task, task_counts

BLOCK, TARGET = "histograms", "target"


def buy(
    session: Session,
    counts: Mapping[str, Tensor],
    noise_std: float,
    randomness: Randomness,
    *,
    contribution: float | None = None,
) -> dict[str, np.ndarray]:
    """Release one block of counts, as :func:`buy_blocks` does."""
    added = None if contribution is None else {BLOCK: contribution}
    return buy_blocks(session, {BLOCK: counts}, {BLOCK: noise_std}, randomness, contribution=added)


def buy_blocks(
    session: Session,
    counts: Mapping[str, Mapping[str, Tensor]],
    noise_std: Mapping[str, float],
    randomness: Randomness,
    *,
    contribution: Mapping[str, float] | None = None,
) -> dict[str, np.ndarray]:
    """Release ``counts`` once with noise, as whole numbers, because the low bits of a float would show the count.

    Args:
        session: A session that was registered for these blocks; it makes its one query.
        counts: Exact counts by block and label. Private.
        noise_std: Noise on each count, by block.
        randomness: The key of the run.
        contribution: Largest L2 norm that one unit adds to each block, where it is not that of the session's event.

    Raises:
        LedgerError: The noise is less than what the session's event promises.
        ResumeError: An earlier process bought this with other counts: the data or the settings were changed.
    """
    mechanism = _mechanism(session, noise_std)
    released = answer_once(session, mechanism, noise_std, counts, randomness, contribution=contribution)
    return {label: np.rint(noisy.numpy()) for block in released.values() for label, noisy in block.items()}


def _mechanism(session: Session, blocks: Iterable[str]) -> Mechanism:
    """Return the noise that the session was registered with."""
    if hardening(session.event) is not None:
        return RoundedGaussian(noise_multiplier=1.0, steps=dict.fromkeys(blocks, 1.0))
    return GaussianMechanism(noise_multiplier=1.0)


@dataclass(frozen=True)
class TablePurchases:
    """What a run buys about its table before the training.

    Attributes:
        source: The table and what is declared about it.
        table: The private rows that count.
        plan: The budget of each purchase.
        sessions: The sessions that pay.
        randomness: The run's key.
    """

    source: TableSource
    table: Table | TableFile
    plan: TablePlan
    sessions: Sessions
    randomness: Randomness

    @property
    def _columns(self) -> Sequence[str]:
        """The columns about which something is bought, without the target, which is the last one."""
        return self.source.to_buy[: self.plan.columns_to_buy]

    def rows_and_task(self) -> RowsAndTask | None:
        """Buy the number of rows and the task; ``None`` if both are declared."""
        if self.sessions.rows is None:
            return None
        noise_std = self.plan.purchases.rows_noise_std()
        with private_rows("counting the rows"):
            one_row = self.plan.purchases.relation == "add_or_remove_one" and self.source.schema.unit is None
            counts = task_counts(self.table, self.source.schema, unreadable=one_row)
            return read_task(buy(self.sessions.rows, {"rows": counts}, noise_std, self.randomness)["rows"], noise_std)

    def survey(self, counted: RowsAndTask | None) -> Survey | None:
        """Buy survey and refinement of the columns, over the rows that count; ``None`` if nothing is bought."""
        schema, plan = self.source.schema, self.plan
        target = schema.target
        assert target is not None
        task = None if target.complete else target.task or (None if counted is None else counted.task)
        declared = schema.rows is not None
        rows = float(schema.rows) if schema.rows is not None else (0.0 if counted is None else counted.rows)
        if self.sessions.survey is None:
            nothing = {"columns": (), "noise_std": 0.0, "threshold": 0.0}
            return None if counted is None else Survey(rows=rows, kinds=counted.kinds, **nothing)
        # A lean survey counts no texts: among so few rows, one that a fifth of them hold would not pass the threshold.
        lean = plan.columns_to_buy > 0 and rows < LEAN * plan.purchases.threshold(plan.columns_to_buy)
        with private_rows("counting the rows for the survey"):
            found, bins = self.columns_and_target(self.sessions.survey, task=task, rows=rows, lean=lean)
        if self.sessions.refinement is not None:
            with private_rows("counting the rows for the refinement"):
                found = self._refinement(self.sessions.refinement, found=found, bins=bins)
        why = "" if task is None or counted is None or target.task is not None else counted.why
        counted_noise = 0.0 if counted is None or declared else counted.noise_std
        return msgspec.structs.replace(
            found,
            rows=rows,
            task=task,
            task_why=why,
            rows_noise_std=counted_noise,
            kinds=None if counted is None else counted.kinds,
        )

    def columns_and_target(
        self, session: Session, *, task: Task | None, rows: float, lean: bool
    ) -> tuple[Survey, np.ndarray]:
        """Buy facts about the columns and the target in one query, each block at its own noise.

        ``rows`` is the number of rows, declared or bought; ``lean`` follows from it.

        Returns:
            What was bought, and the noisy bins of the columns.
        """
        schema, purchases, columns = self.source.schema, self.plan.purchases, self._columns
        counts, blocks = survey_counts(self.table, schema, columns, lean=lean), {}
        noise_std, added = dict[str, float](), dict[str, float]()
        histograms = 1 if lean else 2
        if columns:
            blocks[BLOCK] = counts.tensors()
            noise_std[BLOCK] = purchases.survey_noise_std(len(columns), histograms)
            added[BLOCK] = purchases.contribution(histograms * len(columns))
            if lean and rows < COARSE * noise_std[BLOCK]:
                blocks[BLOCK]["bins"] = in_groups(counts.bins)
        # The target has a block of its own, because a row holds one label but a value of every column.
        answers = None
        if self.plan.buys_target and task is not None:
            answers = survey_counts(self.table, _with_task(schema, task), self.source.to_buy[-1:])
            label = "target bins" if task == "regression" else "target texts"
            blocks[TARGET] = {label: answers.bins if task == "regression" else answers.texts[0]}
            noise_std[TARGET], added[TARGET] = purchases.target_noise_std(), purchases.contribution(1)
        noisy = buy_blocks(session, blocks, noise_std, self.randomness, contribution=added)
        # From here on only noisy counts are read; ``counts`` and ``answers`` name the texts, and those below the
        # threshold are never looked at.
        threshold = purchases.threshold(len(columns), histograms) if columns else 0.0
        noisy.setdefault("bins", np.zeros((0, BINS)))
        found = survey_of(counts, noisy, schema, noise_std=noise_std.get(BLOCK, 0.0), threshold=threshold, lean=lean)
        if answers is None or task is None:
            return found, noisy["bins"]
        least = purchases.target_threshold()
        facts = target_facts(answers, noisy, task, noise_std=noise_std[TARGET], threshold=least)
        found = msgspec.structs.replace(
            found, columns=(*found.columns, facts), target_threshold=least, target_noise_std=noise_std[TARGET]
        )
        return found, noisy["bins"]

    def _refinement(self, session: Session, *, found: Survey, bins: np.ndarray) -> Survey:
        """Buy finer bins of the numbers; after a lean survey, the dyadic ones.

        This is done even without a numeric column, so that the ledger does not depend on what the survey found.
        """
        noise_std, added = self.plan.refinement_noise_std(found), self.plan.refinement_contribution(found)
        if found.lean:
            schema = self.source.schema
            counts = {"bins": survey_counts(self.table, schema, self._columns, lean=True).bins}
            again = buy(session, counts, noise_std, self.randomness, contribution=added)
            return with_scales(found, bins, again["bins"], (found.noise_std, noise_std), schema)
        counts = {"fine bins": refinement_counts(self.table, self.source.schema, found)}
        again = buy(session, counts, noise_std, self.randomness, contribution=added)
        return read_refinement(found, again["fine bins"], noise_std)


def _with_task(schema: Schema, task: Task) -> Schema:
    """Return the schema as if ``task`` were declared, so that even labels that are long numbers count as texts."""
    assert schema.target is not None
    return msgspec.structs.replace(schema, target=msgspec.structs.replace(schema.target, task=task))
