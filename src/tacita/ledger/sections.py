"""The words of a privacy statement: one list of sections, those of a page to sign and those of its appendix.

Bounds are rounded up where they are printed. Technical terms are explained in the glossary that ends the appendix.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tacita.accounting import gaussian_delta, gaussian_mu
from tacita.accounting.relations import NeighboringRelation
from tacita.ledger.text_lines import Words, attacker_in_words, in_words, listed, percent_up, rounded_up, row, wrapped
from tacita.ledger.verdict import NEXT_TO_NOTHING, exact_score, verdict

Fields = Mapping[str, Any]
Section = Callable[[Fields], Iterable[Words]]
HEADLINE = "headline"  # a further field that stands in the first line, if a front end gives it
CHOSEN = "chosen_among"  # a further field: the number of runs of which somebody chose this one
ABOUT, RUN, ROWS, COLUMNS = "about", "run", "rows", "columns"
LEAVES, NOT_ANONYMISED, DATASET = "files_policy", "not_anonymised", "dataset"
PUBLIC_LOSSES = "public_losses"  # pairs of queries made and the loss on public data; in the JSON, not in the text
PLACED = (HEADLINE, LEAVES, NOT_ANONYMISED, COLUMNS, PUBLIC_LOSSES)  # fields with a place of their own; of a run, too:
OF_A_RUN = (RUN, ABOUT, ROWS, DATASET, "data_fingerprint", "model", "base_model", "text_template")

NEIGHBOURS: dict[NeighboringRelation, str] = {
    "add_or_remove_one": "one unit is present in one of them and absent from the other. The number of units is "
    "protected, too",
    "replace_one": "the data of one unit are replaced by any other data. The number of units is public",
    "zero_out_one": "the contribution of one unit is replaced by zero. The number of units is public",
}

METHODS = {  # in the name of an accountant -> what it stands for
    "PLD": "PLD stands for privacy loss distribution",
    "RDP": "RDP stands for Rényi differential privacy",
    "Rényi filter": "a Rényi filter lets later sessions depend on earlier releases, as long as a fixed total is kept",
    "Gaussian filter": "a Gaussian filter lets later sessions depend on earlier releases, as long as a fixed total is "
    "kept",
}

ABOUT_VALUES = (  # a value that changes is a unit that goes and another that comes
    " Not whether it is there, but which of two values its data have, can be told as with 2 epsilon at a delta of "
    "(1 + e^epsilon) delta."
)

SCALE = (0.1, 0.5, 1.0, 2.0, 4.0)  # epsilons to compare with
TIERS = "up to 1 strong, up to 10 reasonable, above that weak or none (Ponomareva et al. 2023, arXiv:2303.00654)"


TERMS = {  # a word of the statement -> what it means; a term is explained only where it stands in the text
    "Differential privacy": "Differential privacy is a promise about a method: what it releases depends so little on "
    "any one unit that nobody can tell well whether, or how, that unit took part.",
    "epsilon": "Epsilon is the strength of the promise: 0 reveals nothing, and each step up reveals more.",
    "delta": "Delta is the part of the probability for which the promise may fail.",
    "privacy unit": "The privacy unit is whose data is protected as a whole, such as one row or one person.",
    "Neighbours": "Neighbours are two data sets that differ in one unit, and that must not be told apart.",
    "session": "A session is a series of queries for one purpose; a query is one noisy answer computed from the data.",
    "Poisson sampling": "Poisson sampling lets a separate random coin decide whether a record enters a query; the "
    "sample rate is the coin's chance.",
    "Fixed-size sampling": "Fixed-size sampling draws the records of each query anew, always the same number of them.",
    "Disjoint batches": "Disjoint batches put no record into two queries.",
    "Random allocation": "Random allocation puts a record into one query of each pass through the data, by a coin.",
    "Shuffled epochs": "Shuffled epochs put a record into one query of each pass through the data.",
    "Cyclic batches": "Cyclic batches put a record into one group for the whole session; the groups take turns.",
    "Cyclic Poisson": "In cyclic Poisson sampling the groups take turns, and in its turn a record enters by a coin.",
    "correlated": "Correlated noise takes back, in each query, part of the noise of the queries before, so that sums "
    "over queries are less noisy; what a session spends follows from all of its queries together.",
    "amplification": "Amplification is the gain in privacy from nobody knowing which records a query used.",
    "max_contribution": "max_contribution is the most that one record can add to a sum (its length as a vector, the L2 "
    "norm).",
    "max_grad_norm": "max_grad_norm is the clipping threshold: a record's gradient is shortened to this length.",
    "noise_std": "noise_std is the standard deviation of the noise that is added to every entry of a sum.",
    "mu^2": "mu^2 is the square of what one unit can change over noise_std, a measure of what is spent.",
    "blocks": "Blocks are sums that one query releases together.",
    "hidden error": "A hidden error is a correction that a session remembers, adds to later sums and never releases.",
    "residual": "A residual is what clipping cut off a record's gradient; max_residual is the most that one record "
    "adds to the hidden error at a time.",
    "Stable counts": "Stable counts are counts of values that the data itself names; only large ones are released.",
    "failure probability": "The failure probability is the chance of what the noise does not cover; delta includes it.",
    "AboveThreshold": "AboveThreshold releases only whether a value passed a threshold, with noise on both.",
    "sensitivity": "Sensitivity is the most that the data of one unit can change a value.",
    "rho": "rho is the cost of a query in zero-concentrated privacy, a form of differential privacy; costs add up.",
    "hardened": "Hardened noise consists of whole steps of a public grid; the caveats say which attacks that closes.",
    "of split": "A split divides the records into parts; a session on one part sees no other records.",
    "share-": "A share is an epsilon and a delta set aside in advance, for sessions whose settings are chosen later.",
    "counted as spent": "Queries are reserved on disk before their noise is drawn, so that a process which stops "
    "suddenly cannot have released more than is counted.",
    "held out": "Rows that are held out take no part in the training, so that the score is about rows which the model "
    "has not seen.",
    "divisor": "The divisor turns a sum over records into a mean; it is public, so that it reveals no count.",
    "private/": "private/ is the folder of a run for what must not leave it; it is removed when the run is finished.",
    "SHA-256": "SHA-256 is a fingerprint of bytes: another content has, in practice, another fingerprint.",
    "seal": "The seal is the last line of a ledger, which holds the fingerprints of statement and files.",
}


# --- the sections --------------------------------------------------------------------------------------------------


def write_text(fields: Fields, extra: Sequence[str] = ()) -> str:
    """Return the text of a statement; ``extra`` names the fields that the caller added."""
    from tacita.ledger.run_sections import SECTIONS as OF_RUNS  # no oracle needs them

    placed = (*PLACED, *OF_A_RUN) if RUN in fields else PLACED
    further = listed(f"{name}: {in_words(fields[name])}" for name in extra if name not in placed)
    alarms = [line for alarm in _alarms(fields) for line in wrapped(alarm)]
    lines = [*alarms, *[""] * bool(alarms), "PRIVACY STATEMENT"]
    for title, of_the_core in SECTIONS:
        words = of_the_core or OF_RUNS[title]
        paragraphs = list(further if title == FURTHER else words(fields))
        if paragraphs or title == APPENDIX:
            lines += ["", title, *(line for one in paragraphs for line in wrapped(*one))]
    text = " ".join(" ".join(lines).split())
    glossary = listed(meaning for term, meaning in TERMS.items() if term in text)
    lines += ["", "Glossary", *(line for one in glossary for line in wrapped(*one))]
    return "\n".join(lines) + "\n"


def _alarms(fields: Fields) -> Iterator[str]:
    if fields.get(HEADLINE):
        yield fields[HEADLINE]
    if not fields["secure_randomness"]:
        yield (
            "NOT PRIVATE (test streams): the noise of a session came from a seed or a random stream that the "
            "caller handed in, so that it can be computed again and removed. The numbers below say what the same "
            "run would guarantee with secret noise."
        )
    if fields["non_private"]:
        yield "NO PRIVACY GUARANTEE: a session adds no noise, or too little for any epsilon at this delta."
    if exact_score(fields):
        yield (
            "EXACT SCORE: the held-out score was computed without noise on private rows. It is outside the "
            "guarantee, which is that of the model: do not publish it with the model."
        )
    if fields.get(CHOSEN) is not None:
        from tacita.ledger.run_sections import price_of_choice  # no oracle needs it

        yield price_of_choice(fields)
    if not fields["ledger_verified"]:
        yield f"LEDGER NOT INTACT: {fields['ledger_reason']}. The numbers below cannot be relied on."


# The page to sign.


def _guarantee(fields: Fields) -> Iterator[Words]:
    if not fields["sessions"] and not fields["shares"]:
        yield Words("Nothing: no session is registered, so nothing can be said of any model.")
        return
    delta, epsilon = fields["delta"], fields["conditional_epsilon"] if fields["conditions"] else fields["epsilon"]
    weighed, given = verdict(fields), "epsilon = infinity" if epsilon is None else f"epsilon <= {rounded_up(epsilon)}"
    if fields["conditions"]:
        yield Words(
            "No unconditional epsilon. The numbers below hold only under these conditions, which nobody enforces:"
        )
        yield from (Words(f"{condition}.", "    - ", "      ") for condition in fields["conditions"])
    count = sum(one["state"] != "withdrawn" for one in fields["sessions"]) + len(fields["shares"])
    if not weighed.guaranteed:
        otherwise = "" if epsilon is None else " With secret noise, an intact ledger and no change since it would be:"
        yield Words(f"NOTHING: the verdict is {weighed.word}.{otherwise}")
    yield Words(
        f"Differential privacy with {given} at delta = {delta:g}, for the plan: all queries of "
        f"{'1 session' if count == 1 else f'all {count} sessions'} in the ledger, earlier runs in it included."
    )
    yield row("Verdict", f"{weighed.in_words()}.")
    yield row("For whom", f"{fields['privacy_unit']} (the privacy unit)")
    relation = fields["neighboring_relation"]
    yield row("Neighbours", f"the data sets compared differ in one unit. By {relation}, {NEIGHBOURS[relation]}.")
    if weighed.guaranteed and epsilon is not None:
        if fields["gdp_mu"] is not None:
            yield row("mu", _mu(fields["gdp_mu"], epsilon, delta))
        yield row("In words", _odds(epsilon, delta, _released(fields)))
    yield row("Risk", _risk(fields))
    if weighed.guaranteed and epsilon is not None:
        yield row("Scale", _scale(delta))
        yield row("Delta", _delta(delta, fields.get(ROWS)))
    yield row("Accountant", _accountant(fields["accountant"], bounded=epsilon is not None))
    if fields["failure_probability"]:
        yield row("Of delta", _failures(fields["failure_probability"], fields["failure_delta"]))


# The appendix: the long lists, for those who check the page.


def _spent(fields: Fields) -> Iterator[Words]:
    if not fields["sessions"]:
        return
    spent = fields["conditional_epsilon_spent"] if fields["conditions"] else fields["epsilon_spent"]
    amount = "epsilon = infinity" if spent is None else f"epsilon <= {rounded_up(spent)}"
    conditions = ", under the same conditions" if fields["conditions"] else ""
    yield Words(
        f"{amount} at the same delta{conditions}, for the queries that may have been released so far. The plan's "
        "number holds whatever is done with the releases; this one holds only if queries are missing for a reason "
        "that has nothing to do with what was released (the machine stopped, say)."
    )


def _sessions(fields: Fields) -> Iterator[Words]:
    yield from listed(map(_session_words, fields["sessions"]))
    shares = fields["shares"]
    yield from listed(f"{one['id']}: set aside, epsilon {one['epsilon']:g} at delta {one['delta']:g}" for one in shares)


def _session_words(session: Mapping[str, Any]) -> str:
    made = f"{session['queries_made']} of {session['planned_queries']} planned queries made"
    if session["queries_spent"] > session["queries_made"]:
        made += f" ({session['queries_spent']} counted as spent, because they were reserved when the process stopped)"
    where = (
        "" if session["part"] is None else f", part {session['part']['index']} of split {session['part']['split']!r}"
    )
    paid = "" if session["share"] is None else f", paid from {session['share']}"
    return f"{session['id']} ({session['purpose']}, {session['state']}{where}{paid}): {session['event']}; {made}."


def _ledger(fields: Fields) -> Iterator[Words]:
    yield Words(
        "The ledger is the record of all sessions and queries. Each line holds a hash (SHA-256, a fingerprint) of "
        "the line before, so that later changes show, unless somebody rewrites the ledger and every copy of its "
        "last hash."
    )
    held = f"intact, checked against {fields['ledger_anchor']}" if fields["ledger_verified"] else "NOT INTACT"
    yield Words(f"{fields['ledger_lines']} lines, {held}. SHA-256 of the last of them:")
    yield Words(fields["ledger_sha256"])
    files = fields.get("files")
    if isinstance(files, Mapping) and files:
        names = ", ".join(sorted(files))
        yield Words(
            f"The next line, the seal, ends the ledger. It holds the hashes of this statement and of {names}; "
            'without it the run is not finished. "tacita statement" checks all of them.'
        )


APPENDIX, FURTHER = "APPENDIX", "Further details"
# One without paragraphs is left out. ``None``: its words are about fields of front ends, in tacita.ledger.run_sections.
SECTIONS: tuple[tuple[str, Section | None], ...] = (
    ("This run", None),
    ("What is guaranteed", _guarantee),
    ("Held-out score", None),
    ("Files", None),
    ("What the guarantee does not cover", None),
    ("Caveats", lambda fields: listed(fields["caveats"])),
    ("Signature", None),
    (APPENDIX, lambda fields: ()),
    ("Spent so far", _spent),
    ("Sessions", _sessions),
    ("What the guarantee rests on", lambda fields: listed(f"{text}." for text in fields["assumptions"])),
    ("Bought from the data, with noise", lambda fields: listed(fields["purchases"])),
    ("Settings chosen by tacita, by its public rules", lambda fields: listed(fields["chosen_by_tacita"])),
    ("Columns", None),
    ("Held-out score in full", None),
    (FURTHER, lambda fields: ()),  # the fields that a front end added
    ("Ledger", _ledger),
)


# --- in words ------------------------------------------------------------------------------------------------------


def _risk(fields: Fields) -> str:
    accuracy, relation = fields["attack_accuracy"], fields["neighboring_relation"]
    attacker = attacker_in_words(relation, accuracy)
    if accuracy is None:
        return f"{attacker} afterwards: no limit is guaranteed."
    conditions = ", if the conditions hold" if fields["conditions"] else ""
    known = fields["attack_accuracy_from"]
    return (
        f"{attacker} after seeing {_released(fields)}{conditions} (50 % is mere guessing). Computed from {known}."
        f"{'' if relation == 'replace_one' else ABOUT_VALUES}"
    )


def _mu(mu: float, epsilon: float, delta: float) -> str:
    return (
        f"<= {rounded_up(mu)}: at every epsilon up to {rounded_up(epsilon)}, delta is at most that of one query with "
        f"Gaussian noise of 1/mu times its sensitivity (Gaussian differential privacy); above, it is at most {delta:g}."
    )


def _scale(delta: float) -> str:
    shares = [(1 + gaussian_delta(gaussian_mu(epsilon, delta), 0.0)) / 2 for epsilon in SCALE]
    points = ", ".join(f"{epsilon:g}: {percent_up(share)}" for epsilon, share in zip(SCALE, shares, strict=True))
    at_zero = rounded_up(50 + 50 * Decimal(repr(delta)), 7)  # (1 + delta) / 2
    return (
        f"that risk, for one query with Gaussian noise at this delta, by epsilon is 0: {at_zero} %, {points}. "
        f"One published scale calls epsilon {TIERS}."
    )


def _delta(delta: float, rows: Any) -> str:
    words = f"a method that publishes each unit as it is with probability {delta:g} would meet such a delta, too"
    value = rows.get("value") if isinstance(rows, Mapping) else None
    if not isinstance(value, int | float) or value < 1:
        return f"{words}. So it must be far below 1 / (number of units)."
    among = f"{'about ' if rows.get('how') == 'bought' else ''}{value:,.0f} {rows.get('of', 'rows')}"
    return f"{words}: among {among}, one or more with probability {percent_up(min(1.0, delta * value))} at most."


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


def _released(fields: Fields) -> str:
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
