"""A private mean without a trusted curator: users, relay and server in processes of their own, with pipes between them.

    python examples/shuffle_model.py

Each user's process sends one message: its clipped vector on a grid, with noise bits. The relay's process shuffles all
bits; it never adds anything up. The server's process counts the ones.
"""

import multiprocessing as processes

import numpy as np

from tacita import Ledger, statement
from tacita.accounting import FullBatchLaw
from tacita.convex import Analyzer, ShuffledSumEvent, Shuffler, ShuffleRound, UserEncoder
from tacita.convex.shuffle_calibration import NoiseBits, least_noise_bits, vector_grid

USERS, DIM, CLIP = 400, 3, 1.0
GROUPS = 4  # processes of users; each plays a hundred of them
EPSILON, DELTA = 2.0, 1e-6


def shared_round() -> ShuffleRound:
    """Return the public settings that all three sides know."""
    event = ShuffledSumEvent(
        relation="replace_one",
        sampling=FullBatchLaw(),
        users=USERS,
        coordinates=DIM,
        grid=vector_grid(USERS, DIM),
        noise_bits=1,
        bit_prob=0.5,
        l2_bounded=True,
    )
    found = least_noise_bits(event, queries=1, epsilon=EPSILON, delta=DELTA)
    bits = NoiseBits(grid=found.grid, noise_bits=found.noise_bits, bit_prob=0.5)
    return ShuffleRound(name="example", users=USERS, dim=DIM, half_range=CLIP, l2_bounded=True, bits=bits)


def play_users(shared: ShuffleRound, group: int, to_relay) -> None:
    """Send the messages of a group of users; a user's vector never leaves this process as it is."""
    noise = np.random.default_rng(group).normal(0.0, 0.2, (USERS // GROUPS, DIM))
    for user, vector in enumerate(np.array([0.5, -0.3, 0.1]) + noise):
        to_relay.send((f"{group}/{user}", UserEncoder(shared).message(vector)))
    to_relay.close()


def play_relay(shared: ShuffleRound, from_users, to_server) -> None:
    """Shuffle what has come in."""
    shuffler = Shuffler(shared)
    for pipe in from_users:
        for _ in range(USERS // GROUPS):
            sender, message = pipe.recv()
            shuffler.add(message, sender=sender)
    to_server.send(shuffler.shuffled())


def main() -> None:
    """Run the round, and print the estimate and its statement."""
    shared = shared_round()
    ways = [processes.Pipe(duplex=False) for _ in range(GROUPS)]
    seen, to_server = processes.Pipe(duplex=False)
    parts = [processes.Process(target=play_users, args=(shared, i, way[1])) for i, way in enumerate(ways)]
    parts.append(processes.Process(target=play_relay, args=(shared, [way[0] for way in ways], to_server)))
    for part in parts:
        part.start()
    ledger = Ledger(neighboring_relation="replace_one", privacy_unit="one user")
    session = ledger.register(shared.event("replace_one"), planned_queries=1)
    session.open()
    session.reserve(0, 0)
    session.spend(0)  # before anything is read
    mean = Analyzer(shared).sums(seen.recv()) / USERS
    for part in parts:
        part.join()
    print(f"{shared.bits.noise_bits} noise bits of each user; mean {np.round(mean, 3)}, in truth about [0.5 -0.3 0.1]")
    print(statement(ledger, delta=DELTA))


if __name__ == "__main__":
    main()
