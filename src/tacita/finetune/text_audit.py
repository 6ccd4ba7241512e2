"""Audit the settings of a fine-tuning on texts that are public: train once with canaries, and ask what was learnt.

A canary is a made-up pair, "The code of customer 17 is" and six random digits, that a fair coin puts among the texts.
The model is thrown away. Secrets of this form: Carlini et al. (2019), https://arxiv.org/abs/1802.08232, section 4.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacita.accounting import Spend, epsilon
from tacita.finetune.encoding import EncodedTexts
from tacita.finetune.looking import planned
from tacita.finetune.losses import sequence_losses
from tacita.finetune.records import Line, TextRecord, Turn
from tacita.finetune.settings import Files, FinetuneSettings
from tacita.finetune.text_run import Prepared, encoded, fitted
from tacita.gradients.probe import evaluating
from tacita.random import Randomness
from tacita.testing.one_run import OneRunAudit, one_run_bound
from tacita.testing.one_run.bound import FALSE_ALARM, strict_delta
from tacita.testing.one_run.canaries import fair_coins
from tacita.testing.one_run.training import check_numbers, judged

CONFIDENCE = 0.95
CODES = 10**6
RANKED, RANKS = 50, 128  # canaries whose exposure is measured, at most; codes among which each one's own is ranked
COST = "none, if the data are public as declared; else"
WORDS = "made-up codes among the texts, loss of the final model less that of the base (black box)"


@dataclass(frozen=True, kw_only=True)
class TextAudit:
    """What an audit found.

    Attributes:
        audit: The claim, the measured lower bound of epsilon, and the verdict.
        exposure: For canaries that were in, and for those that were not, the exposure of each, in bits.
    """

    audit: OneRunAudit
    exposure: tuple[np.ndarray, np.ndarray]

    @property
    def text(self) -> str:
        """The result in a few lines."""
        inside, outside = (f"{np.median(bits):.2f}" if len(bits) else "–" for bits in self.exposure)
        return self.audit.text + (
            f"exposure:     median {inside} bits of codes that were in, {outside} of those that were not; 1 bit is "
            f"chance, {np.log2(RANKS):g} bits a code that the model finds likelier than {RANKS - 1} others\n"
        )


def power_in_words(prepared: Prepared, canaries: int) -> str:
    """Return what so many canaries can show at best; no record is read for it, and nothing is spent.

    Raises:
        ValueError: There are too few canaries.
    """
    delta = prepared.settings.delta
    check_numbers(canaries, delta=delta, confidence=CONFIDENCE, guesses=None)
    small, right = strict_delta(canaries, delta), np.arange(canaries) % 2 == 0
    shown = one_run_bound(right, right, delta=delta, confidence=CONFIDENCE).largest
    most = one_run_bound(right, right, delta=small, confidence=1 - FALSE_ALARM).largest
    _, steps, event = planned(prepared, prepared.settings.number)
    claim = epsilon([Spend(event, steps)], small).epsilon
    words = (
        f"power: if all guesses about {canaries} canaries are right, the audit shows an epsilon of {shown:.2f}; at "
        f"delta {small:.1g}, that of its verdict, one of {most:.2f} where {claim:.2f} is claimed. "
    )
    if most > claim:
        return f"{words}So it can refute the claim.\n"
    needed = f"that takes more than 16 e^epsilon = {16 * math.exp(min(claim, 700.0)):.1g} canaries"
    return f"{words}So it cannot refute the claim, whatever the model learns: {needed}.\n"


def audit_texts(
    files: Files,
    settings: FinetuneSettings,
    canaries: int,
    *,
    say: Callable[[str], Any] = lambda words: None,
    progress: bool = False,
) -> TextAudit:
    r"""Fine-tune once with canaries among the texts of ``files.data``, which you declare public; keep nothing.

    The lower bound of epsilon is that of :func:`tacita.testing.audit_one_run`, with its guarantee, from the final
    model alone. The exposure of a code is :math:`\log_2 (128 / r)` bits for its rank r by likelihood among 127 others
    that are drawn anew, after its own prompt. All settings but the score are those of the run that it stands for.

    Args:
        files: The model, and texts like the private ones. They are trained on with the settings' epsilon and delta,
            but in no ledger that is kept: that is why they must be public.
        settings: Those of the run; ``rows`` or ``rate`` too. Nothing is written to ``output``.
        canaries: Number of canaries, at least 50. About half of them are put among the texts.
        say: Called before anything is read, with what so many canaries can show at best.
        progress: Show progress on standard error.

    Raises:
        ValueError: As :func:`tacita.finetune.finetune`; or there are too few canaries.
    """
    prepared = Prepared.of(files, settings)
    say(power_in_words(prepared, canaries))
    coins = Randomness.system() if settings.seed is None else Randomness.insecure(settings.seed)
    included = fair_coins(canaries, coins)
    words = coins.session_key("canaries").stream("codes")
    codes = words.integers(canaries * RANKS, CODES).reshape(canaries, RANKS)  # the first of each row is its own
    secrets = [_record(number, code) for number, code in enumerate(codes[:, 0])]
    with tempfile.TemporaryDirectory() as folder:
        rows, units = encoded(prepared.encoder, files.data, Path(folder), settings.unit_field)
        chosen = np.flatnonzero(included)
        units += rows.extend(Line(secrets[number], f"canary {number}") for number in chosen)
        before = _losses(prepared, secrets)
        run = fitted(prepared, rows, units, coins if settings.seed is not None else None, progress=progress)
    audit = judged(
        before - _losses(prepared, secrets), included, run.ledger.sessions[0], run.ledger,
        adversary=WORDS, delta=settings.delta, confidence=CONFIDENCE, guesses=None,
    )  # fmt: skip
    ranked = [np.flatnonzero(side)[: RANKED // 2] for side in (included, ~included)]
    inside, outside = (np.array([_exposure(prepared, number, codes[number]) for number in side]) for side in ranked)
    return TextAudit(audit=replace(audit, cost=COST), exposure=(inside, outside))


def _record(number: int, code: int) -> TextRecord:
    said = Turn("user", f"The code of customer {number} is"), Turn("assistant", f" {code:06d}")
    return TextRecord("pair", said)


def _exposure(prepared: Prepared, number: int, codes: np.ndarray) -> float:
    """Return the exposure of the first of the codes, in bits; codes that are as likely as it count as likelier."""
    losses = _losses(prepared, [_record(number, code) for code in codes])
    return float(np.log2(len(codes) / (losses <= losses[0]).sum()))


def _losses(prepared: Prepared, records: Sequence[TextRecord]) -> np.ndarray:
    """Return the negative log-likelihood of each completion, in nats, under the model as it is."""
    longest = max(len(tokens.ids) for tokens in prepared.encoder.encode(records))
    with tempfile.TemporaryDirectory() as folder:
        rows = EncodedTexts(replace(prepared.encoder, max_tokens=max(longest, 2), windows=1), Path(folder))
        rows.extend(map(Line, records))
        loss_fn, found = sequence_losses("sum", divisor=1.0), []
        with torch.no_grad(), evaluating(prepared.model):
            for some in np.array_split(np.arange(len(rows)), -(-len(rows) // 64)):
                found.append(loss_fn(prepared.model, rows.fetch(some, 0)).double())
    return torch.cat(found).numpy()
