"""The interface of rules: how calls of one torch function give per-sample norms and weighted sums.

A rule computes both from the input of a call and the gradient of its output. Everything here is private.
Source: Goodfellow (2015), https://arxiv.org/abs/1510.01799; one backward pass for norms and sums after
Bu et al. (2023), https://arxiv.org/abs/2210.00038.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tacita.errors import UnsupportedModuleError
from tacita.gradients.rules.rounding import SquaredNorms, gamma, held, totals, unit
from tacita.gradients.weighted_sums import to_exact

Parameters = Mapping[str, "Tensor | None"]
UNDERNEATH = "underneath "  # begins the key under which the use of a derived weight keeps its own gradients
VALUE = "value"  # the name of AutogradRule for its parameter


@dataclass(frozen=True)
class Call:
    """One call of a torch function that meets parameters, as a rule reads it.

    Attributes:
        x: The input whose leading axes are positions or channels, as the record's code passed it.
        parameters: The arguments that may be parameters, by the rule's name for them ("weight", "bias").
        run: ``(physical x, parameters) -> physical output``: the same computation for the whole batch.
        settings: What else the rule must know: strides, numbers of groups.
        copies: Copies of the parameters, one a record, that ``run`` has computed with. If it fills this, autograd gives
            the per-sample gradients, and the rule is not asked for them.
    """

    x: Tensor
    parameters: Parameters
    run: Callable[[Tensor, Parameters], Tensor]
    settings: Any = field(default_factory=SimpleNamespace)
    copies: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class RowWeights:
    """Weights of the rows for one group.

    Attributes:
        values: Shape (rows,), in the dtype that products are taken in, >= 0.
        plain: Every weight is in [0, 1], and every row of weight 0 is finite. Then no row needs a mask, and no product
            overflows.
    """

    values: Tensor
    plain: bool

    def times(self, rows: Tensor) -> Tensor:
        """Multiply each row of ``rows`` (rows, ...) by its weight; weight 0 gives zeros, whatever the row holds."""
        column = (-1,) + (1,) * (rows.ndim - 1)
        weights = self.values.view(column)
        return rows * weights if self.plain else torch.where(weights != 0, rows * weights, 0.0)

    def sum(self, rows: Tensor) -> Tensor:
        """Return the weighted sum of ``rows`` over their first axis."""
        if not self.plain:
            present = (self.values != 0).view((-1,) + (1,) * (rows.ndim - 1))
            rows = torch.where(present, rows, 0.0)
        return (self.values.to(rows.dtype) @ rows.reshape(len(rows), -1)).view(rows.shape[1:])


@dataclass(frozen=True)
class LayerUse:
    """One call of a torch function with parameters: its input, and the gradient of the summed losses at its output.

    Attributes:
        settings: What :meth:`LayerRule.read` remembered of the call: strides, numbers of groups.
        shapes: Shapes of the parameters, by the rule's names.
        names: The trainable parameters, as the rule calls them ("weight", "bias").
        x: The input, batch axis first; float32 or better unless it holds integers.
        grad: The gradient of the output, batch axis first, float32 or better.
        kept: Per-sample gradients that the norms computed and that the sums use again.
    """

    settings: Any
    shapes: Mapping[str, torch.Size]
    names: tuple[str, ...]
    x: Tensor
    grad: Tensor
    kept: dict[str, Tensor] = field(default_factory=dict)

    def rows(self, index: Tensor | slice) -> "LayerUse":
        """Return the use with some of its rows."""
        return replace(self, x=self.x[index], grad=self.grad[index], kept={})

    def only(self, names: Sequence[str]) -> "LayerUse":
        """Return the use with some of its parameters."""
        return self if tuple(names) == self.names else replace(self, names=tuple(names))

    def wide(self) -> "LayerUse":
        """Return the use with the same numbers in float64, so that sums of products are taken in float64."""
        x = self.x.double() if self.x.is_floating_point() else self.x
        kept = {key: g.double() for key, g in self.kept.items() if key.removeprefix(UNDERNEATH) in self.names}
        return replace(self, x=x, grad=self.grad.double(), kept=kept)

    def held(self, name: str) -> Tensor | None:
        """Return what the sums of a parameter add: kept gradients, maybe of what was derived from it; or ``None``."""
        return self.kept.get(name, self.kept.get(UNDERNEATH + name))

    def weighted(self, weights: RowWeights) -> tuple[Tensor, Tensor]:
        """Return the input and the weighted output gradient. Their products are finite wherever the norm was.

        A row of weight 0 becomes zeros in both (its input may hold NaN, and 0 * NaN is NaN). So does a row that a
        weight above 1 would carry past the largest number: it adds less than its share, never more.
        """
        grad = weights.times(self.grad)
        if weights.plain:
            return self.x, grad
        present = (weights.values != 0) & grad.flatten(1).sum(dim=1).isfinite()
        return _where_rows(present, self.x), _where_rows(present, grad)

    def weighted_once(self, weights: RowWeights) -> tuple[Tensor, Tensor]:
        """Return input and output gradient, one of them weighted: the smaller one where either would do."""
        smaller = self.x.is_floating_point() and self.x.numel() < self.grad.numel()
        return (weights.times(self.x), self.grad) if weights.plain and smaller else self.weighted(weights)


@dataclass(frozen=True)
class Factors:
    """The gradients of a matrix, (rows, out, in), as sums of outer products over positions.

    Attributes:
        left: Vectors, (rows, positions, out); or the index of a one in each vector, (rows, positions).
        right: Vectors, (rows, positions, in).
    """

    left: Tensor
    right: Tensor

    def transposed(self) -> "Factors | None":
        """Return the factors of the transposed matrix; ``None`` if ``left`` holds indices."""
        return Factors(self.right, self.left) if self.left.ndim == 3 else None


def _where_rows(present: Tensor, rows: Tensor) -> Tensor:
    if not rows.is_floating_point():
        return rows
    return torch.where(present.view((-1,) + (1,) * (rows.ndim - 1)), rows, 0.0)


class LayerRule(ABC):
    """How calls of one torch function give per-sample norms and weighted sums.

    A new rule needs :meth:`read` and :meth:`grads` only: the other methods follow from them. Register the rule for its
    function with :func:`tacita.gradients.register_rule`, and check it with :func:`tacita.testing.check_layer_rule`.
    """

    @abstractmethod
    def read(self, *args: Any, **kwargs: Any) -> Call | None:
        """Read the arguments of a call; return ``None`` if the rule does not serve it.

        The tensors are those that one record's code sees. Only settings and shapes may be used, never values.
        """

    def split(self, use: LayerUse) -> Sequence[LayerUse]:
        """Return the uses that a recorded call stands for, in the axes that the other methods take."""
        return (use,)

    @abstractmethod
    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        """Return the per-sample gradients of ``use.names``, each (rows, *param)."""

    def squared_norms(self, use: LayerUse) -> Mapping[str, SquaredNorms | Tensor]:
        """Return the squared norms of the gradients by parameter: upper bounds of what :meth:`sums` adds for a row of
        weight 1.

        A rule of your own may return tensors, (rows,), float64. tacita's rules return what was measured, so that the
        margins of all calls are added at once.
        """
        use.kept.update(self.grads(use))
        return {n: held(use.kept[n]) for n in use.names}

    def holds(self, use: LayerUse) -> bool:
        """Return whether :meth:`squared_norms` keeps per-sample gradients in ``use.kept`` that the sums add."""
        return True

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        """Return the weighted sums of the gradients of ``use.names``, each of the parameter's shape."""
        grads = use.kept if all(n in use.kept for n in use.names) else self.grads(use)
        return {n: weights.sum(grads[n]) for n in use.names}

    def several_sums(self, use: LayerUse, weights: Sequence[RowWeights]) -> list[dict[str, Tensor]]:
        """Return :meth:`sums` for each of several weights."""
        return [self.sums(use, one) for one in weights]

    def radius(self, use: LayerUse) -> dict[str, Tensor]:
        r"""Bound the difference of :meth:`sums` from :meth:`grads`, in norm, for a row of weight 1: (rows,), float64.

        The engine asks where several uses meet in one parameter: their gradients may cancel, while the roundings of
        each use remain. For a rule that knows its :meth:`reach` it is :math:`2 \gamma_{T + 4}` times that, and for a
        gradient that is held, weighted and added a few units of its norm.
        """
        reach = {} if type(self).reach is LayerRule.reach else self.reach(use)
        twice = 2 * gamma(self.positions(use) + 4, use.grad.dtype)
        rest = [n for n in use.names if n not in reach]
        if any(n not in use.kept for n in rest):
            use.kept.update({n: g for n, g in self.grads(use).items() if n not in use.kept})
        found = {n: squared_norm_of(use.kept[n]).sqrt_() * (8 * unit(use.kept[n].dtype)) for n in rest}
        return found | {n: one * twice for n, one in reach.items()}

    def positions(self, use: LayerUse) -> int:
        """Return how many products of one sample :meth:`sums` adds up per coordinate of a gradient that is not kept."""
        return 1

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        r"""Bound the added-up norms of those products from above, for gradients that are not kept: (rows,), float64.

        For a linear layer this is :math:`\sum_t \lVert a_t \rVert \lVert d_t \rVert`. A sum in floating point is off by
        at most the unit roundoff times the number of roundings times the reach.

        Raises:
            UnsupportedModuleError: The rule does not know its reach.
        """
        missing = [name for name in use.names if name not in use.kept]
        if missing:
            raise UnsupportedModuleError(
                f"{type(self).__name__} has no reach(), so that no bound is known for sums in floating point. "
                'Use method="loop".'
            )
        return {}

    def factors(self, use: LayerUse) -> Factors | None:
        """Return the gradients of the one parameter of ``use`` as outer products; ``None`` if they are none.

        The engine asks where calls of different functions meet in one matrix.
        """
        return None

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse | None:
        """Return several calls of one layer as one call over all their positions, or ``None`` if the rule cannot."""
        return None


class AutogradRule(LayerRule):
    """The rule of parameters that are used where no other rule sees them: autograd gives their per-sample gradients.

    These gradients are ``use.grad``.
    """

    def read(self, *args: Any, **kwargs: Any) -> None:
        return None

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return {name: use.grad for name in use.names}


AUTOGRAD_RULE = AutogradRule()


def autograd_use(gradients: Tensor, local: str = VALUE) -> LayerUse:
    """Return the use of a parameter whose per-sample gradients are ``gradients``, (rows, *param)."""
    gradients = to_exact(gradients)
    return LayerUse(None, {local: gradients.shape[1:]}, (local,), gradients, gradients, kept={local: gradients})


@dataclass(frozen=True)
class NamedUse:
    """A use of parameters, with the model's names for them.

    Attributes:
        use: The use, in the rule's names.
        function: Name of the torch function.
        parameters: The rule's own name -> the model's.
        rule: The rule of the function.
        squares: The squared norms, by the rule's names, where they were taken during the backward pass.
    """

    use: LayerUse
    function: str
    parameters: dict[str, str]
    rule: LayerRule
    squares: Mapping[str, SquaredNorms | Tensor] = field(default_factory=dict)


def named_autograd_use(name: str, grads: Tensor) -> NamedUse:
    """Return the use of the model's parameter ``name`` whose per-sample gradients are ``grads``."""
    return NamedUse(autograd_use(grads), "autograd", {VALUE: name}, AUTOGRAD_RULE)


def squared_norm_of(grads: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Return the squared norms of per-sample gradients that are held, (rows,), float64."""
    return totals([[held(grads)]], rounding_margin=rounding_margin)[0]
