"""Bugs of federated clients: messages that are charged too little, lost messages, noise that tells or is too small."""

import math
from dataclasses import replace

from tacita.accounting import gaussian_sum_event
from tacita.federated import (
    Client,
    ClippedDifference,
    ClippedSamplesEvent,
    LocalPrivacy,
    Simulation,
    TrustedServer,
    client_messages,
    clipped_difference,
)
from tacita.federated.round_noise import RoundNoise
from tacita.oracles.payment import SessionPlan
from tests.planted.plant import bug, put, swap

DIFFERENCE = "tests/federated/test_clipped_difference.py::"
EVENTS = "tests/federated/test_client_messages.py::"
SIMULATION = "tests/federated/test_simulation.py::"
CLIENT = "tests/federated/test_client.py::"


@bug(20, caught_by=[DIFFERENCE + "test_the_saturating_canary_reaches_the_charge",
                    EVENTS + "test_the_noise_of_messages_is_exact"])  # fmt: skip
def a_message_moves_by_one_threshold():
    """A client's message is charged as if a record moved it by C; it turns it around, by 2 C."""
    put(client_messages, "APART", 1.0)


@bug(20, caught_by=[DIFFERENCE + "test_a_message_is_a_projection",
                    DIFFERENCE + "test_the_number_of_rows_is_not_public"])  # fmt: skip
def noise_of_a_message_for_one_threshold():
    """The noise multiplier of a message is in units of C under relations that do not replace."""
    swap(clipped_difference._apart, lambda clipper, shapes: clipper.max_contribution(shapes))


@bug(caught_by=[DIFFERENCE + "test_one_draw_saturates_every_message"])
def momentum_amplified_by_sampling():
    """Messages with momentum are charged as sums over sampled records; one draw is in all of them."""

    def event(self, sampler, noise_std, relation, shapes):
        bounds = self.clipper.max_contribution(shapes)
        return gaussian_sum_event(sampler.law, tuple(bounds.values()), tuple(noise_std.values()), relation)

    put(ClippedDifference, "event", event)


@bug(caught_by=[EVENTS + "test_delta_of_clipped_samples_is_the_mixture_over_draws",
                DIFFERENCE + "test_one_occurrence_of_a_clipped_sample_moves_all_messages_by_its_charge"])  # fmt: skip
def momentum_does_not_give_back():
    """A clipped record is charged for what it adds to the messages, and not for what they take back."""
    whole = ClippedSamplesEvent.query_mu.fget
    put(ClippedSamplesEvent, "query_mu", property(lambda self: whole(self) / 2))


@bug(caught_by=[DIFFERENCE + "test_the_number_of_rows_is_not_public"])
def rows_of_a_client_are_counted():
    """A client with 99 rows where 100 were declared raises, which tells the server."""
    put(ClippedDifference, "any_change", property(lambda self: False))


@bug(caught_by=[DIFFERENCE + "test_a_part_of_a_split_is_refused"])
def parts_of_a_client_in_parallel():
    """Two parts of one client's rows are charged as if its data were in one of them alone."""

    def check(self):
        self.check_sampler()

    put(SessionPlan, "check", check)


@bug(caught_by=[CLIENT + "test_what_cannot_go_back_is_refused",
                DIFFERENCE + "test_clipped_samples_protect_records_so_their_number_is_public"])  # fmt: skip
def clipped_samples_go_back():
    """A client whose guarantee counts a record's draws goes back to an older state, and sends the record again."""
    put(ClippedDifference, "any_change", property(lambda self: True))


@bug(caught_by=[DIFFERENCE + "test_an_overflowing_mean_counts_as_zero",
                SIMULATION + "test_a_gradient_that_is_no_number_counts_as_zero"])  # fmt: skip
def momentum_remembers_what_is_no_number():
    """A gradient that overflows stays in the momentum for good."""
    swap(clipped_difference.finite_or_zero, lambda vector, shapes: dict(vector))


@bug(77, caught_by=[SIMULATION + "test_lost_messages_do_no_harm_as_states_go_back"])
def simulated_clients_move_anyway():
    """A simulated client moves its state although its message was lost."""
    put(Simulation, "_acknowledged", lambda self, following, asked: following)


@bug(77, caught_by=[CLIENT + "test_the_state_moves_when_the_server_has_acknowledged"])
def a_client_never_goes_back():
    """A client moves its state with every message, accepted or not."""

    def settle(self, accepted):
        self._sent = self._accepted = accepted

    put(Client, "_settle", settle)


@bug(caught_by=[SIMULATION + "test_the_sum_has_the_noise_of_all_messages_from_the_first_round_on"])
def one_noise_for_all_clients():
    """A simulated sum has the noise of one message, not of all that arrived."""
    before = RoundNoise.prepare

    def prepare(self, privacy, asked):
        before(self, privacy, asked)
        self._scale = 1.0

    put(RoundNoise, "prepare", prepare)


@bug(32, caught_by=[SIMULATION + "test_a_trusted_servers_noise_does_not_tell_who_took_part"])
def noise_tells_who_took_part():
    """A trusted server's noise grows with the number of clients that took part, which is secret."""
    before = RoundNoise.prepare

    def prepare(self, privacy, asked):
        before(self, privacy, asked)
        if isinstance(privacy, TrustedServer):
            self._scale = math.sqrt(len(self._numbers))

    put(RoundNoise, "prepare", prepare)


@bug(19, caught_by=[SIMULATION + "test_a_client_is_charged_for_every_round"])
def absent_clients_are_not_charged():
    """A client is charged for the share of rounds that it was asked in on average, not for those it may be in."""
    whole = LocalPrivacy.resolved

    def resolved(self, *args, num_clients, **rest):
        mechanism, noise_std, event = whole(self, *args, num_clients=num_clients, **rest)
        share = self.expected_clients(num_clients) / num_clients
        less = tuple(bound * math.sqrt(share) for bound in event.max_contribution)
        kind = type(event)
        return mechanism, noise_std, kind(relation=event.relation, max_contribution=less, noise_std=event.noise_std)

    put(LocalPrivacy, "resolved", resolved)


@bug(caught_by=[SIMULATION + "test_noise_is_calibrated_beside_what_is_registered_already"])
def calibrated_as_if_nothing_else_were_spent():
    """The noise of a federation is calibrated for a target that other sessions of the ledger have used already."""
    before = LocalPrivacy.resolved

    class Alone:
        def __init__(self, ledger):
            self.neighboring_relation = ledger.neighboring_relation

        def spends(self, part, before=None):
            return []

    put(LocalPrivacy, "resolved", lambda self, clipper, ledger, **rest: before(self, clipper, Alone(ledger), **rest))


@bug(caught_by=[SIMULATION + "test_every_parameter_of_a_client_has_noise_of_its_own"])
def one_noise_for_all_parameters():
    """All parameters of a client's message have the same noise, which a difference takes away."""

    def one_by_one(self, block, messages, std, normals):
        each = {}
        for name, message in messages.items():
            draws = (
                normals.stream(f"{block}/client-{client}").normals(tuple(message.shape[1:])) for client in self._numbers
            )
            each[name] = message.sum(0) + std * sum(draws)
        return each

    put(RoundNoise, "_one_by_one", one_by_one)


@bug(20, caught_by=[DIFFERENCE + "test_layers_of_clipped_samples_are_charged_by_the_least_noise_and_the_whole_message"])
def the_quietest_layer_is_charged_for_all():
    """Clipped samples of several layers are charged with the largest noise of a layer, not with the least."""
    event = ClippedDifference.event

    def loudest(self, sampler, noise_std, relation, shapes):
        found = event(self, sampler, noise_std, relation, shapes)
        return replace(found, noise_std=max(noise_std.values())) if self.sample_clipper else found

    put(ClippedDifference, "event", loudest)
