"""Keys, fingerprints, and the private file."""

import copy
import hashlib
import hmac
import json
import os
import pickle
import shutil
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given
from hypothesis import strategies as st

import tacita._files
import tacita.random
from tacita.errors import LedgerError, ResumeError
from tacita.random import Key, QueryCoins, Randomness, Stream
from tests.forked import exit_code

LABELS = st.lists(st.one_of(st.text(max_size=4), st.integers(-300, 300)), max_size=4)


# -- keys


def test_derivation_is_hkdf_sha256_over_framed_labels():
    secret = hashlib.sha256(_frame("s", b"tacita insecure key") + _frame("i", b"3")).digest()
    pseudo_random = hmac.digest(b"tacita key v1", secret, "sha256")
    info = _frame("s", b"stream") + _frame("s", "é".encode()) + _frame("i", b"-7")
    expected = hmac.digest(pseudo_random, info + b"\x01", "sha256")
    assert Key.insecure(3).stream("é", -7) == Stream(expected)


def _frame(kind, data):
    return kind.encode() + len(data).to_bytes(8, "big") + data


@given(LABELS, LABELS)
def test_no_two_lists_of_labels_lead_to_one_key(left, right):
    key = Key.insecure(0)
    assert (key.derive(*left) == key.derive(*right)) == (left == right)
    assert (key.stream(*left) == key.stream(*right)) == (left == right)
    assert (key.tag(*left, parts=[b""]) == key.tag(*right, parts=[b""])) == (left == right)


def test_purposes_share_no_key():
    key = Key.insecure(0)
    secrets = [key._secret, key.derive()._secret, key.next()._secret, key.stream()._secret]
    secrets += [key.derive("next")._secret, key.derive("stream")._secret, key.stream("derive")._secret]
    assert len(set(secrets)) == len(secrets)


def test_no_words_are_shared_by_sessions_queries_purposes_or_generations():
    randomness, words = Randomness.insecure(0), []
    for _ in range(3):
        for session in ("train-1", "train-2", "score-1"):
            for query in range(5):
                words += [randomness.key.stream(session, purpose, query).words(50) for purpose in ("batch", "noise")]
        randomness.ratchet()
    words = np.concatenate(words)
    assert len(np.unique(words)) == len(words) == 3 * 3 * 5 * 2 * 50


def test_system_keys_are_secure_and_new_each_time():
    assert Key.system() != Key.system()
    assert Randomness.system().secure
    assert Key.system().derive("a").next().secure


def test_a_system_key_is_256_bits_of_the_system(monkeypatch):
    monkeypatch.setattr(tacita.random.secrets, "token_bytes", lambda count: bytes(range(count)))
    for key in (Key.system(), Randomness.system().key):
        assert key == Key(bytes(range(32)), secure=True)


def test_seeded_keys_repeat_and_are_marked():
    assert Key.insecure(5) == Key.insecure(5) != Key.insecure(6)
    assert not Key.insecure(5).derive("a").next().secure
    assert not Randomness.insecure(0).secure


@pytest.mark.parametrize("label", [True, 1.0, None, b"a"])
def test_a_label_that_is_neither_text_nor_integer_is_refused(label):
    with pytest.raises(TypeError, match="a label must be a str or an int"):
        Key.insecure(0).derive(label)


@pytest.mark.parametrize("secret", [Key.insecure(0), Randomness.insecure(0)])
def test_secrets_are_neither_shown_nor_copied(secret):
    key = secret if isinstance(secret, Key) else secret.key
    for shown in (repr(secret), str(secret), f"{secret}"):
        assert key._secret.hex() not in shown
        assert repr(key._secret) not in shown
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            copier(secret)
    with pytest.raises(ValueError, match="must have 32 bytes"):
        Key(b"short", secure=True)


# -- fingerprints


def test_a_tag_is_poly1305_of_the_parts_and_their_lengths():
    key, parts = Key.insecure(0), [b"abc", np.arange(6.0), b""]
    message = b"abc" + np.arange(6.0).tobytes() + b"".join(n.to_bytes(8, "little") for n in (3, 48, 0, 3))
    one_time = key._expand("tag", ("train-1", 4))
    assert key.tag("train-1", 4, parts=parts) == Poly1305.generate_tag(one_time, message).hex()


@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(st.binary(max_size=20), max_size=4))
def test_two_lists_of_parts_have_two_tags(left, right):
    key = Key.insecure(0)
    assert (key.tag(0, parts=left) == key.tag(0, parts=right)) == (left == right)


def test_tags_see_one_bit_and_where_it_stands():
    key, values = Key.insecure(0), np.zeros((100, 3), np.float32)
    tags = {key.tag(0, parts=[values])}
    for place in (0, 150, 299):
        changed = values.copy()
        changed.reshape(-1)[place] = -0.0  # equal as a number, not as a release
        tags.add(key.tag(0, parts=[changed]))
    tags.add(key.tag(0, parts=[values[:50], values[50:]]))
    tags.add(key.tag(0, parts=[values, np.empty((0, 3), np.float32)]))
    assert len(tags) == 6


def test_a_part_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        Key.insecure(0).tag(0, parts=[np.zeros((4, 4))[:, 1]])


# -- generations and sessions


def test_the_ratchet_changes_the_key_and_keeps_the_sessions():
    randomness = Randomness.insecure(0)
    coins, first = QueryCoins(randomness, "train-1"), randomness.key
    early, own = coins.for_query(0), coins.for_session()
    randomness.ratchet()
    assert randomness.generation == 1
    assert randomness.key == first.next() != first
    assert coins.for_query(0) != early
    assert coins.for_session() == own
    assert QueryCoins(randomness, "train-2").for_session() != own


def test_coins_belong_to_session_and_query():
    randomness = Randomness.insecure(0)
    coins = QueryCoins(randomness, "train-1")
    assert coins.for_query(3) == randomness.key.stream("train-1", "batch", 3) != coins.for_query(4)
    assert coins.for_session() == randomness.session_key("train-1").stream("assignment")


def test_a_name_is_taken_once():
    randomness = Randomness.insecure(0)
    randomness.claim("train-1", ledger="a")
    randomness.claim("train-2", ledger="a")
    with pytest.raises(ValueError, match="same noise twice"):
        randomness.claim("train-1", ledger="a")
    randomness.claim("train-1", ledger="a", resumed=True)


def test_a_name_that_has_drawn_is_taken_in_the_next_process_too(tmp_path):
    randomness = Randomness.insecure(0)
    randomness.claim("train-1", ledger="a")
    randomness.save(tmp_path / "key")
    Randomness.load(tmp_path / "key").claim(
        "train-1", ledger="a"
    )  # nothing was drawn: a run killed before its first query
    QueryCoins(randomness, "train-1").for_query(0)
    randomness.save(tmp_path / "key")
    with pytest.raises(ValueError, match="same noise twice"):
        Randomness.load(tmp_path / "key").claim("train-1", ledger="a")
    Randomness.load(tmp_path / "key").claim("train-1", ledger="a", resumed=True)


def test_a_key_draws_for_one_ledger(tmp_path):
    randomness = Randomness.system()
    randomness.save(tmp_path / "before")
    name = randomness.claim("train-1", ledger="a")
    with pytest.raises(LedgerError, match="another ledger"):
        randomness.claim("train-2", ledger="b")
    randomness.save(tmp_path / "after")
    with pytest.raises(LedgerError, match="another ledger"):
        Randomness.load(tmp_path / "after").claim("train-1", ledger="b", resumed=True)
    assert Randomness.load(tmp_path / "after").claim("train-1", ledger="a") == name
    copied = Randomness.load(tmp_path / "before")  # which no ledger had claimed: its streams are others all the same
    other = copied.claim("train-1", ledger="b")
    assert copied.key == randomness.key
    assert copied.key.stream(other, "noise", 0) != randomness.key.stream(name, "noise", 0)
    assert copied.session_key(other) != randomness.session_key(name)


# -- copies of a run


def keys_of(randomness, queries=range(6)):
    return [randomness.query_key("a", query)._secret for query in queries]


def test_two_copies_redo_the_same_queries_and_share_nothing_else(tmp_path):
    run = Randomness.system()
    run.save(tmp_path / "one")
    shutil.copy(tmp_path / "one", tmp_path / "two")
    copies = [Randomness.load(tmp_path / name) for name in ("one", "two")]
    for one in copies:
        one.renew("a", 3)
    assert keys_of(copies[0])[:3] == keys_of(copies[1])[:3] == keys_of(run)[:3]
    seen = {key for one in copies for key in keys_of(one, range(3, 6))}
    for one in copies:
        one.ratchet()
        seen.add(one.key._secret)
    run.ratchet()
    seen.add(run.key._secret)
    assert len(seen) == 2 + 3


def test_the_next_process_redoes_what_was_drawn_under_the_new_key(tmp_path):
    Randomness.system().save(tmp_path / "key")
    for first in (2, 4, 4):  # the third finds that nothing was drawn by the second
        one = Randomness.load(tmp_path / "key")
        before = keys_of(one)
        one.renew("a", first)
        assert keys_of(Randomness.load(tmp_path / "key")) == keys_of(one)
        assert keys_of(one)[:first] == before[:first]
        assert keys_of(one)[first:] != before[first:]


@pytest.mark.parametrize("ratcheted", [False, True])
def test_correlated_noise_of_two_copies_is_the_same_only_where_it_is_redone(tmp_path, ratcheted):
    run = Randomness.system()
    run.save(tmp_path / "one")
    shutil.copy(tmp_path / "one", tmp_path / "two")

    def noise(randomness):
        return [randomness.noise_key("a", query)._secret for query in range(2, 7)]

    old, found = noise(run), []
    for name in ("one", "two"):
        one = Randomness.load(tmp_path / name)
        one.renew("a", 4)
        if ratcheted:
            one.keep_noise("a", 2, 6)
            one.ratchet()
            with pytest.raises(ResumeError, match="keys of earlier noise are gone"):
                one.noise_key("a", 1)
        found.append(noise(one))
        one.save(tmp_path / name)
        assert noise(Randomness.load(tmp_path / name)) == found[-1]
    assert found[0][:2] == found[1][:2] == old[:2]
    assert len({*found[0][2:], *found[1][2:], *old[2:]}) == 9


def test_a_session_has_one_key_in_every_process(tmp_path):
    """Its assignments, a selection's number of runs: drawn by a process that was killed before it saved anything."""
    run = Randomness.system()
    run.save(tmp_path / "key")
    drawn = run.session_key("a")
    for _ in range(2):
        later = Randomness.load(tmp_path / "key")
        later.renew("a", 0)
        assert later.session_key("a") == drawn
        later.ratchet()
        later.write_back()


def test_a_ratchet_keeps_what_is_wanted_and_no_more(tmp_path):
    Randomness.system().save(tmp_path / "key")
    one = Randomness.load(tmp_path / "key")
    for session in ("a", "b"):
        one.renew(session, 0)
        one.keep_noise(session, 0, 2)
    one.ratchet()
    one.write_back()
    assert json.loads((tmp_path / "key").read_text())["renewed"] == {}
    next_one = Randomness.load(tmp_path / "key")
    next_one.keep_noise("a", 1, 2)
    next_one.ratchet()  # before the session b is taken up
    assert next_one.noise_key("b", 0) == one.noise_key("b", 0)


def test_a_key_that_could_not_be_written_is_written_before_the_next_draw(tmp_path, monkeypatch):
    Randomness.system().save(tmp_path / "key")
    one = Randomness.load(tmp_path / "key")
    with monkeypatch.context() as patch:
        patch.setattr("tacita.random.replace_durably", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            one.renew("a", 1)
        one.ratchet()
    one.write_back()
    assert keys_of(Randomness.load(tmp_path / "key")) == keys_of(one)


def test_a_file_that_could_not_be_saved_is_saved_before_the_next_draw(tmp_path, monkeypatch):
    """By the first process, too, whose key no file held yet: what it draws would be drawn under a key on no disk."""
    one = Randomness.system()
    one.save(tmp_path / "key")
    one.ratchet()
    with monkeypatch.context() as patch:
        patch.setattr("tacita.random.replace_durably", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("full")))
        for write in (lambda: one.save(tmp_path / "key"), one.write_back):
            with pytest.raises(OSError, match="full"):
                write()
    one.write_back()
    assert keys_of(Randomness.load(tmp_path / "key")) == keys_of(one)


def test_a_file_that_could_not_be_saved_is_not_written_over_what_another_process_wrote(tmp_path, monkeypatch):
    Randomness.system().save(tmp_path / "key")
    one = Randomness.load(tmp_path / "key")
    one.ratchet()
    with monkeypatch.context() as patch:
        patch.setattr("tacita.random.replace_durably", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            one.save(tmp_path / "key")
    other = Randomness.load(tmp_path / "key")
    other.write_back()
    with pytest.raises(ResumeError, match="another process has changed it"):
        one.write_back()
    assert keys_of(Randomness.load(tmp_path / "key")) == keys_of(other)


def test_each_process_has_a_name_in_the_lineage(tmp_path):
    run = Randomness.system()
    run.save(tmp_path / "key")
    first = Randomness.load(tmp_path / "key")
    first.write_back()
    second, third = (Randomness.load(tmp_path / "key") for _ in range(2))
    assert run.lineage == first.lineage[:-1] == second.lineage[:-2] == third.lineage[:-2]
    assert second.lineage[1] == third.lineage[1] == first.lineage[1]
    assert len({*second.lineage, *third.lineage}) == 4


def test_a_key_that_another_process_has_changed_is_not_written_over(tmp_path, monkeypatch):
    Randomness.system().save(tmp_path / "key")
    late, other = (Randomness.load(tmp_path / "key") for _ in range(2))
    other.ratchet()
    other.save(tmp_path / "key")
    kept = (tmp_path / "key").read_bytes()
    with pytest.raises(ResumeError, match="is gone, or another process has changed it"):
        late.renew("a", 0)
    assert (tmp_path / "key").read_bytes() == kept
    monkeypatch.chdir(tmp_path)
    moved = Randomness.load("key")
    monkeypatch.chdir("/")
    moved.renew("a", 0)
    assert keys_of(Randomness.load(tmp_path / "key")) == keys_of(moved)
    moved.save(tmp_path / "backup")
    moved.renew("a", 2)
    assert keys_of(Randomness.load(tmp_path / "key")) == keys_of(moved) != keys_of(Randomness.load(tmp_path / "backup"))


def test_a_linked_key_is_written_and_removed_where_it_lies(tmp_path):
    (tmp_path / "safe").mkdir()
    Randomness.system().save(tmp_path / "safe" / "key")
    (tmp_path / "key").symlink_to(tmp_path / "safe" / "key")
    one = Randomness.load(tmp_path / "key")
    one.renew("a", 1)
    assert (tmp_path / "key").is_symlink()
    assert keys_of(Randomness.load(tmp_path / "safe" / "key")) == keys_of(one)
    Randomness.destroy(tmp_path / "key")
    assert not [*tmp_path.rglob("*key*")]


def test_a_new_process_renews_no_seed_and_brings_no_destroyed_key_back(tmp_path):
    Randomness.insecure(0).save(tmp_path / "key")
    seeded = Randomness.load(tmp_path / "key")
    seeded.renew("a", 0)
    seeded.ratchet()
    assert seeded.key == Key.insecure(0).next() == seeded.query_key("a", 0)
    fresh = Randomness.system()
    fresh.renew("a", 0)  # no other process has this key
    assert fresh.query_key("a", 0) == fresh.key
    fresh.save(tmp_path / "key")
    last = Randomness.load(tmp_path / "key")
    Randomness.destroy(tmp_path / "key")
    with pytest.raises(ResumeError, match="is gone"):
        last.renew("a", 0)
    assert not (tmp_path / "key").exists()


# -- the private file


def used(seed=0):
    randomness = Randomness.insecure(seed)
    randomness.session_key("train-1")
    randomness.ratchet()
    randomness.session_key("train-2")
    return randomness


def same(left, right):
    return (
        left.key == right.key
        and (left.generation, left.secure) == (right.generation, right.secure)
        and all(left.session_key(name) == right.session_key(name) for name in ("train-1", "train-2"))
    )


def test_what_is_saved_is_loaded(tmp_path):
    randomness = used()
    randomness.save(tmp_path / "key")
    assert same(Randomness.load(tmp_path / "key"), randomness)
    assert [file.name for file in tmp_path.iterdir()] == ["key"]
    system = Randomness.system()
    system.save(tmp_path / "key")
    assert Randomness.load(tmp_path / "key").secure
    assert Randomness.load(tmp_path / "key").key == system.key


def test_the_file_is_its_owners_alone_from_creation_on(tmp_path, monkeypatch):
    modes, replace = [], os.replace
    create = os.open

    def spying_open(path, flags, mode=0o777, **more):
        descriptor = create(path, flags, mode, **more)
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", spying_open)
    monkeypatch.setattr(os, "replace", lambda a, b: (modes.append(stat.S_IMODE(os.stat(a).st_mode)), replace(a, b)))
    before = os.umask(0)
    try:
        used().save(tmp_path / "key")
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_loading_takes_the_file_back_from_others(tmp_path):
    used().save(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    Randomness.load(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "draw",
    [
        lambda randomness: randomness.key,
        lambda randomness: randomness.session_key("before"),
        lambda randomness: randomness.session_key("new"),
        lambda randomness: QueryCoins(randomness, "before").for_query(0),
        lambda randomness: QueryCoins(randomness, "before").for_session(),
        lambda randomness: randomness.ratchet() or randomness.key,
    ],
    ids=["key", "session_key", "new_session_key", "for_query", "for_session", "ratchet"],
)
def test_a_forked_process_has_none_of_the_keys(draw):
    """It would draw the same batches and the same noise as its parent, for other values."""
    randomness = Randomness.insecure(0)
    randomness.session_key("before")
    draw(randomness)  # in its own process

    def child():
        with pytest.raises(RuntimeError, match="belongs to the process it was made in"):
            draw(randomness)

    assert exit_code(child) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("module", "call", "survivor"),
    [
        (tacita.random.json, "dumps", 1),
        (os, "fsync", 1),
        (os, "replace", 1),
        (tacita._files, "flush_folder", 2),
        (None, None, 2),
    ],
)
def test_a_kill_between_two_writes_leaves_a_whole_file(tmp_path, module, call, survivor):
    path, old, new = tmp_path / "key", used(1), used(2)
    old.save(path)

    def child():
        own = used(2)
        if module is not None:
            setattr(module, call, lambda *args: os._exit(9))
        own.save(path)
        return 9

    assert exit_code(child) == 9
    assert same(Randomness.load(path), {1: old, 2: new}[survivor])
    new.save(path)  # what the kill left behind is in nobody's way
    assert same(Randomness.load(path), new)
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def damaged(**changes):
    key = "ab" * 32
    state = {"format": "tacita randomness 4", "generation": 0, "secure": True, "key": key}
    state |= {"sessions": {}, "drawn": [], "ledger": None, "renewed": {}, "noise": {}, "lineage": ["a"]}
    return json.dumps({name: value for name, value in {**state, **changes}.items() if value is not ...}).encode()


def test_the_undamaged_file_of_the_next_test_loads(tmp_path):
    (tmp_path / "key").write_bytes(damaged())
    assert Randomness.load(tmp_path / "key").secure


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SECRET",
        b'{"key": "SECRET',
        b"\xff\xfeSECRET",
        b"[" * 100_000,
        b'["SECRET"]',
        damaged()[:-20],
        damaged(key="SECRET"),
        damaged(key="ab" * 31),
        damaged(key=5),
        damaged(key=...),
        damaged(more="SECRET"),
        damaged(generation=-1),
        damaged(generation=True),
        damaged(generation=0.5),
        damaged(secure=1),
        damaged(format="tacita randomness 1"),
        damaged(sessions={"train-1": "SECRET"}),
        damaged(sessions={"train-1": ["SECRET"]}),
        damaged(drawn=[["SECRET"]]),
        damaged(noise=["SECRET"]),
        damaged(noise={"train-1": "SECRET"}),
        damaged(noise={"train-1": [1, ["SECRET"]]}),
        damaged(noise={"train-1": [1, [5]]}),
        damaged(noise={"train-1": [0, ["ab" * 32]]}),
        damaged(noise={"train-1": ["1", ["ab" * 32]]}),
        damaged(lineage=[]),
        damaged(lineage=[5]),
        damaged(renewed={"train-1": [["0", "ab" * 32]]}),
        damaged(renewed=...),
        damaged(ledger=5),
        damaged(ledger=...),
    ],
)
def test_garbage_is_refused_without_a_word_of_it(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ResumeError, match="is no private key file of this version, or is damaged") as caught:
        Randomness.load(tmp_path / "key")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "SECRET" not in str(caught.value)
    assert "abab" not in str(caught.value)


def test_a_file_that_is_not_there_is_a_resume_error(tmp_path):
    with pytest.raises(ResumeError, match="cannot be read"):
        Randomness.load(tmp_path / "key")


def test_destroy_unlinks_the_file_and_what_a_kill_left(tmp_path):
    used().save(tmp_path / "key")
    (tmp_path / ".key.tmp").write_text("left by a kill")
    Randomness.destroy(tmp_path / "key")
    assert not list(tmp_path.iterdir())
    Randomness.destroy(tmp_path / "key")
