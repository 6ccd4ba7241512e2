"""What docstrings write in the roles of Sphinx, as Markdown for the reference.

``:math:`` becomes a formula, ``:class:`` and its like a link where the target is public, and two backquotes one.
"""

import re
import textwrap

MATH = re.compile(r":math:`([^`]+)`")
MATH_BLOCK = re.compile(r"^( *)\.\. math::[ ]*(.*)\n((?:\1 +.+\n|\n)*)", re.MULTILINE)
ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`~?\.?([^`<]+)`")
AT_LEAST = re.compile(r"^( +[\w, ]+: )>", re.MULTILINE)  # "radius: > 0", which would be a quotation
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
CODE = re.compile(r"``([^`]+)``")


def markdown(doc: str) -> str:
    """Return a docstring's text with the roles of Sphinx written as Markdown."""
    doc = MATH_BLOCK.sub(_block, doc + "\n")
    doc = MATH.sub(lambda found: "$" + " ".join(found[1].split()) + "$", doc)
    doc = ROLE.sub(lambda found: f"`{found[1].split('.')[-1]}`", doc)
    doc = AT_LEAST.sub(r"\1\\>", doc)
    doc = EXAMPLE.sub(r"\1Examples:", doc)
    return CODE.sub(r"`\1`", doc).rstrip("\n")


def _block(found: re.Match[str]) -> str:
    formula = f"{found[2]}\n{textwrap.dedent(found[3])}".strip()
    lines = "\n".join(f"{found[1]}{line}" for line in ("$$", *formula.splitlines(), "$$"))
    return f"\n{lines}\n\n"
