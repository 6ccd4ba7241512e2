"""Look-up of experiments and papers by name."""

from collections.abc import Mapping
from typing import TypeVar

from tacita._near_names import did_you_mean
from tacita_reproductions import papers
from tacita_reproductions.runner import Experiment, Paper

T = TypeVar("T")


def catalogue() -> dict[str, Experiment]:
    """Return all experiments by name, in the order of the papers."""
    found: dict[str, Experiment] = {}
    for paper in papers.PAPERS:
        for experiment in paper.experiments:
            if experiment.name in found:
                raise AssertionError(f"two experiments are called {experiment.name}")
            found[experiment.name] = experiment
    return found


def find(name: str) -> Experiment:
    """Return the experiment with the given name.

    Raises:
        ValueError: There is none; the message has the names that are near, or else all of them.
    """
    if any(name == paper.name for paper in papers.PAPERS):
        some = ", ".join(one.name for one in find_paper(name).experiments)
        raise ValueError(
            f"{name} is a paper: give one of its experiments, {some}; or add --report for a page about it."
        )
    return _found("experiment", name, catalogue())


def find_paper(name: str) -> Paper:
    """Return the paper with the given name.

    Raises:
        ValueError: There is none; the message has the names that are near, or else all of them.
    """
    return _found("paper", name, {paper.name: paper for paper in papers.PAPERS})


def paper_of(experiment: str) -> Paper | None:
    """Return the paper whose experiment has this name; ``None`` if it is in none."""
    for paper in papers.PAPERS:
        if any(one.name == experiment for one in paper.experiments):
            return paper
    return None


def _found(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        near = did_you_mean(name, known) or f" The known ones are {', '.join(known)}."
        raise ValueError(f"{kind} must be a name that tacita reproduce lists, got {name!r}.{near}")
    return known[name]
