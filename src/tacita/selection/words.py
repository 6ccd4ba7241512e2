"""What a statement says of a selection: the price, the grid, the result, and what elapsed time tells.

Place: grid, best_of -> [selection.words] -> choose, sweep. The number of runs is nowhere in it.
"""

from collections.abc import Mapping
from decimal import ROUND_UP, Context
from typing import Any

from tacita.selection.grid import Point, Sweep

NONE = "none"


def selection(sweep: Sweep, *, chosen: Point | None, one_run_epsilon: float) -> dict[str, Any]:
    """The statement's field ``selection``; all of it public."""
    found: dict[str, Any] = {
        "settings_in_grid": len(sweep.grid.points),
        "grid": {name: list(values) for name, values in sweep.grid.values.items()},
        "number_of_runs": f"secret, {sweep.runs}",
        "result": NONE if chosen is None else dict(chosen),
        "one_run_epsilon": one_run_epsilon,
        "pad_to": sweep.pad_to,
    }
    if sweep.grid.weights:
        found["weights"] = {name: list(weights) for name, weights in sweep.grid.weights.items()}
    return found


def caveats(sweep: Sweep, said: Mapping[str, Any]) -> list[str]:
    """What the reader of the statement must know of the choice."""
    words = [
        f"The best of a random number of runs ({sweep.runs}) over {said['settings_in_grid']} settings was released, "
        "and the price of that choice is in epsilon: one run with the same noise would "
        f"have cost epsilon {_up(said['one_run_epsilon'])} at the same delta.",
        _time(sweep),
    ]
    if said["result"] == NONE:
        words.append(
            "The number of runs drawn was 0, so that nothing was trained and there is no model. It was as likely with "
            "any other data; what the selection may spend is spent."
        )
    else:
        words.append(
            "The held-out score chose the run: it is the best of several, and so too good on average. Score the model "
            "on other rows before relying on it."
        )
    return words


def _time(sweep: Sweep) -> str:
    if sweep.pad_to is None:
        return (
            "How many runs were made is secret, and the time that they took tells about it (times of files too): the "
            "guarantee is for those who do not learn that time."
        )
    chance = _chance_up(sweep.runs.chance_above(sweep.pad_to))
    return (
        f"How many runs were made is secret. At least {sweep.pad_to} were made, those beyond the number drawn without "
        f"consequence, so that the time they took tells about it with probability {chance} at most (for those who "
        "learn the time delta is larger by (1 + e^epsilon) times that); the length of a single run is not padded."
    )


def _up(value: float) -> str:
    return f"{value * 1.0005:.4g}"  # a bound that is printed is still a bound


def _chance_up(chance: float) -> str:
    return f"{Context(prec=2, rounding=ROUND_UP).create_decimal(chance):g}"
