"""Readers: no row raises, none reaches another row or a message; a wrong structure says which setting to change."""

import gzip
import zipfile
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tacita.errors import DataStructureError
from tacita.tables import FileFormat, read_table
from tacita.tables.cells import MISSING, NUMBER

# Bytes that make parsers stumble: quotes, delimiters, NUL, carriage returns, half characters, a field over csv's limit.
HOSTILE = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b'"', b'"a', b'a"b",1', b"1,2", b"\xff\xfe", b"\xe2\x82", b"\0", b"\r", b"a\rb,2", b'"' + b"x" * 140_000]
    ),
).map(lambda line: line.replace(b"\n", b""))


def cells(table, name):
    codes, texts = table.column(name).texts()
    return [texts[code] for code in codes]


def read_bytes(tmp_path, lines, **reading):
    path = tmp_path / "t.csv"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return read_table(path, FileFormat(**reading))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(HOSTILE, max_size=5), extra=HOSTILE, data=st.data())
def test_a_record_is_a_line_that_moves_no_other(tmp_path, lines, extra, data):
    place = data.draw(st.integers(0, len(lines)))
    without = read_bytes(tmp_path, [b"a,b", *lines])
    with_it = read_bytes(tmp_path, [b"a,b", *lines[:place], extra, *lines[place:]])
    others = np.arange(len(lines) + 1) != place
    assert without.num_rows == len(lines)
    assert (with_it.valid[others] == without.valid).all()
    for name in ("a", "b"):
        assert [c for c, other in zip(cells(with_it, name), others, strict=True) if other] == cells(without, name)


def test_cells_are_stripped_and_quotes_kept_inside_the_line(table_of):
    table = table_of("a,b", ' 1 , "x, ""y""" ', "2,plain\r")
    assert cells(table, "a") == ["1", "2"]
    assert cells(table, "b") == ['x, "y"', "plain"]


@pytest.mark.parametrize("row", ["1", "1,2,3", "", '"1,2', '"1"x\r"",2'])
def test_a_row_of_the_wrong_width_keeps_its_place_and_counts_for_nothing(table_of, row):
    table = table_of("a,b", "1,2", row, "3,4")
    assert table.valid.tolist() == [True, False, True]
    assert cells(table, "a") == ["1", "", "3"]


def test_an_empty_line_of_one_column_is_a_missing_cell(table_of):
    table = table_of("a", "1", "", "3")
    assert table.valid.all()
    assert table.column("a").numbers(("",))[1].tolist() == [NUMBER, MISSING, NUMBER]


def test_decoding_is_lossy(csv_file):
    table = read_table(csv_file(b"\xef\xbb\xbfa,b\nJos\xe9,1\n"))
    assert cells(table, "a") == ["Jos�"]
    latin = read_table(csv_file(b"a,b\nJos\xe9,1\n"), FileFormat(encoding="latin-1"))
    assert cells(latin, "a") == ["José"]


def test_delimiter_quote_header_are_settings(csv_file):
    path = csv_file(b"1;'x;y'\n2;z")
    table = read_table(path, FileFormat(delimiter=";", quote="'", header=False, columns=("n", "t")))
    assert cells(table, "t") == ["x;y", "z"]
    assert table.num_rows == 2


def test_gzip(csv_file):
    assert cells(read_table(csv_file(gzip.compress(b"a\n1\n"), "t.csv.gz")), "a") == ["1"]


@pytest.mark.parametrize("content", [b"a,b\n", b"a,b"])
def test_a_header_alone_is_a_table_without_rows(csv_file, content):
    table = read_table(csv_file(content))
    assert table.num_rows == 0
    assert table.names == ("a", "b")
    assert len(table.column("a").numbers(())[0]) == 0


SECRET = b"SECRET"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "t.csv"),
        (b"SECRET,SECRET\n1,2\n", "t.csv"),
        (b"SECRET,\n1,2\n", "t.csv"),
        (b"SECRET,58\n1,2\n", "t.csv"),  # a record where a header should be
        (SECRET, "t.csv.gz"),
        (gzip.compress(SECRET * 1000, mtime=0)[:-9], "t.csv.gz"),
        (SECRET, "t.parquet"),
        (SECRET, "t.npz"),
    ],
)
def test_a_broken_file_raises_one_line_that_shows_nothing_of_it(csv_file, content, name):
    with pytest.raises(DataStructureError) as raised:
        read_table(csv_file(content, name))
    assert "SECRET" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_missing_file_names_the_path(tmp_path):
    with pytest.raises(DataStructureError, match=r"nowhere\.csv"):
        read_table(tmp_path / "nowhere.csv")


def test_a_missing_column_does_not_list_the_files_own(csv_file):
    path = csv_file(b"SECRET,b\n1,2\n")
    for ask in (lambda: read_table(path, only=["x"]), lambda: read_table(path).column("x")):
        with pytest.raises(DataStructureError, match="'x'") as raised:
            ask()
        assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delimiter": ",,"},
        {"delimiter": "\n"},
        {"delimiter": "é"},
        {"quote": ","},
        {"encoding": "utf-16"},
        {"encoding": "utf-7"},
        {"encoding": "no such"},
        {"encoding": "rot13"},
        {"encoding": "raw_unicode_escape"},
        {"header": False},
        {"columns": ("a",)},
        {"header": False, "columns": ("a", "a")},
    ],
)
def test_wrong_settings_raise_when_they_are_built(wrong):
    with pytest.raises(ValueError, match="|".join(wrong)):
        FileFormat(**wrong)


def test_the_repr_shows_no_data(table_of):
    table = table_of("a", "SECRET")
    assert "SECRET" not in repr(table) + repr(table.column("a"))


def test_parquet_types(tmp_path):
    path = tmp_path / "t.parquet"
    columns = {
        "i": pa.array([1, None, 3]),
        "f": pa.array([0.5, float("nan"), float("inf")]),
        "s": pa.array(["x", None, " y "]),
        "c": pa.array(["x", "y", "x"]).dictionary_encode(),
        "h": pa.array([np.float16(0.5), None, np.float16(np.nan)], pa.float16()),
        "x": pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff", b"", b"ok"]).buffers()),
        "b": pa.array([True, False, None]),
        "d": pa.array([0, 86_400_000_000, None], pa.timestamp("us")),
        "m": pa.array([Decimal(1), None, Decimal("2.50")]),
    }
    parquet.write_table(pa.table(columns), path)
    table = read_table(path)
    storages = {name: table.column(name).storage for name in table.names}
    assert storages == dict(
        i="number", f="number", s="string", c="string", b="string", d="date", m="number", h="number", x="string"
    )
    assert cells(table, "i") == ["1", "", "3"]
    assert table.column("f").numbers(())[1].tolist() == [NUMBER, MISSING, MISSING]
    assert cells(table, "s") == ["x", "", "y"]
    assert cells(table, "b") == ["true", "false", ""]
    assert table.column("d").numbers(())[0].tolist() == [0.0, 1.0, 0.0]
    assert table.column("m").numbers(())[0].tolist() == [1.0, 0.0, 2.5]
    assert table.column("h").numbers(())[0].tolist() == [0.5, 0.0, 0.0]
    assert cells(table, "x") == ["\ufffd", "", "ok"]


def test_parquet_lists_are_refused_by_name(tmp_path):
    parquet.write_table(pa.table({"l": pa.array([[1], [2]])}), tmp_path / "t.parquet")
    with pytest.raises(DataStructureError, match="'l'"):
        read_table(tmp_path / "t.parquet")


def test_npz_types(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((3, 2, 2), np.uint8), y=np.array([0, 1, 9], np.uint8), s=np.array([b"a", b"\xff", b"c"]))
    table = read_table(path)
    assert table.column("x").shape == (2, 2)
    assert cells(table, "y") == ["0", "1", "9"]
    assert cells(table, "s") == ["a", "�", "c"]


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"(3,)", b"(3,("), (b"'descr'", b"\x00descr'"), (b"(3,)", b"3   "), (b"(3,)", b"(-3)"), (b"<f8", b"<q9")],
)
def test_npz_headers_that_numpy_cannot_parse_are_one_error(tmp_path, old, new):
    """Some of them end in Python's own tokenizer, whose errors are no ValueError."""
    np.savez(tmp_path / "whole.npz", x=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "whole.npz") as whole, zipfile.ZipFile(tmp_path / "t.npz", "w") as broken:
        broken.writestr("x.npy", whole.read("x.npy").replace(old, new))
    with pytest.raises(DataStructureError, match="must be a readable NPZ file"):
        read_table(tmp_path / "t.npz")


def test_npz_texts_that_python_refuses_are_replaced(tmp_path):
    odd = np.array([0x110000, 0xD800, ord("a")], dtype=np.uint32).view("U1")
    np.savez(tmp_path / "t.npz", s=odd, e=np.array(["", "", ""]).astype("U0"))
    table = read_table(tmp_path / "t.npz")
    assert cells(table, "s") == ["\ufffd", "\ufffd", "a"]
    assert cells(table, "e") == ["", "", ""]


def test_npz_arrays_of_other_lengths_are_left_out_or_refused(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros(3), x_test=np.zeros(2))
    assert read_table(path, only=["x"]).num_rows == 3
    with pytest.raises(DataStructureError, match="same number of rows") as raised:
        read_table(path)
    assert not any(character.isdigit() for character in str(raised.value))


@pytest.mark.parametrize("array", [np.array([{"a": 1}], dtype=object), np.zeros(2, complex), np.array(1.0)])
def test_npz_objects_and_odd_types_are_refused(tmp_path, array):
    np.savez(tmp_path / "t.npz", x=array)
    with pytest.raises(DataStructureError):
        read_table(tmp_path / "t.npz")
