"""A plan as text for a terminal, and as plain data for JSON."""

from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from tacita.accounting import moved
from tacita.clipped_sgd.plan_setting import PlanSetting, no_theorem
from tacita.clipped_sgd.planner import ClippedSGDPlan, OracleSettings, PlannedTheorem
from tacita.clipped_sgd.problem import ConvexProblem
from tacita.ledger.text_lines import rounded_up
from tacita.report.plan_figure import NAMES, theorem_status

TRADES = {
    "bias": "falls as the threshold grows; more steps do not help",
    "dp": "grows with the threshold",
    "stat": "falls with steps and batch size",
    "jump": "falls with steps, grows with the threshold",
    "smooth": "falls with steps",
}
ABOUT = {
    "one_pass": "The theorem is about the population: records must be independent draws from it, assigned to batches "
    "by index in an order that does not depend on them, the same number to each batch.",
    "full_batch": "The theorem is about the mean loss of these records, and sigma about their gradients.",
}


def show(found: ClippedSGDPlan, console: Console) -> None:
    """Print a plan as tables and text."""
    console.print("[bold]The plan[/bold]: " + _budget(found), highlight=False)
    console.print()
    console.print(_settings_table(found))
    console.print(f"[bold]The theorem {theorem_status(found)}[/bold]", highlight=False)
    for line in [no_theorem(found.setting)] if found.theorem is None else _verdict(found, found.theorem):
        console.print(line, highlight=False)
    console.print()
    console.print(_terms_table(found))
    if found.theorem is not None:
        console.print(f"Regime: {found.theorem.regime.words}.", highlight=False)
        console.print()
    console.print("[bold]What would help[/bold], the most helpful first", highlight=False)
    console.print(_helps_table(found))
    for line in _small_print(found.setting):
        console.print(line, highlight=False)


def as_record(found: ClippedSGDPlan) -> dict[str, Any]:
    """Return a plan as plain data for JSON. Where the theorem is not proved, it is null and ``no_theorem`` says why."""
    setting = found.setting
    return {
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "neighboring_relation": setting.relation,
        "sampling": setting.sampling,
        "num_records": setting.num_records,
        "batch_size": setting.batch_size,
        "steps": setting.steps,
        "failure_probability": setting.failure_probability,
        "noise_multiplier": found.noise_multiplier,
        "metric": setting.problem.metric,
        "trivial_value": float(setting.problem.trivial_value),
        "theorem": None if found.theorem is None else _theorem_record(found.theorem),
        "no_theorem": no_theorem(setting),
        "rule_of_thumb": {
            "estimate": found.thumb.estimate,
            "terms": found.thumb.terms,
            "settings": _record(found.thumb_settings),
        },
        "what_would_help": [
            {"change": help.change, "theorem": help.bound, "rule_of_thumb": help.estimate} for help in found.helps
        ],
    }


def _theorem_record(theorem: PlannedTheorem) -> dict[str, Any]:
    bound = theorem.best.bound
    return {
        "is_vacuous": theorem.is_vacuous,
        "value": float(bound.value),
        "probability": theorem.probability,
        "binding_term": str(bound.binding_term),
        "terms": {name: float(value) for name, value in bound.terms.items()},
        "of_the_output": theorem.of_output,
        "of_the_output_probability": theorem.output_probability,
        "regime": str(theorem.regime.row),
        "settings": _record(theorem.settings),
    }


def _budget(found: ClippedSGDPlan) -> str:
    setting = found.setting
    how = {
        "poisson": f"Poisson sampling at rate {setting.sample_rate:.4g}",
        "full_batch": "every record in every step",
        "one_pass": "each record in at most one step",
    }[setting.sampling]
    kind = "convex" if isinstance(setting.problem, ConvexProblem) else "non-convex"
    return (
        f"({setting.epsilon:g}, {setting.delta:g})-DP under {setting.relation}, {setting.steps:,} steps, {how}; "
        f"a {kind} problem in {float(np.asarray(setting.problem.dim)):,.0f} dimensions."
    )


def _settings_table(found: ClippedSGDPlan) -> Table:
    columns = [found.thumb_settings] + ([] if found.theorem is None else [found.theorem.settings])
    table = _table("", *("rule of thumb", "theorem")[: len(columns)])
    rows = {
        "clipping threshold C": [s.max_grad_norm for s in columns],
        "step size for the mean gradient": [s.lr for s in columns],
    }
    noise = {  # rounded up, because a little less would not be enough
        "noise multiplier": [s.noise_multiplier for s in columns],
        f"noise of the sum (sensitivity {moved(found.setting.relation)} C)": [s.noise_std for s in columns],
        "noise per coordinate of the mean": [s.noise_std / s.expected_batch_size for s in columns],
    }
    for name, values in rows.items():
        table.add_row(name, *map(_number, values))
    for name, values in noise.items():
        table.add_row(name, *map(rounded_up, values))
    table.add_row("released", *map(_released, columns))
    errors = [f"about {_number(found.thumb.estimate)}", _bound_words(found.theorem)][: len(columns)]
    table.add_row(f"error, {found.setting.problem.metric}", *errors)
    return table


def _released(settings: OracleSettings) -> str:
    """Return which point of the run is released, in words."""
    if settings.skip is None:
        return "one iterate, drawn before training"
    if settings.skip == 0:
        return "the average of the iterates"
    return f"the average of the last {settings.planned_queries - settings.skip:,}"


def _bound_words(theorem: PlannedTheorem | None) -> str:
    if theorem is None or theorem.is_vacuous:
        return "no guarantee"
    return f"at most {rounded_up(float(theorem.best.bound.value))}"


def _verdict(found: ClippedSGDPlan, theorem: PlannedTheorem) -> list[str]:
    bound, trivial = theorem.best.bound, float(theorem.best.bound.trivial_value)
    times = float(bound.value) / trivial
    at_best = (
        f"At its best threshold ({_number(theorem.best.max_grad_norm)}) its bound is {_number(float(bound.value))}"
    )
    if not theorem.is_vacuous:
        return [
            f"{at_best}, {_number(1 / times)} times below the {_number(trivial)} that holds before the first step, "
            f"with probability at least {theorem.probability:g}. It is loose: expect a smaller error.",
            f"For the point that can be released: {_output_words(found, theorem)}.",
        ]
    above = [words for name, words in NAMES.items() if float(bound.terms[name]) >= trivial]
    return [
        f"{at_best}, {_number(times)} times the {_number(trivial)} that holds before the first step. This guarantees "
        "nothing; it does not mean that training fails.",
        f"Terms that are too large by themselves: {', '.join(above)}. The constants of the proof are in the hundreds; "
        "use the rule of thumb, which is measured and guarantees nothing either.",
    ]


def _output_words(found: ClippedSGDPlan, theorem: PlannedTheorem) -> str:
    value, chance = _number(theorem.of_output), f"with probability at least {theorem.output_probability:g}"
    if isinstance(found.setting.problem, ConvexProblem):
        return f"the average of the iterates, at most {value} {chance}"
    return (
        f"an iterate drawn before training, at most {value} {chance} (1/2 where the theorem's event holds). An average "
        "of the iterates has no guarantee for a non-convex problem"
    )


def _terms_table(found: ClippedSGDPlan) -> Table:
    if found.theorem is None:
        table = _table("error by cause", "rule of thumb", "")
        for name, rough in found.thumb.terms.items():
            table.add_row(NAMES[name], _number(rough), TRADES[name])
        return table
    table = _table("error by cause", "theorem", "rule of thumb", "")
    bound = found.theorem.best.bound
    for name, words in NAMES.items():
        mark = " (binds)" if name == bound.binding_term else ""
        rough = found.thumb.terms.get(name)
        table.add_row(words + mark, _number(float(bound.terms[name])), _number(rough), TRADES[name])
    return table


def _helps_table(found: ClippedSGDPlan) -> Table:
    here = None if found.theorem is None else float(found.theorem.best.bound.value)
    rows = [("as planned", found.thumb.estimate, here), *((h.change, h.estimate, h.bound) for h in found.helps)]
    proved = any(bound is not None for _, _, bound in rows)
    table = _table("change", "rule of thumb", *(["theorem"] if proved else []))
    for change, estimate, bound in rows:
        table.add_row(change, _number(estimate), *([_number(bound)] if proved else []))
    return table


def _small_print(setting: PlanSetting) -> list[str]:
    lines = [
        f"Errors are in units of {setting.problem.metric}. L, radius or gap, sigma and alpha were declared; estimating "
        "them from the private data would cost privacy, and so would tuning the threshold on them. The noise of the "
        "changes is approximate. The rule of thumb was measured on convex problems, in one pass."
    ]
    if not no_theorem(setting):
        lines.append(ABOUT[setting.sampling])
        if setting.batch_size > 1:
            lines.append("The paper covers one sample per step; batches are an extension, for independent samples.")
    if setting.delta >= 1 / setting.num_records:
        lines.append(
            f"WARNING: delta = {setting.delta:g} is not below 1 / {setting.num_records:,}: publishing one record in "
            "full would satisfy it."
        )
    return lines


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        words = i == 0 or not column
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    return table


def _record(settings: OracleSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1e4 <= value < 1e7 else f"{value:.3g}"
