"""``tacita sign`` and ``tacita verify``: who answers for a finished run, and whether that still holds."""

from functools import partial
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from tacita.cli.outputs import NO_GUARANTEE, exit_code
from tacita.errors import TacitaError

if TYPE_CHECKING:
    from tacita.tables import Checked


def sign(
    run: str,
    /,
    *,
    key: str,
    signer: str,
    responsible: str | None = None,
    contact: str | None = None,
    purpose: str | None = None,
) -> int:
    """Sign a finished run with an Ed25519 key, after all checks of tacita statement.

    The signature covers the ledger's last line, and so the model, the statement and every file, and the warnings that
    stand before the verdict on that day. A run without a guarantee is refused. Where the statement does not say who is
    responsible, whom to ask and what the model is for, you say it here: the signature covers it, and the sealed
    statement stays as it is.
    Make a key with: ssh-keygen -t ed25519 -f officer

    Example: tacita sign runs/adult --key officer --signer "Ada Moreau, privacy officer"

    Args:
        run: Folder of a finished run.
        key: File of the private key (OpenSSH or PEM); if it has a password, you are asked for it.
        signer: Who signs.
        responsible: Who answers for the model, if the statement does not say it.
        contact: Whom to ask, if the statement does not say it.
        purpose: What the model is for, if the statement does not say it.
    """
    from tacita.ledger.run_sections import not_to_be_signed
    from tacita.runs.signing import SIGNATURES, sign_run

    checked = unchanged(run)
    if not checked.verdict.guaranteed:
        raise TacitaError(not_to_be_signed(checked.verdict))
    given = {"responsible": responsible, "contact": contact, "purpose": purpose}
    about = {name: words for name, words in given.items() if words is not None}
    told = {"signer": signer, "about": about, "warnings": checked.verdict.warnings}
    sign_with = partial(sign_run, run, Path(key).read_bytes(), **told)
    try:
        new = sign_with()
    except TypeError:  # the key has a password
        new = sign_with(password=_password(key))
    _say_what_is_signed(run, checked)
    print(f"signed by {new.signer} on {new.date}, in {Path(run) / SIGNATURES}; public key {new.public_key}")
    return 0


def verify(run: str, /, *, public_key: str, data: str | None = None, fingerprint_key: str | None = None) -> int:
    """Verify a finished run and its signature. Exit code 1 unless it is private, unchanged and signed with the key.

    A folder that still holds the key of the noise is not verified, whatever was signed.
    Get the public key from the signer, and not with the run: whoever changes a run can sign it anew with another key.
    With --data and --fingerprint-key, the file must also be the one that the run was trained on.

    Example: tacita verify runs/adult --public-key officer.pub

    Args:
        run: Folder of a finished run.
        public_key: File of the signer's public key (OpenSSH or PEM).
        data: File to compare with the statement's fingerprint of the data.
        fingerprint_key: File of the key of that fingerprint.
    """
    if (data is None) != (fingerprint_key is None):
        raise ValueError("data and fingerprint_key go together: give both or neither.")
    from tacita.runs.run_facts import data_fingerprint
    from tacita.runs.sealed_run import SealedRun
    from tacita.runs.signing import public_key_of, signatures

    mine = public_key_of(Path(public_key).read_bytes())
    try:
        checked = unchanged(run)
        found = [one for one in signatures(run) if one.public_key == mine]
    except TacitaError as error:
        print(f"NOT VERIFIED: {error}")
        return NO_GUARANTEE
    if not found:
        print(f"NOT SIGNED with {public_key}, whose public key is {mine}")
        return NO_GUARANTEE
    stated = SealedRun.intact(run).fields
    if data is not None and fingerprint_key is not None:
        if stated.get("data_fingerprint") != data_fingerprint(fingerprint_key, stated["run"]["id"], data):
            print(f"OTHER DATA: {data} is not the file of the statement's fingerprint, or this is not its key")
            return NO_GUARANTEE
        print(f"trained on {data}, by its fingerprint")
    _say_what_is_signed(run, checked)
    for one in found:
        given = "".join(f"; {name} (said by the signer): {words}" for name, words in one.given.items())
        warned = f"; warned that: {'; '.join(one.warnings)}" if one.warnings else ""
        print(f"signed by {one.signer} on {one.date}{given}{warned}")
    print(
        "verified: every file of the seal is what was signed, and the numbers of the guarantee follow from the ledger"
    )
    return exit_code(checked.verdict)


def _say_what_is_signed(run: str, checked: "Checked") -> None:
    """Print verdict, guarantee, what no program can verify, and the notes: all that a signature is about."""
    from tacita.ledger.run_sections import NOT_VERIFIED, guarantee_in_words
    from tacita.runs.sealed_run import SealedRun
    from tacita.tables.run_check import SIGNED

    print(f"verdict: {checked.verdict.in_words()}")
    print(f"guarantee: {guarantee_in_words(SealedRun.intact(run).fields, checked.verdict)}")
    print(f"not verified: {NOT_VERIFIED}")
    for note in checked.notes:
        if note != SIGNED:
            print(f"note: {note}")


def _password(key: str) -> bytes:
    try:
        return getpass(f"password of {key}: ").encode()
    except EOFError:
        raise ValueError("key has a password, which is asked for at a terminal, and there is none here.") from None


def unchanged(run: str) -> "Checked":
    """Check a run that is signed or verified.

    Raises:
        TacitaError: Something was changed, the statement does not follow from the ledger, or the noise's key is there.
    """
    from tacita.runs.folder import RunFolder
    from tacita.tables import check_run
    from tacita.tables.run_check import SECRETS

    checked = check_run(run)
    if checked.faults:
        raise TacitaError(f"{run!r} was changed since it was finished: {'; '.join(checked.faults)}.")
    if RunFolder(Path(run)).holds_secrets:
        raise TacitaError(SECRETS)
    return checked
