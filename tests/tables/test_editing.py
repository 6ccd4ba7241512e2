"""Edited runs: the model says what was written, epsilon stays, the score is void, and every later change is found."""

import json
import os
import re
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tacita
from tacita.errors import TacitaError
from tacita.ledger.hash_chain import canonical, sha256
from tacita.report.run_numbers import RunNumbers
from tacita.report.run_page import report_page
from tacita.runs import SealedRun, sign_run, signatures
from tacita.tables import TableSettings, check_run, editing, train_table
from tacita.tables.editing import edit_run
from tacita.tables.shapes import cells_of, in_json, places_of
from tests.forked import exit_code
from tests.runs.second_verifier import asked, needs_node
from tests.runs.test_second_verifier import ABOUT, pem, public

WHO = {"who": "Ada Moreau", "reason": "no dip at 40"}
ROWS = 3000
DECLARED = """
reviewed = true
[columns.x]
kind = "number"
lower = -3
upper = 3
[columns.few]
kind = "category"
values = ["a", "2", "3"]
[columns.share]
kind = "number"
lower = 0
upper = 21
[columns.kind]
kind = "category"
"""
RUNS = {
    "linear": {},
    "additive": {"model": "additive"},
    "declared": {"schema": "declared.toml"},
    "regression": {"target": "size", "task": "regression", "drop": ("label",), "model": "additive"},
    "three classes": {"target": "kind", "drop": ("size",)},
    "exact": {"non_private_holdout": True},
}
COLUMNS = ("x", "few", "share", "kind")


def table_text() -> str:
    """A number with missing cells and zeros, one of few values with a text among them, one of few bins, a category."""
    draw = np.random.default_rng(0)
    x, few, kind = draw.normal(size=ROWS), draw.integers(0, 4, ROWS), draw.choice(["red", "green", "blue"], ROWS)
    share = draw.choice([0.0, 0.5, 20.0], ROWS, p=[0.6, 0.3, 0.1]) + draw.choice([0.0, 0.25], ROWS)
    risk = x + 0.5 * few + (kind == "red") + draw.normal(size=ROWS)
    lines = ["x,few,share,kind,size,label"]
    for row in range(ROWS):
        cell = "" if row % 10 == 0 else "0" if row % 10 == 1 else f"{x[row]:.4f}"
        texts = ["a", "none", "b"][few[row]] if few[row] < 2 and row % 2 else str(few[row])
        lines.append(
            f"{cell},{texts},{share[row]},{kind[row]},{abs(risk[row]):.3f},{'yes' if risk[row] > 1.2 else 'no'}"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of the runs, each trained once."""
    folder = tmp_path_factory.mktemp("editing")
    (folder / "table.csv").write_text(table_text())
    (folder / "declared.toml").write_text(DECLARED)
    for name, changes in RUNS.items():
        quick = {"target": "label", "epsilon": 8.0, "delta": 1e-5, "drop": ("size",), "queries": 12, "about": ABOUT}
        quick |= changes | {"data": str(folder / "table.csv"), "output": str(folder / name)}
        quick |= {"schema": str(folder / "declared.toml")} if "schema" in quick else {}
        train_table(TableSettings(**quick))
    return folder


@pytest.fixture
def edit(folder, tmp_path):
    """Edit a run with new values of one column, or of all cells by a function of the old ones; the new folder."""
    numbers = count()

    def edit(run="linear", column="x", change=lambda values: values * 2, **changes):
        shape = tacita.load(folder / run).shape(column)
        given = json.loads(in_json(shape))
        after = change(np.array(shape.values))
        for cell, values in zip(given["cells"], after, strict=True):
            cell["values"] = np.array(values).tolist()
        new = tmp_path / f"edited{next(numbers)}"
        edit_run(folder / run, new, {column: json.dumps(given).encode()}, **{**WHO, **changes})
        return new

    return edit


def probes(model, column):
    """A raw text in each cell of a column."""
    pieces = [piece for piece, _ in places_of(model.encoder)[column]]
    cells = cells_of(model.preprocessing, pieces)
    found = []
    for word, (low, high) in zip(cells.words, cells.bounds.tolist(), strict=True):
        if np.isnan(low):
            found.append("" if word == "missing" else "zzz" if word == "other" else word)
        elif low == high:
            found.append(
                word if word in (name for piece in pieces for name in getattr(piece, "values", ())) else repr(low)
            )
        else:
            found.append(repr(high - 1 if np.isinf(low) else low + 1 if np.isinf(high) else (low + high) / 2))
    return found


def added(model, column, texts):
    """What a column adds to each output at raw cells, less that at the first of them, by predictions alone."""
    frame = {name: ["0.5"] * len(texts) for name in model.encoder.columns(with_target=False)} | {column: texts}
    if model.encoder.task == "regression":
        found = np.asarray(model.predict(frame), dtype=float)[:, None]
    else:
        logs = np.log(model.predict_proba(frame))
        found = logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs - logs.mean(1, keepdims=True)
    return found - found[0]


CASES = [
    (run, column)
    for run in RUNS
    for column in COLUMNS
    if run != "exact" and not (run == "three classes" and column == "kind")
]


@pytest.mark.parametrize(("run", "column"), CASES)
def test_the_model_adds_in_each_cell_what_its_shape_says(folder, edit, run, column):
    """Of the trained model, and of the edited one, whose other shapes stay as they were."""
    trained = tacita.load(folder / run)
    cells, before = probes(trained, column), np.array(trained.shape(column).values)
    assert added(trained, column, cells) == pytest.approx(before - before[0], abs=2e-4)
    wanted = np.random.default_rng(1).normal(size=before.shape)
    wanted -= wanted.mean(1, keepdims=True) * (before.shape[1] > 1)  # equal to all classes says nothing
    edited = tacita.load(edit(run, column, lambda values: wanted))
    assert np.array(edited.shape(column).values) == pytest.approx(wanted)
    assert added(edited, column, cells) == pytest.approx(wanted - wanted[0], abs=2e-4)
    for one, other in zip(
        sorted(trained.shapes(), key=lambda shape: shape.column),
        sorted(edited.shapes(), key=lambda shape: shape.column),
        strict=True,
    ):
        assert one == other or one.column == column
        assert (one.cells, one.rows) == (other.cells, other.rows)


NUMBERS = [(run, "x") for run in ("linear", "additive", "declared", "regression")]


@pytest.mark.parametrize(("run", "column"), [*NUMBERS, ("linear", "share"), ("declared", "share")])
def test_what_no_cell_holds_has_the_value_of_a_neighbour_or_its_own(folder, edit, run, column):
    """A shape that rises from cell to cell makes predictions that rise from any number to any other."""
    rises = lambda values: np.arange(values.size, dtype=float).reshape(values.shape)  # noqa: E731
    edited = tacita.load(edit(run, column, rises))
    wild = np.sort(np.concatenate([np.linspace(-30, 30, 301), [-1e9, 0.0, 1e-300, 1e9]]))
    found = added(edited, column, [f"{x:.17g}" for x in wild])
    assert (np.diff(found[:, 0]) >= -1e-4).all()
    assert np.ptp(found[:, 0]) > 1
    if "missing" not in edited.shape(column).cells:
        texts = ["", "never seen"]
        assert added(edited, column, texts) == pytest.approx(added(tacita.load(folder / run), column, texts), abs=1e-4)


def test_a_value_that_is_left_as_it_was_shown_keeps_all_its_digits(folder, edit):
    shown = lambda values: [[7.0 if place == 3 else float(f"{x:.6g}")] for place, (x,) in enumerate(values)]  # noqa: E731
    (one,) = SealedRun.intact(edit(change=shown)).edits
    assert one.differences()["x"].startswith("1 of ")
    before = tacita.load(folder / "linear").shape("x").values
    assert [cell.after for cell in one.shapes["x"]] == [*before[:3], (7.0,), *before[4:]]


@pytest.mark.parametrize("run", ["linear", "exact"])
def test_epsilon_stays_and_the_score_is_void(folder, edit, tacita_command, run):
    new = edit(run)
    old, fields = (SealedRun.intact(one).fields for one in (folder / run, new))
    same = (
        "epsilon",
        "delta",
        "verdict",
        "attack_accuracy",
        "gdp_mu",
        "sessions",
        "privacy_unit",
        "ledger_sha256",
        "run",
    )
    assert [fields[name] for name in same] == [old[name] for name in same]
    assert fields["holdout_score"]["value"] is None
    assert any("no score bought for it" in one for one in fields["verdict_warnings"])
    score = f"{old['holdout_score']['value']:.3f}"
    said = {
        name: tacita_command(*name.split(), str(new)).out
        for name in ("statement", "show", "show --json", "card", "list")
    }
    said["report"] = re.sub(r"(?s)<svg.*?</svg>", "", report_page([RunNumbers.of(new)]))
    before = {
        name: tacita_command(*name.split(), str(folder / run)).out for name in ("statement", "show", "card", "list")
    }
    assert all(score in words for words in before.values())
    for name, words in said.items():
        shown = words if name != "list" else words.split(new.name)[1].split("parent")[0]
        assert (
            "it was edited, and no score bought for it since" in " ".join(shown.replace("─", "").split())
            or name == "list"
        )
        assert "Ada Moreau" in words or name == "list"
        score_alone = " ".join(part for part in shown.split("(of the model before the edit)")[::2])
        assert score not in score_alone, name
    assert ("EXACT SCORE" in said["statement"]) == (run == "exact")  # it is published still, in parent/
    assert not RunNumbers.of(new).verdict.good
    assert tacita_command("verify", str(new), "--public-key", str(folder / "declared.toml")).code == 2


def test_an_edit_of_an_edit(folder, edit, tmp_path, tacita_command):
    first = edit(change=lambda values: values + 1)
    given = json.loads(in_json(tacita.load(first).shape("kind")))
    given["cells"][0]["values"] = [9.0]
    edit_run(first, tmp_path / "second", {"kind": json.dumps(given).encode()}, who="Bo", reason="a test")
    model = tacita.load(tmp_path / "second")
    assert model.shape("kind").values[0] == (9.0,)
    assert model.shape("x") == tacita.load(first).shape("x")
    one, two = SealedRun.intact(tmp_path / "second").edits
    assert (one.who, two.who) == ("Ada Moreau", "Bo")
    assert one.prev == sha256((folder / "linear" / "ledger.jsonl").read_bytes().splitlines()[-1])
    assert two.prev == sha256((first / "edits.jsonl").read_bytes().splitlines()[-1])
    words = " ".join(tacita_command("statement", str(tmp_path / "second")).out.split())
    assert "by Ada Moreau on" in words
    assert "by Bo on" in words
    predicted = tacita_command("predict", str(tmp_path / "second"), str(folder / "table.csv"))
    assert predicted.code == 0
    assert "EDITED after the training" in predicted.err
    assert "EDITED" in tacita_command("explain", str(tmp_path / "second")).out
    assert {path.name for path in (tmp_path / "second").iterdir()} == {"parent", "edits.jsonl"}
    assert check_run(tmp_path / "second" / "parent").faults == check_run(first).faults == ()


def test_what_an_audit_found_goes_along(folder, tmp_path, tacita_command):
    """An edit does not make a refuted run private."""
    shutil.copytree(folder / "linear", tmp_path / "run")
    page = report_page([RunNumbers.of(_edited(tmp_path / "run", tmp_path / "before"))])
    assert "None lay beside the run when it was edited." in page
    stated = SealedRun(tmp_path / "run").fields
    at = {"delta": 1e-11, "epsilon_claimed": 9.0, "epsilon_lower_bound": 9.5, "largest_possible_lower_bound": 10.0}
    audit = {"verdict": "refuted", "verdict_at": at, "epsilon_claimed": 8.0, "epsilon_lower_bound": 8.75, "delta": 1e-5}
    audit |= {"confidence": 0.95, "correct_guesses": 70, "guesses": 100, "canaries": 1000, "adversary": "planted"}
    audit |= {"epsilon_of_the_audit": 8.0}
    about = {name: stated[name] for name in ("neighboring_relation", "privacy_unit")}
    (tmp_path / "run-audit").mkdir()
    (tmp_path / "run-audit" / "audit.json").write_text(json.dumps({**about, "audit": audit}))
    again = _edited(_edited(tmp_path / "run", tmp_path / "first"), tmp_path / "second")
    for name in ("first", "second", "second/parent"):
        assert check_run(tmp_path / name).verdict.word == "refuted", name
    shutil.rmtree(tmp_path / "run-audit")
    assert "Of the run before the edit: REFUTED: epsilon is at least 8.75 " in report_page([RunNumbers.of(again)])
    assert "verdict     refuted" in tacita_command("show", str(again)).out


def _edited(run, new):
    """Edit a run so that its first shape is twice what it is."""
    given = json.loads(in_json(tacita.load(run).shape("x")))
    for cell in given["cells"]:
        cell["values"] = [2 * value for value in cell["values"]]
    edit_run(run, new, {"x": json.dumps(given).encode()}, **WHO)
    return new


# --- tampering ------------------------------------------------------------------------------------------------------


def _line(new, keep_digest=True, **changes):
    """Change fields of the last edit; a forger writes its hash anew."""
    *lines, last = (new / "edits.jsonl").read_bytes().splitlines()
    fields = {**json.loads(last), **changes}
    if not keep_digest:
        fields["sha256"] = sha256(canonical({name: value for name, value in fields.items() if name != "sha256"}))
    (new / "edits.jsonl").write_bytes(b"".join(line + b"\n" for line in [*lines, canonical(fields)]))


def _shapes(new):
    return json.loads((new / "edits.jsonl").read_bytes().splitlines()[-1])["shapes"]


def _value(new, **forging):
    shapes = _shapes(new)
    shapes["x"][0]["after"] = [3.5]
    _line(new, shapes=shapes, **forging)


def _before(new):
    shapes = _shapes(new)
    shapes["x"][0]["before"] = [3.5]
    _line(new, keep_digest=False, shapes=shapes)


def _cell(new, **values):
    _line(new, keep_digest=False, shapes=_shapes(new) | {"kind": [{"cell": "a", **values}]})


def _append(path, data):
    path.write_bytes(path.read_bytes() + data)


TAMPERED = {
    "a value": _value,
    "who": lambda new: _line(new, who="Somebody else"),
    "why": lambda new: _line(new, reason="another"),
    "the day": lambda new: _line(new, date="2020-01-01"),
    "no day, forged": lambda new: _line(new, keep_digest=False, date="yesterday"),
    "nobody, forged": lambda new: _line(new, keep_digest=False, who=" "),
    "no shapes, forged": lambda new: _line(new, keep_digest=False, shapes={}),
    "no cells, forged": lambda new: _line(new, keep_digest=False, shapes={"x": []}),
    "of another run, forged": lambda new: _line(new, keep_digest=False, prev="0" * 64),
    "another place, forged": lambda new: _line(new, keep_digest=False, seq=3),
    "another kind, forged": lambda new: _line(new, keep_digest=False, kind="query"),
    "a field more, forged": lambda new: _line(new, keep_digest=False, more=1),
    "an integer, forged": lambda new: _cell(new, before=[1], after=[2]),
    "another number of values, forged": lambda new: _cell(new, before=[1.0], after=[]),
    "the line cut": lambda new: (new / "edits.jsonl").write_bytes((new / "edits.jsonl").read_bytes()[:-1]),
    "the line twice": lambda new: _append(new / "edits.jsonl", (new / "edits.jsonl").read_bytes()),
    "a torn line": lambda new: _append(new / "edits.jsonl", b'{"v":1'),
    "no line": lambda new: (new / "edits.jsonl").write_bytes(b""),
    "no edits": lambda new: (new / "edits.jsonl").unlink(),
    "a statement beside it": lambda new: shutil.copy(new / "parent" / "statement.json", new),
    "a model beside it": lambda new: shutil.copy(new / "parent" / "model.safetensors", new),
    "the parent's weights": lambda new: (new / "parent" / "model.safetensors").write_bytes(b"x"),
    "the parent's seal": lambda new: (new / "parent" / "ledger.jsonl").write_bytes(
        b"".join((new / "parent" / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:-1])
    ),
    "the parent's epsilon": lambda new: (new / "parent" / "statement.json").write_text(
        json.dumps({**json.loads((new / "parent" / "statement.json").read_text()), "epsilon": 0.1})
    ),
    "the parent's ledger gone": lambda new: (new / "parent" / "ledger.jsonl").unlink(),
    "no parent": lambda new: shutil.rmtree(new / "parent"),
}  # fmt: skip
UNFIT = {  # forged, and so found by whoever has the model
    "other values before": _before,
    "an unknown column": lambda new: _line(new, keep_digest=False, shapes={"y": _shapes(new)["x"]}),
    "a cell less": lambda new: _line(new, keep_digest=False, shapes={"x": _shapes(new)["x"][1:]}),
    "a cell of another name": lambda new: _line(
        new, keep_digest=False, shapes={"x": [{**_shapes(new)["x"][0], "cell": "a"}, *_shapes(new)["x"][1:]]}
    ),
    "a value too large": lambda new: _line(
        new, keep_digest=False, shapes={"x": [{**_shapes(new)["x"][0], "after": [1e30]}, *_shapes(new)["x"][1:]]}
    ),
}


def faults_of(new):
    try:
        return check_run(new).faults
    except TacitaError as error:
        return (str(error),)


@pytest.fixture(scope="module")
def tampered(folder, tmp_path_factory):
    """A folder for each tampering, and one as it was."""
    root = tmp_path_factory.mktemp("tampered")
    shape = json.loads(in_json(tacita.load(folder / "linear").shape("x")))
    shape["cells"][2]["values"] = [1.0]
    edit_run(folder / "linear", root / "whole", {"x": json.dumps(shape).encode()}, **WHO)
    for name, change in (TAMPERED | UNFIT).items():
        shutil.copytree(root / "whole", root / name)
        change(root / name)
    return root


def test_what_was_changed_is_not_loaded(tampered):
    tacita.load(tampered / "whole")
    for name in (*TAMPERED, *UNFIT):
        with pytest.raises(TacitaError):
            raise AssertionError(name, tacita.load(tampered / name))


@pytest.mark.parametrize("name", [*TAMPERED, *UNFIT], ids=lambda name: name.replace(" ", "_"))
def test_what_was_changed_is_found(tampered, name, tacita_command):
    answered = tacita_command("statement", str(tampered / name))
    assert answered.code in (1, 2)
    assert "TAMPERED" in answered.err or "holds no finished run" in answered.err
    score = SealedRun.intact(tampered / "whole" / "parent").stated["holdout_score"]["value"]
    assert f"accuracy: {score:.3f}" not in answered.out


@pytest.mark.parametrize("name", ["a value", "the parent's epsilon", "a value too large", "no edits"])
@pytest.mark.parametrize("command", ["show", "card", "report -o {}/page.html", "sign --key {}/none --signer Ada"])
def test_no_view_of_what_was_changed_is_good(tampered, name, command, tacita_command):
    answered = tacita_command(*command.format(tampered).split(), str(tampered / name))
    assert answered.code in (1, 2)
    assert "internal error" not in answered.err


@needs_node
def test_the_second_verifier_finds_it_too(tampered):
    codes = asked([[tampered / name] for name in ["whole", *UNFIT, *TAMPERED]])
    assert [code for code, _ in codes] == [0] * (1 + len(UNFIT)) + [1] * len(TAMPERED)
    assert "edited by Ada Moreau" in codes[0][1]


# --- signatures -----------------------------------------------------------------------------------------------------

OFFICER = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)


@needs_node
def test_a_signature_covers_the_edits(folder, edit, tmp_path, tacita_command):
    (tmp_path / "officer.pub").write_bytes(public(OFFICER))
    new = edit()
    sign_run(new, pem(OFFICER), signer="Ada")
    verify = ("--public-key", str(tmp_path / "officer.pub"))
    said = tacita_command("verify", str(new), *verify)
    assert said.code == 0, said.err
    assert "signed by Ada" in said.out
    assert "it was edited, and no score bought for it since" in said.out
    _value(new, keep_digest=False)  # the forger's hash fits
    assert faults_of(new) == ()
    assert tacita_command("verify", str(new), *verify).code == 1
    signed = edit()
    sign_run(signed, pem(OFFICER), signer="Ada")
    given = json.loads(in_json(tacita.load(signed).shape("kind")))
    given["cells"][0]["values"] = [9.0]
    edit_run(signed, tmp_path / "more", {"kind": json.dumps(given).encode()}, **WHO)
    assert signatures(tmp_path / "more") == ()
    shutil.copy(signed / "signatures.jsonl", tmp_path / "more")
    with pytest.raises(TacitaError, match="a signature of another ledger"):
        signatures(tmp_path / "more")
    plain = tmp_path / "plain"
    shutil.copytree(folder / "linear", plain)
    shutil.copy(signed / "signatures.jsonl", plain)  # of the edited model, not of this one
    calls = [[signed, tmp_path / "officer.pub"], [new], [tmp_path / "more"], [plain]]
    assert [code for code, _ in asked(calls)] == [0, 1, 1, 1]


def test_the_parents_signature_goes_along(folder, tmp_path):
    shutil.copytree(folder / "linear", tmp_path / "run")
    sign_run(tmp_path / "run", pem(OFFICER), signer="Ada")
    (tmp_path / "run" / "predictions.csv").write_text("of persons")
    given = json.loads(in_json(tacita.load(tmp_path / "run").shape("x")))
    given["cells"][0]["values"] = [9.0]
    edit_run(tmp_path / "run", tmp_path / "new", {"x": json.dumps(given).encode()}, **WHO)
    assert [one.signer for one in signatures(tmp_path / "new" / "parent")] == ["Ada"]
    assert not (tmp_path / "new" / "parent" / "predictions.csv").exists()  # nothing goes along but what was sealed


# --- what is refused ------------------------------------------------------------------------------------------------


def _given(change):
    def make(shape):
        change(shape)
        return json.dumps(shape)

    return make


def _set(*path, value):
    def change(shape):
        *places, last = path
        for place in places:
            shape = shape[place]
        shape[last] = value

    return _given(change)


VALUE = ("cells", 0, "values")
REFUSED = {
    "not JSON": (lambda shape: "{", "must be in a JSON file: Expecting property name"),
    "no text": (lambda shape: "\0\1", "must be in a JSON file"),
    "a list": (lambda shape: "[]", "must be in a file of one shape: Expected `object`, got `array`"),
    "deep": (lambda shape: "[" * 10**5, "must be in a"),
    "NaN": (_set(*VALUE, value=[float("nan")]), "must have finite values, got [nan]"),
    "infinity": (_set(*VALUE, value=[float("inf")]), "must have finite values, got [inf]"),
    "a text": (_set(*VALUE, value=["1"]), "Expected `float`, got `str` - at `$.cells[0].values[0]`"),
    "a null": (_set(*VALUE, value=[None]), "Expected `float`, got `null`"),
    "no value": (_set(*VALUE, value=[]), "must have 1 value."),
    "two values": (_set(*VALUE, value=[1, 2]), "must have 1 value."),
    "too large": (_set(*VALUE, value=[1e7]), "values of 'x' must be smaller: a weight would be "),
    "far too large": (_set(*VALUE, value=[1e300]), "values of 'x' must be smaller: a weight would be inf"),
    "an integer too large": (_set(*VALUE, value=[10**400]), "must"),
    "another column": (_set("column", value="kind"), "must be in a file of that column, got one of 'kind'"),
    "a cell less": (_given(lambda shape: shape["cells"].pop()), "the shape of 'x' must have its "),
    "another cell": (_set("cells", 0, "cell", value="up to 9"), "cell 1 of 'x' must be '"),
    "other order": (_given(lambda shape: shape["cells"].reverse()), "keep cells and order"),
    "a name misspelt": (_set("cells", 0, "valeus", value=[1.0]), "unknown field `valeus`"),
    "nothing changed": (_given(lambda shape: None), "the shape of 'x' is that of the run already"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name.replace(" ", "_"))
def test_one_line_says_what_is_wrong_with_a_file(folder, tmp_path, tacita_command, name):
    make, words = REFUSED[name]
    (tmp_path / "x.json").write_text(make(json.loads(in_json(tacita.load(folder / "linear").shape("x")))))
    answered = tacita_command("edit", str(folder / "linear"), "--output", str(tmp_path / "new"), "--shape", "x",
                              str(tmp_path / "x.json"), "--who", "Ada", "--reason", "a test")  # fmt: skip
    assert (answered.code, answered.out) == (2, "")
    assert answered.err.startswith("tacita: error: ")
    assert words in answered.err
    assert {path.name for path in tmp_path.iterdir()} == {"x.json"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--who": " "}, "who must be one line of text"),
        ({"--reason": "a\nb"}, "reason must be one line of text"),
        ({"--who": None}, "who is missing: give --who NAME, who edits."),
        ({"--shape": None}, "shape is missing: give --shape COLUMN FILE"),
        ({"--output": "."}, "output must be a new folder, got '.', which exists"),
        ({"--shape": ("z", "x.json")}, "column must be one that the model uses, got 'z': tacita explain lists them."),
        ({"--shape": ("label", "x.json")}, "column must be one that the model uses, got 'label'"),
        ({"--shape": ("gone", "x.json")}, "got 'gone': nothing about it stood out of the noise"),
        ({"--shape": ("x", "nowhere.json")}, "a file cannot be read or written: 'nowhere.json'"),
        ({"run": "nowhere"}, "there is no folder 'nowhere'"),
        ({"run": "net"}, "a shape belongs to a linear or additive model: this one is 'mlp'"),
    ],
)
def test_one_line_says_what_is_wrong_with_the_command(table, settings, tacita_command, changes, words):
    lines = table.read_text().splitlines()
    gone = [f"{line},{'gone' if place == 0 else f'id{place}'}" for place, line in enumerate(lines)]
    table.write_text("\n".join(gone) + "\n")
    run = changes.pop("run", "run")
    train_table(settings(**({"model": "mlp", "width": 3, "output": "net"} if run == "net" else {})))
    if run == "run":
        given = json.loads(in_json(tacita.load(run).shape("x")))
        given["cells"][0]["values"] = [9.0]
        Path("x.json").write_text(json.dumps(given))
    else:
        Path("x.json").write_text("{}")
    options = {"--output": "new", "--shape": ("x", "x.json"), "--who": "Ada", "--reason": "a test"} | changes
    typed = [word for name, value in options.items() if value is not None
             for word in (name, *([value] if isinstance(value, str) else value))]  # fmt: skip
    answered = tacita_command("edit", run, *typed)
    assert (answered.code, answered.out) == (2, "")
    assert words in answered.err
    assert not Path("new").exists()


def test_a_changed_run_is_not_edited(folder, tmp_path):
    shutil.copytree(folder / "linear", tmp_path / "run")
    data = in_json(tacita.load(tmp_path / "run").shape("x")).encode()
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(TacitaError, match=r"config.toml is not the file"):
        edit_run(tmp_path / "run", tmp_path / "new", {"x": data}, **WHO)


# --- kills ----------------------------------------------------------------------------------------------------------


def _killed(monkeypatch, step, work):
    """Do ``work`` in a process that dies before its ``step``-th change on disk; return whether it died."""
    numbers = count()

    def dying(change):
        def one(*arguments, **named):
            if next(numbers) == step:
                os._exit(9)
            return change(*arguments, **named)

        return one

    def child():
        monkeypatch.setattr(editing, "replace_durably", dying(editing.replace_durably))
        monkeypatch.setattr(Path, "rename", dying(Path.rename))
        work()

    return exit_code(child) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_leaves_nothing_that_loads_but_the_whole(folder, tmp_path, monkeypatch):
    given = json.loads(in_json(tacita.load(folder / "linear").shape("x")))
    given["cells"][0]["values"] = [9.0]
    work = lambda: edit_run(folder / "linear", tmp_path / "new", {"x": json.dumps(given).encode()}, **WHO)  # noqa: E731
    steps = 0
    while _killed(monkeypatch, steps, work):
        assert not (tmp_path / "new").exists()
        for left in tmp_path.iterdir():
            if (left / "edits.jsonl").exists():
                assert check_run(left).faults == ()  # written, and not yet under its name
            else:
                with pytest.raises(TacitaError, match="holds no finished run"):
                    tacita.load(left)
        steps += 1
    assert steps == len(list((folder / "linear").iterdir())) + 2
    assert check_run(tmp_path / "new").faults == ()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
