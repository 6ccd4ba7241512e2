"""A plan of Clip21-SGDM as text for a terminal, as plain data for JSON, and as a figure."""

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from tacita.accounting import gaussian_epsilon
from tacita.federated.clip21_plan import FederatedPlan, theorem_rules
from tacita.report.style import FAINT, PALETTE, heading, new_figure, plain_log, styled

POINTS = 13  # of the curves over rounds


def show_federated(found: FederatedPlan, console: Console) -> None:
    """Print a plan as tables and text."""
    setting = found.setting
    console.print(
        f"[bold]The plan[/bold]: Clip21-SGDM, {setting.num_clients:,} clients, {setting.rounds:,} rounds, "
        f"{setting.dim:,} dimensions; all data of a client are ({setting.epsilon:g}, {setting.delta:g})-private "
        "against the server.",
        highlight=False,
    )
    console.print()
    console.print(_numbers(found))
    console.print(_theorems(found))
    for line in _small_print(found):
        console.print(line, highlight=False)


def federated_record(found: FederatedPlan) -> dict[str, Any]:
    """Return a plan as plain data for JSON."""
    return {
        "setting": asdict(found.setting),
        "max_grad_norm": found.max_grad_norm,
        "noise_std": found.noise_std,
        "noise_multiplier": found.noise_multiplier,
        "mean_noise": found.mean_noise,
        "models_epsilon": gaussian_epsilon(found.sum_mu, found.setting.delta),
        "rate": found.rate,
        "trivial_bound": found.setting.trivial,
        "theorems": {
            name: None
            if rule is None
            else {
                "lr": rule.lr,
                "momentum_weight": rule.momentum_weight,
                "bound": rule.value if math.isfinite(rule.value) else None,
                "binding": rule.binding,
                "vacuous": found.vacuous(rule),
            }
            for name, rule in found.rules.items()
        },
    }


@styled
def federated_figure(found: FederatedPlan) -> Any:
    """Draw the theorems' bounds over the number of rounds, at the plan's epsilon and threshold."""
    setting = found.setting
    rounds = np.unique(np.logspace(0, 2 + math.log10(setting.rounds), POINTS).astype(int))
    rules = [theorem_rules(replace(setting, rounds=int(count), max_grad_norm=found.max_grad_norm)) for count in rounds]
    figure, axes = new_figure(size=(7.6, 4.4))
    for color, (name, here) in zip(PALETTE, found.rules.items(), strict=False):
        if here is None:
            continue
        values = [math.nan if rule[name] is None else rule[name].value for rule in rules]  # type: ignore[union-attr]
        axes.loglog(rounds, values, "o-", color=color, ms=4, label=name)
    axes.axhline(setting.trivial, color=FAINT, ls="--", label="what the start has: bounds above say nothing")
    axes.axhline(found.rate, color=FAINT, ls=":", label="Corollary 1's leading term, without its constant")
    axes.axvline(setting.rounds, color=FAINT, lw=1)
    axes.set(xlabel="rounds", ylabel="bound on mean squared gradient")
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=1)
    heading(figure, f"ε = {setting.epsilon:g}, δ = {setting.delta:g}, {setting.num_clients:,} clients")
    return figure


def _numbers(found: FederatedPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    delta = found.setting.delta
    rows = {
        "clipping threshold C of a message": found.max_grad_norm,
        "noise of a message, per coordinate (exact)": found.noise_std,
        "noise multiplier (noise over 2 C)": found.noise_multiplier,
        "the paper's noise-clipping ratio (noise over C)": 2 * found.noise_multiplier,
        "norm of the noise in the server's estimate at the end": found.mean_noise,
        "epsilon against whoever sees the models alone": gaussian_epsilon(found.sum_mu, delta),
        "Corollary 1's rate L Delta sqrt(d) / (sqrt(n) epsilon)": found.rate,
        "squared gradient norm that the start cannot pass": found.setting.trivial,
    }
    for name, value in rows.items():
        table.add_row(name, f"{float(value):.4g}")
    return table


def _theorems(found: FederatedPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("theorem")
    for name in ("step size", "momentum weight", "bound", "says"):
        table.add_column(name, justify="right")
    for name, rule in found.rules.items():
        if rule is None:
            table.add_row(name.split(":")[0], "-", "-", "-", "does not apply")
        else:
            words = "nothing: vacuous" if found.vacuous(rule) else "something"
            numbers = (f"{value:.3g}" for value in (rule.lr, rule.momentum_weight, rule.value))
            table.add_row(name.split(":")[0], *numbers, words)
    return table


def _small_print(found: FederatedPlan) -> list[str]:
    chosen = "" if found.setting.max_grad_norm else " The threshold is the largest gradient over the rounds, by rule."
    return [
        "Theorem 2: exact gradients without noise; 3: stochastic gradients without noise; 4: with privacy noise. They "
        f"bound the mean squared gradient norm over the run.{chosen}",
        "The theorems' step sizes are far too small for practice: tune them, on public data. The noise is exact, and "
        "no choice of steps changes it.",
        "Every client is charged for every round, under every neighboring relation. L, the gap, the gradient and sigma "
        "were declared; estimating them from the clients' data would cost privacy.",
    ]
