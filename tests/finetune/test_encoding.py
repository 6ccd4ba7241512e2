"""Tokens and targets by hand; a record's tokens follow from the record alone."""

import json
import logging
import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tacita.finetune import ChatTemplate, EncodedTexts, TokenEncoder, encoding, text_run
from tacita.finetune.records import Line, TextRecord, Turn, read_line
from tests.finetune.toy import MARKED, Tokenizer, spell

END = 0


def encoder(max_tokens=32, **changes):
    tokenizer = changes.pop("tokenizer", Tokenizer())
    return TokenEncoder(tokenizer=tokenizer, max_tokens=max_tokens, chat=ChatTemplate(tokenizer), **changes)


def encoded(fields, **changes):
    (found,) = encoder(**changes).encode([read_line(json.dumps(fields).encode()).record])
    return found


def chat(*contents):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]}


def by_hand(*parts):
    """Tokens and targets from pairs (a text or a token, whether it is a target)."""
    ids, targets = [], []
    for part, said in parts:
        own = [part] if isinstance(part, int) else spell(part)
        ids += own
        targets += [said] * len(own)
    return ids, targets


@pytest.mark.parametrize(
    ("fields", "changes", "parts"),
    [
        ({"text": "ab"}, {}, [("ab", True), (END, True)]),
        ({"text": ""}, {}, []),  # the end token alone has nothing before it that could predict it
        ({"prompt": "ab", "completion": "c"}, {}, [("ab", False), ("c", True), (END, True)]),
        ({"prompt": "ab", "completion": "c"}, {"mask_prompt": False}, [("abc", True), (END, True)]),
        ({"prompt": "ab", "completion": ""}, {}, [("ab", False), (END, True)]),
        ({"prompt": "", "completion": "c"}, {}, [("c", True), (END, True)]),
        ({"text": "<|end|>"}, {}, [("<|end|>", True), (END, True)]),  # the mark inside of a text is text
        (chat("a", "b"), {}, [(1, False), ("a", False), (0, False), (2, False), ("b", True), (0, True)]),
        (chat("a"), {}, []),  # nobody answers
        (
            chat("a", "b", "c", "d", "e"),  # the last question is left out
            {},
            [
                *[(1, False), ("a", False), (0, False), (2, False), ("b", True), (0, True)],
                *[(1, False), ("c", False), (0, False), (2, False), ("d", True), (0, True)],
            ],
        ),
    ],
)
def test_tokens_and_targets_by_hand(fields, changes, parts):
    found = encoded(fields, **changes)
    assert (found.ids, found.targets) == by_hand(*parts)


def test_records_that_are_encoded_together_are_encoded_as_alone():
    given = [{"text": "ab"}, 3, chat("a", "b"), {"prompt": "c", "completion": "d"}, chat("e"), {"text": "f" * 99}]
    together = encoder().encode([read_line(json.dumps(one).encode()).record for one in given])
    assert together == [encoded(one) for one in given]


PAIR = {"prompt": "abcdefgh", "completion": "ijklmnop"}  # 8 + 8 + the end token


@pytest.mark.parametrize(
    ("most", "cut", "prompt", "completion"),
    [
        (17, "prompt", "abcdefgh", "ijklmnop\0"),
        (16, "prompt", "bcdefgh", "ijklmnop\0"),
        (12, "prompt", "fgh", "ijklmnop\0"),
        (8, "prompt", "gh", "ijklmn"),
        (4, "prompt", "h", "ijk"),
        (12, "end", "abcdefgh", "ijkl"),
        (8, "end", "", ""),  # no target is left
    ],
)
def test_what_a_long_record_loses(most, cut, prompt, completion):
    found = encoded(PAIR, max_tokens=most, cut=cut)
    end = [(END, True)] if completion.endswith("\0") else []
    assert (found.ids, found.targets) == by_hand((prompt, False), (completion.rstrip("\0"), True), *end)
    assert found.length == (17 if found.ids else 0)


def read_slowly(prompt, completion, cut, length, windows):
    """The pairs (token, the one that it is to predict) of each window, and how many tokens a window has."""
    tokens = [(letter, False) for letter in prompt] + [(letter, True) for letter in completion] + [("\0", True)]
    most = windows * (length - 1) + 1
    while len(tokens) > most:
        asked = sum(not said for _, said in tokens)
        del tokens[0 if cut == "prompt" and asked > most // 4 else -1]
    own = [tokens[k * (length - 1) : k * (length - 1) + length] for k in range(windows)]
    predicted = [[(a, b) for (a, _), (b, said) in pairwise(one) if said] for one in own]
    return (predicted, [max(len(one), 1) for one in own]) if any(predicted) else ([[]] * windows, [1] * windows)


@pytest.mark.parametrize("seed", range(60))
def test_cut_and_windows_are_those_of_a_slow_reader(seed, tmp_path):
    chance = random.Random(seed)
    prompt, completion = ("".join(chance.choices("abcdefgh", k=chance.randrange(30))) for _ in range(2))
    cut, length, windows = chance.choice(["prompt", "end"]), chance.randrange(2, 12), chance.randrange(1, 5)
    rows = EncodedTexts(encoder(length, cut=cut, windows=windows), tmp_path)
    rows.extend([read_line(json.dumps({"prompt": prompt, "completion": completion}).encode())])
    batch = {name: one.view(windows, length).tolist() for name, one in rows.fetch(np.array([0]), 0).items()}
    letters = {token: letter for letter in "abcdefgh" for token in spell(letter)} | {END: "\0"}
    found = [
        [(letters[a], letters[b]) for a, b in zip(ids, labels[1:], strict=False) if b != encoding.IGNORED]
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    assert (found, [sum(one) for one in batch["attention_mask"]]) == read_slowly(
        prompt, completion, cut, length, windows
    )


def test_prompt_and_completion_are_encoded_apart():
    """A tokenizer that merges across their border would make a target of a part of the prompt."""

    class Merging(Tokenizer):
        def __call__(self, text, **settings):
            ids = super().__call__(text, **settings)["input_ids"]
            return {"input_ids": [9999] if ids == spell("ab") else ids}

    assert encoded({"prompt": "a", "completion": "b"}, tokenizer=Merging()).ids == [*spell("a"), *spell("b"), END]


class PanicException(BaseException):
    """As code in Rust raises it."""


def raises(error):
    raise error


REFUSALS = {
    "an error": lambda: raises(RuntimeError("no token for '~'")),
    "a panic of code in Rust": lambda: raises(PanicException("'~' at 3")),
    "no token": lambda: [[None]],
    "a token that is none": lambda: [[10**6]],
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_text_that_its_tokenizer_refuses_contributes_nothing_and_moves_no_other(refusal):
    class Refusing(Tokenizer):
        def __call__(self, text, **settings):
            if "~" in "".join(text) and (isinstance(text, str) or len(text) == 1):
                found = refusal()
                return {"input_ids": found if isinstance(text, list) else found[0]}
            if "~" in "".join(text):
                raise RuntimeError("one of many")
            return super().__call__(text, **settings)

    fields = [{"text": "ab"}, {"prompt": "~", "completion": "b"}, chat("~", "a"), {"prompt": "a", "completion": "b"}]
    records = [read_line(json.dumps(one).encode()).record for one in fields]
    found = encoder(tokenizer=Refusing()).encode(records)
    assert [one.ids != [] for one in found] == [True, False, False, True]
    assert found[::3] == encoder().encode(records[::3])


@pytest.mark.parametrize("fields", [{"text": "~"}, chat("~", "a")])
def test_a_stop_ends_the_encoding(fields):
    class Stopped(Tokenizer):
        def __call__(self, text, **settings):
            return raises(KeyboardInterrupt) if "~" in "".join(text) else super().__call__(text, **settings)

    with pytest.raises(KeyboardInterrupt):
        encoded(fields, tokenizer=Stopped())


def test_nothing_that_a_tokenizer_logs_or_writes_of_a_record_is_heard(tmp_path, caplog, capfd):
    class Telling(Tokenizer):
        def __call__(self, text, **settings):
            logging.getLogger("transformers").error("too long: %s", text)
            os.write(2, b"thread panicked: the len is 6")
            return super().__call__(text, **settings)

    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": "SECRET"}) + "\n")
    telling = encoder(tokenizer=Telling())
    caplog.clear()
    capfd.readouterr()
    text_run.encoded(telling, path, tmp_path, None)
    assert not caplog.records
    assert not capfd.readouterr().err
    logging.getLogger("transformers").error("heard again")
    assert caplog.records


def test_a_tokenizer_that_refuses_every_text_is_refused_before_any_record():
    class Older(Tokenizer):
        def __call__(self, text, add_special_tokens=True, verbose=True):
            return super().__call__(text)

    with pytest.raises(TypeError, match="unexpected keyword"):
        encoder(tokenizer=Older())


def test_a_tokenizer_without_words_or_with_coins_is_refused_before_any_record():
    class Empty(Tokenizer):
        def __call__(self, text, **settings):
            return {"input_ids": [[] for _ in text] if isinstance(text, list) else []}

    with pytest.raises(ValueError, match="no token for 'a'"):
        encoder(tokenizer=Empty())

    class Drawing(Tokenizer):
        """Now and then another token, as with dropout or sampling, by whatever setting."""

        def __call__(self, text, **settings):
            found = super().__call__(text, **settings)
            if isinstance(text, list) and random.random() < 0.5:
                found["input_ids"][0][-1] += 1
            return found

    with pytest.raises(ValueError, match="draws at random"):
        encoder(tokenizer=Drawing())


def test_a_record_with_a_token_of_no_number_contributes_nothing():
    class Negative(Tokenizer):
        def __call__(self, text, **settings):
            found = super().__call__(text, **settings)
            if text == ["odd"]:
                found["input_ids"] = [[-1, 4]]
            return found

    odd = TextRecord("text", (Turn("assistant", "odd"),))
    assert not encoder(tokenizer=Negative()).encode([odd])[0].counts


def test_a_conversation_may_begin_with_the_assistant():
    """Many a template writes no conversation of no turn; where the first answer begins in its words is not known."""
    strict = Tokenizer("{% if not messages %}{{ raise_exception('empty conversation') }}{% endif %}" + MARKED)
    record = TextRecord("messages", (Turn("assistant", "hi"), Turn("user", "a"), Turn("assistant", "b")))
    (found,) = encoder(tokenizer=strict, max_tokens=64).encode([record])
    assert bytes(token - 3 for token in found.ids if token > 2) == b"hiab"
    said = [token for token, own in zip(found.ids, found.targets, strict=True) if own and token > 2]
    assert bytes(token - 3 for token in said) == b"b"


def test_a_long_conversation_is_read_up_to_a_public_number_of_turns():
    few, many = ([Turn(("user", "assistant")[k % 2], "a") for k in range(n)] for n in (encoding._TURNS, 5000))
    few, many = encoder(max_tokens=4096).encode([TextRecord("messages", tuple(one)) for one in (few, many)])
    assert few == many
    assert few.ids


def test_a_model_that_begins_with_a_token_gets_it():
    class Beginning(Tokenizer):
        bos_token_id = 1

        def __call__(self, text, add_special_tokens=True, **settings):
            ids = super().__call__(text, add_special_tokens=add_special_tokens, **settings)["input_ids"]
            return {"input_ids": [1, *ids] if add_special_tokens else ids}

    assert encoded({"text": "a"}, tokenizer=Beginning()).ids == [1, *spell("a"), END]


# --- templates -------------------------------------------------------------------------------------------------------


class Spanning(Tokenizer):
    """Its token of the end of a turn and the beginning of the next is one."""

    def __call__(self, text, **settings):
        return super().__call__(text.replace("<|end|><|user|>", "#"), **settings)


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (Tokenizer(None), "has no chat template"),
        (Tokenizer("counts"), "is not additive"),
        (
            Tokenizer("refuses"),
            r"fails on a conversation of two questions: no system turns here\. Another way: give another",
        ),
        (Spanning(), "span the edge"),
    ],
)
def test_a_template_that_cannot_tell_the_answers_is_refused_before_any_record(tokenizer, words):
    with pytest.raises(ValueError, match=words):
        ChatTemplate(tokenizer)


def test_a_conversation_that_its_template_refuses_contributes_nothing():
    two = [Turn("user", "a"), Turn("user", "b"), Turn("assistant", "c")]
    record = read_line(json.dumps({"messages": [vars(turn) for turn in two]}).encode()).record
    assert not encoder(tokenizer=Tokenizer("alternates")).encode([record])[0].ids
    assert encoder().encode([record])[0].ids


def test_marks_inside_of_a_message_move_no_other_turn():
    plain, marked = encoded(chat("a", "bc")), encoded(chat("<|assistant|>", "bc"))
    assert marked.targets[-3:] == plain.targets[-3:]
    assert sum(marked.targets) == sum(plain.targets)


def test_without_an_end_token_no_model_would_stop():
    tokenizer = Tokenizer()
    tokenizer.eos_token_id = None
    with pytest.raises(ValueError, match="no end token"):
        encoder(tokenizer=tokenizer)


# --- the data set ----------------------------------------------------------------------------------------------------

LINES = [
    read_line(json.dumps(fields).encode())
    for fields in [{"text": "ab"}, 3, PAIR, chat("a", "b"), {"text": "x" * 100}, {"text": "é"}]
]


@pytest.mark.parametrize("template", [None, "marks"])
def test_the_code_of_the_page_takes_a_tokenizer_with_a_template_or_without(template, tmp_path):
    page = Path(__file__).parents[2] / "docs/finetuning.md"
    (code,) = (part for part in page.read_text().split("```python\n") if "def encoded(" in part)
    exec(code.partition("```")[0], found := {})
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "a"}) + "\n" + json.dumps(chat("a", "b")))
    rows = found["encoded"](Tokenizer(template), tmp_path / "texts.jsonl", tmp_path, 8)
    counts = (rows.fetch(np.arange(2), 0)["labels"] != -100).any(1).tolist()
    assert counts == [True, template is not None]


def test_a_batch_holds_the_records_at_their_places(tmp_path):
    rows = EncodedTexts(encoder(12), tmp_path)
    rows.extend(LINES)
    batch = rows.fetch(np.array([0, 1, 2]), 0)
    assert batch["input_ids"][0].tolist() == [*spell("ab"), END, *[0] * 9]
    assert batch["labels"][0].tolist() == [*spell("ab"), END, *[-100] * 9]  # the end token is learned, padding is not
    assert batch["attention_mask"].sum(1).tolist() == [3, 1, 12]
    assert (batch["labels"][1] == -100).all()
    assert all(batch[name].shape[1:] == like.shape[1:] for name, like in rows.like().items())


def test_a_record_is_the_same_whatever_stands_beside_it(tmp_path):
    """Removing a line changes no other record's tokens."""
    whole, fewer = EncodedTexts(encoder(12), tmp_path), EncodedTexts(encoder(12), tmp_path)
    whole.extend(LINES)
    fewer.extend(LINES[:4] + LINES[5:])
    left = [0, 1, 2, 3, 5]
    for name, found in fewer.fetch(np.arange(5), 0).items():
        assert torch.equal(found, whole.fetch(np.array(left), 0)[name])


def test_persons_come_with_the_lines(tmp_path):
    rows = EncodedTexts(encoder(), tmp_path)
    assert rows.extend([Line(None, '"ann"'), Line(None)]) == ['"ann"', None]
    assert len(rows) == 2
    assert [*tmp_path.iterdir()] == []


def test_a_conversation_of_too_many_letters_contributes_nothing():
    most = 64 * 8  # letters a token, tokens
    assert encoded(chat("a" * (most - 1), "b"), max_tokens=8, cut="prompt").counts
    assert not encoded(chat("a" * most, "b"), max_tokens=8, cut="prompt").counts


def test_empty_turns_wait_for_no_long_time(tmp_path, monkeypatch):
    """They have no letters, and take memory: a file of them must not fill it."""
    rows, met = EncodedTexts(encoder(), tmp_path), []
    append = EncodedTexts._append
    monkeypatch.setattr(EncodedTexts, "_append", lambda own, found: (met.append(len(found)), append(own, found)))
    monkeypatch.setattr(encoding, "_LETTERS_AT_ONCE", 1000)
    line = json.dumps({"messages": [{"role": "user", "content": ""}] * 3}).encode()
    rows.extend(read_line(line) for _ in range(5))
    assert met == [2, 2, 1]  # of three turns each, at 200 letters a turn
