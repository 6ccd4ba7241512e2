r"""Attacks on canaries in one run: a score a canary from what was released, and from nothing else.

Place: oracles, canaries -> [audit.one_run_attack] -> one_run. A score is a function of the releases and of public
settings: that it costs the records of the run no epsilon of its own rests on this. An attack is shown each release
together with the point at which it was asked, which is a function of the releases before it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacita.audit.one_run_canaries import EMBEDDING, PlantedModel
from tacita.gradients import NetworkSource
from tacita.gradients.batches import to_device
from tacita.gradients.functional import LossFn
from tacita.gradients.given import GivenEngine
from tacita.oracles import GradientOracle, Release

LEAST_NOISE = 1e-3  # of a record's contribution: the ratio of a run with less noise than that is taken as if it had it


class Attack(ABC):
    """Sees the releases one after another; then tells the scores.

    Attributes:
        words: What it does, for a report.
    """

    words: str

    @abstractmethod
    def see(self, params: Mapping[str, Tensor], release: Release) -> None:
        """Take in one release, asked at ``params``."""

    @abstractmethod
    def scores(self, params: Mapping[str, Tensor]) -> np.ndarray:
        """One score a canary, float64, high for "included"; ``params`` is the final point."""


class OwnParameter(Attack):
    r"""The likelihood ratio of planted canaries: the releases of a canary's own parameter hold all there is to know.

    Entry i of a release is :math:`B x + z`: :math:`x` = C, or nothing (-C under replace_one) if the canary is left out,
    :math:`B` whether the query drew it, :math:`z \sim N(0, s^2)`. With sample rate q a query adds
    :math:`\log(1 - q + q \exp((C r - C^2 / 2) / s^2))` for presence, and the same with -C against it.

    Args:
        oracle: Of a :class:`~tacita.audit.one_run_canaries.PlantedModel`; tells noise, sensitivity and sample rate.

    Raises:
        ValueError: It is the oracle of another model.
    """

    words = "planted canaries, likelihood ratio of all releases (white box)"

    def __init__(self, oracle: GradientOracle) -> None:
        model = getattr(oracle.source, "model", None)
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
    r"""Rows, white box: :math:`\sum_t \langle r_t, w_i g_i(\theta_t) \rangle`, releases against what the row would add.

    Args:
        oracle: The run's.
        loss_fn: Of the run's model.
        rows: The canaries, as a data set.
        substitutes: What stands in their places when they are left out, if anything does: its match counts against.
    """

    words = "rows, every release against the row's clipped gradient at its point (white box)"

    def __init__(self, oracle: GradientOracle, loss_fn: LossFn, rows: Any, substitutes: Any = None) -> None:
        model: Any = oracle.source.model  # type: ignore[attr-defined]
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
        """Weights come from the run's own clipper; without one, every gradient counts with the norm 1."""
        shapes = {name: grad.shape[1:] for name, grad in grads.items()}
        groups = {"all": tuple(grads)} if self._clipper is None else self._clipper.groups(shapes)
        flat = {name: grad.flatten(1) for name, grad in grads.items()}
        norms = GivenEngine(flat).norms(groups)
        weights = 1 / norms if self._clipper is None else self._clipper.weights(norms)
        products = {name: grad @ direction[name].flatten().to(grad.dtype) for name, grad in flat.items()}
        matches = torch.stack([torch.stack([products[name] for name in names]).sum(0) for names in groups.values()], 1)
        return torch.where(weights > 0, weights * matches, 0.0).sum(1)


class FinalLoss(Attack):
    """Rows, black box: how much the loss on the canary fell from the untrained model to the final one.

    The first weights know no record, so that how hard a row is, which its loss shows first of all, is taken off. The
    fall on what stands in its place counts against it.

    Args:
        oracle: The run's.
        loss_fn: Of the run's model.
        rows: The canaries, as a data set.
        substitutes: As in :class:`GradientMatch`.
    """

    words = "rows, loss of the final model less that of the untrained one (black box)"

    def __init__(self, oracle: GradientOracle, loss_fn: LossFn, rows: Any, substitutes: Any = None) -> None:
        model: Any = oracle.source.model  # type: ignore[attr-defined]
        self._model, self._loss_fn, self._device = model, loss_fn, next(model.parameters()).device
        self._sources = [NetworkSource(model, loss_fn, data) for data in (rows, substitutes) if data is not None]
        self._first = self._advantage()

    def see(self, params: Mapping[str, Tensor], release: Release) -> None:
        """Releases on the way are not looked at."""

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
                    self._loss_fn(self._model, to_device(batch, self._device)).double().cpu() for _, batch in chunks
                ]
        finally:
            self._model.train(training)
        return torch.cat(found).numpy()
