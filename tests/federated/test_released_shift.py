"""Feeding back what was released: client and server agree, noise is taken back, and the charge is the same."""

import math

import pytest
import torch

import tacita
from tacita.federated import Client, ReleasedDifference, ReleasedShiftSGDM, TrustedServer
from tacita.gradients.given import GivenSource
from tacita.testing.adversaries import FLIPS_STATE
from tacita.testing.audit import audit_oracle
from tests.federated.runs import UNIT, clip21, ledger, logistic, one_by_one, simulation
from tests.federated.test_simulation import silent
from tests.testing.linear import full, given

POINT = {"theta": torch.zeros(2, dtype=torch.float64)}


def released(beta=0.5, lr=0.1, bound=1.0):
    return ReleasedShiftSGDM(clipper=tacita.FlatClipper(max_grad_norm=bound), lr=lr, momentum_weight=beta)


def oracle_of(beta=0.5, *, noise=2.0, data=3.0, planned=20):
    return tacita.GradientOracle(
        GivenSource(torch.full((10, 2), data, dtype=torch.float64)),
        estimator=ReleasedDifference(clipper=UNIT, momentum_weight=beta, divisor=10.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise),
        sampler=tacita.FullBatchSampler(num_records=10),
        ledger=ledger(),
        planned_queries=planned,
        reservation=1,
    )


def test_a_client_moves_its_shift_by_what_it_sent():
    """The recursion by hand: the message before the noise follows from the noisy ones that went before."""
    oracle, v, g = oracle_of(), torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for _ in range(6):
        sent = oracle.query(POINT).gradient["theta"]
        v = 0.5 * v + 0.5 * 3.0
        u = (v - g) * min(1.0, 1 / float((v - g).norm()))
        g = g + sent
        assert torch.allclose(oracle.public_state["shift"]["theta"], g)
        assert float((sent - u).norm()) > 0
    assert set(oracle.public_state) == {"shift"}


def test_without_noise_it_is_clip21():
    ends = [
        one_by_one(simulation(logistic(), algorithm, noise=0.0, rounds=20)).run()["x"]
        for algorithm in (released(), clip21())
    ]
    assert torch.equal(*ends)


@pytest.mark.parametrize("loss_rate", [0.0, 0.3])
def test_the_servers_estimate_is_the_mean_of_the_shifts(loss_rate):
    """Noise, lost messages and clients that are not asked included."""
    run = simulation(logistic(), released(), rounds=10, loss_rate=loss_rate)
    run.run()
    shifts = run.state_dict()["clients"]["shift"]["x"]
    assert torch.allclose(run.server.estimate["x"], shifts.mean(dim=0), atol=1e-12)
    assert float(run.server.estimate["x"].norm()) > 1


def test_noise_is_taken_back():
    """Clients without any signal: the estimate's noise is that of one round, where Clip21's is a random walk."""
    run = simulation(silent(size=500), released(1.0, bound=1e4), noise=1e-4, rounds=30)
    run.run()
    noise = run.noise_std["all"]
    assert float(run.server.estimate["x"].std()) == pytest.approx(noise / 2, rel=0.15)
    walk = one_by_one(simulation(silent(size=500), clip21(1.0, bound=1e4), noise=1e-4, rounds=30))
    walk.run()
    assert float(walk.server.estimate["x"].std()) == pytest.approx(noise / 2 * math.sqrt(30), rel=0.15)


@pytest.mark.parametrize("relation", tacita.accounting.RELATIONS)
def test_it_is_charged_as_clip21(relation):
    estimator = ReleasedDifference(clipper=UNIT, momentum_weight=0.5, divisor=1.0)
    shapes = {"theta": torch.Size([1])}
    event = estimator.event(tacita.PoissonSampler(sample_rate=0.1, num_records=10), {"all": 4.0}, relation, shapes)
    assert event.guarantee(9).mu == pytest.approx(2 * 3 / 4.0)
    assert estimator.sensitivity(relation, shapes) == {"all": 2.0}


def test_an_audit_nearly_reaches_the_claim_and_refutes_that_of_one_threshold():
    make = given(full, noise_multiplier=2.0, queries=4,
                 estimator=lambda c: ReleasedDifference(clipper=c, momentum_weight=1.0, divisor=1.0))  # fmt: skip
    found = audit_oracle(make, relation="add_or_remove_one", adversaries=[FLIPS_STATE], delta=1e-2, runs=20_000, seed=1)
    assert found.verdict == "consistent"
    assert found.claim.epsilon == pytest.approx(tacita.accounting.gaussian_epsilon(1.0, 1e-2))
    assert found.strict.value > tacita.accounting.gaussian_epsilon(0.5, 1e-2)


def test_a_message_that_was_lost_is_taken_back():
    client = Client(oracle_of())
    first = client.answer(POINT, accepted=None)
    before = client.state_dict()["before"]
    again = client.answer(POINT, accepted=None)
    assert (first.number, again.number) == (0, 1)
    assert torch.equal(client.state_dict()["before"]["shift"]["theta"], before["shift"]["theta"])


def test_every_clients_own_noise_is_needed():
    with pytest.raises(ValueError, match="ReleasedShiftSGDM needs LocalPrivacy"):
        simulation(
            logistic(), released(), privacy=TrustedServer(mechanism=tacita.GaussianMechanism(noise_multiplier=4.0))
        )
    with pytest.raises(ValueError, match="weights must be None with ReleasedShiftSGDM"):
        simulation(logistic(), released(), weights=torch.ones(5), total_weight=5.0)
