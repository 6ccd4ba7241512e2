"""The shuffle oracles: what they release, what it costs, and that every solver takes them."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2

import tacita
from tacita._stream import Noise
from tacita.accounting import Spend, delta, gaussian_mu
from tacita.convex import AcceleratedSGD, Ball, ShuffledSumEvent, ShuffleMeanOracle1, ShuffleMeanOracle2
from tacita.convex.shuffle_calibration import NoiseBits
from tacita.convex.shuffle_round import in_steps, uniforms
from tacita.convex.shuffled_sums import ShuffledSums, UserNoise
from tacita.errors import BudgetExceededError, LedgerError, ResumeError, UnsupportedEventError
from tacita.gradients.given import GivenSource
from tacita.random import Randomness
from tacita.testing import check_oracle

POINT = {"theta": torch.zeros(2)}


def rows(n=200, d=2, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ledger_of(relation="replace_one", **more):
    return tacita.Ledger(neighboring_relation=relation, privacy_unit="one user", **more)


def full(n):
    return tacita.FullBatchSampler(num_records=n)


def mean_oracle(data, **settings):
    return ShuffleMeanOracle1(
        GivenSource(data),
        **{
            "max_grad_norm": 1.0,
            "target_epsilon": 2.0,
            "target_delta": 1e-5,
            "sampler": full(len(data)),
            "ledger": ledger_of(),
            "planned_queries": 1,
            "randomness": Randomness.insecure(0),
            **settings,
        },
    )


def median_oracle(data, **settings):
    return ShuffleMeanOracle2(
        GivenSource(data),
        **{
            "max_coordinate": 1.0,
            "num_groups": 5,
            "target_epsilon": 2.0,
            "target_delta": 1e-5,
            "sampler": full(len(data)),
            "ledger": ledger_of(),
            "planned_queries": 1,
            "calibration": "hockey_stick",
            "randomness": Randomness.insecure(0),
            **settings,
        },
    )


# What is released.


def test_the_release_is_the_clipped_mean_and_the_stated_noise():
    """The average over 150 oracles is unbiased, and their spread is that of noise and rounding."""
    data = rows(100, 3) * 2
    one = mean_oracle(data)
    found = [
        mean_oracle(data, randomness=Randomness.insecure(seed))
        .query({"theta": torch.zeros(3)})
        .released["all"]["theta"]
        for seed in range(150)
    ]
    found = torch.stack(found)
    clipped = data / data.norm(dim=1, keepdim=True).clamp(min=1.0)
    exact = (clipped + 1) / one.sums.step
    rounding = one.sums.step**2 * ((exact - exact.floor()) * (1 - exact + exact.floor())).sum(dim=0)
    variance = one.noise_std["all"] ** 2 + rounding
    assert ((found.mean(dim=0) - clipped.sum(dim=0)).abs() < 4.5 * (variance / 150).sqrt()).all()
    total = ((found - clipped.sum(dim=0)).square() / variance).sum().item()
    assert chi2.ppf(1e-5, 450) < total < chi2.ppf(1 - 1e-5, 450)


@pytest.mark.parametrize("bit_prob", [0.5, 0.2])
def test_the_noise_is_that_of_every_bit(bit_prob):
    """Over 40,000 coordinates a standard deviation that is 5 % too small is 14 deviations of the test away."""
    bits = NoiseBits(grid=4, noise_bits=20, bit_prob=bit_prob)
    sums = ShuffledSums(half_range=1.0, l2_bounded=True, num_groups=1, users=50, bits=bits, honest_fraction=1.0)
    size, trials = 40_000, 50 * 20
    noise = Noise(lambda block: Randomness.insecure(0).session_key("noise").stream(block))
    counts = UserNoise(sums)({"all": {"theta": torch.full((1, size), 7)}}, {}, noise)["all"]["theta"].double() - 7
    variance = trials * bit_prob * (1 - bit_prob)
    assert abs(counts.mean().item() - trials * bit_prob) < 5 * math.sqrt(variance / size)
    squares = (counts - trials * bit_prob).square().sum().item() / variance
    assert chi2.ppf(1e-6, size) < squares < chi2.ppf(1 - 1e-6, size)


def test_the_count_is_the_steps_and_the_noise_bits_of_all_users():
    """Whole numbers: the release is a count on the grid, and its law over oracles is that of bs fair bits."""
    oracle = mean_oracle(torch.zeros(50, 2), grid=20)
    bits = oracle.sums.bits
    released = oracle.query(POINT).released["all"]["theta"]
    counts = (released + 50) / oracle.sums.step + bits.noise_bits * 50 / 2
    assert torch.allclose(counts, counts.round(), atol=1e-6)
    assert oracle.noise_std["all"] == pytest.approx(oracle.sums.step * math.sqrt(50 * bits.noise_bits) / 2)
    below = binom.cdf(counts.numpy() - 50 * 10, 50 * bits.noise_bits, 0.5)  # a zero row is at step 10 of 20
    assert ((below > 1e-7) & (below < 1 - 1e-7)).all()


def test_gradient_is_the_release_over_the_public_number_of_users():
    release = mean_oracle(rows(), sampler=full(200)).query(POINT)
    assert torch.equal(release.gradient["theta"], release.released["all"]["theta"] / 200)
    assert (release.divisor, release.query, release.session) == (200.0, 0, "train-1")


def test_a_median_of_groups_forgets_a_few_wild_users():
    data = torch.full((2000, 1), 0.25, dtype=torch.float64)
    data[::10] = 1e12
    oracle = median_oracle(data, max_coordinate=4.0, num_groups=5)
    assert oracle.query({"theta": torch.zeros(1)}).gradient["theta"].item() == pytest.approx(0.25, abs=0.3)
    plain = mean_oracle(data, max_grad_norm=4.0)
    assert plain.query({"theta": torch.zeros(1)}).gradient["theta"].item() == pytest.approx(0.625, abs=0.2)


def test_groups_are_of_equal_size_and_their_median_is_taken():
    oracle = median_oracle(rows(20), num_groups=4)
    counts = torch.tensor([[1.0, 7.0], [2.0, 7.0], [30.0, 7.0], [4.0, 7.0]])
    noise = oracle.sums.bits.noise_bits * 5 / 2
    middle = oracle.sums.estimate(counts + noise)
    assert middle.tolist() == pytest.approx([4 * (oracle.sums.step * x - 5) for x in (3.0, 7.0)])
    seen = []
    stub = replace(oracle.sums, num_groups=4)
    engine = GivenSource(torch.arange(20.0)[:, None] / 20).engine({}, np.arange(20))
    coins = Randomness.insecure(0).key.stream("coins")
    steps = stub.steps(engine, coins)["theta"]
    drawn = uniforms(coins.words(20))[:, None]
    each = in_steps(np.arange(20.0)[:, None] / 20, 1.0, stub.bits.grid, drawn)
    seen = [each[group::4].sum() for group in range(4)]
    assert steps[:, 0].tolist() == seen


class Chunked(GivenSource):
    """Its engine shows a batch in chunks of so many rows."""

    def __init__(self, grads, size):
        super().__init__(grads)
        self.size = size

    def engine(self, params, indices, *, query=None, seed=None):
        engine = super().engine(params, indices, query=query, seed=seed)
        (whole,) = engine.materialise()
        engine.materialise = lambda: ({"theta": part} for part in whole["theta"].split(self.size))
        return engine


@pytest.mark.parametrize("size", [1, 3, 4, 7, 20])
def test_a_users_group_follows_from_the_place_in_the_batch_whatever_the_chunks(size):
    sums, data = median_oracle(rows(20), num_groups=4).sums, rows(20)
    whole, chunked = (
        sums.steps(source.engine({}, np.arange(20)), Randomness.insecure(0).key.stream("coins"))["theta"]
        for source in (GivenSource(data), Chunked(data, size))
    )
    assert torch.equal(chunked, whole)


def test_rows_that_are_not_finite_count_as_zero():
    data = torch.zeros(200, 2)
    data[3], data[4], data[5] = torch.nan, torch.inf, torch.tensor([1e30, 0.0])
    expected = torch.zeros(200, 2)
    expected[5, 0] = 1.0
    one, other = (mean_oracle(d).query(POINT).released["all"]["theta"] for d in (data, expected))
    assert (one - other).abs().max() <= 2 * mean_oracle(data).sums.step
    assert one.isfinite().all()


def test_the_same_key_gives_the_same_release_and_chunks_do_not_show():
    plain = mean_oracle(rows(40)).query(POINT).released["all"]["theta"]
    settings = {
        "max_grad_norm": 1.0,
        "target_epsilon": 2.0,
        "target_delta": 1e-5,
        "sampler": full(40),
        "ledger": ledger_of(),
        "planned_queries": 1,
        "randomness": Randomness.insecure(0),
    }
    assert torch.equal(
        ShuffleMeanOracle1(Chunked(rows(40), 7), **settings).query(POINT).released["all"]["theta"], plain
    )
    assert not torch.equal(
        mean_oracle(rows(40), randomness=Randomness.insecure(1)).query(POINT).released["all"]["theta"], plain
    )


# What it costs.


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_the_ledger_states_at_most_the_target(relation):
    ledger = ledger_of(relation)
    oracle = mean_oracle(rows(), ledger=ledger)
    assert 1.8 < ledger.epsilon(1e-5) <= 2.0
    oracle.query(POINT)
    assert ledger.epsilon_spent(1e-5) == ledger.epsilon(1e-5)
    assert "shuffle model: 200 users" in str(tacita.statement(ledger, delta=1e-5))
    assert ledger.verify().ok


def test_zeroing_a_record_moves_half_as_far():
    replaced, zeroed = mean_oracle(rows(400)), mean_oracle(rows(400), ledger=ledger_of("zero_out_one"))
    assert zeroed.sums.bits.noise_bits < 0.35 * replaced.sums.bits.noise_bits


def test_disjoint_batches_cost_one_query_and_full_batches_all():
    one_pass = tacita.DisjointSampler(num_batches=4, num_records=800)
    once = mean_oracle(rows(800), sampler=one_pass, planned_queries=4)
    alone = mean_oracle(rows(200))
    assert once.sums.bits == alone.sums.bits
    for _ in range(4):
        once.query(POINT)
    with pytest.raises(BudgetExceededError):
        once.query(POINT)
    often = mean_oracle(rows(200), planned_queries=4)
    assert 3.5 < often.sums.bits.noise_bits / alone.sums.bits.noise_bits < 4.5


def test_x7_shuffled_noise_is_close_to_a_curators():
    """The specification's exact calibration has 27 to 30 times the central noise, the least bits 1.5 times it."""
    mu = gaussian_mu(2.0, 1e-5)
    central = (2 / mu) ** 2
    least, exact = (
        mean_oracle(torch.zeros(1024, 5), calibration=name).noise_std["all"] ** 2 for name in ("least", "hockey_stick")
    )
    assert 20 < exact / central < 30
    assert 1.0 < least / central < 1.5


def test_calibrations_by_name_need_users_who_are_asked_once():
    assert mean_oracle(rows(), calibration="hockey_stick").sums.bits.noise_bits > 300
    assert mean_oracle(rows(), calibration="paper").sums.bits.bit_prob < 0.5
    for name in ("hockey_stick", "paper"):
        with pytest.raises(ValueError, match="for users who are asked once"):
            mean_oracle(rows(), calibration=name, planned_queries=2)
    paper = median_oracle(rows(50), calibration="paper", target_epsilon=1.0)
    exact = median_oracle(rows(50), target_epsilon=1.0)
    assert paper.sums.bits.noise_bits > 10 * exact.sums.bits.noise_bits
    with pytest.raises(ValueError, match="together spend"):
        median_oracle(rows(50), calibration="paper", target_epsilon=130.0)


def test_the_exact_law_of_a_query_keeps_to_the_claim_and_half_the_noise_does_not():
    """One coordinate, so that both worlds are sums of whole numbers with known laws: delta is a finite sum."""
    oracle = median_oracle(torch.zeros(60, 1), num_groups=3, calibration="least", target_delta=1e-2, grid=4)
    bits, at = oracle.sums.bits, oracle.ledger.epsilon(1e-2)

    def farthest(trials):
        masses = [binom.pmf(np.arange(trials + 5) - shift, trials, 0.5) for shift in (0, 4)]
        return np.maximum(0.0, masses[0] - math.exp(at) * masses[1]).sum()

    assert farthest(20 * bits.noise_bits) <= 1e-2 < farthest(10 * bits.noise_bits)
    assert isinstance(oracle.event, ShuffledSumEvent)
    assert delta([Spend(oracle.event, 1)], at).delta <= 1e-2 * (1 + 1e-6)


def test_honest_users_alone_are_counted_on():
    assert mean_oracle(rows(400), honest_fraction=0.5).sums.bits.noise_bits == pytest.approx(
        2 * mean_oracle(rows(400)).sums.bits.noise_bits, rel=0.05
    )


@pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="thousands of real queries")
@pytest.mark.parametrize("kind", ["mean", "median"])
def test_the_contract_of_oracles(kind):
    """Runs of at most four queries, whose releases are compared in both worlds of every adversary."""

    def make_oracle(data, ledger):
        if ledger.neighboring_relation == "add_or_remove_one":
            raise UnsupportedEventError("the number of users is public")
        sampler = {"sampler": full(len(data)), "ledger": ledger, "randomness": None, "target_delta": 1e-2}
        if kind == "mean":
            return mean_oracle(data, planned_queries=2, **sampler)
        return median_oracle(data, planned_queries=2, num_groups=1, calibration="least", **sampler)

    check_oracle(make_oracle)


# Below the line.


def test_a_solver_takes_it():
    """Least squares in one pass of 8 batches; the oracle is asked at points of its own."""
    n, generator = 8 * 4096, torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator)
    y = x @ torch.tensor([0.3, -0.2, 0.1]) + 0.1 * torch.randn(n, generator=generator)
    oracle = ShuffleMeanOracle1(
        tacita.NetworkSource(
            torch.nn.Linear(3, 1, bias=False),
            lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square() / 2,
            (x, y),
        ),
        max_grad_norm=2.0,
        target_epsilon=2.0,
        target_delta=1e-6,
        sampler=tacita.DisjointSampler(num_batches=8, num_records=n),
        ledger=ledger_of(),
        planned_queries=8,
        randomness=Randomness.insecure(0),
    )
    found = AcceleratedSGD(oracle, {"weight": torch.zeros(1, 3)}, steps=8, lr=0.2, domain=Ball(radius=1.0)).run()
    assert (found["weight"] - torch.tensor([[0.3, -0.2, 0.1]])).norm() < 0.15
    assert oracle.ledger.epsilon(1e-6) <= 2.0


def test_a_resumed_run_releases_the_same(tmp_path):
    data, ledger = rows(), ledger_of()
    oracle = mean_oracle(data, ledger=ledger, planned_queries=3)
    saved = oracle.state_dict()
    first = [oracle.query(POINT).released["all"]["theta"] for _ in range(2)]
    again = mean_oracle(data, ledger=ledger, planned_queries=3, session=ledger.sessions[0])
    with pytest.raises(ResumeError, match="load its checkpoint"):
        again.query(POINT)
    again.load_state_dict(saved)
    assert all(torch.equal(again.query(POINT).released["all"]["theta"], one) for one in first)
    assert again.remaining_queries == 1
    ledger.verify()


# What is refused.


def test_what_is_not_proved_is_refused():
    with pytest.raises(UnsupportedEventError, match="a sum in the shuffle model"):
        mean_oracle(rows(), ledger=ledger_of("add_or_remove_one"))
    with pytest.raises(UnsupportedEventError, match="a sum in the shuffle model"):
        mean_oracle(rows(), sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=200))
    coin = tacita.AllocatedSampler(batches_per_epoch=2, num_records=200)
    with pytest.raises(UnsupportedEventError, match="a sum in the shuffle model"):
        mean_oracle(rows(), sampler=coin)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (
            {"sampler": tacita.DisjointSampler(num_batches=3, num_records=200)},
            "batches of one size",
        ),
        ({"sampler": full(199)}, "num_records must be the number of records"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be"),
        ({"honest_fraction": 0.001}, "must leave one user"),
        ({"honest_fraction": 1.5}, "honest_fraction must be"),
        ({"grid": 0}, "grid must be"),
        ({"target_epsilon": -1.0}, "epsilon must be"),
        ({"target_delta": 0.0}, "delta must be"),
        ({"target_delta": 0.01}, "target_delta must be"),
        ({"planned_queries": 0}, "planned_queries must be"),
    ],
)
def test_wrong_settings_are_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        mean_oracle(rows(), **wrong)


def test_groups_must_divide_the_users():
    with pytest.raises(ValueError, match="a multiple of 7"):
        median_oracle(rows(), num_groups=7)


def test_a_cap_refuses_and_a_session_is_bound_to_its_settings():
    with pytest.raises(BudgetExceededError):
        mean_oracle(rows(), ledger=ledger_of(max_epsilon=1.0, max_delta=1e-5))
    ledger = ledger_of()
    session = mean_oracle(rows(), ledger=ledger).session
    with pytest.raises(LedgerError, match="registered for another"):
        mean_oracle(rows(), ledger=ledger, session=session, grid=40)
    for other in ({"max_grad_norm": 2.0}, {"max_grad_norm": 0.5}):  # the event is the same, and the sums are not
        with pytest.raises(ResumeError, match="registered with other settings"):
            mean_oracle(rows(), ledger=ledger, session=session, **other)


@pytest.mark.parametrize("users", [190, 210])
def test_sums_of_another_number_of_users_are_never_released(users):
    """Noise of 200 users is added, and the estimate takes that of 200 users away."""
    oracle = mean_oracle(rows())
    stream = Randomness.insecure(0).key.stream("rounding")
    engine = GivenSource(rows(users)).engine(POINT, np.arange(users))
    with pytest.raises(RuntimeError, match="whose size is public"):
        oracle.sums.steps(engine, stream)


def test_printing_shows_settings_and_no_data():
    text = repr(mean_oracle(rows() * 0 + 0.123456))
    assert "noise_bits=" in text
    assert "0.123" not in text


@pytest.mark.parametrize("change", [{"noise_bits": 1}, {"grid": 1}, {"bit_prob": 0.25}, {"users": -1}], ids=str)
@pytest.mark.parametrize("kind", [mean_oracle, median_oracle])
def test_users_whose_noise_is_not_that_of_the_event_are_not_asked(kind, change):
    """Also more noise is refused: the estimate subtracts the mean of the noise that was stated."""
    oracle = kind(rows())
    sums, bits = oracle.sums, oracle.sums.bits
    (name, by), given = *change.items(), {"grid": bits.grid, "noise_bits": bits.noise_bits, "bit_prob": bits.bit_prob}
    if name == "users":
        other = replace(sums, users=sums.users + by)
    else:
        other = replace(sums, bits=NoiseBits(**{**given, name: given[name] - by}))
    oracle.gate._mechanism = UserNoise(other)
    with pytest.raises(LedgerError, match="event promises something else"):
        oracle.query(POINT)
    oracle.gate._mechanism = UserNoise(replace(sums))
    oracle.query(POINT)
