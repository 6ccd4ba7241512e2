"""Signatures of finished runs: Ed25519, over the last line of the ledger, which holds the hashes of everything else.

Of an edited run it is the last line of the edits, which continue the ledger.

The seal shows changes unless somebody rewrites all files of a run; a signature shows that, too, to whoever has the
signer's public key from elsewhere. The format is that of docs/format.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import UNSET, Meta, UnsetType

from tacita._files import replace_durably
from tacita.errors import TacitaError
from tacita.ledger.hash_chain import canonical
from tacita.ledger.run_sections import not_to_be_signed, one_line
from tacita.ledger.verdict import TO_SIGN, verdict
from tacita.runs.edits import chain_of
from tacita.runs.run_facts import Day, today
from tacita.runs.sealed_run import SealedRun

SIGNATURES = "signatures.jsonl"
_SIGNED = b"tacita signature 1\n"  # before what is signed, so that it is no signature of anything else
_OPENSSH = b"-----BEGIN OPENSSH"
_BCRYPT = (
    "which cannot be read without the package bcrypt: install it (pip install bcrypt), or make a key with a password "
    "in another form: openssl genpkey -algorithm ed25519 -aes256 -out officer, and openssl pkey -in officer -pubout"
)
_MAKE_ONE = "Make one with: ssh-keygen -t ed25519 -f officer"
Hex32 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One signature of a run, which holds.

    Attributes:
        v: The version of the format.
        ledger_lines: The number of lines of the ledger, the seal included.
        ledger_sha256: SHA-256 of the seal's line.
        public_key: The signer's public key, 32 bytes in hexadecimal digits.
        signer: The name that the signer gave.
        date: The day, by the signer's clock.
        about: What the signer says where the statement does not: responsible, contact, purpose. Unset if nothing.
        warnings: What stood before "private" when it was signed, in the statement or by then. Unset if nothing.
        signature: The signature, 64 bytes in hexadecimal digits.
    """

    v: Literal[1] = 1
    ledger_lines: int
    ledger_sha256: Hex32
    public_key: Hex32
    signer: str
    date: Day
    about: Annotated[dict[Literal["responsible", "contact", "purpose"], str], Meta(min_length=1)] | UnsetType = UNSET
    warnings: Annotated[tuple[str, ...], Meta(min_length=1)] | UnsetType = UNSET
    signature: Annotated[str, Meta(pattern=r"\A([0-9a-f]{128})?\Z")] = ""

    def __post_init__(self) -> None:
        one_line("signer", self.signer)
        for name, words in self.given.items():
            one_line(name, words)
        for words in self.warnings or ():
            one_line("warnings", words)

    @property
    def given(self) -> dict[str, str]:
        """What the signer says where the statement does not, by name; empty if nothing."""
        return {str(name): words for name, words in self.about.items()} if self.about else {}

    def signed(self) -> bytes:
        """Return what the signature is of."""
        fields = msgspec.to_builtins(self)
        del fields["signature"]
        return _SIGNED + canonical(fields)


def sign_run(
    folder: str | Path,
    key: bytes,
    *,
    signer: str,
    password: bytes | None = None,
    about: Mapping[str, str] | None = None,
    warnings: Sequence[str] | None = None,
) -> Signature:
    """Sign the finished run in ``folder``; several people may. Who has signed already signs no second time.

    Args:
        folder: The folder of a finished run, in which nothing was changed.
        key: The bytes of an Ed25519 private key, PEM or OpenSSH. It is not stored.
        signer: Who signs, in one line of text.
        password: The key's password, if it has one.
        about: Those of ``responsible``, ``contact`` and ``purpose`` that the statement does not say. The signature
            covers them; the sealed statement stays as it is.
        warnings: What stands before "private" by now, as in the verdict of a check; by default what the statement
            itself warns of. The signature covers it, so that nobody can say later that the signer was not told.

    Raises:
        TacitaError: The folder holds no finished run; something was changed; the verdict guarantees nothing; the
            statement does not say who is responsible, whom to ask, and what the model is for; or a signature that is
            there already does not hold.
        ValueError: The key is none, has another kind, or needs another password; or ``about`` has other names, or one
            that the statement says.
        TypeError: The key has a password, which was not given.
    """
    run = SealedRun.intact(folder)
    already = signatures(folder)
    if others := sorted({*(about or {})} - {*TO_SIGN}):
        raise ValueError(f"about must hold {', '.join(TO_SIGN)}, got {', '.join(others)}.")
    _check_signable(run.fields, about or {})
    warned = tuple(verdict(run.fields).warnings if warnings is None else warnings)
    private = _private_key(key, password)
    new = Signature(
        **_place(folder),
        public_key=private.public_key().public_bytes_raw().hex(),
        signer=signer,
        date=today(),
        about={name: about[name] for name in TO_SIGN if name in about} if about else UNSET,
        warnings=warned or UNSET,
    )
    for one in already:
        if msgspec.structs.replace(one, date=new.date, signature="") == new:
            return one
    new = msgspec.structs.replace(new, signature=private.sign(new.signed()).hex())
    lines = [canonical(msgspec.to_builtins(one)) + b"\n" for one in (*already, new)]
    replace_durably(Path(folder) / SIGNATURES, b"".join(lines))
    return new


def signatures(folder: str | Path) -> tuple[Signature, ...]:
    """Return the signatures of the finished run in ``folder``; each holds for the key that it names.

    That the key is the signer's is for the reader to know: compare ``public_key`` (:func:`public_key_of`).

    Raises:
        TacitaError: A signature does not hold, or the run may not be signed.
    """
    path = Path(folder) / SIGNATURES
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise TacitaError(f"{SIGNATURES} cannot be read: {error.strerror}.") from None
    run = SealedRun.intact(folder)
    *lines, rest = data.split(b"\n")
    if not lines or rest:
        raise TacitaError(f"{SIGNATURES} has no whole lines.")
    found = tuple(_read(line, number, _place(folder)) for number, line in enumerate(lines, start=1))
    for one in found:
        try:
            _check_signable(run.fields, one.given)
        except ValueError as error:
            raise TacitaError(f"{SIGNATURES}: {error}") from None
    return found


def public_key_of(key: bytes) -> str:
    """Return the 32 bytes of an Ed25519 public key, PEM or OpenSSH, in hexadecimal digits.

    Raises:
        ValueError: It is no such key.
    """
    openssh = key.startswith(b"ssh-")
    load = serialization.load_ssh_public_key if openssh else serialization.load_pem_public_key
    try:
        public = load(key)
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, Ed25519PublicKey):
        raise ValueError(f"public_key must be an Ed25519 public key, as PEM or OpenSSH. {_MAKE_ONE}")
    return public.public_bytes_raw().hex()


def _private_key(key: bytes, password: bytes | None) -> Ed25519PrivateKey:
    openssh = key.lstrip().startswith(_OPENSSH)
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        private = load(key, password)
    except (ValueError, UnsupportedAlgorithm) as error:
        if openssh and "bcrypt" in str(error):
            raise ValueError(f"key is an OpenSSH key with a password, {_BCRYPT}") from None
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        hint = "Is the password right?" if password else _MAKE_ONE
        raise ValueError(f"key must be an Ed25519 private key, as PEM or OpenSSH. {hint}")
    return private


def _check_signable(stated: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Raise unless the verdict lets the run be signed, with what the signer says where the statement does not."""
    weighed = verdict(stated)
    if weighed.guaranteed and (twice := [name for name in given if name not in weighed.missing]):
        raise ValueError(f"{', '.join(twice)} must be left out: the statement says it already.")
    missing = [name for name in weighed.missing if name not in given]
    if reason := not_to_be_signed(replace(weighed, missing=missing)):
        raise TacitaError(reason)


def _place(folder: str | Path) -> dict[str, Any]:
    """Return what a signature says of the ledger."""
    ledger = chain_of(Path(folder))
    return {"ledger_lines": len(ledger.lines), "ledger_sha256": ledger.head}


def _read(line: bytes, number: int, place: dict[str, Any]) -> Signature:
    """Return the signature of one line of the file, which must hold for this ledger."""
    where = f"{SIGNATURES}, line {number}"
    try:
        found = msgspec.json.decode(line, type=Signature)
        if canonical(msgspec.to_builtins(found)) != line:
            raise ValueError
    except (ValueError, msgspec.MsgspecError):
        raise TacitaError(f"{where}: it is not one that tacita wrote.") from None
    if {name: getattr(found, name) for name in place} != place:
        raise TacitaError(f"{where}: it is a signature of another ledger.")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(found.public_key))
        key.verify(bytes.fromhex(found.signature), found.signed())
    except (InvalidSignature, ValueError):
        raise TacitaError(f"{where}: the signature does not hold: it, its name or its date was changed.") from None
    return found
