"""Scores of texts by hand, the tokens of a pair, what the transformer learns, and the experiments on text."""

import json

import pytest
import torch

from tacita_reproductions import find
from tacita_reproductions.dicesgd_runs import METHODS, PLAIN, DiceSetting, oracle_of, run
from tacita_reproductions.dicesgd_text import _curve, text_checks
from tacita_reproductions.dicesgd_texts import (
    END,
    LENGTH,
    OTHER,
    START,
    WordTokenizer,
    loss_of,
    made_up,
    restaurants,
    scores,
    text_losses,
    text_rows,
    written,
)
from tacita_reproductions.text_scores import bleu, cider, nist, rouge_l

CAT = ["the", "cat", "sat", "on", "the", "mat"]


def test_a_text_that_is_a_reference_has_the_best_scores():
    dog = ["a", "dog", "ran", "in", "a", "park"]
    texts, references = [CAT, dog], [[CAT, dog[:3]], [dog]]
    assert bleu(texts, references) == rouge_l(texts, references) == pytest.approx(1.0)
    assert nist(texts, references) > nist([CAT, CAT], references)
    assert cider(texts, [[CAT], [dog]]) == pytest.approx(10.0)
    assert cider([dog, CAT], [[CAT], [dog]]) == 0.0


def test_bleu_clips_counts_and_punishes_short_texts():
    assert bleu([["the"] * 7], [[CAT]]) == 0.0
    half = bleu([CAT[:4]], [[CAT]])
    assert half == pytest.approx(2.718281828 ** (1 - 6 / 4))  # all n-grams match; four words for six
    first = ["a", "b", "c", "d", "x"]  # precisions 4/5, 3/4, 2/3, 1/2
    assert bleu([first], [[["a", "b", "c", "d", "e"]]]) == pytest.approx((0.8 * 0.75 * 2 / 3 * 0.5) ** 0.25)


def test_nist_of_two_thirds_of_the_length_is_half():
    whole, part = ["a", "b", "c"], ["a", "b"]
    long, short = nist([whole], [[whole]]), nist([part], [[whole]])
    per_word = 1.584962500721156  # log2(3), of every single word; longer sequences have no information
    assert long == pytest.approx(per_word)
    assert short == pytest.approx(per_word / 2)
    assert nist([[]], [[whole]]) == 0.0


def test_empty_texts_score_nothing():
    assert bleu([[]], [[CAT]]) == rouge_l([[]], [[CAT]]) == cider([[], CAT], [[CAT], [CAT]]) == 0.0


def test_tokens_of_a_pair():
    tokenizer = WordTokenizer.of(made_up(240))
    tokens, first = tokenizer.pair("name[Alba], food[fish], area[north]", "Alba in the north serves fish .")
    assert tokens[first - 1] == START
    assert tokens[-1] == END
    assert OTHER not in tokens
    assert tokenizer.text(tokens[first:]) == "alba in the north serves fish ."
    assert tokenizer.pair("name[Zeta]", None) == ([tokens[0], OTHER, START], 3)
    rows = text_rows([("name[Alba]", "Alba .")] * 2, tokenizer)
    assert rows[1].sum(dim=1).tolist() == [3.0, 3.0]  # two words and the end
    assert rows[0].shape == (2, LENGTH)
    assert text_rows([("name", "fish " * 100)], tokenizer)[1].sum() == LENGTH - 2


def test_a_loss_counts_the_text_alone_and_sees_nothing_that_comes_later():
    task = restaurants(None)
    network = task.build()
    batch = tuple(part[:6] for part in task.train)
    losses = text_losses(network, batch)
    tokens = batch[0].clone()
    ends = int(batch[1][0].nonzero().max())
    tokens[:, ends + 1 :] = OTHER
    assert losses.shape == (6,)
    assert torch.equal(text_losses(network, (tokens, batch[1]))[0], losses[0])
    with torch.no_grad():
        first, other = network(batch[0]), network(torch.cat((batch[0][:, :5], tokens[:, 5:].flip(1)), dim=1))
    assert torch.allclose(first[:, :5], other[:, :5], atol=1e-6)
    with torch.no_grad():
        assert loss_of(network, batch) == pytest.approx(float(losses.mean()), rel=1e-5)


def test_the_transformer_learns_to_write():
    task = restaurants(None, steps=40, sample_rate=0.1)
    found = run(task, DiceSetting(method=PLAIN, lr=1e-2), 0, marks=2)
    assert found.measures[1] < found.measures[0] < 1.0
    assert found.scores["BLEU"] > 80
    untrained = scores(task.build(), made_up(24), WordTokenizer.of(made_up(240)), 24)
    assert untrained["BLEU"] < 20
    assert len(written(task.build(), ["name[Alba]"] * 3, WordTokenizer.of(made_up(240)))) == 3


def test_small_runs_show_a_table_and_their_claims(tmp_path):
    result = find("dicesgd-table-3")(kept=tmp_path / "runs.jsonl")
    assert [row["method"] for row in result.rows] == list(METHODS)
    assert {"BLEU", "NIST", "ROUGE-L", "CIDEr"} <= set(result.rows[0])
    assert len(result.checks) == 4
    assert not result.checks[-1].held
    assert len([json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]) == len(METHODS)
    pytest.importorskip("matplotlib")
    assert result.draw is not None
    result.draw()


def test_a_smaller_loss_is_better():
    task = restaurants(None)
    setting = DiceSetting(method=PLAIN, lr=0.1)
    assert oracle_of(task, setting, task.build(), 0).planned_queries == task.steps
    from tacita_reproductions.dicesgd_runs import DiceRun

    found = {
        name: [DiceRun([9.0, 1.0 + place + 0.01 * one], 99.0, 0.1, {}) for one in range(2)]
        for place, name in enumerate((METHODS[2], METHODS[1], METHODS[3], METHODS[5]))
    }
    assert [check.held for check in text_checks(task, found)] == [True, False, True, False]
    assert [row["mean"] for row in _curve(task, "x", found[METHODS[2]])] == pytest.approx([9.0, 1.005])
