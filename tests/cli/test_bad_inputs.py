"""What people type and hand in by mistake: one line says what is wrong and what to do, and nothing is written or spent.

A test of the whole door: each line is a command as typed, and the beginning of what it answers.
"""

from pathlib import Path

import pytest

from tests.conftest import CLASSIFICATION, SCHEMA

FILES = {
    "empty.csv": b"",
    "twice.csv": b"x,x,label\n1,2,a\n",
    "unnamed.csv": b"x,,label\n1,2,a\n",
    "blank.csv": b"\n\n",
    "array.json": b'[{"x": 1, "label": "yes"}, {"x": 2, "label": "no"}]',
    "lines.json": b'{"x": 1, "label": "yes"}\n{"x": 2, "label": "no"}\n',
    "returns.csv": b"x,label\r1,yes\r2,no\r",
    "text.txt": b"hello",
    "d.parquet": b"PAR1xxxx",
    "p.npz": b"PKxx",
    "bad.toml": b"rows = \n",
    "unknown.toml": b"reviewed = true\nrow = 3\n",
    "draft.toml": b"reviewed = false" + SCHEMA.encode(),
    "kind.toml": CLASSIFICATION.replace("number", "numbr").encode(),
    "bounds.toml": CLASSIFICATION.replace("-3", "30").encode(),
    "full/a.txt": b"x",
}
PRICE = " --epsilon 1 --delta 1e-3 --output r"
TARGET = " --target label" + PRICE
LABEL = "train table.csv --target label"
TRAIN = LABEL + PRICE
SAYS = {
    "trian table.csv": 'Unknown command "trian"',
    "train": "data is missing: give the file after the command",
    "train table.csv": "epsilon is missing: give --epsilon, or set it in the config file.",
    "train missing.csv" + TARGET: "data must be a file that exists, got 'missing.csv'.",
    "train empty.csv" + TARGET: "data is empty: the file must have a header line with the columns' names",
    "train blank.csv" + TARGET: "the first line of data is empty: the file must have a header line",
    "train array.json" + TARGET: "data must be a CSV, got 'array.json', which begins as JSON does: write it as JSON l",
    "train lines.json" + TARGET: "data must be a CSV, got 'lines.json', which begins as JSON does",
    "train returns.csv" + TARGET: r"data must have lines that end in \n or \r\n, got 'returns.csv'",
    "train twice.csv" + TARGET: "Columns 1 and 2 have the same name in the first line of data",
    "train unnamed.csv" + TARGET: "Column 2 has no name in the first line of data",
    "train folder.csv" + TARGET: "data must be a file, got the folder 'folder.csv'.",
    "train text.txt" + TARGET: "The data have no column 'label'",
    "train d.parquet" + TARGET: "data must be a readable Parquet file, got 'd.parquet'.",
    "train p.npz" + TARGET: "data must be a readable NPZ file of arrays without objects",
    "train table.csv" + PRICE: "target is missing: give --target COLUMN",
    "train table.csv --target Label" + PRICE: "The data have no column 'Label'",
    "train table.csv --target nothing" + PRICE: "The data have no column 'nothing'",
    LABEL + " --delta 1e-3 --output r": "epsilon is missing: give --epsilon, or set it in the config file.",
    LABEL + " --epsilon 1 --output r": "delta is missing: give --delta, or set it in the config file.",
    LABEL + " --epsilon 1 --delta 1e-3": "output is missing: give --output, or set it in the config file.",
    LABEL + " --delta 1e-3 --output r --epsilon 0": "epsilon must be a finite number > 0, got 0.0.",
    LABEL + " --delta 1e-3 --output r --epsilon -1": "epsilon must be a finite number > 0, got -1.0.",
    LABEL + " --delta 1e-3 --output r --epsilon nan": "epsilon must be a finite number > 0, got nan.",
    LABEL + " --delta 1e-3 --output r --epsilon inf": "epsilon must be a finite number > 0, got inf.",
    LABEL + " --delta 1e-3 --output r --epsilon one": 'Invalid value for --epsilon: unable to convert "one" into flo',
    LABEL + " --epsilon 1 --output r --delta 0": "delta must be in (0, 1), got 0.0",
    LABEL + " --epsilon 1 --output r --delta 1": "delta must be in (0, 1), got 1.0",
    LABEL + " --epsilon 1 --output r --delta 0.1": "delta must be below 0.01, got 0.1",
    LABEL + " --epsilon 1 --delta 1e-3 --output full": "output must be a new or an empty folder",
    LABEL + " --epsilon 1 --delta 1e-3 --output table.csv": "output must be a new or an empty folder",
    TRAIN + " --drop nothing": "The data have no column 'nothing'",
    TRAIN + " --drop label": "drop must not hold the target 'label'",
    TRAIN + " --model forest": "model must be linear, additive",
    TRAIN + " --epsilonn 1": "Unknown option: --epsilonn. Did you mean --epsilon?",
    TRAIN + " --sample-rate 0": "sample_rate must be in (0, 1], got 0.0.",
    TRAIN + " --sample-rate 2": "sample_rate must be in (0, 1], got 2.0.",
    TRAIN + " --queries 0": "queries must be an integer >= 1, got 0.",
    TRAIN + " --queries 2.5": "Invalid value for --queries",
    TRAIN + " --queries many": "Invalid value for --queries",
    TRAIN + " --seed 1.5": "Invalid value for --seed",
    TRAIN + " --classes no": "classes must hold at least 2 distinct values, got ['no'].",
    TRAIN + " --task guess": 'Invalid value "guess" for --task',
    TRAIN + " --lr 0": "lr must be a finite number > 0, got 0.0.",
    TRAIN + " --max-grad-norm -1": "max_grad_norm must be a finite number > 0, got -1.0.",
    TRAIN + " --config missing.toml": "config must be a readable text file, got 'missing.toml'.",
    TRAIN + " --schema missing.toml": "schema must be a readable text file, got 'missing.toml'.",
    TRAIN + " --schema bad.toml": "schema 'bad.toml': The schema must be a TOML file",
    TRAIN + " --schema unknown.toml": "schema 'unknown.toml'",
    TRAIN + " --schema draft.toml": "schema 'draft.toml': reviewed must be true",
    TRAIN + " --schema kind.toml": "schema 'kind.toml': kind of column 'x' must be one of number",
    TRAIN + " --schema bounds.toml": "schema 'bounds.toml'",
    "predict": "run is missing: give the folder of a run",
    "predict full table.csv": "'full' holds no finished run",
    "predict full table.csv --output full/p.csv": "output must lie outside of what is read ('full'), got 'full/p.csv'.",
    "statement full": "'full' holds no finished run",
    "statement missing": "there is no folder 'missing': give that of a finished run.",
    "show missing": "'missing' holds no run: give the --output of a training.",
    "list missing": "folder must be a folder of runs, got 'missing'.",
    "report full": "output is missing: give --output FILE, the file to write.",
    "explain full": "'full' holds no finished run",
    "card full": "'full' holds no finished run",
    "verify full": "public_key is missing",
    "sign full": "key is missing: give --key FILE, your Ed25519 private key.",
    "check missing.csv": "data must be a file that exists, got 'missing.csv'.",
    "check empty.csv": "data is empty: the file must have a header line with the columns' names",
    "schema table.csv --output table.csv": "output must lie outside of what is read ('table.csv'), got 'table.csv'.",
    "schema missing.csv": "data must be a file that exists, got 'missing.csv'.",
    "schema d.parquet": "data must be a readable Parquet file, got 'd.parquet'.",
    "noise": "sample_rate is missing",
    "epsilon --noise-multiplier 0": "sample_rate is missing",
    "audit nothing": "name must be one of gaussian",
    "audit gaussian --seed 1.5": "Invalid value for --seed",
    "plan nothing": "epsilon is missing: give --epsilon NUMBER; it is never chosen for ",
    "finetune missing l.jsonl --epsilon 8 --delta 1e-6 --rows 1000 --output f": "DATA must be a file of JSON lines",
    "finetune missing l.jsonl --epsilon 8 --delta 1e-6 --rows 999.5 --output f": "Invalid value for --rows",
    "generate full --prompt x": "'full' holds no finished run",
    "generate full --prompt x --temperature -1": "temperature must be 0, or from 0.01 to 100, got -1.",
    "generate full --file x --output full/y": "output must lie outside of what is read ('full'), got 'full/y'.",
    "federate simulate missing.toml": "config must be a readable text file, got 'missing.toml'.",
}


@pytest.mark.parametrize("typed", SAYS)
def test_one_line_says_what_is_wrong(table, tacita_command, typed):
    for name, content in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    Path("folder.csv").mkdir()
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    answered = tacita_command(*typed.split())
    assert answered.code == 2
    assert answered.out == ""
    assert answered.err.startswith(f"tacita: error: {SAYS[typed]}")
    assert "Traceback" not in answered.err
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
