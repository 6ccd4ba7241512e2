"""A Lightning callback that puts an oracle's private gradients before each step of the optimizer.

    pip install '.[lightning]'; python examples/libraries/lightning_callback.py

The records are the oracle's. Lightning's loader counts steps, ``training_step`` returns ``None``, and the optimizer,
the schedule, other callbacks and the checkpoints are Lightning's as ever.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import tacita

try:
    import lightning  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    raise SystemExit(f'{missing.name} is not installed: pip install ".[lightning]" in the clone') from missing


class PrivateGradients(lightning.Callback):
    """Before each step of the optimizer, query ``oracle`` and put its release into ``.grad``.

    Example: ``trainer.fit(module, callback.loader())``, with ``trainer`` for one device, one epoch and full precision.

    Args:
        oracle: A gradient oracle of the module's network, which holds the records.

    Raises:
        ValueError: A setting of the trainer would take gradients from elsewhere than the oracle, or scale them.
        RuntimeError: ``training_step`` computed gradients of its own.
    """

    def __init__(self, oracle: tacita.GradientOracle):
        self.oracle = oracle
        steps: Any = range(oracle.planned_queries)
        self._loader = DataLoader(steps, batch_size=None)

    def loader(self) -> DataLoader:
        """Return a loader of step numbers: one epoch of it is the plan."""
        return self._loader

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        wanted = {"world_size": 1, "accumulate_grad_batches": 1, "precision": "32-true"}
        for name, value in wanted.items():
            if getattr(trainer, name) != value:
                raise ValueError(f"{name} must be {value!r}, got {getattr(trainer, name)!r}.")
        if trainer.train_dataloader is not self._loader:
            raise ValueError("the trainer must be handed the loader of this callback: the records are the oracle's.")
        if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
            raise ValueError("the module must have one optimizer, which Lightning steps (automatic_optimization).")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if any(p.grad is not None for p in params):
            raise RuntimeError("training_step must return None: gradients come from the oracle alone.")
        self.oracle.backward()


class Module(lightning.LightningModule):
    """A network with its optimizer, as Lightning takes it; ``validation_step`` would be for public rows."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def training_step(self, step: int) -> None:
        """Leave the gradient to the callback."""

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5)}


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return one loss for each record, never their mean."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def main() -> tuple[tacita.Ledger, Module]:
    """Train a small network on made-up records."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(200, 6)
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = tacita.ClippedGradientOracle(
        network,
        losses,
        (x, (x.sum(1) > 0).long()),
        ledger=ledger,
        sampler=tacita.PoissonSampler(expected_batch_size=40, num_records=200),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.CalibratedGaussian(target_epsilon=3.0, target_delta=1e-4),
        planned_queries=20,
    )
    private, module = PrivateGradients(oracle), Module(network)
    trainer = lightning.Trainer(
        callbacks=[private], max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, private.loader())
    print(tacita.statement(ledger, 1e-4))
    return ledger, module


if __name__ == "__main__":
    main()
