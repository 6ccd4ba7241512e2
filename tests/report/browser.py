"""Chromium without a window, and axe-core in it: what a page's markup and colours keep from people. No network."""

import importlib.util
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
DARK = "@media (prefers-color-scheme: dark)"
TELL = """
axe.run(document, {runOnly: RULES}).then(found => {
  const shown = document.createElement('pre');
  shown.id = 'axe-found';
  shown.textContent = JSON.stringify({passes: found.passes.map(one => one.id), violations: found.violations.map(
    one => [one.id, one.nodes.map(node => node.html.slice(0, 200))])});
  document.body.append(shown);
});
"""


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

    The page's policy, which allows no script, is taken out of the copy that is opened; ``dark`` makes its dark colours
    the only ones.
    """
    script = axe_script()
    assert script is not None
    copy, taken = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert taken == 1
    if dark:
        assert DARK in copy
        copy = copy.replace(DARK, "@media all")
    tell = TELL.replace("RULES", json.dumps(RULES))
    path.write_text(copy.replace("</body>", f"<script>{script.read_text()}</script><script>{tell}</script></body>"))
    shown = opened(path, "--virtual-time-budget=60000", f"--window-size={width},900").stdout
    (found,) = re.findall(r'<pre id="axe-found">(.*?)</pre>', shown, re.DOTALL)
    told = json.loads(unescape(found))
    return set(told["passes"]), dict(told["violations"])
