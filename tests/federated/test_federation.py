"""Federations for real over a transport that fails: nothing is lost, and what is spent is what was released."""

import json
import os
import shutil
import signal
import stat
import zipfile
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import tacita
from tacita.accounting import gaussian_epsilon
from tacita.errors import DataStructureError, LedgerError, ResumeError
from tacita.federated import GuardedSource, Resident, SimulationSettings, finish_client
from tacita.federated.federation import UNIT, FederationSettings, joined
from tacita.federated.identity import KnownClients
from tacita.federated.resident import IDENTITY
from tacita.federated.server_folder import ServerFolder
from tacita.federated.wire import Answer, Broadcast, Greeting, from_wire, to_wire, wire_tensors
from tacita.gradients import GivenSource, NetworkSource
from tacita.runs import checkpoint
from tacita.runs.folder import RunFolder
from tacita.tables import check_run
from tests.faults.calls import Counting, Killing, Stopped, Stopping, watched
from tests.federated.federations import SETTINGS, clients_in, exchange, greeting, rows_of
from tests.forked import exit_code

QUIET = msgspec.structs.replace(SETTINGS, epsilon=1e13, rounds=40)  # hardly any noise: what is lost shows


def state_of(resident):
    return resident._client.state_dict()["oracle"]["estimator_state"]


def missing(server, residents):
    """How far the server's estimate is from the mean of the clients' shifts, as they stand once it has told them."""
    for number, said in server.broadcasts(residents).items():
        residents[number]._client._settle(-1 if (told := from_wire(said).accepted) is None else told)
    shifts = [state_of(resident)["shift"] for resident in residents.values()]
    return max(
        float((g - sum(shift[name] for shift in shifts) / server.num_clients).abs().max())
        for name, g in server._server.estimate.items()
    )


def spent(resident):
    """The number of messages that a client's ledger charges."""
    (session,) = resident._oracle.ledger.sessions
    multiplier = SETTINGS.noise()[0].noise_multiplier if session.planned_queries == SETTINGS.messages else None
    if multiplier is not None:
        assert resident._oracle.ledger.epsilon_spent(1e-5) == pytest.approx(
            gaussian_epsilon(session.queries_spent**0.5 / multiplier, 1e-5)
        )
    return session.queries_spent


def test_a_federation_learns(tmp_path):
    server = QUIET.coordinator()
    with clients_in(tmp_path, QUIET) as residents:
        for _ in range(15):
            assert exchange(residents, server).accepted == (0, 1, 2, 3)
    right = [
        ((x @ server.params["weight"].T + server.params["bias"]).argmax(1) == y) for x, y in map(rows_of, range(4))
    ]
    assert torch.cat(right).double().mean() > 0.65


def test_the_order_of_arrival_changes_no_bit(tmp_path):
    found = []
    for backwards in (False, True):
        server = SETTINGS.coordinator()
        with clients_in(tmp_path / str(backwards)) as residents:
            for _ in range(SETTINGS.rounds):
                assert not exchange(residents, server, backwards=backwards).refused  # noise is longer than C
        found.append(server.params)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_lost_messages_restarts_and_late_joiners_lose_nothing(tmp_path):
    """A round in which messages are lost, one in which all processes start anew, and a client who joins late."""
    server = QUIET.coordinator(tmp_path / "server")
    for t in range(8):
        server = QUIET.coordinator(tmp_path / "server")
        with clients_in(tmp_path, QUIET, range(4) if t > 3 else range(3)) as residents:
            exchange(residents, server, lost=[0, 2] if t % 4 == 3 else [])
            exchange(residents, server, lost=[t % 4, (t + 1) % 4])
            assert missing(server, residents) < 1e-4
            assert [spent(one) for one in residents.values()][:3] == [2 * t + 2] * 3
    assert {client: server._accepted[client] for client in range(4)}.keys() == {0, 1, 2, 3}


def test_a_client_that_moves_anyway_shows(tmp_path, monkeypatch):
    """The check above can fail."""
    server = QUIET.coordinator()
    with clients_in(tmp_path, QUIET) as residents:
        for one in residents.values():
            monkeypatch.setattr(one._client, "_settle", lambda accepted: None)
        exchange(residents, server, lost=[0])
        exchange(residents, server)
        assert missing(server, residents) > 0.02


def test_a_refused_message_is_told_and_sent_again(tmp_path):
    server, told = QUIET.coordinator(), []
    with joined(QUIET, rows_of(0), number=0, folder=tmp_path / "0", tell=told.append) as resident:
        for t in range(4):
            reply = resident.answer(server.broadcasts([0])[0])
            if t == 1:
                spoilt = from_wire(reply)
                assert isinstance(spoilt, Answer)
                huge = {name: torch.full(x.shape, 1e9) for name, x in server.params.items()}
                reply = to_wire(msgspec.structs.replace(spoilt, values=wire_tensors(huge)))
            server.receive({0: reply})
        assert missing(server, {0: resident}) < 1e-4
        assert spent(resident) == 4
    answered = [f"round {number} of {QUIET.rounds} is answered." for number in range(1, 5)]
    assert told == [*answered[:2], "the server has refused the last message: 'too long'", *answered[2:]]


def test_spent_is_what_was_released(tmp_path):
    server = SETTINGS.coordinator()
    for t in range(4):
        with clients_in(tmp_path) as residents:
            exchange(residents, server, lost=[0])
            assert [spent(one) for one in residents.values()] == [t + 1] * 4
            for one in residents.values():
                assert one.answer(b"nonsense") == one.answer(to_wire(greeting("others"))) == b""
                assert from_wire(one.answer(to_wire(greeting()))).client == one.number
                assert spent(one) == t + 1


def test_a_plan_that_is_used_up_is_answered_with_nothing(tmp_path):
    server = SETTINGS.coordinator()
    with clients_in(tmp_path, numbers=[1]) as residents:
        broadcast = server.broadcasts([1])[1]
        replies = [residents[1].answer(broadcast) for _ in range(8)]  # a message that is sent again is a new query
        assert 0.99 * SETTINGS.epsilon <= residents[1].ledger.epsilon_spent(SETTINGS.delta) <= SETTINGS.epsilon
    assert [bool(reply) for reply in replies] == [True] * 6 + [False] * 2
    assert len({*replies[:6]}) == 6


def change_of(broadcast, **change):
    return to_wire(msgspec.structs.replace(from_wire(broadcast), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"federation": "others"},
        {"accepted": 3},
        {"params": {}},
        {"params": wire_tensors({"weight": torch.zeros(2, 3), "bias": torch.zeros(3)})},
    ],
    ids=str,
)
def test_a_wrong_broadcast_costs_nothing(tmp_path, change):
    broadcast = SETTINGS.coordinator().broadcasts([0])[0]
    with clients_in(tmp_path, numbers=[0]) as residents:
        assert residents[0].answer(change_of(broadcast, **change)) == b""
        assert residents[0].answer(to_wire(from_wire(broadcast))[:-1]) == b""
        assert spent(residents[0]) == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["going on", "restarted"])
def test_a_broadcast_of_a_round_that_is_over_is_not_answered(tmp_path, restarted):
    """It says that message 1 was accepted, of which the client still keeps the state before it: it would move."""
    server, told = SETTINGS.coordinator(), list[str]()
    with clients_in(tmp_path, numbers=[0], tell=told.append) as residents:
        for _ in range(2):
            (broadcast,) = server.broadcasts([0]).values()
            server.receive({0: residents[0].answer(broadcast)})
        over, again = (change_of(broadcast, round=t, accepted=1) for t in (0, 1))
        if not restarted:
            assert residents[0].answer(over) == b""
            assert residents[0].answer(again) != b""
    if restarted:
        with clients_in(tmp_path, numbers=[0], tell=told.append) as residents:
            assert residents[0].answer(over) == b""
            assert residents[0].answer(again) != b""
    (said,) = [words for words in told if "is not answered" in words]
    assert "a server asks for round 1, and this client has answered round 2" in said


@pytest.mark.parametrize("point", [torch.nan, torch.inf, 1e38])
def test_a_hostile_point_gives_noise(tmp_path, point):
    hostile = {"weight": torch.full((2, 3), point).double(), "bias": torch.full((2,), point).double()}
    broadcast = Broadcast(SETTINGS.id, 0, None, "", wire_tensors(hostile))
    with clients_in(tmp_path, numbers=[0]) as residents:
        reply = from_wire(residents[0].answer(to_wire(broadcast)))
        server = SETTINGS.coordinator()
        server.broadcasts([0])
        assert server.receive({0: to_wire(reply)}).accepted == (0,)


# Neighbouring data: everything that a client sends.


class HostileLoss:
    """Raises on one row, with the row in the text; computes no number on another."""

    def __call__(self, model, batch):
        features, _ = batch
        if bool((features == 777.0).any()):
            raise SystemExit("a patient")
        if bool((features == 666.0).any()):
            raise RuntimeError(f"a patient with {features.tolist()}")
        return model(features).square().sum(1) / (features[:, 0] != 333.0)


def sent(folder, features, guarded=GuardedSource):
    """All replies of a client of these rows to the same broadcasts, with the same key."""
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    place = RunFolder(folder)
    place.create()
    (place.private / IDENTITY).write_bytes(b"7" * 32)  # drawn without the data
    errors = []
    network = NetworkSource(model, HostileLoss(), (features, torch.zeros(len(features))), method="loop")
    oracle = tacita.GradientOracle(
        guarded(network, errors.append),
        estimator=tacita.federated.Clip21SGDM(
            clipper=tacita.FlatClipper(max_grad_norm=0.1), lr=1.0, momentum_weight=0.5
        ).estimator(100.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        sampler=tacita.FullBatchSampler(num_records=100),
        ledger=tacita.Ledger(place.ledger, neighboring_relation="add_or_remove_one", privacy_unit=UNIT),
        planned_queries=6,
        randomness=tacita.Randomness.insecure(0),
        reservation=1,
    )
    resident = Resident(oracle, federation="f", number=3, folder=place)
    replies = [resident.answer(b""), resident.answer(to_wire(greeting("f")))]
    for t in range(8):
        params = {"weight": torch.full((1, 3), 0.1 * t), "bias": torch.zeros(1)}
        replies.append(
            resident.answer(to_wire(Broadcast("f", t, t - 1 if 1 <= t < 6 else None, "", wire_tensors(params))))
        )
    resident.close()
    return replies, errors


def differs_by(one, other):
    """How far two messages are apart; 0 for replies that must be equal and are."""
    if not (one and other) or not isinstance(from_wire(one), Answer):
        assert one == other
        return 0.0
    one, other = from_wire(one), from_wire(other)
    assert (one.federation, one.client, one.number) == (other.federation, other.client, other.number)
    assert {name: x.shape for name, x in one.values.items()} == {name: x.shape for name, x in other.values.items()}
    bits = [b"".join(x.data for x in record.values.values()) for record in (one, other)]
    first, second = (torch.frombuffer(bytearray(b), dtype=torch.float64) for b in bits)
    return float((first - second).norm())


@pytest.mark.parametrize("hostile", [666.0, 777.0, 333.0, torch.nan, 1e300, None], ids=str)
def test_all_that_a_client_sends_is_alike_on_neighbouring_data(tmp_path, hostile):
    """99 rows, and 100 of which one makes the loss raise: the replies differ by at most 2 C, in the values alone."""
    rows = torch.randn(99, 3, dtype=torch.float64)
    more = torch.cat([rows, rows[:1] if hostile is None else torch.full((1, 3), hostile, dtype=torch.float64)])
    (first, _), (second, errors) = sent(tmp_path / "99", rows), sent(tmp_path / "100", more)
    assert [len(one) for one in first] == [len(one) for one in second]
    assert sum(bool(one) for one in first) == 7  # the introduction, and six messages
    assert max(map(differs_by, first, second)) <= 0.2 * (1 + 1e-9)
    assert bool(errors) == (hostile in (666.0, 777.0))


def test_an_unguarded_loss_is_refused(tmp_path):
    with pytest.raises(TypeError, match="must be over a GuardedSource, got NetworkSource"):
        sent(tmp_path, torch.ones(9, 3, dtype=torch.float64), guarded=lambda network, note: network)


def test_what_went_wrong_is_kept_for_the_owner_alone(tmp_path):
    with clients_in(tmp_path, numbers=[0]) as residents:
        for _ in range(3):
            residents[0].answer(b"nonsense")
    path = tmp_path / "0" / "private" / "problems.txt"
    assert "WireError" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# Crashes.


@dataclass
class Crash:
    """Rounds of one client in a folder, in one of which something happens to it."""

    folder: Path

    def round(self, server, handle=None):
        with clients_in(self.folder, QUIET, [0]) as residents:
            (broadcast,) = server.broadcasts(residents).values()
            with nullcontext() if handle is None else watched(self.folder, handle):
                reply = residents[0].answer(broadcast)
            server.receive({0: reply})
            return missing(server, residents), spent(residents[0])


def test_killed_at_every_call_of_a_message(tmp_path):
    """Ledger, checkpoint and key are written in an order that loses nothing, wherever it is interrupted."""
    for number in count():
        crash, server = Crash(tmp_path / str(number)), QUIET.coordinator()
        crash.round(server)
        try:
            crash.round(server, Stopping(number))
        except Stopped:
            server.receive({})
        else:
            assert number > 10
            return
        apart, charged = crash.round(server)
        assert apart < 1e-4, number
        assert charged in (2, 3), number


def test_what_is_on_disk_when_a_message_is_sent(tmp_path):
    """Ledger line, checkpoint and the next key, in this order. A client that is killed there has paid for it alone."""
    server, keys = QUIET.coordinator(), []
    with clients_in(tmp_path, QUIET, [0]) as residents:
        for _ in range(3):
            calls = []

            def noted(call, calls=calls):
                calls.append((call.name, Path(call.arguments[1]) if call.name == "replace" else call.path))
                return call.do()

            (broadcast,) = server.broadcasts([0]).values()
            with watched(tmp_path, noted):
                server.receive({0: residents[0].answer(broadcast)})
            place = residents[0]._folder
            last = {one: k for k, one in enumerate(calls)}
            line, synced = last["write", place.ledger], last["fsync", place.ledger]
            assert line < synced < last["replace", place.checkpoint] < last["replace", place.key]
            keys.append(place.key.read_bytes())
        shutil.copytree(tmp_path / "0", tmp_path / "killed" / "0")
    assert len({*keys}) == 3  # noise that was sent cannot be drawn again from what is there
    with clients_in(tmp_path / "killed", QUIET, [0]) as residents:
        assert spent(residents[0]) == 3


def test_the_number_after_a_crash_tells_nothing(tmp_path, monkeypatch):
    """The line is written and the disk is full; then the server asks at another point, where the values may differ."""

    def full_disk(*args):
        raise OSError

    def number_for(name, features):
        data, first = (features, torch.zeros(10).long()), QUIET.coordinator().broadcasts([0])[0]
        point = wire_tensors({"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)})
        with joined(QUIET, data, number=0, folder=tmp_path / name) as client, monkeypatch.context() as disk:
            disk.setattr(checkpoint, "save", full_disk)
            assert client.answer(first) == b""
        with joined(QUIET, data, number=0, folder=tmp_path / name) as client:
            return from_wire(client.answer(change_of(first, params=point))).number

    rows = torch.ones(10, 3, dtype=torch.float64)
    assert number_for("some", rows) == number_for("none", rows * torch.nan) == 1


def killed(crash, server, number):
    crash.round(server, Killing(number, half=True))


def test_killed_for_good_and_taken_up(tmp_path):
    """With SIGKILL, in the middle of a write."""
    counting = Counting()
    server = QUIET.coordinator()
    Crash(tmp_path / "counted").round(server, counting)
    writes = [number for number, name in enumerate(counting.names) if name == "write"]
    assert writes
    for number in writes if os.environ.get("TACITA_AUDIT") else writes[1:2]:
        server, crash = QUIET.coordinator(), Crash(tmp_path / str(number))
        assert exit_code(partial(killed, crash, server, number)) == -signal.SIGKILL
        apart, charged = crash.round(server)
        assert apart < 1e-4
        assert charged in (1, 2)


def test_a_folder_takes_one_client_of_one_federation(tmp_path):
    with clients_in(tmp_path, numbers=[0]) as residents:
        with pytest.raises(LedgerError), joined(SETTINGS, rows_of(0), number=0, folder=tmp_path / "0"):
            pass
        exchange(residents, SETTINGS.coordinator())
    others = "model or data"
    for change, says in (
        ({"settings": QUIET}, "epsilon is 8.0 there and .* here, rounds is 4 there and 40 here"),
        ({"number": 1}, others),
        ({"data": rows_of(0, 9)}, others),
        ({"data": rows_of(0, seed=1)}, others),
    ):
        given = {"settings": SETTINGS, "data": rows_of(0), "number": 0, "folder": tmp_path / "0", **change}
        settings, data = given.pop("settings"), given.pop("data")
        with pytest.raises(ResumeError, match=says), joined(settings, data, **given):
            pass
    (tmp_path / "0" / "private" / "checkpoint.safetensors").unlink()
    with pytest.raises(ResumeError, match="missing"), joined(SETTINGS, rows_of(0), number=0, folder=tmp_path / "0"):
        pass


TEXT = """
name = "clinics"
clients = 4
features = 3
classes = 2
expected_rows = 12
epsilon = 8
delta = 1e-5
max_grad_norm = 0.5
lr = 0.5
rounds = 4
momentum_weight = 0.5
spare_messages = 2
"""


def test_settings_are_read_strictly(tmp_path):
    settings = FederationSettings.from_toml(TEXT)
    assert settings == SETTINGS
    assert settings.id == SETTINGS.id != QUIET.id
    for wrong in ("epsilon = 8", "rounds = 0", "classes = 1", "delta = 2", "momentum_weight = 0", "batch = 3"):
        name = wrong.split()[0]
        text = "\n".join(
            [line for line in TEXT.splitlines() if not line.startswith(name)] + [wrong] * (wrong not in TEXT)
        )
        with pytest.raises(ValueError, match=name):
            FederationSettings.from_toml(text)
    with pytest.raises(ValueError, match="momentum_weight must be left out"):
        FederationSettings.from_toml(TEXT + 'algorithm = "clip-sgd"')
    with pytest.raises(ValueError, match="expected_rows must be a finite number"):  # in Python: TOML has no such number
        msgspec.structs.replace(SETTINGS, expected_rows=10**400).check()
    with pytest.raises(ValueError, match="readable text file"):
        FederationSettings.read(tmp_path / "nothing.toml")
    with pytest.raises(ValueError, match="from 0 to 3"), joined(SETTINGS, rows_of(0), number=4, folder=tmp_path / "4"):
        pass


def test_the_trained_classifier_is_a_linear_layer(tmp_path):
    server, folder = QUIET.coordinator(), ServerFolder(tmp_path)
    with clients_in(tmp_path, QUIET) as residents:
        exchange(residents, server)
    folder.publish(server)
    model = QUIET.load_model(folder.model)
    assert all(torch.equal(p, server.params[name]) for name, p in model.named_parameters())
    for change in ({"features": 4}, {"classes": 3}):
        with pytest.raises(DataStructureError, match=r"must be the model\.npz of this federation"):
            msgspec.structs.replace(QUIET, **change).load_model(folder.model)
    with pytest.raises(DataStructureError):
        QUIET.load_model(tmp_path / "nothing.npz")


def test_rows_of_another_structure_are_refused(tmp_path):
    path = tmp_path / "rows.npz"
    features, labels = (x.numpy() for x in rows_of(0))
    good = {"features": features, "labels": labels}
    np.savez(path, **good)
    assert torch.equal(SETTINGS.read_rows(path)[0], rows_of(0)[0])
    for change in ({"features": features[:, :2]}, {"labels": labels[1:]}, {"labels": labels + 0.5}):
        np.savez(path, **{**good, **change})
        with pytest.raises(DataStructureError):
            SETTINGS.read_rows(path)
    with pytest.raises(DataStructureError, match="there is no file"):
        SETTINGS.read_rows(tmp_path / "nothing.npz")
    with zipfile.ZipFile(path, "w") as archive:  # members that are no arrays
        for name in good:
            archive.writestr(name, b"secret")
    with pytest.raises(DataStructureError, match="must be an NPZ file"):
        SETTINGS.read_rows(path)
    path.write_bytes(b"secret")
    with pytest.raises(DataStructureError, match="must be an NPZ file") as caught:
        SETTINGS.read_rows(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: (x, y + 1), "labels that are none of the classes 0 to 1"),
        (lambda x, y: (x, 2 * y - 1), "labels that are none of the classes 0 to 1"),
        (lambda x, y: (np.where(x > 2, np.nan, x), y), "features that are NaN or infinite"),
        (lambda x, y: (x[:0], y[:0]), "has no row"),
    ],
)
def test_values_that_look_wrong_are_named_before_a_client_starts(tmp_path, change, says):
    """A client that has started takes them: from then on no row decides whether there is a message."""
    path = tmp_path / "rows.npz"
    features, labels = change(*(x.numpy() for x in rows_of(3)))
    np.savez(path, features=features, labels=labels)
    with pytest.raises(DataStructureError, match=says):
        SETTINGS.read_rows(path)
    with joined(SETTINGS, SETTINGS.read_rows(path, unchecked=True), number=0, folder=tmp_path / "0") as resident:
        assert resident.answer(SETTINGS.coordinator().broadcasts([0])[0])
    assert not (tmp_path / "0" / "private" / "problems.txt").exists()


def test_a_large_delta_is_refused_unless_it_is_allowed():
    large = msgspec.structs.replace(SETTINGS, delta=0.5)
    with pytest.raises(ValueError, match=r"delta must be below 0\.01, got 0\.5"):
        large.check()
    allowed = msgspec.structs.replace(large, allow_large_delta=True)
    allowed.check()
    assert allowed.id == large.id != SETTINGS.id


def test_the_file_of_a_simulation_is_named_as_one():
    with pytest.raises(ValueError, match="it is a file for tacita federate simulate"):
        FederationSettings.from_toml("data = 'clients.npz'")
    with pytest.raises(ValueError, match="it is a file for tacita federate serve and join"):
        SimulationSettings.from_toml("expected_rows = 3")


def test_a_round_of_nobody_is_remembered(tmp_path):
    path, settings = tmp_path / "state", msgspec.structs.replace(SETTINGS, spare_messages=0, rounds=3)
    server = settings.coordinator(path)
    with clients_in(tmp_path, settings) as residents:
        exchange(residents, server)
        assert server.rounds_of_nobody == 0
        for number, said in server.broadcasts(residents).items():  # all are lost, and paid for
            residents[number].answer(said)
        server = settings.coordinator(path)
        exchange(residents, server)
        assert server.rounds_of_nobody == 0
        assert exchange(residents, server).accepted == ()
    assert settings.coordinator(path).rounds_of_nobody == 1


def test_a_client_says_in_which_settings_a_server_differs(tmp_path):
    theirs, told = msgspec.structs.replace(SETTINGS, lr=0.1, allow_large_delta=True), []
    with joined(SETTINGS, rows_of(0), number=0, folder=tmp_path / "0", tell=told.append) as resident:
        asked = KnownClients(theirs.id, 4, settings=theirs.public).greeting()
        assert resident.answer(asked) == b""
        assert "it is not answered. lr is 0.1 there and 0.5 here. Server and clients need the same" in told[-1]
        liar = Greeting("liars", b"?" * 32, {"lr": "\x1b" * 99, "secret": "x"})
        assert resident.answer(to_wire(liar)) == b""
        assert "\x1b" not in told[-1]
        assert "secret" not in told[-1]
        assert len(told[-1]) < 2000
        assert resident.answer(to_wire(Greeting("nothing said", b"?" * 32))) == b""
        assert "there and" not in told[-1]


def test_a_client_says_that_it_has_no_message_left(tmp_path):
    settings, told = msgspec.structs.replace(SETTINGS, spare_messages=1, rounds=1), []
    with joined(settings, rows_of(0), number=0, folder=tmp_path / "0", tell=told.append) as resident:
        broadcast = settings.coordinator().broadcasts([0])[0]
        assert resident.answer(broadcast)
        assert "round 1 of 1 is answered" in told[-1]
        assert not resident.used_up
        with pytest.raises(ResumeError, match="is the folder of a client"), ServerFolder(tmp_path / "0").commanded():
            pass
        assert resident.answer(broadcast)  # the first message was lost
        assert "round 1 of 1 is answered. This is the last planned message" in told[-1]
        assert resident.used_up
        assert resident.answer(broadcast) == b""
        assert "messages are used up" in told[-1]


def test_a_client_that_is_finished_is_a_run_like_any_other(tmp_path):
    place, settings = tmp_path / "0", msgspec.structs.replace(SETTINGS, algorithm="clip-sgd", momentum_weight=None)
    with pytest.raises(ResumeError, match="a client that has started"):
        finish_client(settings, number=0, folder=place)
    assert not place.exists()
    with joined(settings, rows_of(0), number=0, folder=place) as resident:
        server = settings.coordinator()
        assert resident.answer(server.broadcasts([0])[0])
    with pytest.raises(ResumeError, match="another federation or client"):
        finish_client(settings, number=1, folder=place)
    with pytest.raises(ResumeError, match="algorithm is 'clip-sgd' there and 'clip21-sgdm' here"):
        finish_client(SETTINGS, number=0, folder=place)
    words = finish_client(settings, number=0, folder=place, about={"responsible": "Dr. X"}, dataset_name="patients")
    assert "none listed under this name in tacita-runs.jsonl" in " ".join(words.split())
    listed = [json.loads(line) for line in (tmp_path / "tacita-runs.jsonl").read_text().splitlines()]
    assert {line["epsilon"] for line in listed} == {settings.epsilon}
    assert "against the server and whoever sees this client's messages" in words
    assert settings.id in " ".join(words.split())
    assert f"{settings.loudness(8)}" in " ".join(words.split())  # two classes of three features and a constant
    assert "1 of 6 planned queries made" in " ".join(words.split())
    assert "Dr. X" in words
    assert not (place / "private").exists()
    with pytest.raises(ResumeError, match="sealed already, and what it states stays as it is: tacita sign takes"):
        finish_client(settings, number=0, folder=place, about={"contact": "x@example.org"})
    assert finish_client(settings, number=0, folder=place, about={"responsible": "Dr. X"}) == words
    checked = check_run(place)
    assert not checked.faults
    assert checked.verdict.word == "private"
    with pytest.raises(ResumeError, match="finished run"), joined(settings, rows_of(0), number=0, folder=place):
        pass


def test_a_client_that_is_stopped_while_it_is_finished_is_finished_by_the_same_call(tmp_path):
    """At every call that changes its folder; what it says it has spent is the same."""
    place, spoken = tmp_path / "0", set()
    with joined(SETTINGS, rows_of(0), number=0, folder=place) as resident:
        assert resident.answer(SETTINGS.coordinator().broadcasts([0])[0])
    for number in count():
        copied = tmp_path / "copies" / str(number)
        shutil.copytree(place, copied)
        with suppress(Stopped), watched(copied, Stopping(number)):
            finish_client(SETTINGS, number=0, folder=copied)
            break
        finish_client(SETTINGS, number=0, folder=copied)
        run = check_run(copied)
        assert not run.faults
        assert not (copied / "private").exists()
        spoken.add(json.loads((copied / "statement.json").read_text())["epsilon_spent"])
    assert number > 10
    assert len(spoken) == 1


class Failing(GivenSource):
    """Makes engines that raise only when they are read, and in the middle of it."""

    def engine(self, params, indices, *, query=None, seed=None):
        engine = super().engine(params, indices, query=query, seed=seed)

        def rows():
            yield {"theta": torch.ones(1, 3)}
            raise SystemExit("a patient")

        def norms(groups):
            raise RuntimeError("a patient")

        engine.materialise, engine.norms = rows, norms
        return engine


def test_whatever_is_asked_of_an_engine_is_guarded():
    errors = []
    engine = GuardedSource(Failing(torch.ones(2, 3)), errors.append).engine({}, np.arange(2))
    assert list(engine.materialise()) == []
    assert engine.norms({"all": ("theta",)}).shape == (0, 1)
    assert [str(error) for error in errors] == ["a patient"] * 2
