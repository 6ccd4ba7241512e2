"""Restaurant descriptions (E2E NLG), and a small transformer that writes them.

Source: Zhang, Bu, Wu, Hong (DiceSGD), section 4. The paper fine-tunes GPT-2 on 42,000 pairs; here a small transformer
learns from scratch on the development set, with a vocabulary of its words, which is public as the data are.
"""

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tacita_reproductions.dicesgd_runs import DiceTask, Rows
from tacita_reproductions.runner import needed_files
from tacita_reproductions.text_scores import bleu, cider, nist, rouge_l

PAD, END, START, OTHER = range(4)  # the first words of a vocabulary
RARE = 5  # a word of fewer training texts is "other"
LENGTH = 64  # tokens of a meaning and its text; a longer one is cut
AT_ONCE = 256  # rows that are measured at once
Pairs = Sequence[tuple[str, str]]  # meaning, text


class Tokenizer(Protocol):
    """Text to numbers and back."""

    @property
    def size(self) -> int:
        """How many numbers there are."""
        ...

    @property
    def length(self) -> int:
        """The longest sequence; a longer one is cut."""
        ...

    def pair(self, meaning: str, text: str | None) -> tuple[list[int], int]:
        """Return the numbers of a meaning, of what separates it, and of a text; and where the text begins."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of numbers up to the first end."""
        ...


@dataclass(frozen=True)
class WordTokenizer:
    """A vocabulary of words, the first four of which are marks."""

    words: tuple[str, ...]
    length: int = LENGTH

    @classmethod
    def of(cls, pairs: Pairs) -> "WordTokenizer":
        """Return the words of at least five texts, the frequent ones first."""
        counts = Counter(word for meaning, text in pairs for word in set(asked(meaning) + split(text)))
        return cls(("", ".end", ".start", ".other", *(word for word, of in counts.most_common() if of >= RARE)))

    @property
    def size(self) -> int:
        return len(self.words)

    def pair(self, meaning: str, text: str | None) -> tuple[list[int], int]:
        known = {word: place for place, word in enumerate(self.words)}
        start = [*(known.get(word, OTHER) for word in asked(meaning)), START]
        texts = [] if text is None else [*(known.get(word, OTHER) for word in split(text)), END]
        return start + texts, len(start)

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in itertools.takewhile(lambda token: token != END, tokens))


def split(text: str) -> list[str]:
    """Return the words and marks of a text, in lower case."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def asked(meaning: str) -> list[str]:
    """Return the words of a meaning without its brackets and commas."""
    return re.findall(r"\w+", meaning.lower())


class SmallTransformer(nn.Module):
    """A causal transformer with fixed positions: tokens (batch, length) -> logits (batch, length, size)."""

    positions: Tensor
    mask: Tensor

    def __init__(self, size: int, length: int, *, width: int = 48, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        layer = partial(nn.TransformerEncoderLayer, width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, size)
        angles = torch.arange(length)[:, None] * torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.cat((angles.sin(), angles.cos()), dim=1))
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.positions[:length]
        for layer in self.layers:
            x = layer(x, src_mask=self.mask[:length, :length])
        return self.head(self.norm(x))


def text_losses(network: Callable[[Tensor], Tensor], batch: Rows) -> Tensor:
    """Return the mean cross-entropy of each text's tokens, given its meaning."""
    tokens, counted = batch
    found = nn.functional.cross_entropy(network(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
    return (found * counted[:, 1:]).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def loss_of(network: nn.Module, rows: Rows) -> float:
    """Return the mean loss of all rows."""
    parts = zip(*(tensor.split(AT_ONCE) for tensor in rows), strict=True)
    return sum(float(text_losses(network, part).sum()) for part in parts) / len(rows[0])


def text_rows(pairs: Pairs, tokenizer: Tokenizer) -> Rows:
    """Return tokens (rows, length), and 1 for each token of a text, else 0."""
    tokens = torch.full((len(pairs), tokenizer.length), PAD)
    counted = torch.zeros(len(pairs), tokenizer.length)
    for row, (meaning, text) in enumerate(pairs):
        found, first = tokenizer.pair(meaning, text)
        found = found[: tokenizer.length]
        tokens[row, : len(found)] = torch.tensor(found)
        counted[row, first : len(found)] = 1
    return tokens, counted


def pairs_of(path: Path) -> list[tuple[str, str]]:
    """Return meanings and texts of a file with the columns ``mr`` and ``ref``."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["mr"], row["ref"]) for row in csv.DictReader(file)]


def made_up(count: int) -> list[tuple[str, str]]:
    """Return descriptions of made-up places: all combinations of a few names, foods and areas, in turn."""
    names, foods, areas = ("Alba", "Brook", "Cedar", "Dune"), ("fish", "tea", "soup"), ("north", "south")
    known = [
        (f"name[{name}], food[{food}], area[{area}]", f"{name} in the {area} serves {food} .")
        for name, food, area in itertools.product(names, foods, areas)
    ]
    return list(itertools.islice(itertools.cycle(known), count))


def restaurants(data: Path | None, **more: Any) -> DiceTask:
    """Return the small transformer's task; made-up places without a folder."""
    if data is None:
        train, test, name = made_up(240), made_up(24), "made-up places, transformer"
    else:
        needed_files(data, ("e2e/devset.csv", "e2e/testset_w_refs.csv"))
        train, test = (pairs_of(data / "e2e" / name) for name in ("devset.csv", "testset_w_refs.csv"))
        name = "E2E, transformer"
    tokenizer = WordTokenizer.of(train)
    build = partial(SmallTransformer, tokenizer.size, LENGTH)
    return text_task(name, build, tokenizer, train, test, tested=500, described=100, **more)


def text_task(
    name: str,
    build: Callable[[], nn.Module],
    tokenizer: Tokenizer,
    train: Pairs,
    test: Pairs,
    *,
    tested: int | None = None,
    described: int | None = None,
    **more: Any,
) -> DiceTask:
    """Return a task: the test loss is that of ``tested`` pairs, the scores are those of ``described`` meanings."""
    return DiceTask(
        name=name,
        build=build,
        losses=text_losses,
        train=text_rows(train, tokenizer),
        test=text_rows(test[:tested], tokenizer),
        measures=loss_of,
        larger_is_better=False,
        scores=partial(scores, pairs=test, tokenizer=tokenizer, most=described),
        references=[f"{described} meanings", *(text for pair in test for text in pair)],
        **more,
    )


def written(network: nn.Module, meanings: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return the text of each meaning, the likeliest token at each place."""
    starts = [tokenizer.pair(meaning, None)[0][: tokenizer.length - 1] for meaning in meanings]
    tokens = torch.full((len(meanings), tokenizer.length), PAD)
    for row, start in enumerate(starts):
        tokens[row, : len(start)] = torch.tensor(start)
    ends = torch.tensor([len(start) for start in starts])
    every = torch.arange(len(starts))
    with torch.no_grad():
        while bool((ends < tokenizer.length).any()):
            place = ends.clamp(max=tokenizer.length - 1)
            new = network(tokens)[every, place - 1].argmax(dim=1)
            writes = ends < tokenizer.length
            tokens[every[writes], place[writes]] = new[writes]
            ends = ends + 1
    return [
        tokenizer.text(row[len(start) :].tolist()) for row, start in zip(tokens, starts, strict=True)
    ]  # words after the end do not count


def scores(network: nn.Module, pairs: Pairs, tokenizer: Tokenizer, most: int | None) -> dict[str, float]:
    """Return the scores of the texts for the first ``most`` different meanings, against all their references."""
    known: dict[str, list[list[str]]] = {}
    for meaning, text in pairs:
        known.setdefault(meaning, []).append(split(text))
    meanings = list(known)[:most]
    generated = [split(text) for text in written(network, meanings, tokenizer)]
    references = [known[meaning] for meaning in meanings]
    return {
        "BLEU": 100 * bleu(generated, references),
        "NIST": nist(generated, references),
        "ROUGE-L": 100 * rouge_l(generated, references),
        "CIDEr": cider(generated, references),
    }
