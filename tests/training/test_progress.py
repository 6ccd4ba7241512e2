"""The bar: queries made and their epsilon, at the end too, whatever was reserved; and nothing else."""

import io

from rich.console import Console

from tacita.accounting import FullBatchLaw, GaussianSumEvent, Spend, accountant
from tacita.ledger import Ledger
from tacita.training.progress import Progress


def reserved(ledger):
    """A session of 8 queries, all of them reserved."""
    event = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
    )
    session = ledger.register(event, planned_queries=8)
    session.open()
    session.reserve(0, 7)
    return session


def test_shows_the_queries_and_the_last_epsilon():
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    session = reserved(ledger)
    shown = io.StringIO()
    with Progress(ledger, delta=1e-5, total=8, console=Console(file=shown, width=100, force_terminal=True)) as bar:
        for query in range(8):
            session.spend(query)
            bar.show(query + 1)
    last = shown.getvalue().splitlines()[-2:]
    assert any("8/8" in line and f"epsilon {ledger.epsilon(1e-5):.3g} so far" in line for line in last)


def test_shows_queries_made_where_a_killed_process_had_reserved_more(tmp_path):
    """What the ledger says stays conservative; the bar does not jump by a reservation."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row")
    session = reserved(ledger)
    session.spend(0)
    ledger.close()
    with Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row") as resumed:
        shown = io.StringIO()
        with Progress(resumed, delta=1e-5, total=8, console=Console(file=shown, width=100, force_terminal=True)) as bar:
            resumed.sessions[0].spend(1)
            bar.show(2)
        made = accountant.epsilon([Spend(session.event, 2)], 1e-5).epsilon
        assert resumed.made_epsilon(1e-5) == made < resumed.epsilon_spent(1e-5) == resumed.epsilon(1e-5)
    last = shown.getvalue().splitlines()[-2:]
    assert any("2/8" in line and f"epsilon {made:.3g} so far" in line for line in last)


def test_says_when_there_is_no_privacy():
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(0.0,)
    )
    session = ledger.register(event, planned_queries=1)
    session.open()
    session.reserve(0, 0)
    session.spend(0)
    shown = io.StringIO()
    with Progress(ledger, delta=1e-5, total=1, console=Console(file=shown, width=100, force_terminal=True)) as bar:
        bar.show(1)
    assert "not private" in shown.getvalue()


def test_a_log_gets_a_line_for_every_tenth_of_the_queries():
    """No bar and no epsilon, which costs time; a run that goes on says at once where it is."""
    ledger, shown = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"), io.StringIO()
    with Progress(ledger, delta=1e-5, total=25, console=Console(file=shown)) as bar:
        for made in range(4, 26):
            bar.show(made)
            if made == 20:
                bar.note = "accuracy 0.812 on public rows"
    lines = shown.getvalue().splitlines()
    assert [int(line.split()[1]) for line in lines] == [4, 5, 8, 10, 13, 15, 18, 20, 23, 25]
    assert lines[0] == "training: 4 of 25 queries made"
    assert lines[-1] == "training: 25 of 25 queries made; accuracy 0.812 on public rows"
