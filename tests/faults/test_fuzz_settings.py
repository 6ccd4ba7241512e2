"""Fuzzing of settings: a schema or a config is refused in one line, or reads the same when it is written again."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import example, given

from tacita.tables import TableSettings
from tacita.tables.encoder_rules import make_encoder
from tacita.tables.encoding import Encoder
from tacita.tables.features import ArrayPiece
from tacita.tables.schema import Schema
from tacita.tables.table import ArrayColumn, Table, TextColumn
from tests.faults.fuzzing import fuzz, one_line
from tests.faults.mutations import as_json, changes, edits, with_changes, with_edits

SCHEMA = """
rows = 400
privacy_unit = "one row"
missing = ["", "?"]
unit = "patient"
max_rows_per_unit = 3
[reading]
delimiter = ","
[target]
column = "label"
classes = ["no", "yes"]
[columns.x]
kind = "number"
lower = -3
upper = 3.5
steps = [0, 1, 2.5]
[columns.when]
kind = "date"
format = "%Y-%m-%d"
lower = "2000-01-01"
upper = "2020-12-31"
[columns.kind]
kind = "category"
values = ["red", "green", 3]
[columns.image]
kind = "array"
shape = [2, 3]
lower = 0
upper = 255
[columns.note]
kind = "text"
"""
CELLS = ("1", "-1e308", "1e308", "5e-324", "2004-02-29", "red", "no", "?", "", "\x00")
NUMBERS = np.array([0, 1, -1, 3e38, -3e38, 1e-45, np.nan, np.inf, -np.inf, 7], dtype=np.float32)


def toml(tree, name=""):
    """TOML text of plain values, wrong ones included; what is ``None`` is left out."""
    tree = {key: value for key, value in tree.items() if value is not None}
    inner = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines = [f"{text(key)} = {text(value)}" for key, value in tree.items() if key not in inner]
    head = [f"[{name}]"] if name else []
    return "\n".join([*head, *lines, *(toml(v, f"{name}.{text(k)}".lstrip(".")) for k, v in inner.items())])


def text(value):
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- schema --------------------------------------------------------------------------------------------------------


def check_schema(schema):
    """Written again it reads as the same, and what it declares in full makes finite numbers of any cell."""
    assert Schema.from_dict(schema.to_dict()) == schema
    if schema.target is not None and not schema.target.complete:
        schema = msgspec.structs.replace(schema, target=None)
    encoder = make_encoder(schema, columns=[name for name, spec in schema.columns.items() if spec.complete])
    assert Encoder.from_dict(encoder.to_dict()) == encoder
    check_encoder(encoder)


def check_encoder(encoder):
    arrays = {piece.column: piece.shape for piece in encoder.pieces if isinstance(piece, ArrayPiece)}
    columns = {name: TextColumn.of(CELLS) for name in ("any", *encoder.columns())}
    for name, shape in arrays.items():
        rows = NUMBERS.reshape(-1, *[1] * len(shape))
        columns[name] = ArrayColumn(np.broadcast_to(rows, (len(CELLS), *shape)))
    found = encoder.encode(Table(columns))
    assert found.features.shape == (len(CELLS), encoder.num_features)
    assert found.features.isfinite().all()
    assert found.target is None or found.target.isfinite().all()


@fuzz(60)
@given(chosen=edits)
def test_schema_bytes(tmp_path_factory, outcomes, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "schema.toml"
    path.write_bytes(with_edits(SCHEMA.encode(), chosen))
    found = outcomes.of(lambda: Schema.load(path), ValueError)
    if found is not None:
        check_schema(found)
        assert Schema.loads(toml(found.to_dict())) == found


@fuzz(100)
@given(chosen=changes)
def test_schema_values(outcomes, chosen):
    tree = with_changes(Schema.loads(SCHEMA).to_dict(), chosen)
    found = outcomes.of(lambda: Schema.from_dict(tree), ValueError)
    if found is not None:
        check_schema(found)
    read = outcomes.of(lambda: Schema.loads(toml(tree)), ValueError)
    assert None in (found, read) or read == found


# --- config --------------------------------------------------------------------------------------------------------

CONFIG = TableSettings(
    data="a.csv", output="run", epsilon=1.0, delta=1e-5, target="y", columns=("a", "y"), drop=("z",), lr=0.5, rows=100
)


def check_config(found):
    assert TableSettings.from_dict(found.to_dict()) == found
    assert TableSettings.from_toml(found.to_toml()) == found


@fuzz(60)
@given(chosen=edits)
def test_config_bytes(outcomes, chosen):
    words = with_edits(CONFIG.to_toml().encode(), chosen).decode("utf-8", "replace")
    found = outcomes.of(lambda: TableSettings.from_toml(words), ValueError)
    if found is not None:
        check_config(found)


@fuzz(100)
@given(chosen=changes)
def test_config_values(outcomes, chosen):
    tree = with_changes(CONFIG.to_dict(), chosen)
    found = outcomes.of(lambda: TableSettings.from_dict(tree), ValueError)
    if found is not None:
        check_config(found)
    read = outcomes.of(lambda: TableSettings.from_toml(toml(tree)), ValueError)
    assert None in (found, read) or read == found


@pytest.mark.parametrize("words", ["a = " + "[" * 5000, "a" + ".a" * 5000 + " = 1", "a = " + "9" * 5000, "[[a]]\n" * 9])
def test_toml_that_is_deep_or_long(words):
    for read in (Schema.loads, TableSettings.from_toml):
        with pytest.raises(ValueError) as caught:
            read(words)
        one_line(caught.value)


# --- encoder -------------------------------------------------------------------------------------------------------

ENCODER = make_encoder(Schema.loads(SCHEMA)).to_dict()


@fuzz(60)
@given(chosen=edits)
@example(chosen=[("token", 0, 0, 8)])  # a line break before it all, which is surely read
@example(chosen=[("token", 0, 1, 4)])  # nested too deeply
def test_encoder_bytes(tmp_path_factory, outcomes, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "encoder.json"
    path.write_bytes(with_edits(as_json(ENCODER), chosen))
    check_written_encoder(path, outcomes.of(lambda: Encoder.load(path), ValueError))


@fuzz(200)
@given(chosen=changes)
def test_encoder_values(tmp_path_factory, outcomes, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "encoder.json"
    path.write_bytes(as_json(with_changes(ENCODER, chosen)))
    check_written_encoder(path, outcomes.of(lambda: Encoder.load(path), ValueError))


def check_written_encoder(path, found):
    if found is not None:
        found.save(path)
        assert Encoder.load(path) == found
        check_encoder(found)
