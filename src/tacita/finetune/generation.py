"""Use a fine-tuned model: loaded from its sealed run onto the base that it was trained on. Costs no privacy."""

import glob
import json
import tomllib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tacita.errors import TacitaError
from tacita.finetune import base_model
from tacita.finetune.chat import written
from tacita.finetune.records import read_line
from tacita.finetune.settings import CONFIG
from tacita.runs.sealed_run import SealedRun


def load(folder: str | Path, base: str | Path | None = None) -> tuple[Any, Any]:
    """Return model and tokenizer of a finished run, as plain objects of PEFT and transformers.

    Args:
        folder: The run's folder, in which nothing was changed since.
        base: Folder of the base model; by default one of its name here, or in a folder here.

    Raises:
        TacitaError: The run is not finished, a file was changed, or the base is another one.
        ValueError: The model needs code of its own, or has weights elsewhere, as in a folder that another one made.
    """
    run = SealedRun.intact(folder)
    if not run.holds(CONFIG):
        raise TacitaError(f"{str(folder)!r} is no run of tacita finetune: it has no {CONFIG} under its seal.")
    config = tomllib.loads(run.read(CONFIG).decode())
    transformers = base_model.library("transformers")
    kept = run.folder / ("adapter" if config["train"] == "lora" else "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(kept), **base_model.LOCAL)
    if config["train"] == "full":
        base_model.check_folder(kept)
        return base_model.load_weights(kept).eval(), tokenizer
    place = _base(config["base"]["name"], base)
    base_model.check_same(place, config["base_sha256"])
    base_model.check_folder(place)
    under = base_model.load_weights(place, dtype=getattr(torch, config["dtype"]))
    with base_model.without_warnings():
        return base_model.library("peft").PeftModel.from_pretrained(under, str(kept)).eval(), tokenizer


def _base(name: str, given: str | Path | None) -> Path:
    """Return the folder of the base; which base it is, its hashes say."""
    places = [Path(name), *sorted(Path().glob(f"*/{glob.escape(name)}"))] if given is None else [Path(given)]
    for place in places:
        if place.is_dir():
            return place
    raise TacitaError(
        f"the base model {str(places[0])!r} is not here: give its folder with --base PATH (in Python, base=)."
    )


def generate(
    model: Any, tokenizer: Any, prompt: str | list, *, max_new_tokens: int = 128, temperature: float = 0.0
) -> str:
    """Return what the model says after a prompt, without the prompt.

    Args:
        model: As of :func:`load`.
        tokenizer: As of :func:`load`.
        prompt: A text, or messages (``role`` and ``content`` each), which the chat template of the tokenizer writes.
        max_new_tokens: Most tokens of an answer.
        temperature: 0 for no draws, the likeliest token (as the base's own settings of generation weigh them); above,
            tokens are drawn.

    Raises:
        ValueError: The prompt is as long as the model's positions, or there is no chat template for messages.
    """
    talks = not isinstance(prompt, str)
    if talks and tokenizer.chat_template is None:
        raise ValueError("messages need a chat template, which this run's tokenizer has not: give a prompt.")
    text = "".join(written(tokenizer, prompt, asks=True)) if talks else prompt
    ids = tokenizer(text, add_special_tokens=not talks, return_tensors="pt")
    length = ids["input_ids"].shape[1]
    positions = getattr(model.config, "max_position_embeddings", None) or max_new_tokens + length
    if not 0 < length < positions:
        raise ValueError(
            f"the prompt has {length} tokens, and must have 1 to {positions - 1}: {positions} is the most "
            "that the model reads, its answer included."
        )
    max_new_tokens = max(1, min(max_new_tokens, positions - length))
    settings: dict[str, Any] = {"do_sample": temperature > 0} | ({"temperature": temperature} if temperature else {})
    with torch.no_grad():
        found = model.generate(
            input_ids=ids["input_ids"], attention_mask=ids["attention_mask"], max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id, **settings,
        )  # fmt: skip
    return tokenizer.decode(found[0, length:], skip_special_tokens=True)


def completed(model: Any, tokenizer: Any, lines: Iterable[bytes], **settings: Any) -> Iterator[str]:
    """Yield JSON lines of ``prompt``, or of ``messages``, with a ``completion``.

    Raises:
        ValueError: A line has neither, or one that cannot be read; it is named by its number.
    """
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line.removeprefix(BOM_UTF8))
            said = generate(model, tokenizer, _asked(line, fields), **settings)
        except (ValueError, TypeError, RecursionError) as error:  # TypeError: half a surrogate pair in a prompt
            raise ValueError(f"line {number}: {error}") from None
        found = json.dumps({**fields, "completion": said}, ensure_ascii=False)
        yield found.encode(errors="backslashreplace").decode() + "\n"  # half a surrogate pair, as JSON escapes it


def _asked(line: bytes, fields: Any) -> str | list:
    """Return the prompt of a line, or its messages, by the same keys as a record."""
    record = read_line(line).record
    if record is not None and record.form == "messages":
        return [asdict(turn) for turn in record.turns]
    prompt = fields.get("prompt") if isinstance(fields, Mapping) else None
    if not isinstance(prompt, str):
        raise ValueError("it must be a JSON object with a prompt, or with messages.")
    return prompt
