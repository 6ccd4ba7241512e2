"""The journal: what it shows of tampering, what it survives, and what it refuses."""

import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import time
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacita import _files
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import LedgerError
from tacita.ledger import Ledger, Reservations, hash_chain, journal, verify_file
from tacita.ledger.hash_chain import GENESIS, Anchor, canonical, check_anchor, read, sha256
from tacita.ledger.journal import head_path
from tests.forked import started

WORDS = {"neighboring_relation": "add_or_remove_one", "privacy_unit": "one row = one patient"}
EVENT = GaussianSumEvent(
    sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def written(path, queries=3, tag="x"):
    """A ledger with an open session and some queries, closed."""
    with Ledger(path, **WORDS) as ledger:
        session = ledger.register(EVENT, planned_queries=10)
        session.open()
        session.reserve(0, 4)
        for query in range(queries):
            session.spend(query, f"{tag}{query:08x}")
        return ledger.anchor


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


class PatchedOs:
    """The ``os`` that the journal sees, with some functions replaced."""

    def __init__(self, **functions):
        self.__dict__.update(functions)

    def __getattr__(self, name):
        return getattr(os, name)


def use_os(patch, functions):
    """Have the journal, and what writes its anchor, see these functions."""
    for module in (journal, _files):
        patch.setattr(module, "os", functions)


# --- the chain -----------------------------------------------------------------------------------------------------


def test_each_line_has_the_hash_of_the_one_before(path):
    anchor = written(path)
    previous = GENESIS
    for seq, line in enumerate(path.read_bytes().splitlines()):
        entry = json.loads(line)
        assert (entry["v"], entry["seq"], entry["prev"]) == (1, seq, previous)
        assert canonical(entry) == line
        previous = sha256(line)
    assert (anchor.count, anchor.head) == (seq + 1, previous)
    assert json.loads(head_path(path).read_bytes()) == {"count": anchor.count, "head": anchor.head}


def test_a_query_line_is_short(path):
    written(path)
    assert len(lines_of(path)[-1]) < 200


def test_an_intact_ledger_verifies_and_names_its_anchor(path):
    anchor = written(path)
    assert verify_file(path).ok
    assert verify_file(path).anchor == "ledger.head.json"
    found = Ledger.load(path).verify(anchor._replace(name="checkpoint"))
    assert (found.anchor, found.ok, found.reason) == ("checkpoint", True, "")
    assert Ledger.load(path).verify((anchor.count, anchor.head)).anchor == "given"


# --- tampering -----------------------------------------------------------------------------------------------------


def edited(lines):
    lines[4] = lines[4].replace(b'"number":1', b'"number":2')
    return lines


def swapped(lines):
    lines[4], lines[5] = lines[5], lines[4]
    return lines


TAMPERED = {
    "a line edited": edited,
    "the last line edited": lambda lines: [*lines[:-1], lines[-1].replace(b"00000002", b"00000003")],
    "the last line removed": lambda lines: lines[:-1],
    "all but the first removed": lambda lines: lines[:1],
    "everything removed": lambda lines: [],
    "a line in the middle removed": lambda lines: lines[:4] + lines[5:],
    "two lines swapped": swapped,
    "a line doubled": lambda lines: lines[:5] + lines[4:],
    "the last line torn below the anchor": lambda lines: [*lines[:-1], lines[-1][:20]],
}


@pytest.mark.parametrize("how", TAMPERED)
def test_tampering_shows_and_the_ledger_is_not_continued(path, how):
    written(path)
    path.write_bytes(b"".join(TAMPERED[how](lines_of(path))))
    found = verify_file(path)
    assert not found.ok
    assert found.reason
    with pytest.raises(LedgerError):
        Ledger(path, **WORDS)


def test_a_ledger_in_the_place_of_another_shows(path, tmp_path):
    written(path)
    other = tmp_path / "other.jsonl"
    written(other, queries=4, tag="y")
    shutil.copy(other, path)
    assert not verify_file(path).ok


def test_rewriting_lines_and_anchor_together_passes_and_an_anchor_elsewhere_shows_it(path):
    """The limit that is stated: only copies that the forger does not hold can tell."""
    anchor = written(path, queries=3)
    path.unlink()
    head_path(path).unlink()
    written(path, queries=2, tag="y")
    assert verify_file(path).ok
    assert not verify_file(path, anchor._replace(name="statement")).ok


def test_a_missing_anchor_shows_and_another_one_lets_the_ledger_go_on(path):
    anchor = written(path)
    head_path(path).unlink()
    assert "ledger.head.json is missing" in verify_file(path).reason
    with pytest.raises(LedgerError, match="missing"):
        Ledger.load(path, read_only=False)
    Ledger.load(path, read_only=False, anchor=anchor).close()
    assert verify_file(path).ok


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"count":-1,"head":""}', b'{"count":"x","head":1}', b"\xff"])
def test_a_damaged_anchor_is_one_error(path, content):
    written(path)
    head_path(path).write_bytes(content)
    assert "is not an anchor" in verify_file(path).reason
    with pytest.raises(LedgerError, match="is not an anchor"):
        Ledger(path, **WORDS)


def test_an_anchor_that_lags_behind_is_fine(path):
    with Ledger(path, **WORDS) as ledger:
        session = ledger.register(EVENT, planned_queries=10)
        session.open()
        session.reserve(0, 4)
        early = head_path(path).read_bytes()
        session.spend(0, "aa")
    head_path(path).write_bytes(early)
    assert verify_file(path).ok
    Ledger(path, **WORDS).close()
    assert head_path(path).read_bytes() != early


def test_an_anchor_counts_lines_from_the_start():
    lines = [b"a", b"b", b"c"]
    assert check_anchor(lines, Anchor(0, GENESIS)) == ""
    assert check_anchor(lines, Anchor(2, sha256(b"b"))) == ""
    assert "is not the one" in check_anchor(lines, Anchor(2, sha256(b"c")))
    assert "lines were removed" in check_anchor(lines, Anchor(4, sha256(b"d")))


# --- torn lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", range(1, 40, 3))
def test_a_torn_last_line_is_no_tampering_and_is_dropped(path, keep):
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:keep])
    assert verify_file(path).ok
    assert Ledger.load(path).sessions[0].queries_made == 3
    assert path.read_bytes() != whole  # read-only repairs nothing
    Ledger(path, **WORDS).close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\0\0\n", b'{"half":\n', b"not json\n"])
def test_garbage_in_the_last_line_is_a_torn_line(path, tail):
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert verify_file(path).ok
    Ledger(path, **WORDS).close()
    assert path.read_bytes() == whole


def test_a_torn_first_line_is_dropped(path):
    written(path)
    first = path.read_bytes().splitlines()[0]
    head_path(path).unlink()
    path.write_bytes(first[:30])
    Ledger(path, **WORDS).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("content", [b"age,income", b"age,income\n", b'{"a":1}\n', b'{"other":1', b"1,2\n3,4\n"])
def test_a_file_that_is_no_ledger_is_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger(path, **WORDS)
    assert path.read_bytes() == content


# --- writers -------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_a_reader_is_not(path):
    with Ledger(path, **WORDS) as ledger:
        ledger.register(EVENT, planned_queries=10)
        with pytest.raises(LedgerError, match=r"^ledger\.jsonl is open in another writer"):
            Ledger(path, **WORDS)
        assert len(Ledger.load(path).sessions) == 1
    Ledger(path, **WORDS).close()


def test_a_reader_writes_nothing(path):
    written(path)
    with pytest.raises(LedgerError, match="read_only=False"):
        Ledger.load(path).sessions[0].spend(3, "aa")


def test_a_closed_ledger_writes_nothing(path):
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="is closed"):
        session.open()


def test_a_forked_child_neither_writes_nor_holds_the_lock(path):
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    read_end, write_end = os.pipe()
    hold_read, hold_write = os.pipe()

    def work():
        os.close(hold_write)
        try:
            session.open()
            os.write(write_end, b"wrote")
        except LedgerError:
            os.write(write_end, b"refused")
        os.read(hold_read, 1)  # stay alive until the parent has looked

    child = started(work)
    os.close(write_end)
    assert os.read(read_end, 10) == b"refused"
    ledger.close()
    Ledger(path, **WORDS).close()  # although the child is alive
    os.close(hold_write)
    os.waitpid(child, 0)
    os.close(read_end)
    os.close(hold_read)


def replace(path):
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    os.replace(copy, path)


def append_line(path):
    with path.open("ab") as file:
        file.write(b"{}\n")


@pytest.mark.parametrize("change", [replace, append_line, lambda path: os.truncate(path, 10), os.unlink])
def test_a_file_changed_under_the_writer_takes_no_more_lines(path, change):
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    change(path)
    with pytest.raises(LedgerError, match=r"ledger\.jsonl was (replaced|removed)"):
        session.open()
    assert session.state == "registered"


def test_a_line_changed_in_place_under_the_writer_shows(path):
    with Ledger(path, **WORDS) as ledger:
        session = ledger.register(EVENT, planned_queries=10)
        session.open()
        session.reserve(0, 4)
        session.spend(0, "aaaaaaaa")
        path.write_bytes(path.read_bytes().replace(b"aaaaaaaa", b"aaaaaaab"))
        assert "the writer" in ledger.verify().reason


# --- disks ---------------------------------------------------------------------------------------------------------


def full_after(count):
    """A write that stores some bytes, then finds the disk full."""

    def write(fd, data):
        if count[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: count[0]]
        count[0] -= len(part)
        return os.write(fd, part)

    return write


@pytest.mark.parametrize("room", [0, 1, 50])
def test_a_full_disk_adds_nothing_and_the_session_goes_on_when_there_is_room(path, monkeypatch, room):
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    session.open()
    session.reserve(0, 4)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        use_os(patch, PatchedOs(write=full_after([room])))
        with pytest.raises(LedgerError, match=r"^ledger\.jsonl cannot be written: No space left") as caught:
            session.spend(0, "aa")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert session.queries_made == 0
    session.spend(0, "aa")
    ledger.close()
    assert verify_file(path).ok


def test_a_line_that_cannot_be_taken_back_ends_the_writing(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    with monkeypatch.context() as patch:
        use_os(patch, PatchedOs(write=full_after([5]), ftruncate=refuse))
        with pytest.raises(LedgerError):
            session.open()
    with pytest.raises(LedgerError, match="takes no more lines"):
        session.open()
    ledger.close()
    with Ledger(path, **WORDS) as again:
        again.sessions[0].open()


def test_a_reservation_that_is_not_flushed_pays_for_nothing(path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    session.open()
    with monkeypatch.context() as patch:
        use_os(patch, PatchedOs(fsync=refuse))
        with pytest.raises(LedgerError, match="cannot be flushed"):
            session.reserve(0, 4)
    with pytest.raises(LedgerError, match="takes no more lines"):
        session.spend(0, "aa")


def test_a_reservation_is_on_disk_and_anchored_when_reserve_returns(path, monkeypatch):
    ledger = Ledger(path, **WORDS)
    session = ledger.register(EVENT, planned_queries=10)
    session.open()
    durable = []

    def fsync(fd):
        durable.append(os.fstat(fd).st_ino)
        os.fsync(fd)

    use_os(monkeypatch, PatchedOs(fsync=fsync))
    session.reserve(0, 4)
    assert durable[0] == path.stat().st_ino  # the lines first, then the anchor, then its folder
    assert durable[1:] == [head_path(path).stat().st_ino, path.parent.stat().st_ino]
    durable.clear()
    session.spend(0, "aa")
    assert durable == []
    ledger.close()


def test_what_a_killed_writer_left_is_on_disk_before_it_is_anchored(path, monkeypatch):
    written(path)
    durable = []
    use_os(monkeypatch, PatchedOs(fsync=lambda fd: durable.append(os.fstat(fd).st_ino)))
    ledger = Ledger(path, **WORDS)
    assert durable[2] == path.stat().st_ino  # after the names of its folder and of itself
    assert durable[:2] == [folder.stat().st_ino for folder in (path.parent.parent, path.parent)]
    ledger.close()


@pytest.mark.parametrize("where", ["refused", "no folder"])
def test_a_folder_that_cannot_be_written_is_one_error(path, monkeypatch, where):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    if where == "no folder":
        path.parent.joinpath("sub").write_text("a file, not a folder")
        with pytest.raises(LedgerError, match="cannot be opened for writing"):
            Ledger(path.parent / "sub" / "ledger.jsonl", **WORDS)
        return
    use_os(monkeypatch, PatchedOs(open=refuse))
    with pytest.raises(LedgerError, match=r"^ledger\.jsonl cannot be opened for writing: Permission denied"):
        Ledger(path, **WORDS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_folder_is_one_error(path):
    path.parent.chmod(0o500)
    with pytest.raises(LedgerError, match="cannot be opened for writing"):
        Ledger(path, **WORDS)
    path.parent.chmod(0o700)


def test_a_disk_without_locks_is_one_error(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LedgerError, match="cannot be locked"):
        Ledger(path, **WORDS)


@pytest.mark.parametrize("name", ["absent.jsonl", "folder"])
def test_a_file_that_cannot_be_read_is_one_error(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(LedgerError, match=f"{name} cannot be read"):
        Ledger.load(tmp_path / name)


# --- kills ---------------------------------------------------------------------------------------------------------

AHEAD = 4  # queries a reservation
QUERIES = 10


def run_in_child(path, tell, step, *, release_first=False):
    """A run that dies at the given step of the journal's system calls; it tells every query that it released."""
    steps = iter(range(10**9))

    def dies(function, half=None):
        def call(*arguments):
            if next(steps) == step:
                if half is not None:
                    half(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    journal.os = _files.os = PatchedOs(
        write=dies(os.write, half=lambda fd, data: os.write(fd, data[: len(data) // 2])),
        fsync=dies(lambda fd: None),  # a kill loses nothing that was written, and this is quicker
        replace=dies(os.replace),
        ftruncate=dies(os.ftruncate),
    )
    ledger = Ledger(path, **WORDS)
    session = ledger.sessions[0] if ledger.sessions else ledger.register(EVENT, planned_queries=QUERIES)
    if not session.opened:
        session.open()
    for query in range(QUERIES):
        if release_first:
            os.write(tell, bytes([query]))
        if not session.is_reserved(query):
            session.reserve(query, min(query + AHEAD, QUERIES) - 1)
        if session.lookup(query) is None:
            session.spend(query, "aa")
        os.write(tell, bytes([query]))
    session.close()
    ledger.close()


def released_by(run):
    """The queries that a child released before it died, and whether it died."""
    read_end, write_end = os.pipe()
    child = started(lambda: run(write_end))
    os.close(write_end)
    released = set()
    while told := os.read(read_end, 4096):
        released |= set(told)
    os.close(read_end)
    return released, os.WIFSIGNALED(os.waitpid(child, 0)[1])


def check_account(path, released):
    """Never less than was released, at most one reservation more; the chain holds; the ledger goes on."""
    assert verify_file(path).ok
    sessions = Ledger.load(path).sessions if path.stat().st_size > 0 and read(path.read_bytes()).lines else ()
    spent = sessions[0].queries_spent if sessions else 0
    assert all(sessions[0].is_reserved(query) for query in released)
    assert len(released) <= spent <= len(released) + AHEAD
    Ledger(path, **WORDS).close()


def test_a_run_killed_at_any_step_under_reports_nothing(tmp_path):
    died, step = True, 0
    while died:
        path = tmp_path / f"{step}.jsonl"
        released, died = released_by(lambda tell, path=path, step=step: run_in_child(path, tell, step))
        if path.exists():
            check_account(path, released)
        step += 1
    assert step > 30
    assert released == set(range(QUERIES))


def test_a_run_killed_twice_under_reports_nothing(tmp_path):
    for first in range(14, 40, 5):
        for second in range(3, 24, 5):
            path = tmp_path / f"{first}-{second}.jsonl"
            before, _ = released_by(lambda tell, path=path, step=first: run_in_child(path, tell, step))
            after, _ = released_by(lambda tell, path=path, step=second: run_in_child(path, tell, step))
            check_account(path, before | after)


def test_a_run_killed_at_random_instants_under_reports_nothing(tmp_path):
    draw = random.Random(0)
    for attempt in range(20):
        path = tmp_path / f"{attempt}.jsonl"
        read_end, write_end = os.pipe()
        child = started(partial(run_in_child, path, write_end, step=-1))
        os.close(write_end)
        time.sleep(draw.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        released = set(os.read(read_end, 4096))
        os.close(read_end)
        if path.exists():
            check_account(path, released)


def test_the_kill_test_catches_a_run_that_releases_before_it_reserves(tmp_path):
    def caught(step):
        path = tmp_path / f"{step}.jsonl"
        released, _ = released_by(lambda tell: run_in_child(path, tell, step, release_first=True))
        try:
            check_account(path, released)
        except (AssertionError, IndexError):
            return True
        return False

    assert any(caught(step) for step in range(6, 30))


def test_reservations_make_a_kill_cost_one_of_them(path):
    def run(tell):
        journal.os = _files.os = PatchedOs(fsync=lambda fd: None)
        ledger = Ledger(path, **WORDS)
        session = ledger.register(EVENT, planned_queries=1000)
        session.open()
        ahead = Reservations(session)
        for query in range(40):
            ahead.prepare(query)
            session.spend(query, "aa")
        os.write(tell, bytes([0]))
        os.kill(os.getpid(), signal.SIGKILL)

    released_by(run)
    reserved = [json.loads(line) for line in lines_of(path) if b'"kind":"reserve"' in line]
    assert Ledger.load(path).sessions[0].queries_spent == reserved[-1]["last"] + 1 > 40 > reserved[-1]["first"]


# --- anything ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_disk():
    """Nothing here looks at what is durable."""
    with pytest.MonkeyPatch.context() as patch:
        use_os(patch, PatchedOs(fsync=lambda fd: None))
        yield


def check_load_or_refusal(path):
    """Every way to read a file: the answer, or a LedgerError."""
    verify_file(path)
    for load in (Ledger.load, lambda path: Ledger.load(path, read_only=False), lambda path: Ledger(path, **WORDS)):
        try:
            ledger = load(path)
        except LedgerError as error:
            message = str(error)
        else:
            message = ""
            assert ledger.verify() is not None
            ledger.close()
        assert "\n" not in message


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_random_bytes_are_an_error_or_fine(tmp_path_factory, quick_disk, content):
    path = tmp_path_factory.mktemp("fuzz") / "ledger.jsonl"
    path.write_bytes(content)
    check_load_or_refusal(path)
    assert path.read_bytes() == content[: path.stat().st_size]  # at most a torn tail was cut


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_lines_are_an_error_or_fine(tmp_path_factory, quick_disk, data):
    """A field of one line replaced by anything, and the chain made to hold again: only the meaning can be wrong."""
    path = tmp_path_factory.mktemp("fuzz") / "ledger.jsonl"
    entries = [dict(entry) for entry in ENTRIES]
    number = data.draw(st.integers(0, len(entries) - 1))
    target = entries[number]
    if "event" in target and data.draw(st.booleans()):
        target["event"] = target = dict(target["event"])
    name = data.draw(st.sampled_from([*sorted(target), "other"]))
    if data.draw(st.booleans()):
        target[name] = data.draw(JSON)
    else:
        target.pop(name, None)
    lines, previous = [], GENESIS
    for entry in entries:
        if "prev" in entry and entry["prev"] != 0:
            entry["prev"] = previous
        lines.append(canonical(entry))
        previous = sha256(lines[-1])
    path.write_bytes(b"\n".join(lines) + b"\n")
    head_path(path).write_bytes(canonical({"count": len(lines), "head": previous}))
    check_load_or_refusal(path)


def _entries():
    memory = Ledger(**WORDS, max_epsilon=50.0, max_delta=1e-6)
    share = memory.register_share(0.1, 1e-7)
    session = memory.register(EVENT, planned_queries=10, settings={"lr": 0.1})
    memory.register(EVENT, planned_queries=1, purpose="score").withdraw()
    session.open()
    session.reserve(0, 4)
    session.spend(0, "aa")
    session.close()
    quiet = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(1000.0,)
    )
    memory.register(quiet, planned_queries=1, share=share)
    return [json.loads(line) for line in memory._journal.lines]


ENTRIES = _entries()


def test_lines_of_queries_are_read_by_their_shape_as_any_line_is_read():
    """What the short way takes is canonical, and says the same."""
    line = b'{"fingerprint":"00ff","kind":"query","number":12,"prev":"ab","seq":3,"session":"train-1","v":1}'
    texts = [bytes([byte]) for byte in range(256)]
    texts += [
        b"1e5",
        b"1.0",
        b"-0",
        b"00",
        b"9" * 23,
        b"null",
        b"[1]",
        b"NaN",
        b"\\u00e9",
        b"\\n",
        b"\\ud800",
        b',"v":1',
        b"",
    ]
    taken = 0
    for place, text, length in itertools.product(range(15, len(line)), texts, (0, 1)):
        mutant = line[:place] + text + line[place + length :]
        if hash_chain._QUERY.fullmatch(mutant):  # any other line is read as before
            taken += 1
            entry = hash_chain._parse(mutant)
            assert entry == json.loads(mutant)
            assert hash_chain.canonical(entry) == mutant
    assert taken > 1000
    assert hash_chain._parse(line + b" ") is None
