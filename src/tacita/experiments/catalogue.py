"""All experiments, by name. A module of experiments offers ``EXPERIMENTS``; it gets one line here.

Place: experiments.* -> [experiments.catalogue] -> cli.reproduce.
"""

from types import ModuleType

from tacita.experiments import dp_clipped_sgd, one_pass, saddles
from tacita.experiments.runner import Experiment

MODULES: tuple[ModuleType, ...] = (
    dp_clipped_sgd,
    one_pass,
    saddles,
)  # modules with a tuple EXPERIMENTS, in the order in which they are listed


def catalogue() -> dict[str, Experiment]:
    """Name -> experiment, in the order of the modules."""
    found: dict[str, Experiment] = {}
    for module in MODULES:
        for experiment in module.EXPERIMENTS:
            if experiment.name in found:
                raise AssertionError(f"two experiments are called {experiment.name}")
            found[experiment.name] = experiment
    return found


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: There is none; the message lists those there are.
    """
    known = catalogue()
    if name not in known:
        raise ValueError(f"experiment must be one of {', '.join(known)}, got {name!r}.")
    return known[name]
