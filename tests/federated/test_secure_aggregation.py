"""The example that adds messages up by SecAgg+: all but its masks, on residents at their sockets."""

import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from tests.federated.federations import SETTINGS, clients_in, exchange
from tests.federated.test_flower import serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "secure_aggregation"
PLAIN = msgspec.structs.replace(SETTINGS, algorithm="clip-sgd", momentum_weight=None)


@pytest.fixture
def app(monkeypatch):
    """The example's two modules; skips without Flower."""
    pytest.importorskip("flwr.app")
    monkeypatch.syspath_prepend(EXAMPLE)
    from secure_app import client, server  # pyright: ignore[reportMissingImports]

    yield SimpleNamespace(client=client, server=server)
    for name in [name for name in sys.modules if name.partition(".")[0] == "secure_app"]:
        del sys.modules[name]


def test_it_is_the_run_of_messages_but_for_rounding(tmp_path, app):
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.common.secure_aggregation.quantization import dequantize, quantize

    coordinator, strategy = PLAIN.coordinator(), app.server.SumOfMessages(PLAIN)
    bits, furthest = 2**22, app.server.furthest(PLAIN)
    with clients_in(tmp_path / "a", PLAIN) as residents, serving(residents, tmp_path) as paths:
        nodes = {str(number): app.client.ResidentClient(str(path)) for number, path in paths.items()}
        clients = SimpleNamespace(wait_for=lambda *args, **given: True, all=lambda: dict.fromkeys(nodes))
        for number in range(1, PLAIN.rounds + 1):
            _, asked = strategy.configure_fit(number, strategy.initialize_parameters(clients), clients)[0]
            found = [node.fit([], asked.config) for node in nodes.values()]
            assert {(weight, str(metrics)) for _, weight, metrics in found} == {(1, "{}")}  # 10 to 13 rows each
            rounded = [dequantize(quantize(arrays, furthest, bits), furthest, bits) for arrays, _, _ in found]
            mean = [np.mean(arrays, axis=0) for arrays in zip(*rounded, strict=True)]
            result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(mean), 1, {})
            strategy.aggregate_fit(number, [(node, result) for node in nodes], [])
        spent = [resident.ledger.epsilon_spent(1e-5) for resident in residents.values()]
    with clients_in(tmp_path / "b", PLAIN) as residents:
        for _ in range(PLAIN.rounds):
            exchange(residents, coordinator)
        assert [resident.ledger.epsilon_spent(1e-5) for resident in residents.values()] == spent
    step = 10 * 2 * furthest / bits  # of rounding, in each of four rounds
    for name, x in coordinator.params.items():
        assert torch.allclose(strategy.server.params[name], x, rtol=0, atol=step)
        assert float(x.abs().max()) > 1000 * step


def test_what_goes_wrong_is_one_constant(tmp_path, app):
    with pytest.raises(RuntimeError, match=r"^no message$") as caught:
        app.client.ResidentClient(str(tmp_path / "nobody")).fit([], {"broadcast": b"secret"})
    assert caught.value.__suppress_context__


def test_clients_that_remember_are_refused(app):
    with pytest.raises(ValueError, match=r"algorithm must be 'clip-sgd' .*got 'clip21-sgdm'"):
        app.server.SumOfMessages(SETTINGS)
