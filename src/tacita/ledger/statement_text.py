"""The text of a privacy statement: one page for a reader who has to sign it, and an appendix with the long lists.

Bounds are rounded up where they are printed. Technical terms are explained in the glossary that ends the appendix.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tacita.accounting import gaussian_delta, gaussian_mu
from tacita.accounting.relations import NeighboringRelation
from tacita.ledger.statement_appendix import Appendix
from tacita.ledger.text_lines import TextLines, in_words, percent_up, right_in_words, rounded_up
from tacita.ledger.verdict import NEXT_TO_NOTHING, exact_score

HEADLINE = "headline"  # a further field that stands in the first line, if a front end gives it
CHOSEN = "chosen_among"  # a further field: the number of runs of which somebody chose this one
ABOUT, RUN, ROWS, COLUMNS = "about", "run", "rows", "columns"
LEAVES, NOT_ANONYMISED, DATASET = "files_policy", "not_anonymised", "dataset"
PUBLIC_LOSSES = "public_losses"  # pairs of queries made and the loss on public data; in the JSON, not in the text
PLACED = (HEADLINE, LEAVES, NOT_ANONYMISED, COLUMNS, PUBLIC_LOSSES)  # further fields with a place of their own
OF_A_RUN = (RUN, ABOUT, ROWS, DATASET)  # ... if there is a field ``run``

GIVEN = {  # what whoever makes the run may say of it -> its name on the page
    "responsible": "Made by",
    "contact": "Contact",
    "data_period": "Period",
    "purpose": "Purpose",
    "recipients": "Recipients",
    "retention": "Retention",
}

NEIGHBOURS: dict[NeighboringRelation, str] = {
    "add_or_remove_one": "one unit is present in one of them and absent from the other. The number of units is "
    "protected, too",
    "replace_one": "the data of one unit are replaced by any other data. The number of units is public",
    "zero_out_one": "the contribution of one unit is replaced by zero. The number of units is public",
}

GUESSED: dict[NeighboringRelation, str] = {
    "add_or_remove_one": "whether one unit is in the data",
    "replace_one": "which of two possible values the data of one unit have",
    "zero_out_one": "whether the contribution of one unit is in the sums",
}

METHODS = {  # in the name of an accountant -> what it stands for
    "PLD": "PLD stands for privacy loss distribution",
    "RDP": "RDP stands for Rényi differential privacy",
    "Rényi filter": "a Rényi filter lets later sessions depend on earlier releases, as long as a fixed total is kept",
    "Gaussian filter": "a Gaussian filter lets later sessions depend on earlier releases, as long as a fixed total is "
    "kept",
}

SCALE = (0.1, 0.5, 1.0, 2.0, 4.0)  # epsilons to compare with
TIERS = "up to 1 strong, up to 10 reasonable, above that weak or none (Ponomareva et al. 2023, arXiv:2303.00654)"


def write_text(fields: Mapping[str, Any], extra: Sequence[str] = ()) -> str:
    """Return the text of a statement; ``extra`` names the fields that the caller added."""
    lines = TextLines()
    _Page(lines, fields).write()
    placed = (*PLACED, *OF_A_RUN) if RUN in fields else PLACED
    Appendix(lines, fields, [name for name in extra if name not in placed]).write()
    return lines.text


class _Page:
    """Writes the first page."""

    def __init__(self, lines: TextLines, fields: Mapping[str, Any]) -> None:
        self._lines, self._fields = lines, fields

    def write(self) -> None:
        lines, fields = self._lines, self._fields
        self._alarms()
        lines.line("PRIVACY STATEMENT")
        self._run()
        self._guarantee()
        lines.listed("Held-out score", [] if fields["holdout_score"] is None else [_score(fields["holdout_score"])])
        self._files()
        lines.listed("What is not anonymised", fields.get(NOT_ANONYMISED) or [])
        lines.listed("Caveats", fields["caveats"])
        self._signature()

    def _alarms(self) -> None:
        lines, fields = self._lines, self._fields
        if fields.get(HEADLINE):
            lines.line(fields[HEADLINE])
        if not fields["secure_randomness"]:
            lines.line(
                "NOT PRIVATE (test streams): the noise of a session came from a seed or a random stream that the "
                "caller handed in, so that it can be computed again and removed. The numbers below say what the same "
                "run would guarantee with secret noise."
            )
        if fields["non_private"]:
            lines.line("NO PRIVACY GUARANTEE: a session adds no noise, or too little for any epsilon at this delta.")
        for disclaimer in fields["disclaimers"]:
            lines.line(f"{disclaimer[0].upper()}{disclaimer[1:]}. What is guaranteed is stated below.")
        if exact_score(fields):
            lines.line(
                "EXACT SCORE: the held-out score was computed without noise on private rows. It is outside the "
                "guarantee, which is that of the model: do not publish it with the model."
            )
        if fields.get(CHOSEN) is not None:
            lines.line(_price_of_choice(fields))
        if not fields["ledger_verified"]:
            lines.line(f"LEDGER NOT INTACT: {fields['ledger_reason']}. The numbers below cannot be relied on.")
        if len(lines):
            lines.line()

    def _run(self) -> None:
        lines, fields = self._lines, self._fields
        run, about = fields.get(RUN), fields.get(ABOUT) or {}
        if not isinstance(run, Mapping):
            return
        lines.heading("This run")
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        lines.row("Run", f"{run['id']}, stated on {run['date']} (UTC, by the machine's clock), with {versions}")
        lines.row("Data", self._data())
        for name, title in GIVEN.items():
            if name in about:
                lines.row(title, about[name])
        missing = [title.lower() for name, title in GIVEN.items() if name not in about]
        if missing:
            lines.row("Not given", f"{', '.join(missing)}.")
        if isinstance(dataset := fields.get(DATASET), Mapping):
            lines.row("Other runs", other_runs_in_words(dataset))

    def _data(self) -> str:
        """Name the data, and count its rows and columns."""
        fields, parts = self._fields, []
        if isinstance(dataset := fields.get(DATASET), Mapping):
            parts.append(f"{dataset['name']} (the name that was given)")
        if (rows := fields.get(ROWS)) is not None:
            parts.append(rows_in_words(rows))
        if isinstance(columns := fields.get(COLUMNS), Mapping):
            counts = [f"{len(found)} {name.replace('_', ' ')}" for name, found in columns.items() if found]
            parts.append(f"columns: {', '.join(counts) or 'none'}")
        return f"{'; '.join(parts) or 'nothing was said'}."

    def _guarantee(self) -> None:
        lines, fields = self._lines, self._fields
        lines.heading("What is guaranteed")
        if not fields["sessions"] and not fields["shares"]:
            lines.line("Nothing: no session is registered, so nothing can be said of any model.", indent="  ")
            return
        epsilon = fields["epsilon"] if not fields["conditions"] else fields["conditional_epsilon"]
        given = "epsilon = infinity" if epsilon is None else f"epsilon <= {rounded_up(epsilon)}"
        if fields["conditions"]:
            lines.line(
                "No unconditional epsilon. The numbers below hold only under these conditions, which nobody enforces:",
                indent="  ",
            )
            for condition in fields["conditions"]:
                lines.line(condition + ".", indent="      ", first="    - ")
        count = sum(one["state"] != "withdrawn" for one in fields["sessions"]) + len(fields["shares"])
        lines.line(
            f"Differential privacy with {given} at delta = {fields['delta']:g}, for the plan: all queries of "
            f"{'1 session' if count == 1 else f'all {count} sessions'} in the ledger, earlier runs in it included.",
            indent="  ",
        )
        lines.row("For whom", f"{fields['privacy_unit']} (the privacy unit)")
        relation = fields["neighboring_relation"]
        lines.row("Neighbours", f"the data sets compared differ in one unit. By {relation}, {NEIGHBOURS[relation]}.")
        if epsilon is not None:
            if fields["gdp_mu"] is not None:
                lines.row("mu", _mu(fields["gdp_mu"], epsilon, fields["delta"]))
            lines.row("In words", _odds(epsilon, fields["delta"], _released(fields)))
        lines.row("Risk", _risk(fields))
        if epsilon is not None:
            lines.row("Scale", _scale(fields["delta"]))
            lines.row("Delta", _delta(fields["delta"], fields.get(ROWS)))
        lines.row("Accountant", _accountant(fields["accountant"], bounded=epsilon is not None))
        if fields["failure_probability"]:
            lines.row("Of delta", _failures(fields["failure_probability"], fields["failure_delta"]))

    def _files(self) -> None:
        policy = self._fields.get(LEAVES)
        if isinstance(policy, Mapping):
            self._lines.heading("Files")
            self._lines.row("May leave", f"{', '.join(policy['may_leave'])}.")
            self._lines.row("Never", f"{'; '.join(policy['never'])}.")

    def _signature(self) -> None:
        lines = self._lines
        lines.heading("Signature")
        lines.line(
            'What "tacita statement" verifies: that the ledger\'s lines follow from each other up to its last known '
            "hash, that the numbers of the guarantee follow from the ledger, and that the files beside it are those "
            "of its seal, if it has one. What it cannot verify, and whoever signs answers for: what was given or "
            "declared (people, purpose, data set, bounds, public files), what else was done with the same data, and "
            "that nobody rewrote the ledger with all copies of its last hash.",
            indent="  ",
        )
        lines.line()
        lines.line("Name: ____________________   Date: ______________   Signature: ____________________", indent="  ")


def _price_of_choice(fields: Mapping[str, Any]) -> str:
    """Say what a choice by hand costs, which no ledger knows: all runs together, by basic composition."""
    runs, epsilon = fields[CHOSEN], fields["conditional_epsilon"] if fields["conditions"] else fields["epsilon"]
    words = (
        f"CHOSEN AMONG {runs} RUNS by looking at results: the price of that choice is not in the epsilon of this run. "
    )
    if epsilon is None:
        return words + "Nothing is guaranteed of these runs together."
    total, delta = (runs * Decimal(repr(one)) for one in (epsilon, fields["delta"]))  # exact, and then rounded up
    if delta >= 1:
        return words + "Of these runs together nothing is guaranteed at such a delta."
    return words + (
        f"These runs together, if each has this epsilon and delta, have epsilon <= {rounded_up(total)} at delta = "
        f"{float(rounded_up(delta)):g}."
    )


def rows_in_words(rows: Any) -> str:
    """Say how many rows there are, and how that is known.

    Example:
        >>> rows_in_words({"value": 3051, "how": "bought"})
        'about 3,051 rows (bought)'
        >>> rows_in_words({"value": None, "how": "protected", "of": "clients"})
        'clients, whose number is protected'
    """
    what = rows.get("of", "rows") if isinstance(rows, Mapping) else "rows"
    if isinstance(rows, Mapping) and rows.get("how") == "protected":
        return f"{what}, whose number is protected"
    if not isinstance(rows, Mapping) or not isinstance(rows.get("value"), int | float):
        return f"rows: {in_words(rows)}"
    about = "about " if rows.get("how") == "bought" else ""
    return f"{about}{rows['value']:,.0f} {what} ({rows.get('how')})"


def other_runs_in_words(dataset: Mapping[str, Any]) -> str:
    """Say how many other runs are listed under the same name, and what all of them guarantee together."""
    others = f"{dataset['other_runs']} listed under this name in {dataset['list']}"
    if dataset["other_runs"] == 0:
        return f"none listed under this name in {dataset['list']}."
    together = dataset.get("together")
    if not isinstance(together, Mapping):
        return f"{others}."
    if together["epsilon"] is None:
        return f"{others}. No total can be stated: {together['why']}."
    return (
        f"{others}. With this one they guarantee epsilon <= {rounded_up(together['epsilon'])} at delta <= "
        f"{rounded_up(together['delta'])} (added up), if the list is complete."
    )


def _risk(fields: Mapping[str, Any]) -> str:
    accuracy, guessed = fields["attack_accuracy"], GUESSED[fields["neighboring_relation"]]
    before = f"an attacker who knows all other units and is 50 : 50 before about {guessed}"
    if accuracy is None:
        return f"{before} {right_in_words(None)} afterwards: no limit is guaranteed."
    conditions = ", if the conditions hold" if fields["conditions"] else ""
    known = fields["attack_accuracy_from"]
    return (
        f"{before} {right_in_words(accuracy)} after seeing {_released(fields)}{conditions} (50 % is mere guessing). "
        f"Computed from {known}."
    )


def _mu(mu: float, epsilon: float, delta: float) -> str:
    return (
        f"<= {rounded_up(mu)}: at every epsilon up to {rounded_up(epsilon)}, delta is at most that of one query with "
        f"Gaussian noise of 1/mu times its sensitivity (Gaussian differential privacy); above, it is at most {delta:g}."
    )


def _scale(delta: float) -> str:
    shares = [(1 + gaussian_delta(gaussian_mu(epsilon, delta), 0.0)) / 2 for epsilon in SCALE]
    points = ", ".join(f"{epsilon:g}: {percent_up(share)}" for epsilon, share in zip(SCALE, shares, strict=True))
    return (
        f"that risk, for one query with Gaussian noise at this delta, by epsilon is 0: 50 %, {points}. "
        f"One published scale calls epsilon {TIERS}."
    )


def _delta(delta: float, rows: Any) -> str:
    words = f"a method that publishes each unit as it is with probability {delta:g} would meet such a delta, too"
    value = rows.get("value") if isinstance(rows, Mapping) else None
    if not isinstance(value, int | float) or value < 1:
        return f"{words}. So it must be far below 1 / (number of units)."
    among = f"{'about ' if rows.get('how') == 'bought' else ''}{value:,.0f} {rows.get('of', 'rows')}"
    return f"{words}: among {among}, one or more with probability {percent_up(min(1.0, delta * value))} at most."


def _score(score: Any) -> str:
    """Return a score in a sentence, beside that of a constant guess."""
    if not isinstance(score, Mapping) or not {"measure", "value", "how"} <= set(score):
        return in_words(score)
    value, (low, high) = score["value"], score.get("interval", (None, None))
    words = f"{score['measure']}: {'no number' if value is None else f'{value:.3f}'}"
    if value is not None and low is not None and {"level", "rows"} <= set(score):
        words += f" ({score['level']:.0%} interval {low:g} to {high:g}, about {in_words(score['rows'])} rows)"
    if isinstance(area := score.get("AUC"), Mapping) and area.get("value") is not None:
        low, high = area.get("interval", (None, None))
        words += f"; AUC {area['value']:.3f}" + (f" (interval {low:g} to {high:g})" if low is not None else "")
    guess = score.get("constant_guess")
    if isinstance(guess, Mapping):
        words += f"; always answering {guess['label']!r} has {guess['value']:.3f}"
    return f"{words}. Source: {score['how']}."


def _accountant(name: str, *, bounded: bool) -> str:
    """Name the method that computed epsilon, with its abbreviations spelt out."""
    if not bounded:
        return f"{name}."
    spelt_out = "".join(f"; {words}" for method, words in METHODS.items() if method in name)
    return f"{name}: the method that computed epsilon, as an upper bound{spelt_out}."


def _failures(probability: float, delta: float) -> str:
    return (
        f"{rounded_up(delta)} of it, (1 + e^epsilon) x {probability:g}, covers the chance that a condition or a "
        "randomised solver fails on either of two neighbouring data sets; the rest is for the noise."
    )


def _released(fields: Mapping[str, Any]) -> str:
    """Name what the guarantee is about: an exact score is not."""
    score = fields["holdout_score"]
    apart = isinstance(score, Mapping) and score.get("private") is False
    return "everything that was released" + (" but the held-out score" if apart else "")


def _odds(epsilon: float, delta: float, released: str) -> str:
    if epsilon >= NEXT_TO_NOTHING:
        return (
            f"an epsilon of {rounded_up(epsilon)} promises next to nothing: the probability of a conclusion may differ "
            f"e^{rounded_up(epsilon)}-fold between data sets that differ in one unit."
        )
    return (
        f"whoever sees {released}, and knows everything about all other units, draws any given "
        f"conclusion with a probability that is at most {rounded_up(math.exp(epsilon))} times (e^epsilon) what it "
        f"would be for a neighbouring data set, plus {delta:g} (delta)."
    )
