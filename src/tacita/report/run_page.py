"""``tacita report``: one or several runs as a page in one file, from their statements and ledgers."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tacita.ledger.run_sections import (
    GIVEN,
    GUARANTEE,
    LEDGER_HASH,
    NOT_VERIFIED,
    OUTSIDE_OF_IT,
    columns_of_guarantee,
    epsilon_in_words,
    files_in_words,
    model_in_words,
    not_to_be_signed,
    other_runs_in_words,
    risk_in_words,
    rows_in_words,
    score_in_words,
)
from tacita.ledger.sections import NEIGHBOURS
from tacita.ledger.text_lines import names_in_words
from tacita.ledger.verdict import TO_SIGN, verdict
from tacita.report.html_page import bullets, facts, page, table
from tacita.report.run_charts import RunChart, charts_of, score_charts, shape_charts, with_own_ids
from tacita.report.run_numbers import RunNumbers
from tacita.tables.run_audit import ANOTHER, UNSEALED, RunAudit
from tacita.tables.run_check import TAMPERED
from tacita.tables.shapes import SOURCE, least_rows, lowest_and_highest, units

VERDICTS = {
    "private": "Private, as stated",
    "private under conditions": "Private only under conditions that nobody enforces",
    "private model, exact score": "The model is private, as stated; the score is exact, outside the guarantee",
    "private model under conditions, exact score": "The model is private only under conditions that nobody enforces; "
    "the score is exact, outside the guarantee",
    "not private": "NOT PRIVATE",
    "ledger not intact": "NOT VERIFIED: the ledger is not intact",
    "changed": "TAMPERED: something was changed since the run was finished",
    "refuted": "REFUTED: an audit measured more than is claimed",
}
OUTSIDE = "It is not part of the sealed ledger."
UNAUDITED = "None lay beside the run when it was edited."
NO_BANDS = "There are no bands of noise: a shape has the privacy noise in it."
WITHHELD = "Nothing else is said here: what the files say now, nobody sealed. The statement below shows what they say."


def report_page(runs: Sequence[RunNumbers]) -> str:
    """Return the page of ``runs``: for each a first page to sign, charts with their tables, and the whole statement.

    All texts and numbers are those of the statement files and of the ledgers, and follow from the weights and purchases
    that a table's run released. The page makes no request, and needs no script.
    """
    title = f"Privacy report: {', '.join(run.folder.name for run in runs)}"
    links = "".join(f'<li><a href="#run-{place}">{escape(run.folder.name)}</a></li>' for place, run in enumerate(runs))
    several = f"<nav aria-label='Runs'><ul>{links}</ul></nav>{_comparison(runs)}" if len(runs) > 1 else ""
    sections = "".join(_section(run, place) for place, run in enumerate(runs))
    return page(title, f'<header><h1>{escape(title)}</h1></header><main id="main">{several}{sections}</main>')


def _comparison(runs: Sequence[RunNumbers]) -> str:
    rows = [
        (run.folder.name, _verdict(run), *columns_of_guarantee(run.fields, run.verdict), _score(run)) for run in runs
    ]
    header = ("run", "verdict", *GUARANTEE, "score")
    shown = "".join(_figure(chart, f"all-{place}", "all runs") for place, chart in enumerate(score_charts(runs)))
    return f'<h2>Comparison</h2>{table(header, rows, "Runs beside each other")}<div class="charts">{shown}</div>'


def _section(run: RunNumbers, place: int) -> str:
    opened = f'<section id="run-{place}" aria-label="{escape(run.folder.name)}">'
    if not run.verdict.verified:
        said = f"{facts({'Epsilon': epsilon_in_words(run.verdict)})}<p>{WITHHELD}</p>{_whole(run)}"
        return f"{opened}<h2>{escape(run.folder.name)}</h2>{_verdict_box(run)}{said}</section>"
    charts = "".join(
        _figure(chart, f"{place}-{number}", run.folder.name) for number, chart in enumerate(charts_of(run))
    )
    note = ""
    if not run.verdict.guaranteed:
        note = "<p>There are no curves of epsilon, because nothing is guaranteed.</p>"
    elif run.fields.get("conditions"):
        note = "<p>The curves hold only under the conditions above.</p>"
    return (
        f'{opened}<div class="first">{_first(run)}</div>'
        f'<h2>Charts</h2>{note}<div class="charts">{charts}</div>{_model(run, place)}{_rest(run)}</section>'
    )


def _model(run: RunNumbers, place: int) -> str:
    """Return what a linear or additive model says of each column, as ``tacita explain`` does; other runs have none."""
    model = run.model
    if model is None or not (found := model.shapes()):
        return ""
    least, name = least_rows(model.preprocessing.survey), run.folder.name
    rows = [(shape.column, f"{shape.importance:.3g}", lowest_and_highest(shape, least)) for shape in found]
    header = ("column", "importance (root mean square over the rows)", "lowest and highest value")
    charts = (_figure(chart, f"{place}-shape-{number}", name) for number, chart in enumerate(shape_charts(model)))
    edited = f"<p>{escape(str(model.statement['headline']))}</p>" if model.written else ""
    said = escape(f"Shown is {units(model.encoder)}, {SOURCE}. {NO_BANDS}")
    importances = table(header, rows, f"Importance of the columns of {name}")
    drawn = f'<div class="charts shapes">{"".join(charts)}</div>'
    return f"<h2>What the model says</h2>{edited}<p>{said}</p>{importances}{drawn}"


def _first(run: RunNumbers) -> str:
    """Return what is printed first: verdict, run, guarantee, what is not covered, caveats, and the signature."""
    fields = run.fields
    given, facts_of_run, dataset = (_mapping(fields.get(name)) for name in ("about", "run", "dataset"))
    said = {title: given[name] for name, title in GIVEN.items() if name in given}
    by_signers = {*TO_SIGN} - {*run.verdict.missing}
    if missing := ", ".join(title.lower() for name, title in GIVEN.items() if name not in {*given, *by_signers}):
        said["Not given"] = missing
    names = {"Id": "id", "Date": "date", "Versions": "versions"}
    own = {title: facts_of_run[name] for title, name in names.items() if name in facts_of_run}
    guarantee = {
        "Epsilon": epsilon_in_words(run.verdict),
        "Delta": fields.get("delta"),
        "For whom": fields.get("privacy_unit"),
        "Neighbours": _relation(fields.get("neighboring_relation")),
        "Conditions that nobody enforces": fields.get("conditions") or "none beside what is not verified",
        "Score": _score(run),
        "Edited": fields.get("headline") if "edits" in fields else None,
        "Clients" if run.clients else "Rows": None if fields.get("rows") is None else rows_in_words(fields["rows"]),
        "Model": model_in_words(fields),
        "Data set": dataset.get("name"),
        "Fingerprint of the data (keyed)": fields.get("data_fingerprint"),
        "Other runs": other_runs_in_words(dataset),
        **files_in_words(fields),
        "Not verified": NOT_VERIFIED,
        "Audit": f"{run.audit.words} {OUTSIDE}" if run.audit else UNAUDITED if "edits" in fields else None,
        LEDGER_HASH: fields.get("ledger_sha256"),
    }
    return (
        f"<h2>{escape(run.folder.name)}</h2>{_verdict_box(run)}"
        f"{facts({name: value for name, value in guarantee.items() if value is not None})}"
        f"<div><h3>This run</h3>{facts({**own, **said})}</div>"
        f"<div><h3>{OUTSIDE_OF_IT}</h3>{bullets(fields.get('not_anonymised') or ['not said'])}</div>"
        f"<div><h3>Caveats</h3>{bullets(fields.get('caveats') or ['none'])}{_signature(run)}</div>"
    )


def _relation(name: Any) -> Any:
    return f"{name}: {NEIGHBOURS[name]}." if name in NEIGHBOURS else name


def _signature(run: RunNumbers) -> str:
    if words := not_to_be_signed(run.verdict):
        return f"<p><strong>{escape(words)}</strong></p>"
    return '<div class="sign"><span>Name</span><span>Date</span><span>Signature</span></div>'


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _verdict_box(run: RunNumbers) -> str:
    faults = bullets(run.faults) if run.faults else ""
    notes = bullets([*filter(None, [not_to_be_signed(run.verdict)]), *run.notes]) if run.verdict.verified else ""
    return (
        f'<div class="verdict {"good" if run.verdict.good else "bad"}"><strong>{escape(_verdict(run))}</strong>'
        f"<p>{escape(risk_in_words(run.fields, run.verdict))}</p>{faults}{notes}</div>"
    )


def _rest(run: RunNumbers) -> str:
    fields = run.fields
    columns = fields.get("columns")
    listed = ""
    if isinstance(columns, dict):
        names = {name.replace("_", " "): names_in_words(found) for name, found in columns.items()}
        listed = f"<details><summary>Columns</summary>{facts(names)}</details>"
    return (
        f"{_audit(run.audit)}{listed}"
        f"<details><summary>Bought from the data</summary>{bullets(fields.get('purchases') or ['nothing'])}</details>"
        f"<details><summary>Settings chosen by tacita</summary>{bullets(fields.get('chosen_by_tacita') or ['none'])}"
        f"</details>{_whole(run)}"
    )


def _whole(run: RunNumbers) -> str:
    now = f"Verdict now: {run.verdict.in_words()}. What follows was sealed before that.\n\n"
    now *= verdict(run.fields).in_words() != run.verdict.in_words()
    if not run.verdict.verified:
        now = f"{TAMPERED}.\n\n"
    return f"<details open><summary>The whole statement</summary><pre>{escape(now + run.text)}</pre></details>"


def _audit(audit: RunAudit | None) -> str:
    """Return what an audit measured, beside what was claimed, and that no seal covers it."""
    if audit is None:
        return ""
    details = f"{facts(audit.details)}<p>{escape(ANOTHER)}</p>" if audit.details else ""
    where = f"<p>{escape(UNSEALED)}</p><p>From the folder {escape(audit.folder)}.</p>"
    return f"<h2>Audit</h2><p>{escape(audit.words)}</p>{details}{where}"


def _figure(chart: RunChart, name: str, of: str) -> str:
    """Return a chart above the table of its numbers; ``name`` keeps ids apart, ``of`` what a screen reader calls it."""
    numbers = table(chart.header, chart.rows, f"{chart.title}: numbers of {of}")
    return (
        f'<figure><h3>{escape(chart.title)}</h3><div role="img" aria-label="{escape(f"{chart.title}. {chart.says}")}">'
        f"{with_own_ids(chart.svg, name)}</div><figcaption>{escape(chart.says)}</figcaption>"
        f"<details><summary>Numbers of “{escape(chart.title)}”</summary>{numbers}</details></figure>"
    )


def _verdict(run: RunNumbers) -> str:
    return run.verdict.in_words(VERDICTS[run.verdict.word])


def _score(run: RunNumbers) -> str:
    return (score_in_words(run.fields.get("holdout_score")) or "none") if run.verdict.verified else "not verified"
