"""``tacita audit``: measure a lower bound on an oracle's epsilon, and compare it with the claim.

Audits by name run on synthetic data sets, which are not private.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tacita import _validate
from tacita._near_names import did_you_mean
from tacita._whole_numbers import WHOLE
from tacita.cli.audit_one_run import CONFIDENCE, one_run
from tacita.cli.outputs import check_figure, check_file, say_written, write_json
from tacita.cli.working import Working

if TYPE_CHECKING:
    from tacita.testing.named_audits import ReadyAudit
    from tacita.testing.result import AuditResult

CONSISTENT, REFUTED = 0, 1
HELP = """Measure a lower bound on an oracle's epsilon, and compare it with its claim.

Without a name, list what can be audited. These runs use synthetic data sets, which are not private.
Exit code 0: consistent with the claim; 1: refuted.

Example: tacita audit dp-sgd --runs 200000 --json audit.json --plot audit.png
"""


def audit(
    name: str | None = None,
    /,
    *,
    noise: str | None = None,
    runs: Annotated[int, WHOLE] = 100_000,
    delta: float = 1e-2,
    confidence: float = 0.95,
    seed: Annotated[int, WHOLE] = 0,
    json_: Annotated[Path | None, Parameter(name="--json")] = None,
    plot: Path | None = None,
    quiet: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run an oracle many times on two neighbouring data sets, and print a lower bound on epsilon.

    Without a name, list what can be audited. Exit code 0: consistent with the claim; 1: refuted.

    Example: tacita audit dp-sgd --runs 200000 --json audit.json --plot audit.png

    Args:
        name: The audit's name.
        noise: One of the audit's noises, which the list shows; "half" adds half of the claimed noise, to see an audit
            that refutes.
        runs: Number of runs on each of the two data sets.
        delta: The delta at which epsilon is measured. Far below 0.01 there are too few runs to measure it. dicesgd's
            published formulas (--noise theorem_3_7, automatic) are always compared at their own delta, 1e-5.
        confidence: Confidence of the bound on epsilon. The verdict has its own: one wrong "refuted" in a million
            audits.
        seed: Seed of the runs.
        json_: Write the result to this file.
        plot: Draw the claimed and the measured trade-off curve into this file (PNG, SVG, PDF; needs matplotlib).
        quiet: Print no progress on standard error.
    """
    if name is None:
        print(_listed())
        return CONSISTENT
    ready = _ready(name)
    _validate.inside("delta", delta)
    _validate.inside("confidence", confidence, hint=CONFIDENCE)
    check_file("json", json_)
    check_figure("plot", plot)
    found = _measured(
        ready, _noise(ready, noise), runs=runs, delta=delta, confidence=confidence, seed=seed, quiet=quiet
    )
    print(found)
    if json_ is not None:
        write_json(json_, found.to_json())
    if plot is not None:
        from tacita.report.tradeoff import save_tradeoff

        save_tradeoff(found, plot)
    for path in (json_, plot):
        if path is not None and not quiet:
            say_written(path)
    return REFUTED if found.verdict == "refuted" else CONSISTENT


def _measured(
    ready: "ReadyAudit", noise: str, *, runs: int, delta: float, confidence: float, seed: int, quiet: bool
) -> "AuditResult":
    from tacita.testing.audit import audit_oracle

    made = 0
    with Working(f"{ready.name}: trying adversaries", quiet=quiet) as working:

        def show(done: int) -> None:
            nonlocal made
            made += done
            working.show(f"{ready.name}: runs", made / (2 * runs))

        return audit_oracle(
            ready.make(noise),
            relation=ready.relation,
            delta=delta,
            runs=runs,
            adversaries=ready.adversaries,
            columns=ready.columns,
            confidence=confidence,
            seed=seed,
            name=ready.name if noise == ready.noises[0] else f"{ready.name}, noise {noise}",
            claim=ready.claim(noise, delta),
            progress=show,
        )


def _ready(name: str) -> "ReadyAudit":
    from tacita.cli.named_audits import READY

    if name not in READY:
        raise ValueError(f"name must be one of {', '.join(READY)}, got {name!r}.{did_you_mean(name, READY)}")
    return READY[name]


def _noise(ready: "ReadyAudit", noise: str | None) -> str:
    chosen = ready.noises[0] if noise is None else noise
    if chosen not in ready.noises:
        near = did_you_mean(chosen, ready.noises)
        raise ValueError(f"noise must be one of {', '.join(ready.noises)} for {ready.name}, got {noise!r}.{near}")
    return chosen


def _listed() -> str:
    from tacita.cli.named_audits import READY

    wide = max(map(len, READY)) + 2
    lines = []
    for ready in READY.values():
        lines += [f"  {ready.name:<{wide}}{ready.help}", f"  {'':<{wide}}--noise {' | '.join(ready.noises)}"]
    yours = (
        "tacita audit one-run RUN trains the configuration of a run again, with canaries. It reads the same rows, and",
        "spends privacy on them. See tacita audit one-run --help.",
    )
    return "\n".join(["What can be audited (tacita audit NAME):", "", *lines, "", *yours])


APP = App(name="audit", help=HELP, help_epilogue="")
APP.default(audit)
APP.command(one_run)
