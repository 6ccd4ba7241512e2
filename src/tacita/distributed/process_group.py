"""The ranks of a process group, which compute the sums of one query together.

Place: gradients.processes -> [distributed.process_group] -> distributed.gates. The engines add up their sums here, and
an oracle's gate sends the other ranks what rank 0 drew and released.
Proof: docs/derivations/process-group.md.

Rank 0 alone draws, pays and adds noise; the others compute sums of their rows. Each exchange begins with a *status*
that all ranks give at once: whether this rank failed, which step it is at, and what must be equal. So an exception on
one rank is an error on all of them, and two ranks that are not at the same step never add up unlike things.
"""

import hashlib
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.poly1305 import Poly1305
from torch import Tensor

from tacita.errors import BudgetExceededError, RankError
from tacita.gradients.processes import Processes

T = TypeVar("T")

BUCKET = 2**22  # elements that are sent at once
FAILED, NO_BUDGET = 1, 2  # what a rank says of itself in a status, where 0 is nothing
_MARK = "_every_rank_knows"  # on an exception that was told to all ranks
_DTYPES = (torch.int64, torch.float32, torch.float64)  # of sums, the wider one later
_DIFFERS = {
    "settings": "the ranks have different settings: every rank must build the oracle with the same ones.",
    "records": "the ranks have different data sets: every rank must hand in all records, in the same order.",
    "model": "the ranks have different parameters or buffers: load the same weights on every rank (draw them under "
    "one torch.manual_seed, or broadcast rank 0's).",
    "updates": "the ranks name different parameters: pass the same updates= on every rank.",
    "shards": "the ranks have parameters of other names, shapes or dtypes, or shards of other ones: call fully_shard "
    "on the same model in the same way on every rank.",
}


class Ranks(Processes):
    """The ranks of a process group.

    Args:
        group: A process group of ``torch.distributed``, such as ``torch.distributed.group.WORLD``.
        device: Where this rank's parameters are.

    Attributes:
        rank: This process's number in the group.
        size: The number of ranks.
        group: The process group.

    Raises:
        ValueError: ``group`` is no process group, or this process is not in it.
    """

    def __init__(self, group: Any, device: torch.device | None = None) -> None:
        self.group, self._lost, self._added = group, False, False
        self._amid = False  # whether the other ranks wait for the rest of a step that began
        self._known = 0  # number of exceptions that all ranks were told
        if not (hasattr(group, "allreduce") and callable(getattr(group, "rank", None))):
            raise ValueError(
                "process_group must be None, or a process group of torch.distributed that this process is in, such as "
                "torch.distributed.group.WORLD after init_process_group."
            )
        self.rank, self.size = int(group.rank()), int(group.size())
        self.oracle = ""  # whose steps these are: no other oracle's are taken for them
        self.lock = _LOCKS.setdefault(group, threading.RLock())  # for one query, or one step, of the group at a time
        self.leads = self.rank == 0
        self._device = torch.device("cpu") if _takes_cpu(group) else device or torch.device("cpu")

    def __repr__(self) -> str:
        return f"Ranks(rank={self.rank}, size={self.size})"

    def share(self, rows: np.ndarray) -> np.ndarray:
        """Return this rank's rows of a batch: every ``size``-th one, from the ``rank``-th on."""
        return np.asarray(rows)[self.rank :: self.size]

    def number(self, chunk: int) -> int:
        """Return the number of this rank's ``chunk`` among those of all ranks, which seeds what the model draws."""
        return chunk * self.size + self.rank

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Make an exception of one rank, anywhere in the block, an error of all ranks at their next exchange."""
        known = self._known
        try:
            yield
        except BaseException as error:
            self._lost |= self._amid  # the others would take a status for the values that they wait for
            if not (self._lost or _every_rank_knows(error, known)):
                self._mark(error)
                with suppress(RankError):  # what happened here is the error to show
                    self._status("", code=NO_BUDGET if isinstance(error, BudgetExceededError) else FAILED)
            raise

    def check_equal(self, what: str, own: bytes) -> None:
        """Raise :class:`RankError` on every rank unless all ranks have the same ``own``.

        Args:
            what: ``"settings"``, ``"records"``, ``"model"`` or ``"updates"``.
            own: What must be equal; only its hash is exchanged.
        """
        with self._step(what, what=what, own=own):
            pass

    def at_once(self, what: str, own: bytes, collective: Callable[[], T]) -> T:
        """Return what a collective of the caller's own returns, once all ranks are there with the same ``own``."""
        with self._step(what, what=what, own=own), self._or_lost():
            return collective()

    def begin(self, model: Any, *, by_shard: bool) -> None:
        """Raise unless the model can be asked for a query now, whose sums stay in shards or do not."""

    def collect(self, step: str, own: Tensor) -> Tensor:
        """Return the ``own`` of all ranks, (rank, *own), int64; each has the same shape on all of them."""
        with self._step(step, own=repr(own.shape).encode(), what="shards"):
            every = torch.zeros(self.size, *own.shape, dtype=torch.int64, device=self._device)
            every[self.rank] = own.to(self._device)
            self._collective(dist.all_reduce, every)
        return every

    def stop(self, why: str) -> NoReturn:
        """Raise :class:`RankError`, which every rank does at this point."""
        self._raise(RankError(why))

    def add_up(self, values: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the sums over all ranks of tensors by name; each rank gets all of them.

        Whole numbers (int64) are added exactly. Others are rounded once for each rank, in the wider dtype of the ranks.
        """
        self._added = True
        named = [(name, one[name]) for one in values for name in sorted(one)]  # engines differ in their order
        shapes, flat = [(name, *tensor.shape) for name, tensor in named], [tensor for _, tensor in named]
        with self._step(f"sums {len(values)} {shapes}"):
            widest = torch.tensor([_DTYPES.index(tensor.dtype) for tensor in flat], device=self._device)
            self._collective(dist.all_reduce, widest, op=dist.ReduceOp.MAX)
            wide = [tensor.to(_DTYPES[code]) for tensor, code in zip(flat, widest.tolist(), strict=True)]
            summed = iter(self._sent(wide, dist.all_reduce))
        found = [{name: next(summed) for name in sorted(one)} for one in values]
        return [{name: sums[name] for name in one} for sums, one in zip(found, values, strict=True)]

    def check_added_up(self) -> None:
        """Raise ``RuntimeError`` if nothing was added up since this was last asked: a sum of this rank's rows alone."""
        added, self._added = self._added, False
        if self.size > 1 and not added:
            raise RuntimeError(
                "the estimator added up nothing over the ranks, so that its values are of this rank's rows alone: it "
                "must take sums from engine.weighted_sums, or hand its own to engine.over_ranks."
            )

    def broadcast(
        self, step: str, message: Mapping[str, Any] | None, data: bytes = b"", *, what: str = "", own: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Return rank 0's ``message`` and ``data`` on every rank; the other ranks pass ``None``.

        Args:
            step: Which step of the query this is; it must be the same on all ranks.
            message: Plain settings, which JSON can hold.
            data: More bytes.
            what, own: As in :meth:`check_equal`, checked before anything is sent.
        """
        head = json.dumps(message).encode() if self.leads else b""
        payload = len(head).to_bytes(8, "big") + head + data if self.leads else b""
        with self._step(step, what=what, own=own, length=len(payload)) as length:
            buffer = torch.empty(length, dtype=torch.uint8)
            if self.leads:
                buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            buffer = buffer.to(self._device)
            self._collective(dist.broadcast, buffer, group_src=0)
            found = buffer.cpu().numpy().tobytes()
        end = 8 + int.from_bytes(found[:8], "big")
        return json.loads(found[8:end]), found[end:]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return rank 0's tensors on every rank; the others pass tensors of the same shapes and dtypes."""
        with self._step("tensors"):
            return self._sent(tensors, dist.broadcast, group_src=0)

    @contextmanager
    def _step(self, step: str, *, what: str = "", own: bytes = b"", length: int = 0) -> Iterator[int]:
        """Exchange what belongs to a step, as :meth:`_exchange` begins it, while no other thread uses the group."""
        with self.lock:
            yield self._exchange(step, what=what, own=own, length=length)
            self._amid = False

    def _exchange(self, step: str, *, what: str = "", own: bytes = b"", length: int = 0) -> int:
        """Give and take a status; return the largest ``length``.

        Raises:
            RankError: A rank failed, is at another step, or has another ``own``. All ranks raise it.
        """
        self._amid = True
        code, at_step, alike, longest = self._status(step, own=own, length=length)
        if not code and at_step and alike:
            return longest
        self._amid = False
        if code == NO_BUDGET:
            self._raise(BudgetExceededError("rank 0 has no budget left for this, and says why."))
        if code:
            self._raise(RankError(f"another rank failed in this query, and says why; rank {self.rank} stops with it."))
        if not at_step:
            self._raise(
                RankError(
                    "the ranks are not at the same step: every rank must make the same calls in one order, and ask the "
                    "same oracle at a time."
                )
            )
        self._raise(RankError(_DIFFERS[what]))

    def _raise(self, error: Exception) -> NoReturn:
        self._mark(error)
        raise error

    def _mark(self, error: BaseException) -> None:
        self._known += 1
        setattr(error, _MARK, self._known)

    def _status(self, step: str, *, own: bytes = b"", code: int = 0, length: int = 0) -> tuple[int, bool, bool, int]:
        here, mine = hashed(f"{self.oracle} {step}".encode()), hashed(own)
        status = torch.tensor([code, here, -here, mine, -mine, length], device=self._device)
        with self.lock:
            self._collective(dist.all_reduce, status, op=dist.ReduceOp.MAX)
        worst, high, low, most, least, longest = status.tolist()
        return worst, high == -low, most == -least, longest

    def _sent(self, tensors: Sequence[Tensor], collective: Callable[..., Any], **options: Any) -> list[Tensor]:
        """Send tensors by the bucket, one after the other; a bucket holds one dtype."""
        found: list[Tensor] = []
        with self._or_lost():
            for bucket in _buckets(tensors):
                flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])  # a copy: sums may share memory
                sent = flat.to(self._device) if flat.device.type == "cpu" else flat  # NCCL takes none of the CPU
                collective(sent, group=self.group, **options)
                parts = sent.to(flat.device).split([tensor.numel() for tensor in bucket])
                found += [part.view(tensor.shape) for part, tensor in zip(parts, bucket, strict=True)]
        return found

    def _collective(self, collective: Callable[..., Any], tensor: Tensor, **options: Any) -> None:
        with self._or_lost():
            collective(tensor, group=self.group, **options)

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        """Never use the group again after an exception in the block: where the other ranks are is unknown then."""
        if self._lost:
            raise RankError("the ranks have lost each other: end all of them, and resume the run.")
        try:
            yield
        except BaseException as error:
            self._lost = True
            if not isinstance(error, Exception):
                raise
            raise RankError(
                "the ranks have lost each other: a process died, the network failed, or one waited too long. End all "
                "of them, and resume the run; a query whose line the ledger has stays paid for."
            ) from error


def tensors_digest(tensors: Iterable[tuple[str, Tensor | np.ndarray]]) -> bytes:
    """Return a short digest of names, shapes, dtypes and values, quick enough for every query.

    It shows accidents, and is no defence against forgeries. Values on another device than the CPU enter by the sums of
    their bits and of the squares of these.
    """
    digest = Poly1305(_PUBLIC)
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}\0".encode())
        elsewhere = isinstance(tensor, Tensor) and tensor.device.type != "cpu"
        digest.update(_sums_of_bits(tensor) if elsewhere else _bits(tensor))
    return digest.finalize()


def _bits(tensor: Tensor | np.ndarray) -> Any:
    if isinstance(tensor, Tensor):
        flat = tensor.detach().contiguous().view(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data if tensor.size else b""


def _sums_of_bits(tensor: Any) -> bytes:
    bits = tensor.detach().contiguous().view(-1).view(_WORDS[tensor.dtype.itemsize])
    return str([int(bits.sum(dtype=torch.int64)), int((bits * bits).sum(dtype=torch.int64))]).encode()


_LOCKS = weakref.WeakKeyDictionary[Any, Any]()  # of process groups
_PUBLIC = hashlib.sha256(b"tacita digest of tensors").digest()  # the key of a polynomial that anybody may know
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}  # by bytes an element


def hashed(content: bytes) -> int:
    """Return 56 bits of SHA-256."""
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big")


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(one.numel() for one in bucket) + tensor.numel() > BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _takes_cpu(group: Any) -> bool:
    """Return whether the group sends tensors of the CPU; one of NCCL alone does not."""
    return not isinstance(group, dist.ProcessGroup) or "cpu:" in dist.get_backend_config(group)


def _every_rank_knows(error: BaseException | None, before: int) -> bool:
    """Return whether ``error``, or what it was raised from, was told to all ranks after the first ``before`` ones."""
    while error is not None:
        if getattr(error, _MARK, 0) > before:
            return True
        error = error.__cause__ or error.__context__
    return False
