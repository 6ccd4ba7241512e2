"""Write ``docs/pitfalls.md``: every pitfall, what stands in its way, and the tests that see it planted.

Run it with ``python -m tests.planted.table``. With ``--check`` it writes nothing and fails if the page is stale.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.planted.bugs import BUGS
from tests.planted.pitfalls import ITSELF, PITFALLS, SECTIONS, Pitfall
from tests.planted.plant import Bug
from tests.planted.substitutions import Substitution, load

PAGE = Path(__file__).parents[2] / "docs" / "pitfalls.md"
HEAD = """# Ways that private training goes wrong

*This page is generated from `tests/planted` by `make pages`.*

Each row is a failure of a published library or paper, or of a prototype of ours. Beside it stands what makes it
impossible here, and the bugs that are planted to see whether the tests would notice. Every [planted bug](#planted-bugs)
is put into the code by `tests/planted/test_planted.py`, and the tests named beside it must fail (`make test` asks the
cheapest, `make audit` all); without a bug the same tests must pass. A row marked *later* waits for a part that does not
exist yet; what can be planted of it already is.

The [last table](#planted-as-a-change-of-text) has bugs that are a text of a file and what stands there instead. Most of
them concern combinations: a maximum, shares, several parameters, sessions or rounds, an argument that is passed on.
"""


def page() -> str:
    """The whole page."""
    rows = {pitfall.row: pitfall for pitfall in PITFALLS}
    parts = [HEAD]
    for section, numbers in SECTIONS.items():
        lines = [_row(rows[number]) for number in numbers if number in rows]
        parts.append(_table(section, "# | pitfall | what stands in the way | planted", lines))
    columns = "bug | what goes wrong | seen by"
    parts.append(_table("Planted bugs", columns, map(_entry, _by_name())))
    parts.append(_table("Planted as a change of text", f"{columns} | in", map(_text_entry, load().values())))
    return "\n".join(parts)


def _by_name() -> list[Bug]:
    return sorted(BUGS.values(), key=lambda bug: bug.name)


def _table(heading: str, columns: str, lines: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in columns.split(" | "))
    return "\n".join([f"## {heading}", "", *(f"| {line} |" for line in (columns, rule, *lines))]) + "\n"


def _row(pitfall: Pitfall) -> str:
    planted = ", ".join(f"`{bug.name}`" for bug in [*_by_name(), *load().values()] if pitfall.row in bug.rows)
    later = f"*later: {pitfall.later}*" if pitfall.later else ""
    every = "all of them" if pitfall.row == ITSELF else ""
    last = "; ".join(part for part in (later, planted, every) if part)
    return f"{pitfall.row} | {pitfall.failure} | {pitfall.answer} | {last}"


def _entry(bug: Bug | Substitution) -> str:
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in bug.caught_by)
    return f"`{bug.name}` | {bug.says} | {tests}"


def _text_entry(bug: Substitution) -> str:
    return f"{_entry(bug)} | `{bug.file}`"


def main(arguments: list[str]) -> int:
    stale = not PAGE.exists() or PAGE.read_text() != page()
    if stale and "--check" not in arguments:
        PAGE.write_text(page())
        print(f"wrote docs/{PAGE.name}")
        return 0
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
