"""The documentation's site can be read and searched without a network, and loads no script of others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\bsrc="?([^" >]+)|<link[^>]*rel="?stylesheet"?[^>]*href="?([^" >]+)"""
    r"""|(class="mermaid")"""
)
DRAWN = re.compile(r"^(?!\$|tacita|pip|#).*(?: -> | <- |──|→)", re.MULTILINE)


def loaded_from_elsewhere(html: str) -> list[str]:
    """What a page loads from another server; of a diagram in Mermaid the site's own script would fetch the drawing."""
    return [one for pair in LOADED.findall(html) for one in pair if "//" in one or one == 'class="mermaid"']


def test_the_search_has_a_script_of_its_own():
    """Without a file of this name the builder has every page load one from a server of others'."""
    (named,) = re.findall(r"polyfills: \[(.*iframe-worker.*)\]", (ROOT / "mkdocs.yml").read_text())
    assert (ROOT / "docs" / named).is_file()


def too_wide(page: str) -> list[str]:
    """Lines of a page's diagrams that a window of 1300 pixels cuts off (docs/assets/site.css). Code may be wider."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in blocks if not kind and DRAWN.search(block) for line in block.splitlines()]
    return [line for line in lines if len(line) > 110]


def test_diagrams_fit_beside_both_side_bars():
    pages = {page.name: page.read_text() for page in (ROOT / "docs").rglob("*.md")}
    assert not {name: wide for name, text in pages.items() if (wide := too_wide(text))}
    assert too_wide(f"```\ndata -> {'x' * 110}\n```\n")


def test_no_page_of_the_site_loads_anything_from_elsewhere(tmp_path: Path):
    pytest.importorskip("mkdocs_awesome_nav", reason="the site is not installed: make site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"})
    pages = [*tmp_path.rglob("*.html")]
    assert len(pages) > 50
    assert not [(page.name, found) for page in pages if (found := loaded_from_elsewhere(page.read_text()))]
    assert "assets/iframe-worker.js" in (tmp_path / "index.html").read_text()


def test_the_check_can_fail():
    assert loaded_from_elsewhere('<script src="https://a.org/b.js"></script><link rel=stylesheet href=//c.org/d.css>')
    assert loaded_from_elsewhere('<pre class="mermaid">')
    assert not loaded_from_elsewhere('<script src="../a.js"></script><a href="https://b.org">c</a>')
