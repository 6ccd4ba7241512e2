"""Signatures, and a second verifier in another language, which finds what tacita finds, and accepts what it accepts."""

import json
import os
import shutil
from itertools import count, islice
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tacita
from tacita.errors import TacitaError
from tacita.ledger import Ledger, verify_file
from tacita.ledger.hash_chain import canonical, read, sha256
from tacita.ledger.journal import head_path
from tacita.ledger.statement import statement_bytes
from tacita.runs.signing import public_key_of, sign_run, signatures
from tacita.tables import check_run
from tests.faults import runs
from tests.runs.second_verifier import asked, needs_node
from tests.runs.test_sealed_run import TAMPERED, append

KEPT = Path(__file__).parents[1] / "ledger" / "kept"
ABOUT = {
    "responsible": "Ward analytics",
    "contact": "privacy@example.org",
    "purpose": "to plan beds, \u201cnext year\u201d",
}
OFFICER, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))


def pem(key):
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form)


def public(key, encoding=serialization.Encoding.OpenSSH):
    openssh = encoding is serialization.Encoding.OpenSSH
    form = serialization.PublicFormat.OpenSSH if openssh else serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form)


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """A run that two people signed."""
    folder = tmp_path_factory.mktemp("signed") / "run"
    runs.train(folder, randomness=tacita.Randomness.system(), about=ABOUT)
    sign_run(folder, pem(STRANGER), signer="The ward")
    sign_run(folder, pem(OFFICER), signer="Ada Moreau, privacy officer \u2713")
    return folder


@pytest.fixture
def copies(signed, tmp_path):
    """A function that copies the signed run and changes the copy."""
    numbers = count()

    def copy(change):
        folder = tmp_path / f"{next(numbers)}"
        shutil.copytree(signed, folder)
        change(folder)
        return folder

    return copy


def accepted(folder, key=None):
    """Whether tacita finds nothing wrong; with a key, and a signature of it."""
    try:
        keys = {one.public_key for one in signatures(folder)}
        return not check_run(folder).faults and (key is None or public_key_of(key) in keys)
    except TacitaError:
        return False


def edit_signature(number, **changes):
    def change(folder):
        lines = (folder / "signatures.jsonl").read_bytes().splitlines()
        lines[number] = canonical({**json.loads(lines[number]), **changes})
        (folder / "signatures.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    return change


def restated(**changes):
    """The forger who writes everything anew: statement, seal and anchor fit each other."""

    def change(folder):
        fields = {**json.loads((folder / "statement.json").read_bytes()), **changes}
        (folder / "statement.json").write_bytes(statement_bytes(fields))
        *lines, seal = (folder / "ledger.jsonl").read_bytes().splitlines()
        reseal(folder, lines, {**json.loads(seal), "statement": sha256(canonical(fields))})

    return change


def reseal(folder, lines, seal):
    lines = [*lines, canonical(seal)]
    (folder / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    anchor = {"count": len(lines), "head": sha256(lines[-1])}
    (folder / "ledger.head.json").write_bytes(canonical(anchor) + b"\n")


def another_purpose(folder):
    """The forger who has tacita make the words anew, too: only the signatures are of something else."""
    restated(about={**ABOUT, "purpose": "to sell it"})(folder)
    (folder / "statement.txt").write_text(check_run(folder).text)
    *lines, seal = map(json.loads, (folder / "ledger.jsonl").read_bytes().splitlines())
    seal["files"]["statement.txt"] = sha256((folder / "statement.txt").read_bytes())
    reseal(folder, [canonical(line) for line in lines], seal)
    assert not check_run(folder).faults


def without_signatures(then):
    def change(folder):
        (folder / "signatures.jsonl").unlink()
        then(folder)

    return change


FORGED = {
    **TAMPERED,
    "a smaller epsilon, all hashes anew": restated(epsilon=0.1),
    "a contact taken away, all hashes anew": restated(about={"responsible": "x", "purpose": "y"}),
    "another unit, all hashes anew, unsigned": without_signatures(restated(privacy_unit="one cell")),
    "another relation, all hashes anew, unsigned": without_signatures(restated(neighboring_relation="replace_one")),
    "fewer sessions, all hashes anew, unsigned": without_signatures(restated(sessions=[])),
    "other noise, all hashes anew, unsigned": without_signatures(restated(secure_randomness=False)),
    "another purpose, all hashes anew": another_purpose,
    "another signer": edit_signature(1, signer="Somebody else"),
    "another day": edit_signature(1, date="2020-01-01"),
    "a day that is none": edit_signature(1, date="yesterday"),
    "another key": edit_signature(1, public_key=STRANGER.public_key().public_bytes_raw().hex()),
    "another signature": edit_signature(1, signature="0" * 128),
    "a signature of another ledger": edit_signature(1, ledger_sha256="0" * 64),
    "a signature of fewer lines": edit_signature(1, ledger_lines=3),
    "another purpose by the signer": edit_signature(1, about={"purpose": "to sell it"}),
    "nothing by the signer": edit_signature(1, about={}),
    "a field more": edit_signature(1, more=1),
    "nobody signs": edit_signature(1, signer=" "),
    "a torn signature": lambda folder: append(folder / "signatures.jsonl", b'{"v":1'),
    "an empty file of signatures": lambda folder: (folder / "signatures.jsonl").write_bytes(b""),
}


def test_a_signed_run(signed, copies):
    assert [one.signer for one in signatures(signed)] == ["The ward", "Ada Moreau, privacy officer \u2713"]
    assert accepted(signed, public(OFFICER))
    assert accepted(signed, public(OFFICER, serialization.Encoding.PEM))
    assert not accepted(signed, public(Ed25519PrivateKey.from_private_bytes(bytes(32))))
    assert accepted(copies(without_signatures(lambda folder: None)))


@pytest.mark.parametrize("name", FORGED, ids=lambda name: name.replace(" ", "_"))
def test_forgeries_are_found(copies, name):
    assert not accepted(copies(FORGED[name]))


def test_a_run_written_anew_and_signed_by_another_has_not_the_key(copies):
    folder = copies(without_signatures(lambda folder: None))
    sign_run(folder, pem(STRANGER), signer="Ada Moreau, privacy officer")
    assert accepted(folder, public(STRANGER))
    assert not accepted(folder, public(OFFICER))


@needs_node
def test_the_second_verifier_finds_what_tacita_finds(signed, copies, tmp_path):
    keys = {name: tmp_path / name for name in ("officer.pub", "officer.pem", "other.pub")}
    keys["officer.pub"].write_bytes(public(OFFICER))
    keys["officer.pem"].write_bytes(public(OFFICER, serialization.Encoding.PEM))
    keys["other.pub"].write_bytes(public(Ed25519PrivateKey.from_private_bytes(bytes(32))))
    calls = {name: [copies(change)] for name, change in FORGED.items()}
    # What is in words alone follows from the ledger by code, which tacita runs again and no other verifier has.
    left_to_tacita = {"a smaller epsilon, unsigned": [copies(without_signatures(restated(epsilon=0.1)))]}
    good = {"signed": [signed], "officer": [signed, keys["officer.pub"]], "in PEM": [signed, keys["officer.pem"]]}
    bad = {"not signed with this key": [signed, keys["other.pub"]], "nothing": [tmp_path / "nothing"]}
    answers = asked([*good.values(), *left_to_tacita.values(), *bad.values(), *calls.values()])
    accepting = len(good) + len(left_to_tacita)
    assert [code for code, _ in answers[:accepting]] == [0] * accepting, answers
    for name, (code, words) in zip([*bad, *calls], answers[accepting:], strict=True):
        assert (code, "fault: " in words) == (1, True), name
    assert "Ada Moreau, privacy officer \u2713" in answers[1][1]


# --- records that follow from each other by hash, and not by the rules ----------------------------------------------

VALUES = [None, -1, 0, 1, 1.0, "x", "train-1", True, [], {}, "share-1"]
TRIED = {"run": 17, "shares": 8, "events_add_or_remove_one": 1}  # kept ledgers, and how many of their first records
STRIDE = 1 if os.environ.get("TACITA_AUDIT") else 5  # every so many of their mutants


def mutants(entries):
    """Yield every ledger that differs in one record or one field."""
    for place, entry in enumerate(entries):
        before, after = entries[:place], entries[place + 1 :]
        yield [*before, *after]
        yield [*before, entry, entry, *after]
        yield [*before[:-1], entry, *before[-1:], *after]
        for name in sorted(entry.keys() - {"seq", "prev"}):
            yield [*before, {key: value for key, value in entry.items() if key != name}, *after]
            yield from ([*before, {**entry, name: value}, *after] for value in VALUES)
        yield [*before, {**entry, "more": 1}, *after]


def write_chained(path, entries):
    lines, previous = [], "0" * 64
    for seq, entry in enumerate(entries):
        lines.append(canonical({**entry, "seq": seq, "prev": previous}))
        previous = sha256(lines[-1])
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    head_path(path).write_bytes(canonical({"count": len(lines), "head": previous}))
    return path


def loads(path):
    try:
        Ledger.load(path)
    except TacitaError:
        return False
    return verify_file(path).ok


@needs_node
def test_both_accept_the_same_records(tmp_path):
    kept = sorted(KEPT.glob("*.jsonl"))
    numbers = count()
    changed = [
        write_chained(tmp_path / f"{next(numbers)}.jsonl", entries)
        for stem, most in TRIED.items()
        for entries in islice(mutants(entries_of(stem)[:most]), 0, None, STRIDE)
    ]
    ours = [loads(path) for path in [*kept, *changed]]
    theirs = asked([[path] for path in [*kept, *changed]])
    assert [code == 0 for code, _ in theirs] == ours
    assert all(ours[: len(kept)])
    assert len(kept) + 10 < sum(ours) < len(ours) / 2  # neither accepts everything


NUMBERS = [
    0,
    -7,
    10**17,
    0.0,
    -0.0,
    1.0,
    0.1,
    1e-4,
    9.99e-5,
    1e-5,
    1.5e-7,
    1e15,
    1e16,
    1.5e16,
    5e-324,
    1.7976931348623157e308,
]


def entries_of(stem):
    return [json.loads(line) for line in read((KEPT / f"{stem}.jsonl").read_bytes()).lines]


@needs_node
def test_both_write_the_same_canonical_form(tmp_path):
    """Through the event, of which the second verifier knows no field."""
    (entry, *_) = entries_of("run")
    strange = {"\U0001f600": 1, "\ufb01": 2, "\x7f\x00\u2028": [{}, [], '\\"/\b\f\n\r\t', *NUMBERS]}
    path = write_chained(tmp_path / "strange.jsonl", [{**entry, "event": {**entry["event"], **strange}}])
    others = []
    for number, text in enumerate((b"1e5", b"1.50", b"-0", b"1E-05", b"1e-5", b"0.00001", b"NaN", b"Infinity")):
        others.append(tmp_path / f"{number}.jsonl")
        others[-1].write_bytes(path.read_bytes().replace(b"5e-324", text) + b"{}\n{}\n")  # so that it is no torn line
        with pytest.raises(TacitaError, match="line 1 of the ledger is not one that tacita wrote"):
            read(others[-1].read_bytes())
    assert not read(path.read_bytes()).fault
    assert [code for code, _ in asked([[one] for one in (path, *others)])] == [0] + [1] * len(others)


def test_the_second_verifier_is_short():
    assert len((Path(__file__).parents[2] / "docs" / "verify.mjs").read_text().splitlines()) <= 500


# --- what cannot be signed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["responsible", "contact", "purpose"])
def test_a_statement_that_names_nobody_cannot_be_signed(tmp_path, missing):
    about = {name: words for name, words in ABOUT.items() if name != missing}
    runs.train(tmp_path / "run", randomness=tacita.Randomness.system(), about=about)
    with pytest.raises(TacitaError, match=rf"NOT TO BE SIGNED: {missing} is not given.*--{missing}"):
        sign_run(tmp_path / "run", pem(OFFICER), signer="Ada")


@needs_node
def test_what_a_signer_gives_is_covered_by_the_signature(tmp_path):
    run = tmp_path / "run"
    runs.train(run, randomness=tacita.Randomness.system(), about={"purpose": ABOUT["purpose"]})
    rest = {name: ABOUT[name] for name in ("responsible", "contact")}
    for wrong in ({"contact": "x"}, {**rest, "purpose": "x"}, {**rest, "owner": "x"}, {**rest, "contact": " "}):
        with pytest.raises((TacitaError, ValueError), match=r"not given|must be left out|must hold|one line"):
            sign_run(run, pem(OFFICER), signer="Ada", about=wrong)
    told = {"about": rest, "warnings": ["1 other run on the same data costs in addition"]}
    one = sign_run(run, pem(OFFICER), signer="Ada", **told)
    assert sign_run(run, pem(OFFICER), signer="Ada", **told) == one  # once
    assert one.warnings == (*told["warnings"],)
    assert signatures(run) == (one,)
    folders = [run]
    changes = [{"about": {**rest, "contact": "y"}}, {"about": {"contact": "x"}}, {"about": {**rest, "purpose": "z"}}]
    for number, change in enumerate([*changes, {"about": None}, {"warnings": ["y"]}, {"warnings": []}]):
        folders.append(Path(shutil.copytree(run, tmp_path / f"{number}")))
        edit_signature(0, **change)(folders[-1])
    (run / "patients.csv").write_text("Ada")
    answers = asked([[folder] for folder in folders])
    assert [code for code, _ in answers] == [0, *[1] * 6]
    assert [accepted(folder) for folder in folders] == [True, *[False] * 6]
    assert "covers these files, whatever they say: patients.csv; as stated, not computed here: private" in answers[0][1]


def test_nothing_is_signed_that_guarantees_nothing(tmp_path):
    runs.train(tmp_path / "run", about=ABOUT)  # its noise comes from a seed
    with pytest.raises(TacitaError, match="nothing is guaranteed, the verdict is not private"):
        sign_run(tmp_path / "run", pem(OFFICER), signer="Ada")


def test_keys_that_are_none(signed, copies):
    folder = copies(lambda folder: None)
    for key in (b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", public(OFFICER)):
        with pytest.raises(ValueError, match="ssh-keygen"):
            sign_run(folder, key, signer="Ada")
        with pytest.raises(ValueError, match="ssh-keygen"):
            public_key_of(key[:20])
    with pytest.raises(ValueError, match="signer must be one line"):
        sign_run(folder, pem(OFFICER), signer="A\nB")
    assert signatures(folder) == signatures(signed)


@needs_node
def test_a_sealed_file_that_is_a_link_is_named(copies, signed):
    """Its content is the sealed one, as that of an annex may be; but it can be pointed elsewhere after the check."""

    def link(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(signed / "model.safetensors")

    def loop(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to("model.safetensors")

    linked, looped, whole = copies(link), copies(loop), copies(lambda folder: None)
    whole_by_link = whole.with_name("link")
    whole_by_link.symlink_to(whole)
    words = "links, not files: what was checked is what they point to now, and they can be pointed elsewhere later: "
    named = [words + "model.safetensors" in (*check_run(one).notes, "") for one in (linked, whole, whole_by_link)]
    assert named == [True, False, False]
    assert not check_run(linked).faults
    assert check_run(looped).faults
    (code, said), (broken, _), (_, quiet) = asked([[linked], [looped], [whole_by_link]])
    assert (code, broken) == (0, 1)
    assert words + "model.safetensors;" in said
    assert "links" not in quiet
