"""The model card of an adapter, from the statement of its run: no number is typed twice."""

import math
from collections.abc import Mapping
from typing import Any

from tacita.finetune.settings import FinetuneSettings
from tacita.ledger.run_sections import (
    LEDGER_HASH,
    data_in_words,
    guarantee_in_words,
    model_in_words,
    risk_in_words,
    score_in_full,
)
from tacita.ledger.text_lines import in_words
from tacita.ledger.verdict import verdict

SCORED = "loss in nats a token"
TRAINED = {  # fields of the statement -> what they are called
    "sampler": "Drawn by",
    "planned_queries": "Planned steps",
    "noise_multiplier": "Noise multiplier",
    "ledger_sha256": LEDGER_HASH,
}
CAVEATS = (
    "What the base model was trained on is not covered.",
    "Prompts that are typed into the model are not covered: what is typed in comes out.",
    "Copies of a text under another record or person are other records: each is protected alone.",
)

LOADING = """## How to load it

The files do not say where the base is: a loader would take a folder or a model of a hub that has its name, and compare
nothing. Load the base by hand, once its SHA-256 (`sha256sum`) is the one above.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("PATH/{base}", local_files_only=True)
model = PeftModel.from_pretrained(base, "./adapter")  # without the dot a name that a hub may have
tokenizer = AutoTokenizer.from_pretrained("./adapter", local_files_only=True)
```

"""


def card(fields: Mapping[str, Any], settings: FinetuneSettings, base: str) -> str:
    """Return the card as Markdown, with the head that hubs read."""
    weighed = verdict(fields)
    said = fields.get("about") if isinstance(fields.get("about"), Mapping) else {}
    score, headline = fields.get("holdout_score"), fields.get("headline")
    head = ["---", f"library_name: {'peft' if settings.train == 'lora' else 'transformers'}"]  # a hub has other bases
    head += ["pipeline_tag: text-generation", "tags:", "- differential-privacy", "---", ""]
    lines = [
        f"# Fine-tuned with differential privacy (base: a model in a folder named {base})",
        "",
        *([f"**{headline}**", ""] if headline else []),
        f"**{weighed.in_words()}**: {guarantee_in_words(fields, weighed)}.",
        "",
        f"* Risk: {risk_in_words(fields, weighed)}",
        f"* Model: {model_in_words(fields)}.",
        f"* Data: {data_in_words(fields)}",
        f"* Trained: {settings.epochs:g} passes in expectation, clipping threshold {settings.max_grad_norm:g}, "
        f"{settings.max_tokens} tokens a record.",
        *(f"* {title}: {in_words(fields[name])}." for name, title in TRAINED.items() if fields.get(name) is not None),
        *(f"* {str(name).capitalize().replace('_', ' ')}: {value}" for name, value in dict(said or {}).items()),
        f"* Score: {'none was bought.' if score is None else score_in_full(score)}{_perplexity(score)}",
        "",
        *(LOADING.format(base=base).splitlines() if settings.train == "lora" else ()),
        "## Caveats",
        "",
        *(f"* {words}" for words in (*fields.get("caveats", ()), *fields["not_anonymised"])),
        "",
        "The folder above this one holds the ledger and the statement. `tacita statement FOLDER` verifies both, and "
        "every file here, against the ledger's seal.",
        "",
    ]
    return "\n".join([*head, *lines])


def _perplexity(score: Mapping[str, Any] | None) -> str:
    if score is None or score["value"] is None:
        return ""
    return f" Perplexity, e to the loss: {_e_to(score)}; of the base {_e_to(score['before'])}."


def _e_to(loss: Mapping[str, Any]) -> str:
    """Return e to a loss and to both ends of its interval, which are rounded outwards."""
    low, high = (math.exp(end) for end in loss["interval"])
    return f"{math.exp(loss['value']):.2f} ({math.floor(100 * low) / 100:.2f} to {math.ceil(100 * high) / 100:.2f})"
