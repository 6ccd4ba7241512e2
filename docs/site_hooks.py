"""Hooks of the site: formulas become MathML, which browsers draw without a script or a network."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
OUTSIDE = "README|CONTRIBUTING|CHANGELOG|src|tests|examples|benchmarks"
TO_THE_REPOSITORY = re.compile(rf"\[([^\]]+)\]\((?:\.\./)+(?:{OUTSIDE})[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Keep the words of links that lead out of the pages, to files of the repository."""
    return TO_THE_REPOSITORY.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    return FORMULA.sub(_drawn, html)


def _drawn(found: re.Match[str]) -> str:
    r"""Return the MathML of a formula that stands in ``\(...\)`` or ``\[...\]``."""
    formula = unescape(found[2]).strip()[2:-2].strip()
    return convert(formula, display="block" if found[1] == "div" else "inline")
