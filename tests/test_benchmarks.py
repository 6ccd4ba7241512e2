"""What ``make bench-gpu`` runs, runs: here on the CPU, at a tiny size, so that a GPU's first minutes are figures."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = "24,1,2,32,6,12"  # TACITA_LLAMA
ARGUMENTS = {
    "noise.py": ["--groups", "2"],
    "step_time.py": ["--rounds", "2", "--threads", "1", "--print", "--only", "tacita, engine", "tacita, whole oracle",
                     "--cells", "a", "llama, LoRA, short", "llama, full, long"],
    "shards.py": ["--repeats", "1", "--size", "2", "--width", "12", "--layers", "1"],
}  # fmt: skip
SAYS = {
    "step_time.py": r"\| tacita, whole oracle \| \d+\.\d\d .*\| \d+\.\d\d .*\| \d+\.\d\d ",
    "noise.py": r"stream, ChaCha20 +\d",
    "shards.py": r"2 ranks: plain FSDP2 \d+ MiB, tacita \d+ MiB, ratio",
}


def test_these_are_all_that_the_makefile_runs():
    _, _, recipe = (ROOT / "Makefile").read_text().partition("\nbench-gpu:")
    scripts = re.findall(r"benchmarks/(\w+\.py) --device cuda", recipe.partition("\n\n")[0])
    assert sorted(scripts) == sorted(ARGUMENTS)


@pytest.mark.parametrize("script", ARGUMENTS)
def test_it_runs_at_a_tiny_size_on_the_cpu(script):
    found = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *ARGUMENTS[script]],
        env={**os.environ, "TACITA_LLAMA": TINY, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert re.search(SAYS[script], found.stdout), found.stdout + found.stderr[-3000:]
