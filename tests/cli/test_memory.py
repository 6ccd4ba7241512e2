"""The command's process keeps freed memory, so that a step does not pay for its pages again."""

import os
import subprocess
import sys

import pytest

PAGES = """
import resource
import numpy as np
from tacita.cli.memory import keep_freed_memory

kept = keep_freed_memory() if {asked} else None
for step in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**26, np.uint8)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def last_step(asked, **environment):
    """What the function returned, and the page faults of the last of four steps, each of 64 MiB."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    made = subprocess.run(
        [sys.executable, "-c", PAGES.format(asked=asked)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    said, faults = made.stdout.split()
    return said, int(faults)


needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="another C library"
)


@needs_glibc
def test_freed_memory_is_kept():
    assert last_step(asked=False)[1] > 10
    said, faults = last_step(asked=True)
    assert said == "True"
    assert faults < 5


@needs_glibc
def test_settings_of_the_environment_come_first():
    assert last_step(asked=True, MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False"
    assert last_step(asked=True, GLIBC_TUNABLES="glibc.malloc.hugetlb=1")[0] == "False"
