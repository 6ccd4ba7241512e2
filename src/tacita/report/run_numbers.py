"""The numbers of a run's page: its statement after all checks, and curves that follow from its ledger.

Every curve is an upper bound, computed from what the sessions were registered with and not from any release.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tacita.accounting import PrivacyCurve, Spend, epsilon
from tacita.accounting.curve import LARGEST_EPSILON
from tacita.errors import LedgerError, TacitaError, UnsupportedEventError
from tacita.ledger import Ledger
from tacita.ledger.sections import PUBLIC_LOSSES
from tacita.ledger.statement import main_session
from tacita.ledger.verdict import Verdict
from tacita.report.one_run import allowed
from tacita.runs.edits import LEDGER
from tacita.runs.sealed_run import SealedRun
from tacita.tables import TableModel, check_run, load
from tacita.tables.run_audit import RunAudit
from tacita.tables.run_verdict import run_verdict

DELTAS = tuple(10.0**exponent for exponent in range(-10, -1))
RATES = (1e-4, 1e-3, 1e-2, 0.1, 0.5)  # false positive rates of the table
EPSILONS = 1000  # of the privacy curve, for the trade-off curve
POINTS = 9  # of the curve over steps
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class RunNumbers:
    """One run, ready to be shown.

    Attributes:
        folder: The run's folder.
        fields: The statement's fields, as they are in its file; with the edits of an edited run.
        text: The statement in words, made again from the ledger.
        faults: What was changed since the run was finished; empty if nothing was.
        by_delta: Pairs of delta and epsilon of the plan.
        by_steps: Pairs of a number of training steps, and the plan's epsilon if it had only so many.
        by_session: The epsilon of each session alone, by its id.
        audit: The audit that lies beside the run; ``None`` if there is none.
        curve: Delta of the plan at every epsilon; ``None`` if the ledger cannot be read.
        notes: What a reader should know that is no fault.
        model: The linear or additive model of a table's run, as edited; ``None`` for every other run.
    """

    folder: Path
    fields: dict[str, Any]
    text: str
    faults: tuple[str, ...]
    by_delta: Points
    by_steps: Points
    by_session: dict[str, float]
    audit: RunAudit | None = None
    curve: PrivacyCurve | None = None
    notes: tuple[str, ...] = ()
    model: TableModel | None = None

    @classmethod
    def of(cls, folder: str | Path) -> "RunNumbers":
        """Check the finished run in ``folder``, and compute its curves.

        Raises:
            TacitaError: The folder holds no finished run.
        """
        checked = check_run(folder)
        run = SealedRun(folder)
        fields = run.fields
        none: Points = []
        try:
            ledger = Ledger.load(run.sealed / LEDGER)
            delta = float(fields["delta"])
            curves = (_by_delta(ledger, delta), _by_steps(ledger, delta), _by_session(ledger, delta))
            whole = ledger.conditional_curve()
        except (LedgerError, LookupError, TypeError, ValueError):  # it was changed, and ``faults`` says so
            curves, whole = (none, none, {}), None
        audit = RunAudit.beside(Path(folder), fields)
        model = None if checked.faults else _model(folder)
        return cls(Path(folder), fields, checked.text, checked.faults, *curves, audit, whole, checked.notes, model)

    @property
    def clients(self) -> bool:
        """Whether the units are clients of a federation, and the steps its rounds."""
        rows = self.fields.get("rows")
        return isinstance(rows, dict) and rows.get("of") == "clients"

    @property
    def public_losses(self) -> Points:
        """Pairs of a number of queries and the loss on rows that were declared public."""
        given = self.fields.get(PUBLIC_LOSSES)
        pairs = [one for one in given if isinstance(one, list) and len(one) == 2] if isinstance(given, list) else []
        numbers = [pair for pair in pairs if all(isinstance(one, int | float) for one in pair)]
        return [(float(made), float(loss)) for made, loss in numbers if math.isfinite(made) and math.isfinite(loss)]

    @property
    def verdict(self) -> Verdict:
        """What the run comes to."""
        return run_verdict(self.folder, self.fields, changed=bool(self.faults))

    def most_true_positives(self, rates: np.ndarray) -> np.ndarray:
        """Return the largest true positive rate of any attack at each false positive rate.

        It is the trade-off curve that belongs to the whole curve of deltas, and the pairs of ``by_delta``, each of
        which is a guarantee, too.
        """
        limits = [allowed(rates, value, delta) for delta, value in self.by_delta]
        if self.curve is not None and self.curve.whole and self.by_delta:
            epsilons = np.linspace(0.0, max(value for _, value in self.by_delta), EPSILONS)
            limits.append(self.curve.true_positives(rates, np.minimum(epsilons, LARGEST_EPSILON)))
        return np.min([np.ones_like(rates), *limits], axis=0)


def _model(folder: str | Path) -> TableModel | None:
    """Return the model of a table's run if it has shapes. A model that is code is not loaded."""
    try:
        found = load(folder)
    except TacitaError:  # another kind of run, or a model that is code
        return None
    return found if isinstance(found.model, nn.Linear) else None


def _by_delta(ledger: Ledger, delta: float) -> Points:
    found = [(one, ledger.conditional_bound(one).epsilon) for one in sorted({*DELTAS, delta})]
    return [(one, value) for one, value in found if math.isfinite(value)]


def _by_steps(ledger: Ledger, delta: float) -> Points:
    """Return the epsilon of fewer steps, for a record that the main session sees; empty if steps do not add up."""
    main = main_session(ledger)
    if main is None or not main.event.per_query or main.planned_queries < 2:
        return []
    own, spends = Spend(main.event, main.planned_queries), ledger.spends(main.part)
    if own not in spends:
        return []
    spends.remove(own)
    steps = sorted({round(main.planned_queries * share) for share in np.linspace(1 / POINTS, 1, POINTS)} - {0})
    return [(count, epsilon([*spends, Spend(main.event, count)], delta).epsilon) for count in steps]


def _by_session(ledger: Ledger, delta: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for session in ledger.sessions:
        if session.state != "withdrawn":
            try:
                found[session.id] = epsilon([Spend(session.event, session.planned_queries)], delta).epsilon
            except UnsupportedEventError:
                continue
    return {name: value for name, value in found.items() if math.isfinite(value)}
