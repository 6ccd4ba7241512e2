"""The pure functions against the paper's reference values (spec, sections 10 and 11)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tacita.federated import Clip21SGDM, ClipSGD, FederatedAveraging, ServerAdam
from tacita.federated.algorithm_settings import check_algorithm
from tests.federated.runs import UNIT, clip21, clip_sgd, logistic, rounds_of

DIGITS = 5e-6
TARGETS = torch.tensor([[3.0], [-3.0]], dtype=torch.float64)


def example(x):
    """Gradients of Example 1: two clients at 3 and -3."""
    return x - TARGETS


def points(algorithm, start, rounds, **more):
    return [float(x) for x, *_ in rounds_of(algorithm, example, [start], 2, rounds, **more)]


@pytest.mark.parametrize("start", [-2.0, -1.5, 0.0, 1.5, 2.0])
def test_clip_sgd_stops_at_any_point_between(start):
    """10.1: every x in [-2, 2] is a fixed point, exactly."""
    assert set(points(clip_sgd(), start, 50)) == {start}


def test_clip_sgd_from_outside_stops_at_the_edge():
    for start in (4.0, 10.0):
        assert points(clip_sgd(), start, 1000)[-1] == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(1.0, (0.756528, 0.263785, 0.0111822, 5.76303e-5)), (0.5, (0.692691, 0.205083, 0.00526498, 1.17618e-5))],
)
def test_clip21_converges(beta, expected):
    """10.1: x after 10, 20, 50, 100 rounds; both clients unclipped for the first time in round 5."""
    runs = list(rounds_of(clip21(beta), example, [1.5], 2, 101))
    assert [float(runs[t - 1][0]) for t in (10, 20, 50, 100)] == pytest.approx(expected, rel=1e-5)
    lengths = [messages.abs().max().item() for _, messages, *_ in runs]
    assert next(t + 1 for t, length in enumerate(lengths) if length < 1 - 1e-9) == 5


def test_the_rounds_of_clip21_sgdm_one_by_one():
    """Oracle 3."""
    x, v1, v2, g1, g2, g = [], [], [], [], [], []
    for at, _, state, server in rounds_of(clip21(0.5), example, [1.5], 2, 6):
        x.append(float(at))
        v1.append(float(state["momentum"]["x"][0]))
        v2.append(float(state["momentum"]["x"][1]))
        g1.append(float(state["shift"]["x"][0]))
        g2.append(float(state["shift"]["x"][1]))
        g.append(float(server.estimate["x"]))
    assert x == pytest.approx([1.5, 1.4875, 1.4440625, 1.3612421875, 1.2358009765625, 1.107944716796875], rel=1e-9)
    assert v1 == pytest.approx([-0.75, -1.13125, -1.34359375, -1.491175781, -1.627687402, -1.759871343], rel=1e-9)
    assert v2 == pytest.approx([2.25, 3.36875, 3.90640625, 4.133824219, 4.184812598, 4.146378657], rel=1e-9)
    assert g1[0] == v1[0]
    assert g2 == pytest.approx([1, 2, 3, 4, 4.184812598, 4.146378657], rel=1e-9)
    assert g == pytest.approx(
        [0.125, 0.434375, 0.828203125, 1.254412109375, 1.27856259765625, 1.193253657226562], rel=1e-9
    )


def test_the_shifts_stay_free_of_noise():
    """Oracles 4 and 17: the server's estimate less the mean of the shifts is the mean of all noise."""
    noises = [0.5, -0.25, 0.125]
    found = list(rounds_of(clip21(0.5), example, [1.5], 2, 3, noise=noises.__getitem__))
    assert [float(x) for x, *_ in found] == pytest.approx([1.5, 1.4375, 1.3703125])
    assert [float(server.estimate["x"]) for *_, server in found] == pytest.approx([0.625, 0.671875, 1.178515625])
    assert [float(state["momentum"]["x"][1]) for _, _, state, _ in found] == pytest.approx([2.25, 3.34375, 3.85703125])
    shifts = [state["shift"]["x"].flatten().tolist() for _, _, state, _ in found]
    assert [one for pair in shifts for one in pair] == pytest.approx([-0.75, 1, -1.15625, 2, -1.39296875, 3])
    for t, (_, _, state, server) in enumerate(found):
        walk = float(server.estimate["x"] - state["shift"]["x"].mean(dim=0))
        assert walk == pytest.approx(sum(noises[: t + 1]), abs=1e-12)


def test_the_appendix_is_the_same_sequence_one_round_later():
    """Oracle 18, with the same minibatches: x_main^{t+1} = x_appendix^t for zeros and no noise."""
    problem = logistic(batch_size=3)
    drawn = [problem.draw(torch.Generator().manual_seed(t)) for t in range(12)]
    at = iter(drawn)

    def gradients(x):
        return problem.gradients({"x": x.squeeze(0)}, None, next(at))["x"]

    main = [x for x, *_ in rounds_of(clip21(0.3), gradients, [0.0] * 4, 5, 12)]
    x = torch.zeros(4, dtype=torch.float64)
    v = 0.3 * problem.gradients({"x": x}, None, drawn[0])["x"]
    shift = v / v.norm(dim=1, keepdim=True).clamp(min=1.0)
    appendix = [x]
    for t in range(1, 12):
        x = x - 0.1 * shift.mean(dim=0)
        appendix.append(x)
        v = 0.7 * v + 0.3 * problem.gradients({"x": x}, None, drawn[t])["x"]
        u = v - shift
        shift = shift + u / u.norm(dim=1, keepdim=True).clamp(min=1.0)
    for one, other in zip(main, appendix, strict=True):
        assert one.tolist() == pytest.approx(other.tolist(), abs=1e-12)


def test_federated_averaging_sends_the_clipped_update():
    algorithm = FederatedAveraging(clipper=UNIT, lr=0.5, local_steps=2, local_lr=0.1)
    shapes = {"x": torch.Size([1])}
    x = {"x": torch.tensor([1.5], dtype=torch.float64)}
    message, state = algorithm.message({}, x, lambda params: {"x": example(params["x"])}, shapes)
    assert state == {}
    assert message["x"].flatten().tolist() == pytest.approx([-1.5 * 0.19, 4.5 * 0.19])
    moved = algorithm.receive(algorithm.start(x), {"x": torch.tensor([0.2])})
    assert moved.params["x"].item() == pytest.approx(1.4)
    assert algorithm.estimator(7.0).divisor == 1.0  # the source of its client divides already


def test_the_divisor_of_clip21_is_all_clients():
    assert clip21().divisor(10, 2.5) == 10.0
    assert clip_sgd().divisor(10, 2.5) == 2.5
    assert clip21().estimator(3.0).divisor == clip_sgd().estimator(3.0).divisor == 3.0


@pytest.mark.parametrize(("change", "says"), [({"lr": 0.0}, "lr must be"), ({"momentum_weight": 0.0}, "momentum_wei")])
def test_settings_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        Clip21SGDM(**{"clipper": UNIT, "lr": 0.1, "momentum_weight": 0.5, **change})


def test_adam_on_the_server():
    """Two steps by hand; Clip21 applies it to its estimate, at the next broadcast."""
    adam = ServerAdam(betas=(0.5, 0.9), eps=0.1)
    algorithm = replace(clip_sgd(lr=1.0), adam=adam)
    server, x, m, q = algorithm.start({"x": torch.zeros(1, dtype=torch.float64)}), 0.0, 0.0, 0.0
    late = replace(clip21(lr=1.0), adam=adam)
    other = late.start({"x": torch.zeros(1, dtype=torch.float64)})
    total = 0.0
    for mean in (1.0, -3.0, 0.5):
        released = {"x": torch.tensor([mean], dtype=torch.float64)}
        server = algorithm.receive(server, released)
        m, q = 0.5 * m + 0.5 * mean, 0.9 * q + 0.1 * mean**2
        x -= m / (q**0.5 + 0.1)
        assert server.params["x"].item() == pytest.approx(x, rel=1e-12)
        other = late.broadcast(late.receive(other, released))
        total += mean
        assert other.estimate["x"].item() == pytest.approx(total)
    assert set(other.memory) == {"first moment", "second moment"}
    with pytest.raises(ValueError, match="betas must be"):
        ServerAdam(betas=(0.5, 1.0), eps=0.1)


def test_an_algorithm_inherits_no_bound_of_its_messages():
    """A message is bounded by the algorithm's own code, and charged by its clipper."""
    with pytest.raises(TypeError, match="cannot be derived from ClipSGD"):
        type("Unclipped", (ClipSGD,), {"message": lambda self, state, params, gradient, shapes: gradient(params)})


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": "clip-sgd", "max_grad_norm": 1e200},
        {"algorithm": "quantile-averaging", "threshold": 1e200, "quantile": 0.5, "threshold_lr": 0.1,
         "count_share": 0.1, "local_steps": 1, "local_lr": 0.1},
    ],
    ids=["max_grad_norm", "threshold"],
)  # fmt: skip
def test_a_threshold_whose_square_is_infinite_is_refused(given):
    """The square of 1e200 is no float: a server could not tell an honest message from another."""
    name = "threshold" if "threshold" in given else "max_grad_norm"
    with pytest.raises(ValueError, match=rf"{name} must be at most 2\^400"):
        check_algorithm(SimpleNamespace(lr=0.1, **given))
    check_algorithm(SimpleNamespace(lr=0.1, **{**given, name: 1e100}))
