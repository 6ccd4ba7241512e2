"""The frame of a page in one file: its style, and small pieces of HTML. The page loads nothing from anywhere."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tacita.ledger.text_lines import in_words

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # no request leaves the page
STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --line: #8a9099; --soft: #f2f4f6; --good: #00694a;
  --bad: #a8321e; --link: #005a9c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #15181c; --line: #9aa1aa; --soft: #20252b;
  --good: #5fd3a8; --bad: #ff9c85; --link: #8cc4ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main, header, footer { max-width: 62rem; margin: 0 auto; padding: 0 1rem; }
a { color: var(--link); } a:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 3px solid
  var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; background: var(--paper); }
h1 { margin: 1.2rem 0 .2rem; line-height: 1.2; } h2 { margin: 2.4rem 0 .4rem; } h3 { margin: 1.4rem 0 .2rem; }
.verdict { border: 2px solid currentColor; border-radius: .5rem; padding: .6rem 1rem; margin: .8rem 0; }
.verdict strong { font-size: 1.25rem; } .good { color: var(--good); } .bad { color: var(--bad); }
.verdict p { margin: .2rem 0; color: var(--ink); }
dl { display: grid; grid-template-columns: minmax(8rem, 14rem) 1fr; gap: .2rem 1rem; margin: .4rem 0; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem; }
img { max-width: 100%; height: auto; background: #fff; }
figure { margin: 0; } figcaption { font-size: .92rem; } svg { width: 100%; height: auto; } .tip:hover { opacity: .6; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); }
details { margin: .4rem 0; } summary { cursor: pointer; } pre { background: var(--soft); padding: .8rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .8rem; line-height: 1.35; }
.sign { display: grid; grid-template-columns: repeat(3, 1fr); gap: 1.5rem; margin-top: 2.6rem; }
.sign span { border-top: 1px solid currentColor; font-size: .85rem; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } .sign { gap: .6rem; } }
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; --line: #777; --soft: #fff; --good: #000;
  --bad: #000; } body { font-size: 10pt; line-height: 1.35; } .first { break-after: page; font-size: 8pt;
  line-height: 1.2; } .first :is(h2, h3, ul, p, dl, .verdict) { margin-block: .2rem; } .first dl { row-gap: 0; }
  .first .verdict strong { font-size: 1rem; } dl { grid-template-columns: 8rem 1fr; }
  .first > div { break-inside: avoid; } h3 { break-after: avoid; } .charts {
  grid-template-columns: repeat(2, minmax(0, 1fr)); } figure, tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; } summary { list-style: none; }
  .wide { overflow: visible; } table { font-size: 8pt; } th, td { padding-right: .4rem; overflow-wrap: anywhere; }
  thead th { overflow-wrap: normal; } .shapes th { overflow-wrap: anywhere; }
  section[id] ~ section, nav ~ section { break-before: page; }
  pre { padding: 0; font-size: 7.5pt; }
  .skip, nav { display: none; } h1 { margin-top: 0; font-size: 1.4rem; } h2 { margin-top: 1rem; } }
"""


def page(title: str, body: str) -> str:
    """Return a whole document; ``body`` is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the content</a>\n{body}\n</body>\n</html>\n'
    )


def facts(entries: Mapping[str, Any]) -> str:
    """Return a list of names and values."""
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{words(value)}</dd>" for name, value in entries.items()) + "</dl>"
    )


def bullets(entries: Iterable[Any]) -> str:
    """Return a list of texts."""
    return "<ul>" + "".join(f"<li>{words(entry)}</li>" for entry in entries) + "</ul>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table with a caption, which scrolls on its own where the screen is narrow."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def words(value: Any) -> str:
    """Return a value of a statement in words, safe inside HTML."""
    return escape(in_words(value))
