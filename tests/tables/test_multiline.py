"""Records of several lines: what a writer of CSV wrote is read, and no bytes of one record reach another."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacita.tables.csv_lines as lines_module
from tacita.tables import FileFormat, check_run, load, predict_file, read_table, train_table
from tacita.tables.csv_lines import decoded_line, split_line
from tacita.tables.multiline import MOST_LINES, cut
from tests.tables.test_lost_rows import ROWS, broken

FORMAT = FileFormat(multiline=True)
WIDTH = 3


def readable(data: bytes) -> list[list[str]]:
    """The records that count, as the readers get them."""
    ends, balanced, _ = cut(data, FORMAT, WIDTH)
    starts = np.append(0, ends[:-1] + 1)
    found = [
        split_line(decoded_line(data[a:b], FORMAT), FORMAT) if counts else []
        for a, b, counts in zip(starts, ends, balanced, strict=True)
    ]
    return [cells for cells in found if len(cells) == WIDTH]


def written(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


# Texts of people: quotes, delimiters and line breaks anywhere; no cell begins with a line break or a delimiter, and no
# line of a text is a record by itself (these are in the tests below).
LINE = st.text(alphabet='ab",; ', max_size=6).map(lambda line: line.replace(",", ",,,"))
CELL = st.lists(LINE, min_size=1, max_size=4).map(lambda lines: "x" + "\nx".join(lines) + "y")
ROW = st.lists(CELL, min_size=WIDTH, max_size=WIDTH)
BYTES = st.lists(st.sampled_from([*b'"",\n\n\rab ', *b'",']), max_size=14).map(bytes)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(ROW, max_size=5))
def test_what_was_written_is_read(rows):
    data = written(rows)
    if data:
        assert readable(data) == rows


@settings(max_examples=500, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=4), extra=BYTES, data=st.data())
def test_no_bytes_of_one_record_reach_another(rows, extra, data):
    """Whatever stands between two readable records, all of them are read as they were, and in their order."""
    place = data.draw(st.integers(0, len(rows)))
    before, after = written(rows[:place]), written(rows[place:])
    found = readable(before + extra + b"\n" + after)
    assert found[:place] == rows[:place]
    assert found[len(found) - len(rows) + place :] == rows[place:]


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(BYTES.map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=6), data=st.data())
def test_a_line_more_changes_two_records_at_most(lines, data):
    """In a file of any bytes: the record that it is in, and one that it breaks apart."""
    place = data.draw(st.integers(0, len(lines) - 1))
    with_it, without = (
        Counter(tuple(cells) for cells in readable(b"".join(line + b"\n" for line in found) or b"\n"))
        for found in (lines, [*lines[:place], *lines[place + 1 :]])
    )
    assert (with_it - without).total() <= 1
    assert (without - with_it).total() <= 1


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b'1,"a\nb",2\n3,c,4\n', [["1", "a\nb", "2"], ["3", "c", "4"]]),
        (b'1,"a\n3,c,4\n', [["3", "c", "4"]]),  # an open quote ends with its line
        (b'1,"a\n3,c,4\nb",2\n', [["3", "c", "4"]]),  # a record stands between: whose it is, nobody can tell
        (b'1,"a\n5,"b\nc",6\n', [["5", "b\nc", "6"]]),  # the next record opens a quote, too
        (b'5,6,"a\n1,"\nb",2\n', [["1", "\nb", "2"]]),  # even where its quote could close the first
        (b'1,"a\n",2\n', [["1", "a\n", "2"]]),  # a text may end with a line break
        (b'1,"\na",2\n', [["1", "\na", "2"]]),  # or begin with one, except in the first column
        (b'"\na",1,2\n', []),
        (b'1,",\na",2\n', []),  # a cell that begins with a delimiter looks like the end of one
        (b'1,"a\r\nb",2\r\n', [["1", "a\r\nb", "2"]]),
        (b'1,"a"x,"\nb"\n', []),  # quotes are around whole cells only
        (b'1,"a\nb",2,3\n', []),  # the wrong width
        (b'1,5" x 6",2\n', []),  # ... which is said of one line, too
        (b'1,"a\nb","c\nd"\n', [["1", "a\nb", "c\nd"]]),
        (b'1,a",2\n', []),  # an odd number of quotes in one line
        (b'1,"' + b"a\n" * (MOST_LINES - 1) + b'b",2\n', [["1", "a\n" * (MOST_LINES - 1) + "b", "2"]]),
        (b'1,"' + b"a\n" * MOST_LINES + b'b",2\n', []),
        (b'1,"a', []),
    ],
)
def test_by_example(data, read):
    assert readable(data) == read


def test_blocks_end_nowhere_in_a_record(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    pieces = [b'1,"a\nb",2\n', b'1,"a\n', b"3,c,4\n", b'c",5\n', b"x\n", b'6,"d\n\ne\nf",7\n']
    data = b"a,b,c\n" + b"".join(pieces[i] for i in rng.integers(0, len(pieces), 300))
    (tmp_path / "t.csv").write_bytes(data)
    whole = read_table(tmp_path / "t.csv", FORMAT)
    for size in (1, 7, 50):
        monkeypatch.setattr(lines_module, "BLOCK", size)
        table = read_table(tmp_path / "t.csv", FORMAT)
        assert table.valid.tolist() == whole.valid.tolist()
        for name in "abc":
            assert table.column(name).texts()[1] == whole.column(name).texts()[1]


def test_a_table_is_trained_on_and_predicted(settings, table):
    """A half of its rows has a line break in a quoted cell, and was lost."""
    table.write_text("\n".join(["x,y,kind,patient,label", *broken(ROWS), ""]))
    said: list[str] = []
    run = train_table(settings(multiline=True), say=said.append)
    assert not any("contribute nothing" in line for line in said)
    assert any("cut at its quotes" in caveat for caveat in run.fields["caveats"])
    assert check_run("run").faults == ()
    predict_file(load("run"), str(table), "scored.csv")
    with Path("scored.csv").open(newline="") as file:
        scored = list(csv.DictReader(file))
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: row[name] for name in rows[0]} for row in scored] == rows
    assert {row["prediction"] for row in scored} <= {"no", "yes"}
    assert any("\n" in row["kind"] for row in scored)


def test_json_lines_are_trained_on_and_predicted(settings, table):
    names = ("x", "y", "kind", "patient", "label")
    rows = [dict(zip(names, row.split(","), strict=True)) for row in ROWS]
    rows = [{**row, "x": float(row["x"]), "more": [1]} for row in rows]
    lines = [json.dumps(row) for row in rows]
    Path("table.jsonl").write_text("\n".join([*lines, "[1]", '{"x": ', ""]))
    run = train_table(settings(data="table.jsonl", columns=names))
    assert abs(run.fields["rows"]["value"] - len(rows)) < len(rows) / 4
    predict_file(load("run"), "table.jsonl", "scored.jsonl")
    *scored, odd, torn = Path("scored.jsonl").read_text().splitlines()
    assert (odd, torn) == ("[1]", '{"x": ')
    for row, line in zip(rows, scored, strict=True):
        found = json.loads(line)
        assert found.pop("prediction") in ("no", "yes")
        assert 0.99 < found.pop("probability_no") + found.pop("probability_yes") < 1.01
        assert found == row


def test_names_of_json_lines_are_declared(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"secret": 1}\n')
    with pytest.raises(Exception, match="--columns") as caught:
        read_table(path)
    assert "secret" not in str(caught.value)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(st.one_of(st.binary(max_size=9), st.sampled_from([b'{"a":1}', b'{"a":"x"}'])), max_size=5))
def test_no_line_of_json_raises_or_moves_another(tmp_path, lines):
    lines = [line.replace(b"\n", b"") for line in lines]
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in [b'{"a": 7}', *lines, b'{"a": "\xc3\xa9"}']))
    table = read_table(path, FileFormat(columns=("a",), header=False))
    codes, texts = table.column("a").texts()
    assert table.num_rows == len(lines) + 2
    assert (texts[codes[0]], texts[codes[-1]], table.valid[0], table.valid[-1]) == ("7", "\u00e9", True, True)
