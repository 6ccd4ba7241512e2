"""What an epsilon costs and how tight it is: tacita beside dp_accounting's own distributions and Rényi accountant.

Run: python benchmarks/accounting.py [--peer | --grid N [--sparse] [--tightness] [--seed S]]
--grid: CPU seconds over N random settings (--sparse: tiny sample rates and little noise), and with --tightness how
far above dp_accounting's optimistic estimate epsilon is, where that is feasible.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.privacy_accountant import NeighboringRelation
from results import markdown_table, write_section

from tacita import accounting as acc
from tacita.accounting import accountant

CELLS = (  # sample rate, noise over max_contribution, queries, delta
    (0.02, 1.0, 150, 1e-5),
    (0.01, 1.0, 1000, 1e-8),
    (1e-3, 3.0, 10**6, 1e-12),
    (1e-4, 0.8, 10**6, 1e-8),
    (1e-4, 0.8, 10**6, 1e-15),
    (0.01, 1.0, 10**6, 1e-5),
    (1e-6, 20.0, 10**6, 1e-5),
)
SCRIPT = "benchmarks/accounting.py"
FIXED_SIZE = ((100, 10_000, 1000, 1.0), (100, 10_000, 1000, 4.0))  # batch, records, queries, noise
RELATIONS = {
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}
REPEATS = 3
LEAST_FEASIBLE_DELTA = 1e-10  # of dp_accounting's transforms
OPTIMISTIC_SHARE = 4e-3  # of epsilon: what the optimistic estimate may lose
LOSSES = 10.0  # times 1 / noise: about the width of a query's losses
MOST_FEASIBLE_POINTS = 2**18


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """The value, and the median of CPU seconds."""
    seconds, value = [], 0.0
    for _ in range(REPEATS):
        accountant._epsilon.cache_clear()
        start = time.process_time()
        value = work()
        seconds.append(time.process_time() - start)
    return value, statistics.median(seconds)


@dataclass(frozen=True)
class Cell:
    """A setting, and what its epsilon and delta cost.

    Attributes:
        epsilon_seconds: CPU seconds of epsilon.
        delta_seconds: Of delta at that epsilon, and at 0, the larger one.
        setting: Sample rate, noise, queries, delta, relation.
        epsilon: What tacita says.
        loose: Epsilon over dp_accounting's optimistic estimate, minus 1; ``None`` where that is out of reach.
    """

    epsilon_seconds: float
    delta_seconds: float
    setting: tuple[float, float, int, float, str]
    epsilon: float
    loose: float | None


def grid(settings: int, seed: int, sparse: bool, tightness: bool) -> None:
    """CPU seconds over random settings, and how far above an optimistic estimate they are."""
    rng = random.Random(seed)
    found = [one_cell(drawn(rng, sparse), tightness) for _ in range(settings)]
    for name in ("epsilon_seconds", "delta_seconds"):
        seconds = sorted((getattr(cell, name) for cell in found), reverse=True)
        print(f"{name}: median {seconds[settings // 2]:.3f}, 95th percentile {seconds[settings // 20]:.3f}; slowest:")
        for cell in sorted(found, key=lambda cell, name=name: -getattr(cell, name))[:5]:
            print(f"  {getattr(cell, name):.2f} s: {shown(cell)}")
    known = sorted((cell for cell in found if cell.loose is not None), key=lambda cell: -(cell.loose or 0.0))
    print(f"above the optimistic estimate, where that is feasible ({len(known)} settings); loosest:")
    for cell in known[:5]:
        print(f"  {cell.loose:.2e}: {shown(cell)}")


def drawn(rng: random.Random, sparse: bool) -> tuple[float, float, int, float, str]:
    """Sample rate, noise, queries, delta, relation."""
    rate = 10 ** (rng.uniform(-6, -3.5) if sparse else rng.uniform(-6, -0.2))
    noise = 10 ** (rng.uniform(-0.3, 0.1) if sparse else rng.uniform(-0.3, 1))
    queries, delta = int(10 ** rng.uniform(0, 6)), 10 ** rng.uniform(-15, -1)
    return rate, noise, queries, delta, rng.choice(list(RELATIONS))


def one_cell(setting: tuple[float, float, int, float, str], tightness: bool) -> Cell:
    rate, noise, queries, delta, relation = setting
    event = acc.GaussianSumEvent(
        relation=relation, max_contribution=(1.0,), noise_std=(noise,), sampling=acc.PoissonLaw(rate)
    )
    spends = [acc.Spend(event, queries)]
    start = time.process_time()
    epsilon = acc.epsilon(spends, delta).epsilon
    seconds = time.process_time() - start
    others = []
    for at in {epsilon, 0.0}:
        start = time.process_time()
        acc.delta(spends, at)
        others.append(time.process_time() - start)
    return Cell(seconds, max(others), setting, epsilon, looseness(setting, epsilon) if tightness else None)


def looseness(setting: tuple[float, float, int, float, str], epsilon: float) -> float | None:
    """Epsilon over dp_accounting's optimistic estimate; that loses up to an interval a query, and needs a fine grid."""
    rate, noise, queries, delta, relation = setting
    if delta < LEAST_FEASIBLE_DELTA or epsilon == 0:
        return None
    interval = OPTIMISTIC_SHARE * epsilon / queries
    if max(epsilon, LOSSES / noise) / interval > MOST_FEASIBLE_POINTS:
        return None
    one = library.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        neighboring_relation=RELATIONS[relation],
        value_discretization_interval=interval,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    theirs = one.self_compose(queries).get_epsilon_for_delta(delta)
    return epsilon / theirs - 1 if 0 < theirs < math.inf else None


def shown(cell: Cell) -> str:
    rate, noise, queries, delta, relation = cell.setting
    return f"q {rate:.3g}, noise {noise:.3g}, T {queries}, delta {delta:.2g}, {relation}: epsilon {cell.epsilon:.5g}"


def main(peer: bool) -> None:
    lines = []
    for rate, noise, queries, delta in CELLS:
        for relation in ("add_or_remove_one", "replace_one"):
            event = acc.GaussianSumEvent(
                relation=relation, max_contribution=(1.0,), noise_std=(noise,), sampling=acc.PoissonLaw(rate)
            )
            value, seconds = timed(lambda e=event, n=queries, d=delta: acc.epsilon([acc.Spend(e, n)], d).epsilon)
            curve = by_renyi(acc.Spend(event, queries), delta)
            theirs = "-"
            if peer and delta >= LEAST_FEASIBLE_DELTA:
                one = library.from_gaussian_mechanism(
                    noise, sampling_prob=rate, neighboring_relation=RELATIONS[relation], use_connect_dots=True
                )
                theirs = f"{one.self_compose(queries).get_epsilon_for_delta(delta):.4g}"
            session = f"Poisson, rate {rate:g}, noise {noise:g}, {queries:,} queries"
            at = delta, relation
            lines.append(line(session, at, curve=curve, theirs=theirs, value=value, seconds=seconds))
    for batch, records, queries, noise in FIXED_SIZE:
        event = acc.GaussianSumEvent(
            relation="replace_one",
            max_contribution=(1.0,),
            noise_std=(noise,),
            sampling=acc.FixedSizeLaw(batch_size=batch, num_records=records),
        )
        value, seconds = timed(lambda e=event, n=queries: acc.epsilon([acc.Spend(e, n)], 1e-5).epsilon)
        curve = by_renyi(acc.Spend(event, queries), 1e-5)
        session = f"{batch} of {records:,} records, noise {noise:g}, {queries:,} queries"
        lines.append(line(session, (1e-5, "replace_one"), curve=curve, theirs="-", value=value, seconds=seconds))
    write(lines)


def by_renyi(spend: acc.Spend, delta: float) -> float:
    """Epsilon by Rényi divergences alone."""
    curve = accountant._rdp([spend])
    assert curve is not None
    return curve.epsilon(delta)


def line(
    session: str, at: tuple[float, str], *, curve: float, theirs: str, value: float, seconds: float
) -> dict[str, str]:
    """Print and return one session at (delta, relation)."""
    found = {
        "session": session,
        "delta": f"{at[0]:g}",
        "relation": at[1],
        "before: by Rényi divergences": f"{curve:.4g}",
        "dp_accounting PLD": theirs,
        "epsilon": f"{value:.5g}",
        "CPU, s": f"{seconds:.2f}",
    }
    print(found, flush=True)
    return found


def write(lines: list[dict[str, str]]) -> None:
    body = [
        "## Accounting, before and after",
        "",
        f"`python {SCRIPT} --peer`: epsilon of a session, noise relative to the clipping threshold. Rényi divergences "
        "are what was printed before for small deltas, for a million queries at tiny rates and for batches of a fixed "
        "size (by divergences as tight as they are now; the bound of Wang, Balle and Kasiviswanathan, which was used "
        "for those batches, gives 20.99 in place of 16.91). CPU: median of 3. Tightness and time over random settings: "
        "[derivation](derivations/accounting.md), section 11.",
        "",
        *markdown_table(lines),
        "",
    ]
    write_section(SCRIPT, body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--grid", type=int, metavar="N")
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--tightness", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.grid:
        grid(options.grid, options.seed, options.sparse, options.tightness)
    else:
        main(options.peer)
