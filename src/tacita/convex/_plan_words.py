"""What the plans of heavy-tailed problems share: the lower bound of a setting, and messages to the reader."""

from typing import Any

from tacita.convex.heavy_tailed_setting import HeavyTailedSetting
from tacita.convex.minimax import convex_lower_bound, strongly_convex_lower_bound

LOWER_BOUND_HOLDS = (40, 7202)  # dimension, records


def lower_bound_of(setting: HeavyTailedSetting, order: float, strongly_convex: bool) -> float:
    """Return the minimax lower bound of a setting, with constant 1."""
    shared: dict[str, Any] = {
        "second_moment_bound": setting.second_moment(order),
        "moment_bound": setting.moment(order),
        "order": order,
        "num_records": setting.num_records,
        "dim": setting.dim,
        "rho": setting.rho,
    }
    if strongly_convex:
        return strongly_convex_lower_bound(strong_convexity=setting.strong_convexity, **shared)
    return convex_lower_bound(radius=setting.diameter / 2, **shared)


def left_out(num_records: int, used: int) -> tuple[str, ...]:
    """Return a message if records are left out."""
    rest = num_records - used
    return (f"{rest} of {num_records} records are not used.",) if rest else ()


def about_lower_bound(setting: HeavyTailedSetting) -> tuple[str, ...]:
    """Return a message if the setting is outside of what the lower bound is proved for."""
    dim, records = LOWER_BOUND_HOLDS
    if setting.dim < dim or setting.num_records <= records or setting.rho > setting.dim:
        return (f"The lower bound is proved for dim >= {dim}, more than {records} records and rho <= dim only.",)
    return ()
