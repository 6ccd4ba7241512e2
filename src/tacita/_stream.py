"""Streams of secret words, and the coins, normals and Laplace draws made from them; the noise of one query.

The keys of streams are in ``tacita.random``.
Source: AES-256 in counter mode, NIST SP 800-38A; ChaCha20, RFC 8439.
"""

import hmac
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from tacita._box_muller import BLOCK, CHUNK64, fill_float64
from tacita._normals import in_threads, normals
from tacita._normals.definition import GROUP

_AES_BLOCK = 16  # bytes
_WORD = 8  # bytes
LANE = 2**60  # words between a draw and its second attempt, if the first is rejected
_ZEROS = memoryview(bytes(2**17))  # the cipher's input; small enough to stay in the second-level cache
_COINS = 2**16  # coins of one pass of operations
PIECE = 4 * CHUNK64  # float64 normals that a thread takes at once
_PAIRS = 2**98  # AES counter from which pairs of words stand


class Stream:
    """Deterministic words under a key of their own: the same stream always gives the same bits.

    Word i is bytes 8 i to 8 i + 7 of AES-256-CTR (initial counter 0), little endian. Every draw names the words that it
    uses, and a repeated draw gives the same values. A stream must therefore serve one purpose (one label), and use each
    word once.

    Example:
        >>> from tacita.random import Key
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        raise TypeError("a Stream is secret and is neither copied nor pickled: derive it again from its Key.")

    @property
    def secret(self) -> bytes:
        """The key: ``Stream(secret)`` is the same stream elsewhere, and whoever has it draws it all."""
        return self._secret

    def bytes(self, count: int, offset: int = 0) -> bytes:
        """Return ``count`` bytes, from byte ``offset`` on."""
        out = np.empty(_size("count", count), np.uint8)
        _fill(self._cipher(_size("offset", offset)), out)
        return out.tobytes()

    def words(self, count: int, offset: int = 0) -> np.ndarray:
        """Return ``count`` words from word ``offset`` on, uint64, uniform in [0, 2^64)."""
        out = np.empty(_size("count", count), np.dtype("<u8"))
        _fill(self._cipher(_WORD * _size("offset", offset)), out.view(np.uint8))
        return out.astype(np.uint64, copy=False)

    def words_at(self, places: np.ndarray) -> np.ndarray:
        """Return the words at ``places``, uint64, in any order: the same words as :meth:`words` returns."""
        places = np.asarray(places).astype(np.uint64)
        blocks = self._blocks(0, places >> np.uint64(1))  # two words a block
        return blocks[np.arange(len(places)), (places & np.uint64(1)).astype(np.intp)].astype(np.uint64)

    def pairs(self, lane: int, places: np.ndarray) -> np.ndarray:
        """Return the pairs of words at ``places`` of a lane, uint64 (len(places), 2); no other draw reads them."""
        return self._blocks(_PAIRS + (lane << 64), places).astype(np.uint64)

    def bernoulli(self, count: int, probability: float | Fraction, offset: int = 0) -> np.ndarray:
        r"""Draw ``count`` coins, bool; coin i is one where word :math:`w_i < \lfloor p \, 2^{64} \rfloor`.

        The probability of a one is exactly ``probability`` rounded *down* to a multiple of 2^-64; 1 gives all ones.
        """
        count, offset, threshold = _size("count", count), _size("offset", offset), _threshold(probability)
        coins = np.ones(count, bool)
        if threshold == 2**64:
            return coins
        for start in range(0, count, _COINS):
            chunk = coins[start : start + _COINS]
            np.less(self.words(len(chunk), offset + start), np.uint64(threshold), out=chunk)
        return coins

    def bernoulli_at(self, places: np.ndarray, probability: float | Fraction) -> np.ndarray:
        """Return the coins at ``places``, bool, in any order: the same coins as :meth:`bernoulli` draws."""
        threshold = _threshold(probability)
        return np.ones(len(places), bool) if threshold == 2**64 else self.words_at(places) < np.uint64(threshold)

    def integers(self, count: int, high: int, offset: int = 0) -> np.ndarray:
        r"""Draw ``count`` integers, int64, each uniform in [0, high) without bias, from word ``offset`` on.

        Value i is :math:`w_i \bmod high` if :math:`w_i < high \lfloor 2^{64} / high \rfloor`. Otherwise the word is
        rejected, and the word 2^60 further on takes its place. Value i depends on (key, offset + i) alone.
        """
        count, offset = _size("count", count), _size("offset", offset)
        if not 1 <= high <= 2**63:
            raise ValueError(f"high must be in [1, 2^63], got {high}.")
        last = np.uint64(high * (2**64 // high) - 1)
        words = self.words(count, offset)
        lane = 0
        while (rejected := np.flatnonzero(words > last)).size:
            lane += LANE
            words[rejected] = [self.words(1, lane + offset + int(i))[0] for i in rejected]
        return (words % np.uint64(high)).astype(np.int64)

    def permutation(self, n: int, offset: int = 0) -> np.ndarray:
        """Draw a uniform permutation of 0 .. n - 1, int64: the order of the n words from ``offset`` on.

        Only a tie of two words could make it non-uniform. If there is one, the words 2^60 further on take their place.
        """
        n, lane = _size("n", n), _size("offset", offset)
        while True:
            words = self.words(n, lane)
            order = np.argsort(words, kind="stable")
            ranked = words[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order.astype(np.int64, copy=False)
            lane += LANE

    def choice(self, n: int, k: int) -> np.ndarray:
        """Draw a uniform subset of k of 0 .. n - 1, int64, ascending: the first k distinct values of uniform draws."""
        n, k = _size("n", n), _size("k", k)
        if k > n:
            raise ValueError(f"k must be at most n, got k = {k} and n = {n}.")
        if 2 * k > n:  # the complement of a uniform subset is one
            left_out = np.ones(n, bool)
            left_out[self.choice(n, n - k)] = False
            return np.flatnonzero(left_out)
        drawn, distinct, first = np.empty((3, 0), np.int64)
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
        r"""Draw standard normals of ``shape``: value i (row-major) is a function of (key, ``offset`` + i) alone.

        * float32: from ChaCha20's words under a key of their own (:mod:`tacita._normals.definition`). The tail ends at
          9.42. A value is within :math:`3.6 \cdot 10^{-7} r` of an exact normal, where r is the length of its pair.
          Every processor and device gives the same bits. On a CUDA device with Triton, values are made there.
        * float64: Box-Muller within each block of 1024 words. Word j of the first half gives :math:`u \in (0, 1]`,
          and word j + 512 an angle :math:`t \in [-\pi, \pi)`, of 53 bits each. Value j is :math:`r \cos t`, and value
          j + 512 is :math:`r \sin t`, with :math:`r = \sqrt{-2 \ln u}`. The tail ends at :math:`\sqrt{2 \cdot 53 \ln
          2} = 8.57`. The same machine and versions give the same bits; values are made on the CPU and moved.

        The two share no word (docs/derivations/noise.md). Bits do not depend on the number of threads or the shape. The
        memory beside the values holds no other normals.

        Raises:
            ValueError: ``dtype`` is neither float32 nor float64: noise of fewer bits has no stated guarantee.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}. Cast the release afterwards.")
        shape = tuple(_size("shape", n) for n in ((shape,) if isinstance(shape, int) else shape))
        count, offset = math.prod(shape), _size("offset", offset)
        chacha = dtype == torch.float32
        block = GROUP if chacha else BLOCK
        first = offset // block * block
        covered = -(-(offset + count) // block) * block - first if count else 0
        if chacha:
            key = HKDF(SHA256(), 32, salt=b"tacita normals v2", info=b"").derive(self._secret)  # of this cipher alone
            values = normals(key, first // GROUP, covered // GROUP, torch.device(device))
        else:
            values = torch.empty(covered, dtype=dtype, device="cpu")
            self._float64_normals(values.numpy(), first)
        start, stop = offset - first, offset - first + count
        values[:start] = values[stop:] = 0  # a release is written over its normals, and saved with all of their memory
        return values[start:stop].reshape(shape).to(device)

    def laplaces(self, count: int, offset: int = 0) -> np.ndarray:
        r"""Draw ``count`` values of the Laplace distribution of scale 1 (density :math:`e^{-|x|}/2`), float64.

        Value i is :math:`\pm \ln u` from word :math:`w_i`, i from ``offset`` on: the last bit is the sign, and the
        first 53 bits give u in (0, 1]. The tail ends at :math:`53 \ln 2 = 36.7`.
        """
        words = self.words(count, offset)
        lengths = -np.log(((words >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53)
        return np.where(words & np.uint64(1), lengths, -lengths)

    def seed(self) -> int:
        """Return a seed in [0, 2^63) for one of torch's generators (dropout, say): word 0 without its last bit."""
        return int(self.words(1)[0]) >> 1

    def _cipher(self, offset: int) -> CipherContext:
        """Return the cipher at byte ``offset`` of the stream."""
        block, skip = divmod(offset, _AES_BLOCK)
        cipher = Cipher(algorithms.AES(self._secret), modes.CTR(block.to_bytes(_AES_BLOCK, "big"))).encryptor()
        cipher.update(_ZEROS[:skip])
        return cipher

    def _float64_normals(self, out: np.ndarray, first: int) -> None:
        """Fill ``out``, a number of whole blocks, with the normals from ``first`` on, which begins a block."""

        def fill(start: int) -> None:
            cipher = self._cipher(_WORD * (first + start))
            fill_float64(out[start : start + PIECE], partial(_fill, cipher))

        in_threads(fill, range(0, len(out), PIECE))

    def _blocks(self, counter: int, places: np.ndarray) -> np.ndarray:
        """Return the cipher's blocks at ``counter`` (a multiple of 2^64) + ``places``, as pairs of words."""
        counters = np.empty((len(places), 2), np.dtype(">u8"))
        counters[:, 0], counters[:, 1] = counter >> 64, places
        cipher = Cipher(algorithms.AES(self._secret), modes.ECB()).encryptor()
        return np.frombuffer(cipher.update(counters.tobytes()), np.dtype("<u8")).reshape(-1, 2)


@dataclass(repr=False, eq=False)
class Noise:
    """The noise of one query: standard normals, or the stream of a block from which other noise is drawn.

    Attributes:
        stream: Returns the stream of a block.
        query: The number of the query.
        earlier: Returns the stream of the query that comes so many before, by block and name of a parameter. It is the
            same for each query that asks for it.
        memory: What the mechanism keeps from one query to the next in this process; secret, and never written.
    """

    stream: Callable[[str], Stream]
    query: int = 0
    earlier: Callable[[int, str, str], Stream] | None = None
    memory: dict[Any, Any] = field(default_factory=dict)
    _next: dict[str, tuple[Stream, int]] = field(init=False, default_factory=dict)  # by block: stream, normals given

    def __call__(self, block: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return standard normals shaped as ``like``, from where the block's stream stopped last."""
        dtype = torch.float64 if any(x.dtype == torch.float64 for x in like.values()) else torch.float32
        sizes = [x.numel() for x in like.values()]
        device = next(iter(like.values())).device
        stream, given = self._next.get(block) or (self.stream(block), 0)
        self._next[block] = stream, given + sum(sizes)
        flat = stream.normals((sum(sizes),), dtype=dtype, device=device, offset=given)
        return {name: draw.view(x.shape) for (name, x), draw in zip(like.items(), flat.split(sizes), strict=True)}

    def lagged(self, lag: int, block: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the standard normals of the query ``lag`` before, float64, whatever else is drawn and in any order."""
        earlier = self.earlier
        assert earlier is not None, "this noise has no earlier queries"
        return {
            name: earlier(lag, block, name).normals(tuple(x.shape), dtype=torch.float64) for name, x in like.items()
        }


def _fill(cipher: CipherContext, out: np.ndarray) -> None:
    """Write the cipher's next bytes into ``out``, a contiguous uint8 array."""
    view = out.data
    for start in range(0, len(view), len(_ZEROS)):
        part = view[start : start + len(_ZEROS)]
        cipher.update_into(_ZEROS[: len(part)], part)


def _threshold(probability: float | Fraction) -> int:
    """Return 2^64 times the probability, rounded down."""
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be in [0, 1], got {probability}.")
    return math.floor(Fraction(probability) * 2**64)


def _size(name: str, value: int) -> int:
    value = operator.index(value)
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value}.")
    return value
