"""What the check says of a column's worth: each finding where it holds, and none on a sound table."""

import numpy as np
import pytest

from tacita.errors import DataStructureError
from tacita.tables import FileFormat, Schema, check, draft, read_table
from tacita.tables.findings import ENOUGH, LONGEST_EXAMPLE, OFTEN

ROWS = 200
SOUND = {
    "age": [str(20 + i % 60) for i in range(ROWS)],
    "job": ["cook" if i % 3 else "smith" for i in range(ROWS)],
    "y": [str(i % 2) for i in range(ROWS)],
}


@pytest.fixture
def checked(table_of):
    """The findings about a table with some columns more, or others; ``schema``: TOML of what is declared."""

    def look(schema="", **columns):
        columns = {**SOUND, **columns}
        lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
        declared = Schema.loads(schema if "[target]" in schema else schema + "\n[target]\ncolumn = 'y'")
        return check(table_of(*lines), declared).findings

    return look


def test_a_sound_table_has_none(checked):
    assert checked() == ()


@pytest.mark.parametrize(
    ("cells", "rows", "words"),
    [
        (["7"] * ROWS, ROWS, "one and the same value: a constant"),
        ([f"id-{i}" for i in range(ROWS)], ROWS, "all with different values"),
        ([str(5000 + i) for i in range(ROWS)], ROWS, "all with different values"),
        ([f"{i / 7:.4f}" for i in range(ROWS)], None, None),  # measurements may well all differ
        ([str(i % 9) if i % 2 else f"t{i % 3}" for i in range(ROWS)], ROWS // 2, f"and {ROWS // 2} are texts"),
        ([f"t{i % 90}" for i in range(ROWS)], 90, f"none of them in {OFTEN} rows"),
        ([f"t{i % 3}" for i in range(ROWS)], None, None),
        ([str(i % 9) if i % 20 else "many" for i in range(ROWS)], ROWS // 20, "not numbers, in a column of numbers"),
        ([""] * ROWS, ROWS, "all of them missing"),
        ([f"t{i % 3}" if i % 20 else "" for i in range(ROWS)], ROWS // 20, "missing cells"),
    ],
)
def test_a_column_is_named_with_what_is_odd(checked, cells, rows, words):
    found = checked(odd=cells)
    if words is None:
        assert found == ()
        return
    (finding,) = found
    assert (finding.column, finding.rows) == ("odd", rows)
    assert words in finding.problem


def test_what_was_declared_is_not_guessed_at(checked):
    cells = [f"t{i % 90}" for i in range(ROWS)]
    values = ", ".join(f"'t{i}'" for i in range(90))
    assert checked(f"[columns.odd]\nkind = 'category'\nvalues = [{values}]", odd=cells) == ()
    assert checked("[columns.odd]\nkind = 'identifier'", odd=[f"id-{i}" for i in range(ROWS)]) == ()


def test_of_few_rows_no_share_is_told(table_of):
    lines = [f"7,{i % 2}" for i in range(ENOUGH - 1)]
    schema = Schema.loads("[target]\ncolumn = 'y'")
    (finding,) = check(table_of("x,y", *lines), schema).findings
    assert (finding.column, finding.rows) == ("records", ENOUGH - 1)
    assert "may learn nothing" in finding.problem
    (finding,) = check(table_of("x,y", *lines, "7,0"), schema).findings
    assert finding.column == "x"
    declared = Schema.loads(
        "[columns.x]\nkind = 'category'\nvalues = ['7']\n[target]\ncolumn = 'y'\nclasses = ['0', '1']"
    )
    assert "records" not in {one.column for one in check(table_of("x,y", *lines), declared).findings}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([f"{i % 60},{i % 10}" for i in range(ROWS)], "numbers with a decimal comma: give --decimal ,"),
        ([f"1.{100 + i % 90},5" for i in range(ROWS)], "numbers with a decimal comma: give --decimal ,"),
        ([f"{1 + i % 28}.{1 + i % 12:02}.2024" for i in range(ROWS)], 'format = "%d.%m.%Y" in a schema'),
        ([f"{1 + i % 12}/{1 + i % 28}/2024" for i in range(ROWS)], 'format = "%m/%d/%Y" in a schema'),
        ([f"{1 + i % 12}/{1 + i // 12 % 12}/2024" for i in range(ROWS)], "more than one format fits"),
        ([f"EUR {i}.50" for i in range(ROWS)], "numbers with a word or a unit beside them"),
        ([f"{i / 8} kg" for i in range(ROWS)], "numbers with a word or a unit beside them"),
        ([f"{i % 60},{i % 10}" if i % 3 else f"{i % 90}" for i in range(ROWS)], "numbers with a decimal comma"),
    ],
)
def test_cells_in_another_notation_come_with_what_to_do(table_of, cells, words):
    """Both as a column and as the target."""
    for header, order in (("odd;y", "{0};{1}"), ("y;odd", "{1};{0}")):
        lines = [order.format(cell, i % 2) for i, cell in enumerate(cells)]
        schema = Schema.loads("[reading]\ndelimiter = ';'\n[target]\ncolumn = 'y'")
        target = Schema.loads("[reading]\ndelimiter = ';'\n[target]\ncolumn = 'odd'")
        for declared in (schema, target):
            table = table_of(header, *lines, delimiter=";")
            (finding,) = [one for one in check(table, declared).findings if one.column == "odd"]
            assert words in finding.problem
            assert finding.examples
    settled = Schema.loads("[columns.odd]\nkind = 'text'\n[reading]\ndelimiter = ';'\n[target]\ncolumn = 'y'")
    assert "odd" not in {one.column for one in check(table, settled).findings}


@pytest.mark.parametrize("cells", [[f"id-{i}" for i in range(ROWS)], [f"{i},5" if i < 6 else "a" for i in range(ROWS)]])
def test_names_and_a_few_odd_cells_have_no_notation(table_of, cells):
    schema = Schema.loads("[reading]\ndelimiter = ';'\n[target]\ncolumn = 'y'")
    lines = [f"{cell};{i % 2}" for i, cell in enumerate(cells)]
    found = check(table_of("odd;y", *lines, delimiter=";"), schema).findings
    assert not any("look like" in one.problem for one in found)


def test_labels_that_are_too_rare_are_told(checked):
    (finding,) = checked(y=[f"c{i % 3}" if i < 180 else f"rare{i % 5}" for i in range(ROWS)])
    assert (finding.column, finding.rows) == ("y", 20)
    assert f"one of 5 labels (of 8) with fewer than {OFTEN} rows each" in finding.problem
    quantities = [str(i % 90) for i in range(ROWS)]
    assert checked(y=quantities) == ()  # may be a regression
    with_task = checked("[target]\ncolumn = 'y'\ntask = 'classification'", y=quantities)
    assert "one of 90 labels (of 90)" in with_task[0].problem


def test_dates_as_targets_are_named(checked):
    (finding,) = checked(y=[f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(ROWS)])
    assert (finding.column, finding.rows) == ("y", ROWS)
    assert finding.problem.startswith("targets are dates: predictions are dates if")
    assert not checked(
        "[target]\ncolumn='y'\ndates=true", y=[f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(ROWS)]
    )


def test_declared_dates_are_usable_targets(checked):
    declared = "[target]\ncolumn='y'\ndates=true\nformat='%d.%m.%Y'"
    assert not checked(declared, y=[f"{1 + i % 28:02}.{1 + i % 12:02}.2024" for i in range(ROWS)])
    (finding,) = checked(declared + "\ntask='regression'", y=["1.1.2024"] * (ROWS - 3) + ["soon"] * 3)
    assert (finding.column, finding.rows) == ("y", 3)


@pytest.mark.parametrize(("delimiter", "found"), [(",", ";"), (",", "\t"), (";", ",")])
def test_the_wrong_delimiter_is_named(csv_file, delimiter, found):
    path = csv_file(found.join(["age", "job", "y"]).encode() + b"\n")
    table = read_table(path, FileFormat(delimiter=delimiter))
    for look in (
        lambda: check(table, Schema(reading=FileFormat(delimiter=delimiter))),
        lambda: draft(table, FileFormat(delimiter=delimiter)),
    ):
        with pytest.raises(DataStructureError, match="give --delimiter") as error:
            look()
        assert repr(found) in str(error.value)


@pytest.mark.parametrize(("rare", "told"), [(8, True), (19, True), (20, False), (100, False)])
def test_a_rare_class_is_told_with_what_the_constant_guess_gets(checked, rare, told):
    labels = ["1" if i < rare else "0" for i in range(ROWS)]
    found = checked(y=labels)
    assert len(found) == told
    if told:
        assert (found[0].column, found[0].rows, found[0].examples) == ("y", rare, ("'1'",))
        assert f"right in {(ROWS - rare) / ROWS:.0%} of the rows" in found[0].problem


def test_rows_without_a_target(checked):
    (finding,) = checked(y=["" if i < 30 else str(i % 2) for i in range(ROWS)])
    assert (finding.column, finding.rows) == ("y", 30)
    assert "without a target" in finding.problem


def test_a_table_that_a_training_would_refuse_or_learn_nothing_from(table_of, csv_file):
    schema = Schema.loads("[target]\ncolumn = 'y'")
    assert "to predict from" in str(check(table_of("y", "1", "0"), schema))
    assert "holds no row" in str(check(table_of("x,y"), schema))
    table = read_table(csv_file("größe,y\n1,0\n".encode("latin-1")))
    assert "not utf-8: give --encoding" in str(check(table, schema))
    table = read_table(csv_file("größe,y\n1,0\n".encode("latin-1")), FileFormat(encoding="latin-1"))
    assert "encoding" not in str(check(table, schema))


def test_a_cell_of_a_million_characters_is_shown_in_short(checked):
    cells = [*SOUND["age"][:-1], "a" * 10**6]
    (finding,) = checked(age=cells)
    assert len(str(finding)) < 200
    assert f"{'a' * (LONGEST_EXAMPLE - 1)}... (1000002 characters)" in str(finding)


def test_a_draft_guesses_no_kind_without_a_value(table_of):
    text = draft(table_of("x,z,y", *(f",{i % 2},1" for i in range(60))), target="y")
    kinds = {name: spec["kind"] for name, spec in Schema.loads(text).to_dict()["columns"].items()}
    assert kinds == {"x": "text", "z": "number"}


def test_arrays_have_no_such_findings(tmp_path):
    np.savez(tmp_path / "t.npz", image=np.zeros((60, 2, 2), np.uint8), y=np.arange(60) % 2)
    schema = Schema.loads("[target]\ncolumn = 'y'")
    assert check(read_table(tmp_path / "t.npz"), schema).findings == ()


@pytest.mark.parametrize(
    ("rare", "classes", "said"), [(19, "", True), (19, "classes = ['no', 'yes']", False), (50, "", False)]
)
def test_a_class_that_is_too_rare_to_be_bought_is_named_so(checked, rare, classes, said):
    labels = ["no"] * 600
    labels[:rare] = ["yes"] * rare
    (finding,) = checked(
        f"[target]\ncolumn = 'y'\n{classes}", age=[str(i % 60) for i in range(600)], job=["a", "b"] * 300, y=labels
    )
    assert (finding.column, finding.rows, finding.examples) == ("y", rare, ("'yes'",))
    assert ("too few to be bought" in finding.problem) is said


def test_labels_in_another_case_are_named(checked):
    labels = ["no" if i % 2 else "yes" for i in range(ROWS)]
    labels[:4] = ["No", "YES", "yes", "nO"]
    finding = checked(y=labels)[0]
    assert (finding.column, finding.rows, finding.examples[0]) == ("y", 3, "'No'")
    assert "in case alone" in finding.problem


@pytest.mark.parametrize("declared", ["", "[columns.when]\nkind = 'date'\nformat = '%d/%m/%Y'"])
def test_dates_of_two_formats_are_no_decimal_numbers(checked, declared):
    """ISO dates are read as numbers of days, with any decimal mark."""
    days = [f"1990-01-{1 + i % 28:02}" if i % 3 else f"{1 + i % 28:02}/01/1990" for i in range(ROWS)]
    words = " ".join(finding.problem for finding in checked(declared, when=days))
    assert "a column takes one, so write all of them alike" in words
    assert "decimal" not in words
