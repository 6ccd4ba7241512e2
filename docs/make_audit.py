"""Write ``audit.md``: every ready audit at full size, with the noise that is claimed and with less.

Run by ``make audit``; some minutes. ``--runs N`` for another size.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tacita.cli.named_audits import READY
from tacita.testing import AuditResult, ReadyAudit, audit_oracle

PAGE = Path(__file__).parent / "audit.md"
DELTA = 1e-2
RUNS = 1_000_000
LEAST = 100_000
HEAD = """# Audits

*This page is written by `make audit`; every number in it was measured.*

For each line of the tables, an oracle was run from beginning to end hundreds of thousands of times, on two neighbouring
data sets that an adversary had chosen. How well the releases distinguish the two data sets gives a lower bound on
epsilon. A lower bound must not exceed a true claim, and it should exceed a false one; the second table tests false
claims. "Consistent" does not prove a claim. It only means that this adversary, with so many runs, has not shown more.

- **claim**: epsilon at delta {delta:g} (or at the delta that is given), as the ledger states it or as it was published.
  At this delta a bound can come close to the truth. At 1e-5, a million runs show about 75 % of a Gaussian's epsilon,
  whatever the oracle.
- **at least**: the measured lower bound, 95 % confidence.
- **of the claim**: bound over claim. If it is below 1, the claim may not be tight (Rényi bounds are not), or the audit
  may have too little power.
- **runs**: number of runs on each of the two data sets. **auc**: area under the ROC curve of the attack on one run.
- A true claim is refuted in at most one audit of a million.

[derivations/audit.md](derivations/audit.md) explains how it works and why the bounds hold. `tacita audit NAME` runs one
line; `tacita.testing.check_oracle` checks any oracle, including your own, against its claim in a few seconds.
"""
OTHERWISE = """## With less noise

The same claims, with less noise than they need: *half* adds half of the stated noise, and the others are published
formulas.
"""
COLUMNS = ("oracle", "what", "relation", "claim", "at least", "of the claim", "runs", "adversary", "auc", "verdict")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    torch.set_num_threads(max(1, min(2, torch.get_num_threads())))
    stated = [(ready, ready.noises[0]) for ready in READY.values()]
    less = [(ready, noise) for ready in READY.values() for noise in ready.noises[1:]]
    sections = [("## As they are", _lines(stated, runs)), (OTHERWISE, _lines(less, LEAST))]
    text = HEAD.format(delta=DELTA)
    for title, lines in sections:
        text += f"\n{title.rstrip()}\n\n" + _row(COLUMNS) + _row(["---"] * len(COLUMNS)) + "".join(lines)
    PAGE.write_text(text)


def _lines(cases: list[tuple[ReadyAudit, str]], runs: int) -> Iterator[str]:
    for ready, noise in cases:
        found = audit_oracle(
            ready.make(noise),
            relation=ready.relation,
            delta=DELTA,
            runs=max(LEAST, min(runs, _affordable(ready))),
            adversaries=ready.adversaries,
            columns=ready.columns,
            name=ready.name if noise == ready.noises[0] else f"{ready.name}, {noise}",
            claim=ready.claim(noise, DELTA),
        )
        print(found.name, found.words(), flush=True)
        yield _line(ready, found)


def _affordable(ready: ReadyAudit) -> int:
    """Runs that take about a minute."""
    rows = 1 + max(adversary.num_others for adversary in ready.adversaries)
    return int(1e8 / (rows * _queries(ready)))


def _queries(ready: ReadyAudit) -> int:
    from tacita.testing.arena import arenas_of

    arenas = arenas_of(ready.make(ready.noises[0]), ready.relation, DELTA, ready.adversaries[:1], columns=ready.columns)
    return arenas[0].queries


def _line(ready: ReadyAudit, found: AuditResult) -> str:
    claimed, bound = found.claim.epsilon, found.epsilon_lower_bound
    return _row(
        [
            found.name,
            ready.help,
            found.relation.replace("_", " "),
            f"{claimed:.3f}" if found.claim.delta == DELTA else f"{claimed:.3f} at {found.claim.delta:g}",
            f"{bound:.3f}",
            f"{bound / claimed:.2f}" if np.isfinite(claimed) else "",
            f"{found.runs:,}",
            f"{found.adversary}; {found.statistic}",
            f"{found.auc:.3f}",
            f"**{found.verdict}**" if found.verdict == "refuted" else found.verdict,
        ]
    )


def _row(cells) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    main()
