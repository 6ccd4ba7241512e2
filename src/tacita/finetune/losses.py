"""The loss of a record of text: of its own tokens, and of no other record's.

What a model computes with ``model(**batch).loss`` is a mean over the tokens of the *batch*. Every record then has
the other records' number of tokens in its denominator, so that one long record that comes or goes rescales all the
gradients of the others, which clipping each to C does not bound: the clipped sum moved by up to 18 C where the
guarantee assumes 1 C (docs/finetuning.md has the figures).
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from tacita import _validate
from tacita.finetune.encoding import IGNORED

SequenceLoss = Literal["mean", "sum"]


def sequence_losses(
    loss: SequenceLoss = "mean", *, divisor: float | None = None
) -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    r"""Return the loss of each record of a batch, for :func:`tacita.fit` or an oracle.

    Of record :math:`i` with targets :math:`T_i` it is :math:`\frac{1}{\max(|T_i|, 1)} \sum_{t \in T_i} -\ln
    p(t)` for ``"mean"``, and :math:`\frac{1}{R} \sum_{t \in T_i} -\ln p(t)` for ``"sum"``, in nats. Where the clipping
    threshold is below most norms, both give the same update, because clipping takes the scale away.

    Args:
        loss: ``"mean"`` over the record's own targets, or their ``"sum"`` over a public ``divisor``.
        divisor: R, a public number, such as half of the length in tokens; for ``"sum"`` alone.

    Returns:
        ``(model, batch) -> losses`` of shape (batch,), for a batch with ``input_ids``, ``attention_mask`` and
        ``labels``, in which -100 is no target, nor is any number that the model has no score for: each (batch, length),
        or (batch, windows, length), where the targets of a record are those of all its windows. Without a target the
        loss is 0. Pad on the right, or give ``position_ids``, too: many models count positions from the left end,
        padding included. After padding on the left the first token is no target, because only padding stands before it.

    Raises:
        ValueError: ``loss`` is neither, or ``divisor`` is missing or goes with ``"mean"``; from what is returned:
            records are longer than the model's positions.
    """
    if loss not in ("mean", "sum"):
        raise ValueError(
            f"loss must be mean or sum, both of one record's own tokens, got {loss!r}. A mean over the tokens of a "
            "batch is no choice: each record would be divided by the other records' number of tokens."
        )
    if (loss == "sum") != (divisor is not None):
        raise ValueError("divisor, a public number, belongs to loss='sum', and to it alone.")
    scale = None if divisor is None else _validate.positive("divisor", divisor)

    def losses(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        summed, targets = _sums(model, batch)
        return summed / (targets.clamp(min=1) if scale is None else scale)

    return losses


def _sums(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the summed loss of each record's targets, and the number of these that the model can say."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if most is not None and batch["input_ids"].shape[-1] > most:
        raise ValueError(f"records have {batch['input_ids'].shape[-1]} tokens, and the model {most} positions.")
    ids, mask, labels = (batch[name].flatten(0, -2) for name in ("input_ids", "attention_mask", "labels"))
    places = {"position_ids": batch["position_ids"].flatten(0, -2)} if "position_ids" in batch else {}
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **places).logits
    scores = logits[:, -ids.shape[1] : -1].float().mT  # those of a prompt that is learnt come first
    said = labels[:, 1:]
    said = said.where((said >= 0) & (said < scores.shape[1]), IGNORED)  # a model may read what it cannot say
    each = nn.functional.cross_entropy(scores, said, reduction="none", ignore_index=IGNORED)
    windows = math.prod(batch["labels"].shape[1:-1])
    summed, targets = (one.sum(1).view(-1, windows).sum(1) for one in (each, said != IGNORED))
    return summed, targets


def scored_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of each record's own targets; NaN for one without a target, which a score does not count."""
    summed, targets = _sums(model, batch)
    return summed / targets


def with_targets(labels: Tensor) -> Tensor:
    """Return which records of a batch have a target."""
    return (labels[..., 1:] != IGNORED).flatten(1).any(1)
