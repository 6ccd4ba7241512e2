"""The Python blocks of the pages run, one page after the other from its top; links between pages lead somewhere."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from runpy import run_path

import pytest
import torch

from tacita.cli.app import make_app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TARGET = re.compile(r"^make ([a-z]+)", re.MULTILINE)
COMMAND = re.compile(r"^(tacita [a-z].*)$", re.MULTILINE)
PATH = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md))(?:::\w+)?`")
BY_NAME = re.compile(r"tacita\[|install tacita")
EXTRAS = re.compile(r"""['"`]\.\[([\w,]+)\]""")
MENTIONED = re.compile(r"docs/[\w/.-]+\.md")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code(text: str) -> str:
    """The blocks of a page, in order, as one script; a reader may paste them one after the other."""
    return "\n".join(body if kind == "python" else as_calls(body) for kind, body in BLOCK.findall(text))


def as_calls(console: str) -> str:
    """The commands of a block, as calls of the command line within this process."""
    return "".join(f"run_command({shlex.split(line)[1:]!r})\n" for line in console.splitlines())


def run_command(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        make_app()(words)
    assert not end.value.code, words


def broken_links(page: Path, text: str) -> list[str]:
    plain = re.sub(r"\$\$.+?\$\$|\$[^$]+\$", "", text, flags=re.DOTALL)  # a bracket in a formula is no link
    local = [target for target in LINK.findall(plain) if "://" not in target]
    return [target for target in local if not (page.parent / target).exists()]


SNIPPETS = [page for page in PAGES if code(page.read_text())]


@pytest.mark.parametrize("page", SNIPPETS, ids=name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code(page.read_text()), name(page), "exec"), {"__name__": "snippet", "run_command": run_command})
    if page.name == "README.md":
        assert "PRIVACY STATEMENT" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    assert not broken_links(page, page.read_text())


def test_the_link_check_can_fail(tmp_path: Path):
    (tmp_path / "there.md").touch()
    text = "[a](there.md) [b](gone.md) [c](https://example.org) [d](there.md#part)"
    assert broken_links(tmp_path / "page.md", text) == ["gone.md"]


def test_the_snippets_are_found():
    assert ROOT / "README.md" in SNIPPETS
    assert code("a\n```python\nx = 1\n```\n```\ny\n```\n```python\nx += 1\n```\n") == "x = 1\n\nx += 1\n"
    assert code("```console\ntacita list runs\n```\n") == "run_command(['list', 'runs'])\n"


def test_every_make_target_of_the_pages_exists():
    """``make help`` lists every target that the README and CONTRIBUTING name."""
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {target for page in PAGES[:2] for target in TARGET.findall(page.read_text())}
    assert {"demo", "test"} <= named
    assert all(f"make {target} " in listed for target in named)


def test_the_readme_shows_what_the_demo_prints(capsys):
    (shown,) = re.findall(r"`make demo` prints .*?```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run_path(str(ROOT / "examples" / "demo.py"))["main"]()
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMAND.findall((ROOT / "README.md").read_text()))
def test_commands_of_the_readme_are_those_of_the_command_line(command: str):
    words = shlex.split(command)[1:]
    function, bound, _ = make_app().parse_args(words, exit_on_error=False, print_error=False)
    assert function.__name__.startswith(words[1] if words[0] == "federate" else words[0])
    assert bound.arguments


def test_the_federation_of_the_readme_is_that_of_the_tutorial():
    """Whoever pastes its lines beside the tutorial's files has a server and a client that reach each other."""
    page = (ROOT / "docs" / "federated-flower.md").read_text()
    tutorial = re.findall(r"^tacita federate .*$", page[page.index("**3. Run it**") :], re.MULTILINE)[:2]
    assert re.findall(r"^tacita federate .*$", (ROOT / "README.md").read_text(), re.MULTILINE) == tutorial


def gone_paths(page: Path, text: str) -> list[str]:
    """The files in backticks that are nowhere: pages name them from the root, or from a folder of their subject."""
    folders = [page.parent, *(ROOT / folder for folder in (".", "src/tacita", "tests", "reproductions/src"))]
    return [path for path in PATH.findall(text) if not any((folder / path).exists() for folder in folders)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_the_pages_name_exist(page: Path):
    assert not gone_paths(page, page.read_text())


def test_the_check_of_files_can_fail(tmp_path: Path):
    text = "`tests/test_docs.py`, `oracles/gate.py`, `oracles/gone.py::test_it`, `.ci/run`, `runs/mine.txt`"
    assert gone_paths(tmp_path / "page.md", text) == ["oracles/gone.py"]


def test_every_page_that_the_code_mentions_exists():
    """Docstrings and messages send their readers to pages under docs/."""
    sources = [path for folder in ("src", "examples", "reproductions/src") for path in (ROOT / folder).rglob("*.py")]
    gone = {
        f"{name(path)}: {page}"
        for path in sources
        for page in MENTIONED.findall(path.read_text())
        if not (ROOT / page).exists()
    }
    assert not gone, "\n".join(sorted(gone))


def named_on_an_index(text: str) -> list[str]:
    """What installs us by a name that is ours on no index, or an extra that is not there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    unknown = [one for found in EXTRAS.findall(text) for one in found.split(",") if one not in extras]
    return [*BY_NAME.findall(text), *unknown]


def test_no_message_and_no_page_installs_tacita_from_an_index():
    """Whoever registers the name there would be installed."""
    sources = [p for folder in ("src", "examples") for end in ("py", "toml") for p in (ROOT / folder).rglob(f"*.{end}")]
    found = {name(path): named for path in [*PAGES, *sources] if (named := named_on_an_index(path.read_text()))}
    assert not found
    told = "pip install 'tacita[report]', install tacita, '.[reprot]', '.[dev,docs]', pip install ./reproductions"
    assert named_on_an_index(told) == ["tacita[", "install tacita", "reprot"]


def test_the_pictures_of_the_concepts_are_those_that_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from docs.make_figures import draw

    draw(tmp_path)
    shown = {
        Path(target).name
        for target in LINK.findall((ROOT / "docs" / "concepts.md").read_text())
        if "figures/" in target
    }
    assert shown == {path.name for path in tmp_path.iterdir()}
    assert "99.97 %" in (tmp_path / "epsilon.svg").read_text()  # rounded up, and never to 100 %
