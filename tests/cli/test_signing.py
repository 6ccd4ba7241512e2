"""``tacita sign`` and ``tacita verify``: a key of ssh-keygen, exit codes, and what the page says."""

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacita.tables import train_table

ABOUT = {"responsible": "Ward analytics", "contact": "privacy@example.org", "purpose": "to plan beds"}


@pytest.fixture
def keys(tmp_path):
    """Files of a private key without and with a password, and of its public key, as ssh-keygen writes them."""
    key = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    secret = serialization.BestAvailableEncryption(b"secret")
    Path("officer").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    Path("locked").write_bytes(key.private_bytes(*form, secret))
    Path("officer.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )


def sign(tacita_command, key="officer", run="run"):
    return tacita_command("sign", run, "--key", key, "--signer", "Ada")


def test_a_run_is_signed_and_verified(settings, table, keys, tacita_command, monkeypatch):
    train_table(settings(about=ABOUT))
    unsigned = tacita_command("verify", "run", "--public-key", "officer.pub")
    assert (unsigned.code, unsigned.out[:10]) == (1, "NOT SIGNED")
    assert sign(tacita_command).code == 0
    monkeypatch.setattr("tacita.cli.signing.getpass", lambda prompt: "secret")
    assert sign(tacita_command, key="locked").code == 0
    done = tacita_command("verify", "run", "--public-key", "officer.pub")
    assert (done.code, done.out.count("signed by Ada on 2023-11-14; verdict: private")) == (0, 2)
    for command in ("statement", "show"):
        shown = tacita_command(command, "run")
        assert "signed: not checked here" in shown.out + shown.err
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
    table.write_text(table.read_text() + "1,2,red,p1,yes\n")
    assert tacita_command(*command).out.startswith("OTHER DATA")
    assert "go together" in tacita_command(*command[:-2]).err


def test_a_page_that_names_nobody_is_not_signed(settings, table, keys, tacita_command):
    run = train_table(settings(about={"purpose": "to plan beds"}))
    refused = "NOT TO BE SIGNED: responsible, contact are not given"
    assert refused in " ".join(run.statement.split())
    assert "Signature: ____" not in run.statement
    signed = sign(tacita_command)
    assert signed.code == 2
    assert refused in signed.err
    assert not Path("run/signatures.jsonl").exists()
    tacita_command("report", "run", "--output", "page.html")
    page = Path("page.html").read_text()
    assert refused in page
    assert 'class="sign"' not in page


@pytest.mark.skipif(not Path("/usr/bin/ssh-keygen").exists(), reason="OpenSSH is not here")
def test_a_key_of_openssh(settings, table, tacita_command):
    subprocess.run(["/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-f", "mine", "-N", ""], check=True)
    train_table(settings(about=ABOUT))
    assert sign(tacita_command, key="mine").code == 0
    assert tacita_command("verify", "run", "--public-key", "mine.pub").code == 0
