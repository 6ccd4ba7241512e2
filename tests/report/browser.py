"""Chromium without a window, and axe-core in it: what a page's markup and colours keep from people. No network."""

import importlib.util
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
DARK = "@media (prefers-color-scheme: dark)"
SHOW = """
function tell(found) {
  const shown = document.createElement('pre');
  shown.id = 'told';
  shown.textContent = JSON.stringify(found);
  document.body.append(shown);
}
"""
TELL = """
axe.run(document, {runOnly: RULES}).then(found => tell({passes: found.passes.map(one => one.id),
  violations: found.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))])}));
"""
LOST = """
tell([...document.querySelectorAll('main *')].filter(one => !one.closest('nav, svg') && (!one.checkVisibility() ||
  one.scrollWidth > Math.max(one.clientWidth, one.offsetWidth))).map(one => one.outerHTML.slice(0, 200)));
"""


HEIGHT = "tell(document.querySelector('.first').getBoundingClientRect().bottom);"


def axe_script() -> Path | None:
    """The script of axe-core in one of the packages that bring it; ``None`` if neither is installed."""
    for package in ("axe_playwright_python", "axe_core_python"):
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            return Path(found.origin).with_name("axe.min.js")
    return None


def opened(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The page as Chromium has it in the end, and its log."""
    assert CHROMIUM is not None
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={path}.user"]
    return subprocess.run(
        [CHROMIUM, *quiet, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, check=True
    )


def accessibility(text: str, path: Path, *, dark: bool = False, width: int = 1200) -> tuple[set[str], dict[str, list]]:
    """The rules of axe-core that hold on a page, and those that do not, with the pieces that break them.

    ``dark`` makes the page's dark colours the only ones.
    """
    script = axe_script()
    assert script is not None
    tell = TELL.replace("RULES", json.dumps(RULES))
    found = asked(text, path, script.read_text(), tell, medium=DARK if dark else "", width=width)
    return set(found["passes"]), dict(found["violations"])


def lost_in_print(text: str, path: Path) -> list[str]:
    """The pieces of a page that are cut or collapsed where it is printed on A4 with margins of 1 cm."""
    return asked(text, path, LOST, medium="@media print", width=718)


def height_of_first_page(text: str, path: Path) -> float:
    """The height of what is printed before the charts, in pixels; a page of A4 with margins of 1 cm has 1046."""
    return asked(text, path, HEIGHT, medium="@media print", width=718)


def asked(text: str, path: Path, *scripts: str, medium: str, width: int) -> Any:
    """What the last script, which calls ``tell``, found on a page on which the rules of ``medium`` hold.

    The page's policy, which allows no script, is taken out of the copy that is opened.
    """
    copy, taken = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert taken == 1
    if medium:
        assert medium in copy
        copy = copy.replace(medium, "@media all")
    added = "".join(f"<script>{one}</script>" for one in (SHOW, *scripts))
    path.write_text(copy.replace("</body>", f"{added}</body>"))
    shown = opened(path, "--virtual-time-budget=60000", f"--window-size={width},900").stdout
    (found,) = re.findall(r'<pre id="told">(.*?)</pre>', shown, re.DOTALL)
    return json.loads(unescape(found))
