"""The server of a federation: what it adds up, in which order, what it refuses, and what survives a crash."""

import math
from dataclasses import replace

import pytest
import scipy.stats
import torch

from tacita.clipping import PerLayerClipper
from tacita.errors import ResumeError
from tacita.federated import Clip21SGDM, ClipSGD, Coordinator, QuantileAveraging, ServerAdam, longest_honest_message
from tacita.federated.wire import Answer, from_wire, to_wire, wire_tensors
from tacita.runs import checkpoint
from tests.federated.runs import clip21, clip_sgd

SIZE = 4
START = {"x": torch.zeros(SIZE, dtype=torch.float64)}


def coordinator(algorithm=None, *, noise=0.1, clients=3, **change):
    settings = {"federation": "clinics", "params": START, "rounds": 9, "num_clients": clients, **change}
    return Coordinator(algorithm or clip_sgd(), noise_std={"all": noise}, **settings)


def message(client, value, number=0, **change):
    given = {"federation": "clinics", "client": client, "number": number}
    values = torch.as_tensor(value, dtype=torch.float64).expand(SIZE)
    return to_wire(Answer(**{**given, "values": wire_tensors({"x": values}), **change}))


def test_messages_are_added_up_in_the_order_of_clients():
    """1e16 + 1 is 1e16, so that the order shows: added up as they arrive, nothing would be left."""
    server = coordinator(noise=1e18)
    server.broadcasts([2, 0, 1])
    server.receive({2: message(2, 1.0), 0: message(0, 1e16), 1: message(1, -1e16)})
    assert torch.allclose(server.params["x"], torch.full((SIZE,), -0.1 / 3, dtype=torch.float64))


def test_a_broadcast_names_the_last_message_that_was_added_up():
    server = coordinator()
    said = []
    for replies in ({0: message(0, 0.1, 3)}, {}, {0: b""}, {0: message(0, 0.1, 9)}, {0: message(0, 0.1, 9)}):
        said.append(from_wire(server.broadcasts([0])[0]))
        server.receive(replies)
    said.append(from_wire(server.broadcasts([0])[0]))
    server.receive({0: message(0, 0.1, 10)})
    said.append(from_wire(server.broadcasts([0])[0]))
    assert [one.accepted for one in said] == [None, 3, 3, 3, 9, 9, 10]
    assert [one.refused for one in said] == ["", "", "", "", "", "an old number", ""]


def test_clients_are_asked_and_added_up_in_the_order_of_their_numbers():
    """Not in that of a set, where 8 may come before 1."""
    server = coordinator(clients=10)
    assert [*server.broadcasts([9, 8, 1, 8])] == [1, 8, 9]
    assert server.receive({client: message(client, 0.1) for client in (9, 8, 1)}).accepted == (1, 8, 9)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"\x93", "unreadable"),
        (message(1, 0.1), "not of this client"),
        (message(0, 0.1, federation="others"), "not of this client"),
        (message(0, 0.1, -1), "an old number"),
        (message(0, 0.1, 2**60), "an old number"),
        (message(0, 0.1, values=wire_tensors({"x": torch.zeros(5)})), "names or shapes"),
        (message(0, math.nan), "not finite"),
        (message(0, -math.inf), "not finite"),
        (message(0, 1e308), "not finite"),  # its norm overflows
        (message(0, 3.0), "too long"),
    ],
)
def test_a_wrong_message_is_refused_and_its_client_is_told(reply, reason):
    server = coordinator()
    server.broadcasts([0, 1])
    report = server.receive({0: reply, 1: message(1, 0.3)})
    assert (report.accepted, report.refused) == ((1,), {0: reason})
    assert torch.allclose(server.params["x"], torch.full((SIZE,), -0.01, dtype=torch.float64))
    said = {client: from_wire(data) for client, data in server.broadcasts([0, 1]).items()}
    assert [(one.accepted, one.refused) for one in said.values()] == [(None, reason), (0, "")]


def test_an_honest_message_is_refused_as_seldom_as_stated():
    """The bound is above the exact quantile of C + s chi_d."""
    for size in (1, 4, 100, 10_000):
        for rate in (1e-2, 1e-9):
            exact = 1.0 + 0.5 * math.sqrt(scipy.stats.chi2.isf(rate, df=size))
            assert exact <= longest_honest_message(1.0, 0.5, size, rate) <= 1.35 * exact


def test_each_block_has_its_bound():
    clipper = PerLayerClipper(max_grad_norm={"small": 0.1, "large": 10.0})
    params = {"small": torch.zeros(2), "large": torch.zeros(3)}
    algorithm = Clip21SGDM(clipper=clipper, lr=1.0, momentum_weight=1.0)
    blocks = list(clipper.max_contribution({name: x.shape for name, x in params.items()}))
    server = Coordinator(
        algorithm, federation="f", params=params, rounds=2, num_clients=2, noise_std=dict.fromkeys(blocks, 0.01)
    )
    server.broadcasts([0, 1])
    long = [
        {"small": torch.tensor([5.0, 0.0]), "large": torch.zeros(3)},
        {"small": torch.zeros(2), "large": torch.ones(3)},
    ]
    report = server.receive({i: to_wire(Answer("f", i, 0, wire_tensors(x))) for i, x in enumerate(long)})
    assert report.refused == {0: "too long"}
    assert report.accepted == (1,)
    with pytest.raises(ValueError, match="must name the blocks"):
        Coordinator(algorithm, federation="f", params=params, rounds=2, num_clients=2, noise_std={"all": 0.1})


ADAM = replace(clip21(), adam=ServerAdam(betas=(0.9, 0.99), eps=1e-3))


@pytest.mark.parametrize("algorithm", [clip_sgd(), clip21(), ADAM], ids=["clip-sgd", "clip21", "adam"])
def test_a_server_goes_on_from_its_file(tmp_path, algorithm):
    def run(path, killed):
        server = coordinator(algorithm, path=path)
        for t in range(6):
            if killed:
                server.broadcasts([0, 2])  # killed in the middle of a round: it is asked again
                server = coordinator(algorithm, path=path)
            server.broadcasts([0, 2])
            server.receive({0: message(0, 0.1 * t, t), 2: message(2, 7.0 * t, t)})
        return server

    whole, resumed = run(None, False), run(tmp_path / "state", True)
    assert torch.equal(whole.params["x"], resumed.params["x"])
    assert resumed.round == 6
    assert whole.broadcasts([0, 2]) == resumed.broadcasts([0, 2])
    with pytest.raises(ResumeError, match="another federation"):
        coordinator(algorithm, path=tmp_path / "state", federation="others")


@pytest.mark.parametrize("tree", [{}, {"oracle": {}}, {"params": 3}, {"params": {"x": torch.zeros(2)}}], ids=str)
def test_a_file_that_is_no_state_of_a_server_is_refused(tmp_path, tree):
    checkpoint.save(tmp_path / "state", tree, {"federation": "clinics"})
    with pytest.raises(ResumeError, match=r"is not the state of a federation's server|of another federation"):
        coordinator(path=tmp_path / "state")


def test_an_algorithm_whose_clients_send_more_is_refused():
    algorithm = QuantileAveraging(
        threshold=1.0, quantile=0.5, threshold_lr=0.2, count_share=0.1, lr=1.0, local_steps=1, local_lr=0.1
    )
    with pytest.raises(TypeError, match="algorithm must be one whose messages"):
        coordinator(algorithm)


def test_no_message_is_added_up_twice_after_a_crash(tmp_path):
    """A message that was read and refused before the crash is old, too."""
    server = coordinator(path=tmp_path / "state")
    server.broadcasts([0, 1])
    server.receive({0: message(0, 0.1, 4), 1: message(1, math.nan, 4)})
    server = coordinator(path=tmp_path / "state")
    server.broadcasts([0, 1])
    report = server.receive({0: message(0, 0.1, 4), 1: message(1, 0.1, 4)})
    assert report.refused == {0: "an old number", 1: "an old number"}
    assert report.accepted == ()


def test_the_blocks_share_the_chance_of_a_false_refusal():
    """A message of two blocks is refused if either is too long, so that each has half of the chance."""
    params = {"a": torch.zeros(3), "b": torch.zeros(5)}
    clipper = PerLayerClipper(max_grad_norm={"a": 1.0, "b": 1.0})
    algorithm = Clip21SGDM(clipper=clipper, lr=1.0, momentum_weight=1.0)
    noise_std = dict.fromkeys(clipper.max_contribution({name: x.shape for name, x in params.items()}), 2.0)
    bound = longest_honest_message(1.0, 2.0, 3, 0.005)
    for factor, refused in ((1 - 1e-6, {}), (1 + 1e-6, {0: "too long"})):
        server = Coordinator(
            algorithm,
            federation="f",
            params=params,
            rounds=1,
            num_clients=1,
            noise_std=noise_std,
            false_refusals=0.01,
        )
        server.broadcasts([0])
        values = {"a": torch.tensor([factor * bound, 0.0, 0.0], dtype=torch.float64), "b": torch.zeros(5)}
        assert server.receive({0: to_wire(Answer("f", 0, 0, wire_tensors(values)))}).refused == refused


def test_what_is_no_round_is_refused():
    server = coordinator(rounds=1)
    with pytest.raises(RuntimeError, match="ends a round"):
        server.receive({})
    with pytest.raises(ValueError, match="clients must be numbers from 0 to 2"):
        server.broadcasts([3])
    server.broadcasts([0])
    server.receive({1: message(1, 0.1)})  # nobody asked it
    assert torch.equal(server.params["x"], START["x"])
    with pytest.raises(ValueError, match="all of them are done"):
        server.broadcasts([0])
    assert isinstance(server.algorithm, ClipSGD)
