"""What two products claim, and what was done: epsilon of their own sampling, by the accountant here.

    python benchmarks/peers/recomputed.py

Read from the sources that the patches beside this file name. Safe-Synthesizer charges one Poisson draw a step, at the
rate of the whole batch. With ``poisson_sampling=True`` each micro-batch draws anew, so that a record enters a step as
often as ``gradient_accumulation_steps``; as shipped, batches are slices of a permutation, which are no draws at all.
mostlyai-engine charges what it draws, but begins at 0 when it goes on training earlier weights (``reuse``). Of neither
is the loss counted here that divides by the other records' tokens: no accountant bounds that.
"""

from tacita.accounting import (
    Event,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    Spend,
    calibrate,
    epsilon,
    gaussian_sum_event,
)

PRESENT, ZEROED = "add_or_remove_one", "zero_out_one"


def event(law: SamplingLaw, noise_multiplier: float, relation=PRESENT) -> Event:
    return gaussian_sum_event(law, (1.0,), (noise_multiplier,), relation)


def spent(
    law: SamplingLaw, noise_multiplier: float, steps: int, delta: float, *, runs: int = 1, relation=PRESENT
) -> float:
    """Return epsilon of ``runs`` runs of ``steps`` steps each."""
    return epsilon([Spend(event(law, noise_multiplier, relation), steps)] * runs, delta).epsilon


def calibrated(rate: float, steps: int, claimed: float, delta: float) -> float:
    """Return the noise multiplier with which one Poisson draw a step would be what is claimed."""
    return calibrate(lambda noise: event(PoissonLaw(rate), noise), PRESENT, claimed, delta, queries=steps)


def micro_batches(rate: float, accumulation: int, steps: int, claimed: float, delta: float) -> tuple[float, float]:
    """Safe-Synthesizer with Poisson sampling: ``accumulation`` draws a step, charged as one."""
    noise = calibrated(rate, steps, claimed, delta)
    return claimed, spent(PoissonUnitLaw(rate / accumulation, accumulation), noise, steps, delta)


def permutation(records: int, batch: int, claimed: float, delta: float) -> tuple[float, float]:
    """Safe-Synthesizer as shipped: one pass over a permutation, charged as Poisson. No proof here gives less."""
    steps = records // batch
    noise = calibrated(batch / records, steps + 1, claimed, delta)
    return claimed, spent(ShuffledEpochsLaw(steps, own_coin=False), noise, steps, delta, relation=ZEROED)


def reused(claimed: float, rate: float, noise: float, steps: int, *, runs: int) -> tuple[float, float]:
    """mostlyai-engine, ``runs`` trainings of the same weights by ``reuse``, of which its log has the last one's."""
    return claimed, spent(PoissonLaw(rate), noise, steps, 1e-5, runs=runs)


def cases() -> dict[str, tuple[float, float]]:
    """Return what is claimed and what was done, by configuration."""
    return {
        "Safe-Synthesizer, Poisson: rate 0.1, 8 micro-batches, 100 steps": micro_batches(0.1, 8, 100, 8.0, 1e-5),
        "the same, 32 micro-batches": micro_batches(0.1, 32, 100, 8.0, 1e-5),
        "the same, 8 micro-batches, rate 0.01, 1,000 steps": micro_batches(0.01, 8, 1000, 8.0, 1e-5),
        "Safe-Synthesizer, as shipped: 25,000 records, batch 8": permutation(25_000, 8, 8.0, 25_000**-1.2),
        "the same, claimed 1": permutation(25_000, 8, 1.0, 25_000**-1.2),
        "mostlyai-engine: rate 0.025, noise 1.5, 120 steps, reused twice": reused(0.98, 0.025, 1.5, 120, runs=3),
    }


def main() -> None:
    print(f"{'':<66}{'claimed':>8}{'done':>8}")
    for name, (claimed, done) in cases().items():
        print(f"{name:<66}{claimed:>8.2f}{done:>8.2f}")


if __name__ == "__main__":
    main()
