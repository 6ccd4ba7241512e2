"""What a client does when its server, its transport or its disk goes wrong: nothing is lost, and its owner is told."""

import resource
from contextlib import contextmanager

import msgspec

from tacita.federated.wire import from_wire, to_wire
from tests.federated.federations import SETTINGS, clients_in, exchange, greeting
from tests.federated.test_federation import QUIET, missing


@contextmanager
def full_disk():
    """No file of this process can grow, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_a_message_and_no_more(tmp_path):
    server = QUIET.coordinator()
    with clients_in(tmp_path, QUIET) as residents:
        exchange(residents, server)
        broadcasts = server.broadcasts(residents)
        with full_disk():
            silent = residents[1].answer(broadcasts[1])
        replies = {number: residents[number].answer(broadcasts[number]) for number in (0, 2, 3)}
        assert silent == b""
        assert server.receive(replies).accepted == (0, 2, 3)
    with clients_in(tmp_path, QUIET) as residents:  # and after a new start
        assert exchange(residents, server).accepted == (0, 1, 2, 3)
        assert missing(server, residents) < 1e-4
        (session,) = residents[1].ledger.sessions
        assert session.queries_made <= session.queries_spent <= 3


def test_a_client_goes_on_when_its_disk_has_room_again(tmp_path):
    server = QUIET.coordinator()
    with clients_in(tmp_path, QUIET) as residents:
        broadcasts = server.broadcasts(residents)
        with full_disk():
            assert residents[1].answer(broadcasts[1]) == b""
        server.receive({number: residents[number].answer(broadcasts[number]) for number in (0, 2, 3)})
        assert exchange(residents, server).accepted == (0, 1, 2, 3)
        assert missing(server, residents) < 1e-4


def test_a_broadcast_of_a_round_that_is_over_does_not_set_the_client_back(tmp_path):
    """It comes late, or again: a client that believed it would refuse what the server has added up since."""
    server = QUIET.coordinator()
    with clients_in(tmp_path, QUIET) as residents:
        exchange(residents, server)
        late = server.broadcasts(residents)[1]
        server.receive({})  # nobody was reached in time
        now = server.broadcasts(residents)
        replies = {number: residents[number].answer(now[number]) for number in residents}
        assert residents[1].answer(late) == b""
        assert server.receive(replies).accepted == (0, 1, 2, 3)
    with clients_in(tmp_path, QUIET) as residents:  # it remembers the round
        assert residents[1].answer(late) == b""
        assert exchange(residents, server).accepted == (0, 1, 2, 3)
        assert missing(server, residents) < 1e-4


def test_a_client_without_a_memory_answers_a_server_that_begins_anew(tmp_path):
    settings = msgspec.structs.replace(SETTINGS, algorithm="clip-sgd", momentum_weight=None)
    with clients_in(tmp_path, settings, numbers=[1]) as residents:
        server = settings.coordinator()
        for _ in range(2):
            server.broadcasts([1])
            server.receive({})
        assert residents[1].answer(server.broadcasts([1])[1])
        assert residents[1].answer(settings.coordinator().broadcasts([1])[1])


def test_the_owner_is_told_once_of_another_federation(tmp_path):
    from tacita.federated.federation import joined
    from tests.federated.federations import rows_of

    told, others = [], [greeting("others 1"), greeting("others 2"), greeting("others 1")]
    with joined(SETTINGS, rows_of(1), number=1, folder=tmp_path / "1", tell=told.append) as resident:
        assert [resident.answer(to_wire(one)) for one in others] == [b""] * 3
        assert resident.answer(to_wire(greeting()))
        broadcast = from_wire(SETTINGS.coordinator().broadcasts([1])[1])
        assert resident.answer(to_wire(msgspec.structs.replace(broadcast, federation="others 1"))) == b""
        for number in range(100):  # a server that wants to fill the owner's screen
            resident.answer(to_wire(greeting(f"others {number}")))
            resident.answer(to_wire(greeting()))
        assert resident.ledger.sessions[0].queries_made == 0
    assert [words.split("'")[1] for words in told[:2]] == ["others 1", "others 2"]
    assert len(told) == 9
    assert sum("has asked which client this is. If no round follows" in words for words in told) == 1
