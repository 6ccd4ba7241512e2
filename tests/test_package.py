"""What is built from this tree, and installed, works; ``make package`` tries it with dependencies of its own."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import tacita

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
NOT_BUILT_FROM = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "benchmarks", "docs"
)
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"
USE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
import tacita
from tacita.cli import main
assert Path(tacita.__file__).is_relative_to(sys.argv[1]), tacita.__file__
x = torch.randn(100, 3)
run = tacita.fit(
    torch.nn.Linear(3, 1), lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square(), (x, x.sum(1)),
    target_epsilon=2.0, target_delta=1e-4, epochs=1, num_records=100, progress=False,
)
assert run.ledger.epsilon(1e-4) <= 2.0
sys.argv = "tacita epsilon --sample-rate 0.01 --steps 100 --noise-multiplier 1.1 --delta 1e-5".split()
sys.exit(main())
"""


def run(*words, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(wheel):
    return sorted(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the sdist, where the wheel of the tree has the same files."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=NOT_BUILT_FROM)
    for kind, place in (("sdist", folder), ("wheel", folder / "of tree")):
        place.mkdir(exist_ok=True)
        run("-c", BUILD, kind, place, cwd=tree)
    (sdist,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run("-c", BUILD, "wheel", folder, cwd=unpacked)
    (built,), (of_tree,) = folder.glob("*.whl"), (folder / "of tree").glob("*.whl")
    assert names(built) == names(of_tree)
    return built


def test_the_wheel_has_the_types_and_neither_tests_nor_experiments(wheel):
    found = names(wheel)
    assert {"tacita/py.typed", "tacita/__init__.pyi"} <= set(found)
    assert all(name.startswith(("tacita/", "tacita-")) for name in found)


def test_the_installed_wheel_trains_a_model_and_answers_the_command(wheel, tmp_path):
    run(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel, cwd=tmp_path
    )
    assert "epsilon" in run("-c", USE, tmp_path / "site", cwd=tmp_path)


# -- what it says of itself


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
