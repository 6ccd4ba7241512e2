"""The data of the noisy SGD paper's figures: images and sentences from a folder, or small synthetic stand-ins.

All of it is public. Pixels are scaled with constants, and the vocabulary is that of the public training sentences.
"""

import csv
import io
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tacita_reproductions.runner import needed_files

WORDS = 32  # the most of a sentence
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10, as published


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Training and test records with labels.

    Attributes:
        name: The data set, and how much of it there is.
        train, test: Inputs and labels.
        classes: Number of classes.
        vocabulary: Number of words, padding included; 0 for images.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    vocabulary: int = 0


def cifar(data: Path | None, classes: int, records: int, tests: int) -> LabelledData:
    """Return images of CIFAR-10 or CIFAR-100 from ``data``, or noise around four patterns of 16 x 16.

    More than 10,000 records of CIFAR-10 are the JPEG images of ``cifar10_jpeg_full.npz``, which need Pillow.
    """
    if data is None:
        return patterns(4, records, tests)
    if classes == 10 and records > 10_000:
        return _jpeg(data, records, tests)
    file = f"cifar{classes}_subset.npz"
    needed_files(data, [file])
    with np.load(data / file) as found:
        train = _scaled(found["x_train"][:records]), _labels(found["y_train"][:records])
        test = _scaled(found["x_test"][:tests]), _labels(found["y_test"][:tests])
    name = f"CIFAR-{classes}, {len(train[0]):,} training and {len(test[0]):,} test images"
    return LabelledData(name=name, train=train, test=test, classes=classes)


def patterns(classes: int, records: int, tests: int) -> LabelledData:
    """Return images (3, 16, 16) of noise around a pattern for each class."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, 3, 16, 16, generator=generator)
    labels = torch.arange(records + tests) % classes
    images = means[labels] + torch.randn(records + tests, 3, 16, 16, generator=generator)
    return LabelledData(
        name=f"noise around {classes} patterns, {records:,} training images",
        train=(images[:records], labels[:records]),
        test=(images[records:], labels[records:]),
        classes=classes,
    )


def _scaled(pixels: np.ndarray) -> Tensor:
    mean, deviation = (torch.tensor(value).view(3, 1, 1) for value in (MEAN, DEVIATION))
    return (torch.from_numpy(np.ascontiguousarray(pixels)).float() / 255 - mean) / deviation


def _labels(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _jpeg(data: Path, records: int, tests: int) -> LabelledData:
    file = "cifar10_jpeg_full.npz"
    needed_files(data, [file])
    try:
        from PIL import Image
    except ImportError as missing:
        raise ValueError("data of the full size are JPEG images, which need Pillow: pip install pillow.") from missing

    def images(joined: bytes, ends: np.ndarray) -> Tensor:
        pixels = [np.asarray(Image.open(io.BytesIO(joined[i:j]))) for i, j in pairwise(ends)]
        return _scaled(np.stack(pixels).transpose(0, 3, 1, 2))

    with np.load(data / file) as found:
        parts = {}
        for part, count in (("train", records), ("test", tests)):
            offsets = found[f"offset_{part}"][: count + 1]
            parts[part] = (
                images(found[f"jpeg_{part}"].tobytes(), offsets),
                _labels(found[f"y_{part}"][: len(offsets) - 1]),
            )
    return LabelledData(name="CIFAR-10, all images, as JPEG", train=parts["train"], test=parts["test"], classes=10)


def cola(data: Path | None, records: int, tests: int) -> LabelledData:
    """Return sentences of CoLA from ``data``, or synthetic ones that are acceptable if word 1 precedes word 2."""
    if data is None:
        return _orders(records, tests)
    names = ["cola/in_domain_train.tsv", "cola/in_domain_dev.tsv"]
    needed_files(data, names)
    (train, train_labels), (test, test_labels) = (_sentences(data / name) for name in names)
    counts = Counter(word for words in train for word in words)
    known = {word: place for place, (word, count) in enumerate(counts.most_common(), start=2) if count > 1}
    name = f"CoLA, {min(records, len(train)):,} training and {min(tests, len(test)):,} test sentences"
    return LabelledData(
        name=name,
        train=(_numbers(train[:records], known), train_labels[:records]),
        test=(_numbers(test[:tests], known), test_labels[:tests]),
        classes=2,
        vocabulary=len(known) + 2,
    )


def _sentences(path: Path) -> tuple[list[list[str]], Tensor]:
    """Return the words and the labels of a file in a fixed random order, since the file is sorted by its sources."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    order = np.random.default_rng(0).permutation(len(lines))
    labels = torch.tensor([int(lines[place][1]) for place in order])
    return [lines[place][3].lower().replace(".", " .").replace(",", " ,").split() for place in order], labels


def _numbers(sentences: list[list[str]], known: dict[str, int]) -> Tensor:
    """Return word numbers, shape (sentences, WORDS): 0 is padding, 1 any other word."""
    numbers = torch.zeros(len(sentences), WORDS, dtype=torch.int64)
    for place, words in enumerate(sentences):
        kept = [known.get(word, 1) for word in words[:WORDS]]
        numbers[place, : len(kept)] = torch.tensor(kept)
    return numbers


def _orders(records: int, tests: int) -> LabelledData:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, 20, (records + tests, 8), generator=generator)
    labels = torch.arange(records + tests) % 2
    words[:, 1], words[:, 5] = 2 - labels, 1 + labels
    return LabelledData(
        name=f"synthetic sentences, {records:,} for training",
        train=(words[:records], labels[:records]),
        test=(words[records:], labels[records:]),
        classes=2,
        vocabulary=20,
    )
