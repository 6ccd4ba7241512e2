"""The generated parts of ``strategies.md``: every way of drawing batches and every noise, asked from the code.

The page's prose is written by hand, and benchmarks write some tables. What stands between the markers of this file is
written by ``make pages``.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacita.accounting import Spend, epsilon, gaussian_sum_event
from tacita.accounting.events.sampled import SAMPLERS
from tacita.accounting.relations import RELATIONS
from tacita.accounting.sampling_laws import (
    EVERY_LAW,
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    TruncatedPoissonLaw,
)
from tacita.correlated import CorrelatedEvent
from tacita.errors import UnsupportedEventError

PAGE = Path(__file__).parent / "strategies.md"
DELTA, BATCHES, RECORDS, EPOCHS = 1e-5, 100, 10_000, 1
GROUPS = 16  # of cyclic Poisson sampling
BANDS, POWER = 2, 0.5
NOISE_STD = {"independent": 1.0, "correlated": 2.0}
POISSON = PoissonLaw(1 / BATCHES)
TRUNCATED = TruncatedPoissonLaw(1 / BATCHES, 140, RECORDS)
FIXED_SIZE = FixedSizeLaw(RECORDS // BATCHES, RECORDS)
ALLOCATED, SHUFFLED = (ShuffledEpochsLaw(BATCHES, own_coin) for own_coin in (True, False))
CYCLIC, IN_ORDER = (CyclicLaw(BATCHES, own_coin) for own_coin in (True, False))
SAMPLED_TURNS = CyclicPoissonLaw(GROUPS, GROUPS / BATCHES, own_coin=True)
LAWS: tuple[SamplingLaw, ...] = (
    POISSON,
    TRUNCATED,
    FIXED_SIZE,
    FullBatchLaw(),
    ALLOCATED,
    SHUFFLED,
    DisjointLaw(own_coin=False),
    CYCLIC,
    IN_ORDER,
    SAMPLED_TURNS,
    replace(SAMPLED_TURNS, own_coin=False),
    PoissonUnitLaw(1 / BATCHES, 2),
)
PROOFS = {
    PoissonLaw: "accounting",
    TruncatedPoissonLaw: "truncation",
    FixedSizeLaw: "accounting",
    FullBatchLaw: "accounting",
    DisjointLaw: "accounting",
    ShuffledEpochsLaw: "accounting",
    CyclicLaw: "correlated-noise",
    CyclicPoissonLaw: "correlated-noise",
    PoissonUnitLaw: "accounting",
}
MATRIX = "https://github.com/google-deepmind/jax_privacy/blob/8967688c26d46f3b74bfdfe61ef1f984b887abab/docs/batch_selection.md"
# The rows of that page's table: name, how it accounts for it, and the law and noise here; or what is missing here.
JAX_PRIVACY: tuple[tuple[str, str, SamplingLaw | str, str], ...] = (
    ("Poisson sampling", "PLD", POISSON, "independent"),
    ("Cyclic Poisson (BandMF)", "PLD", SAMPLED_TURNS, "correlated"),
    ("Truncated Poisson", "PLD", TRUNCATED, "independent"),
    ("Fixed order, several epochs", "PLD", IN_ORDER, "correlated"),
    ("Fixed size, with replacement", "no accountant", "no sampler, no proof", "independent"),
    ("Fixed size, without replacement", "RDP", FIXED_SIZE, "independent"),
    ("Balls in bins", "Monte Carlo", CYCLIC, "correlated"),
    ("Random allocation, k of t steps", "none", ALLOCATED, "independent"),
    (
        "b-min-sep",
        "Monte Carlo",
        "`CyclicSampler` by coin costs no more; without amplification it is [an example](extending/strategy.md)",
        "correlated",
    ),
    ("User-level wrapper", "that of its base", POISSON, "independent"),
    ("Shuffling", "none", SHUFFLED, "independent"),
    ("Multi-owner b-min-sep", "none", "a record has one owner here", "correlated"),
)
HERE = {
    "Cyclic Poisson (BandMF)": "`CyclicSampler(turn_rate=...)`, `CorrelatedGaussian(banded_matrix=True)`",
    "Fixed order, several epochs": "`CyclicSampler` by index, `CorrelatedGaussian`",
    "Balls in bins": "`CyclicSampler` by coin, either noise",
    "Random allocation, k of t steps": "`AllocatedSampler`: once in each of k epochs, at the same bound",
    "User-level wrapper": "`UserRecords` with any sampler",
    "Shuffling": "`ShuffledEpochsSampler`",
}


def cost(law: SamplingLaw, noise: str, relation: Any) -> str:
    """Return epsilon of the example, as a bound that is rounded up; or why there is none."""
    queries = 1 if isinstance(law, FullBatchLaw) else BATCHES * EPOCHS
    event = gaussian_sum_event(law, (1.0,), (NOISE_STD[noise],), relation)
    if noise == "correlated":
        banded = isinstance(law, CyclicPoissonLaw)
        event = CorrelatedEvent(
            relation=relation, inner=event, bands=GROUPS if banded else BANDS, power=POWER, banded_matrix=banded
        )
    value = epsilon([Spend(event, queries)], DELTA).epsilon
    return f"{value + 0.005:.2f}{' if the condition holds' if event.condition else ''}"


def costs() -> str:
    """Return the table of every kind of sampling, noise and relation, and below it why cells are refused."""
    lines = [
        f"| batches | noise | {' | '.join(RELATIONS)} | proof |",
        "|" + " --- |" * (3 + len(RELATIONS)),
    ]
    assert {law.words for law in LAWS} == {law.words for law in EVERY_LAW}, "the table must have every law"
    reasons: dict[str, int] = {}
    for law in LAWS:
        for noise in NOISE_STD:
            cells = []
            for relation in RELATIONS:
                try:
                    cells.append(cost(law, noise, relation))
                except UnsupportedEventError as error:
                    reason = str(error).removeprefix(f"{law.words}: ")
                    cells.append(f"refused ({reasons.setdefault(reason, len(reasons) + 1)})")
            both = (
                ["correlated-noise"]
                if noise == "correlated"
                else ["allocation" if law is ALLOCATED else PROOFS[type(law)]]
            )
            proof = ", ".join(f"[{name}](derivations/{name}.md)" for name in both if any(c[0].isdigit() for c in cells))
            lines.append(f"| {law.words} | {noise} | {' | '.join(cells)} | {proof or '–'} |")
    return "\n".join(
        [*lines, "", "Refused, in the words of the error:", "", *(f"{i}. {why}" for why, i in reasons.items())]
    )


def jax_privacy() -> str:
    """Return its table of strategies beside what there is here."""
    lines = [f"| [JAX Privacy]({MATRIX}) | its accounting | here | epsilon of the example |", "|" + " --- |" * 4]
    for name, accounting, law, noise in JAX_PRIVACY:
        if isinstance(law, str):
            lines.append(f"| {name} | {accounting} | **missing**: {law} | – |")
            continue
        shown = HERE.get(name, f"`{SAMPLERS.get(type(law), '')}`")
        lines.append(f"| {name} | {accounting} | {shown} | {first_cost(law, noise)} |")
    return "\n".join(lines)


def first_cost(law: SamplingLaw, noise: str) -> str:
    """Return epsilon under the first relation for which there is a proof."""
    for relation in RELATIONS:
        try:
            return f"{cost(law, noise, relation)} ({relation}, {noise} noise)"
        except UnsupportedEventError:
            pass
    raise AssertionError(f"no guarantee is proved for {law.words}")


def page() -> str:
    """Return the text of ``strategies.md``, with the generated parts as the code has them now."""
    text = PAGE.read_text()
    for name, made in {"costs": costs, "JAX Privacy": jax_privacy}.items():
        first, last = f"<!-- generated: {name} -->\n", f"\n<!-- end of generated: {name} -->"
        pattern = re.compile(re.escape(first) + ".*?" + re.escape(last), re.DOTALL)
        parts = pattern.split(text)
        assert len(parts) == 2, f"{PAGE.name} must have one part between {first.strip()} and {last.strip()}"
        text = (first + made() + last).join(parts)
    return text
