"""``tacita reproduce``: run an experiment of a paper, and check whether its claims hold."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tacita.cli.outputs import check_folder, say_written
from tacita.cli.working import Working
from tacita.report.style import need_matplotlib

if TYPE_CHECKING:
    from tacita_reproductions.runner import Experiment, Result

CHECK_FAILED = 1
LEGEND = """
CPU time: about that of one core, without --data and --full; --data: the same with --data FOLDER, a folder of the public
data ("-": the experiment makes its own data; "?": not measured). --full takes far longer."""


def reproduce(
    name: str | None = None,
    /,
    *,
    full: Annotated[bool, Parameter(negative=())] = False,
    output: Annotated[str | None, Parameter(name=("--output", "-o"))] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    data: str | None = None,
    report: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run an experiment of a paper; print its table and whether its claims hold. Without a name, list all.

    Exit code 1 if a claim does not hold, or if the results do not decide it ("depends"). A claim of the paper may well
    fail: the documentation page "Results" says what was found. All data are synthetic or public, so nothing here is
    private.

    Example: tacita reproduce dp-clipped-sgd-floor --output figures

    Args:
        name: Name of the experiment; with --report, of a paper.
        full: Run at the published size; without it, at a reduced one, which takes the minutes that the list says.
        output: Write NAME.json, NAME.txt, the figure NAME.png and the page NAME.html to this folder (needs the extra
            [report]). The experiments dicesgd-* and noisy-sgd-figure-* also keep their single runs there, in
            NAME.runs.jsonl, and go on with them when they are repeated.
        json: Print JSON instead of the table.
        seed: Seed of the synthetic data, and of what is drawn; by default the same in every run.
        data: Folder of public data, for the experiments of a paper that has such (clip21-thresholds: duke.npz and
            leukemia.npz); without it, a small synthetic stand-in.
        report: Run nothing; write the page PAPER.html about all results of one paper that lie in the folder --output.
    """
    from tacita_reproductions import find
    from tacita_reproductions import runner as runs

    if report:
        return _report(name, output, others=full or json or seed is not None or data is not None)
    if name is None:
        return _list(json)
    seed = runs.SEED if seed is None else seed
    experiment = find(name)
    if output is not None:
        need_matplotlib()  # fails before the work, not after it
        check_folder("output", output)
    kept = Path(output) / f"{experiment.name}.runs.jsonl" if output is not None else None
    result = _run(experiment, full, seed, data, kept)

    from tacita_reproductions import result_files
    from tacita_reproductions.catalogue import paper_of

    paper = paper_of(experiment.name)
    record = result_files.as_record(experiment, result, full=full, seed=seed, data=data is not None, paper=paper)
    text = as_text(experiment, result)
    print(result_files.as_json(record) if json else text, end="")
    if output is not None:
        for path in result_files.write(Path(output), record, text, result.draw):
            say_written(path)
    return 0 if result.holds else CHECK_FAILED


def _report(name: str | None, output: str | None, *, others: bool) -> int:
    """Write one page about the results of a paper that lie in a folder."""
    from tacita._files import replace_durably
    from tacita_reproductions import papers, result_files
    from tacita_reproductions.catalogue import find_paper
    from tacita_reproductions.result_page import result_page

    if name is None:
        known = ", ".join(paper.name for paper in papers.PAPERS)
        raise ValueError(f"name is missing: with --report, give the name of a paper, one of {known}.")
    if output is None:
        raise ValueError("output is missing: with --report, give --output FOLDER, the folder with the results.")
    if others:
        raise ValueError("report cannot be given with full, json, seed or data: it runs nothing, so leave them out.")
    paper, folder = find_paper(name), Path(output)
    there = [one.name for one in paper.experiments if (folder / f"{one.name}.json").is_file()]
    if not there:
        raise ValueError(
            f"output must be a folder with results of {name}, and {output!r} has none: run tacita reproduce "
            f"{paper.experiments[0].name} --output {output} first."
        )
    missing = [one.name for one in paper.experiments if one.name not in there]
    page = result_page(
        [result_files.read(folder, one) for one in there], title=f"Reproduction: {paper.title}", missing=missing
    )
    path = folder / f"{paper.name}.html"
    replace_durably(path, page.encode())
    say_written(path)
    return 0


def as_text(experiment: "Experiment", result: "Result") -> str:
    """Return title, table, notes and checks as plain text."""
    from rich.console import Console

    from tacita_reproductions import runner as runs
    from tacita_reproductions.result_cells import as_table

    console = Console(width=160, no_color=True, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(f"{experiment.title}\n{runs.sentence(experiment.source)}")
        if result.rows:
            console.print(as_table(result))
        for note in result.notes:
            console.print(runs.sentence(note))
        for check in result.checks:
            console.print(f"{check.verdict:6} {check.words}")
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _list(json: bool) -> int:
    from tacita_reproductions import catalogue, papers
    from tacita_reproductions.cpu_seconds import CPU_SECONDS

    known = catalogue().values()
    if json:
        from tacita_reproductions.result_files import as_json

        rows = []
        for e in known:
            alone, with_data = CPU_SECONDS.get(e.name, (None, None))
            row = {"name": e.name, "title": e.title, "source": e.source, "reads_data": e.reads_data}
            rows.append({**row, "cpu_seconds": alone, "cpu_seconds_with_data": with_data})
        print(as_json({"experiments": rows}), end="")
        return 0
    width = max((len(e.name) for e in known), default=0)
    print(f"{'name':{width}}  CPU time    --data  what it shows")
    for e in known:
        alone, with_data = CPU_SECONDS.get(e.name, (None, None))
        second = _about(with_data) if e.reads_data else "-"
        print(f"{e.name:{width}}  {_about(alone):>8}  {second:>8}  {e.title}")
    print(LEGEND)
    print(f"Papers, for --report: {', '.join(paper.name for paper in papers.PAPERS)}.")
    return 0


def _about(seconds: float | None) -> str:
    """Return a time in words; ``?`` if it was not measured."""
    if seconds is None:
        return "?"
    if seconds < 1:
        return "<1 s"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _run(experiment: "Experiment", full: bool, seed: int, data: str | None, kept: Path | None) -> "Result":
    with Working(experiment.name) as working:
        return experiment(
            full=full,
            seed=seed,
            progress=lambda share, what: working.show(f"{experiment.name}, {what}", share),
            data=None if data is None else Path(data),
            kept=kept,
        )
