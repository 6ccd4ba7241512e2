"""How much of what fine-tuning gains is left when it is private: E2E, SST-2 as text, and persons with many texts.

    python benchmarks/finetune_quality.py FOLDER [--only e2e]

The bases are GPT-2s of two layers of width 64 that this script trains on texts declared public: CoLA, and the first
20,000 phrases of SST-2 without their labels for E2E; CoLA and the phrases of a quarter of the sentences, with their
labels as words, for SST-2. Settings are chosen on other public rows; those of SST-2 are fixed (docs/finetuning.md). The
rest is ``tacita finetune`` as it stands: LoRA for E2E, all weights for SST-2. FOLDER keeps bases and figures, the same
command goes on where it was stopped, and prints its tables at the end. It needs transformers and PEFT; where Opacus is
installed, it trains adapters for E2E, too.
"""

import argparse
import csv
import gzip
import json
import math
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from results import DATA, markdown_table
from users import dealt, sizes

import tacita
from tacita.accounting import GaussianSumEvent, calibrate
from tacita.finetune import EncodedTexts, generation, read_records, sequence_losses
from tacita.finetune.losses import scored_losses
from tacita.finetune.settings import Files, FinetuneSettings
from tacita.finetune.text_run import Prepared, finetune, warmed_up
from tacita.sampling import PoissonSampler, UnitPoissonSampler

END, TOKENS, WIDTH = "<|end|>", 96, 64
SEEDS, PILOT = range(5), 1000
RATES = [{"lr": lr} for lr in (4e-3, 1.2e-2, 3.6e-2)]
DELTA = 1e-5
RELATION: tacita.accounting.NeighboringRelation = "add_or_remove_one"
TEXTS = {"messages": False, "physical_batch": 64}
PAIRS = {**TEXTS, "max_tokens": TOKENS, "rank": 8, "batch": 128.0, "epochs": 1.2}
OPINIONS = {**TEXTS, "max_tokens": 32, "train": "full"}
OPINION_PRIVATE = {"lr": 3e-3, "batch": 8192.0, "epochs": 5.19, "max_grad_norm": 0.3}  # 25 steps
OPINION_PLAIN = {"lr": 1e-3, "batch": 128.0, "epochs": 0.7}
NO_NOISE = tacita.GaussianMechanism(noise_multiplier=0.0)
Pair = tuple[str, str]
Choice = dict[str, float]


def phrases(name: str, field: str) -> list[tuple[str, int]]:
    with gzip.open(DATA / "sst2" / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[field].strip(), int(row["label"])) for row in rows]


def dealt_phrases(rows: list[tuple[str, int]], shares: list[float]) -> list[list[Pair]]:
    """Deal the sentences, which are the texts that are part of no other one, and to each part all of their phrases.

    Phrases of sentences in several parts are left out.
    """
    parts = {text: set[int]() for text, _ in rows}
    dealt_to = np.random.default_rng(0).choice(len(shares), len(parts), p=shares)
    for part, sentence in zip(dealt_to, sorted(parts, key=len, reverse=True), strict=True):
        if not parts[sentence]:
            words = sentence.split()
            for i, j in combinations(range(len(words) + 1), 2):
                parts.get(" ".join(words[i:j]), set()).add(int(part))
    return [[opinion(*row) for row in rows if parts[row[0]] == {part}] for part in range(len(shares))]


def restaurants(name: str) -> list[Pair]:
    with (DATA / "e2e" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [(row["mr"] + "\n", " " + row["ref"]) for row in csv.DictReader(file)]


def opinion(text: str, label: int) -> Pair:
    return f"{text}\n It was", (" bad", " good")[label]


def write(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("\n".join(json.dumps({"prompt": prompt, "completion": said}) for prompt, said in pairs))
    return path


def cola() -> list[str]:
    return [line.split("\t")[3] for line in (DATA / "cola" / "in_domain_train.tsv").read_text().splitlines()]


def opened(base: Path, settings: FinetuneSettings) -> Prepared:
    return Prepared.of(Files(base, Path(__file__)), settings)  # any file: its rows are not read here


def rows_of(prepared: Prepared, pairs: list[Pair]) -> EncodedTexts:
    with tempfile.TemporaryDirectory() as folder:
        rows = EncodedTexts(prepared.encoder, Path(folder))
        rows.extend(read_records(write(Path(folder) / "d.jsonl", pairs)))
        return rows


@torch.no_grad()
def losses(model: Any, rows: EncodedTexts) -> np.ndarray:
    model.eval()
    some = np.array_split(np.arange(len(rows)), -(-len(rows) // 64))
    return torch.cat([scored_losses(model, rows.fetch(part, 0)) for part in some]).numpy()


def nats(model: Any, prepared: Prepared, pairs: list[Pair]) -> float:
    """Return the mean loss, in nats a token."""
    return float(losses(model, rows_of(prepared, pairs)).mean())


def percent_wrong(model: Any, prepared: Prepared, pairs: list[Pair]) -> float:
    """Return how often the wrong one of the two completions is the likelier one, in percent."""
    other = {" bad": " good", " good": " bad"}
    right, wrong = (losses(model, rows_of(prepared, some)) for some in (pairs, [(a, other[b]) for a, b in pairs]))
    return 100 * float((right >= wrong).mean())


def train(prepared: Prepared, lr: float, steps: int, seed: int, *, noise: Any = NO_NOISE, **records: Any) -> None:
    """Train in memory, privately or without noise, where clipping never sets in."""
    oracle = tacita.ClippedGradientOracle(
        prepared.model,
        **{"loss_fn": sequence_losses(), "max_physical_batch_size": 64, **records},
        ledger=tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one record"),
        clipper=tacita.FlatClipper(max_grad_norm=1e6 if noise == NO_NOISE else prepared.settings.max_grad_norm),
        mechanism=noise,
        planned_queries=steps,
        randomness=tacita.Randomness.insecure(seed),
    )
    trained = [p for p in prepared.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    schedule = warmed_up(optimizer, steps)
    for _ in range(steps):
        oracle.backward()
        optimizer.step()
        schedule.step()


def train_with_opacus(
    prepared: Prepared, lr: float, steps: int, seed: int, *, noise: Any, dataset: EncodedTexts, sampler: PoissonSampler
) -> None:
    """Train with Opacus' gradients, clipping and noise; loss, law of the batches, optimizer and schedule are ours."""
    from opacus import GradSampleModule  # pyright: ignore[reportMissingImports]
    from opacus.optimizers import DPOptimizer  # pyright: ignore[reportMissingImports]

    torch.manual_seed(seed)
    wrapped, loss = GradSampleModule(prepared.model.train()), sequence_losses()
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    private = DPOptimizer(
        optimizer,
        noise_multiplier=noise.noise_multiplier,
        max_grad_norm=prepared.settings.max_grad_norm,
        expected_batch_size=sampler.expected_batch_size,
    )
    schedule = warmed_up(optimizer, steps)
    for _ in range(steps):
        drawn = torch.rand(len(dataset)) < sampler.sample_rate
        private.zero_grad()
        loss(wrapped, dataset.fetch(drawn.nonzero().flatten().numpy(), 0)).mean().backward()
        private.step()
        schedule.step()
    wrapped.to_standard_module()


def read_texts(folder: Path, texts: list[str], vocabulary: int, steps: int, others: list[str]) -> None:
    """Train a tokenizer on public texts, and a small GPT-2 on the first list of them."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=letters, special_tokens=[END], show_progress=False
    )
    made.train_from_iterator([*texts, *others], trainer)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=TOKENS, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: Any = transformers.GPT2LMHeadModel(config)
    ids = torch.tensor([token for own in words(texts)["input_ids"] for token in [*own, 0]])  # 0 is END
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = warmed_up(optimizer, steps)
    for _ in range(steps):
        batch = ids[torch.randint(len(ids) - TOKENS, (48, 1)) + torch.arange(TOKENS)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
    words.save_pretrained(folder)
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Experiment:
    """One task: its base, its four lots of rows, its settings, what is measured, and what its pilots choose from."""

    base: Path
    rows: tuple[list[Pair], ...]  # public to tune on and to compare on, private, test
    settings: dict[str, Any]
    measure: Callable[[Any, Prepared, list[Pair]], float]
    choices: list[Choice]
    plain_choices: list[Choice]

    def settings_of(self, choice: Choice, epsilon: float = 1.0, **more: Any) -> FinetuneSettings:
        given = {**self.settings, "delta": DELTA, "rows": len(self.rows[2]), **choice, **more}
        return FinetuneSettings(epsilon=epsilon, **given)

    def private_run(self, epsilon: float, choice: Choice, seed: int) -> float:
        """Run the command."""
        with tempfile.TemporaryDirectory() as folder:
            files = Files(self.base, write(Path(folder) / "d.jsonl", self.rows[2]))
            settings = self.settings_of(choice, epsilon, output=f"{folder}/run", seed=seed)
            finetune(files, settings)
            model, _ = generation.load(f"{folder}/run", self.base)
            return self.measure(model, Prepared.of(files, settings), self.rows[3])

    def in_memory(
        self, lots: tuple[list[Pair], ...], epsilon: float | None, choice: Choice, seed: int, *, by: Any = train
    ) -> float:
        """Train at the rate of the command: without noise, or with as much in a mean gradient as the command has."""
        (rows, test), prepared = lots, opened(self.base, self.settings_of(choice))
        given, kept, noise = {**self.settings, **choice}, prepared.kept, NO_NOISE
        rate, rows = given["batch"] / kept, rows[:kept]
        steps = math.ceil(given["epochs"] / rate)
        sampler = PoissonSampler(sample_rate=rate, num_records=len(rows))
        if epsilon is not None:
            event = partial(GaussianSumEvent, relation=RELATION, sampling=sampler.law, max_contribution=(1.0,))
            found = calibrate(lambda std: event(noise_std=(std,)), RELATION, epsilon, DELTA, queries=steps)
            noise = tacita.GaussianMechanism(noise_multiplier=found * len(rows) / kept)
        by(prepared, choice["lr"], steps, seed, noise=noise, dataset=rows_of(prepared, rows), sampler=sampler)
        return self.measure(prepared.model, prepared, test)


def e2e(folder: Path) -> Experiment:
    """A base that has read public texts, and pairs of E2E."""
    base, pairs = folder / "e2e", restaurants("testset_w_refs")
    if not (base / "model.safetensors").exists():
        texts = [text for text, _ in phrases("train", "sentence")[:20_000]] + cola()
        read_texts(base, texts, 1024, 1000, list(map("".join, pairs[:1600])))
    rows = pairs[:1200], pairs[1200:1400], restaurants("devset"), pairs[1600:2100]
    return Experiment(base, rows, PAIRS, nats, RATES, RATES)


def sst2(folder: Path) -> Experiment:
    """A base that has read public texts and labels, and phrases of other sentences of SST-2."""
    base, unlabelled = folder / "sst2", folder / "unlabelled"
    labelled, _, private = dealt_phrases(phrases("train", "sentence"), [0.25, 0.11, 0.64])
    if not (base / "model.safetensors").exists():
        read_texts(unlabelled, [*map("".join, labelled), *cola()], 3072, 250, [])
        given = {"epsilon": 1.0, "delta": DELTA, "rows": len(labelled), "dropout": 0.1}
        prepared: Any = opened(unlabelled, FinetuneSettings(**given, **OPINIONS))
        prepared.model.train()  # so that dropout is on
        sampler = PoissonSampler(expected_batch_size=64, num_records=len(labelled))
        rows, steps = rows_of(prepared, labelled), 2 * len(labelled) // 64
        train(prepared, 2e-3, steps, 0, dataset=rows, sampler=sampler)
        prepared.encoder.tokenizer.save_pretrained(base)
        prepared.model.save_pretrained(base)
    scored = [opinion(*row) for row in phrases("dev", "content") + phrases("test", "content")]
    rows = [], [], private, scored  # the settings were chosen before, on the phrases of the second part
    return Experiment(base, rows, OPINIONS, percent_wrong, [OPINION_PRIVATE], [OPINION_PLAIN])


class Log:
    """Figures by name, kept in a file; one that is there is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found = dict(map(json.loads, path.read_text().splitlines())) if path.exists() else {}

    def measured(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self.found:
            self.found[name] = measure()
            print(name, round(self.found[name], 4), flush=True)
            with self.path.open("a") as file:
                file.write(json.dumps([name, self.found[name]]) + "\n")
        return self.found[name]


def compared(log: Log, name: str, ways: dict[str, tuple[Any, Any, list[Choice]]]) -> dict[str, list[float]]:
    """Return the scores of each way by seed, with the choice that its pilot, with another seed, has best.

    Pilot and run of a way are functions of a choice and a seed. A single choice needs no pilot.
    """
    found, best = {way: list[float]() for way in ways}, {way: choices[0] for way, (_, _, choices) in ways.items()}
    for way, (pilot, _, choices) in ways.items():
        if len(choices) > 1:
            score = {
                n: log.measured(f"{name} {way} pilot {c}", partial(pilot, c, PILOT)) for n, c in enumerate(choices)
            }
            best[way] = choices[min(score, key=score.__getitem__)]
    for seed in SEEDS:
        for way, (_, run, _) in ways.items():
            found[way].append(log.measured(f"{name} {way} seed {seed}", partial(run, best[way], seed)))
    return found


def against_plain(log: Log, own: Experiment) -> dict[str, str]:
    """Return a line of the table: means over seeds, and which share of the plain gain they are."""
    name = own.base.name
    prepared = opened(own.base, own.settings_of({}))
    base = log.measured(f"{name} base", partial(own.measure, prepared.model, prepared, own.rows[3]))
    plain, final = (partial(own.in_memory, rows, None) for rows in (own.rows[:2], own.rows[2:]))
    ways: dict[str, Any] = {"not private": (plain, final, own.plain_choices)}
    for epsilon in (8.0, 3.0):
        pilot = partial(own.in_memory, own.rows[:2], epsilon)
        ways[f"epsilon {epsilon:g}"] = (pilot, partial(own.private_run, epsilon), own.choices)
    if own.measure is nats and find_spec("opacus"):
        pilot, final = (
            partial(own.in_memory, rows, 8.0, by=train_with_opacus) for rows in (own.rows[:2], own.rows[2:])
        )
        ways["Opacus, epsilon 8"] = (pilot, final, own.choices)
    found = compared(log, name, ways)
    line = {"base": f"{base:.3g}"}
    for way, scores in found.items():
        shares = [(base - score) / (base - plain) for score, plain in zip(scores, found["not private"], strict=True)]
        line[way] = spread(scores) + ("" if way == "not private" else f" ({statistics.mean(shares):.0%})")
    return line


WAYS = {"cap 10": "texts, at most 10", **{f"users {n}": f"persons, {n} a query" for n in (1, 4, 10)}}
PERSONS, READ, QUERIES = 467, 128, 50


class Persons:
    """The private pairs of E2E, about ten a person, each of whom prefers some kinds of food."""

    def __init__(self, own: Experiment) -> None:
        self.own, private = own, own.rows[2]
        generator = np.random.default_rng(0)
        food = np.array([re.findall(r"food\[(.*?)\]", prompt + "food[]")[0] for prompt, _ in private])
        rows, self.units = dealt(food, sizes(False, generator, users=PERSONS, rows=4600), generator)
        self.pairs = [private[row] for row in rows]

    def way(self, rows: EncodedTexts, name: str) -> dict[str, Any]:
        most = int(name.split()[1])
        if name.startswith("cap"):
            records: Any = tacita.cap_units(rows, self.units, most, randomness=tacita.Randomness.insecure(0))
            count = len(records.rows)
            sampler: Any = UnitPoissonSampler(sample_rate=READ / count, num_records=count, max_rows_per_unit=most)
            return {"loss_fn": sequence_losses(), "dataset": records, "sampler": sampler}
        sampler = PoissonSampler(expected_batch_size=READ / most, num_records=PERSONS)
        users = tacita.UserRecords(rows, self.units, most)
        return {"loss_fn": tacita.mean_over_views(sequence_losses()), "dataset": users, "sampler": sampler}

    def run(self, way: str, epsilon: float, pairs: list[Pair], choice: Choice, seed: int) -> float:
        """Train, and measure on pairs; a pilot trains on the persons, too: step sizes alone are compared."""
        prepared = opened(self.own.base, self.own.settings_of(choice, epsilon, rows=PERSONS, holdout=0.0))
        records = self.way(rows_of(prepared, self.pairs), way)
        physical = 64 if way.startswith("cap") else max(64 // int(way.split()[1]), 1)
        noise = tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA)
        train(prepared, choice["lr"], QUERIES, seed, noise=noise, max_physical_batch_size=physical, **records)
        return nats(prepared.model, prepared, pairs)

    def line(self, log: Log, epsilon: float) -> dict[str, str]:
        pilot, final = ({way: partial(self.run, way, epsilon, self.own.rows[part]) for way in WAYS} for part in (1, 3))
        found = compared(log, f"persons {epsilon:g}", {way: (pilot[way], final[way], RATES) for way in WAYS})
        return {"epsilon": f"{epsilon:g}", **{WAYS[way]: spread(found[way]) for way in WAYS}}


def spread(scores: list[float]) -> str:
    return f"{statistics.mean(scores):.2f} +- {statistics.stdev(scores):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="e2e,sst2,persons")
    arguments = parser.parse_args()
    folder, only = arguments.folder, arguments.only.split(",")
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    log, tasks = Log(folder / "figures.jsonl"), {"E2E, nats a token": e2e, "SST-2, % wrong": sst2}
    made = {task: make(folder) for task, make in tasks.items() if make.__name__ in only}
    lines = [{"task": task, **against_plain(log, own)} for task, own in made.items()]
    rows = [Persons(e2e(folder)).line(log, epsilon) for epsilon in (3.0, 8.0) if "persons" in only]
    for table in filter(None, (lines, rows)):
        print(*markdown_table(table), "", sep="\n")


if __name__ == "__main__":
    main()
