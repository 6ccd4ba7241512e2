r"""Secret keys and the streams drawn from them, which give every coin and every noise value of a run.

A :class:`Key` is 32 secret bytes. Labels lead from a key to other keys and to streams by HKDF-SHA256 (RFC 5869), so
that (session, purpose, query) names one stream and no two names share a stream. A :class:`Stream` is AES-256 in counter
mode (NIST SP 800-38A), and ChaCha20 (RFC 8439) for float32 normals. A value is a function of (key, place) alone, so
that shards, ranks, devices and resumed runs read one logical stream, in any order. A :class:`Randomness` holds what a
run keeps: the current key, how often it was ratcheted, and the keys of sessions that must outlive a ratchet. A process
that loads it draws all that is new under keys of its own, so that two copies of a run have no noise in common.

Assumes: AES-256 is a pseudo-random permutation (n words are 2^-128 n^2 / 8 from uniform), HKDF and ChaCha20 are
pseudo-random functions, and the system's generator is good. Whoever holds the key and the releases can subtract the
noise. Attacks through the floating-point form of the noise (https://arxiv.org/abs/2112.05307) are out of scope.
"""

import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.poly1305 import Poly1305

from tacita._files import remove_durably, replace_durably
from tacita._stream import Stream
from tacita.errors import LedgerError, ResumeError

__all__ = ["Key", "Label", "QueryCoins", "Randomness", "Stream"]

Label = str | int


class Key:
    """32 secret bytes, from which labels lead to other keys and to streams, one way and without collisions.

    Attributes:
        secure: Whether the bytes come from the system. Only tests use other keys, and the statement says so.

    Example:
        >>> key = Key.insecure(0)
        >>> key
        Key(<secret>)
        >>> key.derive("a", "bc") == key.derive("ab", "c")
        False
    """

    __slots__ = ("_secret", "secure")

    def __init__(self, secret: bytes, *, secure: bool) -> None:
        if len(secret) != 32:
            raise ValueError(f"a key must have 32 bytes, got {len(secret)}.")
        self._secret = bytes(secret)
        self.secure = secure

    @classmethod
    def system(cls) -> "Key":
        """Draw a key of 256 bits from the operating system's generator."""
        return cls(secrets.token_bytes(32), secure=True)

    @classmethod
    def insecure(cls, seed: int) -> "Key":
        """Make a key from a seed, for tests: whoever guesses the seed can remove the noise."""
        return cls(hashlib.sha256(_framed(("tacita insecure key", seed))).digest(), secure=False)

    def __repr__(self) -> str:
        return "Key(<secret>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        raise TypeError("a Key is secret and is neither copied nor pickled: Randomness.save keeps it.")

    def derive(self, *labels: Label) -> "Key":
        """Derive the key named by ``labels``, by HKDF-SHA256; labels are framed so that no two lists read alike."""
        return Key(self._expand("derive", labels), secure=self.secure)

    def stream(self, *labels: Label) -> Stream:
        """Return the stream named by ``labels``; it shares no key with anything that :meth:`derive` returns."""
        return Stream(self._expand("stream", labels))

    def next(self) -> "Key":
        """Return the key of the next generation, from which this key cannot be computed."""
        return Key(self._expand("next", ()), secure=self.secure)

    def renewed(self) -> "Key":
        """Return a key made of this one and of 256 new bits of the system; a seeded key, as in tests, stays itself."""
        return Key(self._expand("renewed", [secrets.token_hex(32)]), secure=True) if self.secure else self

    def tag(self, *labels: Label, parts: Iterable[Any]) -> str:
        """Return a keyed fingerprint of ``parts``: Poly1305 (RFC 8439) under a one-time key, 32 hex digits.

        Two different lists of parts collide with a probability of at most (total bytes / 16 + 1) 2^-103 over the key. A
        tag tells nothing about the parts as long as only one message is tagged under a list of labels.

        Args:
            labels: The name of the one-time key: session, query.
            parts: Contiguous buffers (bytes, NumPy arrays), read once. Their lengths are part of the message, so that
                moving a byte from one part to the next changes it.
        """
        poly, lengths = Poly1305(self._expand("tag", labels)), []
        for part in parts:
            view = memoryview(part)
            if not view.c_contiguous:
                raise ValueError("parts must be contiguous buffers.")
            if view.nbytes:
                poly.update(view.cast("B"))
            lengths.append(view.nbytes)
        poly.update(b"".join(n.to_bytes(8, "little") for n in (*lengths, len(lengths))))
        return poly.finalize().hex()

    def _expand(self, purpose: str, labels: Iterable[Label]) -> bytes:
        return HKDF(SHA256(), 32, salt=b"tacita key v1", info=_framed((purpose, *labels))).derive(self._secret)


class Randomness:
    """The secret state of a run: the current key, its generation, and the keys of its sessions.

    The current key gives the coins and the noise of single queries. It moves forward at each checkpoint
    (:meth:`ratchet`), so that a stolen file does not open the past. Coins that hold for a whole session (its disjoint
    batches, say) come from the session's own key, which is derived on first use and kept.

    Whoever loads a saved Randomness may not be alone: a copy of the file may be in use elsewhere. So queries that the
    ledger has not seen are drawn under a new key (:meth:`renew`), and so is every next generation.

    A Randomness draws for the sessions of one ledger: the first ledger that claims it (:meth:`claim`). Two ledgers
    never share noise, even if a key file was copied before either of them claimed it: a secure key's streams are named
    after the ledger, too.

    Attributes:
        generation: How often the key was ratcheted.
        lineage: A public name for each process that had this key, the present one last. Copies differ from where they
            parted.
        query_lock: Held around a query. One query at a time draws from one Randomness, and no ratchet comes in between.

    Example:
        >>> randomness = Randomness.insecure(0)
        >>> own = randomness.session_key("train-1")
        >>> randomness.ratchet()
        >>> randomness.generation, randomness.session_key("train-1") == own
        (1, True)
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._process = os.getpid()
        self.generation = 0
        self._sessions: dict[str, Key] = {}
        self._claimed: set[str] = set()  # sessions of oracles of this process
        self.lineage = (secrets.token_hex(8) if key.secure else key.tag("lineage", parts=[]),)
        self._loaded = False  # whether another process had this key before
        self._path: Path | None = None  # the private file that this was loaded from, and what it holds
        self._text, self._unwritten = b"", False
        self._failed: Path | None = None  # the file that could not be written
        # By session: ascending, from which query on which key stands for the current one.
        self._renewed: dict[str, list[tuple[int, Key]]] = {}
        # By session: the keys of noise of earlier generations that is still wanted, and the number after the last.
        self._noise: dict[str, tuple[int, list[Key]]] = {}
        self._wanted: dict[str, tuple[int, int]] = {}  # which queries' noise is wanted now: first, and after the last
        self._drawn: set[str] = set()  # sessions whose batches or noise were drawn, in any process
        self._ledger: str | None = None  # the ledger whose sessions draw here
        self._lock = threading.Lock()
        self.query_lock = threading.RLock()

    @classmethod
    def system(cls) -> "Randomness":
        """Start from 256 bits of the operating system."""
        return cls(Key.system())

    @classmethod
    def insecure(cls, seed: int) -> "Randomness":
        """Start from a seed, for tests; statements then say that the run is not private."""
        return cls(Key.insecure(seed))

    @property
    def key(self) -> Key:
        """The key of the current generation."""
        if os.getpid() != self._process:
            self._refuse_process()
        return self._key

    @property
    def secure(self) -> bool:
        """Whether the first key came from the system."""
        return self._key.secure

    def __repr__(self) -> str:
        return f"Randomness(<secret>, generation={self.generation}, secure={self.secure})"

    def __reduce__(self) -> Any:
        raise TypeError("a Randomness is secret and is neither copied nor pickled: save it to a file of its own.")

    def ratchet(self) -> None:
        """Move to the next generation, with no way back and as no copy does: 256 new bits of the system go in.

        Keys of sessions stay, and of noise what is still wanted.
        """
        with self.query_lock:
            kept = {
                session: (after, [self.noise_key(session, query) for query in range(first, after)])
                for session, (first, after) in self._wanted.items()
            }
            following, noise, self._unwritten = self.key.next().renewed(), self._noise | kept, True
            self._key, self._noise, self._renewed, self.generation = following, noise, {}, self.generation + 1

    def query_key(self, session: str, query: int) -> Key:
        """Return the key of a query's own draws: that of the generation, or a later one (:meth:`renew`)."""
        current = self.key
        return next((key for first, key in reversed(self._renewed.get(session, ())) if first <= query), current)

    def renew(self, session: str, first: int) -> None:
        """Let the session draw queries from ``first`` on, which its ledger has not seen, as no copy of this file does.

        The private file is written before anything is drawn, so that the next process can redo these queries. Does
        nothing if this was not loaded from one, or for a seeded key.

        Raises:
            ResumeError: The private file is gone, or another process has changed it.
        """
        if not (self._loaded and self.secure):
            return
        with self.query_lock:
            before = [one for one in self._renewed.get(session, ()) if one[0] < first]
            self._renewed[session] = [*before, (first, self.query_key(session, first).renewed())]
            self._unwritten = True
            self.write_back()

    def write_back(self) -> None:
        """Write what has changed into the private file, if this was loaded from one; raises as :meth:`renew`.

        A file that :meth:`save` could not write is written first.
        """
        with self.query_lock:
            if self._failed not in (None, self._path):
                self.save(self._failed)
            if not (self._loaded and self.secure and self._unwritten):
                return
            assert self._path is not None
            try:
                same = self._path.read_bytes() == self._text
            except OSError:
                same = False
            if not same:
                raise ResumeError(
                    f"the private key file {str(self._path)!r} is gone, or another process has changed it: what is "
                    "drawn now could not be redone. Restore it, or load it again."
                )
            self.save(self._path)

    def session_key(self, session: str) -> Key:
        """Return the session's own key: derived on first use, then the same through every ratchet."""
        if os.getpid() != self._process:
            self._refuse_process()
        with self._lock:
            if session not in self._sessions:
                self._sessions[session] = self._key.derive("session", session)
            return self._sessions[session]

    def noise_key(self, session: str, query: int) -> Key:
        """Return the key of a query's correlated noise, which later queries take back.

        Raises:
            ResumeError: A ratchet has dropped it.
        """
        after, kept = self._noise.get(session, (0, ()))
        if query >= after:
            return self.query_key(session, query).derive("correlated noise", session, query)
        if query < after - len(kept):
            raise ResumeError(
                f"session {session!r} cannot go back so far: the keys of earlier noise are gone. Load the private "
                "key file that was saved with the checkpoint."
            )
        return kept[query - after]

    def keep_noise(self, session: str, first: int, after: int) -> None:
        """Let the next ratchet keep the keys of noise of queries from ``first`` on, before ``after``, and no others."""
        self._wanted[session] = (first, after)

    def _refuse_process(self) -> NoReturn:
        raise RuntimeError(
            "this Randomness belongs to the process it was made in: a forked process would draw the same noise for "
            "other values. Build a new oracle, with a ledger of its own, in this process."
        )

    def end_noise(self, sessions: Iterable[str]) -> None:
        """Forget the keys of correlated noise of those of ``sessions``, which have ended; their own keys stay."""
        for session in sessions:
            self._noise.pop(session, None)
            self._wanted.pop(session, None)

    def claim(self, session: str, *, ledger: str, resumed: bool = False) -> str:
        """Claim the name of a session: two oracles under one name would add the same noise to different sums.

        Args:
            session: The session's id in the ledger.
            ledger: The ledger's id. The first ledger claims this Randomness.
            resumed: Whether the caller continues the session that had the name before, as its ledger says.

        Returns:
            The name that the session draws under, in keys and streams.

        Raises:
            LedgerError: Another ledger has claimed this Randomness.
            ValueError: An oracle of this process has the name, or an earlier process drew under it, and the caller does
                not continue that session.
        """
        name = self.name_for(session, ledger)
        with self._lock:
            if self._ledger not in (None, ledger):
                raise LedgerError(
                    f"session {session!r} belongs to another ledger than the one this Randomness draws for, and could "
                    "get the same noise twice. Use one ledger, or a Randomness of its own for each."
                )
            if not resumed and name in self._claimed | self._drawn:
                raise ValueError(
                    f"session {session!r} already draws from this Randomness, and would get the same noise twice. "
                    "Use one ledger, or a Randomness of its own for each."
                )
            self._ledger = ledger
            self._claimed.add(name)
        return name

    def name_for(self, session: str, ledger: str) -> str:
        """Return the name under which a session of a ledger draws; for a seeded key, as in tests, its id alone."""
        return f"{ledger}/{session}" if self.secure else session

    def mark_drawn(self, session: str) -> None:
        """Remember, also in the private file, that batches or noise of this session were drawn."""
        with self._lock:
            self._drawn.add(session)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private file, mode 0600 from creation on: whole or not at all (temporary file, fsync, rename)."""
        if os.getpid() != self._process:
            self._refuse_process()
        with self._lock:
            state = {
                "format": _FORMAT,
                "generation": self.generation,
                "secure": self.secure,
                "key": self._key._secret.hex(),
                "sessions": {name: key._secret.hex() for name, key in self._sessions.items()},
                "drawn": sorted(self._drawn),
                "ledger": self._ledger,
                "lineage": self.lineage,
                "renewed": {name: [[first, _hex(key)] for first, key in one] for name, one in self._renewed.items()},
                "noise": {name: [after, [*map(_hex, kept)]] for name, (after, kept) in self._noise.items()},
            }
        self._failed = path = Path(path).resolve()
        replace_durably(path, text := json.dumps(state).encode(), mode=0o600)
        self._failed = None
        if path == self._path:
            self._text, self._unwritten = text, False

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Randomness":
        """Read a private file, and set its mode back to 0600. Changes of the key are written into this file.

        Raises:
            ResumeError: The file cannot be read or is not one that :meth:`save` wrote. No message shows its content.
        """
        try:
            os.chmod(path, 0o600)
            text = Path(path).read_bytes()
        except OSError as error:
            raise ResumeError(f"the private key file {os.fspath(path)!r} cannot be read: {error.strerror}.") from None
        randomness = _parse(text)
        if randomness is None:
            raise ResumeError(f"{os.fspath(path)!r} is no private key file of this version, or is damaged.")
        randomness._path, randomness._text = Path(path).resolve(), text
        randomness._loaded = randomness._unwritten = True  # its name in the lineage is new
        past = randomness.lineage
        randomness.lineage = (*past, secrets.token_hex(8) if randomness.secure else f"{past[0]}-{len(past)}")
        return randomness

    @staticmethod
    def destroy(path: str | os.PathLike[str]) -> None:
        """Unlink the private file and what an interrupted save left beside it; a missing file is fine.

        This does not promise that the bytes are gone: an SSD, a snapshot or a backup may keep them.
        """
        for one in (Path(path).resolve(), Path(path)):  # of a link, both
            remove_durably(one)


class QueryCoins:
    """The coins of one session: those of a query from its key, those of the session from its own key."""

    def __init__(self, randomness: Randomness, session: str) -> None:
        self._randomness = randomness
        self.session = session

    def __repr__(self) -> str:
        return f"QueryCoins({self.session!r})"

    def for_query(self, query: int) -> Stream:
        """Return the stream of a query's batch."""
        self._randomness.mark_drawn(self.session)
        return self._randomness.query_key(self.session, query).stream(self.session, "batch", query)

    def for_session(self) -> Stream:
        """Return the stream of coins for the whole session (assignments), the same in every generation."""
        return self._randomness.session_key(self.session).stream("assignment")


def _hex(key: Key) -> str:
    return key._secret.hex()


_FORMAT = "tacita randomness 4"
_KINDS = {"format": str, "generation": int, "secure": bool, "key": str, "sessions": dict, "drawn": list}
_KINDS |= {"renewed": dict, "noise": dict, "lineage": list}


def _parse(text: bytes) -> Randomness | None:
    """Return the saved state, or ``None`` if it is damaged: an exception raised here would carry the file's content."""
    try:
        state = json.loads(text)
        if not _well_formed(state):
            return None

        def key(secret: str) -> Key:
            return Key(bytes.fromhex(secret), secure=state["secure"])

        randomness = Randomness(key(state["key"]))
        randomness.generation = state["generation"]
        for session, secret in state["sessions"].items():
            randomness._sessions[session] = key(secret)
        for session, renewed in state["renewed"].items():
            randomness._renewed[session] = [(first, key(secret)) for first, secret in renewed]
        for session, (after, kept) in state["noise"].items():
            randomness._noise[session] = after, [key(secret) for secret in kept]
        randomness._drawn, randomness._ledger = set(state["drawn"]), state["ledger"]
        randomness.lineage = tuple(state["lineage"])
    except (ValueError, TypeError, RecursionError):
        return None
    return randomness


def _well_formed(state: Any) -> bool:
    return (
        isinstance(state, Mapping)
        and state.keys() == {*_KINDS, "ledger"}
        and all(type(state[name]) is kind for name, kind in _KINDS.items())
        and state["format"] == _FORMAT
        and state["generation"] >= 0
        and all(isinstance(one, str) for one in [*state["drawn"], *state["lineage"]])
        and bool(state["lineage"])
        and (state["ledger"] is None or isinstance(state["ledger"], str))
        and all(type(first) is int and first >= 0 for one in state["renewed"].values() for first, _ in one)
        and all(type(after) is int and after >= len(kept) for after, kept in state["noise"].values())
    )


def _framed(labels: Iterable[Label]) -> bytes:
    """Encode labels as bytes, each with its kind and length, so that no two lists give the same bytes."""
    framed = []
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise TypeError(f"a label must be a str or an int, got {type(label).__name__}.")
        kind, text = (b"s", label) if isinstance(label, str) else (b"i", str(int(label)))
        data = text.encode("utf-8", "surrogatepass")
        framed.append(kind + len(data).to_bytes(8, "big") + data)
    return b"".join(framed)
