"""Records as tokens of one public length. What becomes of a record follows from the record and public settings alone.

line ──read_line──> TextRecord ──TokenEncoder──> Tokens ──> EncodedTexts, a data set in a file without a name
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacita import _validate
from tacita.finetune.chat import ChatTemplate
from tacita.finetune.records import Line, TextRecord
from tacita.tables.mapped_rows import MappedRows
from tacita.tables.source import is_failure, private_rows

IGNORED = -100  # the label of a position that is no target
_LETTERS = 64  # a text is cut to so many letters a token before it is encoded
_PLAIN = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False, "verbose": False}
_TRIALS = 20  # after which a tokenizer that draws has most likely written another text in another way
PUBLIC = "The quick brown fox jumps over 26 lazy dogs. " * 40  # encoded time and again before any record
_TURNS = 256  # of a conversation that are read: a template writes each of them anew for each answer
_TURN = 200  # letters of which a turn takes the memory, be it empty
_ROWS_AT_ONCE, _LETTERS_AT_ONCE = 2**8, 2**24  # that wait to be encoded together


@dataclass(frozen=True)
class Tokens:
    """The tokens of a record, and which of them it is trained to say.

    Attributes:
        ids: The tokens, at most as many as the encoder keeps.
        targets: For each, whether it is a target. The first token of a sequence is never predicted.
        length: Number of tokens before the record was cut.
    """

    ids: list[int]
    targets: list[bool]
    length: int

    @property
    def counts(self) -> bool:
        """Whether any target can be predicted."""
        return any(self.targets[1:])


NOTHING = Tokens([], [], 0)


@dataclass(frozen=True, kw_only=True)
class TokenEncoder:
    """Encodes records; all settings are public.

    Text and completion end with the end token, which is a target. Marks of special tokens inside of a text or a pair
    are text. Prompt and completion are encoded apart from each other, so that no token spans both.

    Attributes:
        tokenizer: The model's own, as of transformers.
        max_tokens: The public length of a window.
        windows: Number of windows of a record, each of which begins with the last token of the one before, so that
            every token but the first is predicted once. A record that does not fit into them is cut.
        cut: ``"prompt"``: a long record loses the left of its prompt, of which a quarter of what is kept stays, then
            the right of the rest. ``"end"``: it loses its right.
        mask_prompt: Whether only completions and what the assistant says are targets.
        chat: The template of messages; ``None`` if messages contribute nothing.
        largest: The largest number of a token.

    Raises:
        ValueError: The tokenizer has no end token, has no token for a letter, or draws at random.
    """

    tokenizer: Any
    max_tokens: int
    windows: int = 1
    cut: Literal["prompt", "end"] = "prompt"
    mask_prompt: bool = True
    chat: ChatTemplate | None = None
    _begin: list[int] = field(init=False, repr=False)
    _end: int = field(init=False, repr=False)
    _fast: bool = field(init=False, repr=False)  # in Rust, whose tokens are always numbers of the vocabulary
    largest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.count("max_tokens", self.max_tokens, at_least=2)
        _validate.count("windows", self.windows)
        object.__setattr__(self, "_end", self.tokenizer.eos_token_id)
        object.__setattr__(self, "_fast", getattr(self.tokenizer, "is_fast", False))
        object.__setattr__(self, "largest", max(self.tokenizer.get_vocab().values()))
        if self._end is None:
            raise ValueError("the tokenizer has no end token, without which a model never learns to stop: set one.")
        self.tokenizer(["a"], **_PLAIN)  # raises here what it raises for every text: later a text is passed over
        begin, written = self.tokenizer.bos_token_id, self.tokenizer("a")["input_ids"]
        if not self.tokenizer("a", **_PLAIN)["input_ids"]:
            raise ValueError("the tokenizer has no token for 'a': are all of its files in MODEL?")
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        drawn = len({repr(self._encoded([PUBLIC])) for _ in range(_TRIALS)}) > 1
        if drawn or getattr(getattr(backend, "model", None), "dropout", None):
            raise ValueError("the tokenizer draws at random (dropout or sampling among its settings): take that out.")
        object.__setattr__(self, "_begin", [begin] if begin is not None and [*written[:1]] == [begin] else [])

    @property
    def most(self) -> int:
        """How many tokens of a record are kept."""
        return self.windows * (self.max_tokens - 1) + 1

    @property
    def letters(self) -> int:
        """How many letters of a text are encoded at most: no line takes minutes."""
        return _LETTERS * self.most

    def encode(self, records: Sequence[TextRecord | None]) -> list[Tokens]:
        """Return the tokens of each record; of one without a target, none. No record changes another's tokens."""
        found = iter(self._encoded([text for record in records for text in self._texts(record)]))
        return [NOTHING if record is None else self._tokens(record, found) for record in records]

    def _encoded(self, texts: list[str]) -> Sequence[list[int] | None]:
        """Return the tokens of each text, in which marks of special tokens are text; ``None`` where it is refused."""
        try:
            return self.tokenizer(texts, **_PLAIN)["input_ids"] if texts else []  # at once, which is quicker
        except BaseException as error:  # by a tokenizer that has no token for what it does not know
            if not is_failure(error):
                raise
            return [None] if len(texts) == 1 else [one for text in texts for one in self._encoded([text])]

    def _texts(self, record: TextRecord | None) -> list[str]:
        """Return prompt and completion, or a text, as they are encoded; of messages nothing."""
        if record is None or record.form == "messages":
            return []
        most = self.letters
        return [turn.content[:most] if turn.role == "assistant" else turn.content[-most:] for turn in record.turns]

    def _tokens(self, record: TextRecord, texts: Iterator[list[int] | None]) -> Tokens:
        ids, targets = self._messages(record) if record.form == "messages" else self._written(record, texts)
        length = len(ids)
        if not self._fast and not all(one is not None and 0 <= one <= self.largest for one in ids):
            return NOTHING  # for what it does not know a tokenizer in Python may write anything
        if length > self.most:
            ids, targets = self._short(ids, targets)
        found = Tokens(ids, targets, length)
        return found if found.counts else NOTHING

    def _written(self, record: TextRecord, texts: Iterator[list[int] | None]) -> tuple[list[int], list[bool]]:
        """Return prompt and completion, or a text, with the begin token, if the model has one, and the end token."""
        ids, targets = [*self._begin], [False] * len(self._begin)
        own_texts = [next(texts) for _ in record.turns]
        for turn, own in zip(record.turns, own_texts, strict=True):
            if own is None:
                return [], []
            ids += own
            targets += [turn.role == "assistant" or not self.mask_prompt] * len(own)
        ids.append(self._end)
        targets.append(True)
        return ids, targets

    def _messages(self, record: TextRecord) -> tuple[list[int], list[bool]]:
        if self.chat is None or sum(len(turn.content) for turn in record.turns) > self.letters:
            return [], []
        ids: list[int] = []
        targets: list[bool] = []
        try:
            for text, said in self.chat.pieces(record.turns[:_TURNS]) or []:
                own = self.chat.tokens(text)
                ids += own
                targets += [said or not self.mask_prompt] * len(own)
        except BaseException as error:  # the template refuses this conversation, such as two questions in a row
            if not is_failure(error):
                raise
            return [], []
        return ids, targets

    def _short(self, ids: list[int], targets: list[bool]) -> tuple[list[int], list[bool]]:
        most = self.most
        prompt = targets.index(True) if self.cut == "prompt" and True in targets else 0
        kept = min(prompt, max(most // 4, most - (len(ids) - prompt)))
        start = prompt - kept
        return ids[start : start + most], targets[start : start + most]


@contextmanager
def _no_standard_error() -> Iterator[None]:
    """Drop what is written to standard error: a tokenizer in Rust says there where in a text it failed."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class EncodedTexts(MappedRows):
    """A data set of encoded records for an oracle: all of one length, padded on the right.

    A batch is a dict of ``input_ids``, ``attention_mask`` and ``labels`` of type int64, (batch, max_tokens), or with
    several windows (batch, windows, max_tokens). The label is ``-100`` where a position is no target, padding included:
    what is masked is a position, never a number, so that the end token is learned even where padding is the same
    number.

    Args:
        encoder: Encodes the records.
        folder: A folder on the disk that is to hold the file.
    """

    def __init__(self, encoder: TokenEncoder, folder: Path):
        self._encoder = encoder
        length = encoder.most
        number = "<u2" if encoder.largest < 2**16 else "<u4"
        fields = [("ids", number, (length,)), ("targets", "u1", (-(-length // 8),)), ("length", "<u4")]
        super().__init__(np.dtype(fields), folder)

    def extend(self, lines: Iterable[Line]) -> list[str | None]:
        """Append one record for each line, and return the person of each line. What raises quotes no line."""
        with private_rows("encoding the texts"), _no_standard_error():
            return self._extend(lines)

    def _extend(self, lines: Iterable[Line]) -> list[str | None]:
        units: list[str | None] = []
        waiting: list[TextRecord | None] = []
        letters = 0
        for line in lines:
            units.append(line.unit)
            waiting.append(line.record)
            letters += 0 if line.record is None else sum(_TURN + len(turn.content) for turn in line.record.turns)
            if len(waiting) == _ROWS_AT_ONCE or letters > _LETTERS_AT_ONCE:
                self._append(waiting)
                waiting, letters = [], 0
        self._append(waiting)
        return units

    def _append(self, records: list[TextRecord | None]) -> None:
        packed = np.zeros(len(records), self._dtype)
        targets = np.zeros((len(records), self._encoder.most), bool)
        for row, tokens in enumerate(self._encoder.encode(records)):
            count = len(tokens.ids)
            packed["ids"][row, :count], targets[row, :count], packed["length"][row] = tokens.ids, tokens.targets, count
        packed["targets"] = np.packbits(targets, axis=1)
        self.append_packed(packed)

    def fetch(self, indices: np.ndarray, seed: int) -> dict[str, Tensor]:
        """Return the batch of some records."""
        packed, length = self.packed(np.asarray(indices, np.int64)), self._encoder.most
        ids = torch.from_numpy(packed["ids"].astype(np.int64))
        targets = torch.from_numpy(np.unpackbits(packed["targets"], axis=1)[:, :length].astype(bool))
        mask = (torch.arange(length) < torch.from_numpy(packed["length"].astype(np.int64))[:, None]).long()
        whole = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~targets, IGNORED)}
        batch = {name: self._windows(one) for name, one in whole.items()}
        # A window without tokens attends to its first padding: attention over nothing is NaN in some kernels.
        batch["attention_mask"][..., 0] = 1
        return batch

    def like(self) -> dict[str, Tensor]:
        ones = torch.ones(1, self._encoder.most, dtype=torch.int64)
        return {name: self._windows(ones) for name in ("input_ids", "attention_mask", "labels")}

    def _windows(self, whole: Tensor) -> Tensor:
        length = self._encoder.max_tokens
        return whole.unfold(1, length, length - 1).clone() if self._encoder.windows > 1 else whole.clone()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._encoder.max_tokens} tokens)"
