"""What BandMF would gain: the error that it leaves at equal privacy, over that of Poisson sampling.

    python benchmarks/bandmf.py

The matrix has the coefficients of (1 - x)^-power, cut after some bands. It is charged as queries / bands queries with
Poisson sampling at rate bands / batches, with the norm of its column (arXiv:2306.08153). It prints the figures of
docs/strategies.md, and takes five minutes.
"""

import itertools

import numpy as np
from scipy.signal import lfilter

from tacita import PoissonSampler
from tacita.accounting import calibrate, gaussian_sum_event
from tacita.accounting.sampling_laws import FullBatchLaw, PoissonLaw
from tacita.correlated import choose_strategy
from tacita.correlated.strategy import coefficients, left_error

RELATION, DELTA = "add_or_remove_one", 1e-5
CELLS = (10, 5), (100, 1), (100, 5), (100, 20), (1000, 1), (1000, 5)  # batches an epoch, epochs
EPSILONS = (1.0, 4.0, 8.0)
BANDS, POWERS = (2, 4, 8, 16, 32, 64), [power / 10 for power in range(1, 10)]


def noise_std(rate: float, queries: int, epsilon: float) -> float:
    """Return the noise of independent queries, over the largest contribution."""
    law = PoissonLaw(rate) if rate < 1 else FullBatchLaw()
    return calibrate(
        lambda std: gaussian_sum_event(law, (1.0,), (std,), RELATION), RELATION, epsilon, DELTA, queries=queries
    )


def banded_error(bands: int, power: float, queries: int) -> float:
    """Return what the noise leaves, times the norm of the matrix's column."""
    steps = np.arange(1, bands)
    column = np.cumprod(np.append(1.0, (steps - 1 + power) / steps))
    inverse = np.asarray(lfilter([1.0], column, np.eye(1, queries)[0]))
    return float(np.linalg.norm(column)) * left_error(inverse, queries)


def main() -> None:
    for (batches, epochs), epsilon in itertools.product(CELLS, EPSILONS):
        queries = batches * epochs
        usual = noise_std(1 / batches, queries, epsilon) * left_error(coefficients(1, 0.5), queries)
        best = min(
            noise_std(min(1.0, bands / batches), -(-queries // bands), epsilon)
            * min(banded_error(bands, power, queries) for power in POWERS)
            for bands in BANDS
            if bands <= batches
        )
        poisson = PoissonSampler(sample_rate=1 / batches, num_records=10_000)
        _, words = choose_strategy(
            "auto",
            poisson,
            lambda sampler, epochs=epochs: sampler.queries_for(epochs),
            relation=RELATION,
            epsilon=epsilon,
            delta=DELTA,
        )
        print(
            f"{batches} batches, {epochs} epochs, epsilon {epsilon:g}: BandMF {best / usual:.2f}; {words}", flush=True
        )


if __name__ == "__main__":
    main()
