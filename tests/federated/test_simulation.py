"""The simulation: equal to the pure functions bit for bit, lost messages, noise, accounting, resume."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import tacita
from tacita._stream import Noise
from tacita.errors import BudgetExceededError, LedgerError, ResumeError
from tacita.federated import (
    FederatedAveraging,
    LocalPrivacy,
    LogisticClients,
    NetworkClients,
    QuadraticClients,
    TrustedServer,
    stacked,
)
from tacita.federated.clip21_noise import random_walk_variance
from tacita.federated.round_noise import Asked, RoundNoise
from tests.federated.runs import UNIT, clip21, clip_sgd, ledger, logistic, one_by_one, simulation

GAUSS = tacita.GaussianMechanism(noise_multiplier=4.0)
AVERAGING = FederatedAveraging(clipper=UNIT, lr=1.0, local_steps=3, local_lr=0.1)


def silent(clients=4, size=2000):
    """Clients without any signal: every released sum is noise alone."""
    zeros = torch.zeros(clients, 1, size, dtype=torch.float64)
    return LogisticClients(zeros, torch.ones(clients, 1))


# -- the same as the pure functions


@pytest.mark.parametrize("algorithm", [clip21(), clip_sgd(), AVERAGING], ids=["clip21", "clip-sgd", "averaging"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_stream_a_client_is_the_run_of_the_pure_functions_bit_for_bit(algorithm, dtype):
    """Every client by itself: own gradient, own state, own noise; losses and partial participation included."""
    problem = logistic(dtype=dtype, batch_size=3)
    privacy = LocalPrivacy(mechanism=GAUSS, clients_per_round=3)
    fast = one_by_one(simulation(problem, algorithm, privacy=privacy, loss_rate=0.3, rounds=10))
    key = tacita.Randomness.insecure(0)
    name, shapes = fast.session.id, problem.shapes
    server = algorithm.start({"x": torch.zeros(4, dtype=dtype)})
    states = [algorithm.client_start(shapes, (1,), dtype) for _ in range(5)]
    for t in range(10):
        server = algorithm.broadcast(server)
        seed = key.key.stream(name, "batch", t).seed() % 2**63
        drawn = problem.draw(torch.Generator().manual_seed(seed))
        asked = key.key.stream(name, "clients", t).choice(5, 3)
        lost = key.key.stream(name, "lost", t).bernoulli(3, 0.3)
        total = torch.zeros(4, dtype=dtype)
        for i, gone in zip(asked.tolist(), lost.tolist(), strict=True):

            def gradient(params, i=i, drawn=drawn):
                return problem.gradients(params, torch.tensor([i]), drawn)

            message, following = algorithm.message(states[i], server.params, gradient, shapes)
            noise = key.key.stream(name, "noise", t, f"all/client-{i}").normals((4,), dtype=dtype)
            if not gone:
                states[i] = following
                total = total + torch.add(message["x"][0], noise, alpha=fast.noise_std["all"])
        server = algorithm.receive(server, {"x": total / fast.divisor})
        fast.step()
        assert torch.equal(fast.params["x"], server.params["x"])
    kept = fast.state_dict()["clients"]
    for kind, tensors in kept.items():
        assert torch.equal(tensors["x"], torch.cat([state[kind]["x"] for state in states]))


@pytest.mark.parametrize("algorithm", [clip21(), clip_sgd(), AVERAGING], ids=["clip21", "clip-sgd", "averaging"])
def test_all_clients_at_once_are_the_clients_one_by_one(algorithm):
    """Without noise the two ways differ by rounding alone."""
    runs = [
        way(simulation(logistic(regularisation=1e-3), algorithm, noise=0.0, rounds=20)).run()["x"]
        for way in (lambda run: run, one_by_one)
    ]
    assert runs[0].tolist() == pytest.approx(runs[1].tolist(), rel=1e-9)
    assert float(runs[0].norm()) > 0.1


def test_the_closed_form_is_the_gradient():
    problem = logistic(regularisation=0.1)
    x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a, b = problem._features, problem._labels
    found = problem.gradients({"x": x}, None, None)["x"]
    for i in range(5):
        at = x.clone().requires_grad_()
        loss = nn.functional.softplus(-b[i] * (a[i] @ at)).mean() + 0.1 * (at**2 / (1 + at**2)).sum()
        (expected,) = torch.autograd.grad(loss, at)
        assert found[i].tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    points = x.expand(5, 4)
    assert torch.allclose(problem.gradients({"x": points}, None, None)["x"], found, rtol=1e-12)


@pytest.mark.parametrize("network", [False, True])
def test_the_draws_of_a_client_do_not_depend_on_the_rows_of_another(network):
    def others(rows_of_first):
        data = (torch.arange(1.0, 56.0, dtype=torch.float64).reshape(-1, 1), torch.ones(55, dtype=torch.float64))
        split = [np.arange(5, 5 + rows_of_first), *np.arange(5).reshape(-1, 1)]
        found, weights = stacked(data, split)
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        if network:
            problem = NetworkClients(model, lambda m, b: m(b[0]).squeeze(1), found, weights=weights, batch_size=3)
        else:
            problem = LogisticClients(*found, weights=weights, batch_size=3)
        params = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in problem.shapes.items()}
        drawn = problem.draw(torch.Generator().manual_seed(7))
        (gradients,) = problem.gradients(params, None, drawn).values()
        return gradients[1:].flatten().tolist()

    assert others(1) == others(50)
    assert [abs(x) for x in others(50)] == pytest.approx([(1 if network else 0.5) * x for x in range(1, 6)])


def test_the_regulariser_of_the_paper():
    """Oracle 10: at 0.5 and lambda 1e-3 the gradient is 6.4e-4."""
    problem = LogisticClients(torch.zeros(1, 1, 1), torch.ones(1, 1), regularisation=1e-3)
    assert problem.gradients({"x": torch.tensor([0.5])}, None, None)["x"].item() == pytest.approx(6.4e-4, rel=1e-6)


def test_a_network_has_the_gradients_of_its_clients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = torch.randn(5, 6, 3), torch.randint(2, (5, 6))

    def losses(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    problem = NetworkClients(model, losses, data, clients_at_once=2)
    params = {name: p.detach() for name, p in model.named_parameters()}
    found = problem.gradients(params, torch.tensor([4, 1, 2]), None)
    for place, i in enumerate((4, 1, 2)):
        loss = losses(model, (data[0][i], data[1][i])).mean()
        for (name, _), expected in zip(params.items(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            assert torch.allclose(found[name][place], expected, atol=1e-6)
    layers = clip21(0.5).__class__(clipper=tacita.PerLayerClipper(max_grad_norm=1.0), lr=0.1, momentum_weight=0.5)
    run = simulation(problem, layers, rounds=2, params=params, privacy=LocalPrivacy(mechanism=GAUSS))
    assert run.run().keys() == params.keys()
    assert run.noise_std == {"0": pytest.approx(8.0 * math.sqrt(0.5) * math.sqrt(2)), "2": pytest.approx(8.0)}


def test_a_gradient_that_is_no_number_counts_as_zero():
    problem = logistic()
    problem._features[2, 0, 0] = torch.nan
    run = simulation(problem, noise=0.0, rounds=5)
    run.run()
    assert all(x.isfinite().all() for x in run.params.values())
    assert not run.state_dict()["clients"]["momentum"]["x"][2].any()


# -- what arrives


def gradient_norm(run):
    found = run.problem.gradients(run.params, None, None)["x"]
    return float(found.mean(dim=0).norm())


def lossy(loss_rate):
    targets = torch.randn(10, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 4
    run = simulation(QuadraticClients(targets), clip21(0.5), noise=0.0, rounds=300, loss_rate=loss_rate)
    run.run()
    return gradient_norm(run)


def test_lost_messages_do_no_harm_as_states_go_back():
    """Pitfall 77: one message in ten is lost; clients that moved anyway would end at a gradient norm near 0.1."""
    assert lossy(0.1) < max(2 * lossy(0.0), 1e-12)


def test_clients_that_are_not_asked_keep_their_state():
    run = simulation(logistic(), privacy=LocalPrivacy(mechanism=GAUSS, clients_per_round=2), rounds=1)
    assert run.step().arrived == 2
    moved = run.state_dict()["clients"]["shift"]["x"].abs().sum(dim=1) > 0
    assert int(moved.sum()) == 2


# -- noise


def within(values, std, false_alarm=1e-6):
    """Whether values have the scale of N(0, std^2): an exact chi-square law."""
    n = values.numel()
    low, high = scipy.stats.chi2.ppf([false_alarm / 2, 1 - false_alarm / 2], df=n)
    return low < float(values.double().square().sum()) / std**2 < high


@pytest.mark.parametrize("wrong", [1.0, 0.94, 1.06])
@pytest.mark.parametrize("way", [lambda run: run, one_by_one], ids=["at once", "one by one"])
def test_the_sum_has_the_noise_of_all_messages_from_the_first_round_on(way, wrong):
    """Canary 8.3: one draw has the law of all of them; a scale that is 6 % off is seen."""
    run = way(simulation(silent(size=20_000), noise=1.5, rounds=3, loss_rate=0.4))
    for _ in range(3):
        made = run.step()
        assert within(made.total["x"], wrong * 3.0 * math.sqrt(made.arrived)) == (wrong == 1.0)


def test_nobody_sends_nothing_and_no_noise():
    run = simulation(silent(clients=1), rounds=30, loss_rate=0.9)
    rounds = [run.step() for _ in range(30)]
    assert {bool(one.total["x"].any()) for one in rounds if one.arrived == 0} == {False}
    assert {one.arrived for one in rounds} == {0, 1}


def test_a_trusted_servers_noise_does_not_tell_who_took_part():
    privacy = TrustedServer(mechanism=tacita.GaussianMechanism(noise_multiplier=2.0), sample_rate=0.3)
    run = simulation(silent(clients=3, size=20_000), privacy=privacy, rounds=6, book=ledger("zero_out_one"))
    rounds = [run.step() for _ in range(6)]
    assert all(within(one.total["x"], 2.0) for one in rounds)
    assert {one.arrived for one in rounds} == {None}


def test_noise_is_a_random_walk_in_the_model():
    """Oracle 5: variance 3283.5 after 100 rounds; 1 for Clip-SGD."""
    for algorithm, expected in ((clip21(0.5), 3283.50), (clip_sgd(), 1.0)):
        run = simulation(silent(), algorithm, noise=1.0, rounds=100)  # the noise of a message is 2
        run.run()
        assert within(run.params["x"], math.sqrt(expected))
    assert random_walk_variance(lr=0.1, noise_std=2.0, num_clients=4, steps=100) == pytest.approx(3283.5)


# -- accounting


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_a_client_is_charged_for_every_round(relation):
    """Spec 7.2: whatever the relation, and whether it is asked or not."""
    book = ledger(relation)
    privacy = LocalPrivacy(mechanism=tacita.GaussianMechanism(noise_multiplier=74.6126 / 2), clients_per_round=1)
    run = simulation(logistic(), privacy=privacy, book=book, rounds=100)
    assert book.epsilon(1e-5) == pytest.approx(1.0, rel=1e-5)
    assert run.noise_std == {"all": pytest.approx(74.6126)}


@pytest.mark.parametrize(("relation", "moved"), [("zero_out_one", 1), ("replace_one", 2)])
def test_a_trusted_server_has_clients_as_records(relation, moved):
    """Spec 7.3: C or 2 C over the noise of the sum; sampling amplifies."""
    books = [ledger(relation), ledger(relation)]
    for book, rate in zip(books, (1.0, 0.2), strict=True):
        run = simulation(logistic(), privacy=TrustedServer(mechanism=GAUSS, sample_rate=rate), book=book, rounds=16)
    whole, sampled = (book.epsilon(1e-5) for book in books)
    assert whole == pytest.approx(tacita.accounting.gaussian_epsilon(1.0, 1e-5))
    assert run.noise_std == {"all": 4.0 * moved}
    assert sampled < whole / 2


@pytest.mark.parametrize("privacy", [TrustedServer(mechanism=GAUSS), LocalPrivacy(mechanism=GAUSS)])
def test_a_number_of_clients_that_is_private_is_refused(privacy):
    """The server divides by the number of clients: the model's noise would tell it, whoever has added it."""
    with pytest.raises(tacita.UnsupportedEventError, match="the server divides by it"):
        simulation(logistic(), privacy=privacy, book=ledger("add_or_remove_one"))


def test_what_was_charged_for_cannot_be_changed():
    run = simulation(logistic())
    for name in ("algorithm", "privacy"):
        with pytest.raises(AttributeError):
            setattr(run, name, getattr(run, name))


def worlds_apart(privacy, absent):
    """How far one saturated client moves the noiseless sums of two worlds, in L2 over all rounds."""
    totals = []
    for data in (1e6, 0.0 if absent else -1e6):
        targets = torch.tensor([[data], [1.0], [-2.0]], dtype=torch.float64)
        run = simulation(QuadraticClients(targets), clip21(0.5), privacy=privacy, rounds=9, book=ledger())
        start = torch.tensor([0.0], dtype=torch.float64)  # the same broadcast in both worlds: it is conditioned on
        sent = []
        for query in range(9):
            asked = run._asked(query)
            messages, run._clients = run._messages(run.algorithm.start({"x": start}), asked, query)
            sent.append(messages["x"].sum(dim=0))
        totals.append(torch.stack(sent))
    return float((totals[0] - totals[1]).norm())


def test_one_client_moves_the_sums_by_its_charge():
    """Canary 8.1 for clients as records: exactly 2 C sqrt(T) if replaced, C sqrt(T) if absent."""
    privacy = TrustedServer(mechanism=tacita.GaussianMechanism(noise_multiplier=0.0))
    assert worlds_apart(privacy, absent=False) == pytest.approx(2 * 3)
    assert worlds_apart(privacy, absent=True) == pytest.approx(3)


def test_noise_is_calibrated_for_the_plan():
    target = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5)
    run = simulation(logistic(), privacy=LocalPrivacy(mechanism=target), rounds=1000)
    assert run.noise_std["all"] == pytest.approx(126.100, rel=1e-3)
    assert run.ledger.epsilon(1e-5) <= 2.0


def test_noise_is_calibrated_beside_what_is_registered_already():
    book, target = ledger(), tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5)
    simulation(logistic(), book=book, noise=40.0, rounds=100)
    run = simulation(logistic(), book=book, privacy=LocalPrivacy(mechanism=target), rounds=100)
    assert 1.99 < run.ledger.epsilon(1e-5) <= 2.0


OTHERS = [{"problem": logistic(**own)} for own in ({"clients": 6}, {"batch_size": 3}, {"regularisation": 0.1})]


@pytest.mark.parametrize("change", [*OTHERS, {"loss_rate": 0.5}, {"algorithm": clip21(lr=0.2)}])
def test_a_session_is_bound_to_its_settings(change):
    book = ledger()
    session = simulation(logistic(), book=book).session
    with pytest.raises((LedgerError, ResumeError), match=r"was registered (for another|with other)"):
        simulation(**{"problem": logistic(), "book": book, "session": session, **change})
    simulation(logistic(), book=book, session=session)


def test_every_parameter_of_a_client_has_noise_of_its_own():
    noise = RoundNoise(by_client=True)
    noise.prepare(Asked(None, torch.ones(2, dtype=torch.bool)))
    messages = {name: torch.zeros(2, 50, dtype=torch.float64) for name in ("weight", "bias")}
    found = noise({"all": messages}, {"all": 1.0}, Noise(lambda name: tacita.random.Key.insecure(0).stream(name)))
    assert not (found["all"]["weight"] == found["all"]["bias"]).any()


def test_a_clients_noise_follows_from_its_number_whoever_else_takes_part():
    """Of clients 1, 3 and 4 the message of 3 was lost: the others keep the streams of their numbers."""
    noise = RoundNoise(by_client=True)
    noise.prepare(Asked(torch.tensor([1, 3, 4]), torch.tensor([True, False, True])))
    stream = tacita.random.Key.insecure(0).stream
    noise({"all": {"x": torch.zeros(2, 5, dtype=torch.float64)}}, {"all": 2.0}, Noise(stream))
    for sent, client in zip(noise.sent["x"], (1, 4), strict=True):
        assert torch.equal(sent, 2.0 * stream(f"all/client-{client}").normals((5,), dtype=torch.float64))


def test_one_line_a_round_and_no_more_than_the_plan():
    run = simulation(logistic(), rounds=3)
    seen = []
    run.run(progress=seen.append)
    assert (run.session.queries_made, run.remaining_rounds, seen[-1]) == (3, 0, 1.0)
    with pytest.raises(BudgetExceededError):
        run.step()


# -- resume


def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path):
    """Rounds that were made since the checkpoint are redone under their numbers, at no charge."""
    whole = simulation(logistic(), rounds=8, loss_rate=0.2).run()["x"]
    path, key = tmp_path / "ledger.jsonl", tacita.Randomness.insecure(0)
    book = tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit="all data of one client")
    run = simulation(logistic(), rounds=8, loss_rate=0.2, book=book, randomness=key)
    run.run(3)
    run.save(tmp_path / "checkpoint")
    run.run(2)
    key.save(tmp_path / "key")
    book.close()
    again = tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit="all data of one client")
    resumed = simulation(
        logistic(), rounds=8, loss_rate=0.2, book=again, session=again.sessions[0],
        randomness=tacita.Randomness.load(tmp_path / "key"),
    )  # fmt: skip
    with pytest.raises(ResumeError, match="load its checkpoint"):
        resumed.step()
    resumed.load(tmp_path / "checkpoint")
    assert torch.equal(resumed.run()["x"], whole)
    assert again.sessions[0].queries_made == 8
    again.close()


def test_other_data_after_a_checkpoint_take_new_numbers():
    run = simulation(logistic(), rounds=6)
    run.run(1)
    state = run.state_dict()
    run.run(2)
    run.problem = logistic(seed=1)
    run.load_state_dict(state)
    assert run.step().query == 3
    with pytest.raises(ResumeError, match="session"):
        run.load_state_dict({**state, "session": "other-1"})


def test_a_stranger_sees_no_data():
    run = simulation(logistic())
    assert "tensor" not in repr(run)
    assert repr(run).startswith("Simulation(LogisticClients(num_clients=5, regularisation=0.0, batch_size=None")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rounds": 0}, "rounds must be"),
        ({"loss_rate": 1.0}, "loss_rate must be in"),
        ({"privacy": LocalPrivacy(mechanism=GAUSS, clients_per_round=6)}, "clients_per_round must be at most"),
        ({"params": {"y": torch.zeros(4)}}, "params must have the problem's"),
    ],
)
def test_settings_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        simulation(logistic(), **settings)
    with pytest.raises(ValueError, match="sample_rate must be in"):
        TrustedServer(mechanism=GAUSS, sample_rate=0.0)
