"""An audit with made-up codes: a model that learns by heart is found out, a private one is not."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tacita._stream import Noise
from tacita.finetune import text_audit
from tacita.finetune.encoding import TokenEncoder
from tacita.finetune.settings import Files, FinetuneSettings
from tacita.finetune.text_audit import RANKS, audit_texts, power_in_words
from tacita.finetune.text_run import Prepared
from tests.finetune.toy import Tokenizer

BUCKETS = 4099


class ByHeart(torch.nn.Module):
    """A score of each next token for each remainder of all tokens so far: it can learn every text by heart."""

    def __init__(self, vocabulary):
        super().__init__()
        self.scores = torch.nn.Embedding(BUCKETS, vocabulary)
        torch.nn.init.zeros_(self.scores.weight)

    def forward(self, input_ids, attention_mask, use_cache):
        places = torch.arange(1, input_ids.shape[1] + 1)
        return SimpleNamespace(logits=self.scores((input_ids * places**3 % BUCKETS).cumsum(1) % BUCKETS))


@pytest.fixture
def files(tmp_path, monkeypatch):
    words = Tokenizer(None)
    encoder = TokenEncoder(tokenizer=words, max_tokens=48)
    monkeypatch.setattr(Prepared, "of", lambda files, own: Prepared(own, encoder, ByHeart(len(words)), files.model, {}))
    path = tmp_path / "public.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"line {k}", "who": k // 2}) for k in range(20)))
    return Files(Path("m"), path)


def settings(epsilon, **changes):
    given = dict(delta=1e-4, rows=200, batch=60.0, epochs=20.0, lr=0.3, max_grad_norm=1.0, train="full", seed=1)
    return FinetuneSettings(epsilon=epsilon, output="nowhere", **{**given, **changes})


def check_power(said, audit):
    """What was said beforehand is what the audit then came to."""
    numbers = audit.bound.largest, audit.strict.largest, audit.strict.delta, audit.strict_claim
    for number, form in zip(numbers, (".2f", ".2f", ".1g", ".2f"), strict=True):
        assert f" {number:{form}}" in said
    assert audit.powerless == ("cannot" in said)


@pytest.mark.parametrize("unit_field", [None, "who"])
def test_a_model_that_is_hardly_private_has_learnt_the_codes_that_were_in_and_no_others(files, unit_field, tmp_path):
    said = []
    found = audit_texts(files, settings(1e5, unit_field=unit_field), 60, say=said.append)
    inside, outside = found.exposure
    assert np.median(inside) == np.log2(RANKS)
    assert np.median(outside) < 3
    assert found.audit.membership.auc.value > 0.99
    assert found.audit.verdict == "consistent"  # with the epsilon that it has
    assert "exposure:     median 7.00 bits of codes that were in" in found.text
    assert [path.name for path in tmp_path.iterdir()] == ["public.jsonl"]
    check_power(*said, found.audit)
    assert "So it cannot refute the claim" in said[0]


def test_a_private_model_has_not(files):
    found = audit_texts(files, settings(1.0), 60)
    assert np.median(np.concatenate(found.exposure)) < 3
    assert found.audit.bound.epsilon <= 1.0
    assert re.search(r"cost: +none, if the data are public as declared; else epsilon 0\.9997 at", found.text)
    assert "same records" not in found.text


def test_noise_that_is_left_out_is_refuted(files, monkeypatch):
    def nothing(self, block, like):
        return {name: torch.zeros_like(value) for name, value in like.items()}

    monkeypatch.setattr(Noise, "__call__", nothing)
    said = []
    found = audit_texts(files, settings(0.5), 200, say=said.append).audit
    assert found.verdict == "refuted"
    check_power(*said, found)
    assert "So it can refute the claim" in said[0]


def test_a_code_that_is_no_likelier_than_the_others_is_not_exposed(files):
    prepared = Prepared.of(files, settings(1.0))  # whose scores are all equal
    assert text_audit._exposure(prepared, 0, np.arange(RANKS)) == 0


def test_too_few_canaries(files):
    with pytest.raises(ValueError, match="canaries must be >= 50, got 10"):
        audit_texts(files, settings(1.0), 10)


def test_what_an_audit_can_show_is_said_before_anything_is_read(files):
    def stop(text):
        assert text == power_in_words(Prepared.of(files, settings(1.0)), 60)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        audit_texts(replace(files, data=Path("nowhere")), settings(1.0), 60, say=stop)
