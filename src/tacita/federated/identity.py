"""Which client a node is: a key that only this client has, bound to its number when it is first introduced.

Place: federated.resident (signs) <-> the wire <-> [federated.identity] (checks) <- federated.flower. A transport gives
a node that was restarted a new number, so that the server has to ask it which client it is. A claim alone would let any
node take a client's place, and use up the numbers of its messages.
"""

import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacita._files import replace_durably
from tacita.errors import ResumeError
from tacita.federated.wire import Greeting, Introduction, WireError, from_wire, to_wire

KEY_BYTES = 32  # of an Ed25519 key, private or public
CHALLENGE_BYTES = 32
_SIGNED_AS = "tacita introduction 1"  # so that the signature serves for nothing else


class ClientIdentity:
    """The private signing key of one client, in a file of mode 0600. It has nothing to do with data or noise."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def at(cls, path: Path, *, new: bool) -> "ClientIdentity":
        """Return the identity in the file ``path``; make one of the system's randomness if there is none.

        Args:
            path: The file, in a folder that only its owner may enter.
            new: Whether an identity may be made: whether the client was never introduced.

        The mode of a file that is there is set back to 0600, as :meth:`tacita.Randomness.load` does.

        Raises:
            ResumeError: The file is missing, though ``new`` is false, or is no such file, or cannot be read.
        """
        if not path.exists():
            if not new:
                raise ResumeError(
                    f"{path.name} of a client that has sent messages is missing: restore it. The server knows this "
                    "client by it."
                )
            replace_durably(path, Ed25519PrivateKey.generate().private_bytes_raw(), mode=0o600)
        try:
            data = path.read_bytes()
            os.chmod(path, 0o600)
        except OSError as error:
            raise ResumeError(f"{path.name} of the client cannot be read: {error.strerror}.") from None
        if len(data) != KEY_BYTES:
            raise ResumeError(f"{path.name} is no key of a client: restore it.")
        return cls(Ed25519PrivateKey.from_private_bytes(data))

    def introduction(self, greeting: Greeting, client: int) -> Introduction:
        """Return the reply to a server's greeting: the client's number, its public key, and its signature.

        Raises:
            WireError: The greeting has no challenge of the right length.
        """
        if len(greeting.challenge) != CHALLENGE_BYTES:
            raise WireError("the greeting has no challenge.")
        signature = self._key.sign(_signed(greeting.federation, client, greeting.challenge))
        key = self._key.public_key().public_bytes_raw()
        return Introduction(greeting.federation, client, key, signature)

    def __repr__(self) -> str:
        return "ClientIdentity()"  # the key is private


class KnownClients:
    """The public key of each client of a federation: learnt at its first introduction, and kept in a file.

    Guarantee: once a client was introduced, a node is taken for this client only if it holds the client's private key.
    Every greeting has a fresh challenge, so that an introduction that somebody has overheard serves for nothing. Who
    comes *first* under a number is not checked: for that, let the transport authenticate its nodes.

    Args:
        federation: The id of the federation.
        num_clients: Number of clients.
        path: The file of the keys, which are public; ``None`` to keep them in memory.
        settings: What the greetings say of the federation.
        tell: Is told about every introduction that is refused, in words that are public.

    Raises:
        ResumeError: The file is that of another federation, or cannot be read.
    """

    def __init__(
        self,
        federation: str,
        num_clients: int,
        path: Path | None = None,
        *,
        settings: Mapping[str, Any] = MappingProxyType({}),
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.federation, self.num_clients, self.path = federation, num_clients, path
        self._tell, self._settings = tell, dict(settings)
        self._keys: dict[int, bytes] = {}
        if path is not None and path.exists():
            self._load(path)

    def greeting(self) -> bytes:
        """Return what to ask a node, with a challenge of its own."""
        return to_wire(Greeting(self.federation, secrets.token_bytes(CHALLENGE_BYTES), self._settings))

    def introduced(self, greeting: bytes, reply: bytes) -> int | None:
        """Return the number of the client that ``reply`` proves to be, and remember its key; ``None`` if it is none.

        Args:
            greeting: What the node was asked: what :meth:`greeting` returned, once for each node.
            reply: What the node has replied.
        """
        asked = from_wire(greeting)
        try:
            said = from_wire(reply)
        except WireError:
            return None
        if not (isinstance(asked, Greeting) and isinstance(said, Introduction)):
            return None
        if said.federation != self.federation or not 0 <= said.client < self.num_clients:
            return None
        if not _verified(said, asked.challenge):
            self._tell(f"a node said that it is client {said.client}, and could not prove it: it is not asked.")
            return None
        known = self._keys.get(said.client)
        if known is None:
            self._keys[said.client] = said.key
            self._save()
        elif not hmac.compare_digest(known, said.key):
            self._tell(
                f"a node said that it is client {said.client}, with another key than that client had before: it is not "
                "asked. A client whose folder is lost cannot go on under its number: the others go on without it, or a "
                "new federation begins, which spends anew."
            )
            return None
        return said.client

    def _save(self) -> None:
        """Write the keys before a client is asked for anything."""
        if self.path is not None:
            keys = {str(client): key.hex() for client, key in sorted(self._keys.items())}
            text = json.dumps({"federation": self.federation, "keys": keys}, indent=2)
            replace_durably(self.path, text.encode())

    def _load(self, path: Path) -> None:
        try:
            found = json.loads(path.read_bytes(), object_pairs_hook=_without_repeats)
            if found["federation"] == self.federation:
                self._keys = {self._number(client): _key(text) for client, text in found["keys"].items()}
                return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ResumeError(f"{path.name} cannot be read: restore it, or remove it to learn the keys anew.") from None
        raise ResumeError(f"{path.name} is of another federation: choose another folder.")

    def _number(self, text: str) -> int:
        """Return a client's number, which is written in one way only: "00" beside "0" would be a second key of it."""
        number = int(text)
        if str(number) != text or not 0 <= number < self.num_clients:
            raise ValueError
        return number

    def __repr__(self) -> str:
        return f"KnownClients(federation={self.federation!r}, clients={sorted(self._keys)})"


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError
    return key


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary; one with a repeated name is refused, because only the last would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _signed(federation: str, client: int, challenge: bytes) -> bytes:
    """Return the bytes that are signed: every part with its length, so that no two claims have the same ones."""
    return msgspec.msgpack.encode((_SIGNED_AS, federation, client, challenge))


def _verified(said: Introduction, challenge: bytes) -> bool:
    """Return whether the signature is that of the key, the claim and the challenge."""
    try:
        key = Ed25519PublicKey.from_public_bytes(said.key)
        key.verify(said.signature, _signed(said.federation, said.client, challenge))
    except (InvalidSignature, ValueError):
        return False
    return True
