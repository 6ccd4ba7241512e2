"""Simulated clients that clip their records, and weights of clients: what is moved, charged and refused."""

import math

import pytest
import torch

import tacita
from tacita.federated import ClippedDifference, LogisticClients, NetworkClients, QuadraticClients, RecordPrivacy
from tacita.federated.client_weights import ClientWeights
from tacita.federated.clipped_difference import clipped_difference, finite_or_zero
from tacita.federated.privacy import RecordSampling
from tests.federated.runs import clip21, clip_sgd, ledger, logistic, simulation

GAUSS = tacita.GaussianMechanism(noise_multiplier=4.0)
SAMPLING = RecordSampling(sample_rate=0.5, clipper=tacita.FlatClipper(max_grad_norm=0.3), divisor=6.0)


def record_privacy(**change):
    return RecordPrivacy(**{"mechanism": GAUSS, "sample_rate": 0.25, "max_sample_norm": 0.3, "divisor": 3.0, **change})


def problems():
    """The same logistic regression in closed form, and as a network."""
    plain = logistic(clients=3, rows=8)
    model = torch.nn.Linear(4, 1, bias=False).double()

    def losses(model, batch):
        return torch.nn.functional.softplus(-batch[1] * model(batch[0]).squeeze(1))

    weights = torch.full((3, 8), 1 / 8, dtype=torch.float64)
    return plain, NetworkClients(model, losses, (plain._features, plain._labels), weights=weights)


def test_the_sums_are_those_of_clipped_records():
    plain, network = problems()
    x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = torch.rand(3, 8, generator=torch.Generator().manual_seed(1)) < 0.5
    plain._features[1, 2] = torch.nan
    plain._weights[0, 0] = network._weights[0, 0] = 0.0  # a row that pads
    for clients in (None, torch.tensor([2, 1])):
        found = plain.clipped_gradients({"x": x}, clients, drawn, SAMPLING)["x"]
        other = network.clipped_gradients({"weight": x.unsqueeze(0)}, clients, drawn, SAMPLING)["weight"].squeeze(1)
        assert torch.allclose(found, other, atol=1e-12)
        for place, i in enumerate(range(3) if clients is None else clients.tolist()):
            total = torch.zeros(4, dtype=torch.float64)
            for j in range(8):
                a, b = plain._features[i, j], plain._labels[i, j]
                g = -b * torch.sigmoid(-b * (a @ x)) * a
                if drawn[i, j] and g.isfinite().all() and (i, j) != (0, 0):
                    total += g * min(1.0, 0.3 / float(g.norm()))
            assert torch.allclose(found[place], total / 6.0, atol=1e-12)


def test_rows_are_drawn_by_their_rate():
    run = simulation(logistic(clients=4, rows=500), privacy=record_privacy(), rounds=3)
    drawn = [run._drawn(query) for query in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    count = sum(int(one.sum()) for one in drawn)
    assert abs(count - 1500) < 5 * math.sqrt(6000 * 0.25 * 0.75)


def worlds_apart(privacy, *, queries=9, beta=0.5):
    """How far one record moves all messages of its client, under the same coins and broadcasts."""
    sent = []
    for canary in (1e6, 0.0):
        features = torch.zeros(2, 3, 1, dtype=torch.float64)
        features[0, 0, 0] = canary
        run = simulation(LogisticClients(features, torch.ones(2, 3)), clip21(beta), privacy=privacy, rounds=queries)
        start, messages = {"x": torch.zeros(1, dtype=torch.float64)}, []
        for query in range(queries):
            drawn = torch.zeros(2, 3, dtype=torch.bool)
            drawn[0, 0] = query == 0  # once, in the first round
            of, following = run._of(None, run._clients, run.algorithm.start(start), drawn)
            run._clients = following
            messages.append(of["x"][0])
        sent.append(torch.stack(messages))
    return float((sent[0] - sent[1]).norm()), run


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.1])
def test_one_draw_moves_all_messages_by_less_than_its_charge(beta):
    apart, run = worlds_apart(record_privacy(), beta=beta)
    event, noise = run.session.event, run.noise_std["all"]
    once = 2 * beta * 0.3 / 3.0 * 2  # replaced: twice as far as absent
    assert event.query_mu == pytest.approx(once / noise, rel=1e-5)
    assert apart <= once / 2
    assert apart > 0.5 * once / 2 / 2**0.5


def test_a_session_is_charged_by_the_draws_of_a_record():
    """No factor for the rounds, and far less than what covers all data of a client."""
    small, whole = ledger("zero_out_one"), ledger("zero_out_one")
    simulation(logistic(), privacy=record_privacy(), rounds=100, book=small)
    simulation(logistic(), noise=4.0, rounds=100, book=whole)
    assert small.epsilon(1e-5) < whole.epsilon(1e-5) / 4
    event = small.sessions[0].event
    assert type(event).__name__ == "ClippedSamplesEvent"
    assert event.momentum_weight == clip21().momentum_weight


def messages_of(gradients, *, C):
    """The message of a client after one round over given gradients of one coordinate, each below the threshold."""
    problem = LogisticClients(
        torch.tensor(gradients, dtype=torch.float64).reshape(1, -1, 1) * 2, torch.ones(1, len(gradients))
    )
    state = clip21().client_start(problem.shapes, (1,))
    found = problem.clipped_gradients(
        {"x": torch.zeros(1, dtype=torch.float64)},
        None,
        torch.ones(1, len(gradients), dtype=torch.bool),
        RecordSampling(sample_rate=1.0, clipper=tacita.FlatClipper(max_grad_norm=1.25e152), divisor=1.0),
    )
    return clipped_difference(
        state, finite_or_zero(found, problem.shapes), momentum_weight=1.0,
        clipper=tacita.FlatClipper(max_grad_norm=C), shapes=problem.shapes,
    )[0]["x"]  # fmt: skip


def test_a_sum_of_records_that_would_have_no_norm_is_refused():
    """Such a sum counts as zero, so that one record more would take away what all others have added."""
    few, more = (messages_of([1.2e152] * n, C=5e153) for n in (111, 112))
    assert float((few - more).abs()) > 10 * 2 * 1.25e152  # what a draw is charged for
    for norm, divisor in ((1.25e152, 1.0), (1.0, 1e-152)):
        with pytest.raises(ValueError, match="the norm of a sum would not be finite"):
            record_privacy(max_sample_norm=norm, divisor=divisor)
        with pytest.raises(ValueError, match="the norm of a sum would not be finite"):
            ClippedDifference(
                clipper=tacita.FlatClipper(max_grad_norm=1.0), momentum_weight=0.5, divisor=divisor,
                sample_clipper=tacita.FlatClipper(max_grad_norm=norm),
            )  # fmt: skip
    record_privacy(max_sample_norm=1e120, divisor=1.0)


def test_a_regulariser_that_rounds_records_is_refused():
    """A record of 0.01 beside 75 others and a pull of 2e15 moves the gradient by 0.5, its last digit."""
    features = torch.zeros(2, 76, 1, dtype=torch.float64)
    features[0], features[1, :75] = 1.0, 1.0
    problem = LogisticClients(features, torch.ones(2, 76), regularisation=2.0**52)
    found = problem.clipped_gradients(
        {"x": torch.tensor([-0.3033898174762726], dtype=torch.float64)},
        None,
        torch.ones(2, 76, dtype=torch.bool),
        RecordSampling(sample_rate=1.0, clipper=tacita.FlatClipper(max_grad_norm=0.01), divisor=1.0),
    )["x"]
    assert float((found[0] - found[1]).abs()) > 40 * 0.01
    share = 0.3 / 3.0
    with pytest.raises(ValueError, match="regularisation must be at most 1e\\+06 times the share of a record"):
        simulation(LogisticClients(features, torch.ones(2, 76), regularisation=1.1e6 * share), privacy=record_privacy())
    simulation(LogisticClients(features, torch.ones(2, 76), regularisation=0.9e6 * share), privacy=record_privacy())


def test_a_run_trains():
    noiseless = record_privacy(mechanism=tacita.GaussianMechanism(noise_multiplier=0.0), divisor=50.0)
    run = simulation(logistic(rows=200), privacy=noiseless, rounds=150)
    before = float(run.problem.gradients(run.params, None, None)["x"].mean(dim=0).norm())
    assert float(run.problem.gradients(run.run(), None, None)["x"].mean(dim=0).norm()) < before / 2


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"loss_rate": 0.1}, ValueError, "loss_rate must be 0"),
        ({"problem": logistic(dtype=torch.float32)}, ValueError, "must be of float64"),
        ({"problem": logistic(batch_size=3)}, ValueError, "batch_size must be None"),
        ({"problem": QuadraticClients(torch.zeros(2, 3, dtype=torch.float64))}, TypeError, "has no records"),
        ({"weights": torch.ones(5), "total_weight": 5.0}, ValueError, "weights must be None"),
        ({"algorithm": clip_sgd()}, TypeError, "algorithm must be Clip21SGDM"),
    ],
)
def test_what_is_not_proved_is_refused(change, error, says):
    with pytest.raises(error, match=says):
        simulation(**{"problem": logistic(), "privacy": record_privacy(), **change})


# -- weights of clients


def weighted(weights, *, total=3.0, algorithm=None, **more):
    targets = torch.tensor([[1.0], [5.0], [-2.0]], dtype=torch.float64)
    return simulation(
        QuadraticClients(targets), algorithm or clip21(bound=100.0), noise=0.0, rounds=200,
        weights=weights, total_weight=total, **more,
    )  # fmt: skip


def test_the_model_goes_to_the_weighted_optimum():
    weights = torch.tensor([1.0, 0.25, 0.5])
    run = weighted(weights, total=1.75)
    assert float(run.run()["x"]) == pytest.approx((1 + 5 / 4 - 1) / 1.75, abs=1e-6)
    assert run.divisor == pytest.approx(1.75)


@pytest.mark.parametrize("hostile", [math.inf, math.nan, 7.0, -3.0])
def test_no_weight_takes_a_message_out_of_its_ball(hostile):
    run = weighted(torch.tensor([hostile, hostile, hostile]), algorithm=clip_sgd(bound=1.0))
    made = run.step()
    assert made.total["x"].isfinite().all()
    assert float(made.total["x"].abs()) <= 3.0


@pytest.mark.parametrize("clients", [None, [0, 1, 2, 3], [1, 3], [2]], ids=str)
def test_a_client_has_its_own_weight_whoever_else_takes_part(clients):
    values = torch.tensor([1.0, 0.25, 0.5, 0.125], dtype=torch.float64)
    taking_part = torch.arange(4) if clients is None else torch.tensor(clients, dtype=torch.int64)
    messages = {"w": torch.ones(len(taking_part), 2, 3), "b": torch.ones(len(taking_part))}
    found = ClientWeights.of(values, 2.0, 4).times(messages, None if clients is None else taking_part)
    for name, message in messages.items():
        assert torch.equal(found[name].reshape(len(message), -1)[:, 0], values[taking_part].float())


def test_weights_are_private_and_their_divisor_is_public():
    run = weighted(torch.tensor([0.125, 0.375, 0.5]))
    assert run.settings["total_weight"] == 3.0
    assert "0.125" not in repr(run) + str(run.settings) + repr(run._weights)
    for change, says in (({"total": None}, "total_weight is missing"), ({"total": 0.0}, "total_weight must be")):
        with pytest.raises(ValueError, match=says):
            weighted(torch.ones(3), **change)
    with pytest.raises(ValueError, match="weights must have shape"):
        weighted(torch.ones(2))
    with pytest.raises(ValueError, match="total_weight needs weights"):
        weighted(None)


def test_every_setting_of_a_problem_is_bound_to_the_session():
    """A problem of your own must say what its settings are."""
    seen = {repr(one) for one in (logistic(), logistic(batch_size=2), logistic(regularisation=0.1),
                                  logistic(dtype=torch.float32), QuadraticClients(torch.zeros(1, 1)),
                                  QuadraticClients(torch.zeros(1, 1), smoothness=2.0))}  # fmt: skip
    assert len(seen) == 6
    assert "settings" in LogisticClients.__mro__[1].__abstractmethods__
