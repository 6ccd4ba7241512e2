"""What an installed package says of itself: one version everywhere, the Pythons that it is for, and that it is typed."""

import re
import tomllib
from pathlib import Path

import tacita

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_the_version_is_the_same_everywhere():
    """``__init__`` has it, and the build reads it from there; the citation and the changelog repeat it."""
    assert "version" in PROJECT["dynamic"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tacita.__version__"}
    assert f"\nversion: {tacita.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == tacita.__version__


def test_the_classifiers_are_the_pythons_that_it_is_for():
    first, last = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups())
    pythons = [f"Programming Language :: Python :: 3.{minor}" for minor in range(first, last)]
    assert [one for one in PROJECT["classifiers"] if re.search(r":: 3\.", one)] == pythons
    tried = re.search(r"PACKAGE_PYTHONS:-(.*?)}", (ROOT / ".ci" / "package").read_text()).group(1).split()
    assert tried == [f"python3.{minor}" for minor in range(first, last)]


def test_types_are_declared_and_shipped():
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (Path(tacita.__file__).parent / "py.typed").exists()
    assert {"py.typed", "*.pyi"} <= set(PYPROJECT["tool"]["setuptools"]["package-data"]["tacita"])
