"""What is declared, merged from settings and schema; structure raises, and names no column of the file's own."""

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tacita.errors import DataStructureError, TacitaError
from tacita.tables.plan import TablePlan
from tacita.tables.source import declared_schema, open_source, private_rows, unit_in_words
from tests import conftest

SCHEMA = 'privacy_unit = "one visit"' + conftest.SCHEMA


@pytest.fixture
def schema_file(table: Path) -> str:
    (table.parent / "schema.toml").write_text(SCHEMA)
    return "schema.toml"


def test_only_declared_columns_are_used_and_nothing_is_bought(settings, schema_file) -> None:
    chosen = settings(schema=schema_file, target=None, drop=())
    source = open_source(chosen, declared_schema(chosen))
    assert (source.names, source.to_buy, source.table.names) == (("x",), (), ("x", "label"))
    assert unit_in_words(source.schema) == "one visit"


def test_bare_everything_is_bought(settings, table) -> None:
    source = open_source(settings(), declared_schema(settings()))
    assert source.to_buy == ("x", "y", "kind", "label")


def test_without_a_number_of_rows_it_is_bought(settings, table) -> None:
    Path("schema.toml").write_text(SCHEMA.replace("rows = 400", ""))
    chosen = settings(schema="schema.toml", drop=())
    source = open_source(chosen, declared_schema(chosen))
    assert source.to_buy == ()
    assert TablePlan.of(chosen, source).buys_rows


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rows": 500}, "rows is 500 in the settings and 400 in the schema"),
        ({"target": "x"}, "target is 'x' in the settings and 'label' in the schema"),
        ({"delta": 0.005}, "delta must be below 1 / rows"),
        ({"classes": ("a", "b")}, "classes is .* in the settings and .* in the schema"),
        ({"unit_column": "patient"}, "unit_column and max_rows_per_unit go together"),
        ({"schema": "nowhere.toml"}, "schema must be a readable text file, got 'nowhere.toml'"),
    ],
)
def test_a_schema_that_disagrees(settings, schema_file, changes: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        declared_schema(settings(**{"schema": schema_file, **changes}))


def test_classes_need_no_schema(settings, table) -> None:
    chosen = settings(classes=("no", "yes"))
    source = open_source(chosen, declared_schema(chosen))
    assert source.to_buy == ("x", "y", "kind")
    assert not TablePlan.of(chosen, source).buys_target
    assert source.schema.target.classes == ("no", "yes")
    assert type(chosen).from_toml(chosen.to_toml()) == chosen
    for changes, words in [
        ({"classes": ("no",)}, "classes must hold at least 2"),
        ({"classes": ("no", "yes"), "task": "regression"}, "classes belong to a classification"),
    ]:
        with pytest.raises(ValueError, match=words):
            declared_schema(settings(**changes))


def test_a_draft_is_refused(settings, schema_file) -> None:
    Path(schema_file).write_text("reviewed = false\n" + SCHEMA)
    with pytest.raises(ValueError, match="reviewed must be true"):
        declared_schema(settings(schema=schema_file))


def test_persons_with_several_rows_need_the_relation_that_has_a_proof(settings, table) -> None:
    with pytest.raises(ValueError, match="unit_column needs neighboring_relation add_or_remove_one"):
        declared_schema(settings(unit_column="patient", max_rows_per_unit=2, neighboring_relation="replace_one"))


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "nobody"},
        {"drop": ("nobody",)},
        {"unit_column": "nobody", "max_rows_per_unit": 2},
        {"delimiter": ";"},
        {"data": "nowhere.csv"},
    ],
)
def test_wrong_structure_raises_without_a_word_of_the_file(settings, table, changes: dict) -> None:
    chosen = settings(**changes)
    with pytest.raises((DataStructureError, ValueError)) as error:
        open_source(chosen, declared_schema(chosen))
    for name in ("kind", "label,", "red", "patient"):
        assert name not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target": "lable"}, "no column 'lable', which the settings name. Did you mean 'label'? Check the spelling"),
        ({"drop": ("patiend",)}, "no column 'patiend', which drop names. Did you mean 'patient'? Check the spelling"),
    ],
)
def test_a_mistyped_column_is_answered_with_a_declared_one(settings, table, changes, says) -> None:
    """A schema's names are public; without one nothing is suggested, because the file's own are in no message."""
    Path("named.toml").write_text(
        "[columns.label]\nkind = 'category'\nvalues = ['no', 'yes']\n"
        "[columns.patient]\nkind = 'category'\nvalues = ['a', 'b']"
        "\n[columns.x]\nkind = 'number'\nlower = 0\nupper = 9\n"
    )
    chosen = settings(schema="named.toml", **{"drop": (), **changes})
    with pytest.raises(DataStructureError) as error:
        open_source(chosen, declared_schema(chosen))
    assert says in str(error.value)
    assert ("--drop '\"one, two\",three'" in str(error.value)) == ("drop" in changes)
    bare = settings(**changes)
    with pytest.raises(DataStructureError) as error:
        open_source(bare, declared_schema(bare))
    assert "Did you mean" not in str(error.value)
    assert "tacita schema FILE shows the names" in str(error.value)


def test_the_first_row_of_a_headerless_file_reaches_no_message(settings, table) -> None:
    table.write_text("SECRET,4,red,p1,yes\n")
    with pytest.raises(DataStructureError) as error:
        open_source(settings(), declared_schema(settings()))
    assert "SECRET" not in str(error.value)


def test_a_parquet_type_against_the_schema(settings, schema_file) -> None:
    pyarrow.parquet.write_table(
        pa.table({"x": pa.array([0, 1], pa.timestamp("s")), "label": ["no", "yes"]}), "table.parquet"
    )
    chosen = settings(data="table.parquet", schema=schema_file, drop=())
    with pytest.raises(DataStructureError, match=r"'x' is declared as 'number'.*'date'"):
        open_source(chosen, declared_schema(chosen))


def test_bytes_of_images_declare_themselves_and_other_arrays_do_not(settings, table) -> None:
    images = np.zeros((5, 2, 2), dtype=np.uint8)
    np.savez("bytes.npz", image=images, label=np.arange(5))
    chosen = settings(data="bytes.npz", drop=())
    assert open_source(chosen, declared_schema(chosen)).to_buy == ("label",)
    np.savez("floats.npz", image=images.astype(np.float32), label=np.arange(5))
    chosen = settings(data="floats.npz", drop=())
    with pytest.raises(DataStructureError, match="'image' holds arrays: declare it in a schema"):
        open_source(chosen, declared_schema(chosen))


def test_where_the_number_of_rows_is_public_it_is_exact(settings, table) -> None:
    chosen = settings(neighboring_relation="replace_one")
    assert open_source(chosen, declared_schema(chosen)).schema.rows == 400
    wrong = settings(neighboring_relation="replace_one", rows=399)
    with pytest.raises(ValueError, match="rows must be the table's number of rows under replace_one"):
        open_source(wrong, declared_schema(wrong))


def test_what_fails_unforeseen_among_rows_is_not_quoted() -> None:
    with pytest.raises(TacitaError) as error, private_rows("reading"):
        float("SECRET")
    assert "SECRET" not in str(error.value)
    assert error.value.__cause__ is None
    with warnings.catch_warnings(record=True) as warned, private_rows("reading"):
        warnings.warn("SECRET", stacklevel=1)
        np.array([1e300]) ** 2
    assert not warned
    with pytest.raises(DataStructureError, match="declared"), private_rows("reading"):
        raise DataStructureError("a declared column is missing")


def test_where_the_number_of_rows_is_public_delta_is_held_against_it(settings, table) -> None:
    """Nobody declared it: the file has it."""
    chosen = settings(delta=0.005, neighboring_relation="replace_one")
    with pytest.raises(ValueError, match="delta must be below 1 / rows"):
        open_source(chosen, declared_schema(chosen))
    allowed = settings(delta=0.005, neighboring_relation="replace_one", allow_large_delta=True)
    assert open_source(allowed, declared_schema(allowed)).schema.rows == 400
