"""How much of what fine-tuning gains is left when it is private: E2E, SST-2 as text, and persons with many texts.

    python benchmarks/finetune_quality.py FOLDER [--only e2e]

The base is a GPT-2 of two layers of width 64 that this script trains on texts declared public: CoLA, and the first
20,000 phrases of SST-2 without their labels. Step sizes are chosen on other rows that are declared public. Everything
else is ``tacita finetune`` as it stands: LoRA, and a score that is bought. FOLDER keeps the base and each figure, and
the same command goes on where it was stopped; with all of them it writes docs/finetuning.md. It needs transformers and
PEFT. The data folder is TACITA_DATA, or ../shared/data beside the repository.
"""

import argparse
import csv
import gzip
import json
import re
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from results import DATA, ROOT, markdown_table, write_section
from users import dealt, sizes

import tacita
from tacita.finetune import EncodedTexts, generation, read_records, sequence_losses
from tacita.finetune.losses import scored_losses
from tacita.finetune.settings import Files, FinetuneSettings
from tacita.finetune.text_run import Prepared, finetune, warmed_up
from tacita.sampling import PoissonSampler, UnitPoissonSampler

SCRIPT, PAGE = "benchmarks/finetune_quality.py", ROOT / "docs" / "finetuning.md"
END, VOCABULARY, TOKENS, WIDTH = "<|end|>", 1024, 96, 64
PRETRAINING = {"steps": 1000, "batch": 48, "lr": 4e-3}
SEEDS, PILOT = range(5), 1000
RATES = (4e-3, 1.2e-2, 3.6e-2)
DELTA = 1e-5
Pair = tuple[str, str]


# The texts: what is declared public, and what stays private.


def phrases(name: str, field: str) -> list[tuple[str, int]]:
    with gzip.open(DATA / "sst2" / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[field].strip(), int(row["label"])) for row in rows]


def restaurants(name: str) -> list[Pair]:
    with (DATA / "e2e" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [(row["mr"] + "\n", " " + row["ref"]) for row in csv.DictReader(file)]


def opinion(text: str, label: int) -> Pair:
    return f"{text}\n It was", (" bad", " good")[label]


def write(path: Path, pairs: list[Pair], who: list[int] | None = None) -> Path:
    lines = [{"prompt": prompt, "completion": said} for prompt, said in pairs]
    if who is not None:
        lines = [line | {"who": person} for line, person in zip(lines, who, strict=True)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


class Texts:
    """Private rows, public ones to tune on, and rows to score on, of each task; and the public texts of the base."""

    def __init__(self) -> None:
        train, test = phrases("train", "sentence"), restaurants("testset_w_refs")
        cola = (DATA / "cola" / "in_domain_train.tsv").read_text().splitlines()
        self.public = [text for text, _ in train[:20_000]] + [line.split("\t")[3] for line in cola]
        self.public_pairs = test[:1600]
        opinions = [opinion(*row) for row in train[20_000:]]
        scored = [opinion(*row) for row in phrases("dev", "content") + phrases("test", "content")]
        self.tasks = {
            "e2e": (restaurants("devset"), (test[:1200], test[1200:1400]), test[1600:2100]),
            "sst2": (opinions[6000:], (opinions[:5000], opinions[5000:5600]), scored[::2]),
        }


# The base, and what is measured of a model.


def make_base(folder: Path, texts: Texts) -> None:
    """Train a tokenizer and a small GPT-2 on the public texts."""
    if (folder / "model.safetensors").exists():
        return
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=letters, special_tokens=[END], show_progress=False
    )
    made.train_from_iterator([*texts.public, *map("".join, texts.public_pairs)], trainer)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=TOKENS, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: Any = transformers.GPT2LMHeadModel(config)
    ends = [words.eos_token_id]
    ids = torch.tensor([token for own in words(texts.public)["input_ids"] for token in own + ends])
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING["lr"], weight_decay=0.01)
    schedule = warmed_up(optimizer, PRETRAINING["steps"])
    for step in range(PRETRAINING["steps"]):
        starts = torch.randint(len(ids) - TOKENS, (PRETRAINING["batch"],))
        batch = ids[starts[:, None] + torch.arange(TOKENS)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print("base", step, round(loss.item(), 3), flush=True)
    words.save_pretrained(folder)
    model.save_pretrained(folder)


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


def percent_right(model: Any, prepared: Prepared, pairs: list[Pair]) -> float:
    """Return how often the right one of the two completions is the likelier one, in percent."""
    other = {" bad": " good", " good": " bad"}
    right, wrong = (losses(model, rows_of(prepared, some)) for some in (pairs, [(a, other[b]) for a, b in pairs]))
    return 100 * float((right < wrong).mean())


# Training, private and not.


class Experiment:
    """One task: its rows, its settings, and what is measured."""

    def __init__(self, folder: Path, name: str, words: str, texts: Texts, measure: Callable, **settings: Any) -> None:
        self.folder, self.name, self.words, self.measure, self.settings = folder, name, words, measure, settings
        self.private, (self.to_tune, self.tuned_on), self.scored = texts.tasks[name]

    def private_run(self, epsilon: float, lr: float, seed: int, pilot: bool) -> float:
        rows = self.to_tune if pilot else self.private
        given = dict(self.settings)
        given["batch"] *= len(rows) / len(self.private)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            data = write(Path(folder) / "d.jsonl", rows)
            settings = FinetuneSettings(
                epsilon=epsilon, delta=DELTA, rows=len(rows), lr=lr, output=f"{folder}/run", seed=seed, **given
            )
            finetune(Files(self.folder / "base", data), settings)
            model, _ = generation.load(f"{folder}/run")
            prepared = Prepared.of(Files(self.folder / "base", data), settings)
            return self.measure(model, prepared, self.tuned_on if pilot else self.scored)

    def plain_run(self, lr: float, seed: int, pilot: bool) -> float:
        """Train the same adapter on the same expected batches as often, without clipping and noise."""
        rows = self.to_tune if pilot else self.private
        files = Files(self.folder / "base", Path("none"))
        settings = FinetuneSettings(epsilon=1.0, delta=DELTA, rows=len(self.private), output="none", **self.settings)
        prepared = Prepared.of(files, settings)
        kept = round((1 - settings.holdout) * len(rows))
        encoded, generator = rows_of(prepared, rows[:kept]), np.random.default_rng(seed)
        rate = self.settings["batch"] / round((1 - settings.holdout) * len(self.private))
        steps = int(np.ceil(settings.epochs / rate))
        loss_fn = sequence_losses()
        trained = [p for p in prepared.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
        schedule = warmed_up(optimizer, steps)
        for _ in range(steps):
            drawn = np.flatnonzero(generator.random(kept) < rate)
            optimizer.zero_grad()
            for part in np.array_split(drawn, max(1, -(-len(drawn) // 64))):
                (loss_fn(prepared.model, encoded.fetch(part, 0)).sum() / len(drawn)).backward()
            optimizer.step()
            schedule.step()
        return self.measure(prepared.model, prepared, self.tuned_on if pilot else self.scored)

    def base_score(self) -> float:
        settings = FinetuneSettings(epsilon=1.0, delta=DELTA, rows=len(self.private), output="none", **self.settings)
        prepared = Prepared.of(Files(self.folder / "base", Path("none")), settings)
        return self.measure(prepared.model, prepared, self.scored)


class Log:
    """Figures by name, kept in a file; one that is there is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found = dict(json.loads(line) for line in lines)

    def measured(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self.found:
            self.found[name] = measure()
            print(name, round(self.found[name], 4), flush=True)
            with self.path.open("a") as file:
                file.write(json.dumps([name, self.found[name]]) + "\n")
        return self.found[name]


Way = Callable[[float, int, bool], float]  # (step size, seed, whether it is a pilot) -> score


def compared(log: Log, name: str, ways: dict[str, Way], *, lower: bool) -> dict[str, list[float]]:
    """Return the scores of each way by seed, at the step size that is best on public rows with another seed."""
    best = dict[str, float]()
    for way, run in ways.items():
        pilots = {lr: log.measured(f"{name} {way} pilot {lr}", partial(run, lr, PILOT, True)) for lr in RATES}
        best[way] = (min if lower else max)(pilots, key=lambda lr: pilots[lr])
    found = {way: list[float]() for way in ways}
    for seed in SEEDS:
        for way, run in ways.items():
            found[way].append(log.measured(f"{name} {way} seed {seed}", partial(run, best[way], seed, False)))
    return found


def against_plain(log: Log, own: Experiment, *, lower: bool) -> dict[str, str]:
    """Return a line of the table: means over seeds, and which share of the plain gain they are."""
    ways = {f"epsilon {epsilon:g}": partial(own.private_run, epsilon) for epsilon in (8.0, 3.0)}
    base = log.measured(f"{own.name} base", own.base_score)
    found = compared(log, own.name, {"not private": own.plain_run, **ways}, lower=lower)
    line = {"task": own.words, "base": f"{base:.3g}"}
    for way, scores in found.items():
        shares = [(base - score) / (base - plain) for score, plain in zip(scores, found["not private"], strict=True)]
        line[way] = f"{spread(scores, 2)}" + (f" ({statistics.mean(shares):.0%})" if way in ways else "")
    print(line, flush=True)
    return line


# Persons with many texts.

PERSONS, EPSILONS = 467, (3.0, 8.0)
WAYS = {
    "cap 10": "texts, at most 10",
    "users 1": "persons, 1 a query",
    "users 4": "persons, 4 a query",
    "users 10": "persons, 10 a query",
}
READ, QUERIES = 128, 50


class Persons:
    """The private pairs of E2E, about ten a person, each of whom prefers some kinds of food."""

    def __init__(self, folder: Path, texts: Texts, settings: dict[str, Any]) -> None:
        self.folder, self.given = folder, {**settings, "holdout": 0.0}
        private, (_, self.tuned_on), self.scored = texts.tasks["e2e"]
        generator = np.random.default_rng(0)
        food = np.array([re.findall(r"food\[(.*?)\]", prompt + "food[]")[0] for prompt, _ in private])
        rows, self.units = dealt(food, sizes(False, generator, users=PERSONS, rows=4600), generator)
        self.pairs = [private[row] for row in rows]

    def way(self, rows: EncodedTexts, name: str) -> dict[str, Any]:
        kind, number = name.split()
        if kind == "cap":
            records = tacita.cap_units(rows, self.units, int(number), randomness=tacita.Randomness.insecure(0))
            count = len(records.rows)  # type: ignore[arg-type]
            sampler: Any = UnitPoissonSampler(
                sample_rate=READ / count, num_records=count, max_rows_per_unit=int(number)
            )
            return {"loss_fn": sequence_losses(), "dataset": records, "sampler": sampler}
        sampler = PoissonSampler(expected_batch_size=READ / int(number), num_records=PERSONS)
        users = tacita.UserRecords(rows, self.units, int(number))
        return {"loss_fn": tacita.mean_over_views(sequence_losses()), "dataset": users, "sampler": sampler}

    def run(self, way: str, epsilon: float, lr: float, seed: int, pilot: bool) -> float:
        """Train; pilots are scored on public rows, but train on the persons: step sizes alone are compared."""
        settings = FinetuneSettings(epsilon=epsilon, delta=DELTA, rows=PERSONS, output="none", **self.given)
        prepared = Prepared.of(Files(self.folder / "base", Path("none")), settings)
        oracle = tacita.ClippedGradientOracle(
            prepared.model,
            **self.way(rows_of(prepared, self.pairs), way),
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one person"),
            clipper=tacita.FlatClipper(max_grad_norm=settings.max_grad_norm),
            mechanism=tacita.CalibratedGaussian(target_epsilon=epsilon, target_delta=DELTA),
            planned_queries=QUERIES,
            max_physical_batch_size=64 if way.startswith("cap") else max(64 // int(way.split()[1]), 1),
            randomness=tacita.Randomness.insecure(seed),
        )
        trained = [p for p in prepared.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
        schedule = warmed_up(optimizer, QUERIES)
        for _ in range(QUERIES):
            oracle.backward()
            optimizer.step()
            schedule.step()
        pairs = self.tuned_on if pilot else self.scored
        return nats(prepared.model, prepared, pairs)


def spread(scores: list[float], digits: int) -> str:
    return f"{statistics.mean(scores):.{digits}f} +- {statistics.stdev(scores):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="e2e,sst2,persons")
    arguments = parser.parse_args()
    folder, only = arguments.folder, arguments.only.split(",")
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    texts = Texts()
    make_base(folder / "base", texts)
    log, lines, rows = Log(folder / "figures.jsonl"), [], []
    short = {"messages": False, "max_tokens": 40, "rank": 8, "batch": 256.0, "epochs": 0.35, "physical_batch": 64}
    long = {"messages": False, "max_tokens": TOKENS, "rank": 8, "batch": 128.0, "epochs": 1.2, "physical_batch": 64}
    if "e2e" in only:
        own = Experiment(folder, "e2e", "E2E, nats a token", texts, nats, **long)
        lines.append(against_plain(log, own, lower=True))
    if "sst2" in only:
        own = Experiment(folder, "sst2", "SST-2, % right", texts, percent_right, **short)
        lines.append(against_plain(log, own, lower=False))
    if "persons" in only:
        persons = Persons(folder, texts, long)
        for epsilon in EPSILONS:
            ways = {way: partial(persons.run, way, epsilon) for way in WAYS}
            found = compared(log, f"persons {epsilon:g}", ways, lower=True)
            rows.append({"epsilon": f"{epsilon:g}", **{WAYS[way]: spread(found[way], 2) for way in WAYS}})
            print(rows[-1], flush=True)
    if lines and rows:
        write_section(SCRIPT, [*markdown_table(lines), "", *markdown_table(rows)], PAGE)


if __name__ == "__main__":
    main()
