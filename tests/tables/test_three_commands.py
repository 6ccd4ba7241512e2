"""schema, reviewed = true, train, predict: one path, for every kind of column and of file."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROWS = 240
FLAGS = ["--epsilon", "20", "--delta", "1e-3", "--sample-rate", "0.5", "--queries", "3", "--quiet"]


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS).round(3)
    return pd.DataFrame(
        {
            "uid": [f"u{i:05d}" for i in range(ROWS)],
            "note": [f"note {i % 60}" for i in range(ROWS)],
            "day": [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(ROWS)],
            "paid": [f"${1000 + i:,}.50" for i in range(ROWS)],
            "colour": rng.choice(["red", "green"], ROWS),
            "x": x,
            "label": np.where(x > 0, "yes", "no"),
        }
    )


def write_csv(path: Path) -> None:
    frame().to_csv(path, index=False)


def write_parquet(path: Path) -> None:
    frame().assign(day=pd.to_datetime(frame()["day"]), uid=range(ROWS)).set_index("note").to_parquet(path)


def write_npz(path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (ROWS, 2, 2), dtype=np.uint8)
    np.savez(path, image=image, depth=image.astype(np.float32), label=image[:, 0, 0] % 2)


WRITE = {"table.csv": write_csv, "table.parquet": write_parquet, "table.npz": write_npz}


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("target_in_draft", [True, False])
def test_schema_reviewed_train_predict(tmp_path, monkeypatch, tacita_command, name, target_in_draft):
    monkeypatch.chdir(tmp_path)
    WRITE[name](Path(name))
    drafted = tacita_command("schema", name, *(["--target", "label"] if target_in_draft else []))
    assert drafted.code == 0
    Path("schema.toml").write_text(drafted.out)
    target = [] if target_in_draft else ["--target", "label"]
    command = ["train", name, "--schema", "schema.toml", *target, *FLAGS, "--output", "run"]
    refused = tacita_command(*command)
    assert refused.code == 2
    assert "reviewed" in refused.err
    Path("schema.toml").write_text(drafted.out.replace("reviewed = false", "reviewed = true"))
    trained = tacita_command(*command)
    assert trained.code == 0, trained.err
    assert tacita_command("check", name, "--schema", "schema.toml").code == 0
    scored = tacita_command("predict", "run", name, "--output", "scored.csv")
    assert scored.code == 0, scored.err
    assert len(Path("scored.csv").read_text().splitlines()) == ROWS + 1


def test_the_draft_knows_every_kind(tmp_path, monkeypatch, tacita_command):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("table.csv"))
    drafted = tacita_command("schema", "table.csv", "--target", "label").out
    for column, kind in [
        ("uid", "identifier"), ("note", "text"), ("day", "date"), ("paid", "number"), ("colour", "category"),
        ("x", "number"),
    ]:  # fmt: skip
        assert f'[columns."{column}"]\nkind = "{kind}"' in drafted


def test_a_dropped_target_is_refused(tmp_path, monkeypatch, tacita_command):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("table.csv"))
    refused = tacita_command("train", "table.csv", "--target", "x", "--drop", "x", *FLAGS, "--output", "run")
    assert refused.code == 2
    assert "drop must not hold the target 'x'" in refused.err
    assert not Path("run").exists()


def test_a_dropped_column_may_stand_in_the_schema_or_not(tmp_path, monkeypatch, tacita_command):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("table.csv"))
    Path("schema.toml").write_text('[columns.uid]\nkind = "identifier"\n[columns.x]\nkind = "number"\n')
    command = ["train", "table.csv", "--schema", "schema.toml", "--target", "label", *FLAGS]
    assert tacita_command(*command, "--drop", "note,uid", "--output", "run").code == 0
    wrong = tacita_command(*command, "--drop", "nowhere", "--output", "other")
    assert wrong.code == 2
    assert "'nowhere'" in wrong.err


def odd_frame() -> pd.DataFrame:
    """Columns that are hard to tell: codes, days, shares, booleans, halves, constants, and one without a value."""
    rows = range(ROWS)
    return frame().assign(
        code=[f"{i:05d}" for i in rows],
        moment=[f"2024-05-01 {i % 24:02d}:{i % 60:02d}:00" for i in rows],
        share=[f"{i % 100}%" for i in rows],
        flag=[str(i % 2 == 0).lower() for i in rows],
        half=["?" if i % 3 == 0 else str(i) if i % 3 == 1 else "x" for i in rows],
        one="same",
        none="",
    )


@pytest.mark.parametrize("target", ["uid", "moment", "flag", "half", "none"])
def test_any_kind_of_column_may_be_the_target(tmp_path, monkeypatch, tacita_command, target):
    """Drafted as a column and named on the command line: of odd ones only a target without labels stops a training."""
    monkeypatch.chdir(tmp_path)
    odd_frame().to_csv("table.csv", index=False)
    drafted = tacita_command("schema", "table.csv")
    assert "\n# [target] " in drafted.out
    Path("schema.toml").write_text(drafted.out.replace("reviewed = false", "reviewed = true"))
    trained = tacita_command(
        "train", "table.csv", "--schema", "schema.toml", "--target", target, *FLAGS, "--output", "run"
    )
    if target in ("uid", "none"):
        assert trained.code == 2
        assert f"nothing to train on: no label stood out of the noise in column {target!r}" in trained.err
        return
    assert trained.code == 0, trained.err
    scored = tacita_command("predict", "run", "table.csv", "--output", "scored.csv")
    assert scored.code == 0, scored.err
