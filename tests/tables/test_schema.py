import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tacita.errors import DataStructureError
from tacita.tables import Schema, Target, read_table

TOML = """
rows = 1000
privacy_unit = "one row = one person"
unit = "person"
max_rows_per_unit = 3
[target]
column = "y"
classes = [0, 1]
[columns.age]
kind = "number"
lower = 17
upper = 90
[columns.born]
kind = "date"
format = "%d.%m.%Y"
lower = "01.01.1900"
upper = "01.01.2020"
[columns.job]
kind = "category"
values = ["cook", "smith"]
[columns.image]
kind = "array"
shape = [28, 28]
lower = 0
upper = 255
[columns.note]
kind = "text"
[columns.code]
kind = "identifier"
[columns.open]
kind = "number"
"""


def test_a_schema_comes_back_from_its_dictionary():
    schema = Schema.loads(TOML)
    assert Schema.from_dict(schema.to_dict()) == schema
    assert schema.features(schema.columns) == ("age", "born", "job", "image", "open")
    assert schema.to_buy([*schema.columns, "new", "person", "y"]) == ("open", "new")
    assert schema.columns["born"].days == (-25567.0, 18262.0)


def test_an_incomplete_target_is_bought_last():
    assert Schema(target=Target(column="y")).to_buy(["y", "a"]) == ("a", "y")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('rows = "x"', "rows"),
        ("rows = 0", "rows"),
        ("rwos = 3", "rwos"),
        ("[columns.a]\nkind = 'numbr'", "'a'.*numbr"),
        ("[columns.a]\nkind = 'number'\nlower = 3", "'a'.*lower and upper"),
        ("[columns.a]\nkind = 'number'\nlower = 3\nupper = 2", "'a'.*below"),
        ("[columns.a]\nkind = 'number'\nlower = 3\nupper = nan", "'a'.*finite"),
        ("[columns.a]\nkind = 'number'\nlower = 1\nupper = 2\nmax = 3", "'a'.*max"),
        ("[columns.a]\nkind = 'number'\nlower = -1e308\nupper = 1e308", "'a'.*too large"),
        ("[columns.a]\nkind = 'number'\nlower = 1.7e308\nupper = 1.75e308", "'a'.*too large"),
        ("[columns.a]\nkind = 'number'\nlower = 0\nupper = 5e-324", "'a'.*too close"),
        ("[columns.a]\nkind = 'number'\nsteps = [1, nan]", "'a'.*steps must be finite"),
        ("[columns.a]\nkind = 'number'\nsteps = [-inf]", "'a'.*steps must be finite"),
        ("[columns.a]\nkind = 'category'\nvalues = ['x', ' x']", "'a'.*distinct"),
        ("[columns.a]\nkind = 'category'\nvalues = []", "'a'.*values"),
        ("[columns.a]\nkind = 'date'\nformat = '%Y'\nlower = 'x'\nupper = '2000'", "'a'.*format"),
        ("[columns.a]\nkind = 'array'\nshape = [0]\nlower = 0\nupper = 1", "'a'.*shape"),
        ("[columns.a]\nkind = 'array'\nshape = [4096, 4097]\nlower = 0\nupper = 1", "'a'.*shape.*16777216 numbers"),
        ("[columns.a]\nkind = 'array'\nshape = [2]\nlower = 0\nupper = 1e39", "'a'.*numbers of float32"),
        ("[columns.a]\nkind = 'array'\nshape = [2]\nlower = 0\nupper = 1e-46", "'a'.*numbers of float32"),
        ("[target]\ncolumn = 'y'\nclasses = ['a']", "classes"),
        ("[target]\ncolumn = 'y'\nclasses = ['a', 'b']\ntask = 'regression'", "classes"),
        ("[target]\ncolumn = 'y'\nlower = 0\nupper = 1\ntask = 'classification'", "classes"),
        ("[target]\ncolumn = 'y'\n[columns.y]\nkind = 'text'", "target 'y'"),
        ("unit = 'p'", "max_rows_per_unit"),
        ("unit = 'y'\nmax_rows_per_unit = 1\n[target]\ncolumn = 'y'", "unit"),
        ("columns = 3", "columns"),
        ("not toml", "TOML"),
        ("[columns.a]\nkind = 'numbr'", r"got 'numbr'\. Did you mean 'number'\?$"),
        ("[columns.a]\nkind = 'number'\nlowr = 1", r"unknown field `lowr`\. Did you mean 'lower'( or .*)?\?$"),
        ("[target]\ncolum = 'y'", r"unknown field `colum` - at `\$\.target`\. Did you mean 'column'( or .*)?\?$"),
        ("privacyunit = 'row'", r"unknown field `privacyunit`\. Did you mean 'privacy_unit'\?$"),
        ('"a\\nb" = 1', "^The schema is not valid: Object contains unknown field `a b`.$"),
    ],
)
def test_a_wrong_schema_names_the_setting(text, names):
    with pytest.raises(ValueError, match=names):
        Schema.loads(text)


def test_bounds_as_wide_as_can_be_are_taken():
    array = Schema.loads("[columns.a]\nkind = 'array'\nshape = [4096, 4096]\nlower = -1.7e38\nupper = 1.7e38")
    number = Schema.loads("[columns.a]\nkind = 'number'\nlower = -8e307\nupper = 8e307")
    for schema, bound in ((array, 1.7e38), (number, 8e307)):
        assert (schema.columns["a"].lower, schema.columns["a"].upper) == (-bound, bound)


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "schema.toml").write_bytes(b"rows = 3 # \xff")
    with pytest.raises(ValueError, match=r"TOML file in UTF-8, got '.*schema\.toml'"):
        Schema.load(tmp_path / "schema.toml")


def test_a_long_name_is_cut_off_in_the_message():
    with pytest.raises(ValueError, match=r"unknown field `aaa") as caught:
        Schema.from_dict({"a" * 10_000: 1})
    assert len(str(caught.value)) < 600


def test_half_a_character_is_no_name():
    with pytest.raises(ValueError, match="column 'x' is not valid: it holds half a character"):
        Schema.from_dict({"columns": {"x": {"kind": "\ud800"}}})


def test_a_draft_is_refused_until_it_is_reviewed():
    with pytest.raises(ValueError, match="reviewed must be true"):
        Schema(reviewed=False).require_reviewed()
    assert Schema().require_reviewed() == Schema()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("kind = 'number'", "when"), ("kind = 'category'", "when"), ("kind = 'date'\nformat = '%Y'", "count")],
)
def test_a_declared_type_that_is_not_the_files_raises(tmp_path, kind, wrong):
    columns = {"text": ["SECRET"], "count": [7], "when": pa.array([0], pa.timestamp("s"))}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    schema = Schema.loads(f"[columns.{wrong}]\n{kind}")
    with pytest.raises(DataStructureError, match=f"'{wrong}' is declared as") as raised:
        schema.check_structure(read_table(tmp_path / "t.parquet"))
    assert "SECRET" not in str(raised.value)


def test_the_shape_of_arrays_is_structure(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 3, 3)))
    table = read_table(tmp_path / "t.npz")
    schema = "[columns.x]\nkind = 'array'\nlower = 0\nupper = 1\nshape = "
    Schema.loads(schema + "[3, 3]").check_structure(table)
    with pytest.raises(DataStructureError, match=r"shape \[9\]"):
        Schema.loads(schema + "[9]").check_structure(table)


def test_a_target_of_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "t.npz", y=np.zeros((2, 3)))
    with pytest.raises(DataStructureError, match="'y'"):
        Schema(target=Target(column="y")).check_structure(read_table(tmp_path / "t.npz"))


def test_target_and_unit_must_be_there_for_training_only(table_of):
    schema = Schema(target=Target(column="y"), unit="p", max_rows_per_unit=1)
    table = table_of("a", "1")
    schema.check_structure(table, with_target=False)
    with pytest.raises(DataStructureError, match="'y'"):
        schema.check_structure(table)


@pytest.mark.parametrize("where", ["[columns.a]\nkind = 'date'", "[target]\ncolumn = 'y'\ndates = true"])
@pytest.mark.parametrize("wrong", ["%Q", "%d %d", "%d.%m.%", "", "dd.mm.yyyy", "%G-%V"])
def test_a_format_in_which_no_date_can_be_read_is_refused_where_it_is_declared(where, wrong):
    """Every cell would be a text, and "%d %d" would raise another error amid the survey."""
    with pytest.raises(ValueError, match=r"format must be one of strptime"):
        Schema.loads(f"{where}\nformat = '{wrong}'")


@pytest.mark.parametrize(
    "right", ["%y%m%d", "%d %b %Y %I:%M %p", "%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%j", "%G-W%V-%u", "%H:%M"]
)
def test_other_formats_are_taken(right):
    assert Schema.loads(f"[target]\ncolumn = 'y'\ndates = true\nformat = '{right}'").date_format("y") == right


@pytest.mark.parametrize("where", ["[columns.a]\nkind = 'date'", "[target]\ncolumn = 'y'\ndates = true"])
def test_names_of_time_zones_are_refused(where):
    """strptime reads those of the machine alone, and drops them."""
    with pytest.raises(ValueError, match=r"format must have no %Z, got '%Y-%m-%d %H:%M %Z'.*Use %z for offsets"):
        Schema.loads(f"{where}\nformat = '%Y-%m-%d %H:%M %Z'")
    Schema.loads(f"{where}\nformat = '%Y-%m-%d %%Z'")  # the letters themselves


def test_bounds_with_an_offset_are_those_of_utc():
    schema = Schema.loads(
        "[columns.a]\nkind = 'date'\nformat = '%Y-%m-%d %H:%M %z'\n"
        "lower = '1970-01-02 06:00 +0600'\nupper = '1970-01-02 18:00 -0600'"
    )
    assert schema.columns["a"].days == (1.0, 2.0)


def test_a_format_belongs_to_dates():
    with pytest.raises(ValueError, match="format is that of dates: add dates = true"):
        Schema.loads("[target]\ncolumn = 'y'\nformat = '%d.%m.%Y'")
