"""Buying through the line: exact counts go above it, noisy integers come out, the ledger is written in between.

Place: plan, tables -> [pipeline.purchases] -> preprocessing, score. A purchase is one query of its own session. What is
read from the noisy counts is post-processing.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from tacita.accounting import Session, hardening
from tacita.errors import ResumeError
from tacita.mechanisms import GaussianMechanism, Mechanism, RoundedGaussian
from tacita.oracles.line import Line
from tacita.pipeline.plan import Plan, Sessions
from tacita.pipeline.source import Source, private_rows
from tacita.random import Randomness
from tacita.tables.purchases import survey_of
from tacita.tables.refinement import read_refinement, refined_columns, refinement_counts
from tacita.tables.survey import Survey, survey_counts
from tacita.tables.table import Table

BLOCK = "histograms"


def buy(
    session: Session, counts: Mapping[str, Tensor], noise_std: float, randomness: Randomness
) -> dict[str, np.ndarray]:
    """Release ``counts`` once with noise, as whole numbers: the low bits of a float would show the count.

    Raises:
        ResumeError: An earlier process bought this with other counts, so that the data or settings were changed.
    """
    line = Line(session, _mechanism(session), {BLOCK: noise_std}, randomness)
    if session.opened:
        line.resume(0, randomness.generation, line.identity)
    released = line.release(line.begin(), {BLOCK: dict(counts)})
    if released is None:
        raise ResumeError(
            f"session {session.id!r} was released before with other counts: the data are not those that the run "
            "started with."
        )
    if not session.closed:
        session.close()
    return {label: np.rint(noisy.numpy()) for label, noisy in released[BLOCK].items()}


def _mechanism(session: Session) -> Mechanism:
    """The noise that the session was registered for."""
    if hardening(session.event) is not None:
        return RoundedGaussian(noise_multiplier=1.0, steps={BLOCK: 1.0})
    return GaussianMechanism(noise_multiplier=1.0)


def survey(source: Source, table: Table, plan: Plan, sessions: Sessions, randomness: Randomness) -> Survey | None:
    """Survey and refinement of the columns to buy, over the rows that count; ``None`` if all is declared."""
    if sessions.survey is None or sessions.refinement is None:
        return None
    columns = len(source.to_buy)
    noise_std, threshold = plan.purchases.survey_noise_std(columns), plan.purchases.threshold(columns)
    with private_rows("counting the rows for the survey"):
        counts = survey_counts(table, source.schema, source.to_buy)
        noisy = buy(sessions.survey, counts.tensors(), noise_std, randomness)
        bought = survey_of(counts, noisy, source.schema, noise_std=noise_std, threshold=threshold)
    # Also without a numeric column: what the ledger holds then does not depend on what was found.
    noise_std = plan.purchases.refinement_noise_std(max(len(refined_columns(bought)), 1))
    with private_rows("counting the rows for the refinement"):
        counts = refinement_counts(table, source.schema, bought)
        noisy = buy(sessions.refinement, {"fine bins": counts}, noise_std, randomness)
    return read_refinement(bought, noisy["fine bins"], noise_std)
