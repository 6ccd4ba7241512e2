"""Before a training: what its plan is, and, for the holder of the texts alone, what is odd in them."""

import time
from collections import Counter
from math import sqrt
from pathlib import Path

import numpy as np
import torch

from tacita._counted import counted
from tacita.accounting import GaussianSumEvent, PoissonLaw, calibrate
from tacita.clipping import FlatClipper
from tacita.finetune import base_model
from tacita.finetune.encoding import TokenEncoder
from tacita.finetune.records import TextRecord, read_records
from tacita.finetune.settings import RecordSettings
from tacita.finetune.text_run import Prepared, encoder_of
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import ClippedGradientOracle, trainable
from tacita.sampling import FullBatchSampler, PoissonSampler

RELATION = "add_or_remove_one"
TIMED = 3  # steps on synthetic rows
NO_RECORD = "no JSON object of one of the three forms"
NO_MESSAGES = "messages, which --no-messages leaves out"
NO_TARGET = "no target in it, or the chat template refuses it"
NOTHING_OF = (NO_RECORD, NO_MESSAGES, NO_TARGET)


def check_texts(path: str | Path, model: str | Path, settings: RecordSettings) -> str:
    """Return what is odd in a file of texts, in words. It looks at rows: for the holder of the data alone."""
    folder = Path(model)
    encoder = encoder_of(folder, settings)
    seen: Counter[str] = Counter()
    persons: set[str] = set()
    lengths: list[int] = []
    for line in read_records(path, settings.unit_field):
        (found,) = encoder.encode([line.record])
        whose = "" if settings.unit_field is None else line.unit
        seen["lines"] += 1
        seen["nobody"] += whose is None
        seen[_why_nothing(line.record, settings) if not found.counts else "whole"] += 1
        persons.update([] if whose is None else [whose])
        if found.counts:
            lengths.append(found.length)
    words = ["NOT PRIVATE: this looks at the rows, for the holder of the data.", "", counted(seen["lines"], "line")]
    words += [f"{seen[why]} contribute nothing: {why}" for why in NOTHING_OF if seen[why]]
    if settings.unit_field is not None:
        words.append(f"{counted(len(persons), 'person')} by {settings.unit_field!r}")
    if seen["nobody"]:
        words.append(f"{seen['nobody']} contribute nothing: no text or integer under {settings.unit_field!r}")
    if lengths:
        points = np.percentile(lengths, [5, 50, 95, 100], method="higher").astype(int)
        words.append(
            "tokens a record: "
            + ", ".join(f"{point} at {q} %" for point, q in zip(points, (5, 50, 95, 100), strict=True))
        )
        cut = counted(sum(length > encoder.most for length in lengths), "record")
        words.append(f"cut at {encoder.most} tokens: {cut}")
        words[-1] += _longer(encoder, int(points[2]), base_model.positions(base_model.check_folder(folder)))
    return "\n".join(words) + "\n"


def _why_nothing(record: TextRecord | None, settings: RecordSettings) -> str:
    if record is None:
        return NO_RECORD
    return NO_MESSAGES if record.form == "messages" and not settings.messages else NO_TARGET


def _longer(encoder: TokenEncoder, wanted: int, positions: int | None) -> str:
    """Say which length, or how many windows, keep 95 % of the records whole."""
    if wanted <= encoder.most:
        return ""
    if positions is None or wanted <= positions:
        return f"; --max-tokens {wanted} keeps 95 % whole"
    return f"; --max-tokens {positions} --windows {-(-(wanted - 1) // (positions - 1))} keeps 95 % whole"


def plan_in_words(prepared: Prepared) -> str:
    """Return the plan of a run, in words: no record is read, and nothing is spent."""
    settings, n = prepared.settings, prepared.kept
    if settings.rows is None:
        raise ValueError(
            "the plan needs rows, a public guess, for its tokens and its time: give --rows, beside --rate if you like."
        )
    sampler, steps, event = planned(prepared, n)
    batch, (noise,) = sampler.expected_batch_size, event.noise_std
    weights = sum(p.numel() for p in trainable(prepared.model).values())
    ratio = batch / (noise * sqrt(weights))
    seconds = _seconds(prepared)
    sequences = batch * prepared.sequences
    physical = min(settings.physical_batch, sequences)
    tokens, what = sequences * prepared.encoder.max_tokens, "records" if settings.unit_field is None else "persons"
    words = [
        f"{counted(steps, 'step')} of {batch:g} {what}, as expected (rate {batch / n:.4g}), {tokens:,.0f} tokens each",
        f"{weights:,} weights are trained; the noise multiplier is {noise:.4g}",
        f"signal to noise of a step: {ratio:.3g}, the longest mean of clipped gradients over the length of the noise. "
        "Below 1 a step alone is mostly noise: more records, a larger batch, a lower rank or a larger epsilon raise it",
        f"about {seconds * sequences / physical * steps / 60:.1f} minutes here, by {TIMED} steps on synthetic rows",
        *([f"the score is bought on {settings.holdout:.0%} of the {what}, beside the training"] * (n < settings.rows)),
        "no record was read, and nothing was spent",
    ]
    return "\n".join(words) + "\n"


def planned(prepared: Prepared, n: int) -> tuple[PoissonSampler, int, GaussianSumEvent]:
    """Return how ``n`` records will be drawn, in how many steps, and the event of a step at threshold 1."""
    settings = prepared.settings
    sampler = PoissonSampler(expected_batch_size=prepared.batch or max(min(n, 256), n // 50), num_records=n)
    steps = sampler.queries_for(settings.epochs)

    def event(multiplier: float) -> GaussianSumEvent:
        law = PoissonLaw(sampler.sample_rate)
        return GaussianSumEvent(relation=RELATION, sampling=law, max_contribution=(1.0,), noise_std=(multiplier,))

    return sampler, steps, event(calibrate(event, RELATION, settings.epsilon, settings.delta, queries=steps))


def _seconds(prepared: Prepared) -> float:
    """Return the time of one physical batch, in seconds."""
    count, length = prepared.settings.physical_batch, prepared.encoder.max_tokens
    ids = torch.randint(len(prepared.encoder.tokenizer), (count, length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    oracle = ClippedGradientOracle(
        prepared.model,
        prepared.losses,
        batch,
        ledger=Ledger(neighboring_relation=RELATION, privacy_unit="a synthetic row"),
        sampler=FullBatchSampler(num_records=count),
        clipper=FlatClipper(max_grad_norm=prepared.settings.max_grad_norm),
        mechanism=GaussianMechanism(noise_multiplier=1.0),
        planned_queries=TIMED,
    )
    times = []
    for _ in range(TIMED):
        start = time.perf_counter()
        oracle.query(trainable(prepared.model))
        times.append(time.perf_counter() - start)
    return min(times)
