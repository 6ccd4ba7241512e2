"""Models, data sets and trainers of other libraries: trained unwrapped, saved and loaded by the library's own code.

Each test needs a library that tacita does not, and says which one is missing. The engines on many more networks of
these libraries: tests/gradients/test_coverage.py.
"""

import importlib
import json
import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch

import tacita
from tests.gradients.layers import Size
from tests.gradients.libraries import LIBRARIES, images, text

SMALL = Size(4, 6, 8)
QUICK = {"target_epsilon": 4.0, "target_delta": 1e-3, "epochs": 1, "expected_batch_size": 2.0, "progress": False}


def example(name, *needs):
    """The module of an example, or a skip that names what is not installed."""
    for library in needs:
        pytest.importorskip(library)
    return importlib.import_module(f"examples.libraries.{name}")


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("trainer", "transformers", "transformers"),
        ("lightning_callback", "lightning", "lightning"),
        ("trackers", "tensorboard", "trackers"),
    ],
)
def test_an_example_without_its_library_says_what_to_install(name, library, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)  # an import of it fails
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    path = Path(__file__).parents[1] / "examples" / "libraries" / f"{name}.py"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == f'{library} is not installed: pip install ".[{extra}]" in the clone'


def network(library, name):
    """A small model of the library, with its data and its loss."""
    pytest.importorskip(library)
    make, data, loss = LIBRARIES[library][name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(SMALL), data(SMALL, torch.float32), loss


def trained(library, name):
    """A model after a private run, which must have moved it and left its names alone."""
    model, data, loss = network(library, name)
    kind, before = type(model), {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    run = tacita.fit(model, loss, data, num_records=len(data[0]), **QUICK)
    after = model.state_dict()
    assert run.model is model
    assert type(model) is kind
    assert [*after] == [*before]
    assert [module.training for module in model.modules()] == modes
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved == {key for key, p in model.named_parameters(remove_duplicate=False) if p.requires_grad} & set(after)
    assert run.ledger.epsilon(1e-3) <= 4.0
    return model


def assert_same(loaded, model, ask):
    """Both hold the same numbers under the same names, and answer alike."""
    theirs, own = loaded.state_dict(), model.state_dict()
    assert [*theirs] == [*own]
    assert all(torch.equal(theirs[name], own[name]) for name in own)
    with torch.no_grad():
        assert torch.equal(ask(loaded.eval()), ask(model.eval()))


def logits(model):
    torch.manual_seed(0)
    tokens, mask, _ = text(SMALL, torch.float32)
    return model(input_ids=tokens, attention_mask=mask).logits


@pytest.mark.parametrize("name", ["GPT-2, tied", "BERT, classes", "Llama"])
def test_models_of_transformers(name, tmp_path):
    model = trained("transformers", name)
    model.save_pretrained(tmp_path)
    assert_same(type(model).from_pretrained(tmp_path), model, logits)


@pytest.mark.parametrize(
    ("name", "base"), [("LoRA of GPT-2", "GPT-2, tied"), ("LoRA of BERT, new head", "BERT, classes")]
)
def test_adapters_of_peft(name, base, tmp_path):
    """The adapter's file holds what was trained, and goes onto the base it was made for."""
    pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    model = trained("peft", name)
    model.save_pretrained(tmp_path / "adapter")
    frozen = network("transformers", base)[0]
    own = {key.removeprefix("base_model.model.").replace(".base_layer", ""): v for key, v in model.state_dict().items()}
    own = {key.replace(".original_module", ""): value for key, value in own.items()}
    frozen.load_state_dict({key: own[key] for key in frozen.state_dict()})
    assert_same(peft.PeftModel.from_pretrained(frozen, tmp_path / "adapter"), model, logits)


def test_models_of_timm(tmp_path):
    timm = pytest.importorskip("timm")
    model = trained("timm", "ViT")
    torch.save(model.state_dict(), tmp_path / "vit.pth")
    loaded = network("timm", "ViT")[0]
    timm.models.load_checkpoint(loaded, str(tmp_path / "vit.pth"))
    pictures = images(SMALL, torch.float32)[0]
    assert_same(loaded, model, lambda one: one(pictures))


# --- datasets.Dataset ------------------------------------------------------------------------------------------------


def linear(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"]).square()


def gradient(dataset, **changes):
    """The noisy gradient of one query, with fixed coins."""
    torch.manual_seed(0)
    oracle = tacita.ClippedGradientOracle(
        torch.nn.Linear(3, 1),
        linear,
        dataset,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=20),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=1,
        randomness=tacita.Randomness.insecure(5),
        **changes,
    )
    return oracle.backward().gradient


@pytest.fixture
def columns():
    torch.manual_seed(1)
    return {"x": torch.randn(20, 3), "y": torch.randn(20)}


@pytest.mark.parametrize("kind", ["as it is", "torch", "numpy", "set_format"])
def test_rows_of_datasets(columns, kind):
    """Rows in Arrow's memory give the bits that arrays give, whatever their format."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"x": datasets.List(datasets.Value("float32")), "y": datasets.Value("float32")})
    rows = datasets.Dataset.from_dict({name: one.tolist() for name, one in columns.items()}, features=features)
    if kind == "set_format":
        rows = rows.add_column("text", ["not for a model"] * 20)
        rows.set_format(None, columns=["x", "y"])
    elif kind != "as it is":
        rows = rows.with_format(kind)
    form = rows.format["type"]
    found, arrays = gradient(rows), gradient(columns)
    assert all(torch.equal(found[name], arrays[name]) for name in arrays)
    assert rows.format["type"] == form  # the caller's own is left as it was


def test_sequences_of_datasets_are_padded_to_a_public_length():
    datasets = pytest.importorskip("datasets")
    ragged = [[1.0] * (index % 4) for index in range(20)]
    rows = datasets.Dataset.from_dict({"x": ragged, "y": [0.0] * 20}).cast_column(
        "x", datasets.List(datasets.Value("float32"))
    )
    padded = {"x": torch.tensor([[1.0] * len(one) + [0.0] * (3 - len(one)) for one in ragged]), "y": torch.zeros(20)}
    pad = tacita.pad_to(3)

    def float32(items):
        return {name: column.float() for name, column in pad(items).items()}

    found, arrays = gradient(rows, collate_fn=float32), gradient(padded)
    assert all(torch.equal(found[name], arrays[name]) for name in arrays)


def test_a_column_of_text_is_refused_by_name_of_its_type(columns):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": columns["x"].tolist(), "y": columns["y"].tolist(), "name": ["a"] * 20})
    with pytest.raises(tacita.errors.UnsupportedModuleError, match=r"found (str|list)\. Encode it as a tensor"):
        gradient(rows)


# --- trainers --------------------------------------------------------------------------------------------------------


def small_oracle(model, loss, data, queries=3):
    return tacita.ClippedGradientOracle(
        model,
        loss,
        data,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=len(data[0])),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=queries,
        randomness=tacita.Randomness.insecure(5),
    )


def arguments(folder, **changes):
    import transformers

    given = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "max_grad_norm": 0.0}
    given |= {"lr_scheduler_type": "constant", "optim": "adamw_torch", "learning_rate": 0.01}
    return transformers.TrainingArguments(output_dir=str(folder), **{**given, **changes})


def private_trainer(folder, privacy=(), **changes):
    """A trainer on six records, of which three are drawn in expectation; and its model, data and loss."""
    for library in ("transformers", "accelerate"):
        pytest.importorskip(library)
    torch.manual_seed(0)
    model, data, loss = network("transformers", "BERT, classes")
    given = {"target_epsilon": 3.0, "target_delta": 1e-3, "num_records": 6, "max_grad_norm": 1.0}
    given |= {"train_dataset": data, "loss_fn": loss, "randomness": tacita.Randomness.insecure(5)}
    own = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3, "max_steps": 4, **changes}
    return tacita.finetune.PrivateTrainer(model, arguments(folder, **own), **{**given, **dict(privacy)}), data, loss


@pytest.mark.parametrize(
    "steps",
    [
        {"max_steps": 4},
        {"max_steps": -1, "num_train_epochs": 2},
        {"gradient_checkpointing": True},
        {"save_strategy": "steps", "save_steps": 1},
    ],
)
def test_the_trainer_takes_the_steps_of_a_loop(tmp_path, steps, capsys):
    """Batch x accumulation is the expected batch, with one draw and one release a step."""
    trainer, data, loss = private_trainer(tmp_path / "a", logging_steps=1, **steps)
    trainer.train()
    assert not any("loss" in name for line in trainer.state.log_history for name in line)
    torch.manual_seed(0)
    model, _, _ = network("transformers", "BERT, classes")
    oracle = tacita.ClippedGradientOracle(
        model.train(), loss, data,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=6), clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.CalibratedGaussian(target_epsilon=3.0, target_delta=1e-3), planned_queries=4,
        max_physical_batch_size=1, randomness=tacita.Randomness.insecure(5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(4):
        oracle.backward()
        optimizer.step()
    assert trainer.oracle.session.queries_made == 4
    assert trainer.get_epsilon() == oracle.ledger.epsilon(1e-3) <= 3.0
    assert all(torch.equal(one, trainer.model.state_dict()[name]) for name, one in model.state_dict().items())


def test_the_trainer_saves_under_a_seal(tmp_path):
    """What lies there, private perhaps, has no hash in the ledger; nor have arguments, which name paths."""
    tmp_path.joinpath("letters.jsonl").write_text("a secret")
    trainer, _, _ = private_trainer(tmp_path, include_num_input_tokens_seen="all", logging_steps=1)
    (tmp_path / "adapter_config.json").write_text('{"mine": 1}')
    trainer.save_model()
    assert trainer.oracle.ledger.sealed is None  # the training has not ended
    found = trainer.train()
    trainer.save_metrics("train", found.metrics)
    trainer.save_model(tmp_path / "elsewhere" / "..")
    trainer.save_model(tmp_path / "elsewhere")
    assert (tmp_path / "adapter_config.json").read_text() == '{"mine": 1}'
    assert not tacita.tables.check_run(tmp_path).faults
    assert {*trainer.oracle.ledger.sealed.files} == {"config.json", "model.safetensors", "statement.txt"}
    shown = {name for line in [*trainer.state.log_history, found.metrics] for name in line}
    assert not any("runtime" in name or "second" in name or "loss" in name or "mem" in name for name in shown), shown
    (tmp_path / "config.json").write_text("{}")
    assert tacita.tables.check_run(tmp_path).faults


def test_an_adapter_of_the_trainer_names_no_base_and_loads(tmp_path):
    """What a user keeps in README.md stays, and so does a regular expression of targets."""
    for library in ("transformers", "accelerate", "peft"):
        pytest.importorskip(library)
    import peft
    import transformers

    def base():
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        return transformers.GPT2LMHeadModel(config)

    base().save_pretrained(tmp_path / "base")
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=r".*c_attn"))
    ids = torch.arange(48).reshape(6, 8) % 20

    def trainer_of(model, folder):
        return tacita.finetune.PrivateTrainer(
            model, arguments(folder, max_steps=2, per_device_train_batch_size=3, save_strategy="steps", save_steps=2),
            train_dataset={"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids},
            target_epsilon=3.0, target_delta=1e-3, num_records=6,
        )  # fmt: skip

    named = peft.get_peft_model(base(), peft.LoraConfig(task_type="CAUSAL_LM", r=2), adapter_name="mine")
    with pytest.raises(ValueError, match="must be named 'default'"):
        trainer_of(named, tmp_path / "c")
    trainer = trainer_of(adapted, tmp_path / "a")
    (tmp_path / "a" / "README.md").write_bytes(notes := b"my \xff notes")
    trainer.train()
    trainer.save_model()
    assert (tmp_path / "a" / "README.md").read_bytes() == notes
    trainer.save_model(tmp_path / "b")
    adapted.add_adapter("second", peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"]))
    with pytest.raises(ValueError, match="must be named 'default', as PEFT names it, and be the only one"):
        trainer.save_model(tmp_path / "d")
    for folder in (tmp_path / "a", tmp_path / "a" / "checkpoint-2", tmp_path / "b"):
        assert str(tmp_path) not in (folder / "adapter_config.json").read_text()
        assert not (folder / "training_args.bin").exists()
    assert {*trainer.oracle.ledger.sealed.files} >= {"adapter_config.json", "adapter_model.safetensors"}
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "a")
    trained = peft.get_peft_model_state_dict(adapted)
    assert all(torch.equal(one, trained[name]) for name, one in peft.get_peft_model_state_dict(loaded).items())


def test_nothing_that_the_trainer_writes_has_a_path_of_this_machine(tmp_path):
    """transformers writes the path of the best checkpoint, which it needs itself, into the state of each."""
    for library in ("transformers", "accelerate"):
        pytest.importorskip(library)
    import transformers

    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    ids = torch.arange(48).reshape(6, 8) % 20
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]
    steps = {f"{name}_steps": 1 for name in ("save", "eval")} | dict.fromkeys(
        ("save_strategy", "eval_strategy"), "steps"
    )
    trainer = tacita.finetune.PrivateTrainer(
        transformers.GPT2LMHeadModel(config),
        arguments(tmp_path, max_steps=3, per_device_train_batch_size=3, load_best_model_at_end=True, **steps),
        train_dataset=rows, eval_dataset=rows, target_epsilon=3.0, target_delta=1e-3, num_records=6,
    )  # fmt: skip
    trainer.train()
    trainer.save_state()
    trainer.save_model()
    best = json.loads((tmp_path / "trainer_state.json").read_text())["best_model_checkpoint"]
    assert best == f"checkpoint-{trainer.state.best_global_step}"
    assert trainer.state.best_model_checkpoint == str(tmp_path / best)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 20
    assert not [path for path in written if str(tmp_path).encode() in path.read_bytes()]


def test_the_trainer_takes_users(tmp_path):
    _, data, _ = network("transformers", "BERT, classes")
    users = [row // 2 for row in range(len(data[0]))]
    trainer, _, _ = private_trainer(tmp_path, {"units": users, "num_records": 4, "rows_per_query": 2})
    assert trainer.oracle.source.num_rows == len(set(users))
    trainer.train()
    assert trainer.statement().to_json()["privacy_unit"] == "one user"


@pytest.mark.parametrize(
    ("changes", "privacy", "named"),
    [
        ({"auto_find_batch_size": True}, {}, "auto_find_batch_size must be left at its default"),
        ({"bf16": True}, {}, "bf16 must be left at its default"),
        ({"neftune_noise_alpha": 5.0}, {}, "neftune_noise_alpha must be left"),
        ({"label_smoothing_factor": 0.1}, {}, "label_smoothing_factor must be left"),
        ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}}}, {}, "accelerator_config must"),
        ({}, {"target_delta": 0.2}, "target_delta must be below"),
        ({}, {"compute_loss_func": len}, "compute_loss_func is never called"),
    ],
)
def test_the_trainer_refuses_what_changes_gradients(tmp_path, changes, privacy, named):
    with pytest.raises(ValueError, match=named):
        private_trainer(tmp_path, privacy, **changes)
    with pytest.raises(ValueError, match="resume_from_checkpoint must be left out"):
        private_trainer(tmp_path)[0].train(resume_from_checkpoint=True)


def test_the_trainer_example_runs(tmp_path, capsys):
    ledger = example("trainer", "transformers", "accelerate").main(str(tmp_path / "out"))
    assert ledger.epsilon(1e-4) <= 3.0
    assert (tmp_path / "out" / "model.safetensors").exists()


def lightning_run(queries=4, module=None, **changes):
    """A Lightning run on a small network, and what takes part in it."""
    example_ = example("lightning_callback", "lightning")
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    data = torch.randn(10, 3), torch.arange(10) % 2
    oracle = small_oracle(network, example_.losses, data, queries)
    private = example_.PrivateGradients(oracle)
    quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
    given = {"callbacks": [private], "max_epochs": 1, "accelerator": "cpu", "devices": 1, **quiet, **changes}
    trainer = example_.lightning.Trainer(**given)
    return trainer, (module or example_.Module)(network), private, oracle


@pytest.mark.filterwarnings("ignore")
def test_lightning_takes_the_steps_of_a_loop():
    trainer, module, private, oracle = lightning_run()
    trainer.fit(module, private.loader())
    assert oracle.remaining_queries == 0
    _, other, _, again = lightning_run()
    settings = other.configure_optimizers()
    for _ in range(again.planned_queries):
        again.backward()
        settings["optimizer"].step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore")
def test_lightning_gradients_of_another_source_are_refused():
    """A loss that ``training_step`` returns would be backpropagated past the oracle."""
    theirs = example("lightning_callback", "lightning").Module

    class Leaky(theirs):
        def training_step(self, step):
            return self.network(torch.ones(2, 3)).sum()

    trainer, module, private, oracle = lightning_run(module=Leaky)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(RuntimeError, match="training_step must return None"):
        trainer.fit(module, private.loader())
    assert oracle.session.queries_made == 0
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches must be 1"),
        ({"precision": "bf16-mixed"}, "precision must be '32-true'"),
    ],
)
def test_lightning_settings_that_change_gradients_are_refused(changes, named):
    trainer, module, private, oracle = lightning_run(**changes)
    with pytest.raises(ValueError, match=named):
        trainer.fit(module, private.loader())
    assert oracle.session.queries_made == 0


@pytest.mark.filterwarnings("ignore")
def test_lightning_is_not_handed_records():
    trainer, module, _, oracle = lightning_run()
    with pytest.raises(ValueError, match="must be handed the loader of this callback"):
        trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4, 3))))
    assert oracle.session.queries_made == 0


# --- trackers --------------------------------------------------------------------------------------------------------


def test_tensorboard_is_told_no_time(tmp_path, capsys):
    trackers = example("trackers", "tensorboard")
    trackers.main(tmp_path / "run", [trackers.TensorBoard(tmp_path / "board", every=5)])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"noisy gradient", "epsilon so far", "loss on public data", "epsilon"}
    for name in events.Tags()["scalars"]:
        assert all(one.wall_time == one.step for one in events.Scalars(name))
    assert [one.step for one in events.Scalars("noisy gradient")] == [5, 10, 15, 20]
    assert events.Scalars("epsilon")[0].value <= 3.0


def test_mlflow_is_told_no_time(tmp_path, capsys):
    trackers = example("trackers", "mlflow", "sqlalchemy")
    tracker = trackers.MLflow(f"sqlite:///{tmp_path}/mlflow.db", "private", every=5)
    trackers.main(tmp_path / "run", [tracker])
    written = tracker._client.get_run(tracker.run_id)
    assert written.info.status == "FINISHED"
    assert set(written.data.metrics) == {"noisy gradient", "epsilon so far", "loss on public data", "epsilon"}
    for name in written.data.metrics:
        assert all(one.timestamp == one.step for one in tracker._client.get_metric_history(tracker.run_id, name))
    assert written.data.metrics["epsilon"] <= 3.0
