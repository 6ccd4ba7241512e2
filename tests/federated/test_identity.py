"""Which client a node is: no node takes the place of a client that was introduced, and the client itself comes back."""

import json
import stat

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacita.errors import ResumeError
from tacita.federated.identity import ClientIdentity, KnownClients
from tacita.federated.resident import IDENTITY
from tacita.federated.wire import Introduction, WireError, from_wire, to_wire
from tests.federated.federations import SETTINGS, clients_in, greeting


def identity(folder, name):
    return ClientIdentity.at(folder / name, new=True)


def introduce(known, someone, client, /, federation=None, **change):
    """What the server makes of a node that says that it is ``client``."""
    asked = known.greeting()
    record = from_wire(asked)
    if federation is not None:
        record = msgspec.structs.replace(record, federation=federation)
    return known.introduced(asked, to_wire(msgspec.structs.replace(someone.introduction(record, client), **change)))


@pytest.fixture
def two(tmp_path):
    return identity(tmp_path, "one"), identity(tmp_path, "other")


def test_a_client_comes_back_and_nobody_takes_its_place(tmp_path, two):
    told, path = [], tmp_path / "clients.json"
    known = KnownClients("clinics", 3, path, tell=told.append)
    honest, other = two
    assert [introduce(known, honest, 0), introduce(known, honest, 0), introduce(known, other, 2)] == [0, 0, 2]
    assert told == []
    assert introduce(known, other, 0) is None
    again = KnownClients("clinics", 3, path, tell=told.append)  # a server that was killed knows them still
    assert introduce(again, other, 0) is None
    assert introduce(again, ClientIdentity.at(tmp_path / "one", new=False), 0) == 0
    assert len(told) == 2
    assert all("client 0, with another key" in words and "cannot go on under its number" in words for words in told)
    assert not any("clients.json" in words for words in told)  # without its line the client would spend anew


def test_what_was_overheard_serves_for_nothing(two):
    told = []
    known, honest = KnownClients("clinics", 3, tell=told.append), two[0]
    asked = known.greeting()
    overheard = to_wire(honest.introduction(from_wire(asked), 0))
    assert known.introduced(asked, overheard) == 0
    assert known.introduced(known.greeting(), overheard) is None  # another node is asked with another challenge
    assert "could not prove it" in told[0]


@pytest.mark.parametrize(
    "change", [{"client": 1}, {"key": b"k" * 32}, {"key": b""}, {"signature": b"s" * 64}, {"signature": b""}], ids=str
)
def test_a_claim_without_its_proof_is_refused(two, change):
    known = KnownClients("clinics", 3)
    assert introduce(known, two[0], 0, **change) is None
    assert introduce(known, two[1], 0) == 0  # and takes no number


def test_of_another_federation_or_without_a_number_it_is_none(two):
    known = KnownClients("clinics", 3)
    assert introduce(known, two[0], 0, federation="others") is None
    assert introduce(known, two[0], 3) is introduce(known, two[0], -1) is None
    for reply in (b"", b"nonsense", to_wire(greeting("clinics"))):
        assert known.introduced(known.greeting(), reply) is None


@pytest.mark.parametrize(
    ("words", "client"), [(("tacita introduction 1",), 0), ((), None), (("tacita message 1",), None)]
)
def test_a_signature_that_was_made_for_something_else_is_none(words, client):
    known, key = KnownClients("clinics", 3), Ed25519PrivateKey.generate()
    asked = known.greeting()
    signature = key.sign(msgspec.msgpack.encode((*words, "clinics", 0, from_wire(asked).challenge)))
    said = Introduction("clinics", 0, key.public_key().public_bytes_raw(), signature)
    assert known.introduced(asked, to_wire(said)) is client


def test_every_greeting_has_a_challenge_of_its_own(two):
    known = KnownClients("clinics", 3)
    assert len({known.greeting() for _ in range(20)}) == 20
    with pytest.raises(WireError):
        two[0].introduction(greeting("clinics", b"short"), 0)


def test_the_key_is_its_owners_alone_and_is_not_made_twice(tmp_path):
    path = tmp_path / "identity.key"
    identity(tmp_path, path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    ClientIdentity.at(path, new=True)
    assert path.read_bytes() == before
    path.write_bytes(before[:-1])
    with pytest.raises(ResumeError, match="no key of a client"):
        ClientIdentity.at(path, new=True)
    path.unlink()
    with pytest.raises(ResumeError, match="is missing: restore it"):
        ClientIdentity.at(path, new=False)


def test_a_resident_keeps_its_identity_and_makes_no_second_one(tmp_path):
    known = KnownClients(SETTINGS.id, SETTINGS.clients)
    for _ in range(2):
        with clients_in(tmp_path, numbers=[1]) as residents:
            asked = known.greeting()
            assert known.introduced(asked, residents[1].answer(asked)) == 1
            assert residents[1].answer(to_wire(greeting(challenge=b""))) == b""
    (tmp_path / "1" / "private" / IDENTITY).unlink()
    with pytest.raises(ResumeError, match=r"identity\.key of a client"), clients_in(tmp_path, numbers=[1]):
        pass


def test_a_key_that_others_may_read_is_its_owners_alone_again(tmp_path):
    path = tmp_path / "identity.key"
    identity(tmp_path, path.name)
    path.chmod(0o666)
    ClientIdentity.at(path, new=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    path.mkdir()
    with pytest.raises(ResumeError, match="cannot be read: Is a directory"):
        ClientIdentity.at(path, new=False)


KEY = "ab" * 32


@pytest.mark.parametrize(
    "keys",
    [
        f'{{"0": "{KEY[2:]}"}}',
        f'{{"0": "{KEY}ab"}}',
        f'{{"00": "{KEY}"}}',
        f'{{"0": "{KEY}", "00": "{KEY}"}}',
        f'{{"0": "{KEY}", "0": "{KEY}"}}',
        f'{{"3": "{KEY}"}}',
        f'{{"-1": "{KEY}"}}',
        f'{{"\u0660": "{KEY}"}}',  # a zero, to int()
        '{"0": 7}',
        "[]",
    ],
)
def test_a_key_of_no_client_or_two_keys_of_one_are_refused(tmp_path, keys):
    path = tmp_path / "clients.json"
    path.write_text(f'{{"federation": "clinics", "keys": {keys}}}')
    with pytest.raises(ResumeError, match="cannot be read"):
        KnownClients("clinics", 3, path)
    path.write_text(f'{{"federation": "clinics", "keys": {{"0": "{KEY}", "2": "{KEY}"}}}}')
    assert "[0, 2]" in repr(KnownClients("clinics", 3, path))
    path.unlink()
    path.mkdir()
    with pytest.raises(ResumeError, match="cannot be read"):
        KnownClients("clinics", 3, path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"federation": "clinics", "keys": {"0": "no"}}', "[" * 100_000])
def test_a_file_of_keys_that_cannot_be_read_is_refused(tmp_path, text):
    path = tmp_path / "clients.json"
    path.write_text(text)
    with pytest.raises(ResumeError, match="cannot be read"):
        KnownClients("clinics", 3, path)
    path.write_text(json.dumps({"federation": "others", "keys": {}}))
    with pytest.raises(ResumeError, match="another federation"):
        KnownClients("clinics", 3, path)
