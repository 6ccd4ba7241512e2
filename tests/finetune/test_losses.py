"""The loss of a record is its own: alone or in a batch, with any padding; and one record moves a clipped sum by C."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tacita
from tacita.finetune import EncodedTexts, TokenEncoder, sequence_losses
from tacita.finetune.losses import scored_losses
from tacita.finetune.records import read_line
from tests.finetune.toy import FIRST, Model, Tokenizer

TEXTS = [{"text": "ab"}, {"prompt": "abc", "completion": "d"}, {"text": "e" * 30}, 3]


def rows(folder, max_tokens=32, texts=TEXTS):
    found = EncodedTexts(TokenEncoder(tokenizer=Tokenizer(), max_tokens=max_tokens), folder)
    found.extend(read_line(json.dumps(text).encode()) for text in texts)
    return found


@pytest.mark.parametrize("loss", [sequence_losses(), sequence_losses("sum", divisor=16)])
@pytest.mark.parametrize("longer", [32, 50])
def test_a_record_has_its_loss_alone_in_any_batch_and_with_any_padding(loss, longer, tmp_path):
    model, data, padded = Model().double(), rows(tmp_path), rows(tmp_path, longer)
    together = loss(model, padded.fetch(np.arange(len(TEXTS)), 0))
    alone = torch.cat([loss(model, data.fetch(np.array([row]), 0)) for row in range(len(TEXTS))])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert together[-1] == 0


class Placed(Model):
    """Scores depend on where a token stands: by its column, unless its position is given."""

    def forward(self, input_ids, attention_mask, use_cache, position_ids=None):
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        return SimpleNamespace(logits=torch.tanh(self.table[input_ids] + places[..., None]) @ self.head)


def test_padding_on_the_left_needs_positions(tmp_path):
    model, loss, batch = Placed().double(), sequence_losses(), rows(tmp_path, 12).fetch(np.array([1]), 0)
    length = int(batch["attention_mask"].sum())
    left = {name: one.roll(12 - length, 1) for name, one in batch.items()}  # of a pair no target comes first
    placed = {**left, "position_ids": torch.arange(12)[None] - (12 - length)}
    torch.testing.assert_close(loss(model, placed), loss(model, batch), rtol=1e-6, atol=1e-6)
    assert abs(loss(model, left) - loss(model, batch)) > 0.01


def test_losses_by_hand(tmp_path):
    """Of prompt abc and completion d the targets are d and the end token."""
    model, batch = Model().double(), rows(tmp_path).fetch(np.array([1]), 0)
    ids = batch["input_ids"][0]
    scores = model(ids[None], batch["attention_mask"], False).logits[0].log_softmax(1)
    each = [-scores[place - 1, ids[place]].item() for place in (3, 4)]
    assert sequence_losses()(model, batch).item() == pytest.approx(sum(each) / 2, rel=1e-6)
    assert sequence_losses("sum", divisor=4)(model, batch).item() == pytest.approx(sum(each) / 4, rel=1e-6)


def test_a_long_record_moves_the_clipped_sum_by_at_most_the_threshold(tmp_path):
    """With a mean over the tokens of the batch it moved by up to 18 times the threshold."""
    short = [{"text": "ab"}] * 20

    def clipped(texts):
        return tacita.clipped_gradient_sum(
            Model(),
            sequence_losses(),
            rows(tmp_path, texts=texts).fetch(np.arange(len(texts)), 0),
            clipper=tacita.FlatClipper(max_grad_norm=4.0),
            method="loop",
        )

    without, added = clipped(short), clipped([*short, {"text": "e" * 31}])
    moved = sum((added.sum[name] - without.sum[name]).double().square().sum() for name in added.sum) ** 0.5
    assert moved <= 4.0 * (1 + 1e-4)
    assert moved > 0.5


@pytest.mark.parametrize(
    ("loss", "divisor", "words"),
    [
        ("batch", None, "each record would be divided by the other records' number of tokens"),
        ("mean", 4.0, "belongs to loss='sum'"),
        ("sum", None, "belongs to loss='sum'"),
        ("sum", 0.0, "divisor must be"),
    ],
)
def test_a_loss_of_the_batch_is_refused(loss, divisor, words):
    with pytest.raises(ValueError, match=words):
        sequence_losses(loss, divisor=divisor)


def test_a_record_without_a_target_is_not_scored(tmp_path):
    model, batch = Model(), rows(tmp_path).fetch(np.arange(len(TEXTS)), 0)
    found = scored_losses(model, batch)
    assert found.isnan().tolist() == [False, False, False, True]
    assert torch.equal(found[:3], sequence_losses()(model, batch)[:3])


def test_a_token_that_the_model_cannot_say_is_no_target(tmp_path):
    model, batch = Model().double(), rows(tmp_path).fetch(np.array([0]), 0)  # a, b and the end token
    short = Model().double()
    short.head = torch.nn.Parameter(model.head[:, : FIRST + ord("b")].detach())
    ids = batch["input_ids"][0]
    scores = short(ids[None], batch["attention_mask"], False).logits[0].log_softmax(1)
    assert sequence_losses()(short, batch).item() == pytest.approx(-scores[1, ids[2]].item(), rel=1e-6)
    nothing = {**batch, "labels": batch["labels"].where(batch["labels"] > FIRST + ord("a"), -100)}
    assert scored_losses(short, nothing).isnan().all()  # b alone is left, which it cannot say


def test_records_longer_than_the_positions_are_refused_when_the_oracle_is_built(tmp_path):
    model = Model()
    model.config = SimpleNamespace(max_position_embeddings=31)
    with pytest.raises(ValueError, match="records have 32 tokens, and the model 31 positions"):
        tacita.ClippedGradientOracle(
            model, sequence_losses(), rows(tmp_path),
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one text"),
            sampler=tacita.FullBatchSampler(num_records=4), clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=1,
        )  # fmt: skip


LONG = [{"text": "a"}, {"prompt": "bc" * 9, "completion": "d" * 9}, {"text": "ef" * 30}, {"text": "g" * 23}, 3]


def windows(folder, count, max_tokens=8, texts=LONG):
    found = EncodedTexts(TokenEncoder(tokenizer=Tokenizer(), max_tokens=max_tokens, windows=count), folder)
    found.extend(read_line(json.dumps(text).encode()) for text in texts)
    return found.fetch(np.arange(len(texts)), 0)


class Neighbour(Model):
    """Predicts a token from the one before alone, so that where a text is cut changes nothing."""

    def forward(self, input_ids, attention_mask, use_cache):
        return SimpleNamespace(logits=torch.tanh(self.table[input_ids]) @ self.head)


@pytest.mark.parametrize("loss", [sequence_losses(), sequence_losses("sum", divisor=16)])
def test_windows_hold_each_target_once(loss, tmp_path):
    """A text of 22 tokens in windows of 8 has the loss that it has whole, under a model for which windows are equal."""
    model, whole, cut = Neighbour().double(), windows(tmp_path, 1, 22), windows(tmp_path, 3)
    assert cut["input_ids"].shape == (len(LONG), 3, 8)
    torch.testing.assert_close(loss(model, cut), loss(model, whole), rtol=1e-5, atol=1e-6)
    assert torch.equal(scored_losses(model, cut).isnan(), scored_losses(model, whole).isnan())
    assert cut["attention_mask"][..., 0].all()


def test_windows_by_hand(tmp_path):
    """Tokens 1 to 9 in windows of 4: each begins with the last token of the one before."""
    batch = windows(tmp_path, 4, 4, [{"prompt": "12", "completion": "3456789"}])
    texts = ["".join(chr(token - FIRST) for token in own if token) for own in batch["input_ids"][0].tolist()]
    assert texts == ["1234", "4567", "789", ""]
    assert (batch["labels"][0] != -100).tolist() == [
        [False, False, True, True], [True] * 4, [True] * 4, [True, False, False, False],
    ]  # fmt: skip
    assert batch["attention_mask"][0].tolist() == [[1] * 4] * 3 + [[1, 0, 0, 0]]


@pytest.mark.parametrize("method", ["loop", "auto"])
def test_a_record_of_windows_is_clipped_once(method, tmp_path):
    def clipped(texts):
        found = tacita.clipped_gradient_sum(
            Model(), sequence_losses(), windows(tmp_path, 4, texts=texts),
            clipper=tacita.FlatClipper(max_grad_norm=0.5), method=method,
        ).sum  # fmt: skip
        return torch.cat([one.flatten() for one in found.values()]).double()

    alone = [clipped([text]) for text in LONG]
    torch.testing.assert_close(clipped(LONG), sum(alone), rtol=1e-4, atol=1e-6)
    assert max(float(one.norm()) for one in alone) == pytest.approx(0.5, rel=1e-4)
