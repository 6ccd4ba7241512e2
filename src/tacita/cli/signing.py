"""``tacita sign`` and ``tacita verify``: who answers for a finished run, and whether that still holds."""

from getpass import getpass
from pathlib import Path

from tacita.cli.outputs import NO_GUARANTEE, exit_code
from tacita.errors import TacitaError


def sign(run: str, /, *, key: str, signer: str) -> int:
    """Sign a finished run with an Ed25519 key, after all checks of tacita statement.

    The signature covers the ledger's last line, and so the model, the statement and every file. A run without
    a guarantee is refused, and so is one that does not say who is responsible, whom to ask and what the model is for.
    Make a key with: ssh-keygen -t ed25519 -f officer

    Example: tacita sign runs/adult --key officer --signer "Ada Moreau, privacy officer"

    Args:
        run: Folder of a finished run.
        key: File of the private key (OpenSSH or PEM); if it has a password, you are asked for it.
        signer: Who signs.
    """
    from tacita.runs.signing import SIGNATURES, sign_run

    check_unchanged(run)
    data = Path(key).read_bytes()
    try:
        new = sign_run(run, data, signer=signer)
    except TypeError:  # the key has a password
        new = sign_run(run, data, signer=signer, password=getpass(f"password of {key}: ").encode())
    print(f"signed by {new.signer} on {new.date}, in {Path(run) / SIGNATURES}; public key {new.public_key}")
    return 0


def verify(run: str, /, *, public_key: str, data: str | None = None, fingerprint_key: str | None = None) -> int:
    """Verify a finished run and its signature. Exit code 1 unless it is private, unchanged and signed with the key.

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
    from tacita.ledger.verdict import verdict
    from tacita.runs.run_facts import data_fingerprint
    from tacita.runs.sealed_run import SealedRun
    from tacita.runs.signing import public_key_of, signatures

    mine = public_key_of(Path(public_key).read_bytes())
    try:
        check_unchanged(run)
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
    weighed = verdict(stated)
    for one in found:
        print(f"signed by {one.signer} on {one.date}; verdict: {weighed.in_words()}")
    print("verified: every file is what was signed, and the numbers of the guarantee follow from the ledger")
    return exit_code(weighed)


def check_unchanged(run: str) -> None:
    """Raise ``TacitaError`` if something in the run was changed, or its statement does not follow from its ledger."""
    from tacita.tables import check_run

    if faults := check_run(run).faults:
        raise TacitaError(f"{run!r} was changed since it was finished: {'; '.join(faults)}.")
