"""Write the generated pages: ``api/`` from the docstrings, ``guarantees.md`` from the table of proved cells,
the tables of ``strategies.md`` from the accountant.

Run it with ``make pages``. With ``--check`` it writes nothing and fails if a page is not what the code says.
"""

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tacita
from docs import paper_index, strategy_page
from docs.sphinx_roles import markdown
from tacita.accounting import GaussianSumEvent, gaussian_sum_event
from tacita.accounting.events.sampled import REFUSED, table_of
from tacita.accounting.relations import RELATIONS
from tacita.accounting.sampling_laws import EVERY_LAW, CyclicPoissonLaw
from tacita.convex import MedianOfMeansEvent, ShuffledSumEvent
from tacita.correlated import CorrelatedEvent
from tacita.error_feedback import feedback_table
from tacita.errors import UnsupportedEventError
from tacita.ledger.statement_schema import statement_schema
from tests.test_architecture import SYSTEMS

DOCS = Path(__file__).parent
NOTE = "*This page is generated from the code by `make pages`.*"


def exported(module: Any) -> list[str]:
    """Return the names that a module lists in its ``__all__``, sorted."""
    return sorted(getattr(module, "__all__", []))


def rooms() -> Iterator[tuple[str, Any]]:
    """Yield the public packages and modules directly under tacita, and modules of systems that have an ``__all__``."""
    for found in pkgutil.iter_modules(tacita.__path__):
        if not found.name.startswith("_"):
            yield found.name, importlib.import_module(f"tacita.{found.name}")
    for system in sorted(SYSTEMS):
        path = importlib.import_module(f"tacita.{system}").__path__
        for found in pkgutil.iter_modules(path, f"{system}."):
            module = importlib.import_module(f"tacita.{found.name}")
            if exported(module):
                yield found.name, module


def own_doc(thing: Any) -> str:
    """Return the docstring written for ``thing`` itself, not one inherited or made by ``dataclass``."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return ""
    doc = (vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__) or ""
    made_up = inspect.isclass(thing) and doc.startswith(f"{thing.__name__}(")
    return "" if made_up else inspect.cleandoc(doc)


def members(thing: Any) -> list[tuple[str, Any]]:
    """Return the public methods and properties that the class itself defines."""
    if not inspect.isclass(thing):
        return []
    found = [(name, getattr(value, "__func__", value)) for name, value in vars(thing).items() if name[0] != "_"]
    return [(name, value) for name, value in found if inspect.isroutine(value) or isinstance(value, property)]


def first_line(thing: Any) -> str:
    doc = inspect.getdoc(thing) or ""
    return doc.split("\n\n")[0].replace("\n", " ")


def home(name: str) -> str:
    """Return the room that a name of the face comes from."""
    return getattr(tacita, name).__module__.split(".")[1]


def names(room: str, module: Any) -> dict[str, str]:
    """Return the path of each public name of a room, the shortest under which it can be imported."""
    face = exported(tacita)
    of_room = {name for name in face if home(name) == room} | {
        name for name in exported(module) if getattr(tacita, name, None) is not getattr(module, name)
    }
    return {name: f"tacita.{name}" if name in face else f"{module.__name__}.{name}" for name in sorted(of_room)}


def room_page(room: str, module: Any) -> str:
    """Return the page of a room: a table of its names, and for the site the place of each full entry."""
    paths = names(room, module)
    things = {name: getattr(tacita if path.count(".") == 1 else module, name) for name, path in paths.items()}
    lines = [f"# tacita.{room}", "", first_line(module), "", "| name | what it is |", "| --- | --- |"]
    linked = {name: f"[`{name}`](#{paths[name]})" if own_doc(thing) else f"`{name}`" for name, thing in things.items()}
    lines += [f"| {linked[name]} | {line(thing)} |" for name, thing in things.items()]
    entries = [f"::: {paths[name]}" for name, thing in things.items() if own_doc(thing)]
    return "\n".join([*lines, "", "\n\n".join(entries)]).rstrip() + "\n"


def overview() -> str:
    """Return the first page of the reference: the rooms."""
    lines = [f"| [tacita.{room}]({room}.md) | {first_line(module)} |" for room, module in documented_rooms()]
    return "\n".join(["# Reference", "", NOTE, "", "| room | what is in it |", "| --- | --- |", *lines]) + "\n"


def documented_rooms() -> Iterator[tuple[str, Any]]:
    yield from ((room, module) for room, module in rooms() if names(room, module))


def line(thing: Any) -> str:
    """Return one line about a name; a constant or an alias of a type has no docstring of its own."""
    return markdown(first_line(thing)).replace("|", "\\|") if own_doc(thing) else "a constant or a type."


def derivations() -> str:
    """Return the text of ``derivations/index.md``: the pages by their headings."""
    pages = sorted(page for page in (DOCS / "derivations").glob("*.md") if page.name != "index.md")
    headings = {page.name: page.read_text().split("\n", 1)[0].removeprefix("# ") for page in pages}
    lines = [f"- [{heading}]({name})" for name, heading in headings.items()]
    return "\n".join(["# Derivations", "", NOTE, "", "The mathematics behind each guarantee.", "", *lines]) + "\n"


def guarantees() -> str:
    """Return the text of ``guarantees.md``."""
    feedback = feedback_table()
    return f"""# What is proved

{NOTE}

The tables say what a session of queries is charged, by the way records are drawn (rows) and by the way neighbouring
data sets differ (columns). *Amplified* means that the random choice of records is accounted for, which makes a query
cheaper. A combination without a proof is refused when the oracle is built; the message names the relations for which
there is a proof. The proofs are in [derivations](derivations/index.md).

## A clipped sum with Gaussian noise

`ClippedGradientOracle`. C is the clipper's `max_contribution`. Rounded Gaussian noise (`--hardened`) costs the same.

{cells(table_of(GaussianSumEvent))}

## A clipped sum with correlated Gaussian noise

`ClippedGradientOracle` with `CorrelatedGaussian`. The movements of all turns of a record are charged together, once a
session ([derivation](derivations/correlated-noise.md)).

{cells(correlated_table())}

## Error feedback, the error hidden

`ErrorFeedbackOracle` with `PrivateFeedback`; see [error feedback](error-feedback.md).

{cells(feedback["PrivateFeedback"])}

## Error feedback, the residuals bounded

`ErrorFeedbackOracle` with `BoundedFeedback`.

{cells(feedback["BoundedFeedback"])}

## Error feedback, the residuals released

`ErrorFeedbackOracle` with `ReleasedFeedback`. One query releases two blocks.

{cells(feedback["ReleasedFeedback"])}

## A median of means with Gaussian noise

`GradientOracle` with `MedianOfMeans`. C is how far one record moves the values: tau m sqrt(d), half for an even m.

{cells(table_of(MedianOfMeansEvent))}

## A sum in the shuffle model

`ShuffleMeanOracle1` and `ShuffleMeanOracle2`: users add noise bits of their own ([derivation](derivations/shuffle.md)).
The range is the grid's: from -C to C, or from -tau to tau.

{cells(table_of(ShuffledSumEvent))}

## Other sessions

| session | what it spends |
| --- | --- |
| `ClippedDifference`, `ReleasedDifference`, `ClippedMean` | one Gaussian query of 2 C sqrt(T) / s, by any sampler |
| the same with clipped records (`sample_clipper`) | once a session, by the number of draws of a record |
| clients as records of a `TrustedServer` | as a clipped sum above, with either noise; no fixed or largest sizes |
| noisy histograms, which `tacita train` buys | one Gaussian query for all of them together |
| `StationaryTest` | a pure epsilon, once, however many points it rejects; only if the declared Hessian bound holds |
| `select`, `tacita train --sweep` | the best of a secret number of runs, once, by Renyi divergences |
"""


def cells(rows: dict[str, dict[Any, str]]) -> str:
    """Return a table with a line for each kind of sampling and a column for each relation."""
    lines = [f"| sampling | {' | '.join(RELATIONS)} |", "|" + " --- |" * (1 + len(RELATIONS))]
    lines += [f"| {words} | {' | '.join(row[relation] for relation in RELATIONS)} |" for words, row in rows.items()]
    return "\n".join(lines)


def correlated_table() -> dict[str, dict[Any, str]]:
    """Return the cells for which there is a proof with correlated noise."""

    def charge(law: Any, relation: Any) -> str:
        sampled = isinstance(law, CyclicPoissonLaw)
        try:
            inner = gaussian_sum_event(law, (1.0,), (1.0,), relation)
            CorrelatedEvent(relation=relation, inner=inner, bands=1 if sampled else 2, power=0.5, banded_matrix=sampled)
        except UnsupportedEventError:
            return REFUSED
        if sampled:
            return f"a banded matrix: {GaussianSumEvent.charges(law)[relation]}"
        if relation == "replace_one":
            return "once a session, no amplification, 2C"
        return f"once a session, {'amplified by the secret batch' if law.own_coin else 'no amplification'}"

    return {law.words: {relation: charge(law, relation) for relation in RELATIONS} for law in EVERY_LAW}


PAGES = {
    "guarantees.md": guarantees,
    "strategies.md": strategy_page.page,
    "paper-index.md": partial(paper_index.page, NOTE),
    "derivations/index.md": derivations,
    "api/index.md": overview,
    "statement.schema.json": lambda: json.dumps(statement_schema(), indent=1, ensure_ascii=False) + "\n",
    **{f"api/{room}.md": partial(room_page, room, module) for room, module in documented_rooms()},
}


def main(arguments: list[str]) -> int:
    gone = [page for page in (DOCS / "api").glob("*.md") if f"api/{page.name}" not in PAGES]
    stale = [name for name, write in PAGES.items() if not same(DOCS / name, write())]
    if "--check" in arguments:
        stale += [f"api/{page.name}" for page in gone]
        print(f"stale: {', '.join(stale)}; run make pages" if stale else "the generated pages are up to date")
        return bool(stale)
    for page in gone:
        page.unlink()
        print(f"removed docs/api/{page.name}: its module is gone")
    for name in stale:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


def same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
