"""What grows with a run: a query by the number of records, and a ledger by the number of its queries.

    python benchmarks/growth.py

Each figure is CPU time of a process of its own. The tables go to docs/results.md, between the marks of this page.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from many_records import COLUMNS, virtual
from results import markdown_table, write_section

SCRIPT = "benchmarks/growth.py"
BATCH, STEPS = 256, 20
HEAD = (
    "## Growth",
    "",
    f"`python {SCRIPT}`: CPU time. *Records*: a Poisson query of {BATCH} expected records of a linear model with "
    f"{COLUMNS} features, the median of {STEPS}, and the resident memory beyond that of the same queries on 1000 "
    "records. The records are virtual: made while they are read.",
    "",
)
LEDGERS = (
    "",
    "*Ledgers*: in a file, of one session. Opening reads every line and checks its hash, its place and its number; "
    "`epsilon` is of the plan and of what was spent. A statement reads the file once more.",
    "",
)


def query_growth(rows: int) -> dict[str, str]:
    """CPU time and memory of Poisson queries."""
    import torch

    import tacita
    from tacita.random import Randomness

    def medians(count: int) -> float:
        model = torch.nn.Linear(COLUMNS, 1, bias=False)
        oracle = tacita.ClippedGradientOracle(
            model,
            lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square() / 2,
            virtual(count),
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            sampler=tacita.PoissonSampler(expected_batch_size=BATCH, num_records=count),
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=STEPS + 1,
            randomness=Randomness.insecure(0),
        )
        took = []
        for _ in range(STEPS + 1):
            begun = time.process_time()
            oracle.query(dict(model.named_parameters()))
            took.append(time.process_time() - begun)
        return sorted(took[1:])[STEPS // 2]

    medians(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = medians(rows)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    return {"records": f"{rows:,}", "query, ms": f"{1000 * seconds:.1f}", "memory, MB": f"{memory:.0f}"}


def ledger_growth(queries: int) -> dict[str, str]:
    """CPU time of a ledger's life."""
    import tacita
    from tacita.accounting import GaussianSumEvent, PoissonLaw
    from tacita.ledger import Ledger, Reservations

    event = GaussianSumEvent(
        relation="add_or_remove_one", sampling=PoissonLaw(0.001), max_contribution=(1.0,), noise_std=(1.0,)
    )

    def clocked(work: Callable[[], Any]) -> tuple[Any, float]:
        begun = time.process_time()
        return work(), time.process_time() - begun

    def life(path: Path, queries: int) -> dict[str, str]:
        def appended() -> None:
            with Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row") as ledger:
                session = ledger.register(event, planned_queries=queries)
                session.open()
                ahead = Reservations(session)
                for query in range(queries):
                    ahead.prepare(query)
                    session.spend(query, "0123456789abcdef" * 2)

        _, written = clocked(appended)
        ledger, opened = clocked(lambda: Ledger.load(path, read_only=False))
        _, asked = clocked(lambda: (ledger.epsilon(1e-5), ledger.epsilon_spent(1e-5)))
        _, stated = clocked(lambda: tacita.statement(ledger, 1e-5))
        ledger.close()
        return {
            "queries": f"{queries:,}",
            "MB": f"{path.stat().st_size / 1e6:.1f}",
            "append, us": f"{1e6 * written / queries:.0f}",
            "open, s": f"{opened:.2f}",
            "epsilon, s": f"{asked:.2f}",
            "statement, s": f"{stated:.2f}",
        }

    with tempfile.TemporaryDirectory() as folder:
        life(Path(folder) / "first.jsonl", 10)  # loads what is loaded once
        return life(Path(folder) / "ledger.jsonl", queries)


def _into(results: Any, work: Callable[[int], dict[str, str]], size: int) -> None:
    results.put(work(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", nargs="*", type=float, default=[1e5, 1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--queries", nargs="*", type=float, default=[1e4, 1e5, 1e6])
    parser.add_argument("--print", action="store_true", help="print the tables in place of writing them")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    tables: list[list[dict[str, str]]] = []
    for work, sizes in ((query_growth, options.records), (ledger_growth, options.queries)):
        tables.append([])
        for size in map(int, sizes):
            results = spawn.Queue()
            process = spawn.Process(target=_into, args=(results, work, size))
            process.start()
            tables[-1].append(results.get())
            process.join()
            print(tables[-1][-1], flush=True)
    lines = [*HEAD, *markdown_table(tables[0]), *LEDGERS, *markdown_table(tables[1]), ""]
    if not options.print:
        write_section(SCRIPT, lines)


if __name__ == "__main__":
    main()
