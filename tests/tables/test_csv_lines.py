"""Lines read together and lines read one by one give the same cells, and a chunk ends nowhere but between lines."""

import gzip

import numpy as np
import pytest

import tacita.tables.csv_lines as lines_module
from tacita.errors import DataStructureError
from tacita.random import Key
from tacita.tables import FileFormat, Schema, make_encoder, read_table
from tacita.tables.cells import SPACES, numbers_of, parse_number
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.readers import open_table
from tacita.tables.refinement import refinement_counts
from tacita.tables.survey import survey_counts
from tacita.tables.table_file import TableFile
from tacita.tables.units import cap_rows, held_out
from tests.tables.buying import buy_survey

PIECES = [b"a", b"1.5", b"", b'"', b'""', b",", b",", b",", b" ", b"\t", b"\r", b"\xc3\xa9", b"\xff", b"\xc3", b"\0",
          b"\xef\xbb\xbf", b"'", b"NULL", b"x y", b"\xc2\xa0", b"\x1c", b"2024-01-31"]  # fmt: skip


def by_hand(data: bytes, reading: FileFormat, width: int) -> list[list[str] | None]:
    """The definition: each physical line by itself."""
    rows = data.split(b"\n")
    rows = rows[:-1] if not rows[-1] else rows
    cells = [lines_module.split_line(lines_module.decoded_line(row, reading), reading) for row in rows]
    return [[cell.strip() for cell in row] if len(row) == width else None for row in cells]


def read(data: bytes, reading: FileFormat, width: int) -> list[list[str] | None]:
    places = {str(i): i for i in range(width)}
    columns, valid = lines_module.cells_of(data, reading, width, places)
    rows = zip(*(values.to_pylist() for values in columns.values()), strict=True)
    return [list(row) if counts else None for row, counts in zip(rows, valid, strict=True)]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "gbk"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_fast_is_plain(encoding, width):
    rng, reading = np.random.default_rng(width), FileFormat(encoding=encoding)
    for _ in range(150):
        rows = [b"".join(PIECES[i] for i in rng.integers(0, len(PIECES), rng.integers(0, 9))) for _ in range(12)]
        rows += [b",".join(b'"%d, x"' % i if rng.random() < 0.5 else b"%d" % i for i in range(width)) for _ in range(4)]
        data = b"\n".join(rng.permuted(np.array(rows, object)).tolist())
        data += rng.choice([b"", b"\n", b"\r\n"])
        if data:
            assert read(data, reading, width) == by_hand(data, reading, width), data


def test_an_open_quote_reaches_no_other_line():
    data = b'1,"open\n2,"b, c"\n3,d\n"4","e"\n5,f"\n'
    assert read(data, FileFormat(), 2) == [["1", "open"], ["2", "b, c"], ["3", "d"], ["4", "e"], ["5", 'f"']]


def test_ordinary_lines_are_read_together(monkeypatch):
    """Else millions of them take minutes: quoted cells, line ends of Windows, letters of everywhere are ordinary."""
    monkeypatch.setattr(lines_module, "split_line", lambda *_: pytest.fail("read one by one"))
    assert read(b'1,"b, c"\r\n2,\n"",x\r\n', FileFormat(), 2) == [["1", "b, c"], ["2", ""], ["", "x"]]
    assert read("é,ü\n".encode(), FileFormat(), 2) == [["é", "ü"]]


def test_spaces_are_those_of_strip():
    assert set(SPACES) == {chr(i) for i in range(0x110000) if chr(i).isspace()}


CELLS = [
    "1", "-1.5e3", ".5", "5.", "+7", "1e999", "-1e999", "1e-999", "nan", "inf", "1_000", "0x10", "\uff11", "1,234",
    "1,234,567.89", "12,34", "1234,567", "1'234.5", "1 234", "1\u202f234,5", "$1,234", "-$5", "$-5", "-$-5",
    "5 \u20ac", "5%", "-0.5 %", "$5%", "%", "$", ",", "1,", "1,5", "1.234,5", "1.234.567", "0,5e3", ",5",
    "2024-02-29", "2023-02-29", "2024-01-31T12:30", "2024-01-31 12:30:15.5", "2024-01-31T12:30:15Z",
    "2024-01-31T23:30:00+02:00", "2024-1-1", "", "red", "9" * 400, "1," + "000," * 120 + "000", "2024-01-31T99:99",
]  # fmt: skip


@pytest.mark.parametrize("decimal", [".", ","])
def test_many_cells_are_read_as_one(decimal):
    import pyarrow as pa

    one = [parse_number(cell, decimal) for cell in CELLS]
    values, number = numbers_of(pa.array(CELLS, pa.large_string()), decimal)
    assert number.tolist() == [value is not None for value in one]
    assert values[number].tobytes() == np.array([value for value in one if value is not None]).tobytes()


@pytest.mark.parametrize(
    ("cell", "decimal", "value"),
    [
        ("$1,234", ".", 1234.0), ("-$1,234.50", ".", -1234.5), ("5%", ".", 0.05), ("1.234,5", ",", 1234.5),
        ("1,5", ",", 1.5),        ("1,5", ".", None), ("12,34", ".", None), ("1.5", ",", None), ("1.500", ",", 1500.0),
        ("1 234 567", ".", 1234567.0),        ("5 \u20ac", ".", 5.0),
        ("-$-5", ".", None), ("$5%", ".", None), ("1,234 567", ".", None),
        ("1970-01-02", ".", 1.0), ("1970-01-02T12:00", ".", 1.5), ("1970-01-02T02:00:00+02:00", ".", 1.0),
        ("2023-02-29", ".", None), ("1970-1-2", ".", None),
    ],
)  # fmt: skip
def test_cells_as_people_write_them(cell, decimal, value):
    assert parse_number(cell, decimal) == value


def mixed(rows: int) -> bytes:
    rng = np.random.default_rng(0)
    kinds, labels = rng.choice(["a", "b, c"], rows), rng.choice(["no", "yes"], rows)
    numbers = zip(rng.normal(size=rows), rng.integers(9, size=rows), rng.integers(40, size=rows), strict=True)
    lines = [f'{x:.4f},{n},"{c}",p{p},{y}' for (x, n, p), c, y in zip(numbers, kinds, labels, strict=True)]
    lines[3:6] = ["short", "x,y,z,p1,no", '"open,1,a,p1,yes']
    return ("x,n,c,p,y\n" + "\n".join(lines) + "\n").encode()


@pytest.fixture(params=["csv", "csv.gz", "parquet"])
def twice(request, tmp_path, monkeypatch) -> tuple[TableFile, TableFile]:
    """The same file in many chunks and in one."""
    data = mixed(600)
    path = tmp_path / f"t.{request.param}"
    if request.param == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        rng = np.random.default_rng(0)
        columns = {"x": rng.normal(size=600), "n": rng.integers(0, 9, 600), "c": rng.choice(["a", "b"], 600).tolist()}
        people = {"p": rng.integers(0, 40, 600), "y": rng.choice(["no", "yes"], 600).tolist()}
        parquet.write_table(pa.table({**columns, **people}), path)
    else:
        path.write_bytes(gzip.compress(data) if request.param == "csv.gz" else data)
    whole = read_table(path)
    monkeypatch.setattr(lines_module, "BLOCK", 997)
    monkeypatch.setattr("tacita.tables.parquet_file.ROWS", 41)
    many = open_table(path)
    assert len(list(many.chunks())) > 10
    return many, whole


@pytest.mark.parametrize("windows", [False, True])
def test_chunks_are_the_whole_bit_for_bit(twice, tmp_path, monkeypatch, windows):
    many, whole = twice
    schema = Schema.loads("[target]\ncolumn = 'y'")
    names = ("x", "n", "c", "y")
    one, two = (survey_counts(table, schema, names) for table in (many, whole))
    assert one.names == two.names
    assert all(np.array_equal(one.tensors()[label], two.tensors()[label]) for label in one.tensors())
    survey = buy_survey(
        whole, schema, names, noise_std=1.0, threshold=5.0, normals=lambda label, count: np.zeros(count)
    )
    encoder = make_encoder(schema, survey, columns=("x", "n", "c"))
    assert np.array_equal(*(refinement_counts(table, schema, survey) for table in (many, whole)))
    expected, file, first = encoder.encode(whole), EncodedFile(encoder, tmp_path), 0
    key = Key.insecure(0)
    everyone = held_out(whole, 0.3, key)
    for chunk in many.chunks():
        rows = slice(first, first + chunk.num_rows)
        assert np.array_equal(held_out(chunk, 0.3, key, first=first), everyone[rows])
        file.append(encoder.encode(chunk), np.ones(chunk.num_rows, bool))
        first = rows.stop
    if windows:
        monkeypatch.setattr("tacita.tables.mapped_rows.RESIDENT", 0)
        monkeypatch.setattr("tacita.tables.mapped_rows.WINDOW", 1000)
    features, target, weight = file.whole()
    some = np.array([599, 3, 3, 0, 77])[: len(features)]
    assert np.array_equal(file.fetch(some, 0)[0], features[some])
    assert features.numpy().tobytes() == expected.features.numpy().tobytes()
    assert target.numpy().tobytes() == expected.target.numpy().tobytes()
    assert np.array_equal(weight > 0, expected.valid)
    (chunk,) = file.chunks()
    assert chunk.answers.numpy().tobytes() == expected.answers.numpy().tobytes()  # of a score: not clipped
    assert np.array_equal(chunk.labelled, expected.labelled)
    assert np.array_equal(chunk.valid, expected.valid)
    capped = [cap_rows(table, "p", 3, ("",), key).whole().valid for table in (many, whole)]
    assert np.array_equal(*capped)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(mixed(20))
    table = open_table(path)
    path.write_bytes(mixed(21))
    with pytest.raises(DataStructureError, match="must not change"):
        list(table.chunks())


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    """Ten times the rows: the same peak, but for what ten chunks more leave in an allocator."""
    import tracemalloc

    monkeypatch.setattr(lines_module, "BLOCK", 2**14)
    peaks = []
    for times in (1, 10):
        path = tmp_path / f"{times}.csv"
        header, _, body = mixed(2000).partition(b"\n")
        path.write_bytes(header + b"\n" + body * times)
        schema = Schema.loads("[target]\ncolumn = 'y'")
        tracemalloc.start()
        table = open_table(path)
        survey_counts(table, schema, ("x", "n", "c", "y"))
        for _ in table.chunks():
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]  # a thread reads the next chunk, which may or may not be there at the peak
