"""Two guarantees from one noise, in the words of the statement; the files of a run, checked like any other."""

import json
import math
import re

import numpy as np
import pytest
import scipy.stats
import torch

import tacita
from tacita.accounting import gaussian_epsilon
from tacita.correlated import CorrelatedGaussian
from tacita.federated import LocalPrivacy, QuadraticClients, RecordPrivacy, ReleasedShiftSGDM, TrustedServer
from tacita.federated import simulated_run as module
from tacita.federated.round_noise import LOUD, loudness
from tacita.federated.settings import SimulationSettings
from tacita.federated.simulated_run import run_simulation
from tacita.federated.views import models_epsilon, protected_from
from tests.federated.runs import UNIT, clip21, clip_sgd, ledger, logistic, simulation

FED_BACK = {
    "algorithm": ReleasedShiftSGDM(clipper=UNIT, lr=0.1, momentum_weight=0.5),
}
GAUSS = tacita.GaussianMechanism(noise_multiplier=4.0)


@pytest.mark.parametrize(("relation", "moved"), [("replace_one", 2), ("zero_out_one", 1)])
def test_the_models_alone_tell_less_than_the_messages(relation, moved):
    book = ledger(relation)
    run = simulation(logistic(clients=9), rounds=16, book=book)
    found = models_epsilon(run, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(moved * 4 / (8.0 * 3), 1e-5), rel=1e-6)  # C sqrt(T) / (s sqrt(n))
    assert found < book.epsilon(1e-5)
    asked = LocalPrivacy(mechanism=GAUSS, clients_per_round=4)
    fewer = simulation(logistic(clients=9), rounds=16, book=ledger(relation), privacy=asked)
    assert models_epsilon(fewer, 1e-5) == pytest.approx(gaussian_epsilon(moved * 4 / (8.0 * 2), 1e-5), rel=1e-6)


def test_two_worlds_of_models_reach_what_is_stated():
    """The sums of two saturated worlds are 2 C sqrt(T) apart, over a noise of s sqrt(n)."""
    sums = []
    for data in (1e6, -1e6):
        problem = QuadraticClients(torch.tensor([[data], [0.0], [0.0], [0.0]], dtype=torch.float64))
        still = clip21(1.0, lr=1e-12)  # the same broadcasts in both worlds: they are conditioned on
        run = simulation(problem, still, noise=0.0, rounds=9)
        sums.append([float(run.step().total["x"]) for _ in range(9)])
    apart = float(np.linalg.norm(np.subtract(*sums)))
    noisy = simulation(QuadraticClients(torch.zeros(4, 1, dtype=torch.float64)), clip21(1.0), noise=4.0, rounds=9)
    assert models_epsilon(noisy, 1e-5) == pytest.approx(gaussian_epsilon(apart / (8.0 * 2), 1e-5), rel=1e-6)
    assert apart == pytest.approx(2 * math.sqrt(9))


@pytest.mark.parametrize(
    "change",
    [
        {"loss_rate": 0.1},
        {"noise": 0.0},
        FED_BACK,
        {"privacy": TrustedServer(mechanism=GAUSS)},
    ],
)
def test_no_second_guarantee_where_none_is_proved(change):
    """A lost message takes its noise along."""
    run = simulation(logistic(), **change)
    assert models_epsilon(run, 1e-5) is None
    assert "released models alone" not in " ".join(protected_from(run, 1e-5))


def test_the_second_epsilon_is_rounded_up_in_words():
    """At each of several lengths: to the nearest, about half of them would be stated too small."""
    for rounds in range(3, 11):
        run = simulation(logistic(), rounds=rounds)
        (stated,) = re.findall(r"epsilon <= (\d+\.\d+) holds", " ".join(protected_from(run, 1e-5)))
        found = models_epsilon(run, 1e-5)
        assert found <= float(stated) < found * 1.001


STILL = QuadraticClients(torch.zeros(9, 100, dtype=torch.float64))  # whose gradients are 0


@pytest.mark.parametrize(
    ("privacy", "std"),
    [
        (LocalPrivacy(mechanism=GAUSS), 8 / 3),  # 2 C times 4 for each of 9 messages
        (LocalPrivacy(mechanism=GAUSS, clients_per_round=4), 8 / 2),
        (TrustedServer(mechanism=GAUSS), 8 / 9),
        (TrustedServer(mechanism=GAUSS, sample_rate=0.5), 8 / 4.5),
    ],
)
def test_a_round_is_as_loud_as_it_is_said_to_be(privacy, std):
    run = simulation(STILL, clip_sgd(lr=1e-9), privacy=privacy, rounds=50)
    words = " ".join(protected_from(run, 1e-5))
    said = re.search(
        r"its (\S+) messages .* deviation of (\S+) .* about (\S+)\. That is (\S+) .* be, (\S+)\. If", words
    )
    assert said is not None
    asked = privacy.expected_clients(9)
    assert [float(x) for x in said.groups()] == pytest.approx([asked, std, 10 * std, 10 * std, 1.0], rel=5e-3)
    means = torch.stack([run.step().total["x"] for _ in range(50)]) / asked
    ratio = float(means.square().sum()) / std**2
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], df=means.numel())
    assert low < ratio < high
    assert not low < 1.11**2 * ratio < high  # the test sees a scale that is 11 % wrong


def test_the_mean_of_clipped_messages_reaches_what_is_said():
    far = QuadraticClients(torch.full((9, 1), 1e6, dtype=torch.float64))
    run = simulation(far, clip_sgd(bound=0.25), noise=0.0, rounds=1)
    assert "0 times the most that the mean of clipped messages can be, 0.25." in " ".join(protected_from(run, 1e-5))
    assert float(run.step().total["x"].norm()) / 9 == pytest.approx(0.25)


def test_layers_add_up_to_one_loudness():
    words = loudness({"a": 3.0, "b": 1.0}, {"a": 0.3, "b": 0.4}, {"a": 1, "b": 7}, 4)
    assert "standard deviation of up to 1.5 in each coordinate and a norm of about 2. That is 4 times" in words


def test_nothing_is_said_of_noise_that_later_rounds_take_back():
    sampler = tacita.CyclicSampler(batches_per_cycle=3, num_records=9, assignment="coin")
    noise = CorrelatedGaussian(noise_multiplier=4.0, bands=2, power=0.5)
    run = simulation(STILL, clip_sgd(), privacy=TrustedServer(mechanism=noise, sampler=sampler))
    assert "How loud" not in " ".join(protected_from(run, 1e-5))


def test_words_say_who_is_trusted():
    local = " ".join(protected_from(simulation(logistic()), 1e-5))
    assert "against the server" in local
    assert "all data of a client is protected" in local
    assert "Nothing is stated for secure aggregation" in local
    record = RecordPrivacy(mechanism=GAUSS, sample_rate=0.5, max_sample_norm=1.0, divisor=6.0)
    assert "one record of a client is protected" in " ".join(
        protected_from(simulation(logistic(), privacy=record), 1e-5)
    )
    trusted = " ".join(protected_from(simulation(logistic(), privacy=TrustedServer(mechanism=GAUSS)), 1e-5))
    assert "nothing is guaranteed against it" in trusted
    assert "secure aggregation" not in trusted


# -- the files of a run


@pytest.fixture
def config(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    np.savez(tmp_path / "clients.npz", features=features, labels=features[:, 0] > 0, owners=rng.integers(0, 7, 60))
    return SimulationSettings(
        data=str(tmp_path / "clients.npz"), output=str(tmp_path / "run"), epsilon=8.0, delta=1e-5, trust="clients",
        max_grad_norm=0.1, lr=0.5, rounds=6, momentum_weight=0.5,
    )  # fmt: skip


def test_the_commands_check_a_federated_run(config, tmp_path, tacita_command):
    text = run_simulation(config)
    run = str(tmp_path / "run")
    again = tacita_command("statement", run)
    assert (again.code, again.out) == (0, text)
    shown = tacita_command("show", run)
    assert shown.code == 0
    assert "finished, verified" in shown.out
    assert "clip21-sgdm on logistic regression, 6 rounds" in shown.out
    assert "loudness" in shown.out
    assert f"{LOUD}{shown.out.split('loudness')[1].split(chr(10))[0].strip()}" in " ".join(text.split())
    assert "finished" in tacita_command("list", str(tmp_path)).out
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["files"].keys() == {"model.safetensors"}
    if pytest.importorskip("matplotlib"):
        page = tmp_path / "page.html"
        assert tacita_command("report", run, "--output", str(page)).code == 0
        assert "released models alone" in " ".join(page.read_text().split())
    (tmp_path / "run" / "model.safetensors").write_bytes(b"x")
    assert tacita_command("statement", run).code == 1


@pytest.mark.parametrize("where", ["publish", "tidied"])
def test_a_run_that_is_killed_at_its_end_is_finished_by_its_command(config, monkeypatch, where):
    whole = getattr(module, where)
    monkeypatch.setattr(module, where, lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_simulation(config)
    monkeypatch.setattr(module, where, whole)
    assert "epsilon <= 7.9" in run_simulation(config)
    with pytest.raises(tacita.errors.ResumeError):
        run_simulation(config)
