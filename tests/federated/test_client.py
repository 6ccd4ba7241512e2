"""A client in two phases: what it sends, what it keeps when a message is lost, what a restart costs."""

import pytest
import torch

import tacita
from tacita.federated import Client, ClippedDifference, ClippedMean
from tacita.gradients.given import GivenSource
from tests.federated.runs import UNIT

UNIT_OF = "all data of one client"
POINT = {"theta": torch.zeros(2)}


def estimator(**change):
    return ClippedDifference(**{"clipper": UNIT, "momentum_weight": 0.5, "divisor": 10.0, **change})


def oracle_of(book=None, *, data=3.0, noise=0.0, using=None, planned=20, randomness=None, session=None):
    return tacita.GradientOracle(
        GivenSource(torch.full((10, 2), data, dtype=torch.float64)),
        estimator=using or estimator(),
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise),
        sampler=tacita.FullBatchSampler(num_records=10),
        ledger=book or tacita.Ledger(neighboring_relation="replace_one", privacy_unit=UNIT_OF),
        planned_queries=planned,
        reservation=1,
        randomness=randomness,
        session=session,
    )


def definition(accepted_of):
    """The messages of the algorithm by hand, if the server accepts those that ``accepted_of`` says."""
    v = g = torch.zeros(2, dtype=torch.float64)
    sent = []
    for t in range(8):
        after = 0.5 * v + 0.5 * torch.full((2,), 3.0, dtype=torch.float64)
        u = after - g
        u = u / max(1.0, float(u.norm()))
        sent.append(u)
        if accepted_of(t):
            v, g = after, g + u
    return torch.stack(sent)


@pytest.mark.parametrize("accepted_of", [lambda t: True, lambda t: False, lambda t: t not in (2, 3, 6)])
def test_the_state_moves_when_the_server_has_acknowledged(accepted_of):
    client, accepted, sent = Client(oracle_of()), None, []
    for t in range(8):
        message = client.answer(POINT, accepted=accepted)
        sent.append(message.values["theta"])
        accepted = message.number if accepted_of(t) else accepted
    assert torch.allclose(torch.stack(sent), definition(accepted_of), rtol=1e-12)
    assert client.remaining_queries == 12  # a message that is sent again is a query of its own


def test_a_message_that_is_sent_again_has_new_noise():
    client = Client(oracle_of(noise=2.0))
    first, second = (client.answer(POINT, accepted=None) for _ in range(2))
    assert (first.number, second.number) == (0, 1)
    assert not torch.equal(first.values["theta"], second.values["theta"])
    assert first.noise_std == {"all": 4.0}


@pytest.mark.parametrize("accepted", [1, 5, -2, True, "0"])
def test_a_number_that_was_not_sent_is_refused(accepted):
    client = Client(oracle_of())
    client.answer(POINT, accepted=None)
    with pytest.raises(ValueError, match="accepted must be the number of the last message"):
        client.answer(POINT, accepted=accepted)


@pytest.mark.parametrize("accepted", [None, 0, True, 3])
def test_a_server_that_has_forgotten_what_it_accepted_is_not_answered(accepted):
    """Nothing but the last message and the one accepted before it: True is not the number 1."""
    client, last = Client(oracle_of()), None
    for _ in range(3):
        last = client.answer(POINT, accepted=last).number
    with pytest.raises(ValueError, match="accepted must be the number of the last message"):
        client.answer(POINT, accepted=accepted)
    assert client.answer(POINT, accepted=1).number == 3


def test_restarts_cost_the_messages_that_were_made(tmp_path):
    """A process for each round: the ledger charges as many releases as there were, and the messages are the same."""
    path, kept, sent, accepted = tmp_path / "ledger.jsonl", None, [], None
    key = tacita.Randomness.system()
    for t in range(5):
        book = tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit=UNIT_OF)
        session = book.sessions[0] if book.sessions else None
        client = Client(oracle_of(book, noise=2.0, randomness=key, session=session, planned=1024))
        if kept is not None:
            client.load_state_dict(kept)
        message = client.answer(POINT, accepted=accepted)
        kept, accepted = client.state_dict(), message.number if t != 1 else accepted
        sent.append(message.number)
        assert book.epsilon_spent(1e-5) == pytest.approx(tacita.accounting.gaussian_epsilon((t + 1) ** 0.5 / 2, 1e-5))
        client.close()
        key.save(tmp_path / "key")
        key = tacita.Randomness.load(tmp_path / "key")
    assert sent == [0, 1, 2, 3, 4]


def test_unused_reservations_are_given_back_at_a_clean_close(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book = tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit=UNIT_OF)
    client = Client(oracle_of(book, noise=2.0, planned=1024))
    client.answer(POINT, accepted=None)
    client.close()
    again = tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit=UNIT_OF)
    assert again.epsilon_spent(1e-5) == pytest.approx(tacita.accounting.gaussian_epsilon(0.5, 1e-5))
    again.close()


def test_what_cannot_go_back_is_refused():
    with pytest.raises(ValueError, match="sample_clipper must be None"):
        Client(oracle_of(using=estimator(sample_clipper=UNIT)))
    with pytest.raises(TypeError, match="oracle must have a ClippedDifference"):
        Client(oracle_of(using=tacita.ClippedSum(UNIT)))
    client = Client(oracle_of(using=ClippedMean(clipper=UNIT, divisor=10.0)))
    assert [client.answer(POINT, accepted=None).number for _ in range(2)] == [0, 1]


def test_a_stranger_sees_no_data():
    client = Client(oracle_of())
    client.answer(POINT, accepted=None)
    assert repr(client) == "Client(sent=0, remaining_queries=19)"
