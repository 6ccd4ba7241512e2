"""Quantile clipping: where the threshold goes, how far a client moves a message, and what a session costs."""

import math
from dataclasses import replace

import pytest
import torch

import tacita
from tacita.adaptive_clipping import FARTHEST
from tacita.federated import FederatedAveraging, QuadraticClients, QuantileAveraging, TrustedServer
from tacita.federated.quantile_averaging import THRESHOLD, UNCLIPPED
from tests.federated.runs import ledger, logistic, simulation

QUANTILE = QuantileAveraging(
    threshold=0.1, quantile=0.5, threshold_lr=0.2, count_share=0.1, lr=1.0, local_steps=2, local_lr=0.1
)
SHAPES = {"x": torch.Size([1])}
NOISELESS = TrustedServer(mechanism=tacita.GaussianMechanism(noise_multiplier=0.0))


def sent(gradient, threshold=0.1, algorithm=QUANTILE):
    at = {"x": torch.zeros(1, dtype=torch.float64), THRESHOLD: torch.tensor(threshold, dtype=torch.float64)}
    given = {"x": torch.tensor([gradient], dtype=torch.float64)}
    message, state = algorithm.message({}, at, lambda params: given, SHAPES)
    assert state == {}
    return torch.cat([message["x"], message[UNCLIPPED]])


def test_a_message_is_the_scaled_update_and_a_count():
    k = QUANTILE.unit
    assert sent(0.25).tolist() == pytest.approx([0.05 / 0.1, k / 2])
    assert sent(5.0).tolist() == pytest.approx([1.0, -k / 2])
    assert k**2 / 4 / (1 + k**2 / 4) == pytest.approx(0.1)


@pytest.mark.parametrize("gradient", [0.0, 1.0, -1e300, math.inf, -math.inf, math.nan, 1e-300])
@pytest.mark.parametrize("threshold", [0.1, 1e-300, 1e300])
def test_no_client_leaves_the_ball(gradient, threshold):
    found = sent(gradient, threshold)
    assert found.isfinite().all()
    assert float(found.norm()) <= QUANTILE.clipper.max_grad_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_message_leaves_the_ball_by_rounding(dtype):
    shapes = {"x": torch.Size([7])}
    given = {"x": 10 * torch.randn(5000, 7, generator=torch.Generator().manual_seed(0)).to(dtype)}
    at = {"x": torch.zeros(7, dtype=dtype), THRESHOLD: torch.tensor(0.1, dtype=dtype)}
    message, _ = QUANTILE.message({}, at, lambda params: given, shapes)
    norms = torch.cat([message["x"], message[UNCLIPPED]], dim=1).double().norm(dim=1)
    assert float(norms.max()) <= QUANTILE.clipper.max_grad_norm
    assert float(norms.min()) > 0.999 * QUANTILE.clipper.max_grad_norm


def test_a_count_that_is_nearly_all_leaves_the_ball_by_no_rounding():
    """The count's own rounding to float32 is larger than the room that the clipped update leaves."""
    given, shapes = {"x": torch.full((1, 3), 10.0)}, {"x": torch.Size([3])}
    at = {"x": torch.zeros(3), THRESHOLD: torch.tensor(0.1)}
    for share in (0.99 + 0.0005 * i for i in range(20)):
        algorithm = replace(QUANTILE, count_share=share)
        message, _ = algorithm.message({}, at, lambda params: given, shapes)
        norm = torch.cat([message["x"], message[UNCLIPPED]], dim=1).double().norm()
        assert 0.999 * algorithm.clipper.max_grad_norm < float(norm) <= algorithm.clipper.max_grad_norm


def test_the_threshold_goes_to_the_quantile():
    """Five clients whose updates have lengths 1 to 5 at any point: the median is 3, and the 0.9 quantile is above 4."""
    targets = torch.arange(1.0, 6.0, dtype=torch.float64).unsqueeze(1) * 1e6  # far away, so that gradients stay put
    problem = QuadraticClients(targets, smoothness=1e-6)
    for quantile, low, high in ((0.5, 2.7, 3.3), (0.9, 4.7, 5.4)):
        algorithm = replace(QUANTILE, quantile=quantile, local_steps=1, local_lr=1.0, threshold_lr=0.05)
        run = simulation(problem, algorithm, privacy=NOISELESS, rounds=300)
        run.run()
        assert low < float(run.server.memory[THRESHOLD]["C"]) < high


@pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])
def test_a_session_is_one_query_of_the_joint_bound(relation):
    """The noises of update and count, each over its own bound, add up to 1/z^2: equation (1) of the source."""
    book, z, rounds = ledger(relation), 3.0, 16
    privacy = TrustedServer(mechanism=tacita.GaussianMechanism(noise_multiplier=z))
    run = simulation(logistic(), QUANTILE, privacy=privacy, rounds=rounds, book=book)
    moved = 2 if relation == "replace_one" else 1
    noise = run.noise_std["all"]
    update, count = noise, noise / QUANTILE.unit  # in units of the threshold, and of one client
    assert 1 / z**2 == pytest.approx((moved * 1 / update) ** 2 + (moved * 0.5 / count) ** 2)
    assert book.epsilon(1e-5) == pytest.approx(tacita.accounting.gaussian_epsilon(math.sqrt(rounds) / z, 1e-5))


def test_the_noise_of_both_parts_is_the_stated_one():
    silent = QuadraticClients(torch.zeros(3, 2000, dtype=torch.float64))
    privacy = TrustedServer(mechanism=tacita.GaussianMechanism(noise_multiplier=2.0), sample_rate=0.5)
    run = simulation(silent, QUANTILE, privacy=privacy, rounds=400, book=ledger("zero_out_one"))
    made = [run.step() for _ in range(400)]
    stated = 2.0 * QUANTILE.clipper.max_grad_norm
    assert float(made[0].total["x"].std()) == pytest.approx(stated, rel=0.06)
    counts = torch.cat([one.total[UNCLIPPED] for one in made])
    spread = math.sqrt(stated**2 + 3 * 0.25 * (QUANTILE.unit / 2) ** 2)  # of the noise, and of who takes part
    assert float(counts.std()) == pytest.approx(spread, rel=0.15)


def test_one_round_moves_the_threshold_by_a_public_factor():
    server = QUANTILE.broadcast(QUANTILE.start({"x": torch.zeros(1, dtype=torch.float64)}))
    for count, factor in ((1e9, math.exp(-0.1)), (-1e9, math.exp(0.1)), (0.0, 1.0)):
        mean = {"x": torch.zeros(1), UNCLIPPED: torch.tensor([count], dtype=torch.float64)}
        moved = QUANTILE.receive(server, mean)
        assert float(moved.memory[THRESHOLD]["C"]) == pytest.approx(0.1 * factor)
        assert set(moved.params) == {"x"}
    steep = replace(QUANTILE, threshold_lr=1e3)
    state = steep.broadcast(steep.start({"x": torch.zeros(1)}))
    mean = {"x": torch.zeros(1), UNCLIPPED: torch.tensor([1e9])}
    assert float(steep.receive(state, mean).memory[THRESHOLD]["C"]) == pytest.approx(0.1 / FARTHEST)


def test_a_wide_threshold_is_federated_averaging():
    wide = replace(QUANTILE, threshold=1e3, threshold_lr=1e-9)
    plain = FederatedAveraging(clipper=tacita.FlatClipper(max_grad_norm=1e3), lr=1.0, local_steps=2, local_lr=0.1)
    ends = [
        simulation(logistic(), algorithm, privacy=NOISELESS, rounds=5).run()["x"].tolist()
        for algorithm in (wide, plain)
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_a_run_is_resumed_with_its_threshold(tmp_path):
    key = tacita.Randomness.insecure(0)
    run = simulation(logistic(), QUANTILE, rounds=6, randomness=key)
    run.run(3)
    run.save(tmp_path / "checkpoint")
    run.run()
    ends = dict(run.params), float(run.server.memory[THRESHOLD]["C"])
    run.load(tmp_path / "checkpoint")
    assert run.remaining_rounds == 3
    again = dict(run.run()), float(run.server.memory[THRESHOLD]["C"])
    assert ends[1] == again[1]
    assert torch.equal(ends[0]["x"], again[0]["x"])


def test_settings_are_refused():
    for change in (
        {"quantile": 1.0},
        {"count_share": 0.0},
        {"threshold": 0.0},
        {"threshold": 1e-200},
        {"local_steps": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(QUANTILE, **change)
    with pytest.raises(TypeError, match="simulate it"):
        QUANTILE.estimator(1.0)
