"""Bugs of federations for real: what a client tells beside its message, what a server refuses, what a crash loses."""

import os
from contextlib import nullcontext, suppress

from msgspec.msgpack import encode

from tacita.federated import (
    Coordinator,
    GuardedSource,
    Resident,
    coordinator,
    frames,
    guarded_source,
    identity,
    resident,
)
from tacita.federated.identity import KnownClients
from tacita.federated.server_folder import ServerFolder
from tacita.federated.wire import from_wire
from tacita.oracles.gate import ReleaseGate
from tests.planted.plant import bug, put, swap

FEDERATION = "tests/federated/test_federation.py::"
SERVER = "tests/federated/test_coordinator.py::"
WIRE = "tests/federated/test_wire.py::"
IDENTITY = "tests/federated/test_identity.py::"
FOLDER = "tests/federated/test_server_folder.py::"
ALIKE = FEDERATION + "test_all_that_a_client_sends_is_alike_on_neighbouring_data"


@bug(78, caught_by=[SERVER + "test_an_honest_message_is_refused_as_seldom_as_stated",
                    FEDERATION + "test_the_order_of_arrival_changes_no_bit"])  # fmt: skip
def messages_above_the_threshold_refused():
    """A server refuses a message that is longer than the clipping threshold, as every noisy one is."""
    swap(coordinator.longest_honest_message, lambda threshold, noise_std, size, false_refusals: threshold)


@bug(78, caught_by=[SERVER + "test_a_wrong_message_is_refused_and_its_client_is_told"])
def any_message_is_added_up():
    """A server adds up what is not finite, or is far longer than an honest message."""
    put(Coordinator, "_bounds", lambda self, noise_std, false_refusals: dict.fromkeys(noise_std, float("inf")))


@bug(79, caught_by=[ALIKE + "[666.0]"])
def a_failing_loss_is_answered_with_nothing():
    """A client sends nothing if its loss raises on a row: that it is silent tells that the row is there."""
    put(GuardedSource, "engine", lambda self, *args, **more: self._source.engine(*args, **more))


@bug(79, caught_by=[FEDERATION + "test_whatever_is_asked_of_an_engine_is_guarded"])
def only_sums_are_guarded():
    """An engine that is asked for gradients, and not for sums, may still raise."""
    put(guarded_source._GuardedEngine, "materialise", lambda self: self._engine.materialise())


@bug(79, caught_by=[FEDERATION + "test_a_wrong_broadcast_costs_nothing"])
def texts_of_exceptions_are_sent():
    """A client answers with the text of what went wrong."""

    def answer(self, request):
        try:
            return self._answer(request)
        except Exception as error:
            return repr(error).encode()

    put(Resident, "answer", answer)


@bug(79, caught_by=[WIRE + "test_asking_never_raises"])
def the_client_app_raises():
    """The client app raises what happened to its socket, and the transport carries the text to the server."""

    def ask(path, payload, *, seconds):
        with frames.socket.socket(frames.socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            frames.write_frame(connection, payload)
            return frames.read_frame(connection)

    put(frames, "ask", ask)


@bug(77, caught_by=[FEDERATION + "test_a_refused_message_is_told_and_sent_again",
                    SERVER + "test_a_wrong_message_is_refused_and_its_client_is_told"])  # fmt: skip
def refused_messages_are_acknowledged():
    """A broadcast names the last message that the server has read, refused or not: the client moves on without it."""
    whole = Coordinator.broadcasts

    def broadcasts(self, clients):
        self._accepted = dict(self._seen)
        return whole(self, clients)

    put(Coordinator, "broadcasts", broadcasts)


@bug(77, caught_by=[SERVER + "test_no_message_is_added_up_twice_after_a_crash"])
def a_server_forgets_the_numbers_it_has_read():
    """After a crash the server adds up a message again that it had added up, or refused, before."""
    whole = Coordinator._load

    def load(self, path):
        whole(self, path)
        self._seen.clear()

    put(Coordinator, "_load", load)


@bug(caught_by=[SERVER + "test_a_server_goes_on_from_its_file[adam]"])
def a_server_forgets_its_moments():
    """What Adam remembers on the server is not taken from its file."""
    whole = Coordinator._load

    def load(self, path):
        whole(self, path)
        self._server.memory.clear()

    put(Coordinator, "_load", load)


@bug(caught_by=[FEDERATION + "test_lost_messages_restarts_and_late_joiners_lose_nothing"])
def clients_forget_when_they_are_restarted():
    """A client's state is saved once, before its first message."""
    whole = Resident._save

    def save(self):
        if not self._folder.checkpoint.exists():
            whole(self)

    put(Resident, "_save", save)


@bug(caught_by=[SERVER + "test_a_server_goes_on_from_its_file"])
def a_server_starts_anew():
    """A server that was killed begins again at its first round."""
    put(Coordinator, "_load", lambda self, path: None)


@bug(caught_by=[SERVER + "test_messages_are_added_up_in_the_order_of_clients"])
def messages_added_up_as_they_arrive():
    """The order in which messages arrive shows in the bits of the model."""
    whole = Coordinator.receive

    def receive(self, replies):
        self._asked = tuple(replies)
        return whole(self, replies)

    put(Coordinator, "receive", receive)


@bug(caught_by=[SERVER + "test_a_broadcast_names_the_last_message_that_was_added_up"])
def a_message_counts_twice():
    """A message that arrives a second time is added up again."""
    whole = Coordinator._message

    def message(self, client, reply):
        self._seen.pop(client, None)
        return whole(self, client, reply)

    put(Coordinator, "_message", message)


@bug(caught_by=[FEDERATION + "test_a_wrong_broadcast_costs_nothing"])
def clients_answer_any_federation():
    """A client answers a server that has other settings than its own."""
    whole = Resident._answer

    def answer(self, request):
        with suppress(Exception):
            self.federation = from_wire(request).federation
        return whole(self, request)

    put(Resident, "_answer", answer)


@bug(caught_by=[WIRE + "test_only_the_owner_can_connect"])
def any_user_can_connect():
    """Every user of the machine may ask the resident client for messages, and use up its plan."""
    put(frames, "_check_place", lambda path: None)


@bug(caught_by=[FEDERATION + "test_what_went_wrong_is_kept_for_the_owner_alone"])
def problems_are_readable_by_all():
    """The texts of exceptions, which quote rows, are written into a file that every user may read."""
    opened = resident.os.open
    put(resident.os, "open", lambda path, flags, mode=0o777: opened(path, flags, 0o644 if mode == 0o600 else mode))


@bug(79, caught_by=[FEDERATION + "test_the_number_after_a_crash_tells_nothing"])
def a_message_is_redone_after_a_crash():
    """A client redoes a message whose line is written: its number tells the server whether the values are the same."""
    put(ReleaseGate, "redo_nothing", lambda self: None)


@bug(caught_by=[IDENTITY + "test_a_client_comes_back_and_nobody_takes_its_place"])
def any_node_is_taken_for_any_client():
    """A node that signs with a key of its own is taken for a client that another key was bound to."""
    put(identity.hmac, "compare_digest", lambda known, said: True)


@bug(caught_by=[IDENTITY + "test_what_was_overheard_serves_for_nothing",
                IDENTITY + "test_a_claim_without_its_proof_is_refused"])  # fmt: skip
def a_claim_is_believed():
    """The public key that a node names is taken for a proof that it holds the private one."""
    swap(identity._verified, lambda said, challenge: True)


@bug(caught_by=[IDENTITY + "test_a_signature_that_was_made_for_something_else_is_none"])
def a_signature_serves_for_anything():
    """What is signed does not say that it is an introduction."""
    swap(identity._signed, lambda federation, client, challenge: encode((federation, client, challenge)))


@bug(caught_by=[IDENTITY + "test_a_client_comes_back_and_nobody_takes_its_place"])
def a_server_forgets_the_keys_of_its_clients():
    """After a crash of the server whoever comes first is a client."""
    put(KnownClients, "_save", lambda self: None)


@bug(caught_by=[FOLDER + "test_one_command_and_one_server_at_a_time"])
def two_servers_in_a_folder():
    """Two servers ask the clients of one federation at once, and use up their messages."""
    put(ServerFolder, "_held", lambda self, path, handle=None: nullcontext())


@bug(caught_by=[FOLDER + "test_a_server_whose_lock_is_gone_ends_before_it_publishes"])
def a_server_goes_on_without_its_lock():
    """A server whose lock file was removed goes on beside the one that was started since."""
    put(ServerFolder, "_check_held", lambda self: None)


@bug(caught_by=[IDENTITY + "test_a_key_of_no_client_or_two_keys_of_one_are_refused"])
def the_last_of_two_keys_counts():
    """In the server's file of keys, a second key of a client, written as "00", takes the place of the first."""
    put(KnownClients, "_number", lambda self, text: int(text))


@bug(caught_by=[IDENTITY + "test_a_key_that_others_may_read_is_its_owners_alone_again"])
def anybody_may_read_a_clients_key():
    """A signing key that was restored with another mode stays readable for all users."""
    real = os.chmod
    put(identity.os, "chmod", lambda path, mode, **more: None if mode == 0o600 else real(path, mode, **more))


@bug(77, caught_by=[FEDERATION + "test_a_broadcast_of_a_round_that_is_over_is_not_answered"])
def a_restarted_client_forgets_its_round():
    """After a restart a client answers a broadcast of a round that is over, which is wrong about its last message."""
    whole = Resident._take_up

    def take_up(self):
        whole(self)
        self._round = 0

    put(Resident, "_take_up", take_up)
