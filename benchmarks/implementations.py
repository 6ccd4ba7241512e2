"""One training step, by each implementation: forward, backward, per-sample flat clipping, Gaussian noise, SGD.

All clip at norm 1 with noise multiplier 1 and divide by the batch size. A maker gets a cell and returns its step. Those
of JAX are in ``jax_steps.py``.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from cells import Cell, losses
from torch import nn

CLIP, NOISE, LR = 1.0, 1.0, 0.01
QUERIES = 10**6  # more than any benchmark makes
BATCHES = 20  # of which steps that gather draw one
Step = Callable[[], None]


def plain(cell: Cell) -> Step:
    """PyTorch without privacy."""
    model = cell.model()
    batch = cell.rows(cell.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        losses(model, batch).mean().backward()
        optimizer.step()

    return step


def plain_gathering(cell: Cell) -> Step:
    """The same, where each step gathers its batch from 20 batches of rows."""
    model = cell.model()
    rows = cell.rows(BATCHES * cell.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        chosen = torch.randint(BATCHES * cell.batch, (cell.batch,))
        optimizer.zero_grad()
        losses(model, tuple(one.index_select(0, chosen) for one in rows)).mean().backward()
        optimizer.step()

    return step


def engine(cell: Cell, method: str = "auto") -> Step:
    """tacita's clipped sum with noise of ``torch.randn``: no ledger, no secure noise."""
    from tacita import ClippedSum, FlatClipper, NetworkSource

    model = cell.model()
    source = NetworkSource(model, losses, cell.rows(cell.batch), method=method)
    estimator = ClippedSum(FlatClipper(max_grad_norm=CLIP))
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    rows = numpy.arange(cell.batch)

    def step() -> None:
        optimizer.zero_grad()
        values, _ = estimator(source.engine(params, rows), None)
        for block in values.values():
            for name, value in block.items():
                noise = torch.randn(value.shape)
                summed = torch.add(value, noise, alpha=NOISE * CLIP, out=noise).div_(cell.batch)
                params[name].grad = summed.to(params[name].dtype)
        optimizer.step()

    return step


def _oracle(cell: Cell, batches: int, method: str = "auto") -> Step:
    """``batches`` batches of rows; all of them a query if there is one, else a Poisson draw of the same mean size."""
    import tacita

    rows = batches * cell.batch
    model = cell.model()
    folder = tempfile.TemporaryDirectory()
    full = tacita.FullBatchSampler(num_records=rows)
    oracle = tacita.ClippedGradientOracle(
        model,
        losses,
        cell.rows(rows),
        ledger=tacita.Ledger(
            Path(folder.name) / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row"
        ),
        sampler=full if batches == 1 else tacita.PoissonSampler(sample_rate=1 / batches, num_records=rows),
        clipper=tacita.FlatClipper(max_grad_norm=CLIP),
        mechanism=tacita.GaussianMechanism(noise_multiplier=NOISE),
        planned_queries=QUERIES,
        method=method,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(_keep: object = folder) -> None:
        oracle.backward()
        optimizer.step()

    return step


def oracle(cell: Cell) -> Step:
    """tacita whole: ledger in a file, noise of AES in counter mode; the same fixed batch."""
    return _oracle(cell, batches=1)


def oracle_poisson(cell: Cell) -> Step:
    """The same, each batch drawn anew by secret coins from 20 batches of rows."""
    return _oracle(cell, batches=BATCHES)


def _opacus(cell: Cell, mode: str) -> Step:
    from opacus import PrivacyEngine

    warnings.simplefilter("ignore")
    model = cell.model()
    batch = cell.rows(cell.batch)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch), batch_size=cell.batch)
    criterion = nn.CrossEntropyLoss()
    settings: dict[str, Any] = {"criterion": criterion} if mode == "ghost" else {}
    made: Any = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        data_loader=loader,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **settings,
    )
    private, optimizer, criterion = made[0], made[1], made[2] if mode == "ghost" else criterion

    def step() -> None:
        optimizer.zero_grad()
        scores = private(batch[0])
        criterion(scores.mT if cell.language else scores, batch[1]).backward()
        optimizer.step()

    return step


def opacus_hooks(cell: Cell) -> Step:
    """Opacus, per-sample gradients by hooks (its default)."""
    return _opacus(cell, "hooks")


def opacus_ghost(cell: Cell) -> Step:
    """Opacus, ghost clipping."""
    return _opacus(cell, "ghost")


def fast_dp(cell: Cell) -> Step:
    """fastDP: book-keeping, with norms from Gram matrices where they are cheaper."""
    from fastDP import PrivacyEngine

    model = cell.model()
    batch = cell.rows(cell.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    made = PrivacyEngine(
        model,
        batch_size=cell.batch,
        sample_size=cell.batch,
        epochs=1,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        clipping_fn="Abadi",
    )
    made.attach(optimizer)

    def step() -> None:
        losses(model, batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    if len(made.named_params) < sum(p.requires_grad for p in model.parameters()):
        raise NotImplementedError("fastDP leaves out parameters that are in no layer")
    return step


def opake(cell: Cell) -> Step:
    """Opake: per-sample gradients by vmap."""
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise
    from opake.random import key

    model = cell.model()
    batch = cell.rows(cell.batch)
    params = {name: one.detach() for name, one in model.named_parameters()}

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return losses(partial(torch.func.functional_call, model, params), (x[None], label[None]))[0]

    settings: dict[str, Any] = {"batch_argnums": (1, 2), "normalize_by": cell.batch, "microbatch_size": cell.at_once}
    gradient, clip_state = clipped_grad(loss, clipping_norm=CLIP, **settings)
    noise, noise_state = gaussian_noise(noise_multiplier=NOISE, key=key(0))
    state = [clip_state, noise_state]

    def step() -> None:
        clipped, state[0] = gradient(params, *batch, state=state[0])
        noisy, state[1] = noise(clipped, state[1])
        for name, one in params.items():
            one.sub_(noisy.pytree[name], alpha=LR)

    return step


IMPLEMENTATIONS: dict[str, Callable[[Cell], Step]] = {
    "plain PyTorch": plain,
    "plain PyTorch, gathering": plain_gathering,
    "tacita, engine": engine,
    "tacita, whole oracle": oracle,
    "tacita, whole oracle, Poisson": oracle_poisson,
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
    "fastDP": fast_dp,
    "Opake": opake,
}
