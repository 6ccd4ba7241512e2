"""What a run keeps of its settings: a resumed one is held to all of them, and the statement names data and base."""

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tacita
from tacita.finetune import base_model, text_run
from tacita.finetune.card import CAVEATS
from tacita.finetune.settings import CONFIG, Files, FinetuneSettings
from tacita.finetune.text_run import Prepared, finetune
from tacita.ledger.run_sections import data_in_words
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import data_fingerprint, run_id
from tacita.runs.sealed_run import file_sha256
from tests.finetune.toy import Model, Tokenizer, prepared

FIRST = {"train": "lora", "rows": 1000, "unit_field": "who", "rows_per_query": 1, "public_validation": "p.jsonl"}
OTHERS = {
    "unit_field": "person", "max_tokens": 8, "windows": 2, "cut": "end", "mask_prompt": False, "messages": False,
    "template": "t.jinja", "epsilon": 4.0, "delta": 1e-6, "rows": 2000, "rate": 0.1, "rows_per_query": 2,
    "privacy_unit": "one person", "hardened": True, "train": "full", "rank": 8, "alpha": 3.0, "targets": "q_proj",
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
def begun(base):
    """The settings that a run wrote down when it began."""
    return prepared(base, **FIRST).config().encode()


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
    with pytest.raises(tacita.ResumeError, match=r"MODEL is another one now \(model\.safetensors differs\)"):
        prepared(base, **FIRST).held_to(begun)


def test_the_public_texts_may_not_change(base):
    first = replace(prepared(base, **FIRST), public_sha256={"p.jsonl": "a" * 64})
    begun = first.config().encode()
    first.held_to(begun)
    for other in ({"p.jsonl": "b" * 64}, {}):
        with pytest.raises(tacita.ResumeError, match="the file of --public-validation is another one now"):
            replace(first, public_sha256=other).held_to(begun)


def test_a_run_that_has_lost_its_settings_is_not_continued(base, monkeypatch, tmp_path):
    """Else the statement would name the base and the settings of today."""
    data, output = tmp_path / "d.jsonl", tmp_path / "run"
    data.write_text('{"text": "a"}')
    monkeypatch.setattr(Prepared, "of", lambda files, settings: prepared(base, rows=1000, output=str(output)))
    settings = FinetuneSettings(epsilon=8.0, delta=1e-5, rows=1000, output=str(output))
    (output / "private").mkdir(parents=True)
    Randomness.system().save(RunFolder(output).key)
    (output / "ledger.jsonl").write_bytes(b"{}")
    with pytest.raises(tacita.ResumeError, match=r"private/config\.toml of the run in 'run' is missing: restore it"):
        finetune(Files(base, data), settings)


def test_a_public_record_without_a_target_does_not_count(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "a"}\n\n{"prompt": "x"}\n{"text": "b"}\n\n')
    found = text_run._public(prepared(tmp_path).encoder, str(path), tmp_path)
    assert len(found["labels"]) == len(found["input_ids"]) == 2
    path.write_text("\n\n")
    with pytest.raises(ValueError, match="public_validation holds no record that can be trained on"):
        text_run._public(prepared(tmp_path).encoder, str(path), tmp_path)


def test_a_model_is_tried_at_full_length_before_any_record(tmp_path):
    """Some number positions from another one than 0, and of tokens that are no padding alone."""
    made = prepared(tmp_path)

    class Short(Model):
        def forward(self, input_ids, attention_mask, use_cache):
            torch.arange(7)[(input_ids != 0).cumsum(1)]
            return super().forward(input_ids, attention_mask, use_cache)

    class Seeing(Model):
        def forward(self, input_ids, attention_mask, use_cache):
            found = super().forward(input_ids, attention_mask, use_cache)
            return SimpleNamespace(
                logits=(found.logits + 0.1 * found.logits.mean(1, keepdim=True)).index_fill(2, last, low)
            )

    last, low = torch.tensor([5]), -torch.inf  # as of a token that is never said
    text_run._try(made.model, made.encoder)
    assert made.model.training
    with pytest.raises(ValueError, match="MODEL sees later tokens"):
        text_run._try(Seeing(), made.encoder)
    narrow = Seeing().bfloat16()
    with pytest.raises(ValueError, match="MODEL sees later tokens"):
        text_run._try(narrow, made.encoder)
    with pytest.raises(ValueError, match=r"MODEL fails on records of 8 tokens \(index .*\): give a smaller"):
        text_run._try(Short(), made.encoder)


def test_what_is_of_an_adapter_goes_without_full(base):
    for changes in ({"dtype": "bfloat16"}, {"rank": 8}, {"alpha": 2.0}, {"targets": "q_proj"}):
        with pytest.raises(ValueError, match="are those of an adapter and its frozen base"):
            Files(base, base).check(FinetuneSettings(epsilon=8.0, delta=1e-5, train="full", **changes))


@pytest.mark.parametrize("link", [False, True])
def test_texts_and_key_that_lie_in_the_folder_of_the_model_are_refused(base, tmp_path, link):
    """A tokenizer publishes what it finds there, in its configuration, as a template, as words."""
    path = base / "special_tokens_map.json"
    if link:
        (tmp_path / "d.jsonl").write_text("{}")
        path.symlink_to(tmp_path / "d.jsonl")
        (base / "gone").symlink_to(tmp_path / "gone")
    else:
        path.write_text("{}")
    with pytest.raises(ValueError, match="DATA lies in MODEL"):
        Files(base, path.resolve()).check(FinetuneSettings(epsilon=8.0, delta=1e-5))
    (tmp_path / "texts.jsonl").write_text("{}")
    with pytest.raises(ValueError, match="fingerprint_key lies in MODEL"):
        Files(base, tmp_path / "texts.jsonl").check(
            FinetuneSettings(epsilon=8.0, delta=1e-5, fingerprint_key=str(path))
        )


@pytest.mark.parametrize("name", ["public_validation", "fingerprint_key"])
def test_neither_public_rows_nor_a_key_are_the_texts_themselves(name, base, tmp_path):
    """Whether another file is a copy of them is not looked at: that would tell of the rows."""
    (tmp_path / "d.jsonl").write_text("{}")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "d.jsonl")
    (tmp_path / "copy.jsonl").write_text("{}")
    for path in ("d.jsonl", "link.jsonl"):
        given = FinetuneSettings(epsilon=8.0, delta=1e-5, **{name: str(tmp_path / path)})
        with pytest.raises(ValueError, match=f"{name} is the file of DATA, too"):
            Files(base, tmp_path / "d.jsonl").check(given)
    copy = str(tmp_path / "copy.jsonl")
    given = FinetuneSettings(epsilon=8.0, delta=1e-5, public_validation=copy, fingerprint_key=copy)
    with pytest.raises(ValueError, match="fingerprint_key is the file of public_validation, too"):
        Files(base, tmp_path / "d.jsonl").check(given)
    given = FinetuneSettings(epsilon=8.0, delta=1e-5, **{name: str(tmp_path / "copy.jsonl")})
    Files(base, tmp_path / "d.jsonl").check(given)


def test_what_is_no_file_of_texts_is_refused_by_its_name(base, tmp_path):
    (tmp_path / "d.csv").write_text("text\n")
    (tmp_path / "d.jsonl").write_text("{}")
    for data, words in ((tmp_path / "d.csv", "got a .csv"), (base, "got the folder .*MODEL comes first")):
        with pytest.raises(ValueError, match=f"DATA must be .*{words}"):
            Files(base, data).check(FinetuneSettings(epsilon=8.0, delta=1e-5))
    with pytest.raises(ValueError, match="fingerprint_key must be a file of a secret key, such as: openssl"):
        Files(base, tmp_path / "d.jsonl").check(FinetuneSettings(epsilon=8.0, delta=1e-5, fingerprint_key="gone"))


def test_files_have_the_end_of_their_paths_alone(base):
    given = {"template": "/secret/t.jinja", "public_validation": "../secret/p.jsonl", "fingerprint_key": "/secret/k"}
    first = prepared(base, **given)
    assert "secret" not in first.config()
    first.held_to(first.config().encode())
    for name in given:
        with pytest.raises(tacita.ResumeError, match=f"--{name.replace('_', '-')} was .* and is other now"):
            prepared(base, **{**given, name: "/secret/other"}).held_to(first.config().encode())


@pytest.mark.parametrize(
    "typed",
    ["models/m", "/x/a/m", "../a/m", "a/../m", "m/b/..", "m"],
)
def test_a_base_is_named_without_the_folders_of_this_machine(typed):
    assert prepared(typed).base_name == "m"


def test_the_configuration_of_an_adapter_names_no_base(base, tmp_path, monkeypatch):
    """PEFT takes a name for a folder where it is opened, or for a model of the hub."""
    config = SimpleNamespace(base_model_name_or_path="m", target_modules={"v_proj", "q_proj"})
    monkeypatch.setattr("tacita.finetune.text_run.card", lambda *_: "the card")
    monkeypatch.setattr(Model, "peft_config", {"default": config}, raising=False)

    def save(own, folder, **_):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / base_model.ADAPTER).write_text(json.dumps({**vars(config), "init": {"cache": str(base)}}))

    monkeypatch.setattr(Model, "save_pretrained", save, False)
    monkeypatch.setattr(Tokenizer, "save_pretrained", lambda *_, **more: None, False)
    prepared(base, train="lora").export(SimpleNamespace(statement=SimpleNamespace(to_json=dict)), tmp_path)
    assert vars(config) == {"base_model_name_or_path": base_model.BY_HAND, "target_modules": ["q_proj", "v_proj"]}
    assert str(tmp_path) not in (tmp_path / CONFIG).read_text()
    (written,) = tmp_path.rglob(base_model.ADAPTER)
    assert json.loads(written.read_text()) == {**vars(config), "init": {"cache": base_model.BY_HAND}}


@pytest.mark.parametrize("kind", ["missing_keys", "mismatched_keys"])
def test_a_base_whose_files_lack_a_weight_is_refused(kind, base, monkeypatch):
    """transformers makes such a weight up at random, under the same hashes."""
    report = {"missing_keys": [], "mismatched_keys": []}
    causal = SimpleNamespace(from_pretrained=lambda *_, **__: (Model(), report))
    monkeypatch.setattr(base_model, "library", lambda _: SimpleNamespace(AutoModelForCausalLM=causal))
    assert isinstance(base_model.load_weights(base), Model)
    report[kind] = ["lm_head.weight"]
    with pytest.raises(ValueError, match=r"the weights of m lack lm_head\.weight \(1 in all\)"):
        base_model.load_weights(base)


def test_a_base_that_changes_while_it_is_opened_is_refused(base, monkeypatch):
    encoder, texts = prepared(base).encoder, base.parent / "d.jsonl"
    texts.write_text("{}")
    (base / "config.json").write_text("{}")

    def opened(folder, settings):
        (folder / "model.safetensors").write_bytes(b"other weights")
        model = Model()
        model.get_input_embeddings = lambda: SimpleNamespace(weight=model.table)
        return model

    monkeypatch.setattr("tacita.finetune.text_run.encoder_of", lambda *_: encoder)
    monkeypatch.setattr(base_model, "open_model", opened)
    files, settings = Files(base, texts), prepared(base).settings
    with pytest.raises(ValueError, match="MODEL was changed while it was opened"):
        Prepared.of(files, settings)
    assert Prepared.of(files, settings).base_sha256["model.safetensors"] == file_sha256(base / "model.safetensors")


def test_a_file_of_texts_that_changes_while_it_is_read_is_refused(base, tmp_path, monkeypatch):
    """Its fingerprint, of a later reading, would be that of a file that was never trained on."""
    texts, key = tmp_path / "d.jsonl", tmp_path / "k"
    texts.write_text('{"text": "a"}')
    key.write_bytes(bytes(32))
    run = prepared(base, fingerprint_key=str(key), output=str(tmp_path / "run"))

    def read(*given):
        texts.write_text('{"text": "b"}')
        return None, []

    monkeypatch.setattr(Prepared, "of", lambda *_: run)
    monkeypatch.setattr("tacita.finetune.text_run.encoded", read)
    with pytest.raises(ValueError, match="DATA was changed while it was read"):
        finetune(Files(base, texts), run.settings)


def test_the_records_that_are_held_out_are_not_trained_on():
    found = prepared(rows=1000, holdout=0.1, rate=0.5)
    assert (found.kept, found.batch) == (900, 450)
    assert prepared(rows=1000).kept == 1000


def test_the_statement_names_data_and_base(base, tmp_path):
    texts, key = tmp_path / "letters.jsonl", tmp_path / "data.key"
    texts.write_text("{}")
    key.write_bytes(bytes(32))
    (base / "consolidated.safetensors").write_bytes(b"not what is loaded")
    randomness = Randomness.insecure(1)
    found = prepared(base, fingerprint_key=str(key), rows=200).stated(texts, randomness)
    assert found == {
        "data_fingerprint": data_fingerprint(key, run_id(randomness), texts),
        "model": "all 4,144 weights, trained",
        "rows": {"value": 200, "how": "declared", "of": "records"},
        "base_model": {"name": "m", "sha256": {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}},
        "not_anonymised": [*CAVEATS],
        "text_template": "the tokenizer's own",
    }
    own = prepared(base, train="lora", rank=4, targets="q_proj,v_proj", messages=False).stated(texts, randomness)
    assert own["model"] == "LoRA adapter (rank 4, scale 8, q_proj,v_proj), 4,144 weights"
    assert own["text_template"] == "none, and records with messages contribute nothing"
    assert "data_fingerprint" not in own
    own = prepared(base, template="elsewhere/plain.jinja").stated(texts, randomness)
    assert own["text_template"] == "plain.jinja"


@pytest.mark.parametrize("given", [{}, {"unit_field": "patient"}, {"unit_field": "patient", "privacy_unit": "a child"}])
@pytest.mark.parametrize("rows", [None, 200])
def test_the_statement_says_whom_it_protects_and_how_many_were_declared(given, rows, base):
    own = prepared(base, **given, rows=rows)
    names = (given.get("privacy_unit") or "one person") + ": all records with the same 'patient'"
    assert own.settings.unit == (names if given else None)
    words = data_in_words(own.stated(base / "d.jsonl", Randomness.insecure(1)))
    what = "persons" if given else "records"
    assert words == (f"200 {what} (declared)." if rows else f"{what}, whose number is protected.")


def test_a_sealed_run_is_held_to_its_settings_before_it_is_tidied(base, tmp_path, monkeypatch):
    texts, output = tmp_path / "d.jsonl", tmp_path / "a"
    texts.write_text('{"text": "abc"}\n' * 20)

    def run(**changes):
        own = prepared(base, rate=0.25, dataset_name="d", output=str(output), **changes)
        monkeypatch.setattr(Prepared, "of", lambda *_: own)
        return finetune(Files(base, texts), own.settings, randomness=Randomness.insecure(1))

    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Prepared, "export", lambda own, _, folder: (folder / CONFIG).write_text(own.config()))
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    with pytest.raises(tacita.ResumeError, match=r"--epsilon was 8.0 and is 4.0 now"):
        run(epsilon=4.0)
    assert (output / "private").is_dir()
    assert run(physical_batch=3).fields["verdict"]
    assert not (output / "private").exists()
