"""The bar: queries made, epsilon spent as the ledger says, at the end too; and nothing else."""

import io

from rich.console import Console

from tacita.accounting import FullBatchGaussianEvent, Ledger
from tacita.training.progress import Progress


def test_shows_the_queries_and_the_last_epsilon():
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,))
    session = ledger.register(event, planned_queries=8)
    session.open()
    session.reserve(0, 7)
    shown = io.StringIO()
    with Progress(ledger, delta=1e-5, total=8, console=Console(file=shown, width=100, force_terminal=True)) as bar:
        for query in range(8):
            session.spend(query)
            bar.show(query + 1)
    last = shown.getvalue().splitlines()[-2:]
    assert any("8/8" in line and f"epsilon {ledger.epsilon(1e-5):.3g} spent" in line for line in last)


def test_says_when_there_is_no_privacy():
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(0.0,))
    session = ledger.register(event, planned_queries=1)
    session.open()
    session.reserve(0, 0)
    session.spend(0)
    shown = io.StringIO()
    with Progress(ledger, delta=1e-5, total=1, console=Console(file=shown, width=100, force_terminal=True)) as bar:
        bar.show(1)
    assert "not private" in shown.getvalue()
