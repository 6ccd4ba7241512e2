"""The index from a paper's numbers (theorems, algorithms, figures) to the code that is about them.

A docstring belongs to the papers that its file's docstring names; nothing is listed by hand.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {
    "": ROOT / "src" / "tacita",
    "tacita_reproductions/": ROOT / "reproductions" / "src" / "tacita_reproductions",
}

# The paper's heading on the page "papers.md", and words by which a file's docstring names it.
PAPERS = {
    "DP-Clipped-SGD": ("Arbitrary Clipping Level", "Private Clipped-SGD", "DP-Clipped-SGD"),
    "Heavy-tailed convex optimization": ("Large Worst-Case", "Lowy and Razaviyayn"),
    "Clip21-SGDM": ("Momentum and Error Feedback", "Clip21"),
    "DiceSGD": ("Without Clipping Bias", "DiceSGD"),
    "Noisy SGD": ("Noise is All You Need",),
}
KINDS = {
    "Theorem": "Theorem",
    "Lemma": "Lemma",
    "Corollar": "Corollary",
    "Proposition": "Proposition",
    "Definition": "Definition",
    "Remark": "Remark",
    "Algorithm": "Algorithm",
    "equation": "equation",
    "Figure": "Figure",
    "Table": "Table",
}
NUMBER = r"\(?[A-H]?\.?\d+(?:\.\d+)*\)?"
MENTION = re.compile(rf"\b({'|'.join(KINDS)})(?:s|y|ies)? ({NUMBER}(?:(?:, | and |, and | to ){NUMBER})*)")


def mentions(doc: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the number of each result that a docstring names: "Theorems 5 to 7" names three."""
    for kind, numbers in MENTION.findall(" ".join(doc.split())):
        found = [number.strip("()") for number in re.findall(NUMBER, numbers)]
        if " to " in numbers and all(number.isdigit() for number in found):
            found = [str(number) for number in range(int(found[0]), int(found[-1]) + 1)]
        yield from ((KINDS[kind], number) for number in found)


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public name and the docstring of each function and class of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) or ""


def files() -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each file; the name of an experiment's begins with its package."""
    for prefix, source in SOURCES.items():
        yield from ((f"{prefix}{path.relative_to(source)}", path) for path in sorted(source.rglob("*.py")))


def index() -> dict[str, dict[tuple[str, str], list[str]]]:
    """Return, for each paper and each of its results, the places that are about it."""
    places: dict[str, dict[tuple[str, str], list[str]]] = {paper: defaultdict(list) for paper in PAPERS}
    for file, path in files():
        tree = ast.parse(path.read_text())
        whole = ast.get_docstring(tree) or ""
        about = [paper for paper, words in PAPERS.items() if any(word in whole for word in words)]
        for name, doc in [("", whole), *documented(tree)]:
            for result in mentions(doc):
                for paper in about if len(about) == 1 else ():
                    place = f"`{file}`" + (f": `{name}`" if name else "")
                    if place not in places[paper][result]:
                        places[paper][result].append(place)
    return places


def order(result: tuple[str, str]) -> tuple[int, list[tuple[bool, int, str]]]:
    """Sort results by their kind, then by number, the appendix last."""
    kind, number = result
    parts = [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in number.split(".")]
    return list(KINDS.values()).index(kind), parts


def page(note: str) -> str:
    """Return the text of ``paper-index.md``."""
    lines = [
        "# From the papers to the code",
        "",
        note,
        "",
        "Files are those under `src/tacita`, and `tacita_reproductions` is under `reproductions/src`.",
    ]
    for paper, results in index().items():
        lines += ["", f"## {paper}", "", "| in the paper | in the code |", "| --- | --- |"]
        lines += [f"| {' '.join(result)} | {'; '.join(results[result])} |" for result in sorted(results, key=order)]
    return "\n".join(lines) + "\n"
