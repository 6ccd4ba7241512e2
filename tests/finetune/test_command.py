"""What the command refuses before it reads a record, and what it says; no library is needed for that."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tacita
from tacita.cli.app import make_app, run
from tacita.cli.finetune import _check_of, generate
from tacita.finetune import TokenEncoder, base_model
from tacita.finetune.card import CAVEATS, card
from tacita.finetune.settings import Files, FinetuneSettings
from tacita.finetune.text_run import warmed_up
from tests.finetune.toy import Tokenizer

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
        ({"quantization_config": {}}, ["model.safetensors"], "quantised weights, which the engine cannot read"),
        ({"transformers_weights": "sub/model.safetensors"}, ["model.safetensors"], "names weights elsewhere"),
        ({"attn_implementation": "a/b"}, ["model.safetensors"], "chooses a kernel, which may be code"),
        ({"experts_implementation": "a/b"}, ["model.safetensors"], "chooses a kernel, which may be code"),
        ({"configuration_files": []}, ["model.safetensors"], "has a configuration for each version"),
        ({}, ["model.safetensors", "adapter_config.json"], "holds an adapter on another model"),
        ({}, ["model.safetensors", "tokenizer_config.json"], "tokenizer_config.json of MODEL cannot be read as JSON"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(config, names, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        base_model.check_folder(folder(tmp_path / "m", config, *names))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_code_of_a_models_own_is_refused_in_every_file_that_is_read_and_no_other_is(name, tmp_path):
    model = folder(tmp_path / "m", {}, "model.safetensors")
    (model / "letters.json").write_text('{"auto_map": "a secret"}\n{"text": "another"}')
    base_model.check_folder(model)
    (model / name).write_text('{"auto_map": {"AutoTokenizer": ["own.Words", null]}}')
    with pytest.raises(ValueError, match=rf"needs code of its own .*\({name}\)"):
        base_model.check_folder(model)


@pytest.mark.parametrize("name", ["sub/b.safetensors", "../b.safetensors", "gone.safetensors", "b.bin"])
def test_weights_lie_in_the_folder_itself(name, tmp_path):
    model = folder(tmp_path / "m", {}, "a.safetensors", "other.safetensors", "b.bin")
    for place in ("m/sub", "."):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "b.safetensors").write_bytes(b"x")
    index = {"weight_map": {"head": "a.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    base_model.check_folder(model)
    assert base_model.weights(model) == ["a.safetensors"]
    index["weight_map"]["body"] = name
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f"names '{name}', which is no safetensors file in that folder itself"):
        base_model.check_folder(model)


def test_every_rate_of_dropout_is_the_one_of_the_settings():
    given = {"hidden_dropout_prob": 0.1, "attn_pdrop": 0, "dropout": 0.1, "classifier_dropout": None}
    others = {"layerdrop": 0.0, "hidden_size": 8, "use_dropout": True}
    inner = SimpleNamespace(attention_dropout=0.3, to_dict=dict)
    config = SimpleNamespace(**given, **others, text_config=inner)
    base_model.set_dropout(config, 0.2)
    assert vars(config) == {**dict.fromkeys(given, 0.2), "classifier_dropout": None, **others, "text_config": inner}
    assert inner.attention_dropout == 0.2


def test_chat_templates_that_no_hash_covers_are_refused(tmp_path):
    model = folder(tmp_path / "m", {}, "model.safetensors")
    (model / "additional_chat_templates").mkdir()
    with pytest.raises(ValueError, match=r"additional_chat_templates/: take that folder out.*--template FILE"):
        base_model.check_folder(model)


def test_each_file_that_a_model_is_made_of_has_a_hash_and_no_other(tmp_path):
    """Texts that lie there have none, by which a guess of them could be tested."""
    others = ["chat_template.jinja", "tokenizer.model", "letters.txt", "letters.json", "old.safetensors"]
    model = folder(tmp_path / "m", {}, "model.safetensors", "generation_config.json", *others)
    assert base_model.hashes(model).keys() == {"model.safetensors", "config.json", "generation_config.json"}
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "old.safetensors"}}')
    made_of = {"old.safetensors", "config.json", "generation_config.json", "model.safetensors.index.json"}
    assert base_model.hashes(model).keys() == made_of


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
        ({"batch": -5.0}, "batch must be a finite number > 0"),
        ({"privacy_unit": "one\nperson"}, "privacy_unit must say in one line"),
        ({"template": "t.jinja", "messages": False}, "no-messages leaves them out: give one of them"),
    ],
)
def test_a_wrong_setting_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        FinetuneSettings(**{**GIVEN, **changes})


def test_epsilon_is_never_chosen(capsys):
    assert run(lambda: make_app()(["finetune", "m", "d.jsonl", "--delta", "1e-6"], result_action="return_value")) == 2
    assert "--epsilon" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "code"), [('{"text": "a"}', 0), ('{"txt": "a"}', 2), ("", 2)])
def test_a_file_of_which_nothing_can_be_trained_on_ends_with_an_error(line, code, tmp_path, monkeypatch, capsys):
    encoder = TokenEncoder(tokenizer=Tokenizer(), max_tokens=8)
    monkeypatch.setattr("tacita.finetune.looking.encoder_of", lambda *_: encoder)
    monkeypatch.setattr(base_model, "check_folder", lambda _: {})
    (tmp_path / "d.jsonl").write_text(line)
    command = ["check", str(tmp_path / "d.jsonl"), "--model", "m"]
    assert run(lambda: make_app()(command, result_action="return_value")) == code
    said = capsys.readouterr()
    assert said.out.startswith("NOT PRIVATE")
    assert ("no line that can be trained on" in said.err) == (code != 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--dry-run", "the plan needs rows"),
        ("--rows 1000 --template gone --dry-run", "template must be a file of a chat template, got 'gone'"),
        ("--rows 1000 --batch 960", "batch must be at most 950, the records (persons) of 1,000 that are not held"),
        ("--rows 1000 --output used", "output must be a new or an empty folder"),
    ],
)
def test_what_needs_no_model_is_refused_before_one_is_opened(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text('{"text": "a"}')
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "statement.json").write_text("{}")
    command = f"finetune gone d.jsonl --epsilon 8 --delta 1e-6 {options}".split()
    assert run(lambda: make_app()(command, result_action="return_value")) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_hint_names_the_same_options_of_texts():
    given = {"unit_field": "the patient", "messages": False, "windows": 2}
    words = _check_of(Files(Path("m"), Path("d.jsonl")), FinetuneSettings(**GIVEN, **given))
    assert words == "tacita check d.jsonl --model m --unit-field 'the patient' --windows 2 --no-messages"


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
    fields |= {"model": "all weights", "base_model": base, "text_template": "none", "not_anonymised": CAVEATS}
    fields |= {"sampler": "Poisson sampling, sample rate 0.02", "planned_queries": 250, "noise_multiplier": 0.75}
    fields |= {"attack_accuracy": 0.91, "ledger_sha256": "cd34"}
    score = {"measure": "loss", "value": 1.0, "interval": [0.5, 2.0], "how": "bought"}
    fields["holdout_score"] = score | {"before": {"value": 3.0, "interval": [2.5, 3.5]}}
    words = card(fields, FinetuneSettings(**GIVEN), "gpt2")
    for part in (
        "* Risk: An attacker ",
        "at most 91",
        "* Drawn by: Poisson sampling, sample rate 0.02.",
        "* Planned steps: 250.",
        "* Noise multiplier: 0.75.",
        "before its seal: cd34.",
        "e to the loss: 2.72 (1.64 to 7.39); of the base 20.09 (12.18 to 33.12).",  # outwards: e^0.5 = 1.6487
        "**private**: epsilon at most 7.25",
        "1e-06, add_or_remove_one, one letter",
        "* A caveat.",
        *(f"* {caveat}" for caveat in CAVEATS),
        "* Model: all weights; base gpt2 (SHA-256 of model.safetensors: ab12); template of conversations: none.",
        "* Data: letters.jsonl (the name that was given, or the file's).",
        "* Purpose: letters",
        'AutoModelForCausalLM.from_pretrained("PATH/gpt2", local_files_only=True)',
    ):
        assert part in words
    assert "base_model:" not in words  # which a hub would read as the name of a model there


@pytest.mark.parametrize("temperature", [-1.0, 1e-320, math.nan, math.inf, 1e300])
def test_a_temperature_at_which_nothing_can_be_drawn_is_refused(temperature, tmp_path):
    with pytest.raises(ValueError, match="temperature must be 0, or from"):
        generate(tmp_path, prompt="a", temperature=temperature)


def test_generate_refuses_no_tokens_and_its_own_prompts_as_output(tmp_path):
    with pytest.raises(ValueError, match="max_new_tokens must be >= 1"):
        generate(tmp_path / "run", prompt="a", max_new_tokens=0)
    (tmp_path / "q.jsonl").write_text("{}")
    with pytest.raises(ValueError, match="output must lie outside of what is read"):
        generate(tmp_path / "run", file=tmp_path / "q.jsonl", output=tmp_path / "." / "q.jsonl")
