"""Bugs of federated clients: messages that are charged too little, lost messages, noise that tells or is too small."""

import math

from tacita.federated import (
    LocalPrivacy,
)
from tacita.oracles.payment import SessionPlan
from tests.planted.plant import bug, put

DIFFERENCE = "tests/federated/test_clipped_difference.py::"
SIMULATION = "tests/federated/test_simulation.py::"


@bug(caught_by=[DIFFERENCE + "test_a_part_of_a_split_is_refused"])
def parts_of_a_client_in_parallel():
    """Two parts of one client's rows are charged as if its data were in one of them alone."""

    def check(self):
        self.check_sampler()

    put(SessionPlan, "check", check)


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
