"""A tokenizer of bytes, and a language model of one table: what the room asks of transformers, without it."""

import re
from pathlib import Path
from types import SimpleNamespace

import torch

from tacita.finetune import TokenEncoder, base_model
from tacita.finetune.settings import FinetuneSettings
from tacita.finetune.text_run import Prepared

MARKS = {"<|end|>": 0, "<|user|>": 1, "<|assistant|>": 2}
FIRST = len(MARKS)  # the token of byte 0


MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEMPLATES = {
    "marks": MARKED,
    "refuses": "{{ raise_exception('no system turns here.') }}",
    "alternates": "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}"
    "{{ raise_exception('two turns of one role') }}{% endif %}{% endfor %}" + MARKED,
    "counts": "[{{ messages | length }} turns]" + MARKED,
}


class Tokenizer:
    """Each byte is a token, and each mark, unless marks are split."""

    eos_token_id, bos_token_id = 0, None

    def __init__(self, chat_template="marks"):
        self.chat_template = chat_template

    def __len__(self):
        return FIRST + 256

    def get_vocab(self):
        return {str(number): number for number in range(len(self))}

    def __call__(self, text, split_special_tokens=False, **settings):
        if isinstance(text, list):
            alone = [self(one, split_special_tokens=split_special_tokens, **settings) for one in text]
            return {"input_ids": [one["input_ids"] for one in alone]}
        parts = [text] if split_special_tokens else re.split(f"({'|'.join(map(re.escape, MARKS))})", text)
        ids = [[MARKS[part]] if part in MARKS and not split_special_tokens else spell(part) for part in parts]
        return {"input_ids": [token for part in ids for token in part]}

    def get_chat_template(self):
        return TEMPLATES.get(self.chat_template, self.chat_template)


def spell(text):
    return [FIRST + byte for byte in text.encode()]


class Model(torch.nn.Module):
    """Scores of the next token from the tokens so far that are attended to: order counts, padding does not."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(FIRST + 256, 8, generator=generator))
        self.head = torch.nn.Parameter(torch.randn(8, FIRST + 256, generator=generator))

    def forward(self, input_ids, attention_mask, use_cache):
        seen = (self.table[input_ids] * attention_mask[..., None]).cumsum(1)
        return SimpleNamespace(logits=torch.tanh(seen) @ self.head)


def prepared(base="m", **changes):
    """A run on the toys, before any record is read."""
    given = {"epsilon": 8.0, "delta": 1e-5, "train": "full", "epochs": 1.0, "holdout": 0.0, "output": "nowhere"}
    encoder = TokenEncoder(tokenizer=Tokenizer(), max_tokens=8)
    digests = base_model.hashes(Path(base)) if (Path(base) / base_model.WHOLE).exists() else {}
    return Prepared(FinetuneSettings(**{**given, **changes}), encoder, Model(), Path(base), digests)
