"""The devices that a test runs on: the CPU, and one that is not the CPU."""

from importlib import import_module

import pytest
import torch

import tacita

CPU, SIMULATED = "cpu", "simulated"
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def get_device(name: str) -> torch.device:
    """Return a device; the simulated one is registered when a test first asks for it."""
    if name == SIMULATED:
        import_module("tests.simulated_device")
    return torch.device(name)


@pytest.fixture(params=[CPU, SIMULATED], name="device")
def on_each_device(request: pytest.FixtureRequest) -> torch.device:
    """A module that says ``device = on_each_device`` runs its tests on both devices."""
    return get_device(request.param)


@pytest.fixture(name="models_move")
def models_move_to_the_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``tacita.fit`` move its model to ``device`` first, which is what a user would write."""
    fit = tacita.fit
    monkeypatch.setattr(tacita, "fit", lambda model, *args, **kwargs: fit(model.to(device), *args, **kwargs))
