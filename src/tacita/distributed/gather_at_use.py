"""Programs whose parameters are shards: each is gathered where an operator reads it, and let go of afterwards.

Place: gradients.program -> [distributed.gather_at_use] -> distributed.serving.

A program is a list of operators, so that every use of a parameter is known before any of them runs. Between two uses a
parameter stays whole only as long as all that are whole fit in ``HELD`` bytes, or what one operator reads if that is
more; the one whose next use is furthest away goes first (Belady, 1966). Views of a parameter (a transposed weight) are
taken anew for each use, because they would hold its memory. The list is the same on every rank, and so is the order in
which the ranks gather.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.check import written
from tacita.gradients.program.run import Program, Step
from tacita.gradients.program.trace import TracedPass
from tacita.gradients.program.unify import Slot
from tacita.gradients.rules.uses import is_ours

HELD = 2**24  # bytes of whole parameters that may wait for their next use


class GatheringProgram(Program):
    """A program that gathers the parameters that it reads.

    Args:
        traces, written: As of :class:`~tacita.gradients.program.run.Program`.
        gather: Returns a parameter whole, in a dtype; every rank calls it, in the same order.
        sharded: The positions among the inputs of those that are shards, and the dtypes of these.

    Raises:
        UnsupportedModuleError: A layer is served by a rule of the user's.
    """

    def __init__(
        self,
        traces: Sequence[TracedPass],
        written: Collection[str],
        *,
        gather: Callable[[Any, torch.dtype], Tensor],
        sharded: Mapping[int, torch.dtype],
    ) -> None:
        super().__init__(traces, written)
        if foreign := sorted({call.function for call in self.calls if not is_ours(call.rule)}):
            raise UnsupportedModuleError(
                f"layer rules that are not tacita's, here for {', '.join(foreign)}, are compared with one record at a "
                "time before they serve, and that takes a whole model: train without shards, or without these rules."
            )
        self._gather = gather
        self._views: dict[int, tuple[int, list[Step]]] = {}  # slot -> parameter, the steps that lead from it to there
        self._whole = {slot: self._slots + k for k, slot in enumerate(sharded)}  # input -> slot of the whole parameter
        self._slots += len(self._whole)
        self._kept = self._found_views()
        self._main = self._with_gathers()
        self._places = [(self._whole.get(x, x), [self._whole.get(k, k) for k in grads]) for x, grads in self._places]
        self.of_copies = {name: self._whole.get(slot, slot) for name, slot in self.of_copies.items()}
        for one in self._pullbacks:
            one.steps[:] = [self._reading_whole(step) for step in one.steps]
        read = [self._kinds[slot][1] for slot in sharded]
        if read != [*sharded.values()]:
            self.digest = hashlib.sha256(f"{self.digest} {read}".encode()).hexdigest()
        for slot, dtype in sharded.items():
            self._kinds[slot] = self._kinds[slot][0], dtype

    def _found_views(self) -> set[int]:
        """Note which steps give views of parameters; return the parameters that stay whole once they are gathered.

        Something else than a step reads these: whoever takes a recorded call, or a pull-back; or a step writes a view.
        """
        kept: set[int] = set()
        for step in self._main:
            of = slots_in(step.args, step.kwargs)
            if len(of) == 1 and self._parameters(of) and _gives_view(step):
                (slot,) = of
                parameter, way = self._views.get(slot, (slot, []))
                self._views[step.result] = parameter, [*way, step]
            kept |= self._parameters(_written_slots(step))
        read = [slot for x, grads in self._places for slot in (x, *grads)] + [*self.of_copies.values()]
        read += [slot for one in self._pullbacks for step in one.steps for slot in slots_in(step.args, step.kwargs)]
        kept |= self._parameters(slot for slot in read if slot is not None)
        self._views = {slot: way for slot, way in self._views.items() if way[0] not in kept}
        return kept

    def _parameters(self, slots: Iterable[int]) -> set[int]:
        """Return the inputs that slots are, or are views of, if these are shards."""
        return {self._views[slot][0] if slot in self._views else slot for slot in slots} & self._whole.keys()

    def _with_gathers(self) -> list[Step]:
        """Return the steps, and before each one those that gather what it reads and take views of it."""
        steps = _without(self._main, self._views)
        reads = [self._parameters(slots_in(one.args, one.kwargs)) - self._kept for one in steps]
        uses: dict[int, deque[int]] = {}  # places that are still to come
        for place, read in enumerate(reads):
            for slot in read:
                uses.setdefault(slot, deque()).append(place)
        size = {slot: self._kinds[slot][0].numel() * self._kinds[slot][1].itemsize for slot in uses}
        most = max([HELD, *(sum(size[slot] for slot in read) for read in reads)])
        found, whole = [self._gathering(slot) for slot in sorted(self._kept)], set[int]()
        for step, read in zip(steps, reads, strict=True):
            waiting = sorted(whole - read, key=lambda slot: uses[slot][0])
            while sum(size[slot] for slot in {*waiting, *read}) > most:
                whole.remove(waiting[-1])
                found[-1] = _forgetting(found[-1], [self._whole[waiting.pop()]])
            found += [self._gathering(slot) for slot in sorted(read - whole)]
            way = {one.result: one for slot in slots_in(step.args, step.kwargs) for one in self._way(slot)}
            found += [self._reading_whole(one) for one in way.values()]
            for slot in read:
                uses[slot].popleft()
            whole = {slot for slot in whole | read if uses[slot]}
            found.append(_forgetting(self._reading_whole(step), [*way, *(self._whole[s] for s in read - whole)]))
        return found

    def _way(self, slot: int) -> list[Step]:
        """Return the steps from a parameter to the view of it in ``slot``; none if it is no such view."""
        return [one._replace(forgotten=(), ready=()) for one in self._views[slot][1]] if slot in self._views else []

    def _gathering(self, slot: int) -> Step:
        return Step(self._gather, [Slot(slot), self._kinds[slot][1]], False, {}, self._whole[slot], (), ())

    def _reading_whole(self, step: Step) -> Step:
        def moved(given: Any) -> Any:
            if type(given) is Slot:
                return Slot(self._whole.get(given.number, given.number))
            if type(given) is dict:
                return {name: moved(one) for name, one in given.items()}
            return type(given)(moved(one) for one in given) if type(given) in (list, tuple) else given

        return step._replace(args=moved(step.args), kwargs=moved(step.kwargs))


def slots_in(*given: Any) -> set[int]:
    """Return the numbers of the slots in arguments, those in lists, too."""
    return {one.number for one in tree_leaves(given, is_leaf=lambda one: type(one) is Slot) if type(one) is Slot}


def _without(steps: Sequence[Step], views: Mapping[int, Any]) -> list[Step]:
    """Return the steps that do not give views; the next one hands over what was ready at one that does."""
    found, ready = list[Step](), tuple[int, ...]()
    for step in steps:
        ready += step.ready
        if step.result not in views:
            found.append(step._replace(ready=ready))
            ready = ()
    return found


def _forgetting(step: Step, slots: Sequence[int]) -> Step:
    return step._replace(forgotten=(*step.forgotten, *slots))


def _gives_view(step: Step) -> bool:
    """Return whether a step gives a view, or several, of the one tensor that it reads, or takes one of several."""
    if step.function is getitem:
        return True
    schema = step.function._schema.arguments if isinstance(step.function, OpOverload) else []
    return any(one.alias_info is not None and not one.alias_info.is_write for one in schema)


def _written_slots(step: Step) -> set[int]:
    if not isinstance(step.function, OpOverload):
        return set()
    places = written(step.function)
    return slots_in([step.args[k] for k, _ in places if k < len(step.args)], [step.kwargs.get(n) for _, n in places])
