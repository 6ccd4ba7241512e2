"""A plan in words, for a terminal, and as plain data.

Place: theory.planner -> [report.plan_text] -> ``tacita plan``, report.
"""

from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from tacita.accounting import moved
from tacita.report.plan_figure import NAMES
from tacita.theory.planner import OracleSettings, Plan, PlanSetting
from tacita.theory.problem import ConvexProblem

TRADES = {
    "bias": "what clipping leaves forever; falls with the threshold, not with steps",
    "dp": "noise of privacy; grows with the threshold",
    "stat": "noise of the samples; falls with steps and batch",
    "jump": "the largest single step; falls with steps, grows with the threshold",
    "smooth": "too few steps; falls with steps",
}


def show(found: Plan, console: Console) -> None:
    """Print a plan."""
    setting, bound = found.setting, found.best.bound
    console.print("[bold]The plan[/bold]: " + _budget(found), highlight=False)
    console.print()
    console.print(_settings_table(found))
    title = "The theorem" + (" says nothing here" if found.is_vacuous else " says something here")
    console.print(f"[bold]{title}[/bold]", highlight=False)
    for line in _verdict(found):
        console.print(line, highlight=False)
    console.print()
    console.print(_terms_table(found))
    console.print(f"Regime: {found.regime.words}.", highlight=False)
    console.print()
    console.print("[bold]What would help[/bold], the most helpful first", highlight=False)
    console.print(_helps_table(found))
    for line in _small_print(setting, bound.metric):
        console.print(line, highlight=False)


def as_record(found: Plan) -> dict[str, Any]:
    """A plan as plain data for JSON."""
    setting, bound = found.setting, found.best.bound
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
        "metric": bound.metric,
        "trivial_value": float(bound.trivial_value),
        "theorem": {
            "is_vacuous": found.is_vacuous,
            "value": float(bound.value),
            "binding_term": str(bound.binding_term),
            "terms": {name: float(value) for name, value in bound.terms.items()},
            "of_the_output": found.of_output,
            "regime": str(found.regime.row),
            "settings": _record(found.theory_settings),
        },
        "rule_of_thumb": {
            "estimate": found.thumb.estimate,
            "terms": found.thumb.terms,
            "settings": _record(found.thumb_settings),
        },
        "what_would_help": [
            {"change": help.change, "theorem": help.bound, "rule_of_thumb": help.estimate} for help in found.helps
        ],
    }


def _budget(found: Plan) -> str:
    setting = found.setting
    how = {
        "poisson": f"Poisson sampling at rate {setting.sample_rate:.4g}",
        "full_batch": "every record in every step",
        "one_pass": "each record in one step at most",
    }[setting.sampling]
    kind = "convex" if isinstance(setting.problem, ConvexProblem) else "non-convex"
    return (
        f"({setting.epsilon:g}, {setting.delta:g})-DP under {setting.relation}, {setting.steps:,} steps, {how}; "
        f"a {kind} problem in {float(np.asarray(setting.problem.dim)):,.0f} dimensions."
    )


def _settings_table(found: Plan) -> Table:
    table = _table("", "rule of thumb", "theorem")
    thumb, theory = found.thumb_settings, found.theory_settings
    rows = [
        ("clipping threshold C", thumb.max_grad_norm, theory.max_grad_norm),
        ("step size, of the mean gradient", thumb.lr, theory.lr),
        ("noise multiplier (exact)", thumb.noise_multiplier, theory.noise_multiplier),
        (f"noise of the sum (sensitivity {moved(found.setting.relation)} C)", thumb.noise_std, theory.noise_std),
        ("noise a coordinate of the mean", *(s.noise_std / s.expected_batch_size for s in (thumb, theory))),
    ]
    for name, one, two in rows:
        table.add_row(name, _number(one), _number(two))
    table.add_row("average", f"the last {found.setting.steps - thumb.skip:,} iterates", "all iterates")
    table.add_row(f"error, {found.best.bound.metric}", f"about {_number(found.thumb.estimate)}", _bound_words(found))
    return table


def _bound_words(found: Plan) -> str:
    if found.is_vacuous:
        return "nothing is promised"
    return f"at most {_number(float(found.best.bound.value))}"


def _verdict(found: Plan) -> list[str]:
    bound, trivial = found.best.bound, float(found.best.bound.trivial_value)
    times = float(bound.value) / trivial
    at_best = f"At its best threshold ({_number(found.best.max_grad_norm)}) its bound is {_number(float(bound.value))}"
    if not found.is_vacuous:
        return [
            f"{at_best}, {_number(1 / times)} times below the {_number(trivial)} that holds before the first step, "
            f"with probability {1 - found.setting.failure_probability:g}. It is loose: expect less.",
            f"What can be released: {_output_words(found)}.",
        ]
    above = [words for name, words in NAMES.items() if float(bound.terms[name]) >= trivial]
    return [
        f"{at_best}: {_number(times)} times the {_number(trivial)} that holds before the first step. This promises "
        "nothing; it does not mean that training fails.",
        f"By itself too large: {', '.join(above)}. The constants of the proof are in the hundreds; use the rule of "
        "thumb, which is measured and promises nothing either.",
    ]


def _output_words(found: Plan) -> str:
    value = _number(found.of_output)
    if isinstance(found.setting.problem, ConvexProblem):
        return f"the average of all iterates, at most {value}"
    return f"an iterate drawn beforehand, at most {value} with probability 1/2"


def _terms_table(found: Plan) -> Table:
    table = _table("error by cause", "theorem", "rule of thumb", "")
    bound = found.best.bound
    for name, words in NAMES.items():
        mark = " (binds)" if name == bound.binding_term else ""
        rough = found.thumb.terms.get(name)
        table.add_row(words + mark, _number(float(bound.terms[name])), _number(rough), TRADES[name])
    return table


def _helps_table(found: Plan) -> Table:
    table = _table("change", "rule of thumb", "theorem")
    table.add_row("as planned", _number(found.thumb.estimate), _number(float(found.best.bound.value)))
    for help in found.helps:
        table.add_row(help.change, _number(help.estimate), _number(help.bound))
    return table


def _small_print(setting: PlanSetting, metric: str) -> list[str]:
    lines = [
        f"Errors are in units of {metric}. L, radius or gap, sigma and alpha were declared; finding them on the "
        "private data would cost privacy, and so would tuning the threshold there. Noise of the changes is approximate."
    ]
    if setting.batch_size > 1:
        lines.append("The paper covers one sample a step; batches are an extension, for independent samples.")
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
