"""What the repository must not hold: paths of one machine and package registries; and what it must pin."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPED = {"build", "dist", "runs", "shared", "node_modules", "__pycache__"}
KEPT_DOT = {".ci", ".pre-commit-config.yaml", ".gitignore", ".github"}
SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".json", ".sh", ".csv", ".html", ""}

# Written in pieces, so that this file passes its own test.
MACHINE_PATHS = re.compile(r"(?<![\w.~>])/(?:" + "|".join(["wo" + "rk", "ro" + "ot"]) + r")/|/(?:home|Users)/\w")
REGISTRIES = re.compile(
    "|".join(["py" + r"pi\.org", "python" + "hosted", r"pytorch\.org/wh" + "l", "npm" + r"js\.", "index" + "-url"])
)


def texts() -> Iterator[Path]:
    """Every text file that could be in the repository."""

    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            hidden = path.name.startswith(".") and path.name not in KEPT_DOT
            if hidden or path.name in SKIPPED or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                yield from walk(path)
            elif path.suffix in SUFFIXES:
                yield path

    return walk(ROOT)


def found(pattern: re.Pattern[str], text: str) -> list[str]:
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, REGISTRIES], ids=["machine paths", "registries"])
def test_no_file_names_this_machine_or_a_registry(pattern: re.Pattern[str]):
    wrong = [f"{path.relative_to(ROOT)}:{line}" for path in texts() for line in found(pattern, path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_the_walk_sees_the_repository():
    seen = {str(path.relative_to(ROOT)) for path in texts()}
    assert {"Makefile", "README.md", "pyproject.toml", ".ci/run", "src/tacita/errors.py"} <= seen


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATHS, "open('/wo" + "rk/data.csv')"),
        (MACHINE_PATHS, "/ro" + "ot/.cache"),
        (MACHINE_PATHS, "cd /ho" + "me/ada"),
        (REGISTRIES, "https://py" + "pi.org/simple"),
        (REGISTRIES, "pip install --extra-index" + "-url x"),
    ],
)
def test_the_check_can_fail(pattern: re.Pattern[str], line: str):
    assert found(pattern, line)


def test_every_run_time_dependency_is_pinned():
    """constraints.txt names one version of everything pyproject.toml asks for."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(entry for extra in extras for entry in extra)]
    names = {re.split(r"[\[<>=!~ ;]", entry)[0].lower() for entry in wanted} - {"tacita"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names <= pinned, f"not pinned: {sorted(names - pinned)}"


def test_forks_end_with_their_work():
    """``tests/forked.py`` sees to it; beside it fork the servers of processes, which do so themselves, and scripts."""
    itself = "os.fork" + "()"
    places = {
        str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("*.py") if itself in path.read_text()
    }
    servers = {"distributed/processes.py", "training/fork_server.py", "training/rank_server.py", "planted/plant.py"}
    assert places == {"forked.py", *servers, "tables/sweeps.py", "test_lock.py"}
