"""Train a private classifier of handwritten digits on several processes.

    torchrun --nproc-per-node 2 examples/several_processes.py

Every process runs this file, holds the whole model and all records, and computes its share of each batch. Rank 0 draws
the batches, writes the ledger and adds the noise, once. The model is not wrapped in ``DistributedDataParallel``, which
would add up gradients before they are clipped. Run again after a crash, with any number of processes, it continues.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tacita


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return one loss for each sample."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="keeps ledger, checkpoints and model")
    parser.add_argument("--epochs", type=float, default=20)
    asked = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    pixels, labels = load_digits(return_X_y=True)
    records = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).to(device)
    run = tacita.fit(
        model,
        losses,
        records,
        target_epsilon=3.0,
        target_delta=1e-4,
        epochs=asked.epochs,
        num_records=1800,  # a declared guess, because the true number is protected too
        expected_batch_size=600,
        max_grad_norm=1.0,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.25, momentum=0.9),
        privacy_unit="one image",
        folder=asked.folder,
        process_group=dist.group.WORLD,
    )
    if dist.get_rank() == 0:  # which has the ledger and the statement; all ranks have the model
        print(run.statement)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
