"""Results of experiments as a page in one file: figures, claims with verdicts, every epsilon, settings and tables.

All of it is what the record of a result says (``NAME.json``), and its figure (``NAME.png``).
"""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tacita.report.html_page import bullets, facts, page, table
from tacita_reproductions.result_cells import cell, is_epsilon

PUBLIC = (
    "All data are synthetic or public, so nothing here is private. An epsilon says what the method would guarantee for "
    "data that are not public. “Nominal” or “claimed” is what the paper calls it; every other one is an upper bound "
    "that an accountant proves, rounded up, under the conditions that the settings above name."
)
NO_EPSILON = "The table states no epsilon."
NAMING = ("data", "method", "optimizer")  # columns that say whose epsilon it is
VERBS = {"holds": "hold", "depends": "depend", "FAILS": "fail"}
FULL, REDUCED = "the published size (--full)", "reduced"


@dataclass(frozen=True)
class ResultOnPage:
    """A result as its files have it.

    Attributes:
        record: What ``NAME.json`` has.
        figure: The bytes of ``NAME.png``; ``None`` if there is no figure.
    """

    record: Mapping[str, Any]
    figure: bytes | None = None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.record["name"]

    @property
    def verdict(self) -> str:
        """How many claims hold, and how many do not, in words."""
        count = Counter(check["verdict"] for check in self.record["checks"])
        if not count:
            return "No claim is checked"
        words = {word: says if count[word] != 1 else f"{says}s" for word, says in VERBS.items()}
        rest = [f"{count[word]} {words[word]}" for word in ("depends", "FAILS") if count[word]]
        return "; ".join([f"{count['holds']} of {sum(count.values())} claims {words['holds']}", *rest])

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(check["verdict"] == "holds" for check in self.record["checks"])


def result_page(results: Sequence[ResultOnPage], *, title: str | None = None, missing: Sequence[str] = ()) -> str:
    """Return the page of one or several results. It makes no request, and needs no script.

    Args:
        results: The results, all of one paper, at least one.
        title: The heading; by default the names of the experiments.
        missing: Names of the paper's experiments that there are no results of.
    """
    heading = title or f"Reproduction: {', '.join(result.name for result in results)}"
    before = ""
    if len(results) > 1:
        links = "".join(f'<li><a href="#{escape(one.name)}">{escape(one.name)}</a></li>' for one in results)
        rows = [(one.name, _size(one.record), one.verdict, one.record["title"]) for one in results]
        overview = table(("experiment", "size", "verdict", "what it shows"), rows, "All experiments of this page")
        before = f'<nav aria-label="Experiments"><ul>{links}</ul></nav>{overview}'
    sections = "".join(_section(result) for result in results)
    lacks = list(dict.fromkeys(text for one in results for text in one.record["not_reproduced"]))
    lacks += [f"{name} has no result in this folder: run tacita reproduce {name}." for name in missing]
    end = f"<h2>Not reproduced, and why</h2>{bullets(lacks or ['Nothing that is known of.'])}"
    return page(heading, f'<header><h1>{escape(heading)}</h1></header><main id="main">{before}{sections}{end}</main>')


def _section(result: ResultOnPage) -> str:
    record, name = result.record, escape(result.name)
    versions = ", ".join(f"{package} {number}" for package, number in record["versions"].items())
    run = {
        "Source": record["source"],
        "Size": _size(record),
        "Data": record.get("data", "not recorded"),
        "Seed": record.get("seed", "not recorded"),
        "Versions": versions or "not recorded",
    }
    claims = [
        (check["says"], check["found"] or "see the table of results", check["verdict"]) for check in record["checks"]
    ]
    judged = (
        table(("claim", "found here", "verdict"), claims, f"Claims and verdicts of {result.name}") if claims else ""
    )
    return (
        f'<section id="{name}" aria-label="{name}"><h2>{name}</h2><p>{escape(record["title"])}</p>'
        f'<div class="verdict {"good" if result.holds else "bad"}"><strong>{escape(result.verdict)}</strong></div>'
        f"{facts(run)}{_figure(result)}<h3>Claims</h3>{judged or '<p>No claim is checked.</p>'}"
        f"<h3>Settings</h3>{bullets(record['notes'] or ['none beside those of the table'])}"
        f"<h3>Nominal and real epsilon</h3>{_epsilons(result)}<h3>Results</h3>{_rows(result)}"
        f"<details><summary>The whole record of {name} as JSON</summary><pre tabindex='0' role='region' "
        f'aria-label="The whole record of {name}">{escape(_json(record))}</pre></details></section>'
    )


def _size(record: Mapping[str, Any]) -> str:
    return FULL if record.get("full") is True else REDUCED


def _figure(result: ResultOnPage) -> str:
    if result.figure is None:
        return ""
    says = f"Figure of {result.name}: {result.record['title']} Its numbers are in the table of results."
    data = base64.b64encode(result.figure).decode()
    return f'<figure><img alt="{escape(says)}" src="data:image/png;base64,{data}"></figure>'


def _epsilons(result: ResultOnPage) -> str:
    """Return the epsilons of the table, each combination once."""
    rows = result.record["rows"]
    shown = [name for name in (rows[0] if rows else ()) if name in NAMING or is_epsilon(name)]
    if not any(is_epsilon(name) for name in shown):
        return f"<p>{PUBLIC}</p><p>{NO_EPSILON}</p>"
    found = list(dict.fromkeys(tuple(cell(name, row[name]) for name in shown) for row in rows))
    return f"<p>{PUBLIC}</p>{table(shown, found, f'Every epsilon of {result.name}')}"


def _rows(result: ResultOnPage) -> str:
    rows = result.record["rows"]
    if not rows:
        return "<p>There is no table.</p>"
    cells = [[cell(name, value) for name, value in row.items()] for row in rows]
    return table(list(rows[0]), cells, f"Results of {result.name}, to four digits")


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=2, ensure_ascii=False)
