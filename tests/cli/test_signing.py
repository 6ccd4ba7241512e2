"""``tacita sign`` and ``tacita verify``: a key of ssh-keygen, exit codes, and what the page says."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

import tacita
from tacita.tables import table_task, train_table

ABOUT = {"responsible": "Ward analytics", "contact": "privacy@example.org", "purpose": "to plan beds"}


def sign(tacita_command, key="officer", run="run"):
    return tacita_command("sign", run, "--key", key, "--signer", "Ada")


def test_a_run_is_signed_and_verified(settings, table, keys, tacita_command, monkeypatch):
    train_table(settings(about=ABOUT))
    unsigned = tacita_command("verify", "run", "--public-key", "officer.pub")
    assert (unsigned.code, unsigned.out[:10]) == (1, "NOT SIGNED")
    signed = sign(tacita_command)
    assert (signed.code, signed.out[:17]) == (0, "verdict: private\n")
    assert "not verified: What was given or declared" in signed.out
    monkeypatch.setattr("tacita.cli.signing.getpass", lambda prompt: "secret")
    assert sign(tacita_command, key="locked").code == 0  # the same person, who has signed already
    done = tacita_command("verify", "run", "--public-key", "officer.pub")
    assert (done.code, done.out.count("signed by Ada on 2023-11-14\n")) == (0, 1)
    for command in ("statement", "show"):
        shown = tacita_command(command, "run")
        assert "whose keys these are is not checked here" in shown.out + shown.err
    monkeypatch.setattr("tacita.cli.signing.getpass", lambda prompt: (_ for _ in ()).throw(EOFError))
    nobody = sign(tacita_command, key="locked")
    assert (nobody.code, "key has a password, which is asked for at a terminal" in nobody.err) == (2, True)
    monkeypatch.setattr("tacita.cli.signing.getpass", lambda prompt: "other")
    assert "Is the password right?" in sign(tacita_command, key="locked").err
    Path("run/model.safetensors").write_bytes(b"x")
    changed = tacita_command("verify", "run", "--public-key", "officer.pub")
    assert (changed.code, changed.out[:12]) == (1, "NOT VERIFIED")
    assert "model.safetensors is not the file" in changed.out


def test_the_data_are_named_by_a_fingerprint_that_its_key_opens(settings, table, keys, tacita_command):
    Path("data.key").write_bytes(bytes(range(32)))
    Path("short.key").write_bytes(b"short")
    with pytest.raises(ValueError, match="openssl rand"):
        train_table(settings(fingerprint_key="short.key", output="short"))
    runs = [train_table(settings(about=ABOUT, fingerprint_key="data.key", output=name)) for name in ("run", "other")]
    fingerprints = [run.fields["data_fingerprint"] for run in runs]
    assert fingerprints[0] != fingerprints[1]  # though key and data are the same
    assert fingerprints[0] in "".join(runs[0].statement.split())
    assert sign(tacita_command).code == 0
    command = ("verify", "run", "--public-key", "officer.pub", "--data", "table.csv", "--fingerprint-key", "data.key")
    done = tacita_command(*command)
    assert (done.code, "trained on table.csv" in done.out) == (0, True)
    assert "signed by Ada on 2023-11-14; warned that: 1 other run on the same data cost in addition\n" in done.out
    table.write_text(table.read_text() + "1,2,red,p1,yes\n")
    assert tacita_command(*command).out.startswith("OTHER DATA")
    assert "go together" in tacita_command(*command[:-2]).err


def test_the_fingerprint_is_that_of_the_rows_that_were_read(settings, table, keys, tacita_command, monkeypatch):
    """A file that changes while it is read ends the run; one that changes later is not the one that is named."""
    Path("data.key").write_bytes(bytes(range(32)))
    given = settings(about=ABOUT, fingerprint_key="data.key")
    rows = table.read_text()

    def changed(original):
        def call(*args, **kwargs):
            table.write_text(rows + "1,2,red,p1,yes\n")
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(table_task, "encode_rows", changed(table_task.encode_rows))
        with pytest.raises(tacita.TacitaError, match="data must not change while it is read"):
            train_table(given)
    table.write_text(rows)
    with monkeypatch.context() as patch:
        patch.setattr(table_task, "train", changed(table_task.train))
        train_table(given)
    assert sign(tacita_command).code == 0
    command = ("verify", "run", "--public-key", "officer.pub", "--fingerprint-key", "data.key", "--data", "table.csv")
    assert tacita_command(*command).out.startswith("OTHER DATA")
    table.write_text(rows)
    assert "trained on table.csv" in tacita_command(*command).out


def test_a_page_that_names_nobody_is_not_signed(settings, table, keys, tacita_command):
    run = train_table(settings(about={"purpose": "to plan beds"}))
    refused = "NOT TO BE SIGNED: responsible, contact are not given"
    assert refused in " ".join(run.statement.split())
    assert "Signature: ____" not in run.statement
    signed = sign(tacita_command)
    assert signed.code == 2
    assert refused in signed.err
    assert "tacita sign takes --responsible --contact." in signed.err
    assert not Path("run/signatures.jsonl").exists()
    tacita_command("report", "run", "--output", "page.html")
    page = Path("page.html").read_text()
    assert refused in page
    assert 'class="sign"' not in page


def test_what_the_statement_does_not_say_is_said_by_whoever_signs(settings, table, keys, tacita_command):
    train_table(settings(about={"purpose": "to plan beds"}))
    before = Path("run/statement.json").read_bytes()
    command = ("sign", "run", "--key", "officer", "--signer", "Ada", "--responsible", "Ward analytics")
    assert "NOT TO BE SIGNED: contact is not given" in tacita_command(*command).err
    whole = (*command, "--contact", "privacy@example.org")
    assert "purpose must be left out: the statement says it already" in tacita_command(*whole, "--purpose", "x").err
    assert "contact must be one line" in tacita_command(*command, "--contact", "a\nb").err
    assert tacita_command(*whole).code == 0
    done = tacita_command("verify", "run", "--public-key", "officer.pub")
    assert (done.code, "contact (said by the signer): privacy@example.org" in done.out) == (0, True)
    assert Path("run/statement.json").read_bytes() == before
    (line,) = Path("run/signatures.jsonl").read_bytes().splitlines()
    for old, new in ((b"privacy@", b"nobody@"), (b'"contact"', b'"purpose"'), (b'"contact"', b'"comment"')):
        Path("run/signatures.jsonl").write_bytes(line.replace(old, new) + b"\n")
        assert tacita_command("verify", "run", "--public-key", "officer.pub").out.startswith("NOT VERIFIED")
        assert "the signatures do not hold: " in tacita_command("show", "run").out


def test_a_folder_that_holds_the_key_of_the_noise_is_neither_signed_nor_verified(settings, table, keys, tacita_command):
    train_table(settings(about=ABOUT))
    assert sign(tacita_command).code == 0
    Path("run/private").mkdir()
    Path("run/private/key").write_bytes(b"of the noise")
    verified, again = tacita_command("verify", "run", "--public-key", "officer.pub"), sign(tacita_command)
    assert (verified.code, verified.out.startswith("NOT VERIFIED: private/ is still here")) == (1, True)
    assert (again.code, "private/ is still here" in again.err) == (2, True)


def test_the_signature_of_another_run_is_named_as_that(settings, table, keys, tacita_command):
    train_table(settings(about=ABOUT))
    train_table(settings(output="first"))
    assert sign(tacita_command).code == 0
    Path("first/signatures.jsonl").write_bytes(Path("run/signatures.jsonl").read_bytes())
    done = tacita_command("verify", "first", "--public-key", "officer.pub")
    assert (done.code, "it is a signature of another ledger" in done.out) == (1, True)


@pytest.mark.skipif(not Path("/usr/bin/ssh-keygen").exists(), reason="OpenSSH is not here")
def test_a_key_of_openssh(settings, table, tacita_command, monkeypatch):
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-f", "mine", "-N", ""], check=True)
    train_table(settings(about=ABOUT))
    assert sign(tacita_command, key="mine").code == 0
    assert tacita_command("verify", "run", "--public-key", "mine.pub").code == 0
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-f", "locked", "-N", "secret"], check=True)
    monkeypatch.setattr("tacita.cli.signing.getpass", lambda prompt: "secret")
    locked = sign(tacita_command, key="locked")
    if find_spec("bcrypt") is None:
        assert (locked.code, "without the package bcrypt" in locked.err) == (2, True)
    else:
        assert locked.code == 0


def test_what_a_signer_gave_is_missing_no_more(settings, table, keys, tacita_command):
    train_table(settings())
    assert "NOT TO BE SIGNED" in tacita_command("show", "run").out
    given = [part for name, words in ABOUT.items() for part in (f"--{name}", words)]
    assert tacita_command("sign", "run", "--key", "officer", "--signer", "Ada", *given).code == 0
    assert "NOT TO BE SIGNED" not in tacita_command("show", "run").out
    assert "not to be signed" not in tacita_command("list", ".").out
    card = tacita_command("card", "run").out
    assert (
        "signed by Ada, 2023-11-14 (says: contact: privacy@example.org, purpose: to plan beds, responsible: Ward"
        in card
    )
    assert "**Contact**: said by a signer: see the note" in card


def test_a_signature_that_does_not_hold_is_in_every_verdict(settings, table, keys, tacita_command):
    train_table(settings(about=ABOUT))
    assert sign(tacita_command).code == 0
    signatures = Path("run/signatures.jsonl")
    signatures.write_text(signatures.read_text().replace('"Ada"', '"Eve"'))
    for command in ("statement", "show", "list", "card"):
        shown = tacita_command(command, "." if command == "list" else "run")
        assert "CAUTION: a signature does not hold" in " ".join(shown.out.split()), command
