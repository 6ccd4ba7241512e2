"""The seal: the last line, after which there is none."""

import json

import pytest

from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import LedgerError
from tacita.ledger import Ledger, statement, verify_file
from tacita.ledger.hash_chain import canonical, sha256

EVENT = GaussianSumEvent(
    sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
)
WORDS = {"neighboring_relation": "add_or_remove_one", "privacy_unit": "one row = one patient"}
HASH = sha256(b"weights")


def spent(ledger):
    session = ledger.register(EVENT, planned_queries=4)
    session.open()
    session.reserve(0, 3)
    session.spend(0)
    session.close()
    return session


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def sealed(path):
    with Ledger(path, **WORDS) as ledger:
        spent(ledger)
        ledger.seal(statement(ledger, 1e-5).to_json(), {"model.safetensors": HASH})
    return path


def test_it_is_the_last_line_and_says_what_it_covers(sealed) -> None:
    ledger = Ledger.load(sealed)
    line = json.loads(sealed.read_bytes().splitlines()[-1])
    assert (line["kind"], line["session"], line["files"]) == ("seal", "", {"model.safetensors": HASH})
    assert ledger.sealed is not None
    assert ledger.sealed.statement == sha256(canonical(statement(ledger, 1e-5).to_json()))
    assert ledger.before_seal == (ledger.anchor.count - 1, line["prev"], "given")
    found = ledger.verify()
    assert (found.ok, found.sealed) == (True, True)
    assert verify_file(sealed) == found


def test_without_one_verification_says_so(path) -> None:
    ledger = Ledger(path, **WORDS)
    spent(ledger)
    assert (ledger.verify().ok, ledger.verify().sealed) == (True, False)
    ledger.seal({}, {})
    assert ledger.verify().sealed
    ledger.close()
    memory = Ledger(**WORDS)
    assert not memory.verify().sealed
    spent(memory)
    memory.seal({}, {})
    assert memory.verify().sealed


def test_a_statement_is_the_same_before_and_after(path) -> None:
    ledger = Ledger(path, **WORDS)
    spent(ledger)
    before = statement(ledger, 1e-5)
    ledger.seal(before.to_json(), {})
    after = statement(ledger, 1e-5)
    assert (before.to_json(), before.text, before.anchor) == (after.to_json(), after.text, after.anchor)
    assert ledger.verify(before.anchor).ok
    ledger.close()
    assert statement(Ledger.load(path), 1e-5).to_json() == before.to_json()


@pytest.mark.parametrize("reopened", [False, True])
def test_nothing_may_be_added(path, reopened) -> None:
    ledger = Ledger(path, **WORDS)
    waiting = ledger.register(EVENT, planned_queries=1, purpose="score")
    spent(ledger)
    ledger.seal({}, {})
    if reopened:
        ledger.close()
        ledger = Ledger(path, **WORDS)
        waiting = ledger.sessions[0]
    before = path.read_bytes()
    for add in (
        lambda: ledger.register(EVENT, planned_queries=1),
        lambda: ledger.register_share(1.0, 1e-6),
        waiting.open,
        waiting.withdraw,
        lambda: ledger.seal({}, {}),
    ):
        with pytest.raises(LedgerError, match="this ledger is sealed"):
            add()
    ledger.close()
    assert path.read_bytes() == before


def test_open_sessions_are_not_sealed(path) -> None:
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=4)
    session.open()
    with pytest.raises(LedgerError, match=r"open sessions cannot be sealed: close train-1 first"):
        ledger.seal({}, {})
    assert ledger.sealed is None
    session.close()
    ledger.seal({}, {})


def test_a_ledger_without_a_session_is_not_sealed(path) -> None:
    """Nothing in it says under which relation it was written, so that it could not be read again."""
    with Ledger(path, **WORDS) as ledger, pytest.raises(LedgerError, match="without a session guarantees nothing"):
        ledger.seal({}, {})
    assert not path.read_bytes()


def test_a_file_that_is_sealed_without_a_session_is_said_to_be_one(sealed) -> None:
    rewritten(sealed, sealed.read_bytes().splitlines()[-1])
    assert verify_file(sealed).ok
    for load in (lambda: Ledger.load(sealed), lambda: Ledger(sealed, **WORDS)):
        with pytest.raises(LedgerError, match="without a session"):
            load()


@pytest.mark.parametrize("added", [b"\n", b"{", b"\0\0", b"\n\n", b" "], ids=repr)
def test_whatever_follows_it_shows(sealed, added) -> None:
    sealed.write_bytes(sealed.read_bytes() + added)
    found = verify_file(sealed)
    assert not found.ok
    assert not Ledger.load(sealed).verify().ok if added != b"\n\n" else True
    with pytest.raises(LedgerError):
        Ledger(sealed, **WORDS)


def rewritten(path, *lines):
    """The file and its anchor, with these lines, chained anew from the first that is not chained."""
    whole = []
    for seq, line in enumerate(lines):
        before = sha256(whole[-1]) if whole else "0" * 64
        whole.append(canonical({**json.loads(line), "seq": seq, "prev": before}))
    path.write_bytes(b"".join(line + b"\n" for line in whole))
    head = {"count": len(whole), "head": sha256(whole[-1])}
    path.with_name("ledger.head.json").write_bytes(canonical(head) + b"\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines, lines[-1]], "it follows the seal"),
        (lambda lines: [*lines[:-1], lines[-1], lines[0].replace(b"train-1", b"train-2")], "it follows the seal"),
        (lambda lines: [*lines[:-2], lines[-1]], "a ledger with open sessions cannot be sealed"),
        (lambda lines: [*lines[:-1], lines[-1].replace(b'"session":""', b'"session":"train-1"')], "with other fields"),
        (lambda lines: [*lines[:-1], lines[-1].replace(b'"statement":', b'"words":')], "with other fields"),
        (
            lambda lines: [*lines[:-1], lines[-1].replace(b"model.safe", b"../model.safe")],
            "a plain name, or a path of such names",
        ),
        (lambda lines: [*lines[:-1], lines[-1].replace(HASH.encode(), b"0")], "SHA-256"),
    ],
)
def test_a_seal_out_of_place_is_no_ledger(sealed, change, message) -> None:
    """Even where chain and anchor fit."""
    rewritten(sealed, *change(sealed.read_bytes().splitlines()))
    assert verify_file(sealed).ok
    with pytest.raises(LedgerError, match=message):
        Ledger.load(sealed)


@pytest.mark.parametrize("name", ["a/../b", "a/", "..", "", ".hidden", "/etc/passwd", "a\\b", "c:x", "a\n"])
def test_a_sealed_file_stands_beside_the_ledger_or_below_it(name) -> None:
    with pytest.raises(ValueError, match="a plain name, or a path of such names"):
        Ledger(**WORDS).seal({}, {name: HASH})
