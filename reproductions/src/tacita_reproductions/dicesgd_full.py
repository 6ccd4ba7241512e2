"""The paper's own networks: a pretrained ViT-small for images and GPT-2 for text, from weights in a folder.

Nothing is downloaded. Without the packages, the weights or the whole data sets, a run at full size is refused.
Source: Zhang, Bu, Wu, Hong (DiceSGD), section 4.
"""

import importlib
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from tacita_reproductions.clip21_networks import losses
from tacita_reproductions.dicesgd_images import accuracy, image_rows
from tacita_reproductions.dicesgd_runs import DiceTask
from tacita_reproductions.dicesgd_texts import pairs_of, text_task
from tacita_reproductions.runner import needed_files

VIT = "vit_small_patch16_224"
VISION = (("CIFAR-10", "cifar10.npz", 10), ("CIFAR-100", "cifar100.npz", 100))
AT_ONCE = 50  # rows in memory at once
GPT_2 = ("config.json", "model.safetensors", "tokenizer.json")
TEXTS = ("trainset.csv", "testset_w_refs.csv")
LENGTH = 128  # tokens of a meaning and its text; a longer one is cut


def given(data: Path | None) -> Path:
    """Return the folder; raise ``ValueError`` without one."""
    if data is None:
        raise ValueError("data must be a folder with the paper's data and pretrained weights for --full, got none.")
    return data


def package(name: str) -> Any:
    """Import an optional package; raise ``ValueError`` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"--full needs the package {name} here: run pip install {name}.") from error


def vit(weights: Path, classes: int) -> nn.Module:
    """Return timm's ViT-small with pretrained weights and a new head, for images of 32 x 32 that it enlarges."""
    import safetensors.torch

    network = package("timm").create_model(VIT, pretrained=False, num_classes=classes)
    found = safetensors.torch.load_file(weights)
    kept = {name: value for name, value in found.items() if not name.startswith("head.")}
    missing = set(network.state_dict()) - set(kept)
    if missing != {"head.weight", "head.bias"}:
        raise ValueError(f"{weights.name} must hold the weights of timm's {VIT}; it lacks {min(missing)}.")
    network.load_state_dict(kept, strict=False)
    return nn.Sequential(nn.Upsample(size=(224, 224), mode="bilinear"), network)


def vision(data: Path | None, *, epochs: int) -> list[DiceTask]:
    """Return the paper's tasks on the whole of CIFAR-10 and CIFAR-100: batches of 1,000 on average.

    Args:
        data: A folder with ``cifar10.npz`` and ``cifar100.npz`` (arrays x_train, y_train, x_test, y_test, images in
            bytes, channels first) and ``vit_small_patch16_224.safetensors``.
        epochs: 3 in Table 2, 2 in Figures 2 and 3.

    Raises:
        ValueError: Something of it is missing, or timm is.
    """
    folder, weights = given(data), f"{VIT}.safetensors"
    needed_files(folder, [weights, *(file for _, file, _ in VISION)])
    package("timm")
    found = []
    for name, file, classes in VISION:
        with np.load(folder / file) as arrays:
            train, test = (image_rows(arrays, part) for part in ("train", "test"))
        rate = 1000 / len(train[0])
        found.append(
            DiceTask(
                name=f"{name}, ViT-small",
                build=partial(vit, folder / weights, classes),
                losses=losses,
                train=train,
                test=test,
                measures=accuracy,
                is_share=True,
                sample_rate=rate,
                steps=round(epochs / rate),
                max_physical_batch_size=AT_ONCE,
            )
        )
    return found


class GPTTokenizer:
    """GPT-2's own tokenizer. Its end mark stands between a meaning and its text as well, as both are one sequence."""

    length = LENGTH

    def __init__(self, folder: Path) -> None:
        self._inner = package("transformers").GPT2TokenizerFast.from_pretrained(str(folder), local_files_only=True)
        self.size = len(self._inner)

    def pair(self, meaning: str, text: str | None) -> tuple[list[int], int]:
        end = self._inner.eos_token_id
        start = [*self._inner.encode(meaning), end]
        return start + ([] if text is None else [*self._inner.encode(" " + text), end]), len(start)

    def text(self, tokens: Sequence[int]) -> str:
        end = self._inner.eos_token_id
        return self._inner.decode(list(itertools.takewhile(lambda token: token != end, tokens)))


class Logits(nn.Module):
    """A network of transformers that returns its logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        return self.network(tokens, use_cache=False).logits


def gpt_2(folder: Path) -> nn.Module:
    """Return GPT-2 with pretrained weights, without dropout."""
    kind = package("transformers").GPT2LMHeadModel
    network = kind.from_pretrained(str(folder), local_files_only=True)
    return Logits(network.eval())


def language(data: Path | None, **more: Any) -> DiceTask:
    """Return the paper's task on E2E.

    Args:
        data: A folder with ``e2e/trainset.csv`` and ``e2e/testset_w_refs.csv``, and GPT-2 in ``gpt2/`` as transformers
            saves it (``config.json``, ``model.safetensors``, ``tokenizer.json``).
        more: Steps, sampling rate and guarantee.

    Raises:
        ValueError: Something of it is missing, or transformers is.
    """
    folder = given(data)
    needed_files(folder, [*(f"gpt2/{name}" for name in GPT_2), *(f"e2e/{name}" for name in TEXTS)])
    tokenizer = GPTTokenizer(folder / "gpt2")
    train, test = (pairs_of(folder / "e2e" / name) for name in TEXTS)
    return text_task(
        "E2E, GPT-2", partial(gpt_2, folder / "gpt2"), tokenizer, train, test, max_physical_batch_size=AT_ONCE, **more
    )
