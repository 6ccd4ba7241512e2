"""The loop that watches the code which meets records, and what is tried before it does."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine_choice import MethodChoice, refusing
from tacita.gradients.functional import LossFn, ModuleTree, attributes_kept
from tacita.gradients.loop import LoopEngine, Result
from tacita.gradients.probe import row, trial
from tacita.gradients.scan import Refusal, Scan, check_modules, refused
from tacita.gradients.seeds import seeded
from tacita.gradients.watched.operators import WAY_OUT, OperatorCheck
from tacita.gradients.watched.reachable import is_seen_through, owned_generators, reachable
from tacita.gradients.watched.retention import Marks, RemembersError, StateCheck, changes_of_state, nothing_is_written

MET_RECORDS = (
    'the code of the model and the loss, which method="loop" ran on records, one at a time, keeps nothing of a record '
    "for the next one or for the next query"
)


class WatchedLoop(LoopEngine):
    """The loop on records: refuses code that is seen to keep something of one, to write, or to draw from its own.

    Attributes:
        refusals: Why a pass was refused because something of a record was kept; shared by the engines of a source.
    """

    refusals: list[str]
    _marks = Marks()

    def each_record(
        self, chunk: Chunk, rows: Iterable[int], compute: Callable[[Tensor, dict[str, Tensor]], Result]
    ) -> Iterator[Result]:
        try:
            with StateCheck(self.model, self.loss_fn) as state:
                for found in super().each_record(chunk, rows, compute):
                    self._marks.check_nothing_is_kept()
                    state.check()
                    yield found
        except RemembersError as error:
            self.refusals.append(str(error))
            raise

    @contextmanager
    def watching(self, tree: ModuleTree, row: list[Tensor]) -> Iterator[Marks]:
        self._marks = Marks(tree.tensors)
        self._marks.mark(row)
        with nothing_is_written(tree), OperatorCheck():
            yield self._marks


class WatchedChoice(MethodChoice):
    """The loop serves a network.

    Args:
        model: The network.
        loss_fn: Its loss.
    """

    method = "loop"
    assumptions = (MET_RECORDS,)

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self._refusals: list[str] = []
        found = reachable(loss_fn, model).items()
        self._outside = {name: one for name, one in found if isinstance(one, nn.Module)}

    def conditions(self, loss_fn: LossFn) -> tuple[str, ...]:
        if is_seen_through(loss_fn):
            return ()
        return ("loss_fn, which is compiled code and cannot be looked into, keeps nothing from one call to the next",)

    def engine(self, model: nn.Module, loss_fn: LossFn, *args: Any, **kwargs: Any) -> ChunkedEngine:
        if self._refusals:  # what was kept may be where nobody can put it right
            raise RemembersError(self._refusals[0])
        for module in self._outside.values():
            check_modules(module)
        engine = WatchedLoop(model, loss_fn, *args, **kwargs)
        engine.refusals = self._refusals
        return engine

    def check(self, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], probe: Any) -> None:
        if probe is None:
            return
        Scan(_remembered(model, loss_fn, probe), None, ()).check()
        engine = WatchedLoop(model, loss_fn, params, [Chunk(row(probe, 0), 1, 0)], torch.arange(1))
        engine.refusals = []
        with refusing("loop"), seeded(0, next(iter(params.values())).device):
            engine.norms({name: (name,) for name in params})


def choose(model: nn.Module, loss_fn: LossFn) -> WatchedChoice:
    """Look at what the model and the loss refer to.

    Raises:
        UnsupportedModuleError: A module outside of the model mixes samples, or they own a random generator.
    """
    choice = WatchedChoice(model, loss_fn)
    outside = (refused(name, module) for name, module in choice._outside.items())
    goes_on = (
        "is a random generator, which goes on from one record to the next, and from one query to the next; no secret "
        "of a query seeds it"
    )
    found = [one for one in outside if one is not None]
    found += [Refusal(where, goes_on, WAY_OUT) for where in owned_generators(loss_fn, model)]
    Scan(tuple(found), None, ()).check()
    return choice


def _remembered(model: nn.Module, loss_fn: LossFn, probe: Any) -> tuple[Refusal, ...]:
    with attributes_kept(ModuleTree(model)):
        trial(model, loss_fn, probe)  # a value made here is a constant if later calls keep it
        with changes_of_state(model, loss_fn) as changed:
            trial(model, loss_fn, row(probe, 0))
    way_out = "let model and loss depend on parameters and the batch alone, and count outside of them"
    return tuple(Refusal(name, "is changed by a forward pass: it would remember data", way_out) for name in changed[:3])
