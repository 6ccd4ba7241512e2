"""Peak memory of a private step on a model that FSDP2 has sharded, over that of a plain FSDP2 step.

Run it with ``python benchmarks/shards.py``. Each arm is its own set of processes with gloo, arms take turns, and the
figure is a median over ``--repeats`` runs of the largest resident memory that any rank has from the building of the
oracle to the end of the third step, less what it had before the model was built. Both arms take the same rows, split
evenly, and step Adam. A GPU with NCCL is not measured.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tacita

sys.path.insert(0, str(Path(__file__).parent))

from step_worker import peak_mib

WIDTH, LAYERS, TOKENS, ROWS, STEPS = 768, 7, 16, 8, 3
ARMS = ("plain FSDP2", "tacita")


class Network(nn.Module):
    """Seven transformer layers, 199 MB in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1)).squeeze(1)


def losses(model, batch):
    return (model(batch[0]) - batch[1]).square()


def sharded_network(size: int) -> nn.Module:
    """The network, which no rank ever has as a whole."""
    mesh = init_device_mesh("cpu", (size,))
    with torch.device("meta"):
        model = Network()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh).to_empty(device="cpu")
    torch.manual_seed(dist.get_rank())
    for p in model.parameters():
        nn.init.normal_(p.to_local(), std=0.02)
    return model


def stepping(arm: str, model: nn.Module, data: tuple, rank: int, size: int):
    """What makes one step before the optimizer's."""
    if arm == ARMS[0]:
        mine = tuple(one[rank::size] for one in data)
        return lambda: losses(model, mine).mean().backward()
    oracle = tacita.ClippedGradientOracle(
        model,
        losses,
        data,
        ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row") if rank == 0 else None,
        sampler=tacita.FullBatchSampler(num_records=len(data[0])),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=STEPS,
        process_group=dist.group.WORLD if size > 1 else None,
    )
    return oracle.backward


def measure(arm: str, rank: int, size: int, store: str) -> float:
    """The rank's peak over three steps, MiB."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(ROWS, TOKENS, WIDTH, generator=generator), torch.randn(ROWS, generator=generator)
    for one in ARMS:  # loads their code, which is no part of the figure
        stepping(one, nn.Sequential(nn.Linear(TOKENS * WIDTH, 1), nn.Flatten(0)), (data[0].flatten(1), data[1]), 0, 1)()
    peak_mib(reset=True)
    before = peak_mib()
    model = sharded_network(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    peak_mib(reset=True)
    backward = stepping(arm, model, data, rank, size)
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward()
        optimizer.step()
    found = peak_mib() - before
    dist.barrier()
    return found


def run(arm: str, size: int) -> float:
    """The largest peak of all ranks of one run."""
    with tempfile.TemporaryDirectory() as folder:
        given = [sys.executable, __file__, "--arm", arm, "--size", str(size), "--store", f"{folder}/store", "--rank"]
        started = [
            subprocess.Popen([*given, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        outputs = [one.communicate() for one in started]
        if any(one.returncode for one in started):
            raise RuntimeError("\n".join(error[-2000:] for _, error in outputs))
        return max(float(said.split()[-1]) for said, _ in outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int)
    parser.add_argument("--arm", choices=ARMS)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    given = parser.parse_args()
    if given.rank is not None:
        print(measure(given.arm, given.rank, given.size, given.store))
        return
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed is given back, so that the figure is what is in use
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for size in [given.size] if given.size else [2, 4]:
        peaks = [[run(arm, size) for arm in ARMS] for _ in range(given.repeats)]
        plain, ours = (statistics.median(column) for column in zip(*peaks, strict=True))
        print(f"{size} ranks: plain FSDP2 {plain:.0f} MiB, tacita {ours:.0f} MiB, ratio {ours / plain:.2f}", flush=True)


if __name__ == "__main__":
    main()
