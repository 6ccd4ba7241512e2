"""How much memory a query of an oracle takes, by the number of records: the records are made while they are read.

    python benchmarks/many_records.py 1e7 1e8
    python benchmarks/many_records.py --only "full batch" 1e7

Each cell runs in a process of its own: a linear model of 4 features on a virtual data set, whose rows follow from their
numbers. Printed are the largest resident memory beside that of the same query on 1000 records, and CPU seconds of the
query. The lines go to docs/results.md, between the marks of this page, each in the place of an earlier one.
"""

import argparse
import multiprocessing
import resource
import time

from results import markdown_table, section, write_section

SCRIPT = "benchmarks/many_records.py"
COLUMNS, HEIGHT, BATCHES = 4, 2**16, 10
HEAD = (
    "## Many records",
    "",
    f"`python {SCRIPT}`: one query of an oracle on a linear model with {COLUMNS} features, in chunks of {HEIGHT:,} "
    "rows. The records are virtual: made while they are read. Memory is the largest resident memory beyond that of the "
    "same query on 1000 records; an array of one 8-byte number a record would be 80 MB at 10 million and 800 MB at 100 "
    "million. Parts are halves of a split.",
    "",
)


def virtual(rows: int):
    """A data set of ``rows`` records that follow from their numbers and are never held."""
    import numpy as np
    import torch

    from tacita.gradients.data import IndexedRows

    class Virtual(IndexedRows):
        @property
        def num_rows(self) -> int:
            return rows

        def __len__(self) -> int:
            return rows

        def fetch(self, indices: np.ndarray, seed: int):
            first = torch.from_numpy(indices % 1009).float().div_(500).sub_(1)
            features = torch.stack([first, first.square(), first.abs(), torch.ones_like(first)], dim=1)
            return features, features.sum(dim=1)

        def like(self):
            return torch.ones(1, COLUMNS), torch.ones(1)

    return Virtual()


def cells(rows: int) -> dict:
    """By name: a function that builds the oracle and makes one query."""
    import torch

    import tacita
    from tacita.random import Randomness

    data = virtual(rows)
    model = torch.nn.Linear(COLUMNS, 1, bias=False)

    def loss(model, batch):
        return (model(batch[0]).squeeze(1) - batch[1]).square() / 2

    def source():
        return tacita.NetworkSource(model, loss, data, method="program", max_physical_batch_size=HEIGHT)

    def common(queries: int) -> dict:
        return {
            "ledger": tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"),
            "planned_queries": queries, "randomness": Randomness.insecure(0),
        }  # fmt: skip

    def clipped(sampler, **records):
        def query():
            return tacita.GradientOracle(
                source(), estimator=tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=1.0)), sampler=sampler,
                mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), **records, **common(1),
            ).query(dict(model.named_parameters()))  # fmt: skip

        return query

    def medians():
        return tacita.GradientOracle(
            source(), estimator=tacita.convex.MedianOfMeans(max_coordinate=1.0, num_groups=5),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), **common(1),
            sampler=tacita.FullBatchSampler(num_records=rows),
        ).query(dict(model.named_parameters()))  # fmt: skip

    def shuffled():
        return tacita.ShuffleMeanOracle1(
            source(), max_grad_norm=1.0, target_epsilon=1.0, target_delta=1e-10, **common(1),
            sampler=tacita.FullBatchSampler(num_records=rows),
        ).query(dict(model.named_parameters()))  # fmt: skip

    def part(sizes):
        def query():
            one = tacita.split(data, sizes, randomness=Randomness.insecure(1))[1]
            records = tacita.FullBatchSampler(num_records=len(one.rows if one.rows is not None else data))
            return clipped(records, rows=one.rows, part=one.part)()

        return query

    disjoint = {"num_batches": BATCHES, "num_records": rows}
    return {
        "full batch": clipped(tacita.FullBatchSampler(num_records=rows)),
        "full batch, median of means": medians,
        "full batch, shuffle model": shuffled,
        "one of 10 batches by index": clipped(tacita.DisjointSampler(**disjoint)),
        "one of 10 batches by coin": clipped(tacita.AllocatedSampler(**disjoint)),
        "an epoch's batch by coin": clipped(tacita.AllocatedSampler(batches_per_epoch=BATCHES, num_records=rows)),
        "Poisson, rate 0.1": clipped(tacita.PoissonSampler(sample_rate=0.1, num_records=rows)),
        "a part by range": part([rows // 2, rows - rows // 2]),
        "a part by coin": part([0.5, 0.5]),
    }


def measure(name: str, rows: int, results) -> None:
    """One query on few records, then on many; what it took goes into ``results``."""
    cells(1000)[name]()
    before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    cells(rows)[name]()
    results.put(((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000, time.process_time() - cpu))


def report(line: dict[str, str]) -> None:
    """Print a line, and put it into docs/results.md."""
    print(line, flush=True)
    names = list(line)
    found = [[cell.strip() for cell in old[1:-1].split("|")] for old in section(SCRIPT).splitlines() if old[:1] == "|"]
    lines = {tuple(row[:2]): dict(zip(names, row, strict=True)) for row in found[2:] if len(row) == len(names)}
    lines[tuple(line.values())[:2]] = line
    write_section(SCRIPT, [*HEAD, *markdown_table(list(lines.values())), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=float)
    parser.add_argument("--only", help="the name of one cell")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for rows in map(int, options.rows):
        for name in [options.only] if options.only else list(cells(1000)):
            results = spawn.Queue()
            process = spawn.Process(target=measure, args=(name, rows, results))
            process.start()
            memory, cpu = results.get()
            process.join()
            report({"query": name, "records": f"{rows:,}", "memory, MB": f"{memory:.0f}", "CPU, s": f"{cpu:.1f}"})


if __name__ == "__main__":
    main()
