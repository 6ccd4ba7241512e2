"""Queries in a row are read at once, and whatever a file holds, this says what reading each line alone says."""

import json
import random

import pytest

from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import LedgerError
from tacita.ledger import Ledger, Reservations, hash_chain
from tacita.ledger.hash_chain import GENESIS, QueryRun, canonical, read, sha256
from tacita.ledger.registry import SessionRegistry

FINGERPRINTS = ["0a" * 16, "ff" * 16, "", "", "a_b", "c", "d", "0123456789abcdef"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Lines of two sessions whose queries alternate now and then; reservations of 8."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    event = GaussianSumEvent(
        relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(5.0,)
    )
    with Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row") as ledger:
        sessions = [ledger.register(event, planned_queries=42, purpose=word) for word in ("train", "score")]
        for one in sessions:
            one.open()
        ahead = {one.id: Reservations(one, 8) for one in sessions}
        for k in range(44):
            one = sessions[k % 11 == 3]
            ahead[one.id].prepare(one.queries_made)
            one.spend(one.queries_made, FINGERPRINTS[k % 8] if k < 16 else f"{k:032x}")
    return path.read_bytes()


def told(data, alone):
    """What reading ``data`` says: with runs of queries, or of each line alone."""
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(hash_chain, "_queries", lambda lines, seq, previous: None)
        try:
            found = read(data)
        except LedgerError as error:
            return str(error)
    entries = [line for one in found.entries for line in (one.each() if isinstance(one, QueryRun) else (one,))]
    return (
        [{name: one[name] for name in one if name not in hash_chain.PLACE} for one in entries],
        found.fault,
        found.size,
        found.torn,
        found.head,
        found.sealed,
    )


def stands(path, data, alone):
    """How the sessions of a ledger stand that holds ``data``, or why it is refused."""
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(SessionRegistry, "_queries_again", lambda self, run: False)
        try:
            ledger = Ledger.load(path)
        except LedgerError as error:
            return str(error)
    return [(one.state, one._lines, one.last_query, one.queries_spent, one._begun) for one in ledger.sessions]


def test_queries_in_a_row_are_one_entry(written):
    runs = [one for one in read(written).entries if isinstance(one, QueryRun)]
    assert max(len(one["fingerprints"]) for one in runs) == 8
    assert sum(len(one["fingerprints"]) for one in runs) == 44
    assert told(written, False) == told(written, True)


def test_a_changed_byte_says_the_same(written):
    """Every place of some lines, and by chance of the others."""
    chance = random.Random(0)
    lines = written.splitlines(keepends=True)
    begin = sum(map(len, lines[:12]))
    places = [*range(begin, begin + sum(map(len, lines[12:15]))), *chance.sample(range(len(written)), 300)]
    faults = set()
    for place in places:
        for change in (b"", b"0", b"a", b"_", b'"', b"\n", b"\\u0061", b"\xff"):
            mutant = written[:place] + change + written[place + 1 :]
            expected = told(mutant, True)
            assert told(mutant, False) == expected
            faults.add(expected[1] if isinstance(expected, tuple) else expected)
    assert len(faults) > 50


def test_moved_doubled_and_lost_lines_say_the_same(written, tmp_path):
    chance = random.Random(1)
    for _ in range(300):
        lines = written.splitlines(keepends=True)
        for _ in range(chance.choice((1, 1, 2))):
            one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            match chance.randrange(4):
                case 0:
                    del lines[one]
                case 1:
                    lines.insert(one, lines[other])
                case 2:
                    lines[one], lines[other] = lines[other], lines[one]
                case 3:
                    lines[-1] = lines[-1][: chance.randrange(1, len(lines[-1]))]
        data = b"".join(lines)
        assert told(data, False) == told(data, True)


def chained(entries):
    """The lines of entries, with a chain that holds."""
    lines, previous = [], GENESIS
    for seq, entry in enumerate(entries):
        line = canonical({**entry, "seq": seq, "prev": previous})
        lines.append(line + b"\n")
        previous = sha256(line)
    return b"".join(lines)


def test_a_chain_that_holds_of_queries_that_may_not_follow_is_refused_as_line_by_line(written, tmp_path):
    """The numbers go back, leap, leave the reservation or the plan, or belong to a session that is closed."""
    chance = random.Random(2)
    refused = set()
    for trial in range(400):
        entries = [json.loads(line) for line in written.splitlines()]
        for _ in range(chance.choice((1, 1, 2))):
            place = chance.randrange(4, len(entries))
            match chance.randrange(5):
                case 0:
                    del entries[place]
                case 1:
                    entries.insert(place, dict(entries[chance.randrange(4, len(entries))]))
                case 2:
                    for entry in entries[place:]:
                        if entry["kind"] == "query":
                            entry["number"] += 5
                case 3:
                    entries[place]["session"] = chance.choice(("train-1", "score-1", "other-1"))
                case 4:
                    closed = {"kind": "close", "session": "train-1", "queries_made": 30, "v": 1}
                    entries.insert(place, closed | {"seq": 0, "prev": ""})
        data = chained(entries)
        assert read(data).fault == ""
        expected = stands(tmp_path / f"{trial}.jsonl", data, True)
        assert stands(tmp_path / f"{trial}.jsonl", data, False) == expected
        refused.add(expected if isinstance(expected, str) else "")
    assert len(refused) > 30
