"""The pre-trained model, its tokenizer and its adapter. Public; nothing is fetched from anywhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacita import _validate
from tacita._extras import not_installed
from tacita.errors import TacitaError
from tacita.finetune.settings import FinetuneSettings
from tacita.runs.sealed_run import file_sha256
from tacita.tables.settings import read_text

DROPOUTS = ("dropout", "pdrop")  # how the configurations of transformers name them
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
        ValueError: It is no such folder; its weights are pickled or quantised; or it needs code of its own.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"MODEL must be a folder in the format of transformers, with config.json, got {str(folder)!r}. Nothing is "
            "fetched from a hub: download the model first."
        )
    config = json.loads(read_text("MODEL", folder / "config.json"))
    if not [*folder.glob("*.safetensors")]:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        raise ValueError(
            f"{folder.name} holds {f'pickled weights ({pickled[0]})' if pickled else 'no weights'}: "
            "convert them to safetensors first."
        )
    if "auto_map" in config:
        raise ValueError(f"{folder.name} needs code of its own (auto_map), which is not run: choose another model.")
    if "quantization_config" in config:
        raise ValueError("quantised weights cannot be read by the engine: load the model in bfloat16, unquantised.")
    return config


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a model and its tokenizer, by name."""
    kinds = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
    return {path.name: file_sha256(path) for kind in kinds for path in sorted(folder.glob(kind))}


def check_same(folder: Path, expected: Mapping[str, str]) -> None:
    """Refuse another base than the one that was trained on."""
    found = hashes(folder)
    for name in sorted({*expected, *found}):
        if found.get(name) != expected.get(name):
            raise TacitaError(f"the base model differs from the one trained on ({name}): give --base PATH.")


def open_tokenizer(folder: Path, template: str | None = None) -> Any:
    """Return the tokenizer, with the chat template of a file, if one is given."""
    tokenizer = library("transformers").AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if template is not None:
        tokenizer.chat_template = read_text("template", template)
    return tokenizer


def open_model(folder: Path, settings: FinetuneSettings) -> nn.Module:
    """Return the model with the weights that are to be trained: an adapter's, or all."""
    transformers = library("transformers")
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    for name, value in vars(config).items():
        if name.endswith(DROPOUTS) and isinstance(value, float):
            setattr(config, name, settings.dropout)
    dtype = torch.float32 if settings.train == "full" else getattr(torch, settings.dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), config=config, dtype=dtype, local_files_only=True, use_safetensors=True
    )
    return model if settings.train == "full" else _with_adapter(model, settings)


def _with_adapter(model: Any, settings: FinetuneSettings) -> nn.Module:
    peft = library("peft")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.scale,
        target_modules=settings.targets if settings.targets == "all-linear" else settings.targets.split(","),
        lora_dropout=settings.dropout,
    )
    with torch.random.fork_rng():
        torch.manual_seed(LORA_SEED)
        adapted = peft.get_peft_model(model, config)
    ends = [part for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None]
    if any(".lora_" in f".{name}" for part in ends for name, _ in part.named_parameters()):
        raise ValueError("targets must leave embeddings and the head out: a tied one would be published twice, or not.")
    return adapted


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
