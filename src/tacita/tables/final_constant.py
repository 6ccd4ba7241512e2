"""The constant of a linear or additive model once it is trained: corrected by what was bought, at no cost."""

from collections.abc import Mapping

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor, nn

from tacita.tables.additive import row_weight
from tacita.tables.features import ArrayPiece, NumberTarget, ScatteringPiece
from tacita.tables.findings import RARE
from tacita.tables.preprocessing import Preprocessing
from tacita.tables.settings import TableSettings
from tacita.tables.shapes import cells_of, places_of, shapes

ROWS = 2**14  # made-up rows on which a mean is taken
OF_A_MEAN = (
    "target scale = log: the model is trained on the logarithm of the target; a linear or additive one then predicts "
    "the mean, exp(f + s^2/2), with s^2 the variance of the bought logarithms that its columns leave"
)
OF_A_RARE_CLASS = "constant = corrected after the training for what clipping takes from a rare class"


def set_constant(model: nn.Module, preprocessing: Preprocessing, settings: TableSettings, max_grad_norm: float) -> None:
    """Correct the constant of a linear or additive model: for a mean, or for a rare class."""
    if not isinstance(model, nn.Linear):
        return
    target, weights = preprocessing.encoder.target, model.state_dict()
    with torch.no_grad():
        if isinstance(target, NumberTarget) and target.log:
            model.bias.add_(mean_shift(preprocessing, weights))
        elif corrects_clipping(preprocessing, settings):
            weight = row_weight(preprocessing.encoder, max_grad_norm) if settings.model == "additive" else 1.0
            shift = clipping_shift(preprocessing, weights, max_grad_norm / weight)
            model.bias.add_(torch.tensor([-shift / 2, shift / 2]))


def corrects_clipping(preprocessing: Preprocessing, settings: TableSettings) -> bool:
    """Return whether the constant is corrected for clipping: two classes, one rare by bought counts, and no weights."""
    counts, pieces = preprocessing.label_counts, preprocessing.encoder.pieces
    return (
        preprocessing.model.name in ("linear", "additive")
        and not (settings.balanced or settings.feedback)
        and len(counts) == len(preprocessing.encoder.classes) == 2
        and min(counts.values()) < RARE * preprocessing.rows
        and not any(isinstance(one, ArrayPiece | ScatteringPiece) for one in pieces)
    )


def mean_shift(preprocessing: Preprocessing, weights: Mapping[str, Tensor]) -> float:
    r"""Return what turns a prediction of the mean logarithm into one of the mean, in standardised units.

    If the logarithm is normal around its prediction with variance :math:`s^2`, the mean is :math:`\exp(f + s^2/2)`.
    What the model explains of the variance of 1 is taken to be the sum of what its shapes do, as if columns were
    independent.
    """
    target = preprocessing.encoder.target
    assert isinstance(target, NumberTarget)
    assert target.log is not None
    explained = sum(shape.importance**2 for shape in shapes(preprocessing, weights)) / target.log.scale**2
    return max(1.0 - explained, 0.0) * target.log.scale / 2


def clipping_shift(preprocessing: Preprocessing, weights: Mapping[str, Tensor], max_grad_norm: float) -> float:
    r"""Return what turns log odds that were trained on clipped gradients into those of the second of two classes.

    A row of features x (with a 1 for the constant) and label y has a gradient of length
    :math:`\sqrt 2\,|p - y|\,|x|`, which clipping multiplies by :math:`w_y = \min(1, C / (\sqrt 2\,|p - y|\,|x|))`:
    the rows of a rare class, of which p is far, lose most. Training ends where the mean gradient *so weighted* is 0.
    If the true odds are those of the model but for a constant s, it is the root of
    :math:`E[\eta w_1 (1 - p)] = E[(1 - \eta) w_0 p]`, :math:`\eta` the chance at log odds f + s. The means are over
    made-up rows, whose cells are drawn from the bought counts as if columns were independent. 0 if nothing is clipped.
    """
    encoder, generator = preprocessing.encoder, np.random.default_rng(0)
    weight, (first, second) = weights["weight"].double().numpy(), weights["bias"].tolist()
    odds, squares = np.full(ROWS, second - first), np.ones(ROWS)
    for places in places_of(encoder).values():
        cells = cells_of(preprocessing, [piece for piece, _ in places])
        drawn = generator.choice(len(cells.rows), size=ROWS, p=cells.rows / cells.rows.sum())
        odds += cells.values([weight[1:, own] - weight[:1, own] for _, own in places])[drawn, 0]
        squares += np.square(np.concatenate(cells.features, axis=1)).sum(1)[drawn]
    if not np.isfinite(odds).all():  # a training that went astray
        return 0.0
    odds = np.clip(odds, -30, 30)
    chance, bound = expit(odds), max_grad_norm / np.sqrt(2 * squares)
    yes, no = np.minimum(1 - chance, bound), np.minimum(chance, bound)  # w_1 (1 - p) and w_0 p

    def pull(shift: float) -> float:
        eta = expit(odds + shift)
        return float(np.mean(eta * yes - (1 - eta) * no))

    return float(brentq(pull, -90, 90))  # pyright: ignore[reportArgumentType]
