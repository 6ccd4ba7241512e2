"""The pre-trained model, its tokenizer and its adapter. Public; nothing is fetched from anywhere."""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from tacita import _validate
from tacita._extras import not_installed
from tacita.errors import TacitaError
from tacita.finetune.settings import FinetuneSettings
from tacita.runs.sealed_run import file_sha256
from tacita.tables.settings import read_text

DROPOUTS = ("dropout", "pdrop")  # what the configurations of transformers have in the names of these rates
MORE_TEMPLATES = "additional_chat_templates"  # a folder that transformers reads beside the files that are hashed
SETTINGS = ("config.json", "generation_config.json")
WHOLE, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
LOCAL = {"local_files_only": True, "trust_remote_code": False}  # nothing is fetched, no code of a model's own is run
REFUSED = {
    "auto_map": "needs code of its own (auto_map), which is not run: choose another model",
    "quantization_config": "has quantised weights, which the engine cannot read: load it in bfloat16, unquantised",
    "transformers_weights": "names weights elsewhere (transformers_weights): give a folder that holds its own",
    **dict.fromkeys(
        ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"),
        "chooses a kernel, which may be code from a hub: take that out",
    ),
    "configuration_files": "has a configuration for each version (configuration_files): leave config.json alone there",
}
# In place of the base in adapter_config.json. A loader would take a name for a folder or for a model of the hub, which
# need not be the base; this is no name that a hub has, and the error of the loader repeats it.
BY_HAND = "load the base by hand and compare its SHA-256: see README.md"
LORA_SEED = 0  # of the first factor of an adapter, which is public; the other one starts at zero


def library(name: str) -> Any:
    """Import transformers or PEFT, or say what to install."""
    import importlib

    try:
        found = importlib.import_module(name)
    except ImportError:
        raise TacitaError(not_installed(name, "transformers")) from None
    if name == "transformers":
        found.utils.logging.disable_progress_bar()
    return found


def check_folder(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model's folder.

    Raises:
        ValueError: It is no such folder; its weights are elsewhere, pickled or quantised; or it needs code of its own.
    """
    if (folder / ADAPTER).exists():
        raise ValueError(f"{folder.name} holds an adapter on another model ({ADAPTER}): merge them first.")
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"MODEL must be a folder in the format of transformers, with config.json, got {str(folder)!r}. Nothing is "
            "fetched from a hub: download the model first."
        )
    if (folder / MORE_TEMPLATES).exists():
        raise ValueError(
            f"{folder.name} has chat templates in {MORE_TEMPLATES}/: take that folder out, and give one of them with "
            "--template FILE."
        )
    weights(folder)
    for file in (*SETTINGS, "tokenizer_config.json"):  # no other one, which may hold anything
        given = _read(folder / file) if (folder / file).exists() else None
        for name, why in REFUSED.items():
            if isinstance(given, dict) and given.get(name) is not None:
                raise ValueError(f"{folder.name} {why} ({file}).")
    return _read(folder / "config.json")


def weights(folder: Path) -> list[str]:
    """Return the names of the files of weights that transformers loads, all of which lie in the folder itself.

    Raises:
        ValueError: There are none, or the index names others, which no hash of the folder's files would cover.
    """
    here = {path.name for path in folder.glob("*.safetensors")}
    if WHOLE in here:
        return [WHOLE]
    named = {*_read(folder / INDEX)["weight_map"].values()} if (folder / INDEX).exists() else set()
    if not named:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        raise ValueError(
            f"{folder.name} holds {f'pickled weights ({pickled[0]})' if pickled else 'no weights'}: "
            "convert them to safetensors first."
        )
    if others := sorted(named - here):
        raise ValueError(
            f"{INDEX} of {folder.name} names {others[0]!r}, which is no safetensors file in that folder itself: put "
            "all weights there, and name them without folders."
        )
    return sorted(named)


def _read(path: Path) -> Any:
    try:
        return json.loads(read_text("MODEL", path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} of MODEL cannot be read as JSON: {error}.") from None


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of which a model is made, by name, and of no other: the texts may lie there, too.

    The tokenizer that was used is among the files that a run seals.
    """
    made_of = [*weights(folder), *SETTINGS, *([] if (folder / WHOLE).is_file() else [INDEX])]
    return {name: file_sha256(folder / name) for name in made_of if (folder / name).is_file()}


def check_same(folder: Path, expected: Mapping[str, str]) -> None:
    """Refuse another base than the one that was trained on."""
    found = hashes(folder)
    for name in sorted({*expected, *found}):
        if found.get(name) != expected.get(name):
            raise TacitaError(
                f"the base model differs from the one trained on ({name}): give --base PATH (base=) of the one whose "
                "SHA-256 the statement has."
            )


def open_tokenizer(folder: Path, template: str | None = None) -> Any:
    """Return the tokenizer, with the chat template of a file, if one is given."""
    tokenizer = library("transformers").AutoTokenizer.from_pretrained(str(folder), **LOCAL)
    if template is not None:
        tokenizer.chat_template = read_text("template", template)
    if isinstance(tokenizer.chat_template, dict):  # by name: saved, all but one would lie in a folder of their own
        tokenizer.chat_template = tokenizer.chat_template.get("default")
    return tokenizer


def open_model(folder: Path, settings: FinetuneSettings) -> nn.Module:
    """Return the model with the weights that are to be trained: an adapter's, or all."""
    transformers = library("transformers")
    config = transformers.AutoConfig.from_pretrained(str(folder), **LOCAL)
    set_dropout(config, settings.dropout)
    dtype = torch.float32 if settings.train == "full" else getattr(torch, settings.dtype)
    model = load_weights(folder, config=config, dtype=dtype)
    if experts := next((name for name, _ in model.named_modules() if name.endswith("experts")), None):
        raise ValueError(
            f"MODEL is a mixture of experts ({experts}): which of them a token goes to decides on shapes, and no "
            "choice of --targets or --train changes that. Choose a model without experts. (In Python, tacita.fit takes "
            "one that is opened with experts_implementation='batched_mm'.)"
        )
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = settings.dropout
    return model if settings.train == "full" else _with_adapter(model, settings)


def set_dropout(config: Any, rate: float) -> None:
    """Give every rate of dropout in a configuration, and in those that it holds, the same value; not to ``None``."""
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            set_dropout(value, rate)
        elif any(word in name for word in DROPOUTS) and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, rate)


def load_weights(folder: Path, **settings: Any) -> Any:
    """Load a model whose files hold all of its weights; transformers would make up what is missing, at random.

    Raises:
        ValueError: A weight is missing, or has another shape.
    """
    causal = library("transformers").AutoModelForCausalLM
    model, report = causal.from_pretrained(
        str(folder), use_safetensors=True, output_loading_info=True, **LOCAL, **settings
    )
    if gone := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise ValueError(f"the weights of {folder.name} lack {gone[0]} ({len(gone)} in all): give a whole model.")
    return model


def _with_adapter(model: Any, settings: FinetuneSettings) -> nn.Module:
    peft = library("peft")
    names = [name.strip() for name in settings.targets.split(",")]
    there = [f".{path}" for path, one in model.named_modules() if getattr(one, "weight", None) is not None]
    for name in [] if names == ["all-linear"] else names:
        if not any(path.endswith(f".{name}") for path in there):
            ends = ", ".join(sorted({path.rpartition(".")[2] for path in there}))
            raise ValueError(f"targets names {name!r}, and MODEL has only {ends}.")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.scale,
        target_modules="all-linear" if names == ["all-linear"] else names,
        lora_dropout=settings.dropout,
    )
    with torch.random.fork_rng(), without_warnings():
        torch.manual_seed(LORA_SEED)
        adapted = peft.get_peft_model(model, config)
    ends = [part for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None]
    if any(".lora_" in f".{name}" for part in ends for name, _ in part.named_parameters()):
        raise ValueError("targets must leave embeddings and the head out: a tied one would be published twice, or not.")
    return adapted


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter of a PEFT model, whose base has to be loaded by hand from then on.

    PEFT would write the base's path or name into its configuration and a card: a loader would take that for a folder,
    or for a model on the hub, and compare nothing.
    """
    config = vars(model.peft_config["default"])
    config.update(_without_paths(config))
    # With embeddings PEFT asks the hub for a base of that name.
    model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # a template without a word on this model
    name_no_base(folder)


def name_no_base(folder: Path) -> None:
    """Take the base's path or name, and all paths of this machine, out of the configuration that PEFT wrote."""
    config = folder / ADAPTER
    config.write_text(json.dumps(_without_paths(json.loads(config.read_text())), indent=2))


def _without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an adapter without the names of base and tokenizer, and with lists in place of sets."""
    lists = {name: sorted(value) for name, value in config.items() if isinstance(value, set)}  # in the same order
    names = [name for name, value in config.items() if name.endswith("name_or_path") and value is not None]
    return {**_relative(config), **lists, **dict.fromkeys([*names, "base_model_name_or_path"], BY_HAND)}


def _relative(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _relative(one) for name, one in value.items()}
    return BY_HAND if isinstance(value, str) and Path(value).is_absolute() else value


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hold back what PEFT warns of, and does by itself: a setting of GPT-2's layers, a name that transformers drops."""
    with warnings.catch_warnings():
        for words in ("fan_in_fan_out is set to False", "`is_gradient_checkpointing` is deprecated"):
            warnings.filterwarnings("ignore", words)
        yield


def positions(config: Mapping[str, Any]) -> int | None:
    """Return the largest number of tokens that the model takes; ``None`` if its configuration has none."""
    return config.get("max_position_embeddings") or config.get("n_positions")


def length(config: Mapping[str, Any], max_tokens: int | None) -> int:
    """Return the public length of all records: as given, or the smaller of 512 and the model's positions."""
    most = positions(config)
    if max_tokens is None:
        return min(512, most or 512)
    if most is not None and _validate.count("max_tokens", max_tokens) > most:
        raise ValueError(f"max_tokens {max_tokens} is above the model's {most} positions: give at most {most}.")
    return max_tokens
