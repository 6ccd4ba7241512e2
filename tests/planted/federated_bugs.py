"""Bugs of federated clients: messages that are charged too little, lost messages, noise that tells or is too small."""

import math
from weakref import WeakKeyDictionary

import torch

from tacita.federated import LocalPrivacy, Simulation
from tacita.federated.round_noise import Asked
from tacita.oracles.payment import SessionPlan
from tests.planted.plant import bug, put

DIFFERENCE = "tests/federated/test_clipped_difference.py::"
SIMULATION = "tests/federated/test_simulation.py::"
TRUSTED = "tests/federated/test_trusted_server.py::"


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


@bug(caught_by=[TRUSTED + "test_a_client_is_in_the_rounds_of_one_group_whatever_happens"])
def a_late_client_has_two_groups():
    """A client whose message was lost is asked again in the next round, with the group whose turn it is."""
    whole, late = Simulation._asked, WeakKeyDictionary()

    def asked(self, query):
        found = whole(self, query)
        clients = torch.arange(self.problem.num_clients) if found.clients is None else found.clients
        again = late.get(self, clients[:0])
        late[self] = clients[~found.arrived]
        again = again[~torch.isin(again, clients)]
        both, order = torch.cat([clients, again]).sort()
        arrived = torch.cat([found.arrived, torch.ones(len(again), dtype=torch.bool)])[order]
        return Asked(both, arrived)

    put(Simulation, "_asked", asked)
