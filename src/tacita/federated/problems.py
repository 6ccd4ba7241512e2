"""Problems of many clients, whose gradients are computed for all of them at once. Everything here is private.

A client's gradient is that of its own mean loss, at a point that all clients share or at one of its own. Rows that
pad a small client have weight 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacita import _validate
from tacita.federated.privacy import RecordSampling
from tacita.gradients.engine import Shapes
from tacita.gradients.weighted_sums import group_norms, weighted_sum

Tensors = Mapping[str, Tensor]
MOST_REGULARISATION = 1e6  # over the share of one record: the sum of both is rounded to 2^-53 of the larger
ROUNDED_UP = 1 + 1e-12  # a norm that is the product of two, in float64


class ClientProblem(ABC):
    """The data of all clients, and their gradients.

    Attributes:
        num_clients: The number of clients n, which is public.
        dtype: The dtype of points, gradients and states.
    """

    num_clients: int
    dtype: torch.dtype

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """The shapes of the parameters, by name."""

    @abstractmethod
    def gradients(self, params: Tensors, clients: Tensor | None, drawn: Tensor | None) -> dict[str, Tensor]:
        r"""Return the gradients of some clients, (clients, \*param) by name.

        Args:
            params: The point, (\*param) for all clients or (clients, \*param).
            clients: Numbers of the clients, int64; ``None`` for all.
            drawn: What :meth:`draw` returned for this round.
        """

    def draw(self, generator: torch.Generator) -> Tensor | None:
        """Draw the rows of every client's minibatch, (n, batch); ``None`` if all rows are used."""
        return None

    @property
    def num_rows(self) -> int:
        """The number of rows of the largest client, padding included."""
        raise TypeError(f"{type(self).__name__} has no records of clients, which sampling them by coins needs.")

    def clipped_gradients(
        self, params: Tensors, clients: Tensor | None, drawn: Tensor, sampling: RecordSampling
    ) -> dict[str, Tensor]:
        r"""Return sums of clipped gradients of single records over ``sampling.divisor``, (clients, \*param) by name.

        Args:
            params, clients: As in :meth:`gradients`.
            drawn: Which rows are drawn, bool, (n, rows) of all clients.
            sampling: How records are clipped.
        """
        raise TypeError(f"{type(self).__name__} has no gradients of single records.")

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The public settings that decide a run, but for the data: they are bound to the session's hash."""

    def __repr__(self) -> str:
        words = ", ".join(
            f"{name}={value!r}" for name, value in {"num_clients": self.num_clients, **self.settings}.items()
        )
        return f"{type(self).__name__}({words})"


def check_record_sampling(
    problem: ClientProblem, sampling: RecordSampling, loss_rate: float, weights: Tensor | None
) -> None:
    """Raise unless the proof by the number of draws covers the simulation."""
    if loss_rate:
        raise ValueError(
            "loss_rate must be 0 with RecordPrivacy: by the number of draws of a record it is only proved for states "
            "that move with every message."
        )
    if weights is not None:
        raise ValueError(
            "weights must be None with RecordPrivacy: a weight may depend on records, beside the messages."
        )
    if problem.dtype != torch.float64:
        raise ValueError(f"the problem must be of float64 with RecordPrivacy, got {problem.dtype}.")
    if problem.settings.get("batch_size") is not None:
        raise ValueError(
            "batch_size must be None with RecordPrivacy, which draws every client's records by its own rate."
        )
    _validate.count("num_rows", problem.num_rows)
    most = MOST_REGULARISATION * sampling.clipper.max_grad_norm / sampling.divisor
    if problem.settings.get("regularisation", 0.0) > most:
        raise ValueError(
            f"regularisation must be at most {MOST_REGULARISATION:g} times the share of a record, its threshold over "
            f"the divisor, with RecordPrivacy: {most:g}. Beside a larger one, a record's gradient would be rounded up "
            "to far more than it is charged for."
        )


def own_rows(weights: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
    """Draw rows of each client's own, those of a weight above 0, with replacement: (n, batch_size), int64.

    The law of a client's draw depends on its own rows alone: rows that pad, of which the largest client decides how
    many there are, are never drawn. A client without rows gets row 0, of weight 0.
    """
    own = weights > 0
    uniform = torch.rand(len(weights), batch_size, dtype=torch.float64, generator=generator)
    places = (uniform * own.sum(dim=1, keepdim=True)).long()
    return own.to(torch.int8).argsort(dim=1, descending=True, stable=True).gather(1, places)


class LogisticClients(ClientProblem):
    r"""Logistic regression on every client: :math:`f_i(x) = \sum_j w_{ij} \ln(1 + e^{-b_{ij} a_{ij}^\top x}) + \lambda
    \sum_l \frac{x_l^2}{1 + x_l^2}`, in closed form; the regulariser of the paper is not convex.

    Args:
        features: Rows a, (n, rows, d).
        labels: b of -1 or 1, (n, rows).
        weights: w, (n, rows); by default 1 over the number of rows. 0 for rows that pad.
        regularisation: lambda >= 0.
        batch_size: Rows of a client's minibatch, drawn from its own with replacement; ``None`` for all.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        regularisation: float = 0.0,
        batch_size: int | None = None,
    ) -> None:
        if features.ndim != 3 or labels.shape != features.shape[:2]:
            raise ValueError(
                f"features must be (clients, rows, d) and labels (clients, rows), got {tuple(features.shape)} and "
                f"{tuple(labels.shape)}."
            )
        self.num_clients, rows, self._dim = features.shape
        self.dtype = features.dtype
        self._lambda = _validate.non_negative("regularisation", regularisation)
        self._batch_size = None if batch_size is None else _validate.count("batch_size", batch_size)
        of_rows = torch.full(labels.shape, 1 / rows, dtype=self.dtype) if weights is None else weights.to(self.dtype)
        self._features, self._labels, self._weights = features, labels.to(self.dtype), of_rows

    @property
    def shapes(self) -> Shapes:
        return {"x": torch.Size([self._dim])}

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"regularisation": self._lambda, "batch_size": self._batch_size, "dtype": str(self.dtype)}

    @property
    def num_rows(self) -> int:
        return self._features.shape[1]

    def draw(self, generator: torch.Generator) -> Tensor | None:
        if self._batch_size is None:
            return None
        return own_rows(self._weights, self._batch_size, generator)

    def clipped_gradients(
        self, params: Tensors, clients: Tensor | None, drawn: Tensor, sampling: RecordSampling
    ) -> dict[str, Tensor]:
        present = drawn & (self._weights > 0)
        a, b, here = (part if clients is None else part[clients] for part in (self._features, self._labels, present))
        x = params["x"]
        pulls = -b * torch.sigmoid(-b * (a @ x if x.ndim == 1 else torch.bmm(a, x.unsqueeze(-1)).squeeze(-1)))
        norms = group_norms({"a": a}, {"all": ("a",)}, 2).squeeze(-1) * pulls.abs() * ROUNDED_UP
        weights = torch.where(here, sampling.clipper.weights(norms), 0.0)
        rows = torch.where((weights > 0).unsqueeze(-1), a, 0.0)
        pulls = torch.where(weights > 0, weights * pulls, 0.0)
        found = torch.bmm(pulls.unsqueeze(1), rows).squeeze(1) / sampling.divisor
        return {"x": found + self._pull_of_regulariser(x)}

    def _pull_of_regulariser(self, x: Tensor) -> Tensor | float:
        return 2 * self._lambda * x / (1 + x.square()).square() if self._lambda else 0.0

    def gradients(self, params: Tensors, clients: Tensor | None, drawn: Tensor | None) -> dict[str, Tensor]:
        a, b, w = (part if clients is None else part[clients] for part in (self._features, self._labels, self._weights))
        if drawn is not None:
            rows = drawn if clients is None else drawn[clients]
            scale = (w > 0).sum(dim=1, keepdim=True, dtype=self.dtype) / rows.shape[1]
            a = a.gather(1, rows.unsqueeze(-1).expand(-1, -1, self._dim))
            b, w = b.gather(1, rows), scale * w.gather(1, rows)
        x = params["x"]
        margins = b * (a @ x if x.ndim == 1 else torch.bmm(a, x.unsqueeze(-1)).squeeze(-1))
        pulls = -w * b * torch.sigmoid(-margins)
        return {"x": torch.bmm(pulls.unsqueeze(1), a).squeeze(1) + self._pull_of_regulariser(x)}


class QuadraticClients(ClientProblem):
    r"""The quadratic :math:`f_i(x) = \frac{L}{2} \lVert x - t_i \rVert^2` on every client, for examples.

    Args:
        targets: t, (n, d).
        smoothness: L > 0.
        noises: Vectors, (k, d), one of which is added to a client's gradient in each round, all equally likely.
    """

    def __init__(self, targets: Tensor, *, smoothness: float = 1.0, noises: Tensor | None = None) -> None:
        if targets.ndim != 2:
            raise ValueError(f"targets must be (clients, d), got {tuple(targets.shape)}.")
        self.num_clients, self._dim = targets.shape
        self.dtype = targets.dtype
        self._targets, self._smoothness = targets, _validate.positive("smoothness", smoothness)
        self._noises = noises

    @property
    def settings(self) -> Mapping[str, Any]:
        kinds = 0 if self._noises is None else len(self._noises)
        return {"smoothness": self._smoothness, "noises": kinds, "dtype": str(self.dtype)}

    @property
    def shapes(self) -> Shapes:
        return {"x": torch.Size([self._dim])}

    def draw(self, generator: torch.Generator) -> Tensor | None:
        if self._noises is None:
            return None
        return torch.randint(len(self._noises), (self.num_clients, 1), generator=generator)

    def gradients(self, params: Tensors, clients: Tensor | None, drawn: Tensor | None) -> dict[str, Tensor]:
        targets = self._targets if clients is None else self._targets[clients]
        found = self._smoothness * (params["x"] - targets)
        if self._noises is not None and drawn is not None:
            found = found + self._noises[drawn.squeeze(1) if clients is None else drawn[clients].squeeze(1)]
        return {"x": found}


class NetworkClients(ClientProblem):
    """A network on every client: ``torch.func.vmap`` over clients of the gradient of a client's mean loss.

    Args:
        model: The network; not modified. Its layers must run under ``vmap`` (no batch statistics).
        loss_fn: ``(model, batch) -> losses`` of shape (rows,); ``batch`` holds a client's rows.
        data: Tensors (n, rows, ...).
        weights: Weights of the rows, (n, rows); by default 1 over the number of rows. 0 for rows that pad.
        batch_size: Rows of a client's minibatch, drawn from its own with replacement; ``None`` for all.
        clients_at_once: Number of clients whose gradients are computed together, which bounds memory.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, tuple[Tensor, ...]], Tensor],
        data: tuple[Tensor, ...],
        *,
        weights: Tensor | None = None,
        batch_size: int | None = None,
        clients_at_once: int = 64,
    ) -> None:
        self._model, self._loss_fn, self._data = model, loss_fn, tuple(data)
        self.num_clients, self._rows = self._data[0].shape[:2]
        if any(part.shape[:2] != self._data[0].shape[:2] for part in self._data):
            raise ValueError("data must be tensors (clients, rows, ...) with the same first two axes.")
        self._params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        self.dtype = next(iter(self._params.values())).dtype
        shape = (self.num_clients, self._rows)
        self._weights = torch.full(shape, 1 / self._rows, dtype=self.dtype) if weights is None else weights
        self._batch_size = None if batch_size is None else _validate.count("batch_size", batch_size)
        self._at_once = _validate.count("clients_at_once", clients_at_once)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings; of model and loss only the names, which a hash cannot cover."""
        names = {"model": type(self._model).__name__, "loss_fn": getattr(self._loss_fn, "__name__", "loss_fn")}
        sizes = {"batch_size": self._batch_size, "clients_at_once": self._at_once, "dtype": str(self.dtype)}
        return {**names, **sizes}

    @property
    def shapes(self) -> Shapes:
        return {name: p.shape for name, p in self._params.items()}

    @property
    def num_rows(self) -> int:
        return self._rows

    def draw(self, generator: torch.Generator) -> Tensor | None:
        if self._batch_size is None:
            return None
        return own_rows(self._weights, self._batch_size, generator)

    def clipped_gradients(
        self, params: Tensors, clients: Tensor | None, drawn: Tensor, sampling: RecordSampling
    ) -> dict[str, Tensor]:
        chosen = torch.arange(self.num_clients) if clients is None else clients
        of_rows = vmap(grad(self._row_loss), in_dims=(None, 0))
        groups, sums = {"all": tuple(self.shapes)}, []
        for client in chosen.tolist():  # one client's gradients of single records in memory at a time
            here = (drawn[client] & (self._weights[client] > 0)).nonzero().squeeze(1)
            found = of_rows(dict(params), tuple(x[client][here] for x in self._data))
            weights = sampling.clipper.weights(group_norms(found, groups)).squeeze(-1)
            sums.append(weighted_sum(found, weights.unsqueeze(-1), groups))
        return {name: torch.stack([one[name] for one in sums]) / sampling.divisor for name in self.shapes}

    def gradients(self, params: Tensors, clients: Tensor | None, drawn: Tensor | None) -> dict[str, Tensor]:
        chosen = torch.arange(self.num_clients) if clients is None else clients
        own = next(iter(params.values())).ndim > len(next(iter(self.shapes.values())))  # a point for each client
        of_clients = vmap(grad(self._loss), in_dims=(0 if own else None, 0, 0))
        chunks = []
        for places in torch.arange(len(chosen)).split(self._at_once):
            part = chosen[places]
            rows = torch.arange(self._rows).expand(len(part), -1) if drawn is None else drawn[part]
            which = part.unsqueeze(1)
            batch = tuple(x[which, rows] for x in self._data)
            weights = self._weights[which, rows]
            if drawn is not None:
                weights = weights * (
                    (self._weights[part] > 0).sum(dim=1, keepdim=True, dtype=self.dtype) / rows.shape[1]
                )
            points = {name: p[places] for name, p in params.items()} if own else dict(params)
            chunks.append(of_clients(points, batch, weights))
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in self.shapes}

    def _row_loss(self, params: dict[str, Tensor], row: tuple[Tensor, ...]) -> Tensor:
        return self._loss(params, tuple(x.unsqueeze(0) for x in row), torch.ones(1, dtype=self.dtype))

    def _loss(self, params: dict[str, Tensor], batch: tuple[Tensor, ...], weights: Tensor) -> Tensor:
        def model(*inputs: Any) -> Any:
            return functional_call(self._model, params, inputs)

        return (self._loss_fn(model, batch) * weights).sum()
