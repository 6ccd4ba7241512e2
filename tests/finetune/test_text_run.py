"""From a model's folder and a file of texts to a sealed adapter that plain PEFT loads; killed, resumed, tampered."""

import functools
import html
import json
import math
import os
import re
import shutil
import signal
import socket
import warnings
from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import tacita
from tacita.cli import main
from tacita.cli.app import INTERRUPTED
from tacita.errors import UnsupportedModuleError
from tacita.finetune import (
    ChatTemplate,
    EncodedTexts,
    TokenEncoder,
    base_model,
    generation,
    looking,
    read_records,
    records,
    text_run,
)
from tacita.finetune.looking import check_texts, plan_in_words
from tacita.finetune.losses import scored_losses
from tacita.finetune.records import read_line
from tacita.finetune.settings import Files, FinetuneSettings, RecordSettings
from tacita.finetune.text_run import Prepared, finetune
from tacita.ledger.sections import APPENDIX
from tacita.ledger.statement_schema import check_statement
from tacita.ledger.verdict import verdict
from tacita.random import Randomness
from tacita.report.model_card import model_card
from tacita.report.run_numbers import RunNumbers
from tacita.report.run_page import report_page
from tacita.runs.checkpoint import load as checkpoint
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import data_fingerprint
from tacita.runs.sealed_run import file_sha256
from tacita.tables import check_run
from tacita.training.held_out_loss import HeldOutScore
from tests.forked import exit_code

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


TEMPLATE = (
    "{% for m in messages %}<|turn|>{{m['role']}}\n{{m['content']}}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
RECORDS = [
    {"text": "hello world"},
    {"prompt": "say a", "completion": "aaa"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "b"}]},
    3,
]


def tokenizer():
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    marks = ["<|end|>", "<|turn|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=270, initial_alphabet=letters, special_tokens=marks)
    made.train_from_iterator(["hello world"], trainer)
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")
    found.chat_template = TEMPLATE
    return found


def base(folder, seed=0, kind="llama"):
    torch.manual_seed(seed)
    words = tokenizer()
    size = {
        "llama": dict(intermediate_size=24, num_key_value_heads=2),
        "qwen3": dict(intermediate_size=24, num_key_value_heads=1, head_dim=8),
        "gpt2": {},
        "mamba": dict(state_size=4),
        "rwkv": dict(context_length=32, num_hidden_layers=2),
        "mixtral": dict(intermediate_size=24, num_key_value_heads=2, num_local_experts=4),
    }[kind]
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=32) | size
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(words), **size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words.save_pretrained(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a model ``m`` and texts of 20 persons; whoever opens a socket fails."""
    monkeypatch.chdir(tmp_path)
    base("m")
    lines = [
        json.dumps({**one, "who": row // 2} if isinstance(one, dict) else one) for row in range(10) for one in RECORDS
    ]
    Path("d.jsonl").write_text("\n".join(lines))

    def refused(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refused)
    return tmp_path


FILES = Files(Path("m"), Path("d.jsonl"), {"purpose": "to answer letters"})


def settings(output, seed=5, **changes):
    given = {"epsilon": 8.0, "delta": 1e-3, "rows": 40, "batch": 10.0, "epochs": 1.0, "output": output, "seed": seed}
    return FinetuneSettings(**{**given, **({} if changes.get("train") == "full" else {"rank": 2}), **changes})


def run(output, seed=5, **changes):
    return finetune(FILES, settings(output, seed, **changes))


def scores(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(10)[None]).logits


def test_records_that_are_encoded_together_are_encoded_as_alone(place):
    texts = ["hello world", "", " ", "\0", "<|end|>", "h\u0301", "\U0001f600", "\u202e" * 200, "a" * 10_000]
    given = [*RECORDS, *({"text": text} for text in texts), *({"prompt": text, "completion": "b"} for text in texts)]
    records = [read_line(json.dumps(one).encode()).record for one in given]
    encoder = Prepared.of(FILES, settings("a")).encoder
    assert encoder.encode(records) == [encoder.encode([one])[0] for one in records]


def test_generation_marks_are_those_of_transformers():
    words, messages = tokenizer(), [*RECORDS[2]["messages"], {"role": "user", "content": "c"}]
    messages.append({"role": "assistant", "content": "{% generation %}<|end|>\n d"})
    words.chat_template = (
        "\n{% for m in messages %}\n  <|turn|>{% if m.role == 'assistant' %}\n  {%- generation %}\n"
        "  {{ m.content | trim }}<|end|>\n  {%- endgeneration +%}\n{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    own = words.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    (found,) = TokenEncoder(tokenizer=words, max_tokens=512, chat=ChatTemplate(words)).encode(
        [read_line(json.dumps({"messages": messages}).encode()).record]
    )
    assert len(found.ids) > 30
    assert found.ids == own["input_ids"][: len(found.ids)]
    assert [*map(int, found.targets)] == own["assistant_masks"][: len(found.ids)]
    assert not any(own["assistant_masks"][len(found.ids) :])


@pytest.mark.parametrize("train", ["lora", "full"])
def test_what_was_trained_is_sealed_and_loads_in_its_own_library(train, place):
    run("a", train=train)
    assert not check_run("a").faults
    model, words = generation.load("a")
    if train == "lora":
        under = transformers.AutoModelForCausalLM.from_pretrained("m")
        own = peft.PeftModel.from_pretrained(under, "a/adapter")
    else:
        own = transformers.AutoModelForCausalLM.from_pretrained("a/model")
    assert torch.equal(scores(own.eval()), scores(model))
    assert not torch.equal(scores(model), scores(transformers.AutoModelForCausalLM.from_pretrained("m")))
    assert isinstance(generation.generate(model, words, "hello", max_new_tokens=3), str)
    kept = [path for path in Path("a").rglob("*") if path.is_file()]
    assert not any(str(place).encode() in path.read_bytes() for path in kept)
    assert {path.name for path in Path("a").iterdir()} == {
        "adapter" if train == "lora" else "model", "config.toml", "ledger.jsonl", "ledger.head.json", "statement.json",
        "statement.txt",
    }  # fmt: skip


def test_nobody_is_warned_of_what_peft_does_by_itself(place):
    base("m", kind="gpt2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run("a", messages=False)
        generation.load("a")


def test_no_loader_takes_another_base_for_the_one_of_the_adapter(place, monkeypatch):
    asked = []
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *given: asked.append(given))
    Path("owner").mkdir()
    Path("m").rename("owner/m")
    finetune(Files(Path("owner/m").absolute(), Path("d.jsonl")), settings("a"))
    assert not asked
    assert not any(b"owner" in path.read_bytes() for path in Path("a").rglob("*") if path.is_file())
    assert torch.equal(scores(generation.load("a")[0]), scores(generation.load("a", "owner/m")[0]))
    base("m", seed=1)
    for kind in (peft.AutoPeftModelForCausalLM, transformers.AutoModelForCausalLM):
        with pytest.raises(OSError, match=base_model.BY_HAND):
            kind.from_pretrained("a/adapter")
    with pytest.raises(tacita.TacitaError, match=r"differs from the one trained on \(model.safetensors\): give --base"):
        generation.load("a")
    card = Path("a/adapter/README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0]
    for written, here in (("PATH/m", "owner/m"), ('"./adapter"', '"./a/adapter"')):
        code = code.replace(written, here)
    exec(code, loaded := {})
    assert torch.equal(scores(loaded["model"].eval()), scores(generation.load("a", "owner/m")[0]))


def test_the_configuration_of_an_adapter_has_the_same_order_in_every_process(place):
    run("a")
    targets = json.loads(Path("a/adapter/adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)
    assert len(targets) > 3


@pytest.mark.parametrize(
    ("kind", "dtype", "train"),
    [("gpt2", "float32", "lora"), ("gpt2", "float32", "full"), ("gpt2", "bfloat16", "lora"),
     ("qwen3", "bfloat16", "lora"), ("qwen3", "float32", "full")],
)  # fmt: skip
def test_other_models_and_a_narrow_base(kind, dtype, train, place):
    base("m", kind=kind)
    run("a", train=train, dtype=dtype)
    model, _ = generation.load("a")
    trained = {name: p for name, p in model.named_parameters() if train == "full" or ".lora_" in name}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    frozen = {p.dtype for name, p in model.named_parameters() if name not in trained}
    assert frozen == (set() if train == "full" else {getattr(torch, dtype)})
    under = transformers.AutoModelForCausalLM.from_pretrained("m", dtype=getattr(torch, dtype))
    assert not torch.equal(scores(model), scores(under))


def test_every_file_of_the_adapter_is_under_the_seal(place):
    run("a")
    for path in [*Path("a/adapter").iterdir(), Path("a/config.toml")]:
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        assert check_run("a").faults, path.name
        with pytest.raises(tacita.TacitaError):
            generation.load("a")
        path.write_bytes(before)
    assert not check_run("a").faults


def test_who_signs_reads_which_data_and_which_base(place, monkeypatch):
    Path("data.key").write_bytes(bytes(range(32)))
    given = {"dataset_name": "ward letters", "fingerprint_key": "data.key"}

    def killed(self):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(HeldOutScore, "fields", killed)
        with pytest.raises(KilledError):
            run("a", **given)
    assert len(Path("tacita-runs.jsonl").read_text().splitlines()) == 1  # before it is finished
    found = run("a", **given)
    fields, digest = found.fields, file_sha256(Path("m/model.safetensors"))
    check_statement(fields)
    assert fields["data_fingerprint"] == data_fingerprint("data.key", fields["run"]["id"], "d.jsonl")
    assert fields["base_model"] == {"name": "m", "sha256": {"model.safetensors": digest}}
    page, _, _ = found.statement.partition(APPENDIX)
    card, report = Path("a/adapter/README.md").read_text(), report_page([RunNumbers.of("a")])
    model = model_card(fields, verdict(fields), "a").replace("\\", "")
    weights = sum(p.numel() for name, p in generation.load("a")[0].named_parameters() if ".lora_" in name)
    assert len(page) < len(found.statement)
    for view in (" ".join(page.split()), card, report, model):
        for part in ("ward letters", fields["data_fingerprint"], digest):
            assert part in view
        assert f"LoRA adapter (rank 2, scale 4, all-linear), {weights:,} weights; base m (" in view
        assert "template of conversations: the tokenizer's own" in html.unescape(view)
    assert fields["dataset"]["other_runs"] == 0
    other = run("b", seed=6, **given).fields
    assert other["data_fingerprint"] == data_fingerprint("data.key", other["run"]["id"], "d.jsonl")
    assert other["dataset"]["other_runs"] == 1
    assert not check_run("a").faults
    assert any("1 other run is recorded on the data set" in note for note in check_run("a").notes)
    stated = Path("a/statement.json").read_text()
    Path("a/statement.json").write_text(stated.replace('"ward letters"', '"public texts"'))
    assert check_run("a").faults


def test_a_key_that_is_too_short_is_refused_before_anything_is_spent(place):
    Path("data.key").write_bytes(b"short")
    with pytest.raises(ValueError, match="fingerprint_key must be a file of 32 random bytes"):
        run("a", fingerprint_key="data.key")
    assert not Path("a").exists()


def test_another_base_is_refused(place):
    run("a")
    base("other", seed=1)
    with pytest.raises(tacita.TacitaError, match=r"differs from the one trained on \(model.safetensors\): give --base"):
        generation.load("a", "other")
    Path("m").rename("moved")
    with pytest.raises(tacita.TacitaError, match="give its folder with --base"):
        generation.load("a")
    generation.load("a", "moved")


def test_what_is_hashed_is_what_is_loaded(place):
    under = transformers.AutoModelForCausalLM.from_pretrained("m")
    under.save_pretrained("shards", max_shard_size="10KB")
    index = Path("shards/model.safetensors.index.json")
    Path("m/model.safetensors").rename("m/decoy.safetensors")
    for path in Path("shards").glob("model*"):
        path.rename(Path("m", path.name))
    shards = sorted({*json.loads(Path("m", index.name).read_text())["weight_map"].values()})
    assert len(shards) > 1
    assert [*run("a").fields["base_model"]["sha256"]] == shards
    Path("m/sub").mkdir()
    for name in shards:
        Path("m", name).rename(Path("m/sub", name))
    inside = Path("m", index.name).read_text().replace('"model-', '"sub/model-')
    Path("m", index.name).write_text(inside)
    transformers.AutoModelForCausalLM.from_pretrained("m")  # reads them there
    for opened in (lambda: run("b"), lambda: check_texts("d.jsonl", "m", RecordSettings())):
        with pytest.raises(ValueError, match="which is no safetensors file in that folder itself"):
            opened()
    assert not Path("b").exists()


@pytest.mark.parametrize("train", ["lora", "full"])
def test_no_library_asks_whether_to_run_code(train, place, monkeypatch):
    asked = []
    for kind in (transformers.AutoConfig, transformers.AutoTokenizer, transformers.AutoModelForCausalLM):

        def opened(*given, real=kind.from_pretrained, **settings):
            asked.append(settings.get("trust_remote_code"))
            return real(*given, **settings)

        monkeypatch.setattr(kind, "from_pretrained", opened)
    run("a", train=train)
    trained = len(asked)
    generation.load("a")
    assert 0 < trained < len(asked)
    assert {*asked} == {False}


def test_no_published_file_has_the_folders_of_the_files_that_were_given(place):
    Path("secret").mkdir()
    Path("secret/k").write_bytes(bytes(32))
    Path("secret/t.jinja").write_text(TEMPLATE)
    Path("secret/p.jsonl").write_text(json.dumps(RECORDS[0]))
    own = settings("a", fingerprint_key="secret/k", template="secret/t.jinja", public_validation="secret/p.jsonl")
    finetune(Files(Path("secret/../m"), Path("d.jsonl")), own)
    for path in Path("a").rglob("*"):
        assert path.is_dir() or b"secret/" not in path.read_bytes(), path


class KilledError(Exception):
    """Stands for the end of the process."""


def killed_in(kind, method, monkeypatch, **changes):
    """Run "a" until ``method`` of ``kind`` is called."""

    def killed(self):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, killed)
        with pytest.raises(KilledError):
            run("a", **changes)


@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(after, place, monkeypatch):
    run("whole")
    step, made = torch.optim.AdamW.step, []

    def killed(self, *given):
        made.append(1)
        if len(made) > after:
            raise KilledError
        return step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", killed)
        with pytest.raises(KilledError):
            run("a")
    held, _ = checkpoint(RunFolder("a").checkpoint)
    assert all(".lora_" in name for name, value in held["model"].items() if value.numel() > 100)
    run("a")
    assert (
        Path("a/adapter/adapter_model.safetensors").read_bytes()
        == Path("whole/adapter/adapter_model.safetensors").read_bytes()
    )
    assert not Path("a/private").exists()


def test_a_run_that_was_sealed_is_tidied(place, monkeypatch):
    killed_in(RunFolder, "finish", monkeypatch)
    fields = run("a").fields
    assert fields["about"] == {"purpose": "to answer letters"}
    assert fields["dataset"]["name"] == "d.jsonl"
    assert not Path("a/private").exists()


def test_a_sealed_run_is_tidied_by_its_own_command_alone(place, monkeypatch):
    killed_in(RunFolder, "finish", monkeypatch)
    with pytest.raises(tacita.ResumeError, match=r"--epsilon was 8.0 and is 4.0 now"):
        run("a", epsilon=4.0)
    Path("m").rename("moved")
    with pytest.raises(ValueError, match="MODEL must be a folder"):
        run("a")
    base("m", seed=1)
    with pytest.raises(tacita.ResumeError, match=r"MODEL is another one now \(model\.safetensors differs\)"):
        run("a")
    assert Path("a/private").is_dir()


def test_a_sealed_run_of_another_kind_is_not_tidied(place, monkeypatch):
    killed_in(RunFolder, "finish", monkeypatch)
    monkeypatch.setattr("tacita.finetune.text_run.CONFIG", "settings.toml")  # which no run of this kind has
    with pytest.raises(tacita.TacitaError, match=r"settings.toml is not a file that its ledger was sealed with"):
        run("a")
    assert Path("a/private").is_dir()


def test_the_fingerprint_is_of_the_file_that_was_trained_on(place, monkeypatch):
    Path("data.key").write_bytes(bytes(range(32)))
    killed_in(HeldOutScore, "fields", monkeypatch, fingerprint_key="data.key")
    before = Path("d.jsonl").read_bytes()
    Path("d.jsonl").write_bytes(before + b"\n")  # the same tokens
    with pytest.raises(tacita.ResumeError, match="DATA, or the key of --fingerprint-key, is another file now"):
        run("a", fingerprint_key="data.key")
    Path("d.jsonl").write_bytes(before)
    fields = run("a", fingerprint_key="data.key").fields
    assert fields["data_fingerprint"] == data_fingerprint("data.key", fields["run"]["id"], "d.jsonl")


COMMAND = (
    "finetune m d.jsonl --epsilon 8 --delta 1e-3 --rows 40 --batch 10 --epochs 1 --rank 2 --seed 5 --quiet --output"
)


def command(*folder):
    """Run the command as the shell does, and return its exit code."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main([*COMMAND.split(), *folder])
    signal.signal(signal.SIGTERM, before)
    return ended.value.code


@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGINT, (torch.optim.AdamW, "step")),
        (signal.SIGTERM, (HeldOutScore, "fields")),
        (signal.SIGKILL, (torch.optim.AdamW, "step")),
        (signal.SIGKILL, (Prepared, "export")),
    ],
)
def test_a_command_that_is_stopped_goes_on_when_it_is_repeated(number, where, place, capfd):
    code = command("whole")

    def child():
        real = getattr(*where)

        def stopped(*given, **settings):
            found = real(*given, **settings)
            os.kill(os.getpid(), number)
            return found

        setattr(*where, stopped)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in what runs behind
        return command("a")

    ended = exit_code(child)
    assert capfd.readouterr().err.count("repeat the same") == (number != signal.SIGKILL)
    assert ended == (-number if number == signal.SIGKILL else INTERRUPTED)
    assert command("a") == code
    weights, cards = (
        [Path(run, "adapter", name).read_bytes() for run in ("a", "whole")]
        for name in ("adapter_model.safetensors", "README.md")
    )
    assert weights[0] == weights[1]
    own = [json.loads(Path(run, "statement.json").read_text())["ledger_sha256"].encode() for run in ("a", "whole")]
    assert cards[0].replace(own[0], own[1]) == cards[1]  # two runs have two ledgers
    assert not Path("a/private").exists()


@functools.cache
def whole():
    """What the command writes of a run that nobody kills, apart from the day and the names of the run."""
    command("whole")
    return written_by("whole")


def written_by(folder):
    fields = json.loads(Path(folder, "statement.json").read_text())
    adapter = {path.name: path.read_bytes() for path in Path(folder, "adapter").iterdir() if path.suffix != ".md"}
    return adapter, [fields[name] for name in ("epsilon_spent", "queries_made", "purchases", "holdout_score")]


@pytest.mark.parametrize("instant", range(1, 120, 6))
def test_a_command_that_is_killed_at_any_instant_goes_on_with_the_same_bits(instant, place):
    """An instant is before something reaches the disk: a whole run waits for that about 120 times."""
    expected = whole()

    def child():
        real, made = os.fsync, []

        def killing(file):
            made.append(file)
            if len(made) == instant:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(file)

        os.fsync = killing
        return command("a")

    assert exit_code(child) == -signal.SIGKILL
    command("a")
    assert written_by("a") == expected
    assert not Path("a/private").exists()


def test_windows_of_long_texts_are_trained_and_scored(place):
    lines = [json.dumps({"text": "hello world " * 9, "who": row // 2}) for row in range(40)]
    Path("d.jsonl").write_text("\n".join(lines))
    given = {"windows": 3, "max_tokens": 16}
    more = {"rows": None, "batch": None, "epochs": 0.1, "unit_field": "who", "rows_per_query": 2, "delta": 1e-5}
    found = run("a", **given, **more, epsilon=1e4, holdout=0.4)
    assert found.fields["holdout_score"]["value"] is not None
    config = Path("a/config.toml").read_text()
    assert all(line in config for line in ("rate = 0.02\n", "lr = 0.002\n", "alpha = 4\n"))
    assert not check_run("a").faults
    words = plan_in_words(Prepared.of(FILES, settings("c", **given)))
    assert words.startswith("4 steps of 10 records, as expected (rate 0.2632), 480 tokens each\n")
    words = plan_in_words(Prepared.of(FILES, settings("c", **given, epsilon=20.0)))
    assert words.startswith("CAUTION: epsilon promises next to nothing\n4 steps")


def test_persons_are_clipped_once(place, capsys):
    found = run("a", rows=5, batch=2.0, unit_field="who", delta=1e-3, epsilon=1e4, holdout=0.4)
    assert found.fields["privacy_unit"] == "one person: all records with the same 'who'"
    with pytest.raises(SystemExit):
        main(["show", "a"])
    for view in (found.statement, Path("a/adapter/README.md").read_text(), capsys.readouterr().out):
        assert "5 persons (declared)" in " ".join(view.split())
        assert "one person: all records with the same 'who'" in " ".join(view.split())
        assert not re.search(r"about \d+ rows", view)
    assert any("of a drawn user's rows each query draws 1 anew" in words for words in found.fields["chosen_by_tacita"])


@pytest.mark.parametrize("train", ["lora", "full"])
def test_the_score_is_bought_on_texts_that_were_held_out(train, place):
    found = run("a", epsilon=1e4, rows=30, train=train, holdout=0.4)
    rows = EncodedTexts(Prepared.of(FILES, settings("b")).encoder, place)
    rows.extend(read_records("d.jsonl"))
    own = np.asarray(tacita.split(rows, [0.6, 0.4], randomness=Randomness.insecure(5), name="holdout")[1].rows)
    batch, score = rows.fetch(own, 0), found.fields["holdout_score"]
    models = transformers.AutoModelForCausalLM.from_pretrained("m"), generation.load("a")[0]
    with torch.no_grad():
        before, after = (scored_losses(model.eval(), batch).nanmean().item() for model in models)
    assert (score["before"]["value"], score["value"]) == pytest.approx((before, after), abs=0.02)
    card = next(Path("a").glob("*/README.md")).read_text()
    assert f"Perplexity, e to the loss: {math.exp(score['value']):.2f} (" in card
    assert f"; of the base {math.exp(score['before']['value']):.2f} (" in card
    assert f"{found.fields['ledger_sha256']}.\n" in card
    assert not check_run("a").faults


def test_without_held_out_texts_no_score_is_bought(place):
    fields = run("a", holdout=0.0).fields
    assert fields["holdout_score"] is None
    assert [one["purpose"] for one in fields["sessions"]] == ["train"]


def test_a_model_that_no_program_serves_is_refused_in_words_of_the_command(place):
    base("rwkv", kind="rwkv")
    with pytest.raises(UnsupportedModuleError, match=r"MODEL cannot be trained: .* Choose another one") as refused:
        finetune(Files(Path("rwkv"), Path("d.jsonl")), settings("a", messages=False, max_tokens=16))
    assert "loop" not in str(refused.value)
    with pytest.raises(UnsupportedModuleError, match=r"MODEL cannot be trained: .* Choose another one"):
        plan_in_words(Prepared.of(Files(Path("rwkv"), Path("d.jsonl")), settings("a", messages=False, max_tokens=16)))


@pytest.mark.parametrize("given", [{}, {"targets": "q_proj,v_proj"}, {"targets": "gate"}, {"train": "full"}])
def test_a_mixture_of_experts_is_refused_before_there_is_a_folder(given, place):
    base("m", kind="mixtral")
    with pytest.raises(
        ValueError, match=r"a mixture of experts \(model\.layers\.0\.mlp\.experts\): .* without experts"
    ):
        run("a", **given)
    assert not Path("a").exists()


ADAPTERS = {
    "a prompt of the words of a text": lambda: peft.PromptTuningConfig(
        num_virtual_tokens=3, prompt_tuning_init="TEXT", prompt_tuning_init_text="hello", tokenizer_name_or_path="m",
        tokenizer_kwargs={"cache_dir": "/x/cache"}, task_type="CAUSAL_LM",
    ),
    "a prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "scales": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "LoRA by an expression": lambda: peft.LoraConfig(r=2, target_modules=r".*[qv]_proj", task_type="CAUSAL_LM"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_of_every_kind_are_trained_and_load(kind, place):
    def under():
        return transformers.AutoModelForCausalLM.from_pretrained("m")

    model = peft.get_peft_model(under(), ADAPTERS[kind]())
    before = scores(model.eval())
    ids = torch.arange(160).reshape(20, 8)
    tacita.fit(
        model.train(), tacita.finetune.sequence_losses(),
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids},
        num_records=20, target_epsilon=8.0, target_delta=1e-3, epochs=1, expected_batch_size=10, folder="a",
        publish="exported", progress=False,
        export=lambda run, folder: tacita.finetune.save_adapter(run.model, folder / "adapter"),
    )  # fmt: skip
    assert not check_run("a").faults
    given = json.loads(Path("a/adapter/adapter_config.json").read_text())
    assert {value for name, value in given.items() if name.endswith("name_or_path")} <= {base_model.BY_HAND, None}
    assert "/x" not in json.dumps(given)
    loaded = peft.PeftModel.from_pretrained(under(), "./a/adapter").eval()
    assert torch.equal(scores(loaded), scores(model.eval()))
    assert not torch.equal(scores(loaded), before)


@pytest.mark.parametrize("train", ["lora", "full"])
def test_a_base_that_lacks_a_weight_is_refused(train, place):
    held = safetensors.torch.load_file("m/model.safetensors")
    del held["model.layers.0.mlp.up_proj.weight"]
    safetensors.torch.save_file(held, "m/model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"the weights of m lack model\.layers\.0\.mlp\.up_proj\.weight"):
        run("a", train=train)


@pytest.mark.parametrize(("changed", "words"), [("m", "MODEL was changed"), ("d.jsonl", "DATA was changed")])
def test_what_changes_while_it_is_read_is_refused(changed, words, place, monkeypatch):
    where, name = (base_model, "open_model") if changed == "m" else (text_run, "encoded")
    real = getattr(where, name)

    def read_and_change(*given):
        found = real(*given)
        path = Path(changed) / "config.json" if changed == "m" else Path(changed)
        path.write_text(path.read_text() + "\n")
        return found

    Path("k").write_bytes(b"k" * 32)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, read_and_change)
        with pytest.raises(ValueError, match=words):
            run("a", fingerprint_key="k")
    assert run("a", fingerprint_key="k").fields["data_fingerprint"]


def test_the_plan_of_persons_counts_their_sequences(place):
    given = {"rows": 400, "batch": 8.0, "epsilon": 3.0, "unit_field": "who", "holdout": 0.5, "dtype": "bfloat16"}
    words = plan_in_words(Prepared.of(FILES, settings("a", **given)))
    assert words.startswith("25 steps of 8 persons, as expected (rate 0.04), 1,024 tokens each\n")  # 4 of 32 tokens
    assert "the score is bought on 50% of the persons" in words
    assert "run has to lower the loss by 0.19 nats, and by more where persons differ" in words
    assert re.search(r"by 3 steps on synthetic rows; up to \d+\.\d GB of memory were in use", words)
    assert not Path("a").exists()


def test_public_texts_show_their_loss(place):
    Path("public.jsonl").write_text(json.dumps(RECORDS[0]))
    found = run("a", public_validation="public.jsonl", patience=3)
    assert found.fields["public_losses"]


def test_dropout_is_that_of_the_settings(place):
    parts = Prepared.of(FILES, settings("a")).model.modules()
    assert all(part.p == 0 for part in parts if isinstance(part, torch.nn.Dropout))


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused_before_any_record(place):
    words = tokenizer()
    words.add_tokens(["zebra"])
    words.save_pretrained("m")
    with pytest.raises(ValueError, match="the model's embedding has 267 rows"):
        run("a")
    assert not Path("a").exists()


def test_embeddings_and_heads_are_no_part_of_an_adapter(place):
    with pytest.raises(ValueError, match="leave embeddings and the head out"):
        run("a", targets="embed_tokens")


def test_an_audit_of_the_same_settings_prints_its_verdict_and_keeps_nothing(place, capsys):
    before = sorted(Path().rglob("*"))
    assert command("a", "--audit", "60", "--dry-run") == 0
    power = capsys.readouterr().out.splitlines()[-1]
    assert power.startswith("power: if all guesses about 60 canaries are right")
    code = command("a", "--audit", "60")
    said = capsys.readouterr()
    assert code == 0
    assert said.out.startswith("AUDIT IN ONE RUN: CONSISTENT")
    assert "exposure:" in said.out
    assert said.err.splitlines()[0].startswith("DATA is taken for public")
    assert said.err.splitlines()[1] == power
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 1e-4}, "--lr was 0.002 and is 0.0001 now"),
        ({"seed": 6}, "--seed was 5 and is 6 now"),
        ({"epsilon": 4.0}, "--epsilon was 8.0 and is 4.0 now"),
    ],
)
def test_a_run_goes_on_with_the_settings_that_it_began_with(changes, words, place, monkeypatch):
    killed_in(HeldOutScore, "fields", monkeypatch)
    with pytest.raises(tacita.ResumeError, match=words):
        run("a", **changes)
    run("a", physical_batch=3)
    assert not check_run("a").faults


def test_another_base_at_resume_is_named(place, monkeypatch):
    killed_in(HeldOutScore, "fields", monkeypatch)
    base("m", seed=1)
    with pytest.raises(tacita.ResumeError, match=r"MODEL is another one now \(model\.safetensors differs\)"):
        run("a")


def test_a_bought_score_without_a_number_is_no_clean_verdict(place):
    Path("d.jsonl").write_text("a,b\n" * 30)
    found = run("a")
    assert found.fields["holdout_score"]["value"] is None
    fields = {**found.fields, "secure_randomness": True}  # as without a seed
    assert verdict(fields).warnings == ("nothing was learned",)
    assert found.statement.startswith("NOTHING LEARNED that held-out records show: at this noise too few")


def checked(**given):
    return check_texts("d.jsonl", "m", RecordSettings(**given))[0].splitlines()


def test_where_nothing_was_learned_the_holder_is_sent_to_check(place, capsys):
    with pytest.raises(SystemExit):
        main([*COMMAND.replace(" --seed 5 --quiet", " --cut end").split(), "a"])
    said = capsys.readouterr().err
    assert "tacita generate a --base m --prompt TEXT" in said
    assert "\nwhat contributes nothing is not told here" in said
    assert "by: tacita check d.jsonl --model m --cut end\n" in said


def test_the_holder_sees_what_contributes_nothing(place):
    words = checked(unit_field="custmer", messages=False)
    assert "40 lines; 0 can be trained on" in words
    assert f"10 contribute nothing: {records.NO_JSON} (line 4, 8, 12, 16, 20 and 5 more)" in words
    assert any(line.startswith(f"10 contribute nothing: {looking.NO_MESSAGES} (line 3, 7, 11") for line in words)
    whose = "20 contribute nothing: no text or integer under 'custmer' (line 1, 2, 5, 6, 9 and 15 more; keys: "
    assert f"{whose}'who' on 20, 'text' on 10, 'prompt' on 10, 'completion' on 10)" in words
    assert "0 persons by 'custmer'" in words
    assert "5 persons by 'who'" in checked(unit_field="who")
    assert "27 repeat the text of an earlier line, and count like it (line 5, 6, 7, 9, 10 and 22 more)" in checked()


def test_the_holder_is_told_why_each_line_contributes_nothing(place):
    """As bytes, with the reason."""
    told = {
        b'{"txt": "SECRET"}': f"{records.NO_KEYS} (line 1; keys: 'txt' on 1)",
        b'{"text": "SECRET \xe9"}': f"{records.NO_UTF8} (line 2)",
        b'{"text": "SECRET': f"{records.NO_JSON} (line 3)",
        b"": f"{records.EMPTY} (line 4)",
        b'{"text": 3}': f"{records.NO_TEXT} (line 5; keys: 'text' on 1)",
        b'{"messages": [{"role": "tool", "content": "SECRET"}]}': f"{records.NO_TURNS} (line 6; keys: 'messages' on 1)",
        b'{"messages": [{"role": "user", "content": "SECRET"}]}': f"{looking.NO_ANSWER} (line 7; ",
        b'{"text": ""}': f"{looking.NO_TARGET} (line 8; ",
    }
    Path("d.jsonl").write_bytes(b"\n".join(told) + b"\n")
    words = "\n".join(checked())
    for why in told.values():
        assert f"1 contribute nothing: {why}" in words
    assert "SECRET" not in words


def test_the_holder_is_told_of_lengths_that_the_training_takes(place):
    Path("d.jsonl").write_text(json.dumps({"text": "x" * 70}))
    assert checked()[-1] == "cut at 32 tokens: 1 record; --max-tokens 32 --windows 3 keeps 95 % whole"
    assert ";" not in checked(windows=3)[-1]
    assert "; --max-tokens 32 --windows 3 keeps" in checked(max_tokens=8)[-1]
    words = tokenizer()
    words.chat_template = None
    words.save_pretrained("m")
    Path("m/chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="the tokenizer has no chat template"):
        checked()


def test_prompts_have_room_for_an_answer_and_messages_are_written_by_the_template(place):
    run("a")
    loaded = generation.load("a")
    for prompt in ("x" * 40, ""):
        with pytest.raises(ValueError, match="must have 1 to 31"):
            generation.generate(*loaded, prompt)
    said = [{"role": "user", "content": "hi"}]
    lines = [BOM_UTF8 + json.dumps({"messages": said}).encode(), json.dumps({"prompt": "x"}).encode()]
    found = [json.loads(line) for line in generation.completed(*loaded, lines, max_new_tokens=2)]
    written = generation.generate(*loaded, "<|turn|>user\nhi<|end|>\n<|turn|>assistant\n", max_new_tokens=2)
    assert found[0] == {"messages": said, "completion": written}
    with pytest.raises(ValueError, match="line 1: it must be a JSON object with a prompt, or with messages"):
        list(generation.completed(*loaded, [b"3"]))
    with pytest.raises(ValueError, match="line 1: "):
        list(generation.completed(*loaded, [b"[" * 100_000]))
    for odd in (b'{"prompt": "\\ud800"}', b'{"prompt": "\xff"}'):  # half a surrogate pair, and no UTF-8
        with pytest.raises(ValueError, match="line 1: "):
            list(generation.completed(*loaded, [odd]))
    (half,) = generation.completed(*loaded, [b'{"prompt": "x", "id": "\\ud800"}'], max_new_tokens=1)
    assert json.loads(half.encode())["id"] == "\ud800"
    Path("ask.jsonl").write_text(json.dumps({"prompt": "x\u2028y"}, ensure_ascii=False) + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["generate", "a", "--file", "ask.jsonl", "--output", "said.jsonl"])
    assert not ended.value.code
    assert json.loads(Path("said.jsonl").read_text())["prompt"] == "x\u2028y"


@pytest.mark.parametrize(("words", "name"), [("gone.jsonl", "DATA"), ("d.jsonl --public-validation no", "public_val")])
def test_a_missing_file_is_refused_by_the_plan_too(words, name, place, capsys):
    line = f"finetune m {words} --epsilon 8 --delta 1e-3 --rows 40 --dry-run"
    with pytest.raises(SystemExit):
        main(line.split())
    assert f"{name}" in capsys.readouterr().err


def test_targets_are_the_names_of_modules_of_the_base(place):
    run("a", targets=" q_proj , v_proj")
    assert json.loads(Path("a/adapter/adapter_config.json").read_text())["target_modules"] == ["q_proj", "v_proj"]
    for wrong in ("q_proj,v_prj", "q_proj,"):
        with pytest.raises(ValueError, match=r"targets names '.*', and MODEL has only .*o_proj, .*q_proj"):
            run("b", targets=wrong)


def test_a_template_by_name_is_the_default_one_and_the_whole_model_loads(place):
    tokenizer = transformers.AutoTokenizer.from_pretrained("m")
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    tokenizer.save_pretrained("m")
    shutil.rmtree("m/additional_chat_templates", ignore_errors=True)
    config = json.loads(Path("m/tokenizer_config.json").read_text())
    named = [{"name": name, "template": text} for name, text in tokenizer.chat_template.items()]
    Path("m/tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    Path("m/chat_template.jinja").unlink(missing_ok=True)
    run("a", train="full")
    assert generation.load("a")[1].chat_template == tokenizer.chat_template["default"]
