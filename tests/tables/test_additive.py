"""The additive model: bins of which one is on, a bound on residuals, filtered steps, and refusals in words."""

import dataclasses
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import tacita
from tacita.random import Randomness
from tacita.tables import Schema, Survey, TableSettings, Target, check_run, train_table
from tacita.tables.additive import FIRST, RESIDUAL, SIGMAS, FilteredSteps, binned_columns, masses, row_weight
from tacita.tables.dry_run import plan_in_words
from tacita.tables.encoder_rules import ROWS_PER_BIN, make_additive_encoder
from tacita.tables.features import BinsPiece
from tacita.tables.models import ModelSpec, loss_fn
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.refinement import bounds
from tacita.tables.survey import Bin, Facts
from tacita.tables.table import NumberColumn, Table, TextColumn

ROWS = 8000.0
DYADIC = (
    Bin(0.0, 0.0, 5000.0),
    Bin(1.0, 2.0, 1000.0),
    Bin(2.0, 4.0, 1980.0),
    Bin(4.0, 8.0, 0.0),
    Bin(64.0, 128.0, 20.0),
)


def fine_of(dyadic):
    """The counts of 64 bins between the bounds, as the refinement would have counted the rows of the dyadic bins."""
    marks = np.linspace(*bounds(dyadic), 65)
    values = np.concatenate([np.linspace(b.lower, b.upper, int(b.count), endpoint=False) for b in dyadic])
    counts = np.bincount(np.searchsorted(marks[1:-1], values, side="right"), minlength=64)
    return tuple(
        Bin(*edges, float(n)) for *edges, n in zip(marks[:-1].tolist(), marks[1:].tolist(), counts, strict=True) if n
    )


X = Facts(column="x", kind="number", missing=200.0, bins=DYADIC, fine=fine_of(DYADIC))
KIND = Facts(column="kind", kind="category", missing=0.0, values=(("a", 3000.0), ("b", 4000.0)))
YES = Facts(column="y", kind="category", missing=0.0, values=(("no", 6000.0), ("yes", 2000.0)))
FARES = Facts(column="y", kind="number", missing=0.0, bins=(Bin(0.0, 0.0, 7000.0), Bin(8.0, 16.0, 1000.0)))
NUMBER = Facts(column="y", kind="number", missing=0.0, bins=(Bin(-2.0, -1.0, 4000.0), Bin(1.0, 2.0, 4000.0)))


def made(target=YES, *columns):
    survey = Survey(rows=ROWS, columns=(*(columns or (X, KIND)), target), noise_std=5.0, threshold=60.0)
    schema = Schema(target=Target(column="y"))
    encoder = make_additive_encoder(schema, survey, columns=[one.column for one in survey.columns[:-1]])
    return Preprocessing(encoder=encoder, survey=survey, model=ModelSpec.of("additive", None, encoder), rows=ROWS)


def steps(model, preprocessing, noise_std=1e-3, queries=27, sample_rate=1.0):
    weight = row_weight(preprocessing.encoder, 2.0)
    settings = {"queries": queries, "sample_rate": sample_rate, "noise_std": noise_std, "weight": weight}
    return FilteredSteps(model, preprocessing, **settings)


def test_every_row_switches_on_one_feature_a_column():
    """What the bound on residuals rests on, for any cell: zero, missing, text, infinite, far, unknown."""
    cells = ["0", "", "word", "1e300", "-1e300", "1e-300", "nan", "inf", "3.5", "100", "-0"]
    table = Table({"x": TextColumn.of(cells), "kind": TextColumn.of([*("a", "b", "c", ""), *["a"] * 7])})
    features = made().encoder.encode(table, with_target=False).features
    assert set(features.unique().tolist()) == {0.0, 1.0}
    assert features.sum(1).tolist() == [2.0] * len(cells)
    numbers = NumberColumn(np.array([0.0, np.nan, 2.0**-31, 3.0]))
    piece = made().encoder.pieces[0]
    names = [piece.names[i] for i in piece.encode(numbers, ()).argmax(1)]
    assert (names[0], names[1], names[2]) == ("x = 0", "x is missing", "x = 0")
    assert "in bin" in names[3]


@pytest.mark.parametrize(("target", "task"), [(YES, "classification"), (NUMBER, "regression")])
def test_clipping_starts_where_the_residual_is_at_its_bound(target, task):
    preprocessing = made(target)
    model, row = ModelSpec.of("additive", None, preprocessing.encoder).build(), torch.zeros(1, 0)
    table = Table({"x": TextColumn.of(["3"]), "kind": TextColumn.of(["a"])})
    row = preprocessing.encoder.encode(table, with_target=False).features
    residual = RESIDUAL[task]  # of a constant model: p - 1/2 of two classes, or minus the target
    label = torch.tensor([1]) if task == "classification" else torch.tensor([residual])
    weight = torch.tensor([row_weight(preprocessing.encoder, 2.0)])
    loss_fn(task)(model, (row, label, weight)).sum().backward()
    norm = sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5
    assert norm == pytest.approx(2.0, rel=1e-6)


def test_masses_are_those_that_were_bought():
    """Zero has its own, the fine bin that holds it the rest; the tail is in the dyadic bins beyond the bounds."""
    (column, category) = binned_columns(made())
    piece = made().encoder.pieces[0]
    assert isinstance(piece, BinsPiece)
    bought = (column.rows - 0.002 * ROWS) / 0.9
    assert bought[-2:].tolist() == [5000.0, 200.0]
    assert bought[0] == pytest.approx(
        58.0, abs=1
    )  # those of its last fine bin, below 1, without the zeros of its first
    assert bought[np.searchsorted(piece.edges, 100.0, side="right")] == pytest.approx(20.0)
    assert bought.sum() == pytest.approx(8200.0, abs=5)  # a fine bin that straddles 1 or 2 is split evenly
    assert (column.rows > 0).all()
    assert ((category.rows - 0.002 * ROWS) / 0.9).tolist() == pytest.approx([3000.0, 4000.0, 1000.0])


def test_what_noise_cut_of_the_fine_bins_is_known_from_the_dyadic_one():
    """A tail of few rows a fine bin: without mass its weights would not move, however many rows it has."""
    fine = tuple(bin for bin in X.fine if bin.upper < 3 or bin.lower > 3.9)  # the end bin counted the far tail, too
    piece = BinsPiece(column="x", edges=(1.0, 2.0, 3.0, 3.5, 4.0))
    for known in (X.fine, fine, ()):
        found = masses(piece, msgspec.structs.replace(X, fine=known))
        assert found[:-2].sum() == pytest.approx(3000, abs=5)
        assert found[[1, 2, 3, 4]] == pytest.approx([1000, 990, 495, 495], abs=25)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target", [YES, FARES])
@pytest.mark.parametrize("fine", [False, True])
def test_a_column_of_zeros_has_one_bin_beside_zero(fine, target):
    zeros = (Bin(0.0, 0.0, 900.0),)
    facts = Facts(column="x", kind="number", missing=7.0, bins=zeros, fine=(Bin(*bounds(zeros), 905.0),) * fine)
    piece = make_additive_encoder(
        Schema(target=Target(column="y")),
        Survey(rows=ROWS, columns=(facts, target), noise_std=5.0, threshold=60.0),
        columns=["x"],
    ).pieces[0]
    assert isinstance(piece, BinsPiece)
    assert piece.edges == ()
    assert masses(piece, facts).tolist() == [5.0 * fine, 900.0, 7.0]


def test_fine_bins_are_joined_until_they_bear_the_noise():
    """But not across a dyadic edge: a tail of few rows may have the largest effect."""

    def edges(total_mu):
        survey = Survey(rows=ROWS, columns=(X, KIND, YES), noise_std=5.0, threshold=60.0)
        schema = Schema(target=Target(column="y"))
        encoder = make_additive_encoder(schema, survey, columns=["x", "kind"], total_mu=total_mu)
        assert isinstance(encoder.pieces[0], BinsPiece)
        return np.array(encoder.pieces[0].edges)

    least = ROWS_PER_BIN * 3**0.5
    finest, joined = edges(least / 1), edges(least / 300)
    assert len(finest) > 40
    assert set(joined) <= set(finest)
    assert len(joined) == pytest.approx(3 + 6 + 3, abs=2)  # 1, 2, 4, then bins of 300 rows among 2,980
    for dyadic in (1.0, 2.0, 4.0, 8.0, 64.0):
        assert 0 <= (edges(1e-9) - dyadic)[edges(1e-9) >= dyadic].min() < (bounds(DYADIC)[1] - 0.0) / 64


@pytest.mark.parametrize(("scale", "far"), [("linear", 1000.0), ("linear", 7000.0), ("log", 1000.0)])
def test_tails_are_finer_where_a_skewed_target_is_trained_on(scale, far):
    """Its R2 is about the tails. A bin there still has 50 rows: fewer say little of rows to come."""
    dyadic = (Bin(8.0, 16.0, 7600.0), Bin(16.0, 32.0, 400.0))
    column = Facts(column="x", kind="number", missing=0.0, bins=dyadic, fine=fine_of(dyadic))
    target = Facts(column="y", kind="number", missing=0.0, bins=(Bin(1.0, 2.0, 8000 - far), Bin(16.0, 32.0, far)))
    survey = Survey(rows=ROWS, columns=(column, target), noise_std=5.0, threshold=60.0)
    schema = Schema(target=Target(column="y", task="regression", scale=scale))
    piece = make_additive_encoder(schema, survey, columns=["x"], total_mu=ROWS_PER_BIN * 2**0.5 / 380).pieces[0]
    assert isinstance(piece, BinsPiece)
    tail = masses(piece, column)[np.searchsorted(piece.edges, 16.5, side="right") : -2]
    finer = (scale, far) == ("linear", 1000.0)
    assert (5 <= len(tail) <= 8) if finer else len(tail) <= 2
    assert tail[:-1].min() >= 50 if finer else True


def residual_means(preprocessing, effect, rows, noise_std, draw):
    """A noisy mean gradient of a constant regression with this effect of each feature, as an oracle releases it."""
    factor = 2 * row_weight(preprocessing.encoder, 2.0)
    masses = np.concatenate([c.rows * rows / c.rows.sum() for c in binned_columns(preprocessing)])
    gradient = -factor * masses * effect / rows
    return torch.from_numpy(gradient + noise_std * draw.normal(size=len(effect)))


def test_a_column_of_nothing_stays_flat_and_a_real_one_is_found():
    preprocessing, flat, learned = made(NUMBER), 0, 0
    columns = binned_columns(preprocessing)
    width, noise = preprocessing.encoder.num_features, 2e-3
    effect = np.zeros(width)
    effect[columns[1].place] = (0.5, -0.5, 0.5)
    for seed in range(40):
        draw, model = np.random.default_rng(seed), preprocessing.model.build()
        optimizer = steps(model, preprocessing, noise_std=noise, queries=8)
        for _ in range(round(FIRST * 8)):
            model.weight.grad = residual_means(preprocessing, effect, 0.9 * ROWS, noise, draw)[None].float()
            model.bias.grad = torch.zeros(1)
            optimizer.step()
        chances = optimizer.state[model.weight]["sigma"]
        spread = chances @ torch.tensor(SIGMAS)
        flat += spread[0].item() < 0.05 and model.weight[:, columns[0].place].abs().max().item() < 0.05
        learned += chances[1, 0].item() < 0.01
        assert chances.sum(1).tolist() == pytest.approx([1.0, 1.0])
        assert model.weight.abs().max() < 2
    assert flat >= 36
    assert learned == 40


def test_no_gradient_no_move():
    preprocessing = made(NUMBER)
    model = preprocessing.model.build()
    optimizer = steps(model, preprocessing, noise_std=1e-4, queries=4)
    model.weight.grad, model.bias.grad = torch.zeros_like(model.weight), torch.zeros_like(model.bias)
    for _ in range(4):
        optimizer.step()
    assert not model.weight.any()
    assert not model.bias.any()


def test_the_constant_is_in_the_bias_alone():
    """It lies in every column: left there, steps would add it up over the columns."""
    preprocessing = made(NUMBER)
    model, draw = preprocessing.model.build(), torch.Generator().manual_seed(0)
    optimizer = steps(model, preprocessing, noise_std=1e-4, queries=4)
    model.weight.grad, model.bias.grad = 0.1 * torch.randn(model.weight.shape, generator=draw), torch.zeros(1)
    optimizer.step()  # chooses sigma, and moves
    columns, first = binned_columns(preprocessing), model.weight.detach().clone()
    assert (optimizer.state[model.weight]["sigma"][:, 0] < 1e-6).all()
    for column in columns:
        mean = np.average(first.numpy()[0, column.place], weights=column.rows)
        assert abs(mean) < 1e-3 * first[:, column.place].abs().max().item()
        model.weight.grad[:, column.place] = torch.from_numpy(0.3 * column.rows / column.rows.sum()).float()
    model.bias.grad = torch.full((1,), 0.3)
    for _ in range(3):
        optimizer.step()
    assert torch.allclose(model.weight, first, atol=1e-5)
    assert model.bias.item() < -0.01


def bumps(path, rows=3000, seed=0):
    """Labels that follow from |x| alone, which no line separates; z says nothing."""
    draw = np.random.default_rng(seed)
    x, z = draw.normal(size=rows), draw.normal(size=rows)
    path.write_text(
        "x,z,label\n" + "".join(f"{a:.4f},{b:.4f},{'yn'[int(abs(a) > 0.7)]}\n" for a, b in zip(x, z, strict=True))
    )


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bumps(tmp_path / "bumps.csv")
    return TableSettings(data="bumps.csv", output="run", target="label", epsilon=3.0, delta=1e-5, model="additive")


def test_it_learns_what_no_line_can_and_says_what_it_did(asked):
    run = train_table(asked)
    model = tacita.load("run")
    found = model.predict({"x": [0.0, 1.5, -1.5], "z": [0.0, 2.0, -2.0]})
    assert found.tolist() == ["y", "n", "n"]
    assert run.fields["model"] == "additive"
    assert run.fields["planned_queries"] == run.fields["queries_made"] == 27
    assert run.fields["epsilon"] <= 3.0
    assert any(words.startswith("steps = filtered") for words in run.fields["chosen_by_tacita"])
    assert check_run("run").faults == ()
    first, second = model.shapes()
    assert (first.column, second.column) == ("x", "z")
    assert first.importance > 4 * second.importance


DIRECTIONS = "[columns.x]\nkind = 'number'\nmonotone = {!r}\n[columns.z]\nkind = 'number'\nmonotone = 'down'\n"


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("target", [{"classes": ("n", "y")}, {"target": "size", "task": "regression"}])
def test_a_declared_direction_is_kept_for_any_two_cells(asked, up, target):
    """In the noise, against the data, and across zero, which has a bin of its own."""
    Path("schema.toml").write_text(DIRECTIONS.format("up" if up else "down"))
    lines = Path("bumps.csv").read_text().splitlines()
    sizes = [f"{abs(float(line.split(',')[0])):.3f}" for line in lines[1:]]
    Path("bumps.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(lines, ["size", *sizes], strict=True)))
    drop = ("label",) if "target" in target else ("size",)
    train_table(dataclasses.replace(asked, schema="schema.toml", drop=drop, **target))
    cells = [-1e9, -3.0, *np.linspace(-2, -0.01, 50), -1e-300, 0.0, 1e-300, *np.linspace(0.01, 2, 50), 3.0, 1e9]
    model, rest = tacita.load("run"), np.zeros(len(cells))
    for column, rises in (("x", up), ("z", False)):
        frame = {"x": rest, "z": rest} | {column: np.array(cells)}
        found = model.predict_proba(frame)[:, 1] if "classes" in target else model.predict(frame).astype(float)
        steps = np.diff(found)
        assert (steps >= -1e-6).all() if rises else (steps <= 1e-6).all()
    assert model.shapes()[0].importance > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "linear", "classes": ("n", "y")}, "monotone of column 'x' belongs to model = additive"),
        ({}, r"needs a regression .* or two classes as given"),
        ({"classes": ("n", "y", "q")}, r"needs a regression .* or two classes as given"),
    ],
)
def test_a_direction_that_no_model_can_keep_is_refused(asked, change, message):
    Path("schema.toml").write_text(DIRECTIONS.format("up"))
    with pytest.raises(ValueError, match=message):
        train_table(dataclasses.replace(asked, schema="schema.toml", **change))
    assert not Path("run").exists()


@pytest.mark.parametrize("more", [{}, {"hardened": True}, {"sample_rate": 0.3, "queries": 40}])
def test_killed_in_between_it_goes_on_to_the_same_bits(asked, monkeypatch, more):
    asked, fsync, count = dataclasses.replace(asked, **more), os.fsync, [0]

    def until(number):
        def counting(handle):
            count[0] += 1
            if count[0] == number:
                raise KeyboardInterrupt
            fsync(handle)

        count[0] = 0
        monkeypatch.setattr(os, "fsync", counting)

    until(0)
    train_table(dataclasses.replace(asked, output="whole"), randomness=Randomness.insecure(0))
    total, whole = count[0], Path("whole/model.safetensors").read_bytes()
    for number in (total // 3, total // 2, 4 * total // 5):
        again = dataclasses.replace(asked, output=f"killed{number}")
        until(number)
        with pytest.raises(KeyboardInterrupt):
            train_table(again, randomness=Randomness.insecure(0))
        until(0)
        train_table(again, randomness=Randomness.insecure(0))
        assert Path(again.output, "model.safetensors").read_bytes() == whole


def test_the_ledger_is_that_of_any_other_model_with_these_settings(asked):
    """The model is post-processing: what is registered and spent does not tell which one it was."""
    events = []
    for model in ("additive", "linear"):
        output = {"output": model, "model": model, "sample_rate": 0.5, "queries": 8, "max_grad_norm": 2.0}
        train_table(dataclasses.replace(asked, **output))
        lines = [json.loads(line) for line in Path(model, "ledger.jsonl").read_text().splitlines()]
        events.append([line["event"] for line in lines if "event" in line])
    assert events[0] == events[1]
    assert events[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.1}, "lr must go without model = additive"),
        ({"noise": "correlated"}, "noise must go without model = additive"),
        ({"balanced": True}, "balanced must go without model = additive"),
        ({"feedback": "bounded"}, "feedback must go without model = additive"),
        ({"sweep": "[grid]\nlr = [0.1]"}, "sweep must go without model = additive"),
        ({"model": "aditive"}, "additive"),
    ],
)
def test_what_it_has_no_place_for_is_refused_in_words(asked, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(asked, **change)


def test_declared_columns_and_grids_are_refused_before_anything_is_spent(asked):
    Path("schema.toml").write_text(
        "[columns.x]\nkind = 'number'\nlower = -3\nupper = 3\n[columns.z]\nkind = 'number'\n"
    )
    declared = dataclasses.replace(asked, schema="schema.toml")
    for ask in (train_table, plan_in_words):
        with pytest.raises(ValueError, match="additive needs bought bins of every column"):
            ask(declared)
    grid = dataclasses.replace(asked, model="linear", sweep="mean_runs = 2\n[grid]\nmodel = ['linear', 'additive']")
    with pytest.raises(ValueError, match="grid cannot have model = additive"):
        tacita.tables.sweep_table(grid)
    assert not Path("run").exists()
