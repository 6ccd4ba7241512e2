"""What a run keeps of its settings: a resumed one is held to all of them, and the statement names data and base."""

import hashlib
from dataclasses import fields, replace

import pytest

import tacita
from tacita.finetune.settings import FinetuneSettings
from tacita.random import Randomness
from tacita.runs.run_facts import data_fingerprint, run_id
from tests.finetune.toy import prepared

FIRST = {"rows": 1000, "unit_field": "who", "rows_per_query": 1, "public_validation": "p.jsonl"}
OTHERS = {
    "unit_field": "person", "max_tokens": 8, "windows": 2, "cut": "end", "mask_prompt": False, "messages": False,
    "template": "t.jinja", "epsilon": 4.0, "delta": 1e-6, "rows": 2000, "rate": 0.1, "rows_per_query": 2,
    "privacy_unit": "one person", "hardened": "rounded", "train": "lora", "rank": 8, "alpha": 3.0, "targets": "q_proj",
    "loss": "sum", "epochs": 2.0, "batch": 99.0, "max_grad_norm": 1.0, "lr": 1e-4, "dropout": 0.1, "dtype": "bfloat16",
    "holdout": 0.1, "public_validation": "q.jsonl", "patience": 2, "dataset_name": "letters",
    "fingerprint_key": "k", "seed": 1,
}  # fmt: skip
FREE = {"output", "physical_batch"}  # where the run is, and memory alone


@pytest.fixture
def base(tmp_path):
    """A folder that looks like a model's."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "m" / "tokenizer.json").write_bytes(b"words")
    return tmp_path / "m"


@pytest.fixture
def begun(base, tmp_path):
    """The settings that a run wrote down when it began."""
    path = tmp_path / "config.toml"
    path.write_text(prepared(base, **FIRST).config())
    return path


def test_every_setting_has_another_value_here():
    assert OTHERS.keys() | FREE == {one.name for one in fields(FinetuneSettings)}


@pytest.mark.parametrize("name", OTHERS)
def test_a_resumed_run_is_held_to_every_setting(name, base, begun):
    first = prepared(base, **FIRST)
    first.held_to(begun)
    with pytest.raises(tacita.ResumeError, match=f"--{name.replace('_', '-')} was .* and is .* now"):
        replace(first, settings=replace(first.settings, **{name: OTHERS[name]})).held_to(begun)


def test_memory_may_change_and_the_base_may_not(base, begun):
    prepared(base, **FIRST, physical_batch=3).held_to(begun)
    (base / "model.safetensors").write_bytes(b"other")
    with pytest.raises(tacita.ResumeError, match="MODEL is another one now"):
        prepared(base, **FIRST).held_to(begun)


def test_the_statement_names_data_and_base(base, tmp_path):
    texts, key = tmp_path / "letters.jsonl", tmp_path / "data.key"
    texts.write_text("{}")
    key.write_bytes(bytes(32))
    randomness = Randomness.insecure(1)
    found = prepared(base, fingerprint_key=str(key)).stated(texts, randomness)
    assert found == {
        "data_fingerprint": data_fingerprint(key, run_id(randomness), texts),
        "model": "all 4,144 weights, trained",
        "base_model": {"name": "m", "sha256": {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}},
        "text_template": "the tokenizer's own",
    }
    own = prepared(base, train="lora", rank=4, targets="q_proj,v_proj", messages=False).stated(texts, randomness)
    assert own["model"] == "LoRA adapter (rank 4, scale 8, q_proj,v_proj), 4,144 weights"
    assert own["text_template"] == "none, and records with messages contribute nothing"
    assert "data_fingerprint" not in own
    own = prepared(base, template="elsewhere/plain.jinja").stated(texts, randomness)
    assert own["text_template"] == "plain.jinja"
