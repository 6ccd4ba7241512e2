"""The two looks at the data that are not private, and say so."""

import numpy as np
import pytest

from tacita.errors import DataStructureError
from tacita.tables import FileFormat, Schema, check, draft, read_table

LINES = [
    "age,job,code,note,y",
    *(f"{20 + i % 60},{'cook' if i % 3 else 'smith'},SECRET{i},n{i % 70},{i % 2}" for i in range(200)),
]


def test_a_draft_guesses_kinds_and_is_refused_until_reviewed(table_of):
    text = draft(table_of(*LINES), target="y")
    schema = Schema.loads(text)
    kinds = {name: spec["kind"] for name, spec in schema.to_dict()["columns"].items()}
    assert kinds == {"age": "number", "job": "category", "code": "identifier", "note": "text"}
    assert schema.target.column == "y"
    assert not schema.reviewed
    with pytest.raises(ValueError, match="reviewed"):
        schema.require_reviewed()


def test_the_draft_of_a_target_of_dates_declares_their_format(table_of):
    lines = ["x,day", *(f"{i},{1 + i % 28:02}.{1 + i % 12:02}.2024" for i in range(100))]
    target = Schema.loads(draft(table_of(*lines), target="day")).target
    assert (target.dates, target.format) == (True, "%d.%m.%Y")


def test_a_draft_says_what_it_is_and_holds_no_value(table_of):
    text = draft(table_of(*LINES))
    assert text.startswith("# NOT PRIVATE")
    for value in ("SECRET", "cook", "smith", "79"):
        assert value not in text


def test_a_draft_says_that_some_records_are_no_rows(csv_file):
    path = csv_file(b'a,y\n"one\ntwo",yes\nthree,no\n')
    several, whole = FileFormat(multiline=True), FileFormat()
    assert "draft again with --multiline" in draft(read_table(path, whole), whole)
    assert "draft again" not in draft(read_table(path, several), several)


@pytest.mark.parametrize("name", ['a "quoted" name', "tab\tname", "dot.name", "\x7fdel", "ünïcode 😀", "back\\slash"])
def test_odd_names_survive_the_draft(csv_file, name):
    reading = FileFormat(header=False, columns=(name, "b"), delimiter=";", encoding="latin-1")
    schema = Schema.loads(draft(read_table(csv_file(b"1;2\n"), reading), reading))
    assert tuple(schema.columns) == (name, "b")
    assert schema.reading == reading


def test_a_draft_of_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((5, 2, 3), np.uint8), f=np.zeros((5, 4)), y=np.arange(5))
    schema = Schema.loads(draft(read_table(tmp_path / "t.npz"), target="y"))
    assert (schema.columns["x"].shape, schema.columns["x"].upper) == ((2, 3), 255)
    assert schema.columns["f"].shape == (4,)


def test_a_draft_of_no_rows(table_of):
    assert set(Schema.loads(draft(table_of("a,b"))).columns) == {"a", "b"}


SCHEMA = """
unit = "p"
max_rows_per_unit = 2
[target]
column = "y"
classes = ["no", "yes"]
[columns.x]
kind = "number"
lower = 0
upper = 10
[columns.c]
kind = "category"
values = ["a", "b"]
[columns.d]
kind = "date"
format = "%Y"
lower = "2000"
upper = "2020"
"""


def test_the_check_is_loud(table_of):
    table = table_of("p,x,c,d,y", "1,5,a,2001,no", "1,11,z,1990,yes", "1,many,,soon,maybe", "1,,b,2002,no", "short")
    report = check(table, Schema.loads(SCHEMA))
    text = str(report)
    assert text.startswith("NOT PRIVATE")
    assert [(finding.column, finding.rows) for finding in report.findings] == [
        ("records", 1), ("x", 1), ("x", 1), ("x", 1), ("c", 1), ("c", 1), ("d", 1), ("d", 1), ("y", 1), ("p", 1),
    ]  # fmt: skip
    for shown in ("line 6", "'many'", "'11'", "'z'", "'1990'", "'soon'", "'maybe'"):
        assert shown in text


def test_a_sound_table_has_no_findings(table_of):
    table = table_of("p,x,c,d,y", "1,5,a,2001,no", "2,10,b,2020,yes")
    assert check(table, Schema.loads(SCHEMA)).findings == ()
    assert "nothing odd" in str(check(table, Schema.loads(SCHEMA)))


def test_the_check_of_arrays(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.array([[0.0, 1.0], [np.nan, 0.0], [2.0, 0.0]]))
    schema = Schema.loads("[columns.x]\nkind='array'\nshape=[2]\nlower=0\nupper=1")
    assert [finding.rows for finding in check(read_table(tmp_path / "t.npz"), schema).findings] == [2]


def test_a_wrong_structure_raises_in_the_check_too(table_of):
    with pytest.raises(DataStructureError, match="'x'"):
        check(table_of("p,y", "1,no"), Schema.loads(SCHEMA))


def test_bytes_that_are_no_text_are_found(csv_file):
    path = csv_file(b"a,b\n1,x\n2,y\0\n3,z\xe9\n4,x\n")
    report = str(check(read_table(path), Schema()))
    assert "b: 2 cells hold zero bytes, or bytes that are not utf-8: give --encoding (latin-1, say)" in report


@pytest.mark.parametrize("declared", ["", "classes = ['öui', 'nön']"])
def test_labels_in_another_encoding_are_found(csv_file, declared):
    path = csv_file("x,y\n1,öui\n2,nön\n".encode("latin-1"))
    report = str(check(read_table(path), Schema.loads(f"[target]\ncolumn = 'y'\n{declared}")))
    assert "y: 2 cells hold zero bytes, or bytes that are not utf-8: give --encoding (latin-1, say)" in report


@pytest.mark.parametrize("declared", ["", "[columns.x]\nkind = 'number'\nlower = 0\nupper = 400\n"])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_zero_bytes_in_a_quarter_of_the_numbers_are_found(table_of, declared, task):
    lines = [f"{i}{chr(0) * (i % 4 == 0)},{i % 2}{chr(0) * (i % 4 == 1)}" for i in range(400)]
    report = str(check(table_of("x,y", *lines), Schema.loads(f"{declared}[target]\ncolumn = 'y'\ntask = '{task}'")))
    assert report.count("100 cells hold zero bytes") == 2
