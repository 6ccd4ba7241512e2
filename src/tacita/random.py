r"""Secret keys and the streams drawn from them: every coin and every noise value of a run.

Place: the ground; imports nothing of tacita but its errors.

A :class:`Key` is 32 secret bytes. Labels lead from it to other keys and to streams by HKDF-SHA256 (RFC 5869), so that
(session, purpose, query) names one stream and no two names share one. A :class:`Stream` is AES-256 in counter mode
(NIST SP 800-38A): word i is a function of (key, i) alone, so that shards, ranks and resumed runs read one logical
stream, in any order. A :class:`Randomness` is what a run keeps: the current key, how often it was ratcheted, and the
keys of sessions that must outlive a ratchet.

Assumes: AES-256 is a pseudo-random permutation (n words are 2^-128 n^2 / 8 from uniform), HKDF a pseudo-random
function, and the system's generator is good. Whoever holds key and releases can subtract the noise. Attacks through
the floating-point form of the noise (https://arxiv.org/abs/2112.05307) are out of scope.
"""

import hashlib
import hmac
import json
import math
import operator
import os
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.poly1305 import Poly1305
from torch import Tensor

from tacita.errors import ResumeError

Label = str | int

_AES_BLOCK = 16  # bytes
_WORD = 8  # bytes
_LANE = 2**60  # words between a draw and its second attempt, should the first be rejected
_ZEROS = bytes(2**18)  # what the cipher is applied to; small enough to stay in the second-level cache
_PAIR = 512  # normals i and i + 512 of a block of 1024 come from one pair of words
_BLOCK = 2 * _PAIR
_CHUNK = 32 * _BLOCK  # values a thread makes at once: its scratch fits the second-level cache
_DTYPES = (torch.float32, torch.float64)


class Stream:
    """Deterministic words under a key of their own: the same stream, asked again, gives the same bits.

    Word i is bytes 8 i to 8 i + 7 of AES-256-CTR (initial counter 0), little endian. Every draw says which words it
    uses, and asking twice gives them twice: a stream serves one purpose (one label), and within it each word once.

    Example:
        >>> stream = Key.insecure(0).stream("train-1", "batch", 7)
        >>> bool((stream.words(5)[3:] == stream.words(2, offset=3)).all())
        True
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError(f"a stream's key must have 32 bytes, got {len(secret)}.")
        self._secret = secret

    def __repr__(self) -> str:
        return "Stream(<secret>)"

    def __reduce__(self) -> Any:
        raise TypeError("a Stream is secret and is neither copied nor pickled: derive it again from its Key.")

    def bytes(self, count: int, offset: int = 0) -> bytes:
        """``count`` bytes, from byte ``offset`` on."""
        out = np.empty(_size("count", count), np.uint8)
        self._fill(out, _size("offset", offset))
        return out.tobytes()

    def words(self, count: int, offset: int = 0) -> np.ndarray:
        """``count`` words from word ``offset`` on, uint64, uniform in [0, 2^64)."""
        out = np.empty(_size("count", count), np.dtype("<u8"))
        self._fill(out.view(np.uint8), _WORD * _size("offset", offset))
        return out.astype(np.uint64, copy=False)

    def bernoulli(self, count: int, probability: float | Fraction, offset: int = 0) -> np.ndarray:
        r"""``count`` coins, bool; coin i is one where word :math:`w_i < \lfloor p \, 2^{64} \rfloor`.

        The chance of a one is ``probability`` rounded *down* to a multiple of 2^-64, exactly; 1 gives all ones.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must be in [0, 1], got {probability}.")
        count, offset = _size("count", count), _size("offset", offset)
        threshold = math.floor(Fraction(probability) * 2**64)
        coins = np.ones(count, bool)
        if threshold == 2**64:
            return coins
        for start in range(0, count, _CHUNK):
            chunk = coins[start : start + _CHUNK]
            np.less(self.words(len(chunk), offset + start), np.uint64(threshold), out=chunk)
        return coins

    def integers(self, count: int, high: int, offset: int = 0) -> np.ndarray:
        r"""``count`` integers, int64, each uniform in [0, high) without bias, from words ``offset`` on.

        Value i is :math:`w_i \bmod high` where :math:`w_i < high \lfloor 2^{64} / high \rfloor`; a rejected word is
        replaced by the one 2^60 further, so that value i depends on (key, offset + i) alone.
        """
        count, offset = _size("count", count), _size("offset", offset)
        if not 1 <= high <= 2**63:
            raise ValueError(f"high must be in [1, 2^63], got {high}.")
        last = np.uint64(high * (2**64 // high) - 1)
        words = self.words(count, offset)
        lane = 0
        while (rejected := np.flatnonzero(words > last)).size:
            lane += _LANE
            words[rejected] = [self.words(1, lane + offset + int(i))[0] for i in rejected]
        return (words % np.uint64(high)).astype(np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """A uniform permutation of 0 .. n - 1, int64: the order of n distinct words (all redrawn should two tie)."""
        n = _size("n", n)
        lane = 0
        while True:
            words = self.words(n, lane)
            order = np.argsort(words, kind="stable")
            ranked = words[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order.astype(np.int64, copy=False)
            lane += _LANE

    def choice(self, n: int, k: int) -> np.ndarray:
        """A uniform subset of k of 0 .. n - 1, int64, ascending: the first k distinct values of uniform draws."""
        n, k = _size("n", n), _size("k", k)
        if k > n:
            raise ValueError(f"k must be at most n, got k = {k} and n = {n}.")
        if 2 * k > n:  # the complement of a uniform subset is one
            left_out = np.ones(n, bool)
            left_out[self.choice(n, n - k)] = False
            return np.flatnonzero(left_out)
        drawn, distinct = np.empty(0, np.int64), np.empty(0, np.int64)
        while len(distinct) < k:
            drawn = np.concatenate([drawn, self.integers(k - len(distinct) + 8, n, len(drawn))])
            distinct, first = np.unique(drawn, return_index=True)
        return np.sort(distinct[np.argsort(first)[:k]])

    def normals(
        self,
        shape: int | Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        offset: int = 0,
    ) -> Tensor:
        r"""Standard normals of ``shape``: value i (row-major) is a function of (key, ``offset`` + i) alone.

        Box-Muller in float64: within each block of 1024 words, word j of the first half gives :math:`u \in (0, 1]`, the
        one 512 further an angle :math:`t \in [-\pi, \pi)`, both of 53 bits; value j is :math:`\sqrt{-2 \ln u} \cos t`,
        value j + 512 the same with :math:`\sin t`. The tail ends at :math:`\sqrt{2 \cdot 53 \ln 2} = 8.57`.
        float32 is the float64 value rounded. The same machine and versions give the same bits, whatever the number of
        threads, the shape or the device (values are made on the CPU and moved).

        Raises:
            ValueError: ``dtype`` is neither float32 nor float64: noise of fewer bits has no stated guarantee.
        """
        if dtype not in _DTYPES:
            raise ValueError(
                f"dtype must be torch.float32 or torch.float64, got {dtype}. Cast the released sum instead."
            )
        shape = tuple(operator.index(n) for n in ((shape,) if isinstance(shape, int) else shape))
        count, offset = math.prod(shape), _size("offset", offset)
        first = offset // _BLOCK * _BLOCK
        covered = math.ceil((offset + count) / _BLOCK) * _BLOCK - first if count else 0
        out = np.empty(covered, np.float32 if dtype == torch.float32 else np.float64)
        starts = range(0, covered, _CHUNK)
        with np.errstate(all="ignore"), ThreadPoolExecutor(_threads(len(starts))) as pool:
            run = pool.map if len(starts) > 1 else map
            list(run(lambda start: self._normals(out[start : start + _CHUNK], first + start), starts))
        values = torch.from_numpy(out)[offset - first : offset - first + count]
        return values.reshape(shape).to(device)

    def seed(self) -> int:
        """A seed in [0, 2^63) for one of torch's generators (dropout, say): word 0 without its last bit."""
        return int(self.words(1)[0]) >> 1

    def _fill(self, out: np.ndarray, offset: int) -> None:
        """Write the stream's bytes from ``offset`` on into ``out``, a contiguous uint8 array."""
        block, skip = divmod(offset, _AES_BLOCK)
        cipher = Cipher(algorithms.AES(self._secret), modes.CTR(block.to_bytes(_AES_BLOCK, "big"))).encryptor()
        cipher.update(_ZEROS[:skip])
        view = out.data
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            cipher.update_into(memoryview(_ZEROS)[: len(part)], part)

    def _normals(self, out: np.ndarray, offset: int) -> None:
        """Fill ``out``, whole blocks, with the normals from ``offset`` on, the start of a block."""
        half = len(out) // 2
        scratch = _scratch()
        words, radius, angle, product = scratch[0][: 2 * half], *(array[:half] for array in scratch[1:])
        self._fill(words.view(np.uint8), _WORD * offset)
        words >>= 11  # arithmetic: 53 signed bits, in [-2^52, 2^52)
        pairs = words.reshape(-1, 2, _PAIR)
        np.copyto(radius.reshape(-1, _PAIR), pairs[:, 0])
        np.copyto(angle.reshape(-1, _PAIR), pairs[:, 1])
        radius += 2.0**52 + 1  # in [1, 2^53], exact
        radius *= 2.0**-53
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle *= math.pi * 2.0**-52
        values = out.reshape(-1, 2, _PAIR)
        for column, function in enumerate((torch.cos, torch.sin)):  # torch's are vectorised in float64, NumPy's not
            function(torch.from_numpy(angle), out=torch.from_numpy(product))
            product *= radius
            np.copyto(values[:, column], product.reshape(-1, _PAIR), casting="same_kind")


class Key:
    """32 secret bytes. Labels lead to other keys and to streams, one way and without collisions.

    Attributes:
        secure: Whether the bytes come from the system. Only tests use a key that does not, and the statement says so.

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
        """A key of 256 bits from the operating system's generator."""
        return cls(secrets.token_bytes(32), secure=True)

    @classmethod
    def insecure(cls, seed: int) -> "Key":
        """A key from a seed, for tests: whoever guesses the seed removes the noise."""
        return cls(hashlib.sha256(_framed(("tacita insecure key", seed))).digest(), secure=False)

    def __repr__(self) -> str:
        return "Key(<secret>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        raise TypeError("a Key is secret and is neither copied nor pickled: Randomness.save keeps it.")

    def derive(self, *labels: Label) -> "Key":
        """The key named by ``labels``: HKDF-SHA256 of this one, labels framed so that no two lists read alike."""
        return Key(self._expand("derive", labels), secure=self.secure)

    def stream(self, *labels: Label) -> Stream:
        """The stream named by ``labels``; it shares no key with anything that :meth:`derive` gives."""
        return Stream(self._expand("stream", labels))

    def next(self) -> "Key":
        """The key of the next generation; there is no way back from it."""
        return Key(self._expand("next", ()), secure=self.secure)

    def tag(self, *labels: Label, parts: Iterable[Any]) -> str:
        """Keyed fingerprint of ``parts``: Poly1305 (RFC 8439) under a one-time key named by ``labels``, 32 hex digits.

        Two different lists of parts collide with a chance of at most (total bytes / 16 + 1) 2^-103 over the key. A tag
        tells nothing about the parts as long as one message is tagged under one list of labels.

        Args:
            labels: Name of the one-time key: session, query.
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
    """What a run draws from: the current key, its generation, and the keys of its sessions.

    The current key serves coins and noise of single queries and moves forward at each checkpoint (:meth:`ratchet`), so
    that a stolen file does not open the past. What must hold for a whole session (its disjoint batches, say) comes from
    the session's own key, derived when first asked for and kept until :meth:`forget`.

    Attributes:
        generation: How often the key was ratcheted.

    Example:
        >>> randomness = Randomness.insecure(0)
        >>> own = randomness.session_key("train-1")
        >>> randomness.ratchet()
        >>> randomness.generation, randomness.session_key("train-1") == own
        (1, True)
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self.generation = 0
        self._sessions: dict[str, Key] = {}
        self._claimed: set[str] = set()
        self._lock = threading.Lock()

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
        """Move to the next generation. One way; keys of sessions stay."""
        self._key = self._key.next()
        self.generation += 1

    def session_key(self, session: str) -> Key:
        """The session's own key: derived when first asked for, then the same through every ratchet."""
        with self._lock:
            if session not in self._sessions:
                self._sessions[session] = self._key.derive("session", session)
            return self._sessions[session]

    def forget(self, session: str) -> None:
        """Drop the key of a session that has ended. Its name stays claimed."""
        with self._lock:
            self._sessions.pop(session, None)

    def claim(self, session: str, *, resumed: bool = False) -> None:
        """Take the name of a session: two oracles under one name would add the same noise to different sums.

        Raises:
            ValueError: The name is taken, and the caller does not continue that very session (``resumed``).
        """
        with self._lock:
            if session in self._claimed and not resumed:
                raise ValueError(
                    f"session {session!r} already draws from this Randomness, and would get the same noise twice. "
                    "Use one ledger, or a Randomness of its own for each."
                )
            self._claimed.add(session)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private file: whole or not at all (a temporary file, fsync, rename), mode 0600 from creation on."""
        path = Path(path)
        with self._lock:
            state = {
                "format": _FORMAT,
                "generation": self.generation,
                "secure": self.secure,
                "key": self._key._secret.hex(),
                "sessions": {name: key._secret.hex() for name, key in self._sessions.items()},
                "claimed": sorted(self._claimed),
            }
        temporary = _temporary(path)
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Randomness":
        """Read a private file, and set its mode back to 0600.

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
        return randomness

    @staticmethod
    def destroy(path: str | os.PathLike[str]) -> None:
        """Unlink the private file and what an interrupted save left beside it; a file that is not there is fine.

        That the bytes are gone is not claimed: an SSD, a snapshot or a backup may keep them.
        """
        path = Path(path)
        path.unlink(missing_ok=True)
        _temporary(path).unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync_directory(path)


class QueryCoins:
    """The coins of one session: a query's from the current generation, the session's from its own key."""

    def __init__(self, randomness: Randomness, session: str) -> None:
        self._randomness = randomness
        self.session = session

    def __repr__(self) -> str:
        return f"QueryCoins({self.session!r})"

    def for_query(self, query: int) -> Stream:
        """The stream of this query's batch, in the current generation."""
        return self._randomness.key.stream(self.session, "batch", query)

    def for_session(self) -> Stream:
        """The stream of what holds for the whole session (assignments), the same in every generation."""
        return self._randomness.session_key(self.session).stream("assignment")


_FORMAT = "tacita randomness 1"
_KINDS = {"format": str, "generation": int, "secure": bool, "key": str, "sessions": dict, "claimed": list}


def _parse(text: bytes) -> Randomness | None:
    """The saved state, or ``None``: an exception raised here would carry the file's content."""
    try:
        state = json.loads(text)
        if not _well_formed(state):
            return None
        randomness = Randomness(Key(bytes.fromhex(state["key"]), secure=state["secure"]))
        randomness.generation = state["generation"]
        for session, secret in state["sessions"].items():
            randomness._sessions[session] = Key(bytes.fromhex(secret), secure=state["secure"])
        randomness._claimed = set(state["claimed"])
    except (ValueError, TypeError, RecursionError):
        return None
    return randomness


def _well_formed(state: Any) -> bool:
    return (
        isinstance(state, Mapping)
        and state.keys() == _KINDS.keys()
        and all(type(state[name]) is kind for name, kind in _KINDS.items())
        and state["format"] == _FORMAT
        and state["generation"] >= 0
        and all(isinstance(session, str) for session in state["claimed"])
    )


def _framed(labels: Iterable[Label]) -> bytes:
    """Labels as bytes, each with its kind and length: no two lists give the same bytes."""
    framed = []
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise TypeError(f"a label must be a str or an int, got {type(label).__name__}.")
        kind, text = (b"s", label) if isinstance(label, str) else (b"i", str(int(label)))
        data = text.encode("utf-8", "surrogatepass")
        framed.append(kind + len(data).to_bytes(8, "big") + data)
    return b"".join(framed)


def _size(name: str, value: int) -> int:
    value = operator.index(value)
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value}.")
    return value


def _threads(chunks: int) -> int:
    return max(1, min(chunks, torch.get_num_threads()))


_local = threading.local()


def _scratch() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """This thread's room for one chunk of normals: words, radius, angle, product."""
    if not hasattr(_local, "scratch"):
        half = _CHUNK // 2
        _local.scratch = (np.empty(_CHUNK, np.int64), np.empty(half), np.empty(half), np.empty(half))
    return _local.scratch


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
