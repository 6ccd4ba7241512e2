r"""Attacks on the canaries of one run: a score for each canary, computed from the releases alone.

A score is a function of the releases and of public settings, so it costs the records of the run no further epsilon. An
attack sees each release together with the point at which it was asked, which is a function of the earlier releases.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.gradients import NetworkSource
from tacita.gradients.batches import to_device
from tacita.gradients.functional import LossFn
from tacita.gradients.given import GivenEngine
from tacita.oracles import GradientOracle, Release
from tacita.testing.one_run.canaries import EMBEDDING, PlantedModel

LEAST_NOISE = 1e-3  # times a record's contribution; less noise is replaced by this in the likelihood ratio


class Attack(ABC):
    """Base of the attacks: take in the releases one after another, then score the canaries.

    Attributes:
        words: The attack in words, for a report.
    """

    words: str

    @abstractmethod
    def see(self, params: Mapping[str, Tensor], release: Release) -> None:
        """Take in one release, asked at ``params``."""

    @abstractmethod
    def scores(self, params: Mapping[str, Tensor]) -> np.ndarray:
        """Return one score per canary, float64, high for "included"; ``params`` is the final point."""


class OwnParameter(Attack):
    r"""Score planted canaries by the likelihood ratio of the releases of each canary's own parameter.

    These releases hold all information about the canary. Entry i of a release is :math:`r = B x + z`, where :math:`x`
    = C if the canary is in (if it is left out, 0, or -C under replace_one), :math:`B` says whether the query drew it,
    and :math:`z \sim N(0, s^2)`. With sample rate q, a query adds :math:`\log(1 - q + q \exp((C r - C^2 / 2) / s^2))`
    to the score; under replace_one, the same term with -C is subtracted.

    Args:
        oracle: The oracle of a :class:`~tacita.testing.one_run.canaries.PlantedModel`, whose noise, sensitivity and
            sample rate the ratio uses.

    Raises:
        ValueError: ``oracle`` is that of another model.
    """

    words = "planted canaries, likelihood ratio of all releases (white box)"

    def __init__(self, oracle: GradientOracle) -> None:
        model = oracle.source.model
        if not isinstance(model, PlantedModel):
            raise ValueError("make_oracle must build the oracle from the model, loss and records that it is given.")
        relation = oracle.ledger.neighboring_relation
        self._replaced = relation == "replace_one"
        self._sensitivity = oracle.estimator.sensitivity(relation, oracle.source.shapes)
        self._rate = oracle.sampler.sample_rate
        self._scores = torch.zeros(model.canaries.num_embeddings - 1, dtype=torch.float64)

    def see(self, params: Mapping[str, Tensor], release: Release) -> None:
        block = next(block for block, values in release.released.items() if EMBEDDING in values)
        seen = release.released[block][EMBEDDING][:-1, 0].double().cpu()
        contribution = self._sensitivity[block] / (2 if self._replaced else 1)
        std = max(release.noise_std[block], LEAST_NOISE * contribution)
        self._scores += self._presence(seen, contribution, std)
        if self._replaced:
            self._scores -= self._presence(seen, -contribution, std)

    def scores(self, params: Mapping[str, Tensor]) -> np.ndarray:
        return self._scores.numpy()

    def _presence(self, seen: Tensor, shift: float, std: float) -> Tensor:
        drawn = (shift * seen - shift**2 / 2) / std**2 + math.log(self._rate)
        passed_over = math.log1p(-self._rate) if self._rate < 1 else -math.inf
        return torch.logaddexp(drawn, torch.full_like(drawn, passed_over))


class GradientMatch(Attack):
    r"""Score rows by :math:`\sum_t \langle r_t, w_i g_i(\theta_t) \rangle`: releases times the row's clipped gradient.

    Args:
        oracle: The run's oracle.
        loss_fn: The loss of the run's model.
        rows: The canaries, as a data set.
        substitutes: The records that replace canaries that are left out, if any; their match is subtracted.
    """

    words = "rows, every release against the row's clipped gradient at its point (white box)"

    def __init__(self, oracle: GradientOracle, loss_fn: LossFn, rows: Any, substitutes: Any = None) -> None:
        model = oracle.source.model
        assert model is not None  # backward() raises without one
        self._clipper = getattr(oracle.estimator, "clipper", None)
        self._sources = [NetworkSource(model, loss_fn, data) for data in (rows, substitutes) if data is not None]
        self._scores = torch.zeros(self._sources[0].num_rows, dtype=torch.float64)

    def see(self, params: Mapping[str, Tensor], release: Release) -> None:
        direction = {name: value for values in release.released.values() for name, value in values.items()}
        for sign, source in zip((1.0, -1.0), self._sources, strict=False):
            self._scores += sign * self._matches(source, params, direction)

    def scores(self, params: Mapping[str, Tensor]) -> np.ndarray:
        return self._scores.numpy()

    def _matches(self, source: NetworkSource, params: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
        engine = source.engine(params, np.arange(source.num_rows))
        return torch.cat([self._chunk(grads, direction) for grads in engine.materialise()]).double().cpu()

    def _chunk(self, grads: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> Tensor:
        """Return each row's product with ``direction``; rows are weighted by the run's clipper, or else to norm 1."""
        shapes = {name: grad.shape[1:] for name, grad in grads.items()}
        groups = {"all": tuple(grads)} if self._clipper is None else self._clipper.groups(shapes)
        flat = {name: grad.flatten(1) for name, grad in grads.items()}
        norms = GivenEngine(flat).norms(groups)
        weights = 1 / norms if self._clipper is None else self._clipper.weights(norms)
        products = {name: grad @ direction[name].flatten().to(grad.dtype) for name, grad in flat.items()}
        matches = torch.stack([torch.stack([products[name] for name in names]).sum(0) for names in groups.values()], 1)
        return torch.where(weights > 0, weights * matches, 0.0).sum(1)


class FinalLoss(Attack):
    """Score rows by how much their loss fell from the untrained model to the final one (black box).

    The initial weights do not depend on any record, so subtracting the initial loss corrects for how hard each row is.
    The fall of the loss on a row's substitute is subtracted.

    Args:
        oracle: The run's oracle.
        loss_fn: The loss of the run's model.
        rows: The canaries, as a data set.
        substitutes: As in :class:`GradientMatch`.
    """

    words = "rows, loss of the final model less that of the untrained one (black box)"

    def __init__(self, oracle: GradientOracle, loss_fn: LossFn, rows: Any, substitutes: Any = None) -> None:
        model = oracle.source.model
        assert model is not None  # backward() raises without one
        self._model, self._loss_fn, self._device = model, loss_fn, next(model.parameters()).device
        self._sources = [NetworkSource(model, loss_fn, data) for data in (rows, substitutes) if data is not None]
        self._first = self._advantage()

    def see(self, params: Mapping[str, Tensor], release: Release) -> None:
        """Ignore the release: only the final model counts."""

    def scores(self, params: Mapping[str, Tensor]) -> np.ndarray:
        return self._advantage() - self._first

    def _advantage(self) -> np.ndarray:
        own, *others = [self._losses(source) for source in self._sources]
        return (others[0] if others else 0.0) - own

    def _losses(self, source: NetworkSource) -> np.ndarray:
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                chunks = source.read(np.arange(source.num_rows), None, 0)
                found = [
                    self._loss_fn(self._model, to_device(batch, self._device)).cpu().double() for _, batch, _ in chunks
                ]
        finally:
            self._model.train(training)
        return torch.cat(found).numpy()
