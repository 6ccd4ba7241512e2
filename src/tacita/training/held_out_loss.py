r"""The loss on held-out records, before and after a training, bought in one query of the run's own ledger.

Place: oracles, splitting -> [training.held_out_loss] -> fit. Proof: docs/derivations/held-out-loss.md.

Each record is trained on or held out, by its own coin, so that the ledger takes the maximum of training and score. The
score is a query of an ordinary oracle, which pays, clips and adds the noise: the gradient of :math:`\theta \cdot v_i`
with respect to :math:`\theta` is the record's own vector :math:`v_i` of bounded numbers.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.accounting import FullBatchLaw, GaussianSumEvent, calibrate
from tacita.clipping import FlatClipper
from tacita.errors import BudgetExceededError
from tacita.gradients.functional import LossFn
from tacita.gradients.probe import evaluating
from tacita.ledger.verdict import NOTHING_LEARNED
from tacita.oracles import ClippedGradientOracle, Records
from tacita.oracles.records import as_records
from tacita.random import Randomness
from tacita.sampling import FullBatchSampler
from tacita.splitting import split
from tacita.user_records import UserRecords

SCORE = "score"  # the purpose of the session
SQUARE = math.sqrt(0.5)  # weight of a square in v: more makes the means noisier, and less their intervals
BOUND = 2.0  # the largest norm of v
LEVEL, Z = 0.95, 2.0  # of the intervals; standard deviations
SKEW = (2 * Z**2 + 1) / 6  # records: what the skewness of a sum moves its quantiles, at most
VISIBLE = 4 * Z  # standard deviations of noise below which a number of records is taken for none


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    r"""A score that :func:`tacita.fit` buys: the mean loss on records that were held out of the training.

    One query of noisy sums over the held-out records gives their number, the mean loss of the model as it was handed in
    and that of the trained one, and intervals of at least 95 % of both and of their difference, which cover sampling
    and noise. No record is both trained on and scored, so that the query may spend as much as the training. If the
    interval of the difference reaches down to 0, or no number came out, the statement begins with NOTHING LEARNED.

    Attributes:
        upper: Public bound; a loss counts as at most this, and as at least 0. The noise grows with it: ``1`` for a
            share of wrong answers; ``ln V`` for nats over V classes.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,); ``None`` for the loss that is trained. A record whose
            loss is NaN before the training does not count.
        share: Share of the records that are held out, in (0, 1).
        name: What the loss is called in the statement.

    Example:
        >>> wrong = lambda model, batch: (model(batch[0]).argmax(1) != batch[1]).float()
        >>> score = HeldOutLoss(upper=1.0, loss_fn=wrong, name="share of wrong answers")
    """

    upper: float
    loss_fn: LossFn | None = None
    share: float = 0.05
    name: str = "mean loss"

    def __post_init__(self) -> None:
        _validate.positive("upper", self.upper)
        if not 0 < self.share < 1:
            raise ValueError(f"share must be in (0, 1), got {self.share!r}.")

    def kept(self, num_records: int) -> int:
        """Return the public number of records that are trained on."""
        return max(round((1 - self.share) * num_records), 1)

    def smallest_gain(self, num_records: int, epsilon: float, delta: float) -> float:
        """Return which drop of the mean loss shows above the noise alone, where no record differs from another."""

        def event(noise_multiplier: float) -> GaussianSumEvent:
            return GaussianSumEvent(
                relation="add_or_remove_one",
                sampling=FullBatchLaw(),
                max_contribution=(BOUND,),
                noise_std=(BOUND * noise_multiplier,),
            )

        (noise_std,) = event(calibrate(event, "add_or_remove_one", epsilon, delta, queries=1)).noise_std
        width = Z * math.hypot(_spread(0.0, 0.0, num_records, noise_std), noise_std) + SKEW
        return self.upper * width / (num_records - self.kept(num_records))

    def split(self, dataset: Any, randomness: Randomness) -> tuple[Records, Records]:
        """Return the records to train on, and those to score, by the coins of the run's key."""
        records = as_records(dataset)
        if records.rows is not None or records.part is not None:
            raise ValueError("score must go without the part of a split: hold records out of all of them.")
        kept, held_out = split(records.dataset, [1 - self.share, self.share], randomness=randomness, name="holdout")
        return kept, held_out


class HeldOutScore:
    """The session of a :class:`HeldOutLoss`: registered before the training, asked after it.

    Args:
        wanted: The score.
        model: The model before the training, of which what it trains is copied.
        records: The held-out records.
        loss_fn: The loss of a record.
        paying: As of :class:`~tacita.ClippedGradientOracle`.
    """

    def __init__(
        self,
        wanted: HeldOutLoss,
        model: nn.Module,
        records: Records,
        loss_fn: LossFn,
        **paying: Any,
    ) -> None:
        self._wanted, self._model = wanted, model
        self._whole = "users" if isinstance(records.dataset, UserRecords) else "records"
        frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
        with evaluating(model), _untrained(model):
            self._pair = _Pair(copy.deepcopy(model, frozen), model)
            self._oracle = ClippedGradientOracle(
                self._pair,
                partial(_numbers, loss_fn, wanted.upper),
                records,
                sampler=FullBatchSampler(num_records=1),  # a divisor, which is not used
                clipper=FlatClipper(max_grad_norm=BOUND),
                planned_queries=1,
                purpose=SCORE,
                **paying,
            )

    def fields(self) -> dict[str, Any]:
        """Buy the score, or take what an earlier process bought, and return the statement's fields of it."""
        oracle, gate = self._oracle, self._oracle.gate
        if oracle.session.opened:
            gate.resume(0, oracle.randomness.generation, gate.identity)
        try:
            with evaluating(self._model):
                release = oracle.query({"weights": self._pair.weights})
        except BudgetExceededError:
            how = "none: an earlier process bought it from other values, and it is not bought twice"
            return {"holdout_score": {"measure": self._wanted.name, "value": None, "private": True, "how": how}}
        finally:
            if oracle.session.opened and not oracle.session.closed:
                oracle.session.close()
        ((block, noise_std),) = release.noise_std.items()
        sums = release.released[block]["weights"].double().tolist()
        return _fields(self._wanted, sums, noise_std, release.session, self._whole)


class _Pair(nn.Module):
    """A model before and after its training, and the parameter whose gradient is a record's numbers."""

    def __init__(self, before: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.after = before, after
        device = next((p.device for p in after.parameters()), torch.device("cpu"))
        self.weights = nn.Parameter(torch.zeros(5, device=device))
        self.eval()


def _numbers(loss_fn: LossFn, upper: float, pair: _Pair, batch: Any) -> Tensor:
    r"""Return :math:`\theta \cdot v`, v = (1, a, d, h a^2, h d^2), of the losses a after the training and a + d before.

    With a and b in [0, 1] its norm is at most :math:`\sqrt{3 + 2 h^2}` = 2, at a = 1 and b = 0.
    """
    before, after = (loss_fn(one, batch).detach() for one in (pair.before, pair.after))
    if after.ndim != 1:
        return after  # which is refused in the words of every oracle
    a, b = ((losses.float() / upper).nan_to_num(1.0).clamp(0.0, 1.0) for losses in (after, before))
    values = torch.stack([torch.ones_like(a), a, b - a, SQUARE * a**2, SQUARE * (b - a) ** 2], 1)
    return ((~before.isnan()).float()[:, None] * values * pair.weights).sum(1)


@contextmanager
def _untrained(model: nn.Module) -> Iterator[None]:
    """Freeze the parameters for the block."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in trained:
            p.requires_grad_(False)
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


def _fields(wanted: HeldOutLoss, sums: list[float], noise_std: float, session: str, whole: str) -> dict[str, Any]:
    """Return the fields that the noisy sums give the statement; all of it is post-processing."""
    number, *sums = sums
    what = f"the {wanted.name} before and after the training, on the {wanted.share:.0%} of {whole} held out by coin"
    noise_of = f"each of five sums, to which a record adds at most {BOUND:g} (L2)"
    how = f"bought in the same ledger, on {whole} held out by coin; the interval covers sampling and noise. "
    how += f"A loss above {wanted.upper:.4g} counts as {wanted.upper:.4g}"
    score = {
        "measure": wanted.name,
        "value": None,
        "private": True,
        "level": LEVEL,
        "rows": max(round(number), 0),
        "of": "units",
    }
    found: dict[str, Any] = {"holdout_score": score}
    released = {"value": None}
    if number < max(VISIBLE * noise_std, 2.0):
        score["how"] = f"{how}. At this noise they are too few for a number"
        found["headline"] = (
            f"{NOTHING_LEARNED} that held-out records show: at this noise too few of them count for a number. More "
            "records that can be trained on, a larger share or a larger epsilon would help."
        )
    else:
        own, first, gain = (_scaled(mean, wanted.upper) for mean in _means(number, sums, noise_std))
        how += f". Before the training it was {_in_words(first)}; the training lowered it by {_in_words(gain)}"
        score |= {**own, "how": how, "before": first, "lowered_by": gain}
        released = {"value": own["value"], "before": first["value"], "lowered_by": gain["value"]}
        if gain["interval"][0] <= 0:
            found["headline"] = (
                f"{NOTHING_LEARNED} that held-out records show: that the training lowered their {wanted.name} by "
                f"{_in_words(gain)} does not exclude 0. More records or steps, a larger share held out or a larger "
                "epsilon would help."
            )
    purchase = {"session": session, "what": what, "noise_std": noise_std, "noise_of": noise_of}
    return {**found, "purchases": [{**purchase, "released": released}]}


Mean = tuple[float, float, float]  # and its interval, in units of ``upper``


def _means(number: float, sums: Sequence[float], noise_std: float) -> tuple[Mean, Mean, Mean]:
    """Return the means of a, of b and of d = b - a, by the noisy sums of v."""
    spread = [_spread(*pair, number, noise_std) for pair in zip(sums[:2], sums[2:], strict=True)]
    after, gain = sums[:2]
    return (
        _mean(after, spread[0], number, noise_std, least=0.0),
        _mean(after + gain, sum(spread), number, noise_std, copies=2, least=0.0),
        _mean(gain, spread[1], number, noise_std, least=-1.0),
    )


def _spread(total: float, square: float, number: float, noise_std: float) -> float:
    """Return how far the records spread about their mean, as a standard deviation of their sum, noise added."""
    return math.sqrt(max((square + noise_std) / SQUARE - total**2 / number, 0.0))


def _mean(total: float, spread: float, number: float, noise_std: float, *, copies: int = 1, least: float) -> Mean:
    r"""Return the mean, and the interval of the :math:`m` with :math:`|T - m N| \le z \sqrt{S^2 + s^2 (c + m^2)} + k`.

    T is the noisy ``total``, N the noisy ``number``, S the ``spread`` of the sum, c the ``copies`` of noise in T, and k
    what skewness moves. The mean is at least ``least`` and at most 1.
    """
    leading = number**2 - (Z * noise_std) ** 2

    def bounded(value: float) -> float:
        return min(max(value, least), 1.0)

    def end(moved: float, sign: int) -> float:
        rest = moved**2 - Z**2 * (spread**2 + copies * noise_std**2)
        middle = number * moved
        return bounded((middle + sign * math.sqrt(max(middle**2 - leading * rest, 0.0))) / leading)

    return bounded(total / number), end(total - SKEW, -1), end(total + SKEW, 1)


def _scaled(mean: Mean, upper: float) -> dict[str, Any]:
    """Return the fields of a mean; the ends of its interval are rounded outwards to three digits."""
    value, low, high = (upper * one for one in mean)
    return {"value": value, "interval": [math.floor(1e3 * low) / 1e3, math.ceil(1e3 * high) / 1e3]}


def _in_words(mean: Mapping[str, Any]) -> str:
    low, high = mean["interval"]
    return f"{mean['value']:.3f} ({low:g} to {high:g})"
