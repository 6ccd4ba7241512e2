"""Per-sample gradients of any module that ``torch.func.vmap`` serves: the loop, vectorised.

Private. Needs memory for one gradient a row of the physical batch.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import grad, vmap

from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import losses_at, on_copies
from tacita.gradients.record_batch import check_operator, rules_guarded
from tacita.gradients.retention import Marks, nothing_is_written


class _BatchedMarks(Marks):
    """Refuses operators that see the batch, too."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        check_operator(func)
        return super().__torch_function__(func, types, args, kwargs)


class VmapEngine(ChunkedEngine):
    """The engine that computes what :class:`~tacita.gradients.loop.LoopEngine` defines by ``vmap(grad(...))``.

    ``loss_fn`` sees a batch of one record. Dropout draws anew for each sample, from other positions of the stream than
    in the loop: with dropout the two engines agree in distribution, not in bits.
    """

    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        tensors, rebuild = flatten(chunk.batch, chunk.size)

        def loss(params: dict[str, Tensor], *row: Tensor) -> Tensor:
            one = [t.unsqueeze(0) for t in row]
            marks.mark(one)
            with marks:
                return losses_at(tree, self.loss_fn, params, rebuild(one), 1)[0]

        over_rows = (None, *(0 for _ in tensors))
        with rules_guarded(), on_copies(self.model, self.params) as (tree, point):
            marks = _BatchedMarks(tree.tensors)
            with nothing_is_written(tree):
                grads = vmap(grad(loss), in_dims=over_rows, randomness="different")(point, *tensors)
        marks.check_nothing_is_kept()
        return grads
