"""A floor of the house imports only what is below it; two rooms of one floor do not import each other; no circles."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tacita"

# From the ground up. A room is a package or a module directly under tacita; the ground's modules may know each other.
GROUND = {
    "errors",
    "_choices",
    "_validate",
    "_counted",
    "_files",
    "_lock",
    "_npz",
    "_arrays",
    "_domains",
    "_tree",
    "_box_muller",
    "_normals",
    "_near_names",
    "_extras",
    "_named_model",
    "_row_numbers",
    "_stream",
    "_binomials",
    "_whole_numbers",
    "random",
}
SYSTEMS = {"clipped_sgd", "convex", "error_feedback", "federated", "second_order"}  # one a paper; none knows another
FLOORS = (
    GROUND,
    {"accounting"},
    {"ledger", "sampling"},
    {"mechanisms", "gradients"},
    {"clipping"},
    {"estimators"},
    {"oracles"},
    {"methods", "hardened", "correlated", "adaptive_clipping", "splitting", "user_records", "dry_run"},
    {"testing", "runs"},
    {"distributed", "linear"},
    SYSTEMS,
    {"training"},
    {"tables", "linear_model"},
    {"finetune"},
    {"report"},
    {"cli"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
MOST_LINES, MOST_FILES = 13_219, 131  # that importing an oracle and its statement may bring
FACE = ""  # tacita/__init__.py re-exports every room: it is for users, above all of them


def room_of(module: str) -> str:
    """``tacita.clipping.flat`` is in the room ``clipping``; ``tacita`` itself is the face."""
    return [*module.split("."), FACE][1]


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every tacita module that ``source`` imports, in functions and type checks too."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{origin}.{alias.name}" for alias in node.names] if origin == "tacita" else [origin]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "tacita")


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """What breaks the rule in one module, in words."""
    here = room_of(module)
    found = []
    if here not in LEVEL:
        return [f"{module}: the room {here} has no floor"]
    for line, name in imports(source, module, is_package):
        there = room_of(name)
        if there == here or {here, there} <= GROUND:
            continue
        if there not in LEVEL:
            found.append(f"{module}:{line} imports {name}: the face of the package, or a room that has no floor")
        elif LEVEL[there] >= LEVEL[here]:
            found.append(f"{module}:{line} ({here}) imports {name} ({there}), which is not below it")
    return found


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_room_has_a_floor():
    rooms = {room_of(dotted(path)) for path in modules()}
    missing = sorted(rooms - LEVEL.keys())
    assert not missing, f"rooms without a floor: {missing}. Give each one in FLOORS, and in CONTRIBUTING's picture."


def test_imports_point_downwards():
    wrong = [
        line for path in modules() for line in wrong_imports(path.read_text(), dotted(path), path.stem == "__init__")
    ]
    assert not wrong, "\n".join(wrong)


def private_names_of_others(source: str, module: str) -> list[str]:
    """Modules and names with an underscore that ``source`` imports from another room."""
    private = re.compile(r"tacita\.\w+(\.\w+)*\._")
    names = [
        (node.lineno, f"{node.module}.{alias.name}")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
        for alias in node.names
    ]
    return [
        f"{module}:{line} imports {name}"
        for line, name in names
        if private.match(name) and room_of(name) != room_of(module)
    ]


def test_what_begins_with_an_underscore_stays_in_its_room():
    found = [line for path in modules() for line in private_names_of_others(path.read_text(), dotted(path))]
    assert not found, "\n".join(found)
    assert private_names_of_others("from tacita.accounting._window import Total", "tacita.convex.heavy_tailed")
    assert private_names_of_others("from tacita.accounting.curve import _Curve", "tacita.convex.heavy_tailed")
    assert not private_names_of_others("from tacita._row_numbers import RowNumbers", "tacita.convex.heavy_tailed")


def test_one_oracle_and_its_statement_bring_no_more_than_they_do():
    """Whoever trusts an epsilon trusts this code. The numbers are what there is; they are to go down, and never up."""
    files = run_path(str(ROOT / "benchmarks" / "house.py"))["brought"]()  # Opacus installs a package "benchmarks"
    lines = sum(len(one.code) for one in files)
    print(f"ClippedGradientOracle and statement bring {lines:,} lines of code in {len(files)} files")
    assert lines <= MOST_LINES, "load what is new where it is used, or say in MOST_LINES that the core has grown"
    assert len(files) <= MOST_FILES
    rooms = {room_of(dotted(one.path)) for one in files}
    assert not rooms & (
        SYSTEMS
        | {
            "hardened",
            "correlated",
            "linear",
            "distributed",
            "testing",
            "runs",
            "training",
            "tables",
            "linear_model",
            "cli",
        }
    )


def test_only_a_process_group_brings_in_the_other_ranks():
    """The one way to them is ``gradients.processes``, which imports them when it is given more than one process."""
    sources = [path for path in modules() if room_of(dotted(path)) != "distributed"]
    found = {
        dotted(path)
        for path in sources
        for _, name in imports(path.read_text(), dotted(path), path.stem == "__init__")
        if room_of(name) == "distributed"
    }
    assert not found


def imported_modules(source: str, module: str, is_package: bool, known: Iterable[str]) -> set[str]:
    """The modules of ``known`` that ``source`` imports, by themselves or a name from them, in type checks too."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            inside = {f"{origin}.{alias.name}" for alias in node.names}
            found |= inside & set(known) or {origin}
    return found & set(known)


def circle(sources: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Modules that import each other in a circle, in order; empty if there is no circle.

    Args:
        sources: The source of each module by its dotted name, and whether it is a package's ``__init__``.
    """
    graph = {name: imported_modules(source, name, packaged, sources) for name, (source, packaged) in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other_in_a_circle():
    sources = {dotted(path): (path.read_text(), path.stem == "__init__") for path in modules()}
    assert not (found := circle(sources)), " imports ".join(reversed(found))


@pytest.mark.parametrize(
    "back",
    [
        "from tacita.room import first",
        "from tacita.room.first import x",
        "from .first import x",
        "import tacita.room.first",
        "def late():\n    from tacita.room import first",
        "if TYPE_CHECKING:\n    from tacita.room.first import x",
    ],
)
def test_the_check_of_circles_can_fail(back: str):
    sources = {"tacita.room.first": ("from tacita.room import second", False), "tacita.room.second": (back, False)}
    assert {"tacita.room.first", "tacita.room.second"} == set(circle(sources))
    assert not circle({**sources, "tacita.room.second": ("from tacita.room import third", False)})


def picture(page: str) -> list[set[str]]:
    """The rooms of each floor in CONTRIBUTING's picture of the house, from the top down."""
    (block,) = re.findall(r"^```\n(cli .*?)^```", page, re.DOTALL | re.MULTILINE)
    heads = [re.match(r"\w+(, \w+)*", line) for line in block.splitlines()]
    return [set(head.group().split(", ")) for head in heads if head is not None]


def test_the_picture_of_the_house_is_that_of_the_floors():
    there = {room_of(dotted(path)) for path in modules()}
    floors = [{room for room in rooms if room in there and not room.startswith("_")} for rooms in reversed(FLOORS)]
    assert picture((PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()) == [rooms for rooms in floors if rooms]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tacita.ledger.ledger", "from tacita.sampling import PoissonSampler"),  # upwards
        ("tacita.mechanisms.gaussian", "import tacita.gradients.engine"),  # the same floor
        ("tacita.clipping.flat", "def late():\n    from tacita.estimators import ClippedSum"),  # in a function
        ("tacita.clipping.flat", "from ..oracles import ReleaseGate"),  # relative
        ("tacita.clipping.flat", "from tacita import oracles"),  # through the package
        ("tacita.clipping.flat", "from tacita import FlatClipper"),  # the face
        ("tacita.clipping.flat", "from tacita.attic import x"),  # a room without a floor
        ("tacita.errors", "from tacita.accounting import Ledger"),  # from the ground
    ],
)
def test_the_check_can_fail(module: str, source: str):
    assert wrong_imports(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tacita.random", "from tacita import _validate\nfrom tacita._stream import Stream"),
        ("tacita.clipping.flat", "from tacita.clipping.clipper import Clipper\nfrom tacita.gradients import Shapes"),
        ("tacita.clipping.flat", "from .clipper import Clipper\nimport torch"),
    ],
)
def test_the_check_can_pass(module: str, source: str):
    assert not wrong_imports(source, module)
