"""Steps of private fine-tuning beside plain ones: time, memory, checkpoints and encoding; writes docs/finetuning.md.

    python benchmarks/finetune.py [--rounds 7] [--cells gpt2-lora-32 llama-full-64] [--opacus PYTHON]

GPT-2 and Llama of width 256 with four layers, 96 tokens a record, as adapters of rank 16 and whole. Every step draws
its own Poisson batch, gathers it and ends with AdamW; the whole oracle stands beside a plain step. Each implementation
has its own process; they take turns, and a figure is the median over rounds of CPU time over that of the plain step of
the round. Opacus runs in the Python that --opacus names, with the same loss a record, on adapters alone: it has no
rules for the layers of the whole models. It needs transformers and PEFT.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import ROOT, markdown_table, write_section
from step_worker import peak_mib

SCRIPT, PAGE = "benchmarks/finetune.py", ROOT / "docs" / "finetuning.md"
TOKENS, VOCABULARY, ROWS, PHYSICAL = 96, 1024, 2000, 8
PLAIN, ORACLE, SMALL, OPACUS = "plain", "tacita", f"tacita, {PHYSICAL} in memory", "Opacus"
TURN = 4  # steps: batches are of unequal sizes
Step = Callable[[], None]


def model_of(kind: str, train: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    size: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    if kind == "llama":
        size |= {"intermediate_size": 688, "num_key_value_heads": 4}
    else:
        size |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=VOCABULARY, max_position_embeddings=TOKENS, bos_token_id=0, eos_token_id=0, **size
    )
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    if train == "full":
        return model
    import peft

    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    return peft.get_peft_model(model, lora)


def rows() -> dict[str, Any]:
    import torch

    ids = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    lengths = torch.randint(24, TOKENS + 1, (ROWS, 1), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(TOKENS) < lengths).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def losses(model: Any, batch: dict[str, Any]) -> Any:
    """One mean a record; written out, because Opacus' process has no tacita."""
    from torch.nn import functional

    scores = model(**{name: batch[name] for name in ("input_ids", "attention_mask")}, use_cache=False).logits
    labels = batch["labels"][:, 1:]
    each = functional.cross_entropy(scores[:, :-1].mT, labels, reduction="none", ignore_index=-100)
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


def drawn_by_poisson(data: dict[str, Any], batch: int) -> Callable[[], dict[str, Any]]:
    import torch

    def draw() -> dict[str, Any]:
        chosen = (torch.rand(ROWS) < batch / ROWS).nonzero().flatten()
        return {name: one.index_select(0, chosen) for name, one in data.items()}

    return draw


def trained(model: Any) -> tuple[list[Any], Any]:
    import torch

    own = [p for p in model.parameters() if p.requires_grad]
    return own, torch.optim.AdamW(own, lr=1e-3, weight_decay=0.0)


def plain_step(model: Any, batch: int) -> Step:
    (_, optimizer), draw = trained(model), drawn_by_poisson(rows(), batch)

    def step() -> None:
        optimizer.zero_grad()
        (losses(model, draw()).sum() / batch).backward()
        optimizer.step()

    return step


def private_step(model: Any, batch: int, physical: int | None) -> Step:
    import tacita

    _, optimizer = trained(model)
    oracle = tacita.ClippedGradientOracle(
        model,
        losses,
        rows(),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one text"),
        sampler=tacita.PoissonSampler(expected_batch_size=batch, num_records=ROWS),
        clipper=tacita.FlatClipper(max_grad_norm=0.1),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=10**6,
        max_physical_batch_size=physical,
    )

    def step() -> None:
        oracle.backward()
        optimizer.step()

    return step


def opacus_step(model: Any, batch: int) -> Step:
    from opacus import GradSampleModule  # pyright: ignore[reportMissingImports]
    from opacus.optimizers import DPOptimizer  # pyright: ignore[reportMissingImports]

    model.train()
    wrapped, (_, optimizer), draw = GradSampleModule(model), trained(model), drawn_by_poisson(rows(), batch)
    private = DPOptimizer(optimizer, noise_multiplier=1.0, max_grad_norm=0.1, expected_batch_size=batch)

    def step() -> None:
        private.zero_grad()
        losses(wrapped, draw()).mean().backward()
        private.step()

    return step


def serve(cell: str, name: str) -> None:
    """Answer each line "number of steps" with their CPU time and the peak memory over the start."""
    import torch

    torch.set_num_threads(1)
    kind, train, batch = cell.split("-")
    model = model_of(kind, train)
    step = {
        PLAIN: lambda: plain_step(model, int(batch)),
        ORACLE: lambda: private_step(model, int(batch), None),
        SMALL: lambda: private_step(model, int(batch), PHYSICAL),
        OPACUS: lambda: opacus_step(model, int(batch)),
    }[name]()
    before = peak_mib(reset=True)
    step()
    peak_mib(reset=True)  # what the building of a program took is not a step's
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        for _ in range(int(line)):
            step()
        print(json.dumps([(time.process_time() - start) / int(line), peak_mib() - before]), flush=True)


class Worker:
    """The process of one implementation."""

    def __init__(self, python: str, cell: str, name: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__, "--serve", cell, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        while "ready" not in (line := self._process.stdout.readline()):
            if not line:
                raise RuntimeError(f"{name} cannot run {cell}.")

    def run(self, steps: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds, mib = json.loads(self._process.stdout.readline())
        return seconds, mib

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(cell: str, rounds: int, opacus: str | None) -> dict[str, str]:
    """Return a line of the table: each over the plain step."""
    names = [PLAIN, ORACLE, SMALL, *([OPACUS] if opacus and "lora" in cell else [])]
    workers = {name: Worker((opacus or "") if name == OPACUS else sys.executable, cell, name) for name in names}
    seconds, memory = {name: list[float]() for name in names}, dict[str, float]()
    for _ in range(rounds):
        for name in random.sample(names, len(names)):
            spent, memory[name] = workers[name].run(TURN)
            seconds[name].append(spent)
    for worker in workers.values():
        worker.close()
    kind, train, batch = cell.split("-")
    line = {"model": {"gpt2": "GPT-2", "llama": "Llama"}[kind], "trained": train, "batch": batch}
    for name in (ORACLE, SMALL, OPACUS):
        ratios = [own / plain for own, plain in zip(seconds.get(name, ()), seconds[PLAIN], strict=False)]
        line[f"{name}: time"] = f"{statistics.median(ratios):.2f}" if ratios else "–"
        line[f"{name}: memory"] = f"{memory[name] / memory[PLAIN]:.2f}" if ratios else "–"
    print(line, flush=True)
    return line


def checkpoint_ratio() -> float:
    """Return the bytes of a LoRA run's checkpoint over 4 bytes for each trained number."""
    import tacita

    model, sizes = model_of("gpt2", "lora"), list[int]()
    with tempfile.TemporaryDirectory() as folder:

        def note(releases: Any, spent: Any) -> None:
            sizes.extend(one.stat().st_size for one in Path(folder).rglob("private/checkpoint*"))

        tacita.fit(
            model, losses, rows(), target_epsilon=8, target_delta=1e-5, num_records=ROWS, expected_batch_size=8,
            epochs=0.05, folder=f"{folder}/run", publish="trainable", progress=False, callbacks=[note],
        )  # fmt: skip
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return max(sizes) / (4 * numbers)


def encoding_ratios(rounds: int) -> tuple[float, float]:
    """Return the times to encode pairs, and to read and encode them, over that of the tokenizer alone, on batches."""
    import tokenizers
    import transformers

    from tacita.finetune import EncodedTexts, TokenEncoder, read_records

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=letters, special_tokens=["<|end|>"], show_progress=False
    )
    words = [line for path in sorted((ROOT / "docs").glob("*.md")) for line in path.read_text().splitlines() if line]
    made.train_from_iterator(words, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")
    given = [(words[2 * k], words[2 * k + 1]) for k in range(min(4000, len(words) // 2))]
    alone, reading, encoding = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.jsonl"
        path.write_text("\n".join(json.dumps({"prompt": prompt, "completion": said}) for prompt, said in given))
        for _ in range(rounds):
            start = time.process_time()
            for some in np.array_split(np.array(given, object), -(-len(given) // 256)):
                tokenizer([text for pair in some for text in pair], add_special_tokens=False, split_special_tokens=True)
            alone.append(time.process_time() - start)
            start = time.process_time()
            lines = list(read_records(path))
            reading.append(time.process_time() - start)
            start = time.process_time()
            EncodedTexts(TokenEncoder(tokenizer=tokenizer, max_tokens=TOKENS), Path(folder)).extend(lines)
            encoding.append(time.process_time() - start)
    tokenizer_alone, encoded = statistics.median(alone), statistics.median(encoding)
    return encoded / tokenizer_alone, (encoded + statistics.median(reading)) / tokenizer_alone


def main() -> None:
    cells = [
        f"{kind}-{train}-{batch}" for train in ("lora", "full") for kind in ("gpt2", "llama") for batch in (32, 64)
    ]
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cells", nargs="+", default=cells, choices=cells)
    parser.add_argument("--opacus")
    parser.add_argument("--serve", nargs=2)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    checkpoint, (encoding, with_reading) = checkpoint_ratio(), encoding_ratios(arguments.rounds)
    words = (
        f"A checkpoint of a LoRA run takes {checkpoint:.2f} x 4 bytes for each trained number. Encoding pairs "
        f"takes {encoding:.2f} of the time of the tokenizer alone, {with_reading:.2f} with the reading of their lines."
    )
    print(words, flush=True)
    lines = [measured(cell, arguments.rounds, arguments.opacus) for cell in arguments.cells]
    write_section(SCRIPT, [*markdown_table(lines), "", words], PAGE)


if __name__ == "__main__":
    main()
