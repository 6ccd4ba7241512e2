"""Which sampling and noise: the error that each leaves at equal privacy, over that of Poisson sampling.

    python benchmarks/strategies.py
    python benchmarks/strategies.py --break-even

A record is in one of ``batches`` an epoch on average. All sessions have the same (epsilon, delta), under
add_or_remove_one. The error is that of the last iterate of gradient descent: its geometric mean over losses that are
flat to steep (``left_error``). It says what noise is left in a linear model of training; what a
network makes of it is another question. The figures go to docs/strategies.md.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

from results import markdown_table, write_section

from tacita.accounting import Event, calibrate, gaussian_sum_event
from tacita.accounting.sampling_laws import (
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    PoissonLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
)
from tacita.correlated import CorrelatedEvent, recommended_noise, recommended_power
from tacita.correlated.strategy import Factorization, left_error

SCRIPT = "benchmarks/strategies.py"
PAGE = Path(__file__).parents[1] / "docs" / "strategies.md"
RELATION, DELTA = "add_or_remove_one", 1e-5
CELLS = (10, 1), (10, 5), (100, 1), (100, 5), (100, 20), (1000, 1), (1000, 5)  # batches an epoch, epochs
EPSILONS = (1.0, 4.0, 8.0)
INDEPENDENT = Factorization(1, 0.5)


def strategies(batches: int, epochs: int, epsilon: float) -> Iterator[tuple[str, SamplingLaw, Factorization]]:
    """Yield a name, the law of the batches and the noise."""
    queries = batches * epochs
    secret = DisjointLaw(True, batches) if epochs == 1 else ShuffledEpochsLaw(batches, True)
    yield "Poisson", PoissonLaw(1 / batches), INDEPENDENT
    yield "epochs by coin", secret, INDEPENDENT
    for own_coin, name in ((False, "by index"), (True, "by coin")):
        for bands in (2, 8):
            noise = Factorization(bands, recommended_power(queries, separation=batches, bands=bands))
            yield f"cyclic {name}, p {bands}", CyclicLaw(batches, own_coin=own_coin), noise
    target = {"relation": RELATION, "epsilon": epsilon, "delta": DELTA}
    banded = recommended_noise(queries, batches, **target, banded_matrix=True).factorization
    yield "BandMF", CyclicPoissonLaw(banded.bands, banded.bands / batches, own_coin=True), banded


def noise_std(law: SamplingLaw, noise: Factorization, queries: int, epsilon: float) -> float:
    """Return the least noise, over the largest contribution."""
    known = isinstance(law, CyclicLaw) and not law.own_coin  # charged under zero_out_one: no record moves another
    relation = "zero_out_one" if known else RELATION

    def event_at(std: float) -> Event:
        inner = gaussian_sum_event(law, (1.0,), (std,), relation)
        if noise == INDEPENDENT:
            return inner
        return CorrelatedEvent(relation=relation, inner=inner, **noise._asdict())

    return calibrate(event_at, relation, epsilon, DELTA, queries=queries)


def main() -> None:
    lines = []
    for batches, epochs in CELLS:
        for epsilon in EPSILONS:
            queries, line = (
                batches * epochs,
                {"batches": str(batches), "epochs": str(epochs), "epsilon": f"{epsilon:g}"},
            )
            least = 0.0
            for name, law, noise in strategies(batches, epochs, epsilon):
                left = noise_std(law, noise, queries, epsilon) * left_error(noise.weights(queries), queries)
                least = least or left
                line[name] = f"{left / least:.2f}"
            best = min(value for value in list(line.values())[3:])
            lines.append({key: f"**{value}**" if value == best and key not in CELL_NAMES else value
                          for key, value in line.items()})  # fmt: skip
            print(lines[-1], flush=True)
    write_section(SCRIPT, markdown_table(lines), PAGE)


CELL_NAMES = ("batches", "epochs", "epsilon")


def gain(batches: int, epochs: int, epsilon: float, *, own_coin: bool) -> float:
    """Return the error of Poisson sampling with independent noise, over the least of cyclic batches."""
    queries = batches * epochs
    independent = noise_std(PoissonLaw(1 / batches), INDEPENDENT, queries, epsilon) * left_error(
        INDEPENDENT.weights(queries), queries
    )
    if own_coin:
        chosen = recommended_noise(queries, batches, relation=RELATION, epsilon=epsilon, delta=DELTA)
        tried = [chosen.factorization]
    else:
        tried = [Factorization(bands, recommended_power(queries, separation=batches, bands=bands)) for bands in (2, 8)]
    law = CyclicLaw(batches, own_coin=own_coin)
    return independent / min(
        noise_std(law, noise, queries, epsilon) * left_error(noise.weights(queries), queries) for noise in tried
    )


def even_epsilon(batches: int, epochs: int, *, own_coin: bool) -> str:
    """Return the epsilon from which correlated noise leaves less than independent noise, to a tenth of itself."""
    least, most = 0.25, 16.0
    if gain(batches, epochs, most, own_coin=own_coin) < 1:
        return f"above {most:g}"
    if gain(batches, epochs, least, own_coin=own_coin) > 1:
        return f"below {least:g}"
    while most > 1.1 * least:
        middle = math.sqrt(least * most)
        least, most = (least, middle) if gain(batches, epochs, middle, own_coin=own_coin) > 1 else (middle, most)
    return f"{most:.2g}"


def break_even() -> None:
    """Write from which epsilon on correlated noise pays, to docs/how-to-choose.md."""
    lines = []
    for batches, epochs in CELLS[:-1]:
        by_index, by_coin = (even_epsilon(batches, epochs, own_coin=own_coin) for own_coin in (False, True))
        lines.append({"batches an epoch": str(batches), "epochs": str(epochs), "secret groups": by_coin,
                      "groups that are known": by_index})  # fmt: skip
        print(lines[-1], flush=True)
    write_section(SCRIPT, markdown_table(lines), PAGE.with_name("how-to-choose.md"))


if __name__ == "__main__":
    break_even() if "--break-even" in sys.argv else main()
