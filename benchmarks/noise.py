"""Time the noise alone: nanoseconds a normal, each way in turn, beside ``torch.randn`` on the same device.

On one thread of the CPU it is the process's time that counts, so that a busy machine does not.

    python benchmarks/noise.py                   # one thread of the CPU
    python benchmarks/noise.py --device cuda     # values are made on the device, or made on the CPU and copied

*add* is the sum of a value and its noise, once the noise is there: what a kernel that does both could save at most.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from tacita import _normals
from tacita._normals import definition
from tacita._stream import Stream

ROUNDS = 15


def ways(device: torch.device, count: int) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name."""
    key, groups = bytes(range(32)), count // definition.GROUP
    stream = Stream(key)
    values, draw = torch.zeros(2, count, device=device)
    found: dict[str, Callable[[], object]] = {
        "torch.randn": partial(torch.randn, count, device=device),
        "stream, ChaCha20": partial(stream.normals, count, device=device),
        "stream, AES, float64": partial(stream.normals, count, device=device, dtype=torch.float64),
        "NumPy": partial(_normals._in_memory, definition.fill, key, 0, groups),
        "add": partial(torch.add, values, draw, alpha=2.0, out=draw),
    }
    if (kernel := _normals._cpu_kernel()) is not None:
        found["C++ kernel"] = partial(kernel, key, 0, groups)
    if device.type == "cuda" and (on_device := _normals._cuda_kernel(device)) is not None:
        found["Triton kernel"] = partial(on_device, key, 0, groups)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", type=int, default=6400, help=f"of {definition.GROUP} normals a draw")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    count = settings.groups * definition.GROUP
    measured = ways(settings.device, count)
    clock = time.process_time if settings.threads == 1 and settings.device.type == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for round in range(-1, ROUNDS):
        for name, make in measured.items():
            begin = clock()
            make()
            if settings.device.type == "cuda":
                torch.cuda.synchronize(settings.device)
            if round >= 0:  # the first compiles and finds its memory
                seconds[name].append(clock() - begin)
    plain = seconds["torch.randn"]
    print(f"{'':24s}{'ns, least':>10s}{'median':>10s}{'/ randn':>10s}")
    for name, found in seconds.items():
        ratio = median(one / other for one, other in zip(found, plain, strict=True))
        print(f"{name:24s}{min(found) / count * 1e9:10.2f}{median(found) / count * 1e9:10.2f}{ratio:10.2f}")


if __name__ == "__main__":
    main()
