"""The event of correlated noise: numbers computed elsewhere, quadrature, every adaptive attacker of a short session."""

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting.allocation_pair import AllocationPair
from tacita.accounting.line_pairs import GaussianPair
from tacita.accounting.pld_accountant import DeltaQuery, EpsilonQuery, _larger
from tacita.correlated import CorrelatedEvent
from tacita.correlated import event as correlated
from tacita.correlated.strategy import Factorization, column, movement, sensitivity
from tacita.errors import UnsupportedEventError
from tacita.testing import check_event

DELTA = 1e-5
EACH_WAY = (False, True)


def event(bands, power, batches, noise_std, relation="add_or_remove_one", *, own_coin=True):
    law = acc.CyclicLaw(batches, own_coin=own_coin)
    return CorrelatedEvent(relation=relation, inner=sums(law, noise_std, relation), bands=bands, power=power)


def sums(law, noise_std, relation="add_or_remove_one"):
    return acc.GaussianSumEvent(relation=relation, sampling=law, max_contribution=(1.0,), noise_std=(noise_std,))


def known(bands, power, batches, noise_std):
    """The same session with groups that are known, hence without amplification."""
    return event(bands, power, batches, noise_std, "zero_out_one", own_coin=False)


def epsilon(spent, queries, delta=DELTA):
    return acc.epsilon([acc.Spend(spent, queries)], delta).epsilon


def overlaps(strategy, batches):
    """Of the strategy (bands, power, queries)."""
    return correlated.overlaps_of(
        Factorization(*strategy[:2]), strategy[2], min(strategy[2], batches), -(-strategy[2] // batches)
    )


def parts(classes, strategy, batches, noise_std):
    return correlated.parts_of_classes(classes, overlaps(strategy, batches), batches, strategy[2], 1 / noise_std)


# -- Without amplification


def test_a_session_costs_one_gaussian_query():
    """And a part of it what its own columns say."""
    session = known(2, 0.8, 6, 3.0)
    found = {queries: epsilon(session, queries) for queries in (1, 6, 12, 24)}
    assert list(found.values()) == pytest.approx([1.2711, 2.1548, 3.6953, 6.12845], abs=1e-4)
    moved = [3 * session.guarantee(queries).mu for queries in found]
    assert moved == pytest.approx([1, 1.608381, 2.589947, 3.999562], abs=1e-6)


def test_all_draws_and_the_whole_matrix_count():
    """The right number beside those of three plausible mistakes."""
    session = known(2, 0.9, 10, 3.0)
    assert session.guarantee(100).mu == pytest.approx(3.3137, abs=1e-4)
    assert [epsilon(session, queries) for queries in (100, 50)] == pytest.approx([18.983, 11.383], abs=2e-3)
    wrong = (1 / math.sqrt(1 - 0.81) / 3, math.sqrt(10 / (1 - 0.81)) / 3, math.sqrt(10) / 3)
    assert [acc.gaussian_epsilon(mu, DELTA) for mu in wrong] == pytest.approx([3.217, 12.664, 4.653], abs=2e-3)


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_every_relation_has_its_own_distance(relation):
    session = event(2, 0.8, 6, 3.0, relation)
    mu = acc.moved(relation) * sensitivity(column(2, 0.8, 24), 6, 4) / 3
    assert session.guarantee(24).unsampled_mu == pytest.approx(mu, rel=1e-12)
    assert (session.guarantee(24).mu is None) == (relation != "replace_one")
    assert epsilon(replace(session, relation=relation), 24) <= acc.gaussian_epsilon(mu, DELTA) * (1 + 1e-9)


def test_one_pass_is_one_column():
    law = acc.DisjointLaw(own_coin=False)
    session = CorrelatedEvent(relation="zero_out_one", inner=sums(law, 2.0, "zero_out_one"), bands=2, power=0.9)
    assert session.guarantee(50).mu == pytest.approx(math.sqrt((1 - 0.81**50) / (1 - 0.81)) / 2, rel=1e-8)


def test_blocks_are_whitened():
    both = acc.GaussianSumEvent(
        relation="replace_one",
        sampling=acc.CyclicLaw(6, own_coin=True),
        max_contribution=(1.0, 0.5),
        noise_std=(3.0, 2.0),
    )
    session = CorrelatedEvent(relation="replace_one", inner=both, bands=2, power=0.8)
    moved = 2 * math.hypot(1 / 3, 1 / 4) * sensitivity(column(2, 0.8, 24), 6, 4)
    assert session.guarantee(24).mu == pytest.approx(moved, rel=1e-12)


# -- Groups drawn in secret


@pytest.mark.parametrize(
    ("strategy", "batches", "noise_std", "classes", "expected"),
    [  # of the movements, and within a class; epsilon of remove, add, and without amplification
        ((2, 0.5, 4), 2, 2.0, 1, (3.203125, 1.90625, 3.4418, 3.4069, 3.85077)),
        ((2, 0.7, 100), 100, 2.158, 10, (1.960784, 0.055387, 0.9883, 0.8908, 2.6705)),
        ((2, 0.5, 500), 50, 3.0, 2, (13.33333, 3.33333, 2.8663, 2.7292, 5.5045)),
        ((4, 0.5, 500), 50, 3.0, 5, (16.224069, 3.504880, 3.9755, 3.2376, 6.1799)),
    ],
)
def test_epsilon_is_that_of_another_program(strategy, batches, noise_std, classes, expected):
    """But for the direction in which a record is added, which that program did not print for all."""
    found = overlaps(strategy, batches)
    pairs = parts(classes, strategy, batches, noise_std)
    ways = [_larger([EpsilonQuery(pairs, swapped, DELTA)]).value for swapped in EACH_WAY]
    without = epsilon(known(*strategy[:2], batches, noise_std), strategy[2])
    assert (found[0], correlated._within(found, classes)) == pytest.approx(expected[:2], rel=1e-5)
    assert (*ways, without) == pytest.approx(expected[2:], rel=1e-3)
    charged = epsilon(event(*strategy[:2], batches, noise_std), strategy[2])
    assert charged <= max(ways) * (1 + 1e-3)  # another number of classes may be better


@pytest.mark.parametrize("queries", [1, 3, 7, 50, 120])
@pytest.mark.parametrize("batches", [2, 5, 12, 40])
def test_overlaps_are_those_of_every_two_groups(batches, queries):
    """The first group has the largest movement, and overlaps most with the group that comes so much later."""
    columns = column(4, 0.6, queries)
    moved = np.zeros((batches, queries))
    for group, turn in itertools.product(range(batches), range(queries)):
        if turn % batches == group:
            moved[group, turn:] += columns[: queries - turn]
    gram = moved @ moved.T
    found = overlaps((4, 0.6, queries), batches)
    assert found[0] == pytest.approx(gram.diagonal().max(), rel=1e-12)
    for classes in range(1, batches // 2 + 1):
        one_class = np.equal.outer(np.arange(batches) % classes, np.arange(batches) % classes)
        largest = gram[one_class & ~np.eye(batches, dtype=bool)].max()
        assert correlated._within(found, classes) == pytest.approx(largest, abs=1e-12)
        (*shared, (allocation, _)) = parts(classes, (4, 0.6, queries), batches, 2.0)
        common = sum(pair.mu**2 for pair, _ in shared)
        assert common >= largest / 4
        assert common + allocation.ratio**2 >= found[0] / 4
        seen = [(np.arange(min(queries, batches)) % classes == one).sum() for one in range(classes)]
        assert allocation.batches == batches // classes
        assert allocation.seen == min(allocation.batches, max(seen))


def exact(strategy, batches, noise_std, eps, *, swapped):
    """Delta of the law with the true covariance, by quadrature over one normal for each group."""
    queries = strategy[2]
    moved = [np.pad(movement(column(*strategy), batches, queries), (i, 0))[:queries] for i in range(batches)]
    gram = np.array([[one @ other for one in moved] for other in moved]) / noise_std**2
    root = np.linalg.cholesky(gram + 1e-15 * np.eye(batches))
    size = {2: 3001, 3: 221}[batches]
    axes = [np.linspace(-8, 8 + math.sqrt(gram.max()), size) for _ in range(batches)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    density = np.exp(-(grid**2).sum(axis=0) / 2) / (2 * math.pi) ** (batches / 2)
    cell = math.prod(axis[1] - axis[0] for axis in axes)
    ratio = np.exp(np.tensordot(root, grid, 1) - gram.diagonal().reshape(-1, *[1] * batches) / 2).mean(axis=0)
    g = math.exp(eps)
    return float((density * np.maximum(0.0, 1 - g * ratio if swapped else ratio - g)).sum() * cell)


def claimed(pairs, eps, *, swapped):
    return _larger([DeltaQuery(pairs, swapped, eps)]).value


@pytest.mark.parametrize("swapped", EACH_WAY)
@pytest.mark.parametrize(
    ("strategy", "batches", "noise_std"),
    [((2, 0.5, 4), 2, 2.0), ((2, 0.9, 6), 2, 3.0), ((3, 0.5, 1), 2, 1.0), ((3, 0.5, 7), 3, 2.0), ((2, 0.8, 2), 3, 1.0)],
)
def test_no_quadrature_gives_more(strategy, batches, noise_std, swapped):
    pairs = parts(1, strategy, batches, noise_std)
    for eps in (0.1, 1.0, 2.5):
        true = exact(strategy, batches, noise_std, eps, swapped=swapped)
        bound = claimed(pairs, eps, swapped=swapped)
        assert true <= bound * (1 + 1e-3)
        assert true >= 0.2 * bound or strategy[2] < batches  # else groups without a turn limit the loss


def test_the_exact_epsilon_of_two_groups():
    deltas = [exact((2, 0.5, 4), 2, 2.0, 3.36621, swapped=swapped) for swapped in EACH_WAY]
    assert max(deltas) == pytest.approx(DELTA, rel=2e-3)


COARSE = np.linspace(-6, 6, 31)
FINE = np.linspace(-7, 7, 301)


def attacked(strategy, batches, ratio, eps, *, swapped, sizes):
    """The largest delta of an attacker who picks each contribution, in one coordinate, after all releases before it.

    By dynamic programming over the attacker's choices, from a finite number of ``sizes``; all of them by quadrature.
    """
    columns, queries, g = column(*strategy), strategy[2], math.exp(eps)
    weights = [np.exp(-(points**2) / 2) / np.exp(-(points**2) / 2).sum() for points in (COARSE, FINE)]

    def best(query, logs, chosen):
        found = []
        for size in sizes:
            given = [*chosen, size]
            means = [
                ratio * sum(columns[query - turn] * given[turn] for turn in range(group, query + 1, batches))
                for group in range(batches)
            ]
            last = query == queries - 1
            points = FINE if last else COARSE
            after = [log[..., None] + mean * points - mean**2 / 2 for log, mean in zip(logs, means, strict=True)]
            if last:
                odds = sum(map(np.exp, after)) / batches
                value = np.maximum(0.0, 1 - g * odds if swapped else odds - g)
            else:
                value = best(query + 1, after, given)
            found.append(value @ weights[last])
        return np.max(found, axis=0)

    return float(best(0, [np.zeros(())] * batches, []))


@pytest.mark.parametrize("swapped", EACH_WAY)
@pytest.mark.parametrize(
    ("strategy", "batches", "ratio"),
    [((2, 0.5, 3), 2, 1.0), ((2, 0.9, 3), 2, 0.7), ((3, 0.5, 3), 2, 1.0), ((2, 0.5, 3), 3, 1.2), ((1, 0.5, 3), 2, 1.0)],
)
def test_no_adaptive_attacker_gets_more(strategy, batches, ratio, swapped):
    """The best one found is the constant one, which has exactly the divergence of the true covariance."""
    for eps in (0.3, 1.0, 2.0):
        attack = attacked(strategy, batches, ratio, eps, swapped=swapped, sizes=(-1.0, 0.0, 0.6, 1.0))
        constant = attacked(strategy, batches, ratio, eps, swapped=swapped, sizes=(1.0,))
        assert attack <= constant * (1 + 1e-6)
        assert attack <= claimed(parts(1, strategy, batches, 1 / ratio), eps, swapped=swapped) * (1 + 1e-3)


def test_what_is_not_claimed_is_refuted():
    """No overlap, the movement of the last group, and the movement in one's own turns alone are each too little."""
    strategy, batches, noise_std = (2, 0.9, 20), 2, 8.0
    true = exact(strategy, batches, noise_std, 0.5, swapped=False)
    whole = overlaps(strategy, batches)[0] / noise_std**2
    last = np.linalg.norm(movement(column(*strategy), 2, 10)[:-1]) ** 2 / noise_std**2
    assert claimed(parts(1, strategy, batches, noise_std), 0.5, swapped=False) > true
    for wrong_whole, wrong_common in ((whole, 0.0), (last, 0.95 * last), (10 / noise_std**2, 0.0)):
        shared = ((GaussianPair(math.sqrt(wrong_common)), 1),) if wrong_common else ()
        own = ((AllocationPair(2, math.sqrt(wrong_whole - wrong_common), 2), 1),)
        assert claimed((*shared, *own), 0.5, swapped=False) < 0.98 * true


def test_it_never_costs_more_than_without_amplification():
    for bands, power, queries, batches, noise_std in itertools.product(
        (1, 2, 8), (0.3, 0.95), (5, 20, 61), (3, 20), (1.0, 4.0)
    ):
        for delta in (1e-3, 1e-9):
            amplified = epsilon(event(bands, power, batches, noise_std), queries, delta)
            assert amplified <= epsilon(known(bands, power, batches, noise_std), queries, delta) * (1 + 1e-3)


def test_epsilon_is_monotone_in_every_setting():
    def of(bands=2, power=0.6, batches=20, noise_std=3.0, queries=60):
        return epsilon(event(bands, power, batches, noise_std), queries)

    assert of(noise_std=3.2) < of() < of(queries=80)
    assert of(queries=61) > of(queries=60)
    assert of(batches=40) < of() < of(power=0.7)
    assert of(bands=1) < of() < of(bands=4)


# -- A law that the library does not know


@dataclass(frozen=True)
class Rests(acc.SamplingLaw):
    """A record rests after its query; nothing else is known."""

    apart: int
    moves: bool = False
    rows: int = 1
    words = "Draws with a rest"

    def describe(self):
        return self.words

    def assumptions(self, relation):
        return ()

    def most_draws(self, queries):
        return -(-queries // self.apart)

    def separation(self, queries):
        return min(queries, self.apart)

    @property
    def absence_moves_others(self):
        return self.moves

    @property
    def rows_per_unit(self):
        return self.rows


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_another_law_is_charged_for_its_draws_and_its_separation(relation):
    session = CorrelatedEvent(relation=relation, inner=sums(Rests(6), 3.0, relation), bands=2, power=0.8)
    mu = acc.moved(relation) / 3
    assert session.inner.guarantee(20).mu == pytest.approx(mu * 2, rel=1e-12)  # the root of four draws
    assert session.guarantee(24).mu == pytest.approx(mu * 3.999562, rel=1e-6)  # cyclic groups that are known
    assert not session.per_query


def test_another_law_is_charged_only_where_the_proof_holds():
    for law, relation in ((Rests(6, moves=True), "add_or_remove_one"), (Rests(6, rows=2), "zero_out_one")):
        with pytest.raises(UnsupportedEventError, match="Draws with a rest: no guarantee is proved for a clipped sum"):
            sums(law, 3.0, relation)
    assert sums(Rests(6, moves=True), 3.0, "zero_out_one").guarantee(6).mu == pytest.approx(1 / 3)


# -- A banded matrix, and turns that are sampled (BandMF)


def banded(bands, groups, rate, noise_std, relation="add_or_remove_one", *, power=0.5):
    law = acc.CyclicPoissonLaw(groups, rate, own_coin=True)
    return CorrelatedEvent(
        relation=relation, inner=sums(law, noise_std, relation), bands=bands, power=power, banded_matrix=True
    )


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize(
    ("shape", "turns"), [((16, 16, 500), 32), ((16, 20, 500), 25), ((4, 4, 2), 1), ((1, 8, 9), 2), ((4, 4, 5), 2)]
)
def test_a_turn_costs_a_sampled_query_of_the_column(relation, shape, turns):
    bands, groups, queries = shape
    norm = math.sqrt(sum((math.comb(2 * n, n) / 4**n) ** 2 for n in range(min(bands, queries))))
    poisson = sums(acc.PoissonLaw(0.16), 2.0 / norm, relation)
    session = banded(bands, groups, 0.16, 2.0, relation)
    assert epsilon(session, queries) == pytest.approx(epsilon(poisson, turns), rel=1e-5)
    moved = acc.moved(relation) * norm / 2 * math.sqrt(turns)
    assert session.guarantee(queries).unsampled_mu == pytest.approx(moved, rel=1e-6)


def test_with_whole_groups_a_banded_matrix_is_charged_as_any_column():
    """Groups a band apart do not overlap: in one pass, a secret batch among so many classes is random allocation."""
    inner = sums(acc.CyclicLaw(20, own_coin=True), 2.0)
    session = CorrelatedEvent(relation=inner.relation, inner=inner, bands=4, power=0.5, banded_matrix=True)
    norm = np.linalg.norm(column(4, 0.5, 20, True))
    assert session.guarantee(60).unsampled_mu == pytest.approx(norm * math.sqrt(3) / 2, rel=1e-6)
    pair = AllocationPair(5, norm / 2, 5)
    alone = _larger([EpsilonQuery(((pair, 1),), swapped, DELTA) for swapped in EACH_WAY]).value
    assert epsilon(session, 20) <= alone * (1 + 1e-3)


def sampled_attack(strategy, groups, rate, ratio, eps, *, sizes, known_group=None, against=0.0):
    """Both deltas of the best attacker who picks each contribution after all releases before it; turns are sampled.

    Every group and every outcome of the coins is a hypothesis. ``against`` times a contribution is that of the other
    world: 0 where the record is absent, -1 where another one replaces it.
    """
    columns, queries, g = column(*strategy, True), strategy[2], math.exp(eps)
    hypotheses = []
    for group in range(groups) if known_group is None else [known_group]:
        turns = range(group, queries, groups)
        for coins in itertools.product((True, False), repeat=len(turns)):
            chance = math.prod(rate if coin else 1 - rate for coin in coins)
            in_turns = {turn for turn, coin in zip(turns, coins, strict=True) if coin}
            hypotheses.append((chance / (groups if known_group is None else 1), in_turns))
    hypotheses = [(chance, turns) for chance, turns in hypotheses if chance]
    chances = np.array([chance for chance, _ in hypotheses])
    weights = [np.exp(-(points**2) / 2) / np.exp(-(points**2) / 2).sum() for points in (COARSE, FINE)]

    def best(query, logs, chosen):
        found = []
        for size in sizes:
            given = [*chosen, size]
            last = query == queries - 1
            points = FINE if last else COARSE
            after = []
            for world, factor in zip(logs, (1.0, against), strict=True):
                means = [
                    factor * ratio * sum(columns[query - turn] * given[turn] for turn in turns if turn <= query)
                    for _, turns in hypotheses
                ]
                after.append([log[..., None] + m * points - m**2 / 2 for log, m in zip(world, means, strict=True)])
            if last:
                odds = [np.tensordot(chances, np.exp(world), 1) for world in after]
                value = np.stack([np.maximum(0.0, odds[0] - g * odds[1]), np.maximum(0.0, odds[1] - g * odds[0])])
            else:
                value = best(query + 1, after, given)
            found.append(value @ weights[last])
        return np.max(found, axis=0)

    return best(0, [[np.zeros(())] * len(hypotheses)] * 2, [])


@pytest.mark.parametrize("against", [0.0, -1.0, 0.5])
@pytest.mark.parametrize(
    ("strategy", "groups", "rate", "ratio"),
    [((2, 0.5, 3), 2, 0.5, 1.0), ((2, 0.9, 3), 2, 0.3, 1.5), ((3, 0.5, 3), 3, 0.5, 1.2), ((2, 0.5, 3), 2, 1.0, 0.8)],
)
def test_no_adaptive_attacker_of_sampled_turns_gets_more(strategy, groups, rate, ratio, against):
    """Whether the group is known or not. If the first one is, a constant attacker has a query of each turn's norm."""
    bands, power, queries = strategy
    relation, eps = "add_or_remove_one" if against == 0 else "replace_one", 0.5
    attack = partial(sampled_attack, strategy, groups, rate, ratio, eps, against=against)
    best = attack(sizes=(-1.0, 0.4, 1.0), known_group=0).max()
    session = banded(bands, groups, rate, 1 / ratio, relation, power=power)
    claim = acc.delta([acc.Spend(session, queries)], eps).delta
    assert max(best, attack(sizes=(-1.0, 1.0)).max()) <= claim * (1 + 2e-3)
    norms = [np.linalg.norm(column(bands, power, queries - turn, True)) for turn in range(0, queries, groups)]
    turns = [acc.Spend(sums(acc.PoissonLaw(rate), 1 / (ratio * norm), relation), 1) for norm in norms]
    exact = acc.delta(turns, eps).delta
    assert best <= exact * (1 + 5e-3)
    if against < 0.5:
        assert attack(sizes=(1.0,), known_group=0).max() == pytest.approx(exact, rel=5e-3)


def test_what_is_not_claimed_of_sampled_turns_is_refuted():
    """One coefficient for the column, a query's rate for a turn's, a turn too few; and more bands than groups."""
    strategy, groups, rate, ratio, eps = (2, 0.9, 3), 2, 0.5, 1.5, 0.5
    true = sampled_attack(strategy, groups, rate, ratio, eps, sizes=(1.0,), known_group=0).max()
    norm = math.hypot(1.0, 0.9)

    def poisson(rate, ratio, turns):
        return acc.delta([acc.Spend(sums(acc.PoissonLaw(rate), 1 / ratio), turns)], eps).delta

    assert poisson(rate, ratio * norm, 2) >= true * (1 - 1e-3)
    for wrong in (poisson(rate, ratio, 2), poisson(rate / groups, ratio * norm, 2), poisson(rate, ratio * norm, 1)):
        assert wrong < 0.95 * true
    too_many = (3, 0.9, 3)
    overlapping = sampled_attack(too_many, groups, rate, ratio, eps, sizes=(1.0,), known_group=0).max()
    assert overlapping > poisson(rate, ratio * norm, 2) * 1.02
    with pytest.raises(UnsupportedEventError, match="two turns of a record overlap"):
        banded(3, 2, rate, 1.0)
    with pytest.raises(UnsupportedEventError, match="two turns of a record overlap"):
        replace(banded(2, 2, rate, 1.0), banded_matrix=False)


# -- Independent noise is a case of it


@pytest.mark.parametrize(("queries", "seen"), [(7, 7), (20, 20), (21, 20), (100, 20)])
def test_one_band_is_random_allocation_once_a_session(queries, seen):
    noise_std, draws = 4.0, -(-queries // 20)
    found = epsilon(event(1, 0.5, 20, noise_std), queries)
    assert epsilon(sums(acc.CyclicLaw(20, own_coin=True), noise_std), queries) == pytest.approx(found, rel=1e-3)
    pair = AllocationPair(20, math.sqrt(draws) / noise_std, seen)
    alone = _larger([EpsilonQuery(((pair, 1),), swapped, DELTA) for swapped in EACH_WAY]).value
    assert found == pytest.approx(alone, rel=1e-3)
    epochs = epsilon(sums(acc.ShuffledEpochsLaw(20, own_coin=True), noise_std), queries)
    assert found >= epochs * (1 - 1e-3)  # whose groups are drawn anew in each epoch


def test_known_groups_are_charged_as_epochs():
    cyclic, epochs = (
        epsilon(sums(law, 4.0, "zero_out_one"), 60)
        for law in (acc.CyclicLaw(20, own_coin=False), acc.ShuffledEpochsLaw(20, own_coin=False))
    )
    assert cyclic == epochs == pytest.approx(epsilon(known(1, 0.5, 20, 4.0), 60), rel=1e-8)


# -- The contract, and what is refused


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_the_contract_of_events(relation):
    check_event(event(3, 0.6, 7, 4.0, relation))
    check_event(sums(acc.CyclicLaw(7, own_coin=True), 4.0, relation))


def test_without_noise_nothing_is_claimed():
    assert event(2, 0.5, 4, 0.0).guarantee(3).mu == math.inf
    assert event(2, 0.5, 4, 1e-3).guarantee(8).mu > 1000  # whose losses have no number: not amplified


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (sums(acc.PoissonLaw(0.1), 2.0), "Poisson sampling: no guarantee is proved with correlated noise"),
        (sums(acc.FullBatchLaw(), 2.0), "two queries in a row"),
        (sums(acc.ShuffledEpochsLaw(5, own_coin=True), 2.0), "CyclicSampler and DisjointSampler"),
        (acc.LaplaceEvent(relation="add_or_remove_one", l1_sensitivity=1.0, scale=1.0), "clipped sums of records"),
        (
            acc.HardenedEvent(
                relation="add_or_remove_one",
                inner=sums(acc.CyclicLaw(5, own_coin=True), 2.0),
                sums="alone",
            ),
            "not hardened",
        ),
    ],
)
def test_what_is_not_proved_is_refused(inner, message):
    with pytest.raises(UnsupportedEventError, match=message):
        CorrelatedEvent(relation="add_or_remove_one", inner=inner, bands=2, power=0.5)


def test_groups_by_index_are_refused_where_records_come_and_go():
    with pytest.raises(UnsupportedEventError, match="there is one under"):
        event(2, 0.5, 4, 1.0, own_coin=False)
