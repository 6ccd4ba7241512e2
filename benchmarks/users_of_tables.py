"""Persons with several rows in a table: rows with a cap against users as records, by the rules of ``tacita train``.

    python benchmarks/users_of_tables.py [--seeds 5]

2,000 persons hold 20,000 rows of Adult, about ten each or very unequal numbers, and each prefers some classes. Models,
thresholds, sample rate, number of queries, optimizer and average are those of ``tacita train``, and the step size is
the best of three for other rows, with another seed. Nothing is bought: what purchases and score cost is the same either
way. The figures go to docs/how-to-choose.md.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from results import DATA, ROOT, markdown_table, write_section
from users import Rows, compared, dealt, loss_fn, sizes

import tacita
from tacita.tables import rules
from tacita.tables.models import ModelSpec

SCRIPT = "benchmarks/users_of_tables.py"
PAGE = ROOT / "docs" / "how-to-choose.md"
USERS, ROWS, FEATURES, DELTA = 2000, 20_000, 123, 1e-5
CAPS, READS, EPSILONS = (1, 2, 10), (1, 4), (1.0, 4.0, 8.0)
RULES = {"linear": rules.LINEAR, "mlp": rules.NETWORK}
RATES = {"linear": (0.15, 0.5, 1.5), "mlp": (0.7, 2.0, 6.0)}


def adult(heavy: bool) -> tuple[tuple[Rows, Rows, Rows], list[int]]:
    """Return rows to train, tune and score on, and which person has each of the first."""
    generator, data = np.random.default_rng(0), np.load(DATA / "a9a.npz")
    x, y = data["x_train"].astype(np.float32), (data["y_train"] > 0).astype(np.int64)
    order = generator.permutation(len(x))
    x, y = x[order], y[order]
    some = sizes(heavy, generator, users=USERS, rows=ROWS)
    kept, units = dealt(y[6000:], some, generator)
    train, tune, test = (
        (torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
        for rows in (kept + 6000, slice(0, 2000), slice(2000, 6000))
    )
    return (train, tune, test), units


def ways(rows: Rows, units: list[int], rate: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arguments of the oracle, for every way."""
    for cap in CAPS:
        records = tacita.cap_units(rows, units, cap, randomness=tacita.Randomness.insecure(0))
        count = len(records.rows)  # type: ignore[arg-type]
        sampler = tacita.UnitPoissonSampler(sample_rate=rate, num_records=count, max_rows_per_unit=cap)
        yield f"rows, at most {cap}", {"loss_fn": loss_fn, "dataset": records, "sampler": sampler}
    for read in READS:
        sampler = tacita.PoissonSampler(sample_rate=rate, num_records=USERS)
        records = tacita.UserRecords(rows, units, read)
        yield (
            f"users, {read} a query",
            {"loss_fn": tacita.mean_over_views(loss_fn), "dataset": records, "sampler": sampler},
        )


def trained(model_name: str, way: dict[str, Any], mechanism: Any, lr: float, seed: int) -> Any:
    """Return the oracle, if the mechanism is still to be calibrated, or the mean of the last half of the iterates."""
    rule = RULES[model_name]
    model = ModelSpec(name=model_name, num_features=FEATURES, num_outputs=2, width=rule.width).build(seed)
    oracle = tacita.ClippedGradientOracle(
        model,
        **way,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one person"),
        clipper=tacita.FlatClipper(max_grad_norm=rule.max_grad_norm),
        mechanism=mechanism,
        planned_queries=rule.queries,
    )
    if isinstance(mechanism, tacita.CalibratedGaussian):
        return oracle.mechanism
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=rules.MOMENTUM)
    mean = torch.optim.swa_utils.AveragedModel(model)
    for query in range(rule.queries):
        oracle.backward()
        optimizer.step()
        if 2 * query >= rule.queries:
            mean.update_parameters(model)
    return mean.module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    arguments, lines = parser.parse_args(), []
    for heavy in (False, True):
        (train, tune, test), units = adult(heavy)
        counts = np.bincount(units)
        for name, rule in RULES.items():
            for epsilon in EPSILONS:
                line = {"model": name, "rows a person": f"{counts.min()} to {counts.max()}", "epsilon": f"{epsilon:g}"}
                target = tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA)
                print(line, flush=True)
                settings = {"target": target, "rates": RATES[name], "parts": (tune, test), "seeds": arguments.seeds}
                each = ways(train, units, rule.sample_rate)
                lines.append(line | compared(each, partial(trained, name), **settings))
    write_section(SCRIPT, markdown_table(lines), PAGE)


if __name__ == "__main__":
    main()
