"""Every public name has a docstring of its own and an entry in the reference, which is what the code says."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import tacita
from docs import make_reference as reference

ROOT = Path(__file__).parents[1]


ROOMS = dict(reference.rooms())
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (tacita, *ROOMS.values())
    for name in reference.exported(module)
}
DOCUMENTED = {name: thing for name, thing in PUBLIC.items() if inspect.isclass(thing) or inspect.isroutine(thing)}


def undocumented_members(thing: type) -> list[str]:
    """Methods and properties with no docstring, and no line under "Attributes" of the class or a base, that say it."""
    words = "\n".join(vars(base).get("__doc__") or "" for base in getattr(thing, "__mro__", ()))
    bare = [name for name, _ in reference.members(thing) if not inspect.getdoc(getattr(thing, name))]
    return [name for name in bare if not re.search(rf"^\s*(\w+, )*{name}(, \w+)*:", words, re.MULTILINE)]


def test_the_face_names_every_export_once():
    """What the stub imports, what it lists for type checkers, and what is there when it is asked for are the same."""
    stub = ast.parse((ROOT / "src" / "tacita" / "__init__.pyi").read_text())
    imported = [name.name for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names]
    (listed,) = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert len(set(imported)) == len(imported)
    assert sorted(listed) == tacita.__all__ == sorted(set(imported) - set(ROOMS))
    assert all(getattr(tacita, name).__module__.startswith("tacita.") for name in tacita.__all__)


def test_nothing_heavy_is_imported_before_it_is_used():
    script = "import sys, tacita, tacita.cli.app; tacita.cli.app.make_app(summaries=True); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "scipy", "pyarrow", "dp_accounting"} & set(ran.stdout.split())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_says_what_it_is(name: str):
    assert reference.own_doc(DOCUMENTED[name]), f"{name} has no docstring of its own"
    assert not undocumented_members(DOCUMENTED[name])


@pytest.mark.parametrize("name", tacita.__all__)
def test_a_name_of_the_face_has_an_entry(name: str):
    assert f"::: tacita.{name}\n" in reference.PAGES[f"api/{reference.home(name)}.md"]() + "\n"


@pytest.mark.parametrize("page", reference.PAGES)
def test_generated_pages_are_what_the_code_says(page: str):
    assert reference.same(ROOT / "docs" / page, reference.PAGES[page]()), f"docs/{page} is stale: run make pages"


def test_the_check_can_fail():
    @dataclass
    class Bare:
        size: int

        def act(self) -> None: ...

        @property
        def rate(self) -> float: ...

    class Known(Bare):
        """A class.

        Attributes:
            speed, rate: Documented here.
        """

        def act(self) -> None: ...

        @property
        def rate(self) -> float: ...

    class Heir(tacita.GradientOracle): ...

    assert not reference.own_doc(Bare)
    assert not reference.own_doc(Heir)
    assert undocumented_members(Bare) == ["act", "rate"]
    assert undocumented_members(Known) == ["act"]
