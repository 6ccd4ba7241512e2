"""The score of a model: bought on rows held out by coin, or exact if the user put it outside the guarantee."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from tacita.ledger import Session
from tacita.random import Randomness, Stream
from tacita.tables.encoding import Encoded, Encoder
from tacita.tables.features import NumberTarget
from tacita.tables.intervals import LEVEL, ScoreInterval
from tacita.tables.models import outputs
from tacita.tables.purchases import buy_blocks
from tacita.tables.released_counts import whole
from tacita.tables.score import CLASSES, COINS, Score, read_score, score_counts
from tacita.testing.roc import auc

Guess = tuple[str, float]  # the most common label and its share of the rows


def measure(encoder: Encoder, *, bounded: bool = False) -> str:
    """Return the name of the score; ``bounded`` for one that is bought, for which a regression's values are bounded."""
    return "accuracy" if encoder.task == "classification" else "R2 of bounded values" if bounded else "R2"


def exact_counts(
    model: nn.Module,
    encoder: Encoder,
    chunks: Iterable[Encoded],
    *,
    coins: Stream,
    largest: float,
    centre: float = 0.0,
    alone: bool = False,
) -> dict[str, Tensor]:
    """Count the score's two histograms exactly. They are private until :func:`bought` has added noise.

    Nothing of a chunk is kept but its counts.

    Args:
        model, encoder: The model, and what made its rows.
        chunks: The rows to score, in the same order whenever they are counted.
        coins: A secret stream that serves nothing else. A row's coins follow from its place, so that a resumed run
            counts the same.
        largest: The bound on the squared errors and targets of a regression.
        centre: That of the bins of log odds.
        alone: Predict each row on its own, so that it shows in no other row's count.
    """
    total: dict[str, Tensor] = {}
    first = 0
    for rows in chunks:
        found = _outputs(model, encoder, rows, alone=alone)
        tossed = _coins(coins, first, len(found))
        own = score_counts(encoder, found, *_answers(rows), coins=tossed, largest=largest, centre=centre)
        total = {block: counts + total.get(block, 0) for block, counts in own.items()}
        first += len(found)
    return total


def _coins(stream: Stream, first: int, rows: int) -> np.ndarray:
    """Return the coins of rows, of which the first is the stream's row number ``first``, shape (COINS, rows)."""
    words = stream.words(COINS * rows, COINS * first).reshape(rows, COINS)
    return (words >> np.uint64(11)).T * 2.0**-53


def bought(
    encoder: Encoder,
    counts: Mapping[str, Tensor],
    session: Session,
    noise_std: Mapping[str, float],
    randomness: Randomness,
    *,
    guess: Guess | None,
    largest: float,
    centre: float = 0.0,
) -> dict[str, Any]:
    """Buy the score on held-out rows, and return the statement's fields of it.

    ``largest`` and ``centre`` are those of the counts.
    """
    noisy = buy_blocks(session, {block: {block: values} for block, values in counts.items()}, noise_std, randomness)
    score = read_score(encoder, noisy, noise_std, largest, centre)
    found = {
        "measure": measure(encoder, bounded=True),
        "value": score.value.value,
        "interval": _ends(score.value),
        "level": LEVEL,
        "constant_guess": _guess(encoder, score, guess, math.sqrt(noisy[CLASSES].shape[-1]) * noise_std[CLASSES]),
        "rows": whole(score.rows),
        "private": True,
        "how": "bought in the same ledger, on rows held out by coin; the interval covers sampling and noise"
        + ("" if score.value.value is not None else "; at this noise they are too few for a number")
        + bounded(encoder, largest, score)
        + not_stated(score),
        "noise_std": dict(noise_std),
        **({} if score.outside is None else {"outside": dict(zip(("share", "noise"), score.outside, strict=True))}),
    }
    for name, value in (("balanced_accuracy", score.balanced), ("AUC", score.auc)):
        if value is not None:
            found[name] = {"value": value.value, "interval": _ends(value)}
    if score.absolute is not None and isinstance(encoder.target, NumberTarget):
        found["mean_absolute_error"] = in_units(score.absolute, encoder.target.scale)
    return found


def in_units(found: ScoreInterval, scale: float) -> dict[str, Any]:
    """Return a number and its interval times the scale, in four digits, the ends rounded outwards."""
    low, value, high = (
        scale * part for part in (found.lower * (1 - 5e-4), found.value or 0.0, found.upper * (1 + 5e-4))
    )
    return {"value": float(f"{value:.4g}"), "interval": [float(f"{low:.4g}"), float(f"{high:.4g}")]}


def not_stated(score: Score) -> str:
    """Say which measures a class is too rare for; empty if all are stated."""
    missing = ["a balanced accuracy"] * (score.balanced is None)
    missing += ["an AUC"] * (len(score.sizes) == 2 and score.auc is None)
    few = ". At this noise, a class has too few of these rows for "
    return few + " or ".join(missing) if missing and len(score.sizes) > 1 else ""


def none_for(encoder: Encoder, how: str) -> dict[str, Any]:
    """Return the statement's fields of a run without a score."""
    return {"measure": measure(encoder), "value": None, "private": True, "how": how}


def bounded(encoder: Encoder, largest: float, score: Score) -> str:
    """Say for a bought R2 how errors and targets are bounded, in the target's own units, and how many lie outside."""
    target = encoder.target
    if not isinstance(target, NumberTarget):
        return ""
    most = math.sqrt(largest) * target.scale
    words = (
        f". It is the R2 of bounded values: an error, of the target as it is, above {most:.4g} counts as {most:.4g}; "
        f"and where the targets' spread is taken, one outside {target.centre - most:.4g} to "
        f"{target.centre + most:.4g} counts as the nearer end"
    )
    if score.outside is None:
        return f"{words}. How many lie outside is not known: the rows are few"
    share, noise = score.outside
    return f"{words}. Of the targets {share:.1%} lie outside, give or take {noise:.1%} of noise"


def _ends(found: ScoreInterval) -> list[float]:
    """Round the ends of the interval outwards to three digits."""
    return [math.floor(1e3 * found.lower) / 1e3, math.ceil(1e3 * found.upper) / 1e3]


def _guess(encoder: Encoder, score: Score, guess: Guess | None, noise_std: float) -> dict[str, Any]:
    """Return the best constant prediction and its score, by bought labels, else by the noisy counts of the score.

    The latter are sums over bins, of noise ``noise_std``, which may be larger than the score's: two standard deviations
    are returned, too.
    """
    if encoder.task != "classification":
        return {"label": "the mean", "value": 0.0}
    if not encoder.classes:
        return {"label": None, "value": 0.0}
    if guess is None:
        place, rows = int(np.argmax(score.sizes)), max(score.rows, 1.0)
        value = min(max(score.sizes[place] / rows, 0.0), 1.0)
        return {"label": encoder.classes[place], "value": value, "noise": 2 * noise_std / rows}
    return {"label": guess[0], "value": min(max(guess[1], 0.0), 1.0)}


def exact(model: nn.Module, encoder: Encoder, chunks: Iterable[Encoded], how: str, *, public: bool) -> dict[str, Any]:
    """Compute the score without noise. It is outside the guarantee, and the statement says so.

    ``public`` says whether the rows were declared public; if not, the statement's verdict says so, too.
    """
    rows = _scored(model, encoder, chunks)
    value, area = _value(encoder, *rows), _area(encoder, *rows)
    return {
        "measure": measure(encoder),
        "value": value,
        **({} if value is None else {"constant_guess": _exact_guess(encoder, *rows[1:])}),
        **({} if area is None else {"AUC": {"value": area}}),
        "private": False,
        "of_rows": "public" if public else "private",
        "how": how,
    }


def exact_value(model: nn.Module, encoder: Encoder, chunks: Iterable[Encoded]) -> float | None:
    """Compute accuracy or R2 over all rows with a label; ``None`` if there is none.

    A label that the model does not know counts as wrong.
    """
    return _value(encoder, *_scored(model, encoder, chunks))


def _scored(model: nn.Module, encoder: Encoder, chunks: Iterable[Encoded]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return outputs, targets and a mask of the targets that the model knows, of all rows with a label."""
    parts = []
    for rows in chunks:
        target, known, labelled = _answers(rows)
        parts.append((_outputs(model, encoder, rows)[labelled], target[labelled], known[labelled]))
    found, target, known = (np.concatenate(part) for part in zip(*parts, strict=True))
    return found, target, known


def _value(encoder: Encoder, found: np.ndarray, target: np.ndarray, known: np.ndarray) -> float | None:
    if encoder.task == "classification":
        return float(np.mean(known & (found.argmax(1) == target))) if len(target) else None
    predicted, numbers = found[known, 0], target[known]
    spread = float(np.square(numbers - numbers.mean()).sum()) if len(numbers) else 0.0
    return 1 - float(np.square(predicted - numbers).sum()) / spread if spread > 0 else None


def _exact_guess(encoder: Encoder, target: np.ndarray, known: np.ndarray) -> dict[str, Any]:
    """Return the best constant prediction of the rows that are scored, and its score."""
    if encoder.task != "classification":
        return {"label": "the mean", "value": 0.0}
    sizes = np.bincount(target[known], minlength=len(encoder.classes))
    return {"label": encoder.classes[int(sizes.argmax())], "value": float(sizes.max() / len(target))}


def _area(encoder: Encoder, found: np.ndarray, target: np.ndarray, known: np.ndarray) -> float | None:
    """Return the area under the ROC curve of two classes; ``None`` unless each has a row."""
    if encoder.task != "classification" or len(encoder.classes) != 2:
        return None
    odds, second = found[known, 1] - found[known, 0], target[known] == 1
    return auc(odds[second], odds[~second]) if 0 < second.sum() < len(second) else None


def _outputs(model: nn.Module, encoder: Encoder, rows: Encoded, *, alone: bool = False) -> np.ndarray:
    """Return what the model says of each row: one score a class, or its prediction in the units of the answers."""
    target = encoder.target
    found = (outputs(model, rows.features, rows=1) if alone else outputs(model, rows.features)).numpy()
    return (target.decode(found) - target.centre) / target.scale if isinstance(target, NumberTarget) else found


def words_for(path: str) -> str:
    """Say how a score on a public file was obtained."""
    return f"computed exactly on {Path(path).name}, which the user declares to be public"


def _answers(rows: Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return targets as they are, a mask of those that the model knows, and a mask of the rows with a label."""
    assert rows.answers is not None
    assert rows.labelled is not None
    return rows.answers.numpy(), rows.valid.numpy(), rows.labelled.numpy()
