"""Fine-tune a model on private texts: from two paths to an adapter under a seal, in one folder."""

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tacita._files import make_folder, replace_durably
from tacita.errors import ResumeError, UnsupportedModuleError
from tacita.finetune import base_model
from tacita.finetune.card import CAVEATS, SCORED, card
from tacita.finetune.chat import ChatTemplate
from tacita.finetune.encoding import EncodedTexts, TokenEncoder
from tacita.finetune.losses import scored_losses, sequence_losses, with_targets
from tacita.finetune.records import read_records
from tacita.finetune.settings import CONFIG, RATE, Files, FinetuneSettings, RecordSettings
from tacita.oracles import trainable
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import data_fingerprint, fingerprint_secret, run_id
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import STATEMENT, TEXT, file_sha256
from tacita.training.chosen_settings import ChosenSettings, chosen_rows_per_query
from tacita.training.finished_run import Run
from tacita.training.fit import fit
from tacita.training.held_out_loss import HeldOutLoss
from tacita.training.public_loss import EarlyStop

FINGERPRINT = "data_fingerprint"  # of the file that a run began with, among its private files
UNSEEN = 1e-5  # of the largest score, by which tokens that are not seen may move one: kernels differ
MASKED = -1e4  # scores below are those of tokens that a model never says
WARM_UP = 0.05  # share of the steps over which the step size rises


@dataclass(frozen=True)
class TextRun:
    """A finished run: its folder, and its statement in words and as JSON values."""

    folder: Path
    statement: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """What is public about a run before any record is read: settings, encoder, model, and its base.

    Attributes:
        base_sha256: The SHA-256 of each file that the base is made of, by name, from before any of them was opened.
        public_sha256: That of the file of public texts, by its name; empty if there is none.
    """

    settings: FinetuneSettings
    encoder: TokenEncoder
    model: nn.Module
    base: Path
    base_sha256: dict[str, str]
    public_sha256: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Files, settings: FinetuneSettings) -> "Prepared":
        """Open the base, its tokenizer and its template.

        Raises:
            ValueError: One of them cannot be trained; the message says why.
        """
        files.check(settings)
        if settings.fingerprint_key is not None:
            fingerprint_secret(settings.fingerprint_key)  # before anything is spent
        base_model.check_folder(files.model)
        digests = base_model.hashes(files.model)
        encoder = encoder_of(files.model, settings)
        name = settings.dataset_name or files.data.name
        rules = {"lr": settings.step_size, "alpha": settings.scale}  # as chosen, for the file of settings
        settings = replace(settings, max_tokens=encoder.max_tokens, dataset_name=name, **rules)
        if settings.rows is None and settings.rate is None:
            settings = replace(settings, rate=RATE)
        model: Any = base_model.open_model(files.model, settings)
        if base_model.hashes(files.model) != digests:
            raise ValueError("MODEL was changed while it was opened: try again.")
        rows = model.get_input_embeddings().weight.shape[0]
        if encoder.largest >= rows:  # a text that holds such a token would end the run
            raise ValueError(
                f"the tokenizer has tokens up to number {encoder.largest}, and the model's embedding has {rows} rows: "
                "resize it (model.resize_token_embeddings), or take the tokens out."
            )
        _try(model, encoder)
        given = settings.public_validation
        public = {} if given is None else {Path(given).name: file_sha256(Path(given))}
        return cls(settings, encoder, model, files.model, digests, public)

    @property
    def losses(self) -> Callable:
        """One loss a record."""
        settings = self.settings
        divisor = self.encoder.most / 2 if settings.loss == "sum" else None
        return sequence_losses(settings.loss, divisor=divisor)

    @property
    def sequences(self) -> int:
        """How many sequences a step reads of a record that it draws: of a person several, by the rule of ``fit``."""
        settings = self.settings
        if settings.unit_field is None:
            return settings.windows
        return settings.windows * chosen_rows_per_query(settings.rows_per_query, settings.epsilon, ChosenSettings())

    @property
    def kept(self) -> int:
        """The public number of records that are trained on."""
        number = self.settings.number
        return number if self.score is None else self.score.kept(number)

    @property
    def batch(self) -> float | None:
        """The expected number of records in a step; ``None`` for the rule of ``fit``."""
        rate = self.settings.rate
        return self.settings.batch if rate is None else rate * self.kept

    @property
    def score(self) -> HeldOutLoss | None:
        """The score to buy, in nats up to those of a guess among all tokens; ``None`` without held-out records."""
        share, upper = self.settings.holdout, math.log(len(self.encoder.tokenizer))
        return HeldOutLoss(upper=upper, loss_fn=scored_losses, share=share, name=SCORED) if share else None

    @property
    def base_name(self) -> str:
        """The last part of the base's path: no folder of this machine is published."""
        return Path(os.path.abspath(self.base)).name

    def stated(self, data: Path, randomness: Randomness) -> dict[str, Any]:
        """Return what the statement says of data, base and training."""
        own, weights = self.settings, sum(p.numel() for p in trainable(self.model).values())
        adapter = f"LoRA adapter (rank {own.rank}, scale {own.scale:g}, {own.targets}), {weights:,} weights"
        template = "the tokenizer's own" if own.template is None else Path(own.template).name
        digests = {name: self.base_sha256[name] for name in base_model.weights(self.base)}
        found: dict[str, Any] = {
            "model": adapter if own.train == "lora" else f"all {weights:,} weights, trained",
            "rows": own.stated_rows,
            "base_model": {"name": self.base_name, "sha256": digests},
            "not_anonymised": [*CAVEATS],
            "text_template": template if own.messages else "none, and records with messages contribute nothing",
        }
        if own.fingerprint_key is not None:
            found["data_fingerprint"] = data_fingerprint(own.fingerprint_key, run_id(randomness), data)
        return found

    def export(self, run: Run, folder: Path) -> None:
        """Write adapter or model, tokenizer, card and settings."""
        name = "adapter" if self.settings.train == "lora" else "model"
        kept: Any = self.model
        if name == "adapter":
            base_model.save_adapter(kept, folder / name)
        else:
            kept.save_pretrained(str(folder / name), safe_serialization=True)
        self.encoder.tokenizer.save_pretrained(str(folder / name))
        (folder / name / "README.md").write_text(card(run.statement.to_json(), self.settings, self.base_name))
        (folder / CONFIG).write_text(self.config(), encoding="utf-8")

    def config(self) -> str:
        """Return the file ``config.toml`` of the run, with the digests of its base."""
        about = {"name": self.base_name, "lora_seed": str(base_model.LORA_SEED)}
        more = {"public_validation_sha256": self.public_sha256} if self.public_sha256 else {}
        return self.settings.to_toml(base=about, base_sha256=self.base_sha256, **more)

    def held_to(self, before: bytes) -> None:
        """Refuse other settings, or another base, than those of the ``config.toml`` that the run wrote.

        Raises:
            ResumeError: One differs, and is named with both values.
        """
        first, now = tomllib.loads(before.decode()), tomllib.loads(self.config())
        for name in sorted({*first, *now} - {"physical_batch", "base"}):  # memory alone; the words of a path
            if first.get(name) == now.get(name):
                continue
            option = f"--{name.replace('_', '-')}"
            words = f"{option} was {first.get(name, 'not given')} and is {now.get(name, 'not given')} now"
            if name == "base_sha256":
                was, found = first.get(name, {}), now[name]
                file = next(file for file in sorted({*was, *found}) if was.get(file) != found.get(file))
                words = f"MODEL is another one now ({file} differs)"
            if name == "public_validation_sha256":
                words = "the file of --public-validation is another one now"
            raise ResumeError(
                f"{words}, and the folder of --output holds an unfinished run: repeat the settings that it began "
                "with, or choose another folder."
            )


def finetune(
    files: Files, settings: FinetuneSettings, *, progress: bool = False, randomness: Randomness | None = None
) -> TextRun:
    """Fine-tune ``files.model`` on ``files.data`` so that the run is (epsilon, delta)-differentially private.

    A run that was killed at any instant goes on when this is called again with the same settings and files.

    Raises:
        ValueError: A setting, the model or its template cannot be used; the message names the way out.
        DataStructureError: The file cannot be read. What its lines hold never raises.
        ResumeError: The folder holds a finished run, or one with other settings, data or base.
    """
    if randomness is None and settings.seed is not None:
        randomness = Randomness.insecure(settings.seed)
    if settings.output is None:
        raise ValueError("output is missing: give --output FOLDER, a new or an empty one.")
    folder = RunFolder(settings.output)
    RunLifecycle.check_folder(folder, "output")
    files.check(settings)
    prepared = Prepared.of(files, settings)
    if folder.tidying:  # a killed process had written everything, and only its private files are left
        run = RunLifecycle.start(folder, argument="output")
        prepared.held_to(run.sealed_run().read(CONFIG))
        run.finish()
        return _of(folder.path)
    own, begun = prepared.settings, folder.private / CONFIG

    def check(_: Any = None) -> None:
        if begun.exists():
            prepared.held_to(begun.read_bytes())

    check()
    if folder.ledger.exists() and not begun.exists():
        raise ResumeError(f"private/{CONFIG} of the run in {folder.path.name!r} is missing: restore it.")
    beside = folder.path.absolute().parent
    make_folder(beside)
    before = None if own.fingerprint_key is None else file_sha256(files.data)
    rows, units = encoded(prepared.encoder, files.data, beside, own.unit_field)
    public = None if own.public_validation is None else _public(prepared.encoder, own.public_validation, beside)
    run = RunLifecycle.start(folder, randomness, argument="output", check=check)
    if not begun.exists():
        replace_durably(begun, prepared.config().encode(), mode=0o600)
    said = prepared.stated(files.data, run.randomness)
    if before is not None and file_sha256(files.data) != before:
        raise ValueError("DATA was changed while it was read: try again.")
    _held_to_file(folder.private / FINGERPRINT, said.get("data_fingerprint"))
    fitted(
        prepared,
        rows,
        units,
        randomness,
        fields=lambda: said,
        dataset_name=own.dataset_name,
        about=files.about,
        folder=settings.output,
        public_data=public,
        early_stop=None if own.patience is None else EarlyStop(patience=own.patience),
        score=prepared.score,
        publish="exported",
        export=prepared.export,
        progress=progress,
    )
    return _of(folder.path)


def _held_to_file(first: Path, now: str | None) -> None:
    """Refuse another file than the one that the run began with: others may have the same tokens, not the same bytes."""
    if now is None:
        return
    if not first.exists():
        replace_durably(first, now.encode(), mode=0o600)
    if first.read_text() != now:
        raise ResumeError(
            "DATA, or the key of --fingerprint-key, is another file now, and the folder of --output holds an "
            "unfinished run whose statement would name this one: restore the file, or choose another folder."
        )


@contextmanager
def words_of_the_command() -> Iterator[None]:
    """Leave out of a refusal of the model's code what only a caller in Python can do."""
    try:
        yield
    except UnsupportedModuleError as error:
        why = str(error).removeprefix('method="program" cannot serve this model: ').partition(" Rewrite that")[0]
        raise UnsupportedModuleError(f"MODEL cannot be trained: {why} Choose another one, and a new output.") from None


@words_of_the_command()
def fitted(prepared: Prepared, rows: EncodedTexts, units: list, randomness: Randomness | None, **more: Any) -> Run:
    """Train by the settings; ``more`` is what a run and an audit have of their own."""
    own = prepared.settings
    return fit(
        prepared.model,
        prepared.losses,
        rows,
        target_epsilon=own.epsilon,
        target_delta=own.delta,
        epochs=own.epochs,
        num_records=own.number,
        expected_batch_size=prepared.batch,
        max_grad_norm=own.max_grad_norm,
        optimizer=lambda params: torch.optim.AdamW(params, lr=own.step_size, weight_decay=0.0),
        scheduler=warmed_up,
        units=units if own.unit_field is not None else None,
        rows_per_query=own.rows_per_query,
        privacy_unit=own.unit,
        hardened=own.hardened,
        max_physical_batch_size=max(own.physical_batch // prepared.sequences, 1),
        randomness=randomness,
        **more,
    )


def encoder_of(model: Path, settings: RecordSettings) -> TokenEncoder:
    """Open the tokenizer of a model and its template, tested before any record."""
    length = base_model.length(base_model.check_folder(model), settings.max_tokens)
    tokenizer = base_model.open_tokenizer(model, settings.template)
    return TokenEncoder(
        tokenizer=tokenizer, max_tokens=length, windows=settings.windows, cut=settings.cut,
        mask_prompt=settings.mask_prompt, chat=ChatTemplate(tokenizer) if settings.messages else None,
    )  # fmt: skip


def warmed_up(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """Return a schedule: up to the step size over the first 5 % of the steps, then down to 0 in a line."""
    rise = max(1, round(WARM_UP * steps))
    return LambdaLR(optimizer, lambda made: min((made + 1) / rise, (steps - made) / max(steps - rise, 1)))


def encoded(
    encoder: TokenEncoder, path: Path, folder: Path, unit_field: str | None
) -> tuple[EncodedTexts, list[str | None]]:
    """Return the texts of a file as tokens, kept under ``folder``, and the person of each line."""
    rows = EncodedTexts(encoder, folder)
    return rows, rows.extend(read_records(path, unit_field))


@torch.no_grad()
def _try(model: nn.Module, encoder: TokenEncoder) -> None:
    """Run the model on public rows, full ones and short ones: it may number positions in a way of its own.

    Raises:
        ValueError: It fails, as it would on a record, or it sees the token that it is to predict.
    """
    length, mode, dtype = encoder.max_tokens, model.training, next(model.parameters()).dtype
    ids = torch.stack([torch.full((length,), encoder.largest), torch.arange(length) % (encoder.largest + 1)])
    ids = torch.cat([ids, torch.zeros(1, length, dtype=torch.int64)])
    mask = torch.ones_like(ids)
    mask[2, 1:] = 0  # one token, and padding
    try:
        sequence_losses()(model.eval(), {"input_ids": ids, "attention_mask": mask, "labels": ids})
        end = length - length // 2  # the first half must not hear of another second half
        other = torch.cat([ids[:2, :end], (ids[:2, end:] == 0).long()], dim=1)
        before, after = (
            model(input_ids=one, attention_mask=mask[:2], use_cache=False).logits[:, :end].float()
            for one in (ids[:2], other)
        )
    except Exception as error:  # nothing private has been read
        why = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"MODEL fails on records of {length} tokens ({why}): give a smaller --max-tokens.") from error
    finally:
        model.train(mode)
    said = (before > MASKED) & (after > MASKED)
    moved, size = ((one.where(said, 0.0)).abs().max() for one in (after - before, before))
    if not moved <= max(2 * torch.finfo(dtype).eps, UNSEEN) * size:
        raise ValueError(
            "MODEL sees later tokens (a masked language model, or one that is not set up as a decoder), so that its "
            "loss would be none of prediction: choose a causal one."
        )


def _public(encoder: TokenEncoder, path: str, folder: Path) -> dict[str, torch.Tensor]:
    rows, _ = encoded(encoder, Path(path), folder, None)
    whole = rows.fetch(np.arange(len(rows)), 0)
    kept = with_targets(whole["labels"])
    if not kept.any():
        raise ValueError("public_validation holds no record that can be trained on: tacita check says why.")
    return {name: one[kept] for name, one in whole.items()}


def _of(folder: Path) -> TextRun:
    words = (folder / TEXT).read_bytes().decode()
    return TextRun(folder, words, json.loads((folder / STATEMENT).read_bytes()))
