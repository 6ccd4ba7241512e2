"""Models of transformers: the fast program is a loop over records, and padding on either side leaves a loss alone."""

import json

import numpy as np
import pytest
import torch

import tacita
from tacita.finetune import EncodedTexts, sequence_losses
from tacita.finetune.records import read_line
from tacita.finetune.settings import Files
from tacita.finetune.text_run import Prepared
from tacita.oracles import trainable

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from tests.finetune.test_text_run import RECORDS, base, settings  # noqa: E402

KINDS = ("gpt2", "llama", "qwen3")
FORMS = [*RECORDS, {"messages": RECORDS[2]["messages"] * 2}]


def prepared(folder, kind, **changes):
    """A model away from its start, where half of an adapter has a gradient of zero."""
    base(folder / kind, kind=kind)
    (folder / "d.jsonl").touch()
    found = Prepared.of(Files(folder / kind, folder / "d.jsonl"), settings("nowhere", **changes))
    generator = torch.Generator().manual_seed(0)
    for p in trainable(found.model).values():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return found


def batch_of(own, folder, fields):
    rows = EncodedTexts(own.encoder, folder)
    rows.extend(read_line(json.dumps(one).encode()) for one in fields)
    return rows.fetch(np.arange(len(fields)), 0)


def padded(batch, row, left, right):
    """One record of a batch with so much padding, its positions counted from its first token."""
    length = int(batch["attention_mask"][row].sum())
    alone = {name: one[row : row + 1, :length].clone() for name, one in batch.items()}
    alone["labels"][:, 0] = -100  # before the first token there is nothing but padding
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100, "position_ids": 0}
    alone["position_ids"] = torch.arange(length)[None]
    return {name: torch.nn.functional.pad(one, (left, right), value=fill[name]) for name, one in alone.items()}


@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_has_its_own_loss_with_padding_on_either_side(kind, train, tmp_path):
    own, loss = prepared(tmp_path, kind, train=train), sequence_losses()
    own.model.eval()
    batch = batch_of(own, tmp_path, FORMS)
    sides = [(0, 4), (4, 0), (1, 3)]
    for row in range(3):
        alone = padded(batch, row, 0, 0)
        together = {name: torch.cat([padded(batch, row, *side)[name] for side in sides]) for name in alone}
        without = {name: one for name, one in alone.items() if name != "position_ids"}
        expected = loss(own.model, without)
        assert expected > 0.1
        torch.testing.assert_close(loss(own.model, together), expected.expand(3), rtol=1e-5, atol=1e-6)
    same_by_a_loop(own, together, 1e-4)


def same_by_a_loop(own, batch, tolerance):
    fast, loop = (
        tacita.clipped_gradient_sum(
            own.model, own.losses, batch, clipper=tacita.FlatClipper(max_grad_norm=0.3), method=method
        )
        for method in ("program", "loop")
    )
    torch.testing.assert_close(fast.norms, loop.norms, rtol=tolerance, atol=1e-6)
    for name, own_sum in loop.sum.items():
        torch.testing.assert_close(fast.sum[name], own_sum, rtol=tolerance, atol=tolerance * 0.3)
    return loop.norms.flatten()


@pytest.mark.parametrize(("train", "dtype"), [("full", "float32"), ("lora", "float32"), ("lora", "bfloat16")])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_sums_of_each_form_are_those_of_a_loop(kind, train, dtype, tmp_path):
    own = prepared(tmp_path, kind, train=train, dtype=dtype)
    norms = same_by_a_loop(own, batch_of(own, tmp_path, FORMS), 1e-3 if dtype == "bfloat16" else 1e-4)
    assert (norms > 0.3).tolist() == [True, True, True, False, True]  # the others are clipped; a number is no record


def test_state_spaces_train(tmp_path):
    own = prepared(tmp_path, "mamba", train="full")
    same_by_a_loop(own, batch_of(own, tmp_path, FORMS), 1e-3)
