"""Small federations for real: clients in folders of their own, and a transport within the process that may fail."""

from contextlib import ExitStack, contextmanager

import torch

import tacita
from tacita.federated.federation import FederationSettings, joined
from tacita.federated.wire import Greeting

SETTINGS = FederationSettings(
    name="clinics",
    clients=4,
    features=3,
    classes=2,
    expected_rows=12,
    epsilon=8.0,
    delta=1e-5,
    max_grad_norm=0.5,
    lr=0.5,
    rounds=4,
    momentum_weight=0.5,
    spare_messages=2,
)


def greeting(federation=SETTINGS.id, challenge=b"?" * 32):
    """What a server asks a node first."""
    return Greeting(federation, challenge)


def rows_of(client, rows=None, seed=0):
    """The rows of a client: 10 to 13 of them, of which no two clients have alike."""
    count = 10 + client % 4 if rows is None else rows
    generator = torch.Generator().manual_seed(1000 * seed + client)
    features = torch.randn(count, 3, generator=generator, dtype=torch.float64) + client
    return features, (features.sum(dim=1) > 3 * client).long()


@contextmanager
def clients_in(folder, settings=SETTINGS, numbers=None, model=None, **more):
    """The residents of a federation by number, each with a seeded key, in ``folder/NUMBER``."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(
                joined(
                    settings,
                    rows_of(number),
                    number=number,
                    folder=folder / str(number),
                    model=model,
                    randomness=tacita.Randomness.insecure(number),
                    **more,
                )
            )
            for number in (range(settings.clients) if numbers is None else numbers)
        }


def exchange(residents, coordinator, *, asked=None, lost=(), backwards=False):
    """One round: the replies of those who are there, without those that are ``lost`` on the way back."""
    broadcasts = coordinator.broadcasts(residents if asked is None else asked)
    order = sorted(broadcasts, reverse=backwards)
    replies = {number: residents[number].answer(broadcasts[number]) for number in order if number in residents}
    return coordinator.receive({number: reply for number, reply in replies.items() if number not in lost})
