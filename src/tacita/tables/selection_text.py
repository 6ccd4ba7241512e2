"""The statement's text about a selection: price, grid, result, and what elapsed time reveals.

It never holds the number of runs.
"""

from collections.abc import Mapping
from decimal import ROUND_UP, Context
from typing import Any

from tacita.tables.grid import Point, Sweep

NONE = "none"


def field_of(sweep: Sweep, *, chosen: Point | None, one_run_epsilon: float) -> dict[str, Any]:
    """Return the statement's field ``selection``; all of it is public."""
    fields: dict[str, Any] = {
        "settings_in_grid": len(sweep.grid.points),
        "grid": {name: list(values) for name, values in sweep.grid.values.items()},
        "number_of_runs": f"secret, {sweep.runs}",
        "result": NONE if chosen is None else dict(chosen),
        "one_run_epsilon": one_run_epsilon,
        "pad_to": sweep.pad_to,
    }
    if sweep.grid.weights:
        fields["weights"] = {name: list(weights) for name, weights in sweep.grid.weights.items()}
    return fields


def caveats(sweep: Sweep, selection: Mapping[str, Any]) -> list[str]:
    """Return what the reader of the statement must know about the choice.

    Args:
        sweep: The settings of the selection.
        selection: The statement's field, from :func:`field_of`.
    """
    found = [
        f"The best of a random number of runs ({sweep.runs}) over {selection['settings_in_grid']} settings was "
        "released, and epsilon includes the price of that choice: one run with the same noise would have cost epsilon "
        f"{_up(selection['one_run_epsilon'])} at the same delta.",
        _time(sweep),
    ]
    if selection["result"] == NONE:
        found.append(
            "The number of runs drawn was 0, so nothing was trained and there is no model. This was as likely with any "
            "other data. The planned budget counts as spent."
        )
    else:
        found.append(
            "The held-out score chose the run: it is the best of several scores, and so too good on average. Score the "
            "model on other rows before you rely on it."
        )
    return found


def _time(sweep: Sweep) -> str:
    if sweep.pad_to is None:
        return (
            "The number of runs is secret, but the time that they took reveals something about it, and so do the times "
            "of files. The guarantee holds towards those who do not learn that time."
        )
    chance = _chance_up(sweep.runs.chance_above(sweep.pad_to))
    return (
        f"The number of runs is secret. At least {sweep.pad_to} were made; those beyond the number drawn were "
        f"discarded. So the time that they took reveals the number with probability {chance} at most. For those who "
        "learn the time, delta is larger by (1 + e^epsilon) times this probability. The length of a single run is not "
        "padded."
    )


def _up(value: float) -> str:
    return f"{value * 1.0005:.4g}"  # rounded up, so that the printed number is still a bound


def _chance_up(chance: float) -> str:
    return f"{Context(prec=2, rounding=ROUND_UP).create_decimal(chance):g}"
