"""A client that stays: it holds data, oracle, key and ledger, and answers the broadcasts that a transport brings.

Place: federated.client -> [federated.resident] -> the wire. A transport may start a new process in every round and
forget what that process knew; this process stays, and its folder takes it up again after a crash. Nothing leaves it but
records of :mod:`tacita.federated.wire`, of which only a message's noisy values depend on data.
"""

import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from tacita import _validate
from tacita.errors import ResumeError
from tacita.federated.algorithm_settings import differences
from tacita.federated.client import Client
from tacita.federated.frames import NOTHING, SECONDS_TO_READ, listening, read_frame, write_frame
from tacita.federated.guarded_source import GuardedSource
from tacita.federated.identity import ClientIdentity
from tacita.federated.wire import (
    Answer,
    Broadcast,
    Greeting,
    WireError,
    from_wire,
    largest_record,
    tensors_of,
    to_wire,
    wire_tensors,
)
from tacita.ledger import Ledger
from tacita.oracles import GradientOracle
from tacita.runs import checkpoint
from tacita.runs.folder import RunFolder

IDENTITY = "identity.key"  # what the server knows this client by; private
PROBLEMS = "problems.txt"  # what went wrong, in full; private
MOST_PROBLEMS = 2**20  # bytes of that file
MOST_STRANGERS = 8  # other federations that are told of
SECONDS_BETWEEN_LOOKS = 0.2  # whether to stop


def note_in(folder: RunFolder) -> Callable[[BaseException], None]:
    """Return a function that writes exceptions into a private file of ``folder``, of mode 0600, for its owner alone.

    The texts of exceptions quote data. What cannot be written is forgotten: nothing is raised.
    """
    path = folder.private / PROBLEMS

    def note(error: BaseException) -> None:
        with suppress(Exception):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                if os.fstat(file.fileno()).st_size < MOST_PROBLEMS:
                    file.write("".join(traceback.format_exception(error)) + "\n")

    return note


class Resident:
    """Answers a federation's records from one client's data, and saves the client before anything is sent.

    Guarantee: the bytes of every reply, and whether there is one, are functions of what the server sent, of public
    settings and of the noisy messages alone. Whatever goes wrong is answered with no bytes
    (:data:`~tacita.federated.frames.NOTHING`). That a failing model or loss counts as a zero gradient, and is no
    failure, is :class:`GuardedSource`'s work. How long a reply takes is not covered.

    A killed process loses nothing: ledger line, checkpoint and key are on disk, in this order, before the message is
    sent. A message that was not sent is one that the server has not accepted, so that the client goes back.

    Args:
        oracle: The client's oracle, as for :class:`Client`, over a :class:`GuardedSource`. Its key is that of
            ``folder``, and its ledger the folder's.
        federation: The id of the federation. Broadcasts of another one are not answered.
        number: The client's number in the federation, from 0.
        folder: Where the client keeps its files; its ``private`` folder exists.
        tell: Is told what the server has refused, and when nothing more is to be sent, in words that are public.
        rounds: Number of rounds of the federation, if it is known.
        settings: Settings of the federation, to say in what a server's differ.

    Attributes:
        size: The number of coordinates of a message.

    Raises:
        TypeError: The oracle's source is no :class:`GuardedSource`.
        ResumeError: The checkpoint in the folder is of another federation or client, or cannot be continued, or the
            client's identity is missing.
    """

    def __init__(
        self,
        oracle: GradientOracle,
        *,
        federation: str,
        number: int,
        folder: RunFolder,
        tell: Callable[[str], None] = lambda words: None,
        rounds: int | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if not isinstance(oracle.source, GuardedSource):
            raise TypeError(
                f"oracle must be over a GuardedSource, got {type(oracle.source).__name__}: if a loss raised on a row, "
                "that there is no message would tell the server."
            )
        self._oracle, self._client, self._folder = oracle, Client(oracle), folder
        self.federation, self.number = federation, _validate.count("number", number, at_least=0)
        self._note, self._tell, self._rounds, self._settings = note_in(folder), tell, rounds, settings
        self._shapes = oracle.source.shapes
        self.size = sum(shape.numel() for shape in self._shapes.values())
        model = oracle.source.model
        given = {} if model is None else dict(model.named_parameters())
        self._like = {name: given.get(name, torch.zeros(0, dtype=torch.float64)) for name in self._shapes}
        self._round = 0  # of the last broadcast that was answered
        self._greeted = False  # whether a server has asked who this is
        self._strangers: set[str] = set()  # federations that were asked for, and are not this one
        self._identity = ClientIdentity.at(folder.private / IDENTITY, new=not folder.checkpoint.exists())
        self._take_up()

    @property
    def ledger(self) -> Ledger:
        """The client's ledger, which pays for its messages."""
        return self._oracle.ledger

    def _take_up(self) -> None:
        """Continue from the folder's checkpoint, or write the first one."""
        path, head = self._folder.checkpoint, {"federation": self.federation, "client": self.number}
        if path.exists():
            tree, found = checkpoint.load(path)
            if {name: found.get(name) for name in head} != head:
                raise ResumeError("the folder is that of another federation or client: choose another folder.")
            try:
                self._client.load_state_dict(tree)
                self._round = int(tree["round"])
                self._oracle.gate.redo_nothing()  # or the number sent would tell whether redone values are the same
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise ResumeError(f"{path.name} does not fit this client.") from error
        elif self._oracle.session.opened:
            raise ResumeError(f"messages were sent from this folder, and {path.name} is missing: restore it.")
        else:
            self._save()

    def answer(self, request: bytes) -> bytes:
        """Return the reply to a request; no bytes if there is none. Nothing is raised."""
        try:
            return self._answer(request)
        except Exception as error:
            self._note(error)
            return NOTHING

    def _answer(self, request: bytes) -> bytes:
        record = from_wire(request)
        if not isinstance(record, Greeting | Broadcast) or record.federation != self.federation:
            self._say_other(getattr(record, "federation", self.federation), getattr(record, "settings", {}))
            raise WireError("the record is not for a client of this federation.")
        if isinstance(record, Greeting):
            self._say_greeted()
            return to_wire(self._identity.introduction(record, self.number))
        if record.refused:
            self._tell(f"the server has refused the last message: {record.refused[:40]!r}")
        if record.round < self._round and self._client.remembers:
            self._tell(
                f"a server asks for round {record.round + 1}, and this client has answered round {self._round + 1}: it "
                "is not answered. A server that is started again needs its own folder (serve --output)."
            )
            raise WireError(
                "the broadcast is of a round that is over: what it says of the last message is out of date."
            )
        if self.used_up:  # what follows raises
            self._tell("a server asks for a message, and this client's messages are used up: it is not answered.")
        params = {name: x.to(self._like[name]) for name, x in tensors_of(record.params, self._shapes).items()}
        message = self._client.answer(params, accepted=record.accepted)
        self._round = record.round
        self._save()
        self._say_answered()
        return to_wire(Answer(self.federation, self.number, message.number, wire_tensors(message.values)))

    @property
    def used_up(self) -> bool:
        """Whether all planned messages are sent, so that none will ever follow."""
        return not self._client.remaining_queries

    def _say_greeted(self) -> None:
        """Tell once that a server is there, which tells nobody whether it takes this client."""
        if not self._greeted:
            self._greeted = True
            self._say(
                "a server has asked which client this is. If no round follows, it knows another key under this number, "
                "or still waits for others: ask whoever runs it."
            )

    def _say(self, words: str) -> None:
        with suppress(Exception):  # a terminal that is gone holds no message back
            self._tell(words)

    def _say_answered(self) -> None:
        """Tell which round is answered, and whether no message will follow, or none is needed if this one arrives."""
        words = f"round {self._round + 1}{'' if self._rounds is None else f' of {self._rounds}'} is answered"
        if self.used_up:
            words += ". This is the last planned message: stop this client (Ctrl-C) to seal its folder"
        elif self._rounds is not None and self._round + 1 >= self._rounds:
            words += (
                ": if the message arrives, the federation is finished and asks no more. Ask the server, and then stop "
                "this client (Ctrl-C)"
            )
        self._say(f"{words}.")

    def _say_other(self, federation: str, settings: Mapping[str, Any]) -> None:
        """Tell, once for each, which other federation a server has asked for, so that nobody waits in vain."""
        if (
            federation != self.federation
            and len(self._strangers) < MOST_STRANGERS
            and federation not in self._strangers
        ):
            self._strangers.add(federation)
            found = settings and differences(settings, self._settings)
            self._tell(
                f"a server asks for the federation {federation[:80]!r}, and this client is of {self.federation!r}: it "
                f"is not answered. {f'{found}. ' if found else ''}Server and clients need the same file of settings, "
                "of which the first number is a hash. The second, of a network, is one of its program, its shapes and "
                "its frozen weights: use the same model, loss, version of torch and kind of device."
            )

    def _save(self) -> None:
        """Put ledger, checkpoint and the next key on disk, in this order."""

        def write(oracle: dict[str, Any]) -> None:
            tree = {**self._client.state_dict(), "round": self._round, "oracle": oracle}
            head = {"federation": self.federation, "client": self.number, "size": self.size}
            checkpoint.save(self._folder.checkpoint, tree, head)

        self._oracle.checkpoint(write, self._folder.key)

    def serve(
        self, path: Path, *, until: Callable[[], bool] = lambda: False, ready: Callable[[], None] = lambda: None
    ) -> None:
        """Answer one connection after the other at the Unix socket ``path``.

        Args:
            path: The socket: in a folder that only its owner may enter.
            until: Asked several times a second whether to stop.
            ready: Called when the socket takes connections.
        """
        largest = largest_record(self._shapes)
        with listening(path) as listener:
            listener.settimeout(SECONDS_BETWEEN_LOOKS)
            ready()
            while not until():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, suppress(OSError, ValueError):  # the other side may be gone: the message is lost
                    connection.settimeout(SECONDS_TO_READ)
                    write_frame(connection, self.answer(read_frame(connection, largest=largest)))

    def close(self) -> None:
        """Close the client's ledger; numbers that were reserved and not begun are given back."""
        self._client.close()

    def __repr__(self) -> str:
        return f"Resident(federation={self.federation!r}, number={self.number})"
