"""The definition of per-sample gradients: one sample at a time, by autograd. Private.

Every program must equal it, and is held against it on synthetic rows. On records it runs only if a user asks for it:
user code then meets them, and the guarantee has the condition ``KEEPS_NOTHING``. Why one record moves a sum by at most
the threshold under it: docs/derivations/per-record-engine.md, section 8.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.functional import ZeroedMemory, attributes_kept, losses_at, on_copies
from tacita.gradients.seeds import derived_seed, seed_generators
from tacita.gradients.weighted_sums import to_exact

Result = TypeVar("Result")
KEEPS_NOTHING = (
    'the code of the model and the loss, which method="loop" ran on records, one at a time, keeps nothing of a record '
    "for the next one or for the next query"
)


class LoopEngine(ChunkedEngine):
    r"""The engine that takes :math:`g_i = \nabla_\theta \ell(\theta, z_i)` from a batch of sample :math:`i` alone.

    Each gradient is computed from a copy of its row, on copies of the parameters and buffers, with coins from the seed
    and the row's label; afterwards the modules have their attributes back. So its bits depend on that row alone, unless
    the code keeps something elsewhere. Any module that autograd serves is served. A
    parameter that a sample's loss does not reach has gradient zero.
    """

    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        rows = [*self.each_record(chunk, range(chunk.size), self.grads_of)]
        return {name: to_exact(torch.stack([row[name] for row in rows])) for name in self.params}

    def each_record(
        self, chunk: Chunk, rows: Iterable[int], compute: Callable[[Tensor, dict[str, Tensor]], Result]
    ) -> Iterator[Result]:
        """Run model and loss on one record after the other, and yield what is computed from each.

        Args:
            chunk: The records.
            rows: Which of them, by their place in the chunk.
            compute: ``(loss, params) -> result``: the loss of one record, (), and the parameters that it depends on.
                The result must not refer to the loss's graph.
        """
        tensors, rebuild = flatten(chunk.batch, chunk.size)
        for i in rows:
            self._seed_record(chunk, i)
            yield self._of_record(rebuild, [t[i : i + 1].clone() for t in tensors], compute)

    def _of_record(
        self,
        rebuild: Callable[[list[Tensor]], object],
        row: list[Tensor],
        compute: Callable[[Tensor, dict[str, Tensor]], Result],
    ) -> Result:
        with (
            on_copies(self.model, self.params) as (tree, point),
            attributes_kept(tree),
            torch.enable_grad(),
            ZeroedMemory(),
        ):
            params = {name: p.requires_grad_() for name, p in point.items()}
            (loss,) = losses_at(tree, self.loss_fn, params, rebuild(row), 1)
            return compute(loss, params)

    def grads_of(self, loss: Tensor, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradient of one record's loss, by parameter name."""
        if not loss.requires_grad:
            return {name: torch.zeros_like(p) for name, p in self.params.items()}
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
        return {name: g.to_dense() for name, g in zip(params, grads, strict=True)}  # an embedding's may be sparse

    def _seed_record(self, chunk: Chunk, row: int) -> None:
        if self.seed is not None:
            assert chunk.labels is not None
            seed_generators(derived_seed(self.seed, "model", int(chunk.labels[row])), self._device)
