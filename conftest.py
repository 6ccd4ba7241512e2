"""Give every test the same secrets in every run, so that a test which passes once passes always.

Keys, seeds and ledger names come from the system's generator. In a test they come from one that is seeded with the
test's name (a shared fixture's, with the fixture's), and so do torch's, numpy's and hypothesis's draws. ``make audit``
(``TACITA_AUDIT=1``) leaves the system's generator and hypothesis as they are. Helper processes have their own.
"""

import os
import random
import secrets
from collections.abc import Generator

import numpy as np
import pytest
import torch
from hypothesis import settings

from tests.slow import LIST, is_slow, left_out, longest_first, share, times

SEEDED = os.environ.get("TACITA_AUDIT", "") in ("", "0")

os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")  # the day in a statement: a test may begin before midnight

# A machine that is busy is not a bug: no example has a time limit.
settings.register_profile("tacita", deadline=None, derandomize=SEEDED)
settings.load_profile("tacita")


def _seed(name: str) -> None:
    if not SEEDED:
        return
    source = random.Random(name)
    secrets.token_bytes = lambda nbytes=None: source.randbytes(32 if nbytes is None else nbytes)
    secrets.randbits = source.getrandbits
    random.seed(name)
    np.random.seed(source.getrandbits(32))
    torch.manual_seed(source.getrandbits(63))


if SEEDED:  # whether a disk keeps what was flushed no test can see; waiting for it costs minutes
    os.fsync = os.fstat  # type: ignore[assignment] # still refuses a handle that is not open


if torch.cuda._is_compiled() and not torch.cuda.is_available():
    # PyTorch's build for CUDA, without a GPU: tracing makes autograd start threads for eight devices that are not
    # there, and then no test may fork a process that trains.
    torch._C._ensureCUDADeviceGuardSet = lambda: None  # type: ignore[attr-defined]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--quick``, which leaves out what ``tests/slow.txt`` names, and ``--share``, which takes some cases."""
    parser.addoption("--quick", action="store_true", help="leave out the tests that tests/slow.txt names")
    parser.addoption("--share", type=float, metavar="SECONDS", help="so many cases of a test as take no longer")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, and cases, on request; begin with the longest files; refuse names that hold an address.

    Addresses differ from worker to worker.
    """
    seconds = times(LIST.read_text(encoding="utf-8").splitlines())
    kept = [item.nodeid for item in items]
    if config.getoption("quick"):
        slow = left_out()
        kept = [nodeid for nodeid in kept if not is_slow(nodeid, slow)]
    if enough := config.getoption("share"):
        kept = share(kept, seconds, enough)
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]
    if hasattr(config, "workerinput"):  # one of several processes, each of which takes a file at a time
        order = longest_first(kept, seconds)
        items.sort(key=lambda item: order[item.nodeid.split("::", maxsplit=1)[0]])
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"give these tests ids of their own: {', '.join(addresses)}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Seed with the test's name before its fixtures are made, and again when they are there."""
    _seed(item.nodeid)
    yield
    _seed(f"{item.nodeid} itself")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Seed a shared fixture with its own name: which test asks for it first depends on the worker."""
    if fixturedef.scope != "function":
        _seed(f"{fixturedef.baseid} {fixturedef.argname} {getattr(request, 'param', '')!r:.80}")
    return (yield)
