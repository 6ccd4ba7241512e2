"""A trusted server that draws its clients, with independent and correlated noise: who takes part, charge, resume."""

import itertools
import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

import tacita
from tacita import accounting as acc
from tacita.correlated.strategy import sensitivity
from tacita.errors import ResumeError, UnsupportedEventError
from tacita.federated import LocalPrivacy, LogisticClients, QuadraticClients, TrustedServer
from tacita.sampling import Sampler
from tacita.testing import fidelity
from tests.federated.runs import clip21, clip_sgd, ledger, logistic, simulation

GROUPS, CLIENTS = 3, 7


def correlated(noise_multiplier=2.0, bands=2, power=0.6, banded_matrix=False):
    return tacita.CorrelatedGaussian(
        noise_multiplier=noise_multiplier, bands=bands, power=power, banded_matrix=banded_matrix
    )


def cyclic(clients=CLIENTS, assignment: Literal["coin", "index"] = "coin", **more):
    return tacita.CyclicSampler(batches_per_cycle=GROUPS, num_records=clients, assignment=assignment, **more)


def epochs(clients=CLIENTS):
    return tacita.AllocatedSampler(batches_per_epoch=GROUPS, num_records=clients)


def server(mechanism=None, sampler=None):
    return TrustedServer(mechanism=mechanism or correlated(), sampler=sampler or cyclic())


STRATEGIES = {
    "correlated": server(),
    "by number": server(sampler=cyclic(assignment="index")),
    "banded matrix": server(correlated(banded_matrix=True, bands=3), cyclic(turn_rate=0.7)),
    "epochs by coin": server(tacita.GaussianMechanism(noise_multiplier=2.0), epochs()),
}


# -- who takes part


def one_hot(clients=CLIENTS):
    """Client i's message is the i-th unit vector: a sum without noise says who is in it."""
    return QuadraticClients(1e6 * torch.eye(clients, dtype=torch.float64))


def who(run, rounds):
    """The clients whose message is in each round, as its query number and their numbers."""
    made = (run.step() for _ in range(rounds))
    return {one.query: set((one.total["x"] < -0.5).nonzero().flatten().tolist()) for one in made}


def stopped_and_resumed(folder, rounds=24, loss_rate=0.3):
    """A run that was stopped between two checkpoints, after the key had moved; who was in which round, both times."""
    path, key = folder / "ledger.jsonl", tacita.Randomness.insecure(0)

    def built(key, **more):
        book = tacita.Ledger(path, neighboring_relation="zero_out_one", privacy_unit="all data of one client")
        more |= {"session": book.sessions[0]} if book.sessions else {}
        privacy = server(correlated(0.0))
        return book, simulation(
            one_hot(), clip_sgd(lr=1e-9), privacy=privacy, rounds=rounds, loss_rate=loss_rate, book=book,
            randomness=key, **more,
        )  # fmt: skip

    book, run = built(key)
    seen = [who(run, 5)]
    key.ratchet()
    run.save(folder / "checkpoint")
    key.save(folder / "key")
    seen.append(who(run, 4))
    book.close()
    book, run = built(tacita.Randomness.load(folder / "key"))
    run.load(folder / "checkpoint")
    seen.append(who(run, rounds - 5))
    book.close()
    return seen


def test_a_client_is_in_the_rounds_of_one_group_whatever_happens(tmp_path):
    """Messages are lost, a client is first heard of late, the key moves on, the server stops and starts again."""
    rounds: dict[int, set[int]] = {client: set() for client in range(CLIENTS)}
    for query, clients in itertools.chain(*(part.items() for part in stopped_and_resumed(tmp_path))):
        for client in clients:
            rounds[client].add(query)
    assert all(rounds.values())  # of 8 turns each
    assert {len({query % GROUPS for query in of_client}) for of_client in rounds.values()} == {1}
    assert len({min(of_client) % GROUPS for of_client in rounds.values()}) > 1
    assert min(min(of_client) for of_client in rounds.values()) < GROUPS <= max(min(x) for x in rounds.values())


def test_redone_rounds_have_the_clients_they_had(tmp_path):
    first, stopped, resumed = stopped_and_resumed(tmp_path)
    assert first.keys().isdisjoint(stopped)
    assert {query: resumed[query] for query in stopped} == stopped


@pytest.mark.parametrize("name", STRATEGIES)
def test_another_key_or_other_clients_are_refused_on_resume(name):
    """Under another key every client would be in another group from here on."""
    privacy, book = STRATEGIES[name], ledger("zero_out_one")
    run = simulation(logistic(clients=CLIENTS), privacy=privacy, rounds=6, book=book)
    run.run(2)
    state = run.state_dict()
    other = simulation(logistic(clients=CLIENTS), privacy=privacy, rounds=6, book=book, session=run.session, seed=1)
    with pytest.raises(ResumeError, match="was begun with another key"):
        other.load_state_dict(state)
    more = {**vars(privacy), "sampler": replace(privacy.sampler, num_records=CLIENTS + 1)}
    with pytest.raises(ResumeError, match="was registered with other settings"):
        simulation(
            logistic(clients=CLIENTS + 1), privacy=TrustedServer(**more), rounds=6, book=book, session=run.session
        )


class Twice(Sampler):
    """A sampler of a user's own, with a mistake."""

    num_records, sample_rate = CLIENTS, 1 / CLIENTS

    @property
    def law(self):
        return acc.FullBatchLaw()

    def draw(self, query, coins, num_rows):
        return np.array([2, 2])


def test_a_client_is_in_a_round_once_whatever_a_sampler_returns():
    noiseless = tacita.GaussianMechanism(noise_multiplier=0.0)
    run = simulation(one_hot(), clip_sgd(), privacy=server(noiseless, Twice()), rounds=1, book=ledger())
    assert run.step().total["x"].tolist() == pytest.approx([0, 0, -1, 0, 0, 0, 0])


def test_nobody_is_told_how_many_took_part():
    run = simulation(logistic(clients=CLIENTS), privacy=server(), rounds=2, book=ledger("zero_out_one"))
    assert run.step().arrived is None


# -- what is released


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(name, tmp_path):
    """The noise of earlier rounds is drawn again, from the keys that were saved."""
    privacy, rounds = STRATEGIES[name], 9

    def built(book, key):
        session = {"session": book.sessions[0]} if book.sessions else {}
        return simulation(
            logistic(clients=CLIENTS), privacy=privacy, rounds=rounds, loss_rate=0.2, book=book, randomness=key,
            **session,
        )  # fmt: skip

    def on_disk():
        return tacita.Ledger(
            tmp_path / "ledger.jsonl", neighboring_relation="zero_out_one", privacy_unit="all data of one client"
        )

    key = tacita.Randomness.insecure(0)
    whole = simulation(
        logistic(clients=CLIENTS), privacy=privacy, rounds=rounds, loss_rate=0.2, book=ledger("zero_out_one")
    )
    whole.run()
    book = on_disk()
    run = built(book, key)
    run.run(4)
    run.save(tmp_path / "checkpoint")
    key.save(tmp_path / "key")
    run.run(2)
    book.close()
    book = on_disk()
    again = built(book, tacita.Randomness.load(tmp_path / "key"))
    again.load(tmp_path / "checkpoint")
    assert torch.equal(again.run()["x"], whole.params["x"])
    assert book.sessions[0].queries_made == rounds
    book.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_released_round_is_not_made_again_with_other_values(name):
    run = simulation(logistic(clients=CLIENTS), privacy=STRATEGIES[name], rounds=6, book=ledger("zero_out_one"))
    run.run(1)
    state = run.state_dict()
    run.run(2)
    run.problem = logistic(clients=CLIENTS, seed=1)
    run.load_state_dict(state)
    with pytest.raises(ResumeError, match="was released with other values"):
        run.step()


@pytest.mark.parametrize("banded_matrix", [False, True])
def test_whitened_noise_of_the_rounds_is_independent(banded_matrix):
    """Of silent clients every sum is noise alone; the raw sums fail the same check."""
    rounds, size, silent = 12, 2000, torch.zeros(CLIENTS, 1, 2000, dtype=torch.float64)
    sampler = cyclic(turn_rate=0.5) if banded_matrix else cyclic()
    privacy = server(correlated(bands=3, banded_matrix=banded_matrix), sampler)
    released = []
    for seed in range(4):
        problem = LogisticClients(silent, torch.ones(CLIENTS, 1))
        run = simulation(problem, privacy=privacy, rounds=rounds, book=ledger("zero_out_one"), seed=seed)
        assert run.noise_std == {"all": 2.0}
        released.append(torch.stack([run.step().total["x"] for _ in range(rounds)]) / 2.0)
    over_noise = torch.stack(released)
    white = run.mechanism.whitened(over_noise)
    fidelity.check_every_query(white, 1e-6)
    covariance = torch.einsum("sqc,spc->qp", white, white) / (4 * size)
    assert (covariance - torch.eye(rounds)).abs().max() < 5 * 2**0.5 * (4 * size) ** -0.5
    with pytest.raises(AssertionError, match="noise"):
        fidelity.check_every_query(over_noise, 1e-6)


# -- what is charged


@pytest.mark.parametrize(("relation", "moved"), [("zero_out_one", 1), ("replace_one", 2)])
def test_a_session_is_that_of_records(relation, moved):
    law = acc.CyclicLaw(GROUPS, own_coin=True)
    run = simulation(logistic(clients=CLIENTS), privacy=server(), rounds=7, book=ledger(relation))
    of_records = acc.gaussian_sum_event(law, (1.0,), (2.0 * moved,), relation)
    assert run.session.event == correlated().event(of_records)
    if relation == "replace_one":
        known = sensitivity(correlated().factorization.column(7), GROUPS, 3) / 2.0
        assert run.ledger.epsilon(1e-5) == pytest.approx(acc.gaussian_epsilon(known, 1e-5), rel=1e-6)


def worlds_apart(absent, client, rounds=8):
    """How far one saturated client that remembers moves the whitened sums of two worlds, in L2 over all rounds."""
    totals = []
    for data in (1e6, 0.0 if absent else -1e6):
        targets = torch.tensor([[1.0]] * CLIENTS, dtype=torch.float64)
        targets[client] = data
        privacy = server(correlated(0.0), cyclic(assignment="index"))
        run = simulation(QuadraticClients(targets), clip21(), privacy=privacy, rounds=rounds, book=ledger())
        sent = []
        for query in range(rounds):
            asked = run._asked(query)
            messages, following = run._messages(run.algorithm.start({"x": torch.zeros(1).double()}), asked, query)
            run._clients = run._acknowledged(following, asked)
            sent.append(messages["x"].sum(dim=0))
        totals.append(torch.stack(sent))
    return float(run.mechanism.whitened((totals[0] - totals[1])[None]).norm())


def test_one_client_moves_the_whitened_sums_by_its_charge():
    """The first group by exactly what is charged, all others by less: 2 if replaced, 1 if absent."""
    charged = sensitivity(correlated().factorization.column(8), GROUPS, 3)
    assert worlds_apart(absent=True, client=0) == pytest.approx(charged)
    assert worlds_apart(absent=False, client=0) == pytest.approx(2 * charged)
    assert worlds_apart(absent=False, client=CLIENTS - 1) < 2 * charged


def test_noise_is_calibrated_for_the_plan():
    target = tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5, form=correlated())
    run = simulation(logistic(clients=CLIENTS), privacy=server(target), rounds=9, book=ledger("zero_out_one"))
    assert 1.98 < run.ledger.epsilon(1e-5) <= 2.0
    assert run.mechanism == correlated(run.mechanism.noise_multiplier)


# -- clients that remember in which rounds they were: Claim 6 of docs/derivations/clip21.md

RULES = list(itertools.product((1.0, -1.0), repeat=2))  # the sign of a second message, by what the client remembers


def excess(shifts, chances, others, g, draws=200_000):
    """Estimate the mean of (P - g Q)+ over a standard normal law, and its standard error.

    Args:
        shifts, others: Means of the releases in the two worlds, for each outcome of the client's coins.
        chances: Of these outcomes, in both worlds.
        g: e^epsilon.
    """
    z = torch.randn(draws, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor(chances, dtype=torch.float64)

    def density(means):
        at = torch.tensor(means, dtype=torch.float64)
        return torch.exp(z @ at.T - at.square().sum(dim=1) / 2) @ weights

    over = (density(shifts) - g * density(others)).clamp(min=0)
    return float(over.mean()), float(over.std()) / math.sqrt(draws)


@pytest.mark.parametrize("rule", RULES)
def test_epochs_of_a_client_that_remembers_its_round(rule):
    """Two epochs of two rounds; in the second its message has one of two signs, by the round that it was in before."""
    event = acc.gaussian_sum_event(acc.ShuffledEpochsLaw(2, own_coin=True), (1.0,), (1.0,), "zero_out_one")
    shifts = []
    for earlier, later in itertools.product(range(2), repeat=2):
        epochs = [[0.0, 0.0], [0.0, 0.0]]
        epochs[0][earlier], epochs[1][later] = 1.0, rule[earlier]
        shifts.append(epochs[0] + epochs[1])
    charged = acc.delta([acc.Spend(event, 4)], 1.0).delta
    absent = [[0.0] * 4] * 4
    found, error = excess(shifts, [0.25] * 4, absent, math.e)
    added, its_error = excess(absent, [0.25] * 4, shifts, math.e)
    assert max(found - 3 * error, added - 3 * its_error) <= charged
    if rule == (1.0, 1.0):
        assert charged <= found + 5 * error


@pytest.mark.parametrize(("rule", "replaced"), list(itertools.product(RULES, [*RULES, None])))
def test_sampled_turns_of_a_client_that_remembers_its_coin(rule, replaced):
    """Two turns, a banded matrix of two bands; the second message has one of two signs, by the coin of the first."""
    noise, rate = correlated(1.0, banded_matrix=True), 0.4
    c = noise.factorization.column(4)[:2]
    relation = "zero_out_one" if replaced is None else "replace_one"
    of_records = acc.gaussian_sum_event(acc.CyclicPoissonLaw(2, rate, own_coin=False), (1.0,), (1.0,), relation)
    charged = acc.delta([acc.Spend(noise.event(of_records), 4)], 1.0).delta

    def means(first, signs):
        outcomes = itertools.product((0, 1), repeat=2)
        return [[*(in_first * first * c), *(in_second * signs[in_first] * c)] for in_first, in_second in outcomes]

    chances = [(1 - rate) ** 2, (1 - rate) * rate, rate * (1 - rate), rate**2]
    one = means(1.0, rule)
    other = [[0.0] * 4] * 4 if replaced is None else means(-1.0, replaced)
    found, error = excess(one, chances, other, math.e)
    assert found - 3 * error <= charged
    if rule == (1.0, 1.0) and replaced in (None, (-1.0, -1.0)):
        assert charged <= found + 5 * error


# -- what is refused


@pytest.mark.parametrize(
    ("privacy", "says"),
    [
        (lambda: TrustedServer(mechanism=correlated()), "may be in two queries in a row"),
        (lambda: TrustedServer(mechanism=correlated(), sample_rate=0.3), "may be in two queries in a row"),
        (lambda: server(sampler=epochs()), "may be in two queries in a row"),
        (lambda: server(correlated(bands=4, banded_matrix=True), cyclic(turn_rate=0.5)), "two turns of a record over"),
        (lambda: server(sampler=tacita.FixedSizeSampler(batch_size=2, num_records=CLIENTS)), "clients remember"),
        (
            lambda: server(sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=CLIENTS, max_batch_size=4)),
            "clients remember in which rounds they were",
        ),
    ],
)
def test_what_is_not_proved_is_refused(privacy, says):
    with pytest.raises(UnsupportedEventError, match=says):
        simulation(logistic(clients=CLIENTS), privacy=privacy(), book=ledger("zero_out_one"))


@pytest.mark.parametrize(
    ("privacy", "says"),
    [
        (lambda: server(sampler=cyclic(clients=8)), "must be the number of clients, 7, got CyclicSampler"),
        (lambda: TrustedServer(mechanism=correlated(), sampler=cyclic(), sample_rate=0.5), "sample_rate must be left"),
        (
            lambda: server(sampler=tacita.DisjointSampler(num_batches=4, num_records=CLIENTS)),
            "rounds must be <= 4 with DisjointSampler",
        ),
        (lambda: TrustedServer(mechanism=tacita.RoundedGaussian(noise_multiplier=1.0)), "grid"),
        (
            lambda: server(
                sampler=tacita.UnitPoissonSampler(sample_rate=0.5, num_records=CLIENTS, max_rows_per_unit=2)
            ),
            "each of which is a unit",
        ),
    ],
)
def test_settings_are_refused(privacy, says):
    with pytest.raises(ValueError, match=says):
        simulation(logistic(clients=CLIENTS), privacy=privacy(), book=ledger("zero_out_one"))


@pytest.mark.parametrize(
    "mechanism", [correlated(), tacita.CalibratedGaussian(target_epsilon=8.0, target_delta=1e-5, form=correlated())]
)
def test_clients_that_add_their_own_noise_take_no_correlated_noise(mechanism):
    """They answer every round that they are asked in, and are charged for all of them."""
    with pytest.raises(
        (TypeError, UnsupportedEventError), match=r"charged for every round|no guarantee is proved with"
    ):
        simulation(logistic(), privacy=LocalPrivacy(mechanism=mechanism))
