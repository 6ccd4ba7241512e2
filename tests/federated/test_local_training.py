"""A client of federated averaging as an oracle: its update, what it protects, and what is refused."""

import numpy as np
import pytest
import torch

import tacita
from tacita.federated import Client, ClippedDifference, ClippedMean, FederatedAveraging, LocalTraining
from tacita.federated.guarded_source import GuardedSource
from tacita.gradients import NetworkSource
from tacita.gradients.given import GivenSource
from tests.federated.runs import UNIT, ledger

AVERAGING = FederatedAveraging(clipper=UNIT, lr=1.0, local_steps=3, local_lr=0.1)
WIDE = FederatedAveraging(clipper=tacita.FlatClipper(max_grad_norm=1e6), lr=1.0, local_steps=3, local_lr=0.1)


def network_source():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(6, 3, generator=generator, dtype=torch.float64), torch.arange(6) % 2

    def losses(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return model, data, losses, NetworkSource(model, losses, data)


def oracle_of(source, estimator, book=None, *, noise=0.0, planned=5, rows=6):
    return tacita.GradientOracle(
        source,
        estimator=estimator,
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise),
        sampler=tacita.FullBatchSampler(num_records=rows),
        ledger=book or ledger(),
        planned_queries=planned,
        reservation=1,
    )


def test_a_client_sends_the_change_of_its_model():
    """Three steps of ordinary PyTorch on the same rows; the model itself is left alone."""
    model, data, losses, source = network_source()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    client = Client(oracle_of(WIDE.client_source(source, 6.0), WIDE.estimator(6.0)))
    sent = client.answer(before, accepted=None).values
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses(model, data).mean().backward()
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.allclose(sent[name], before[name] - p.detach(), atol=1e-12)


def test_the_simulation_sends_the_same():
    source = GivenSource(torch.full((10, 2), 3.0, dtype=torch.float64))
    point = {"theta": torch.zeros(2, dtype=torch.float64)}
    oracle = oracle_of(AVERAGING.client_source(source, 10.0), AVERAGING.estimator(10.0), rows=10)
    sent = oracle.query(point).gradient["theta"]
    shapes = {"theta": torch.Size([2])}
    alone, _ = AVERAGING.message({}, point, lambda params: {"theta": torch.full((2,), 3.0).double()}, shapes)
    assert torch.allclose(sent, alone["theta"])
    assert float(sent.norm()) == pytest.approx(0.9 * 2**0.5 if 0.9 * 2**0.5 < 1 else 1.0)


@pytest.mark.parametrize("relation", tacita.accounting.RELATIONS)
def test_two_data_sets_are_two_thresholds_apart_in_every_message(relation):
    """The saturated pair reaches the charge, 2 C sqrt(T): C alone would be a false claim."""
    worlds = []
    for sign in (1.0, -1.0):
        source = GivenSource(torch.full((6, 1), sign * 1e6, dtype=torch.float64))
        oracle = oracle_of(AVERAGING.client_source(source, 6.0), AVERAGING.estimator(6.0), ledger(relation), planned=4)
        point = {"theta": torch.zeros(1, dtype=torch.float64)}
        worlds.append(torch.cat([oracle.query(point).gradient["theta"] for _ in range(4)]))
    apart = float((worlds[0] - worlds[1]).norm())
    event = AVERAGING.estimator(6.0).event(
        tacita.FullBatchSampler(num_records=6), {"all": 8.0}, relation, {"theta": torch.Size([1])}
    )
    assert event.guarantee(4).mu == pytest.approx(apart / 8.0)
    assert apart == pytest.approx(2 * 4**0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_hostile_rows_leave_a_bounded_message(value):
    source = GivenSource(torch.tensor([[value], [1.0]], dtype=torch.float64))
    oracle = oracle_of(AVERAGING.client_source(source, 2.0), AVERAGING.estimator(2.0), rows=2)
    sent = oracle.query({"theta": torch.zeros(1, dtype=torch.float64)}).gradient["theta"]
    assert sent.isfinite().all()
    assert float(sent.abs()) <= 1.0


def test_the_number_of_rows_is_not_public():
    """Five rows where six are declared: the oracle is built, and answers."""
    source = GivenSource(torch.ones(5, 1, dtype=torch.float64))
    oracle = oracle_of(AVERAGING.client_source(source, 6.0), AVERAGING.estimator(6.0), rows=6)
    assert oracle.query({"theta": torch.zeros(1, dtype=torch.float64)}).gradient["theta"].isfinite().all()


@pytest.mark.parametrize(
    "estimator",
    [tacita.ClippedSum(UNIT), ClippedDifference(clipper=UNIT, momentum_weight=0.5, divisor=1.0, sample_clipper=UNIT)],
)
def test_an_estimator_of_records_is_refused(estimator):
    """Its one row is a function of all records, which a sum over records would count as one."""
    source = LocalTraining(GivenSource(torch.ones(6, 1)), local_steps=2, local_lr=0.1, divisor=6.0)
    with pytest.raises(ValueError, match="estimator must cover any change of the data with LocalTraining"):
        oracle_of(source, estimator)
    oracle_of(source, ClippedMean(clipper=UNIT, divisor=1.0))


def test_a_client_that_trains_locally_shows_the_dtypes_of_its_model():
    """A broadcast is float64, which a model of float32 takes only if it is converted: else the client sends zeros."""
    model = torch.nn.Linear(3, 1)
    source = NetworkSource(model, lambda m, batch: m(batch[0]).squeeze(1), (torch.ones(6, 3),))
    guarded = GuardedSource(AVERAGING.client_source(source, 6.0), lambda error: None)
    assert guarded.model is model


def test_a_guard_does_not_hide_that_rows_mix_records():
    source = LocalTraining(GivenSource(torch.ones(6, 1)), local_steps=2, local_lr=0.1, divisor=6.0)
    guarded = GuardedSource(source, lambda error: None)
    with pytest.raises(ValueError, match="estimator must cover any change of the data"):
        oracle_of(guarded, tacita.ClippedSum(UNIT))
    oracle_of(guarded, ClippedMean(clipper=UNIT, divisor=1.0))


def test_a_session_is_bound_to_the_local_steps():
    book, source = ledger(), GivenSource(torch.ones(6, 1))
    made = oracle_of(AVERAGING.client_source(source, 6.0), AVERAGING.estimator(6.0), book)
    with pytest.raises(tacita.ResumeError, match="registered with other settings"):
        tacita.GradientOracle(
            LocalTraining(source, local_steps=9, local_lr=0.1, divisor=6.0),
            estimator=AVERAGING.estimator(6.0),
            mechanism=made.mechanism,
            sampler=made.sampler,
            ledger=book,
            planned_queries=5,
            session=made.session,
        )


@pytest.mark.parametrize("method", ["loop", "program"])
def test_a_clients_source_has_the_conditions_of_its_records_source(method):
    """The code of the loop meets records in a federation, too, and the statement has to say so."""
    model, data, losses, _ = network_source()
    source = NetworkSource(model, losses, data, method=method)
    guarded = GuardedSource(AVERAGING.client_source(source, 6.0), lambda error: None)
    assert guarded.conditions == source.conditions
    oracle = oracle_of(guarded, ClippedMean(clipper=UNIT, divisor=1.0))
    assert any("keeps nothing of a record" in words for words in oracle.ledger.conditions) == (method == "loop")


def test_a_client_traces_anew_when_it_is_asked_to():
    model, *_, source = network_source()
    guarded = GuardedSource(AVERAGING.client_source(source, 6.0), lambda error: None)
    source._choice.programs.program(dict(model.named_parameters()))
    assert source._choice.programs._programs
    guarded.retrace()
    assert not source._choice.programs._programs
