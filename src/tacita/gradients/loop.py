"""The definition of per-sample gradients: one sample at a time, by autograd. Every fast engine must equal it.

Place: [gradients]. Private.
"""

import torch
from torch import Tensor

from tacita.gradients.batches import flatten
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine import Groups, Rule
from tacita.gradients.functional import losses_at
from tacita.gradients.rows import group_norms, weight_arrays, weighted_sum


class LoopEngine(ChunkedEngine):
    r"""For each sample :math:`i`, :math:`g_i = \nabla_\theta \ell(\theta, z_i)`, from a batch that holds it alone.

    Each is computed from a copy of its row, so that its bits depend on that row alone. Serves any module that autograd
    serves. A parameter that a sample's loss does not reach has gradient zero there.
    """

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        grads = self._chunk_grads(chunk)
        norms = group_norms(grads, groups)
        return [weighted_sum(grads, weights, groups) for weights in weight_arrays(rule, norms)], norms

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        return group_norms(self._chunk_grads(chunk), groups)

    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        tensors, rebuild = flatten(chunk.batch, chunk.size)
        rows = [self._row_grads(rebuild([t[i : i + 1].clone() for t in tensors])) for i in range(chunk.size)]
        return {name: torch.stack([row[name] for row in rows]) for name in self.params}

    def _row_grads(self, row: object) -> dict[str, Tensor]:
        params = {name: p.detach().requires_grad_() for name, p in self.params.items()}
        with torch.enable_grad():
            (loss,) = losses_at(self.model, self.loss_fn, params, row, 1)
        if not loss.requires_grad:
            return {name: torch.zeros_like(p) for name, p in self.params.items()}
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
        return {name: g.to_dense() for name, g in zip(params, grads, strict=True)}  # an embedding's may be sparse
