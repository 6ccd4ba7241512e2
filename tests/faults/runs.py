"""A training run of three queries, small enough to be broken at every call it makes."""

import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import tacita
from tests.forked import exit_code

QUERIES = 3
SETTINGS: dict[str, Any] = dict(
    target_epsilon=3.0,
    target_delta=1e-3,
    epochs=0.75,
    num_records=40,
    expected_batch_size=10,
    max_grad_norm=1.0,
    privacy_unit="one row",
    progress=False,
)
DATA = (torch.linspace(-1, 1, 40).view(-1, 1), torch.linspace(1, -1, 40).view(-1, 1))


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.1)


def losses(model: Any, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().sum(1)


def train(folder: Path, **changes: Any) -> tacita.Run:
    """Begin in ``folder``, or go on there."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    data = changes.pop("data", DATA)
    key = changes.pop("randomness", None) or tacita.Randomness.insecure(0)
    return tacita.fit(model, losses, data, folder=folder, randomness=key, **{"optimizer": adam, **SETTINGS, **changes})


@contextmanager
def telling(tell: Callable[[int], Any]) -> Any:
    """Within the block, ``tell`` hears how many queries have been released, each time that one is."""
    ask = tacita.GradientOracle.query

    def query(self: Any, params: Any) -> Any:
        release = ask(self, params)
        tell(release.query + 1)
        return release

    tacita.GradientOracle.query = query  # type: ignore[method-assign]
    try:
        yield
    finally:
        tacita.GradientOracle.query = ask  # type: ignore[method-assign]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def finished(folder: Path) -> bool:
    return (folder / "statement.json").exists() and not (folder / "private").exists()


def check_finished(folder: Path, whole: Path) -> None:
    """The run in ``folder`` ended like the one in ``whole``: the same bits and epsilon, and nothing private is left."""
    assert weights(folder) == weights(whole)
    assert safetensors.torch.load_file(folder / "model.safetensors")
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}
    ledger, expected = tacita.Ledger.load(folder / "ledger.jsonl"), tacita.Ledger.load(whole / "ledger.jsonl")
    assert ledger.verify().ok
    assert ledger.sessions[0].queries_made == QUERIES
    assert ledger.epsilon(1e-3) == expected.epsilon(1e-3)
    assert ledger.epsilon_spent(1e-3) >= expected.epsilon_spent(1e-3)


def check_covers(folder: Path, released: int) -> None:
    """What the ledger says was spent is at least what was released."""
    if released:
        session = tacita.Ledger.load(folder / "ledger.jsonl").sessions[0]
        assert session.queries_spent >= released


def killed(job: Callable[[Callable[[int], Any]], Any]) -> tuple[bool, int]:
    """Run ``job(tell)`` in a fork; whether it was killed, and the last number that it told."""
    told = os.memfd_create("told")

    def child() -> None:
        job(lambda number: os.pwrite(told, bytes([number]), 0))

    code = exit_code(child)
    last = os.pread(told, 1, 0)
    os.close(told)
    assert code <= 0, "the run failed before it was killed"
    return code < 0, last[0] if last else 0
