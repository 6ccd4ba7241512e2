"""A model card of a finished run, in Markdown: what the statement says, in the order that readers of models expect.

Source: Mitchell et al. (2019), Model Cards for Model Reporting, https://arxiv.org/abs/1810.03993. Its sections on
people (factors, ethical considerations) have what the run knows, and say what it does not.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tacita.ledger.run_sections import (
    GIVEN,
    LEDGER_HASH,
    NOT_VERIFIED,
    OUTSIDE_OF_IT,
    epsilon_in_words,
    files_in_words,
    model_in_words,
    other_runs_in_words,
    risk_in_words,
    rows_in_words,
    score_in_full,
)
from tacita.ledger.sections import NEIGHBOURS
from tacita.ledger.text_lines import in_words, names_in_words
from tacita.ledger.verdict import TO_SIGN, Verdict

NOT_GIVEN = "not given"
WITHHELD = "nothing else is said here, because what the files say now, nobody sealed"


def model_card(fields: Mapping[str, Any], weighed: Verdict, name: str, notes: Iterable[str] = ()) -> str:
    """Return the card of a run as Markdown. All of it is in the statement: the card adds no claim.

    Args:
        fields: The statement's fields.
        weighed: What the run comes to.
        name: What the model is called: the name of the run's folder.
        notes: What was found beside the run: other runs, files that no seal covers.
    """
    privacy = {"Verdict": weighed.in_words(), "Epsilon": epsilon_in_words(weighed)}
    if not weighed.verified:
        return _card(name, {"Privacy": _facts({**privacy, "Note": [WITHHELD, *notes]})})
    about, run = _mapping(fields.get("about")), _mapping(fields.get("run"))
    dataset, relation = _mapping(fields.get("dataset")), fields.get("neighboring_relation")
    score = fields.get("holdout_score")
    columns = _mapping(fields.get("columns"))

    def said(one: str) -> Any:
        signed = one in TO_SIGN and one not in weighed.missing
        return about.get(one, "said by a signer: see the note" if signed else NOT_GIVEN)

    sections = {
        "Model details": _facts(
            {
                "Model": model_in_words(fields),
                "Predicts": f"{in_words(fields['target'])} ({in_words(fields['task'])})" if "task" in fields else None,
                "Run": f"{run.get('id', NOT_GIVEN)}, {run.get('date', NOT_GIVEN)}",
                "Versions": run.get("versions"),
                **{GIVEN[one]: said(one) for one in ("responsible", "contact")},
            }
        ),
        "Intended use": _facts({GIVEN[one]: said(one) for one in ("purpose", "recipients", "retention")}),
        "Training data": _facts(
            {
                "Data set": dataset.get("name", NOT_GIVEN),
                "Fingerprint (keyed)": fields.get("data_fingerprint"),
                GIVEN["data_period"]: about.get("data_period", NOT_GIVEN),
                "Rows": None if fields.get("rows") is None else rows_in_words(fields["rows"]),
                **{kind.replace("_", " ").capitalize(): names_in_words(names) for kind, names in columns.items()},
                "Other runs": other_runs_in_words(dataset),
            }
        ),
        "Privacy": _facts(
            {
                **privacy,
                "Delta": fields.get("delta"),
                "For whom": fields.get("privacy_unit"),
                "Neighbours": f"{relation}: {NEIGHBOURS[relation]}" if relation in NEIGHBOURS else relation,
                "Risk": risk_in_words(fields, weighed),
                "Note": list(notes) or None,
                "Conditions that nobody enforces": fields.get("conditions") or None,
                LEDGER_HASH: fields.get("ledger_sha256"),
            }
        ),
        "Evaluation": _listed([score_in_full(score)] if score is not None else ["No score was computed."]),
        "Caveats and recommendations": _listed([fields.get("headline"), *(fields.get("caveats") or ())]),
        OUTSIDE_OF_IT: _listed(fields.get("not_anonymised") or ["Nothing was said."]),
        "What is not known": _listed(
            [
                "Scores by group of people: none were bought. Clipping and noise may cost rare groups more.",
                f"Not verified: {NOT_VERIFIED[0].lower()}{NOT_VERIFIED[1:]}",
            ]
        ),
        "Files": _facts(files_in_words(fields)),
    }
    return _card(name, sections)


def _card(name: str, sections: Mapping[str, str]) -> str:
    body = "\n".join(f"\n## {title}\n\n{text}" for title, text in sections.items() if text)
    return f"# Model card: {_plain(name)}\n{body}\n"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _facts(entries: Mapping[str, Any]) -> str:
    return "\n".join(f"- **{name}**: {_plain(in_words(value))}" for name, value in entries.items() if value is not None)


def _listed(entries: Iterable[Any]) -> str:
    return "\n".join(f"- {_plain(in_words(one))}" for one in entries if one)


def _plain(text: str) -> str:
    """Return a text that is no markup in Markdown, and stays on its line."""
    escaped = "".join(f"\\{one}" if one in "\\`*_[]<>#|" else one for one in text)
    return " ".join(escaped.split())
