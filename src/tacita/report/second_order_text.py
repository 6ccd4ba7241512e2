"""A plan of noisy SGD to second-order points as text for a terminal, and as plain data for JSON."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tacita.ledger.text_lines import rounded_up
from tacita.second_order.noisy_sgd_plan import MOST_STEPS, NoisySGDPlan

ASSUMED = {
    True: "Assumption B is taken for granted: at every point, gradients concentrate about their mean. It cannot be "
    "checked on data; --no-concentration does without it, at the price of much larger noise.",
    False: "Assumption B is not used: the noise is that of the paper's Appendix C.",
}


def show_second_order(found: NoisySGDPlan, console: Console) -> None:
    """Print a plan as tables and text."""
    setting = found.setting
    console.print(
        f"[bold]The plan[/bold]: noisy SGD to a point with gradients below {found.accuracy:.4g} and no curvature below "
        f"{-((setting.hessian_lipschitz * found.accuracy) ** 0.5):.4g}, {setting.num_records:,} records, batches of "
        f"{setting.batch_size:,}, {setting.dim:,} dimensions.",
        highlight=False,
    )
    console.print()
    console.print(_numbers(found))
    console.print("[bold]Epsilon[/bold]", highlight=False)
    console.print(_epsilon_words(found), highlight=False)
    console.print()
    console.print(_conditions(found))
    for line in _small_print(found):
        console.print(line, highlight=False)


def second_order_record(found: NoisySGDPlan) -> dict[str, Any]:
    """Return a plan as plain data for JSON."""
    return {
        "setting": asdict(found.setting),
        "accuracy": found.accuracy,
        "least_accuracy": found.least_accuracy,
        "gradient_bound": found.gradient_bound,
        "mean_noise_std": found.mean_noise_std,
        "noise_multiplier": found.noise_multiplier,
        "nominal_epsilon": found.setting.epsilon,
        "real_epsilon": found.real_epsilon,
        "parameters": {name: float(value) for name, value in asdict(found.parameters).items()},
        "conditions": dict(found.conditions),
    }


def _numbers(found: NoisySGDPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    rows = {
        "accuracy alpha": found.accuracy,
        "least accuracy with consistent noise and steps": found.least_accuracy,
        "clipping threshold C": found.gradient_bound,
        "noise per coordinate of the mean": found.mean_noise_std,
        "noise multiplier (noise of the sum over C)": found.noise_multiplier,
        "step size": found.parameters.lr,
        "steps": found.parameters.steps,
        "steps to leave a saddle": found.parameters.escape_steps,
    }
    for name, value in rows.items():
        table.add_row(name, f"{float(value):,.0f}" if 1e4 <= value < 1e12 else f"{float(value):.4g}")
    return table


def _epsilon_words(found: NoisySGDPlan) -> str:
    setting = found.setting
    nominal = f"The paper's formula calls this epsilon = {setting.epsilon:g} at delta = {setting.delta:g}"
    if found.real_epsilon is None:
        return f"{nominal}. The accountant's was not computed, because the plan has more than {MOST_STEPS:.0e} steps."
    batches = "full batches" if setting.batch_size == setting.num_records else "Poisson batches"
    return (
        f"{nominal}. The accountant's is at most {rounded_up(found.real_epsilon)}, for SGD that clips every gradient "
        f"at C, with {batches} under {setting.relation}. Rely on the accountant's. Without clipping, epsilon depends "
        "on a condition."
    )


def _conditions(found: NoisySGDPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("condition of the paper")
    table.add_column("holds", justify="right")
    for name, holds in found.conditions.items():
        table.add_row(name, "yes" if holds else "NO")
    return table


def _small_print(found: NoisySGDPlan) -> list[str]:
    lines = [ASSUMED[found.setting.concentrated]]
    if found.broken:
        lines.append("Where a condition does not hold, the paper guarantees nothing.")
    lines.append(
        "The paper does not give its constants; they are 1 here, so steps, step size and accuracy are orders of "
        "magnitude. L, rho, the gap and sigma were declared; estimating them from the private data would cost privacy."
    )
    return lines
