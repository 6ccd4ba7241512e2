"""A round of Flower's simulation, for ``benchmarks/federated.py --flower``.

It needs ``flwr[simulation]`` and ``psutil``. Flower computes in processes of its own (Ray), so that the CPU time of a
round is that of this process and of all its children. A client of Flower does less than one of the simulation: one
gradient of its rows, clipped, with Gaussian noise from torch, and no error feedback. Ray gives its agent 15 seconds to
start, a number that is not a setting: on a machine that is busier Ray ends with "Timed out waiting for file", and the
benchmark has to be run again.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

NAME, TRAIN = "Flower's simulation", "train"


def cpu_seconds() -> float:
    """Return the CPU time so far of this process and of all its children that are alive."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def client_app(folder: Path, noise_std: float) -> Any:
    """Return a client that maps its rows from a file, and answers with a clipped and noisy gradient."""
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client = int(context.node_config["partition-id"])
        rows = (np.load(folder / f"{name}.npy", mmap_mode="r")[client] for name in ("features", "labels"))
        features, labels = (torch.from_numpy(part.copy()) for part in rows)
        x = message.content["model"].to_torch_state_dict()["x"]
        gradient = (-labels * torch.sigmoid(-labels * (features @ x))) @ features / len(labels)
        sent = gradient * (1 / gradient.norm()).clamp(max=1.0) + noise_std * torch.randn(len(x))
        return Message(RecordDict({"model": ArrayRecord({"x": sent})}), reply_to=message)

    return app


def inside_flower(
    features: Tensor,
    labels: Tensor,
    folder: Path,
    *,
    lr: float,
    noise_std: float,
    measure: Callable[[Callable[[], None]], None],
) -> None:
    """Start Flower's simulation, and call ``measure`` inside of it with a function that makes one round.

    Args:
        features: The clients' rows, (clients, rows, size).
        labels: -1 or 1, (clients, rows).
        folder: Where the rows are written, for the processes of the clients.
        lr: The server's step size.
        noise_std: Standard deviation of the noise of a message.
        measure: Is called once.
    """
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    clients, _, size = features.shape
    np.save(folder / "features.npy", features.numpy())
    np.save(folder / "labels.npy", labels.numpy())
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        x = torch.zeros(size)

        def step() -> None:
            nonlocal x
            content = RecordDict({"model": ArrayRecord({"x": x})})
            replies = list(grid.send_and_receive([Message(content, node, TRAIN) for node in nodes]))
            sent = [reply.content["model"].to_torch_state_dict()["x"] for reply in replies if reply.has_content()]
            if len(sent) < clients:
                raise RuntimeError(f"{len(sent)} of {clients} clients of Flower answered.")
            x = x - lr * torch.stack(sent).mean(dim=0)

        while len(nodes := list(grid.get_node_ids())) < clients:
            pass
        measure(step)

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # it kills workers when *others* fill the memory
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    run_simulation(
        server,
        client_app(folder, noise_std),
        clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"object_store_memory": 200 * 2**20}},
    )
