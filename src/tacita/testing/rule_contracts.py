"""Contract tests for clippers, layer rules and oracles, both tacita's and third parties'.

Imported by tests only. Each check raises ``AssertionError`` with the failure.
"""

import copy
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacita.clipping.clipper import Clipper
from tacita.clipping.flat import FlatClipper
from tacita.dry_run import explain
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine import Groups, Sums
from tacita.gradients.functional import LossFn, trainable
from tacita.gradients.loop import LoopEngine
from tacita.gradients.program import ProgramEngine, Programs
from tacita.gradients.rules import LayerRule, LayerUse, register_rule
from tacita.gradients.rules.registry import RULES
from tacita.testing.event_contract import check_event
from tacita.testing.oracle_contract import check_oracle
from tacita.testing.sampler_contract import check_sampler

__all__ = ["check_clipper", "check_event", "check_layer_rule", "check_oracle", "check_sampler"]

_TAKING_USES = (  # the methods of a rule that are given uses
    "split", "grads", "squared_norms", "holds", "sums", "several_sums", "radius", "positions", "reach", "factors",
    "merged",
)  # fmt: skip


def check_clipper(clipper: Clipper, shapes: Mapping[str, torch.Size], *, extra_norms: Tensor | None = None) -> None:
    r"""Check that a clipper keeps its contract: groups that partition the parameters, weights that bound every norm.

    The guarantee ``weight * norm <= max_contribution`` is checked exactly (in rationals), and again after rounding of
    the product. The norms are 0, subnormal, tiny, around the threshold, huge, infinite and NaN, in float32 and float64.

    Args:
        clipper: The clipper to check.
        shapes: Shapes of parameters that it can group.
        extra_norms: Further norms to try, of any shape; they need not be finite.

    Example:
        >>> from tacita.clipping import FlatClipper
        >>> check_clipper(FlatClipper(max_grad_norm=0.1), {"weight": torch.Size([3, 2])})
    """
    groups = clipper.groups(shapes)
    grouped = [name for names in groups.values() for name in names]
    assert sorted(grouped) == sorted(shapes), f"groups must hold each parameter once, got {groups}"
    bounds = clipper.max_contribution(shapes)
    assert list(bounds) == list(groups), f"max_contribution must name the groups in order, got {list(bounds)}"
    thresholds = list(bounds.values())
    for dtype in (torch.float32, torch.float64):
        values = _hostile_norms(thresholds, dtype)
        if extra_norms is not None:
            values = torch.cat([values, extra_norms.flatten().to(dtype)])
        norms = torch.stack([values.roll(k) for k in range(len(groups))], dim=-1)
        _check_weights(clipper, norms, thresholds)


def _hostile_norms(thresholds: list[float], dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    smallest = limits.tiny * limits.eps
    fixed = [0.0, smallest, limits.tiny, 1e-30, 1e-3, 1.0, 3.0, 1e10, 1e30, limits.max, torch.inf, torch.nan]
    near = torch.tensor(thresholds, dtype=dtype)
    steps = torch.cat([near * (1 + k * limits.eps) for k in (-2, -1, 0, 1, 2)])
    clipped = torch.cat([near * factor for factor in (1.1, 1.7, 3.0, 7.0, 1e3 / 3, 1e7 / 3)])  # quotients that round
    return torch.cat([torch.tensor(fixed, dtype=dtype), steps, clipped])


def _check_weights(clipper: Clipper, norms: Tensor, thresholds: list[float]) -> None:
    given = norms.clone()
    weights = clipper.weights(norms)
    assert torch.equal(norms.nan_to_num(-1.0), given.nan_to_num(-1.0)), "weights must not modify the norms"
    assert weights.shape == norms.shape, f"weights have shape {weights.shape}, norms {norms.shape}"
    assert weights.isfinite().all(), "weights must be finite"
    assert (weights >= 0).all(), "weights must be >= 0"
    assert (weights[~norms.isfinite()] == 0).all(), "a norm that is not finite must get weight 0"
    for row_norms, row_weights in zip(norms.tolist(), weights.tolist(), strict=True):
        for n, w, c in zip(row_norms, row_weights, thresholds, strict=True):
            assert w == 0 or Fraction(w) * Fraction(n) <= Fraction(c), f"weight({n}) * {n} exceeds {c}"
    rounded = torch.where(norms.isfinite(), weights * norms, 0.0).double()
    assert (rounded <= torch.tensor(thresholds, dtype=torch.float64)).all(), "the rounded product exceeds the bound"
    assert clipper.weights(norms[:0]).shape == norms[:0].shape, "an empty batch must give empty weights"
    by_row = torch.cat([clipper.weights(row) for row in norms.split(1)])
    assert torch.equal(by_row, weights), "weights must act row by row"
    runs = clipper.weights(norms.expand(3, *norms.shape))
    assert torch.equal(runs, weights.expand(3, *weights.shape)), "weights must take leading axes"


def check_layer_rule(
    module: nn.Module,
    make_input: Callable[[int], Tensor],
    *,
    function: Callable | None = None,
    rule: LayerRule | None = None,
    canary_offset: float = 1e4,
    canary_slack: float = 1e-3,
) -> None:
    """Check that a layer rule keeps the contract on which privacy rests.

    The checks are:

    * Norms, weighted sums and per-sample gradients equal those of the loop engine in float64: for several weights at
      once, for one group and for one group per parameter, in one chunk and in several, for a batch of one, and with
      each parameter frozen.
    * Norms in float32 are upper bounds of the exact norm and of a row's contribution, within 1 % for ordinary rows.
      Where positions cancel, and where three uses of the layer cancel, they still bound what a row adds; and the exact
      norm, unless the gradient is held, which is added as it was rounded.
    * No method of the rule writes the input of a call or the gradient of its output, in place: other calls may have
      the same tensors.
    * A row that holds NaN, inf or 1e30 does not affect the others, contributes at most the threshold to the clipped
      sum, and the norms of the other rows stay the same.

    Args:
        module: A layer whose forward pass calls the function that the rule serves; it is copied, not modified.
        make_input: Number of rows -> an input of the layer, batch axis first, different at each call.
        function: The torch function for which ``rule`` is registered first, if given.
        rule: See ``function``.
        canary_offset: Added to the inputs where positions are made to cancel. Use 0 for a layer that normalises its
            input, whose forward pass would lose everything else to rounding.
        canary_slack: Relative tolerance by which norms may fall short of the exact ones where positions cancel. A row's
            contribution is bounded without tolerance.

    Example:
        >>> check_layer_rule(nn.Linear(3, 2), lambda rows: torch.randn(rows, 4, 3))
    """
    if (rule is None) != (function is None):
        raise ValueError("function and rule must be given together: the rule is registered for the function.")
    if rule is not None and function is not None:
        register_rule(function, rule)
    layer = _Layer(module, make_input)
    if function is not None:
        _check_serves(layer, function)
    _check_equal_to_loop(layer, 5)
    _check_equal_to_loop(layer, 1)
    for name in layer.parameters:
        _check_equal_to_loop(layer, 3, frozen=name)
    _check_bounds(layer, layer.batch(4), slack=1e-6, excess=0.01)
    _check_bounds(layer, layer.canary(4, canary_offset), slack=canary_slack, excess=torch.inf)
    _check_three_uses(layer)
    _check_nothing_is_written(layer)
    for hostile in (torch.nan, torch.inf, 1e30):
        _check_isolation(layer, hostile)


class _Layer:
    """A layer as a model; the gradient of the loss at the layer's output is part of the batch."""

    def __init__(self, module: nn.Module, make_input: Callable[[int], Tensor]):
        self.module = copy.deepcopy(module).requires_grad_(True)
        self.make_input = make_input
        self.parameters = [name for name, _ in self.module.named_parameters()]
        self._models: dict[tuple[torch.dtype, str], nn.Module] = {}
        self._programs: dict[tuple[torch.dtype, str, LossFn], Programs] = {}

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        x = self.make_input(rows)
        x = x.float() if x.is_floating_point() else x
        return x, torch.randn_like(self.module.float()(x))

    def canary(self, rows: int, offset: float) -> tuple[Tensor, Tensor]:
        """Return a batch whose positions have nearly equal inputs and nearly opposite output gradients."""
        x, grad = self.batch(rows)
        x = offset + x if x.is_floating_point() else x[:1].flatten()[0].expand_as(x).clone()
        index = torch.meshgrid([torch.arange(n) for n in grad.shape[1:]], indexing="ij")
        sign = 1.0 - 2.0 * (sum(index) % 2)
        return x, (1.0 if offset and x.is_floating_point() else 1e4) * sign + 1e-3 * grad

    def held(self, batch: tuple[Tensor, Tensor]) -> set[str]:
        """Return the parameters whose gradients are held in float32, and added as they were rounded."""
        engine = self.engine(ProgramEngine, batch, dtype=torch.float32)
        uses = engine.uses(Chunk(batch, len(batch[0]), 0)).found
        for named in uses:
            named.rule.squared_norms(named.use)
        return {name for named in uses for local, name in named.parameters.items() if named.use.held(local) is not None}

    def engine(
        self,
        kind: type[ChunkedEngine],
        batch: Any,
        *,
        dtype: torch.dtype,
        frozen: str = "",
        height: int = 0,
        loss_fn: LossFn | None = None,
    ) -> Any:
        loss_fn = loss_fn or _inner_product
        if (dtype, frozen) not in self._models:
            self._models[dtype, frozen] = copy.deepcopy(self.module).to(dtype)
        model = self._models[dtype, frozen]
        if frozen:
            model.get_parameter(frozen).requires_grad_(False)
        rows = len(batch[0])
        batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)
        parts = zip(*(t.split(height or rows) for t in batch), strict=True)
        chunks = [Chunk(part, len(part[0]), k) for k, part in enumerate(parts)]
        engine = kind(model, loss_fn, trainable(model), chunks, torch.arange(rows))
        if isinstance(engine, ProgramEngine):  # one program serves all checks of its kind
            key = dtype, frozen, loss_fn
            engine.programs = self._programs.setdefault(key, Programs(model, loss_fn, batch))
        return engine


def _inner_product(model: Any, batch: Any) -> Tensor:
    x, grad = batch
    return (model(x) * grad).flatten(1).sum(dim=1)


def _three_inner_products(model: Any, batch: Any) -> Tensor:
    x, *grads = batch
    return sum(((model(x) * grad).flatten(1).sum(dim=1) for grad in grads), torch.zeros(()))


def _clip_and_sum(norms: Tensor) -> tuple[Tensor, ...]:
    ordinary = norms.isfinite() & (norms < 1e15)
    return FlatClipper(max_grad_norm=0.5).weights(norms), ordinary.to(norms.dtype), 3.0 * ordinary


def _check_serves(layer: _Layer, function: Callable) -> None:
    """Fail if the rule serves no parameter: autograd would, and every other check would pass without the rule."""
    plans = explain(layer.module, _inner_product, layer.batch(2)).parameters
    served = [plan.name for plan in plans if function.__name__ in plan.rule.split()]
    assert served, (
        f"the rule serves no parameter of the layer: its forward pass calls {function.__name__} on none of them, or "
        "read() gave None."
    )


def _check_equal_to_loop(layer: _Layer, rows: int, frozen: str = "") -> None:
    batch = layer.batch(rows)
    names = tuple(name for name in layer.parameters if name != frozen)
    if not names:
        return
    by_parameter = {name: (name,) for name in reversed(names)}
    for groups, height in (({"all": names}, 0), (by_parameter, 0), ({"all": names}, 2)):
        program = layer.engine(ProgramEngine, batch, dtype=torch.float64, frozen=frozen, height=height)
        program.rounding_margin = False
        loop = layer.engine(LoopEngine, batch, dtype=torch.float64, frozen=frozen)
        _assert_equal(program.weighted_sums(_clip_and_sum, groups), loop.weighted_sums(_clip_and_sum, groups), 1e-10)
        torch.testing.assert_close(program.norms(groups), loop.norms(groups), rtol=1e-10, atol=1e-12)
    loop = layer.engine(LoopEngine, batch, dtype=torch.float64, frozen=frozen)
    program = layer.engine(ProgramEngine, batch, dtype=torch.float64, frozen=frozen)
    for mine, theirs in zip(program.materialise(), loop.materialise(), strict=True):
        torch.testing.assert_close(mine, dict(theirs), rtol=1e-10, atol=1e-12)


def _assert_equal(mine: Sums, theirs: Sums, tolerance: float) -> None:
    torch.testing.assert_close(mine.norms, theirs.norms, rtol=tolerance, atol=tolerance)
    for a, b in zip(mine.values, theirs.values, strict=True):
        assert set(a) == set(b), f"sums of {sorted(a)}, expected {sorted(b)}"
        for name in b:
            torch.testing.assert_close(a[name].double(), b[name].double(), rtol=tolerance, atol=tolerance)


def _check_bounds(layer: _Layer, batch: tuple[Tensor, Tensor], *, slack: float, excess: float) -> None:
    groups: Groups = {name: (name,) for name in layer.parameters}
    exact = layer.engine(LoopEngine, batch, dtype=torch.float64).norms(groups)
    bounds = layer.engine(ProgramEngine, batch, dtype=torch.float32).norms(groups)
    ordinary = excess < torch.inf
    rounded = set() if ordinary else layer.held(batch)
    enough = (bounds >= exact * (1 - slack)) | torch.tensor([name in rounded for name in groups])
    assert enough.all(), f"norms fall short of the exact ones: {bounds / exact}"
    if ordinary:
        assert (bounds <= exact * (1 + excess) + 1e-30).all(), f"norms are loose for ordinary rows: {bounds / exact}"
    for k in range(len(batch[0])):
        row = (batch[0][k : k + 1], batch[1][k : k + 1])
        program = layer.engine(ProgramEngine, row, dtype=torch.float32)
        sums = program.weighted_sums(torch.ones_like, groups)
        added = torch.stack([sums.values[0][name].double().norm() for name in groups])
        assert (sums.norms[0] >= added * (1 - 1e-12)).all(), f"a row adds more than its norm: {added / sums.norms[0]}"


def _check_three_uses(layer: _Layer) -> None:
    """Check that a row contributes at most its norm when the gradients of three uses nearly cancel."""
    x, grad = layer.batch(4)
    small = torch.randn_like(grad)
    parts = (x, 1e6 * grad, -1e6 * grad + small, small)
    groups: Groups = {name: (name,) for name in layer.parameters}
    exact = layer.engine(LoopEngine, parts, dtype=torch.float64, loss_fn=_three_inner_products)
    program = layer.engine(ProgramEngine, parts, dtype=torch.float64, loss_fn=_three_inner_products)
    program.rounding_margin = False
    scale = 1e6 * layer.engine(LoopEngine, (x, grad), dtype=torch.float64).norms(groups).max().item()
    torch.testing.assert_close(program.norms(groups), exact.norms(groups), rtol=1e-6, atol=1e-12 * scale)
    for k in range(len(x)):
        row = tuple(part[k : k + 1] for part in parts)
        single = layer.engine(ProgramEngine, row, dtype=torch.float32, loss_fn=_three_inner_products)
        sums = single.weighted_sums(lambda norms: torch.full_like(norms, 0.7), groups)  # a weight that rounds products
        added = torch.stack([sums.values[0][name].double().norm() for name in groups])
        assert (0.7 * sums.norms[0] >= added * (1 - 1e-12)).all(), f"three uses add more than the norm: {added}"


def _check_nothing_is_written(layer: _Layer) -> None:
    """Check that input and output gradient are as they were after each of a rule's methods, for one use and three."""
    layer = _Layer(layer.module, layer.make_input)  # whose programs are traced with the rules that are watched
    x, grad = layer.batch(4)
    hostile = torch.cat([x[:3], torch.full_like(x[3:], torch.nan)]) if x.is_floating_point() else x
    groups: Groups = {name: (name,) for name in layer.parameters}
    rules = dict(RULES)
    try:
        RULES.update({function: _watched(rule) for function, rule in rules.items()})
        for batch, loss_fn in (((hostile, grad), _inner_product), ((x, grad, grad, -grad), _three_inner_products)):
            given = [part.clone() for part in batch]
            program = layer.engine(ProgramEngine, batch, dtype=torch.float32, loss_fn=loss_fn)
            program.weighted_sums(_clip_and_sum, groups)
            list(program.materialise())
            assert all(map(_same_numbers, given, batch)), "the rule's forward pass writes its input in place"
    finally:
        RULES.update(rules)


def _watched(rule: LayerRule) -> LayerRule:
    """Return a copy of a rule whose methods fail if they write the tensors of a use."""

    def unwritten(method: Callable, use: Any, *args: Any, **kwargs: Any) -> Any:
        given = [tensor for one in ([use] if isinstance(use, LayerUse) else use) for tensor in (one.x, one.grad)]
        before = [tensor.clone() for tensor in given]
        found = method(use, *args, **kwargs)
        assert all(map(_same_numbers, before, given)), (
            f"{method.__name__}() writes the input of a call, or the gradient of its output, in place"
        )
        return found

    one = copy.copy(rule)
    vars(one).update({name: partial(unwritten, getattr(rule, name)) for name in _TAKING_USES})  # it may be frozen
    return one


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def _check_isolation(layer: _Layer, hostile: float) -> None:
    """Check that a row with a hostile input or output gradient does not affect ordinary rows beside it."""
    x, grad = layer.batch(4)
    groups: Groups = {"all": tuple(layer.parameters)}
    others = layer.engine(ProgramEngine, (x[1:], grad[1:]), dtype=torch.float32).weighted_sums(_clip_and_sum, groups)
    for where in ("input", "gradient", "both"):
        bad_x, bad_grad = x.clone(), grad.clone()
        if where != "gradient" and x.is_floating_point():
            bad_x[0] = hostile
        if where != "input":
            bad_grad[0] = hostile
        found = layer.engine(ProgramEngine, (bad_x, bad_grad), dtype=torch.float32).weighted_sums(_clip_and_sum, groups)
        torch.testing.assert_close(found.norms[1:], others.norms, rtol=1e-5, atol=0)
        clipped, *rest = found.values
        for a, b in zip(rest, others.values[1:], strict=True):
            _assert_close_if_dropped(a, b, found.norms[0])
        share = [clipped[name] - others.values[0][name] for name in clipped]
        moved = torch.stack([part.double().norm() for part in share]).norm()
        assert moved <= 0.5 * (1 + 1e-4), f"a row with {hostile} in its {where} moved the clipped sum by more than C"


def _assert_close_if_dropped(mine: dict[str, Tensor], theirs: dict[str, Tensor], norm: Tensor) -> None:
    if bool((norm.isfinite() & (norm < 1e15)).all()):
        return  # the row is ordinary after all (a normalisation of a constant, say) and counts
    for name, expected in theirs.items():
        torch.testing.assert_close(mine[name], expected, rtol=1e-4, atol=1e-5 * (1e-5 + expected.abs().max().item()))
