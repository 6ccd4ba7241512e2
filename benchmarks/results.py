"""Where figures go: sections of docs/results.md or another page, each between the marks of the script that made it.

The data folder is TACITA_DATA, or ../shared/data beside the repository.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TACITA_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(os.environ.get("TACITA_RESULTS", ROOT / "docs" / "results.md"))


def section(script: str) -> str:
    """What stands between the marks of ``script`` now."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    return text.partition(f"<!-- {script} -->")[2].partition(f"<!-- end of {script} -->")[0]


def write_section(script: str, lines: list[str], page: Path = RESULTS) -> None:
    """Replace what stands between the marks of ``script``, at the end if there are none; the rest of the page stays."""
    opening, closing = f"<!-- {script} -->", f"<!-- end of {script} -->"
    text = page.read_text() if page.exists() else "# Results\n"
    before, _, rest = text.partition(opening)
    after = rest.partition(closing)[2]
    page.parent.mkdir(exist_ok=True)
    page.write_text(before.rstrip("\n") + "\n\n" + "\n".join([opening, *lines, closing]) + (after or "\n"))


def markdown_table(lines: list[dict[str, str]]) -> list[str]:
    """A table with a column for each key; all lines have the same keys."""
    names = list(lines[0])
    rows = [names, ["---"] * len(names), *(list(line.values()) for line in lines)]
    return ["| " + " | ".join(row) + " |" for row in rows]
