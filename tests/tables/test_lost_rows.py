"""What is said of rows that contribute nothing: before the training, by noisy counts; in vain, it does not start."""

import json
import re
from pathlib import Path

import pytest

import tacita
from tacita.tables import train_table
from tests.conftest import table_text

ROWS = table_text().splitlines()[1:]
NO_CLASS = (
    r"about [34]\d\d rows have none of the classes as given \(No, Yes\) in column 'label', and contribute nothing"
)
TEXTS = r"about [34]\d\d rows have a text in column 'label', where a regression needs a number"
WIDTH = "lines have more or fewer cells than there are columns, and contribute nothing: cells are missing, a quote is"


def broken(rows: list[str]) -> list[str]:
    """Every second record has a line break in a quoted cell."""
    return [row.replace(",red", ',"re\nd"').replace(",blue", ',"bl\nue"') for row in rows]


VAIN = {  # noise hides it in one run of some twelve, not in those of these names
    "classes in capitals": (ROWS, {"classes": ("No", "Yes")}, NO_CLASS),
    "a text for a regression": (ROWS, {"task": "regression"}, TEXTS),
    "the same, its rows declared": (ROWS, {"task": "regression", "rows": 400}, "no number stands out of the noise"),
    "unclosed quotes": (['"' + row for row in ROWS], {}, WIDTH),
    "ragged": (["1,2", "1,2,3,4,5,6,7"] * 200, {}, WIDTH),
}


@pytest.mark.parametrize("name", VAIN)
def test_a_training_in_vain_does_not_start(settings, table, name):
    rows, changes, says = VAIN[name]
    table.write_text("\n".join(["x,y,kind,patient,label", *rows, ""]))
    for _ in range(2):  # the same command, repeated, buys nothing again
        said: list[str] = []
        with pytest.raises(tacita.TacitaError, match=f"nothing to train on: .*{says}.* has spent epsilon .* of 20"):
            train_table(settings(**changes), say=said.append)
        ledger = tacita.Ledger.load("run/ledger.jsonl")
        assert [one.queries_made for one in ledger.sessions if one.purpose == "train"] == [0]
        assert 0 < ledger.epsilon_spent(1e-3) < 20
    assert not Path("run/statement.json").exists()


PARTLY = {
    "one class of many misspelt": (
        [row[: row.rindex(",") + 1] + "abcdefgh"[i % 8] for i, row in enumerate(ROWS)],
        {"classes": ("a", "b", "c", "d", "e", "f", "g", "H")},
        "rows have none of the classes as given (a, b, c, d, e, f, g, H)",
    ),
    "line breaks in quotes": (broken(ROWS), {}, WIDTH),
    "latin-1": ([row.replace("red", "r\xe9d") for row in ROWS], {}, "bytes that are not utf-8, in columns kind"),
    "zero bytes in targets": (
        [row.rsplit(",", 1)[0] + f",{i}.5{chr(0) * (i % 4 == 0)}" for i, row in enumerate(ROWS)],
        {"task": "regression"},
        "zero bytes and a wrong --encoding make texts of numbers, too. tacita check shows them",
    ),
    "capitals": (
        [row.replace("yes", "Yes") if i % 3 else row for i, row in enumerate(ROWS)],
        {},
        "the classes 'Yes', 'yes' differ in capitals alone",
    ),
    "zero bytes": ([row.replace("red", "r\0d") for row in ROWS], {}, "texts hold zero bytes"),
}


@pytest.mark.parametrize("name", PARTLY)
def test_rows_that_are_lost_are_said_before_the_training_and_stated(settings, table, name):
    rows, changes, says = PARTLY[name]
    table.write_text("\n".join(["x,y,kind,patient,label", *rows, ""]), encoding="latin-1")
    said: list[str] = []
    run = train_table(settings(**changes), say=said.append)
    (line,) = [line for line in said if says in line]
    assert any(line[1:] in caveat for caveat in run.fields["caveats"])


WRONG = {
    "one class misspelt": (ROWS, {"classes": ("no", "Yes")}, "rows have none of the classes as given (no, Yes)"),
    "latin-1 labels": (
        [row.replace("no", "n\xf6n") for row in ROWS],
        {"classes": ("n\xf6n", "yes")},
        "check their spelling, give --encoding if the file is not utf-8",
    ),
    "texts for a regression": (ROWS, {"task": "regression"}, "nothing to train on: about 400 rows have a text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_targets_end_the_run_after_its_first_purchase(settings, table, name):
    rows, changes, says = WRONG[name]
    table.write_text("\n".join(["x,y,kind,patient,label", *rows, ""]), encoding="latin-1")
    with pytest.raises(tacita.TacitaError, match=f"(?s){re.escape(says)}.*has spent epsilon [12]\\.[0-9]+ of 20"):
        train_table(settings(**changes))
    assert not Path("run/preprocessing.json").exists()


@pytest.mark.parametrize("changes", [{}, {"classes": ("no", "yes")}])
def test_nothing_is_said_of_a_sound_table(settings, table, changes):
    run = train_table(settings(**changes))
    assert "contribute nothing:" not in json.dumps(run.fields["caveats"])


@pytest.mark.parametrize(
    "changes",
    [
        {
            "drop": (),
            "unit_column": "patient",
            "max_rows_per_unit": 2,
        },  # a person's lines would be counted without a cap
        {"neighboring_relation": "zero_out_one"},  # such a line is what a record is replaced by, and adds nothing
    ],
)
def test_lines_that_are_no_rows_are_counted_for_single_rows_alone(settings, table, changes):
    table.write_text(table.read_text() + "1,2\n" * 400)
    run = train_table(settings(**changes))
    assert "lines have more or fewer" not in json.dumps(run.fields["caveats"])


@pytest.mark.parametrize("changes", [{"target": "LABEL"}, {"drop": ("Patient",)}])
def test_a_name_in_other_capitals_is_answered(settings, table, changes):
    meant = next(iter(changes.values()))
    meant = meant if isinstance(meant, str) else meant[0]
    with pytest.raises(tacita.DataStructureError, match=f"Did you mean '{meant.lower()}'. Capitals count"):
        train_table(settings(**changes))
    assert not Path("run").exists()
