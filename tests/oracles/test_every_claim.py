"""What every claim of an oracle rests on, one by one and exactly: its noise, its unit, its lines, its empty batches.

Exact: a release less the values it was made of is the noise's standard deviation times the draws of its stream.
"""

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as library
from scipy.stats import binom, norm

import tacita
from tacita.errors import LedgerError
from tacita.hardened.integer_noise import rounded_normals
from tacita.oracles import trainable
from tacita.oracles.payment import SessionPlan

SEED, QUERIES = 0, 4
RATE, RARE, DELTA = 0.3, 0.004, 1e-5
SQUARE_ROOTS = {"gradient": math.sqrt(3 * 1), "residual": math.sqrt(3 * 2)}  # least power, of 1 and 2, 5 coordinates


@dataclass(frozen=True)
class Claim:
    """An oracle at noise multiplier 1, thresholds 1, divisor 18, under add_or_remove_one.

    Attributes:
        kind: Its class.
        settings: Of its own.
        noise_std: Of the sum, by block: worked out by hand.
    """

    kind: type
    settings: dict[str, Any]
    noise_std: dict[str, float]


CLIPPED = dict(clipper=tacita.FlatClipper(max_grad_norm=1.0))
CLAIMS = {
    "clipped": Claim(tacita.ClippedGradientOracle, CLIPPED, {"all": 1.0}),
    "hidden-error": Claim(
        tacita.ErrorFeedbackOracle,
        dict(CLIPPED, feedback=tacita.PrivateFeedback(max_feedback_norm=0.5)),
        {"gradient": 1.0 + 2 * 18 * 0.5},
    ),
    "bounded-residuals": Claim(
        tacita.ErrorFeedbackOracle,
        dict(CLIPPED, feedback=tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)),
        {"gradient": 1.0 + 2.0},
    ),
    "released-residuals": Claim(
        tacita.ErrorFeedbackOracle,
        dict(CLIPPED, feedback=tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)),
        SQUARE_ROOTS,
    ),
    "rounded": Claim(
        tacita.ClippedGradientOracle,
        dict(CLIPPED, mechanism=tacita.RoundedGaussian(noise_multiplier=1.0), method="loop"),
        {"all": 1.0},
    ),
}
every_claim = pytest.mark.parametrize("name", CLAIMS)


class NeverEnough:
    """A mechanism that refuses whatever is paid for."""

    in_stretches = False

    def check_paid(self, event, noise_std, contribution):
        raise LedgerError("never enough")


class Watched:
    """An oracle of a claim, and the bounded values that each of its queries was paid for with."""

    def __init__(self, problem, name, dataset=None, rate=RATE, **more):
        model, loss_fn, data = problem
        claim = CLAIMS[name]
        common = dict(
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            sampler=tacita.PoissonSampler(sample_rate=rate, num_records=60),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=QUERIES,
            randomness=tacita.Randomness.insecure(SEED),
        )
        self.oracle = claim.kind(copy.deepcopy(model), loss_fn, dataset or data, **{**common, **claim.settings, **more})
        self.values, commit = [], self.oracle.gate.commit

        def watching(query, values, seen):
            self.values.append({block: {n: x.clone() for n, x in xs.items()} for block, xs in values.items()})
            return commit(query, values, seen)

        self.oracle.gate.commit = watching
        self.session = self.oracle.session

    def query(self):
        return self.oracle.query(trainable(self.oracle.source.model))

    def noise(self, query, block, like):
        """The noise of that query and block, drawn here from the run's own key."""
        stream = tacita.Randomness.insecure(SEED).key.stream("train-1", "noise", query, block)
        sizes, std = [x.numel() for x in like.values()], self.oracle.noise_std[block]
        steps = getattr(self.oracle.mechanism, "steps", None)
        if steps is None:
            flat = std * stream.normals(sum(sizes), dtype=torch.float64)
        else:
            flat = steps[block] * torch.from_numpy(rounded_normals(stream, sum(sizes), std / steps[block])).double()
        return {name: part.view(x.shape) for (name, x), part in zip(like.items(), flat.split(sizes), strict=True)}

    def check_noise(self, release):
        """The release is the values plus that noise, bit for bit but for the order of two roundings."""
        values = self.values[release.query]
        assert release.released.keys() == values.keys()
        for block, tensors in values.items():
            noise = self.noise(release.query, block, tensors)
            for name, value in tensors.items():
                found = release.released[block][name].double()
                torch.testing.assert_close(found, value.double() + noise[name], rtol=1e-14, atol=1e-13)
                assert (found != value).any()


@every_claim
def test_the_noise_is_that_of_the_unit_in_every_query(problem, name):
    watched = Watched(problem, name)
    assert watched.oracle.noise_std == pytest.approx(CLAIMS[name].noise_std, rel=1e-12)
    for _ in range(QUERIES):
        watched.check_noise(watched.query())


@every_claim
def test_twice_the_thresholds_is_twice_the_noise(problem, name):
    """And a record that is replaced moves as much as two, but for an error, which is clipped in either world."""
    settings = {"max_grad_norm": 2.0, "max_feedback_norm": 1.0, "max_residual_norm": 4.0, "declared_max_grad_norm": 2.0}
    doubled = {}
    for key, value in CLAIMS[name].settings.items():
        if key in settings:
            doubled[key] = settings[key]
        elif key in ("clipper", "feedback"):
            fields = {field: settings.get(field, number) for field, number in vars(value).items()}
            doubled[key] = type(value)(**fields)
    noise_std = Watched(problem, name, **doubled).oracle.noise_std
    assert noise_std == pytest.approx({block: 2 * std for block, std in CLAIMS[name].noise_std.items()}, rel=1e-12)


def sampled_gaussian(delta=DELTA):
    """Epsilon of four sampled Gaussian queries of noise multiplier 1, straight from the library."""
    one = library.from_gaussian_mechanism(1.0, sampling_prob=RATE, value_discretization_interval=1e-4)
    return one.self_compose(QUERIES).get_epsilon_for_delta(delta)


def gaussian_delta(mu, epsilon):
    """Balle and Wang (2018), Theorem 8."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def price(problem, name):
    return Watched(problem, name).oracle.ledger.conditional_bound(DELTA).epsilon


@pytest.mark.parametrize("name", ["clipped", "released-residuals", "rounded"])
def test_the_price_is_that_of_sampled_gaussian_queries(problem, name):
    """One, or several blocks that are one once each is divided by its noise."""
    assert price(problem, name) == pytest.approx(sampled_gaussian(), rel=1e-3)


def test_the_price_of_a_hidden_error_is_between_that_of_the_error_and_of_both(problem):
    """Once drawn, a record moves each sum by 18 through the error; what it adds itself, 1, is sampled."""
    found, error = price(problem, "hidden-error"), math.sqrt(QUERIES) * 18 / 19
    assert gaussian_delta(error, found) < DELTA < gaussian_delta(error, 0.9 * found)
    assert gaussian_delta(math.sqrt(QUERIES), found) > DELTA


def test_the_price_of_bounded_residuals_is_that_of_the_participations(problem):
    """Drawn k times a record moves the transcript by sqrt(k) + 2 k, in noise of 3."""
    found = price(problem, "bounded-residuals")
    drawn = [binom.pmf(k, QUERIES, RATE) for k in range(1, QUERIES + 1)]
    delta = sum(p * gaussian_delta((math.sqrt(k) + 2 * k) / 3, found) for k, p in enumerate(drawn, start=1))
    assert delta == pytest.approx(DELTA, rel=1e-2)
    assert delta <= DELTA


@every_claim
def test_every_query_has_its_line_before_it_is_released(problem, name):
    """With a fingerprint of its own; and each costs, at once or as part of the whole session."""
    watched = Watched(problem, name)
    ledger, spent = watched.oracle.ledger, [0.0]
    for made in range(1, QUERIES + 1):
        release = watched.query()
        assert release.query == made - 1
        assert watched.session.queries_made == watched.session.queries_spent == made
        assert len({watched.session.lookup(query) for query in range(made)} - {None, ""}) == made
        spent.append(ledger.spent_bound(DELTA).epsilon)
        event = watched.session.event
        assert spent[-1] > spent[-2] if event.per_query else spent[-1] >= spent[-2]
        assert spent[-1] > 0
        assert event.costs_by_prefix or spent[-1] == spent[1]
    assert spent[-1] == ledger.conditional_bound(DELTA).epsilon
    assert ledger.verify().ok


@every_claim
@pytest.mark.parametrize("nobody", ["empty-data", "empty-batch"])
def test_a_query_that_meets_nobody_is_like_any_other(problem, name, nobody):
    """Full noise, a line, the price: whether the data are empty, or a batch is."""
    if nobody == "empty-data":
        watched = Watched(problem, name, dataset=tuple(tensor[:0] for tensor in problem[2]))
    else:
        watched = Watched(problem, name, rate=RARE)
        assert len(watched.oracle.sampler.draw(0, watched.oracle.gate.coins, 60)) == 0
    for made in range(1, QUERIES + 1):
        release = watched.query()
        watched.check_noise(release)
        assert watched.session.queries_made == made
    first = watched.values[0].values()
    assert not any(value.any() for block in first for value in block.values())
    assert (
        watched.oracle.ledger.spent_bound(DELTA).epsilon == watched.oracle.ledger.conditional_bound(DELTA).epsilon > 0
    )


@pytest.mark.parametrize("wrong", [0.95, 1.05, 1 + 1e-6])
def test_the_check_of_the_noise_can_fail(problem, wrong):
    watched = Watched(problem, "clipped")
    release = watched.query()
    watched.oracle.noise_std["all"] *= wrong
    with pytest.raises(AssertionError, match="not close"):
        watched.check_noise(release)


@every_claim
def test_noise_below_what_is_paid_for_is_refused(problem, name):
    """Each block on its own, by less than rounding could excuse; and nothing is released."""
    for block in CLAIMS[name].noise_std:
        oracle = Watched(problem, name).oracle
        assert oracle.gate.noise_std[block] == oracle.noise_std[block]
        oracle.gate.noise_std[block] *= 1 - 2.0**-50
        for _ in range(2):
            with pytest.raises(LedgerError, match=f"noise_std of block '{block}' is .* event promises"):
                oracle.query(trainable(problem[0]))
        oracle.gate.noise_std[block] = math.nan
        with pytest.raises(LedgerError, match="is nan"):
            oracle.query(trainable(problem[0]))


@pytest.mark.parametrize("part", ["session", "contribution", "mechanism"])
def test_the_noise_is_compared_anew_with_whatever_has_changed(problem, part):
    """A comparison that was right once says nothing of another session, contribution or mechanism."""
    oracle = Watched(problem, "clipped").oracle
    oracle.query(trainable(problem[0]))
    if part == "session":
        noisier = Watched(problem, "clipped", mechanism=tacita.GaussianMechanism(noise_multiplier=2.0)).session
        oracle.gate.session = noisier
    elif part == "contribution":
        oracle.gate._contribution = {"all": 1.5}
    else:
        oracle.gate._mechanism = NeverEnough()
    with pytest.raises(LedgerError, match=r"is .* event promises|never enough"):
        oracle.gate.begin()


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_an_oracle_whose_noise_is_less_than_its_event_s_is_not_built(problem, monkeypatch, factor):
    whole = SessionPlan.noise_std
    monkeypatch.setattr(
        SessionPlan, "noise_std", lambda self, by: {block: factor * std for block, std in whole(self, by).items()}
    )
    with nullcontext() if factor == 1 else pytest.raises(LedgerError, match="noise_std of block 'all' is"):
        Watched(problem, "clipped")


@every_claim
def test_every_oracle_has_reservations(problem, name):
    """Whatever builds it: the size of a reservation is the caller's."""
    watched = Watched(problem, name, reservation=2)
    watched.oracle.query(trainable(problem[0]))
    assert watched.session.reserved_queries == 2
