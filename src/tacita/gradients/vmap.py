"""Per-sample gradients of any module that ``torch.func.vmap`` serves: the loop, vectorised.

Place: [gradients]. Private. Memory: one gradient a row of the physical batch.
"""

from torch import Tensor
from torch.func import grad, vmap

from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine import Groups, Rule
from tacita.gradients.functional import losses_at
from tacita.gradients.rows import group_norms, weight_arrays, weighted_sum


class VmapEngine(ChunkedEngine):
    """The definition of :class:`~tacita.gradients.loop.LoopEngine` under ``vmap(grad(...))``.

    ``loss_fn`` sees a batch of one. Dropout draws anew for each sample, from other positions of the stream than in
    the loop: with dropout the two agree in law, not in bits.
    """

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        grads = self._chunk_grads(chunk)
        norms = group_norms(grads, groups)
        return [weighted_sum(grads, weights, groups) for weights in weight_arrays(rule, norms)], norms

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        return group_norms(self._chunk_grads(chunk), groups)

    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        tensors, rebuild = flatten(chunk.batch, chunk.size)

        def loss(params: dict[str, Tensor], *row: Tensor) -> Tensor:
            batch = rebuild([t.unsqueeze(0) for t in row])
            return losses_at(self.model, self.loss_fn, params, batch, 1)[0]

        over_rows = (None, *(0 for _ in tensors))
        return vmap(grad(loss), in_dims=over_rows, randomness="different")(self.params, *tensors)
