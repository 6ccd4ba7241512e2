"""``tacita plan --html``: a page in one file on which a plan's settings can be moved, with a table computed before."""

import json
from collections.abc import Sequence
from html import escape

import numpy as np

from tacita.clipped_sgd.planner import ClippedSGDPlan
from tacita.clipped_sgd.what_if import WhatIf
from tacita.ledger.text_lines import rounded_up
from tacita.report.html_page import facts, page, table

AXES = {"epsilon": "Epsilon", "steps": "Steps", "batch_size": "Batch size", "max_grad_norm": "Clipping threshold"}
OUTPUTS = {
    "noise_multiplier": "Noise multiplier",
    "coordinate": "Noise on each coordinate of the mean gradient",
    "length": "Length of the noise vector",
    "lr": "Step size to start from",
    "estimate": "Error to expect (rule of thumb)",
    "of_start": "That is, of the error before any step",
}
CAVEAT = (
    "Noise multipliers are those of the budget, rounded up. Error and step size are the rule of thumb's: they show "
    "directions, and guarantee nothing. Every number follows from what was declared; no data were read."
)
MISSING = "This combination would use a record more often than the sampling allows."
SCRIPT = """
const plan = JSON.parse(document.getElementById("plan").textContent);
const axes = Object.keys(plan.axes);
const short = (x) => String(Number(x.toPrecision(3)));
function update() {
  const places = axes.map((name) => document.getElementById(name).value);
  axes.forEach((name, i) => {
    const value = short(plan.axes[name][places[i]]);
    document.getElementById(name + "-value").textContent = value;
    document.getElementById(name).setAttribute("aria-valuetext", value);
  });
  const cell = plan.cells[places.join(" ")];
  for (const name of plan.outputs) {
    document.getElementById(name).textContent = cell ? cell[name] : "-";
  }
  document.getElementById("missing").hidden = Boolean(cell);
}
axes.forEach((name) => document.getElementById(name).addEventListener("input", update));
document.getElementById("controls").hidden = false;
update();
"""


def what_if_page(plan: ClippedSGDPlan, found: Sequence[WhatIf]) -> str:
    """Return the page: sliders, what follows from them, and all cells as a table for those without scripts."""
    axes = _axes(found)
    cells = {
        " ".join(str(axes[name].index(value)) for name, value in zip(axes, place, strict=True)): cell
        for place, cell in _cells(plan, found).items()
    }
    data = json.dumps({"axes": axes, "cells": cells, "outputs": list(OUTPUTS)}).replace("<", "\\u003c")
    sliders = "".join(_slider(plan, name, values) for name, values in axes.items())
    shown = "".join(f'<dt>{escape(words)}</dt><dd id="{name}">-</dd>' for name, words in OUTPUTS.items())
    title = "What if: DP-SGD with a fixed clipping threshold"
    body = (
        f'<header><h1>{escape(title)}</h1></header><main id="main"><p>{escape(CAVEAT)}</p><h2>Declared</h2>'
        f"{facts(_declared(plan))}"
        f'<div id="controls" hidden><h2>Settings</h2><dl>{sliders}</dl>'
        f'<h2>What follows</h2><p id="missing" class="bad" hidden>{MISSING}</p>'
        f'<dl aria-live="polite">{shown}</dl></div>'
        f"<h2>All settings</h2><details><summary>Noise multipliers</summary>{_table(found)}</details></main>"
        f'<script type="application/json" id="plan">{data}</script>'
    )
    return page(title, body, script=SCRIPT)


def _axes(found: Sequence[WhatIf]) -> dict[str, list[float]]:
    settings = [one.setting for one in found]
    values = {name: sorted({float(getattr(one, name)) for one in settings}) for name in list(AXES)[:3]}
    return values | {"max_grad_norm": sorted(found[0].by_threshold)}


def _cells(plan: ClippedSGDPlan, found: Sequence[WhatIf]) -> dict[tuple[float, ...], dict[str, str]]:
    start, dim = float(plan.setting.problem.trivial_value), float(np.asarray(plan.setting.problem.dim))
    return {
        (one.setting.epsilon, one.setting.steps, one.setting.batch_size, c): {
            "noise_multiplier": rounded_up(one.noise_multiplier),
            "coordinate": rounded_up(one.mean_noise_std * c),
            "length": f"{one.mean_noise_std * c * dim**0.5:.3g}",
            "lr": f"{rule.lr:.3g}",
            "estimate": f"{rule.estimate:.3g}",
            "of_start": f"{100 * rule.estimate / start:.3g} %",
        }
        for one in found
        for c, rule in one.by_threshold.items()
    }


def _slider(plan: ClippedSGDPlan, name: str, values: Sequence[float]) -> str:
    at = plan.thumb.max_grad_norm if name == "max_grad_norm" else float(getattr(plan.setting, name))
    slider = f'<input type="range" id="{name}" min="0" max="{len(values) - 1}" step="1" value="{values.index(at)}">'
    shown = f'<output for="{name}" id="{name}-value"></output>'
    return f'<dt><label for="{name}">{AXES[name]}</label></dt><dd>{slider} {shown}</dd>'


def _declared(plan: ClippedSGDPlan) -> dict[str, object]:
    setting = plan.setting
    return {
        "Delta": setting.delta,
        "Neighbours": setting.relation,
        "Records": setting.num_records,
        "Sampling": setting.sampling,
        "Parameters": setting.problem.dim,
    }


def _table(found: Sequence[WhatIf]) -> str:
    rows = [
        (
            f"{one.setting.epsilon:g}",
            str(one.setting.steps),
            str(one.setting.batch_size),
            rounded_up(one.noise_multiplier),
        )
        for one in found
    ]
    return table(("epsilon", "steps", "batch size", "noise multiplier"), rows, "Noise multipliers by setting")
