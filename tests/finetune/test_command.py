"""What the command refuses before it reads a record, and what it says; no library is needed for that."""

import json
import subprocess
import sys

import pytest

import tacita
from tacita.cli.app import make_app, run
from tacita.finetune import base_model
from tacita.finetune.card import card
from tacita.finetune.settings import FinetuneSettings
from tacita.finetune.text_run import warmed_up

GIVEN = {"epsilon": 8.0, "delta": 1e-6, "rows": 1000, "output": "runs/a"}


def folder(path, config, *names):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name in names:
        (path / name).write_bytes(b"x")
    return path


@pytest.mark.parametrize(
    ("config", "names", "words"),
    [
        ({}, ["pytorch_model.bin"], r"holds pickled weights \(pytorch_model.bin\): convert them to safetensors first"),
        ({}, [], "holds no weights"),
        ({"auto_map": {}}, ["model.safetensors"], "needs code of its own"),
        ({"quantization_config": {}}, ["model.safetensors"], "quantised weights cannot be read by the engine"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(config, names, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        base_model.check_folder(folder(tmp_path / "m", config, *names))


def test_nothing_is_fetched(tmp_path):
    with pytest.raises(ValueError, match="Nothing is fetched from a hub"):
        base_model.check_folder(tmp_path / "gpt2")


def test_the_length_is_public():
    assert base_model.length({"max_position_embeddings": 64}, None) == 64
    assert base_model.length({"n_positions": 1024}, None) == 512
    assert base_model.length({}, 700) == 700
    with pytest.raises(ValueError, match="max_tokens 4096 is above the model's 1024 positions: give at most 1024"):
        base_model.length({"n_positions": 1024}, 4096)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0}, "epsilon must be"),
        ({"delta": 0.01}, "delta must be below"),
        ({"delta": 1e-4, "rows": None}, r"give --rows, the number of records; without it 12,800 are assumed\.$"),
        ({"delta": 1e-3}, r"Choose a smaller one\.$"),
        ({"lr": -1.0}, "lr must be"),
        ({"rows": 0}, "rows must be"),
        ({"patience": 2}, "needs public_validation"),
        ({"rows_per_query": 2}, "needs unit_field"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_a_wrong_setting_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        FinetuneSettings(**{**GIVEN, **changes})


def test_epsilon_is_never_chosen(capsys):
    assert run(lambda: make_app()(["finetune", "m", "d.jsonl", "--delta", "1e-6"], result_action="return_value")) == 2
    assert "--epsilon" in capsys.readouterr().err


def test_without_the_library_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(tacita.TacitaError, match=r"pip install '\.\[transformers\]'"):
        base_model.library("transformers")


def test_the_help_needs_no_torch():
    code = "import sys; from tacita.cli import finetune; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_step_size_rises_and_falls():
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    schedule = warmed_up(optimizer, 100)
    seen = []
    for _ in range(100):
        seen.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert seen[4] == pytest.approx(2.0)
    assert seen[0] == pytest.approx(0.4)
    assert seen[5:] == sorted(seen[5:], reverse=True)
    assert 0 < seen[-1] < 0.03


def test_the_card_says_what_the_statement_says():
    fields = {"verdict": "private", "epsilon": 7.25, "delta": 1e-6, "privacy_unit": "one letter"}
    fields |= {"neighboring_relation": "add_or_remove_one", "caveats": ["A caveat."], "about": {"purpose": "letters"}}
    fields |= {
        "ledger_verified": True,
        "secure_randomness": True,
        "sessions": [{}],
        "dataset": {"name": "letters.jsonl", "other_runs": 0},
    }
    base = {"name": "gpt2", "sha256": {"model.safetensors": "ab12"}}
    fields |= {"model": "all weights", "base_model": base, "text_template": "none"}
    words = card(fields, FinetuneSettings(**GIVEN), "gpt2")
    for part in (
        "**private**: epsilon at most 7.25",
        "1e-06, add_or_remove_one, one letter",
        "* A caveat.",
        "* Model: all weights; base gpt2 (SHA-256 of model.safetensors: ab12); template of conversations: none.",
        "* Data: letters.jsonl (the name that was given, or the file's).",
        "* Purpose: letters",
        "base_model: gpt2",
    ):
        assert part in words
