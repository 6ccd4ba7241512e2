"""Measure how easy the house is to move into: its size, its repetitions, and how far one private step runs.

    python benchmarks/house.py                # the tree in which this file lies
    python benchmarks/house.py --functions    # and every function that the step runs through, by file

Nothing but the standard library is used to read the source; the step needs torch, as tacita does. Definitions:

* *Lines of code* are lines with a statement on them: no blank lines, no comments, no docstrings, neither those
  of modules, classes and functions nor those below a field.
* The *length* of a function is the number of its lines of code, from ``def`` to its end.
* A *body* is the function without its signature: a body of one or two lines could often be a line of its caller.
* A *duplicate* is a run of six or more lines of code, imports left out, that stands in more than one place. It is
  counted twice: with signatures, and without. Public signatures are written out, so those of two oracles are alike.
* A *step* is one ``backward()`` of a plain ``ClippedGradientOracle``: a linear model with the Poisson sampler, Gaussian
  noise and a ledger in memory, after a first step that fills every cache. Counted are the functions of tacita that are
  called at least once, each once. Comprehensions, generator expressions and lambdas are counted apart, since versions
  of Python differ in whether they are functions at all.
"""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "tacita"
REPRODUCTIONS = Path(__file__).parents[1] / "reproductions" / "src"
DUPLICATE = 6  # lines
LONG = 70  # lines
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceFile:
    """One file of the library: its syntax tree, and which of its lines hold code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8")
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        texts = [node for node in ast.walk(self.tree) if isinstance(node, ast.Expr) and _is_text(node.value)]
        docstrings = {number for node in texts for number in _span(node)}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        held = {n for t in tokens if t.type not in SKIPPED for n in range(t.start[0], t.end[0] + 1)}
        self.code = held - docstrings

    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones included."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[str]:
        """The name of every class."""
        return (node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def length(self, function: Function) -> int:
        """Lines of code of a function, its signature included."""
        return len(self.code & _span(function))

    def body(self, function: Function) -> int:
        """Lines of code of a function's body."""
        return len(self.code & set(range(function.body[0].lineno, (function.end_lineno or 0) + 1)))

    def comparable(self, *, signatures: bool = True) -> list[tuple[int, str]]:
        """Number and text of each line of code, imports left out, and signatures too if they are not asked for."""
        left = {n for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom) for n in _span(node)}
        if not signatures:
            for one in self.functions():
                first = min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)])
                left |= set(range(first, one.body[0].lineno))
        return [(number, self.lines[number - 1].strip()) for number in sorted(self.code - left)]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _span(node: Any) -> set[int]:
    """The lines of a node, decorators left out."""
    return set(range(node.lineno, node.end_lineno + 1))


def duplicates(files: list[SourceFile], *, signatures: bool = True) -> list[tuple[str, int, int]]:
    """File, first line and number of lines of every run of code that stands in another place, too."""
    comparable = {file: file.comparable(signatures=signatures) for file in files}
    places: dict[tuple[str, ...], list[tuple[SourceFile, int]]] = defaultdict(list)
    for file, lines in comparable.items():
        for start in range(len(lines) - DUPLICATE + 1):
            places[tuple(text for _, text in lines[start : start + DUPLICATE])].append((file, start))
    starts: dict[SourceFile, set[int]] = defaultdict(set)
    for found in places.values():
        for file, start in found if len(found) > 1 else ():
            starts[file].add(start)
    runs = []
    for file, at in starts.items():
        for first in sorted(start for start in at if start - 1 not in at):
            last = first
            while last + 1 in at:
                last += 1
            runs.append((str(file.path), comparable[file][first][0], last - first + DUPLICATE))
    return runs


def step() -> set[tuple[str, str, int]]:
    """File, name and first line of every piece of tacita's code that one private step calls."""
    import torch

    import tacita

    root = str(Path(tacita.__file__).parent)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: (model(batch[0]) - batch[1]).square().sum(1),
        (torch.randn(200, 8), torch.randn(200, 1)),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.2, num_records=200),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=10,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        oracle.backward()
        optimizer.step()
    called: set[tuple[str, str, int]] = set()

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            called.add((code.co_filename[len(root) + 1 :], code.co_qualname, code.co_firstlineno))

    sys.setprofile(watch)
    try:
        oracle.backward()
    finally:
        sys.setprofile(None)
    return called


BRINGS = """
import sys
from tacita import ClippedGradientOracle, statement
for name, module in [*sys.modules.items()]:
    if name.split(".")[0] == "tacita" and getattr(module, "__file__", None):
        print(module.__file__)
"""


def brought() -> list[SourceFile]:
    """The files of tacita that are loaded by whoever imports ``ClippedGradientOracle`` and ``statement``."""
    run = subprocess.run([sys.executable, "-c", BRINGS], capture_output=True, text=True, check=True)
    return [SourceFile(Path(line)) for line in run.stdout.splitlines()]


def measured(files: list[SourceFile]) -> dict[str, int | float]:
    """What the source says without being run."""
    functions = [(file.length(one), file.body(one)) for file in files for one in file.functions()]
    names = Counter(name for file in files for name in file.classes())
    repeated = duplicates(files)
    return {
        "files": len(files),
        "lines of code": sum(len(file.code) for file in files),
        "functions": len(functions),
        "lines of a function, signature included (median)": median(length for length, _ in functions),
        "functions with a body of one or two lines": sum(body <= 2 for _, body in functions),
        f"functions over {LONG} lines": sum(length > LONG for length, _ in functions),
        "class names used twice": sum(count > 1 for count in names.values()),
        f"places that repeat {DUPLICATE} lines or more": len(repeated),
        "lines in such places": sum(lines for _, _, lines in repeated),
        "such places, signatures left out": len(duplicates(files, signatures=False)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the source of tacita, and how far one private step runs.")
    parser.add_argument("--functions", action="store_true", help="list what the step runs through, and the repetitions")
    listed = parser.parse_args().functions
    files = [SourceFile(path) for path in sorted(SOURCE.rglob("*.py"))]
    called = step()
    named = {one for one in called if not one[1].endswith(">")}
    found = {
        **measured(files),
        "functions a step runs through": len(named),
        "comprehensions and lambdas in it": len(called - named),
        "files a step runs through": len({file for file, _, _ in called}),
        "lines that an oracle and its statement bring": sum(len(one.code) for one in brought()),
        "beside it, lines of code of reproductions": sum(len(SourceFile(p).code) for p in REPRODUCTIONS.rglob("*.py")),
    }
    for what, count in found.items():
        print(f"{what:52}{count:10,}")
    if listed:
        for file in sorted({file for file, _, _ in named}):
            print(file, *(name for one, name, _ in sorted(named, key=lambda one: one[2]) if one == file), sep="\n    ")
        for file, line, length in duplicates(files, signatures=False):
            print(f"{file}:{line}: {length} lines stand in another place, too")


if __name__ == "__main__":
    main()
