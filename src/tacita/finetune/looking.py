"""Before a training: what its plan is, and, for the holder of the texts alone, what is odd in them."""

import hashlib
import json
import sys
import time
from collections import Counter, defaultdict
from math import sqrt
from pathlib import Path

import numpy as np
import torch

from tacita._counted import counted
from tacita.accounting import GaussianSumEvent, PoissonLaw, calibrate
from tacita.clipping import FlatClipper
from tacita.finetune import base_model
from tacita.finetune.encoding import TokenEncoder
from tacita.finetune.records import EMPTY, NO_JSON, NO_UTF8, Line, physical_lines, read_line
from tacita.finetune.settings import RecordSettings
from tacita.finetune.text_run import Prepared, encoder_of, words_of_the_command
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import ClippedGradientOracle, trainable
from tacita.sampling import FullBatchSampler, PoissonSampler
from tacita.tables.dry_run import plan_warnings

RELATION = "add_or_remove_one"
TIMED = 3  # steps on synthetic rows
SHOWN = 5  # lines and keys of a kind
NO_MESSAGES = "messages, which --no-messages leaves out"
NO_ANSWER = "messages in which the assistant says nothing"
REFUSED = "the chat template refuses the messages, or they are so long that no answer is left"
NO_TARGET = "nothing to learn is left: the text or completion is empty, was cut off, or the tokenizer refuses it"


def check_texts(path: str | Path, model: str | Path, settings: RecordSettings) -> tuple[str, int]:
    """Return what is odd in a file of texts, in words, and how many of its lines can be trained on.

    It looks at rows: for the holder of the data alone.
    """
    folder, unit_field = Path(model), settings.unit_field
    encoder = encoder_of(folder, settings)
    nothing: defaultdict[str, list[int]] = defaultdict(list)  # reason -> lines
    keys: defaultdict[str, Counter[str]] = defaultdict(Counter)  # reason -> keys on its lines
    texts, again, persons, lengths = set(), [], set(), []
    lines = 0
    for lines, raw in enumerate(physical_lines(Path(path)), 1):
        line = read_line(raw, unit_field)
        (found,) = encoder.encode([line.record])
        if why := _why_nothing(line, found.counts, settings):
            nothing[why].append(lines)
            if line.why not in (EMPTY, NO_UTF8, NO_JSON):
                keys[why].update(json.loads(raw).keys())
            continue
        persons.add(line.unit)
        lengths.append(found.length)
        text = hashlib.sha256(repr(line.record).encode()).digest()
        again += [lines] if text in texts else []
        texts.add(text)
    words = ["NOT PRIVATE: this looks at the rows, for the holder of the data.", "", counted(lines, "line")]
    words[-1] += f"; {len(lengths):,} can be trained on"
    for why, numbers in nothing.items():
        words.append(f"{len(numbers):,} contribute nothing: {why} ({_lines(numbers)}")
        words[-1] += f"; keys: {_keys(keys[why])})" if keys[why] else ")"
    if unit_field is not None:
        words.append(f"{counted(len(persons), 'person')} by {unit_field!r}")
    if again:
        words.append(f"{len(again):,} repeat the text of an earlier line, and count like it ({_lines(again)})")
    if lengths:
        points = np.percentile(lengths, [5, 50, 95, 100], method="higher").astype(int)
        words.append(
            f"tokens a record, of up to {encoder.letters:,} letters: "
            + ", ".join(f"{point} at {q} %" for point, q in zip(points, (5, 50, 95, 100), strict=True))
        )
        cut = counted(sum(length > encoder.most for length in lengths), "record")
        words.append(f"cut at {encoder.most} tokens: {cut}")
        words[-1] += _longer(encoder, int(points[2]), base_model.positions(base_model.check_folder(folder)))
    return "\n".join(words) + "\n", len(lengths)


def _why_nothing(line: Line, counts: bool, settings: RecordSettings) -> str:
    """Return why a line contributes nothing, or an empty text if it does; ``counts`` if its tokens have a target."""
    record = line.record
    if record is None:
        return line.why
    if not counts and record.form == "messages":
        if not settings.messages:
            return NO_MESSAGES
        return REFUSED if any(turn.role == "assistant" for turn in record.turns) else NO_ANSWER
    if not counts:
        return NO_TARGET
    nobody = settings.unit_field is not None and line.unit is None
    return f"no text or integer under {settings.unit_field!r}" if nobody else ""


def _lines(numbers: list[int]) -> str:
    first, more = ", ".join(map(str, numbers[:SHOWN])), len(numbers) - SHOWN
    return f"line {first}{f' and {more:,} more' if more > 0 else ''}"


def _keys(keys: Counter[str]) -> str:
    return ", ".join(f"{key[:40]!r} on {count:,}" for key, count in keys.most_common(SHOWN))


def _longer(encoder: TokenEncoder, wanted: int, positions: int | None) -> str:
    """Say which length, or how many windows, keep 95 % of the records whole."""
    if wanted <= encoder.most:
        return ""
    if positions is None or wanted <= positions:
        return f"; --max-tokens {wanted} keeps 95 % whole"
    return f"; --max-tokens {positions} --windows {-(-(wanted - 1) // (positions - 1))} keeps 95 % whole"


def plan_in_words(prepared: Prepared, *, scored: bool = True) -> str:
    """Return the plan of a run with ``rows``, in words: no record is read, and nothing is spent."""
    settings, n = prepared.settings, prepared.kept
    sampler, steps, event = planned(prepared, n)
    batch, (noise,) = sampler.expected_batch_size, event.noise_std
    weights = sum(p.numel() for p in trainable(prepared.model).values())
    ratio = batch / (noise * sqrt(weights))
    sequences = batch * prepared.sequences
    physical = min(settings.physical_batch, sequences)
    minutes = _seconds(prepared) * sequences / physical * steps / 60
    tokens, what = sequences * prepared.encoder.max_tokens, "records" if settings.unit_field is None else "persons"
    words = [
        *plan_warnings(settings.epsilon),
        f"{counted(steps, 'step')} of {batch:g} {what}, as expected (rate {batch / n:.4g}), {tokens:,.0f} tokens each",
        f"{weights:,} weights are trained; the noise multiplier is {noise:.4g}",
        f"signal to noise of a step: {ratio:.3g}, the longest mean of clipped gradients over the length of the noise. "
        "Below 1 a step alone is mostly noise: more records, a larger batch, a lower rank or a larger epsilon raise it",
        f"about {max(minutes, 0.1):.1f} minutes here, by {TIMED} steps on synthetic rows{_memory_in_words()}",
        *(_score_in_words(prepared, what) if scored else []),
        "no record was read, and nothing was spent",
    ]
    return "\n".join(words) + "\n"


def _memory_in_words() -> str:
    """Say the most memory that this process has held, which Windows does not tell."""
    try:
        import resource
    except ImportError:
        return ""
    unit = 1 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    return f"; up to {peak:.1f} GB of memory were in use, the model's included"


def _score_in_words(prepared: Prepared, what: str) -> list[str]:
    settings = prepared.settings
    if (score := prepared.score) is None or prepared.kept == settings.number:
        return []
    least = score.smallest_gain(settings.number, settings.epsilon, settings.delta)
    return [
        f"the score is bought on {settings.holdout:.0%} of the {what}, beside the training; for its noise alone the "
        f"run has to lower the loss by {least:.2g} nats, and by more where {what} differ, else its statement says "
        f"NOTHING LEARNED: more {what}, a larger --holdout or a larger epsilon lower that"
    ]


def planned(prepared: Prepared, n: int) -> tuple[PoissonSampler, int, GaussianSumEvent]:
    """Return how ``n`` records will be drawn, in how many steps, and the event of a step at threshold 1."""
    settings = prepared.settings
    sampler = PoissonSampler(expected_batch_size=prepared.batch or max(min(n, 256), n // 50), num_records=n)
    steps = sampler.queries_for(settings.epochs)

    def event(multiplier: float) -> GaussianSumEvent:
        law = PoissonLaw(sampler.sample_rate)
        return GaussianSumEvent(relation=RELATION, sampling=law, max_contribution=(1.0,), noise_std=(multiplier,))

    return sampler, steps, event(calibrate(event, RELATION, settings.epsilon, settings.delta, queries=steps))


@words_of_the_command()
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
