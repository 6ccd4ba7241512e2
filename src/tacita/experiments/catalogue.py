"""The list of all experiments by name.

A new module of experiments defines a tuple ``EXPERIMENTS`` and is added to ``MODULES`` here.
"""

from types import ModuleType

from tacita._near_names import did_you_mean
from tacita.experiments import (
    clip21,
    clip21_images,
    clip21_logistic,
    clip21_networks,
    convex_one_pass,
    convex_rates,
    convex_structured,
    dicesgd,
    dicesgd_ablations,
    dicesgd_text,
    dp_clipped_sgd,
    noisy_sgd_noise,
    noisy_sgd_training,
    one_pass,
    regime_tables,
    saddles,
    threshold_claims,
)
from tacita.experiments.runner import Experiment

MODULES: tuple[ModuleType, ...] = (
    dp_clipped_sgd,
    regime_tables,
    threshold_claims,
    one_pass,
    saddles,
    noisy_sgd_noise,
    noisy_sgd_training,
    clip21,
    convex_rates,
    convex_one_pass,
    convex_structured,
    clip21_logistic,
    clip21_networks,
    clip21_images,
    dicesgd,
    dicesgd_ablations,
    dicesgd_text,
)  # in the order in which their experiments are listed


def catalogue() -> dict[str, Experiment]:
    """Return all experiments by name, in the order of the modules."""
    found: dict[str, Experiment] = {}
    for module in MODULES:
        for experiment in module.EXPERIMENTS:
            if experiment.name in found:
                raise AssertionError(f"two experiments are called {experiment.name}")
            found[experiment.name] = experiment
    return found


def find(name: str) -> Experiment:
    """Return the experiment with the given name.

    Raises:
        ValueError: There is none; the message has the names that are near, or else all of them.
    """
    known = catalogue()
    if name not in known:
        near = did_you_mean(name, known) or f" The known ones are {', '.join(known)}."
        raise ValueError(f"experiment must be a name that tacita reproduce lists, got {name!r}.{near}")
    return known[name]
