"""Peak memory and time of a private step on a model that FSDP2 has sharded, over those of a plain FSDP2 step.

    python benchmarks/shards.py                   gloo, with 2 and 4 processes of one CPU
    python benchmarks/shards.py --device cuda     NCCL, with a process for each device, if there are several

Each arm is its own set of processes, arms take turns, and the figure is a median over ``--repeats`` runs of the largest
memory that any rank has from the building of the oracle to the end of the third step, less what it had before the model
was built: resident memory, or what is allocated on the device. The time is that of the third step, which means little
where processes share the cores. Both arms take the same rows, split evenly, and step Adam.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tacita

sys.path.insert(0, str(Path(__file__).parent))

from step_worker import peak_mib

WIDTH, LAYERS, TOKENS, ROWS, STEPS = 768, 7, 16, 8, 3  # of the network by default
ARMS = ("plain FSDP2", "tacita")


class Network(nn.Module):
    """Transformer layers; seven of width 768 have 199 MB in float32."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1)).squeeze(1)


def losses(model, batch):
    return (model(batch[0]) - batch[1]).square()


def sharded_network(size: int, width: int, layers: int, device: str) -> nn.Module:
    """The network, which no rank ever has as a whole."""
    mesh = init_device_mesh(device, (size,))
    with torch.device("meta"):
        model = Network(width, layers)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh).to_empty(device=device)
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


def measure(given: argparse.Namespace) -> tuple[float, float]:
    """The rank's peak over three steps, MiB, and the seconds of the third."""
    torch.set_num_threads(1)
    rank, size, cuda = given.rank, given.size, given.device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    store = dist.FileStore(given.store, size)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=size)
    generator, width = torch.Generator().manual_seed(0), given.width
    data = torch.randn(ROWS, TOKENS, width, generator=generator), torch.randn(ROWS, generator=generator)
    data = tuple(one.to(given.device) for one in data)
    for one in ARMS:  # loads their code, which is no part of the figure
        head = nn.Sequential(nn.Linear(TOKENS * width, 1), nn.Flatten(0)).to(given.device)
        stepping(one, head, (data[0].flatten(1), data[1]), 0, 1)()

    def peak(reset: bool = False) -> float:
        if not cuda:
            return peak_mib(reset)
        torch.cuda.synchronize()
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2**20

    peak(reset=True)
    before = peak()
    model = sharded_network(size, width, given.layers, given.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    peak(reset=True)
    backward, begun = stepping(given.arm, model, data, rank, size), 0.0
    for _ in range(STEPS):
        peak()  # waits for the device
        begun = time.perf_counter()
        optimizer.zero_grad()
        backward()
        optimizer.step()
    found = peak() - before, time.perf_counter() - begun
    dist.barrier()
    return found


def run(arm: str, size: int, given: argparse.Namespace) -> tuple[float, float]:
    """The largest peak and the longest step of all ranks of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--arm", arm, "--size", str(size), "--store", f"{folder}/store"]
        command += ["--device", given.device, "--width", str(given.width), "--layers", str(given.layers), "--rank"]
        started = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        outputs = [one.communicate() for one in started]
        if any(one.returncode for one in started):
            raise RuntimeError("\n".join(error[-2000:] for _, error in outputs))
        found = [tuple(map(float, said.splitlines()[-1].split())) for said, _ in outputs]
        return max(peak for peak, _ in found), max(seconds for _, seconds in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--width", type=int, default=WIDTH, help="a multiple of 12")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--size", type=int, help="number of processes")
    parser.add_argument("--arm", choices=ARMS)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    given = parser.parse_args()
    if given.rank is not None:
        print(*measure(given))
        return
    if given.device == "cuda" and torch.cuda.device_count() < 2:
        print(f"FSDP2 needs several devices, and here are {torch.cuda.device_count()}: not measured.")
        return
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed is given back, so that the figure is what is in use
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for size in [given.size] if given.size else [2, 4] if given.device == "cpu" else [torch.cuda.device_count()]:
        runs = [[run(arm, size, given) for arm in ARMS] for _ in range(given.repeats)]
        (plain, ours), (seconds, our_seconds) = (
            [statistics.median(one[arm][k] for one in runs) for arm in range(2)] for k in range(2)
        )
        print(f"{size} ranks: plain FSDP2 {plain:.0f} MiB, tacita {ours:.0f} MiB, ratio {ours / plain:.2f}", flush=True)
        print(f"         time of a step, ratio {our_seconds / seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
