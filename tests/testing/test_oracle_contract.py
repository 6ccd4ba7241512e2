"""Every gradient oracle keeps its claim; oracles that do not are refuted."""

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tacita import ClippedGradientOracle, FlatClipper, GaussianMechanism, GradientOracle, Release
from tacita.accounting.sampling_laws import PoissonLaw
from tacita.clipping import Clipper
from tacita.errors import UnsupportedEventError
from tacita.gradients.network_source import NetworkSource
from tacita.mechanisms import Mechanism
from tacita.random import Key, QueryCoins, Randomness
from tacita.sampling import PoissonSampler, Sampler
from tacita.testing import check_oracle
from tacita.testing import oracle_contract as contract
from tacita.testing.sessions import is_plain
from tacita.testing.simulator import masks_of
from tests.around_mechanism import Scaled
from tests.testing.linear import ORACLES, Foreign, full, given, network, poisson, under

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
UNDER = {  # of these one relation here, and all of them in make audit
    "automatic": "zero_out_one",
    "full-batch": "replace_one",
    "cyclic-coin": "zero_out_one",
    "correlated-coin": "add_or_remove_one",
    "correlated-index": "replace_one",
    "correlated-one-pass": "zero_out_one",
    "allocated-one-pass": "add_or_remove_one",
    "one-pass": "replace_one",
    "allocated": "zero_out_one",
    "shuffled-epochs": "replace_one",
    "rounded": "add_or_remove_one",
}


@pytest.mark.parametrize("name", ORACLES)
def test_every_oracle_keeps_its_claim(name, monkeypatch):
    if name == "loop":  # the code of this model keeps nothing of a record: the condition is met
        monkeypatch.setattr(NetworkSource, "conditions", ())
    make_oracle = ORACLES[name] if AUDIT or name not in UNDER else under(UNDER[name], ORACLES[name])
    for _ in range(3 if AUDIT else 1):
        check_oracle(make_oracle)


def test_an_oracle_of_a_third_party_is_asked_query_by_query():
    check_oracle(Foreign)


# -- the check can fail


def test_too_little_noise_of_a_third_party_is_refuted():
    with pytest.raises(AssertionError, match=r"adversary '.*' scored by .*refuted: epsilon 1.* is claimed"):
        check_oracle(lambda rows, ledger: Foreign(rows, ledger, quiet=0.2))


@dataclass(frozen=True, kw_only=True)
class Quiet(Mechanism):
    """A little less noise than stated; in real queries too little to see."""

    def event(self, event):
        return event

    def on(self, steps, noise_std):
        return self

    def __call__(self, values, noise_std, normals):
        plain = GaussianMechanism(noise_multiplier=self.noise_multiplier)
        return plain(values, {block: 0.95 * std for block, std in noise_std.items()}, normals)


@dataclass(frozen=True, kw_only=True)
class JoinsRuns(Mechanism):
    """Noise of one length for all values of a call: right in a query, and in an audit for all runs together."""

    event, on = Quiet.event, Quiet.on

    def __call__(self, values, noise_std, normals):
        released = {}
        for block, tensors in values.items():
            draws = normals(block, tensors)
            long = (sum(x.numel() for x in tensors.values()) / 4) ** 0.5
            released[block] = {name: x + noise_std[block] * long * draws[name] for name, x in tensors.items()}
        return released


def test_noise_that_joins_the_runs_of_an_audit_is_refuted():
    with pytest.raises(AssertionError, match="noise has not the stated standard deviation"):
        check_oracle(given(full, mechanism=JoinsRuns(noise_multiplier=1.0)))


def test_why_no_relation_is_served_is_said():
    def make(rows, ledger):
        raise UnsupportedEventError("this noise is proved for nothing")

    with pytest.raises(
        AssertionError, match=r"under every relation: .*add_or_remove_one: this noise is proved for nothing"
    ):
        check_oracle(make)


def test_noise_five_per_cent_too_small_is_refuted_with_adversary_claim_and_bound():
    quiet = given(full, mechanism=Quiet(noise_multiplier=1.0))
    with pytest.raises(AssertionError, match=r"adversary '.*' scored by .*refuted: epsilon 3.* is claimed.*at least"):
        check_oracle(quiet)


def test_a_wider_clipper_than_stated_is_refuted():
    flat = FlatClipper(max_grad_norm=1.0)

    class Wide(Clipper):
        def groups(self, shapes):
            return flat.groups(shapes)

        def weights(self, norms):
            return 1.15 * flat.weights(norms)

        def max_contribution(self, shapes):
            return flat.max_contribution(shapes)

    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(given(full, clipper=Wide(), noise_multiplier=2.0))


def test_a_divisor_that_depends_on_the_data_is_seen():
    class Counting(Foreign):
        def query(self, params):
            release = super().query(params)
            return Release(**{**vars(release), "divisor": float(len(self._rows))})

    with pytest.raises(AssertionError, match="divisor"):
        check_oracle(Counting)


# -- oracles of our own kind that do something else than their parts


class Knows(GradientOracle):
    """Remembers the noiseless values of its last query, and how many rows it drew."""

    def query(self, params):
        rows = self.draws.batch(self.gate.position)
        self.drawn = len(rows)
        self.values, _ = self.estimator(self.source.engine(params, rows), self.gate.state)
        return super().query(params)


class NoiselessGradient(Knows):
    def query(self, params):
        return replace(super().query(params), gradient=self.estimator.gradient(self.values, self.divisor))


class RealisedBatch(Knows):
    def query(self, params):
        release = super().query(params)
        means = {n: g * (self.divisor / max(1, self.drawn)) for n, g in release.gradient.items()}
        return replace(release, gradient=means)


class NoiselessLater(Knows):
    def query(self, params):
        release = super().query(params)
        if release.query < 4:
            return release
        return replace(release, released=self.values, gradient=self.estimator.gradient(self.values, self.divisor))


class RowsInTheSession(GradientOracle):
    def query(self, params):
        return replace(super().query(params), session=f"{self.draws.num_rows}")


class RowsInTheNumber(GradientOracle):
    def query(self, params):
        return replace(super().query(params), query=self.draws.num_rows)


class StatesMore(GradientOracle):
    def query(self, params):
        release = super().query(params)
        return replace(release, noise_std={block: 2 * std for block, std in release.noise_std.items()})


class Counts(GradientOracle):
    def query(self, params):
        release = super().query(params)
        object.__setattr__(release, "rows", self.draws.num_rows)
        return release


class NoiselessPairs(Knows):
    """The noise of the fifth query again in the sixth."""

    def query(self, params):
        release = super().query(params)
        noise = {n: release.released["all"][n] - v for n, v in self.values["all"].items()}
        if release.query == 4:
            self.noise = noise
        if release.query != 5:
            return release
        again = {"all": {n: v + self.noise[n] for n, v in self.values["all"].items()}}
        return replace(release, released=again, gradient=self.estimator.gradient(again, self.divisor))


MORE = {
    NoiselessGradient: "gradient is not its released values over the divisor",
    RealisedBatch: "gradient is not its released values over the divisor",
    NoiselessLater: "standard deviation in query 5 of 6",
    NoiselessPairs: "two queries is not independent: 5 and 6",
    RowsInTheSession: "session is none of the ledger's that paid",
    RowsInTheNumber: "query is 4, and the session's last one 0",
    StatesMore: "noise_std is",
    Counts: "Release's fields alone, and has rows",
}


@pytest.fixture
def nothing_simulated(monkeypatch):
    """What real queries show must be seen by the exact checks, before any run is simulated."""
    monkeypatch.setattr(contract, "_attack", lambda arenas, runs, false_alarm: None)


@pytest.mark.usefixtures("nothing_simulated")
@pytest.mark.parametrize("kind", MORE, ids=lambda kind: kind.__name__)
def test_a_subclass_that_releases_more_than_its_parts_is_refuted(kind):
    with pytest.raises(AssertionError, match=MORE[kind]):
        check_oracle(given(poisson, noise_multiplier=3.0, queries=6, kind=kind))


def test_a_subclass_that_only_looks_keeps_its_claim():
    def knowing(rows, ledger):
        if ledger.neighboring_relation == "add_or_remove_one" or AUDIT:
            return given(full, noise_multiplier=2.0, kind=Knows)(rows, ledger)
        raise UnsupportedEventError("every query of a subclass is real, which takes its time: one relation will do")

    check_oracle(knowing)


def test_sessions_longer_than_those_that_are_asked_often_keep_their_claim():
    check_oracle(under("replace_one", given(poisson, noise_multiplier=3.0, queries=6)))


class NoiselessAlone(Foreign):
    """No noise from the fifth query on, by a third party."""

    queries = 6

    def query(self, params):
        self._quiet = 1.0 if self._made < 4 else 0.0
        return super().query(params)


def test_a_later_query_of_a_third_party_that_has_no_noise_is_seen():
    with pytest.raises(AssertionError, match="query 5 releases the same in 3 sessions"):
        check_oracle(NoiselessAlone)


class RawBackward(ClippedGradientOracle):
    def backward(self):
        release = super().backward()
        for parameter in self.source.model.parameters():
            parameter.grad = 1.01 * parameter.grad
        return release


class AnotherBackward(ClippedGradientOracle):
    """Its backward goes another way than query, and has no noise there."""

    def backward(self):
        self.gate._mechanism = Scaled(self.mechanism, 0.0)
        return super().backward()


@pytest.mark.usefixtures("nothing_simulated")
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (RawBackward, r"the \.grad of first\.weight is something else"),
        (AnotherBackward, "standard deviation in query 1 of 2"),
    ],
)
def test_what_backward_does_is_looked_at(kind, says):
    with pytest.raises(AssertionError, match=says):
        check_oracle(network(full, "add_or_remove_one", method="program", kind=kind))


def test_plain_is_who_overrides_nothing():
    from tacita.ledger import Ledger

    def built(make):
        return make(torch.ones(3, 2), Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"))

    for name in ("poisson", "program"):
        assert is_plain(built(ORACLES[name]))
    for kind in (NoiselessGradient, RowsInTheSession, Knows):
        assert not is_plain(built(given(full, kind=kind)))
    assert not is_plain(built(network(full, "add_or_remove_one", method="program", kind=RawBackward)))
    shadowed = built(ORACLES["poisson"])
    shadowed.query = shadowed.query
    assert not is_plain(shadowed)
    assert not is_plain(Foreign)


def test_a_query_without_a_record_in_the_ledger_is_seen():
    class Silent(Foreign):
        def query(self, params):
            if self._made == 0:
                return super().query(params)
            before, self._session = self._session, type("Deaf", (), {"reserve": lambda *a: 0, "spend": lambda *a: 0})()
            self._session.id = before.id
            return super().query(params)

    with pytest.raises(AssertionError, match="2 queries were answered, and the ledger has 1"):
        check_oracle(Silent)


def test_a_gradient_that_is_not_the_release_is_looked_at():
    class Leaking(Foreign):
        def query(self, params):
            release = super().query(params)
            gradient = {"theta": self._rows.sum(dim=0).clamp(-5, 5).nan_to_num(5.0)}
            return Release(**{**vars(release), "gradient": gradient})

    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(Leaking)


def test_a_release_that_is_not_finite_is_seen():
    class Poisoned(Foreign):
        def query(self, params):
            release = super().query(params)
            bad = {"gradient": {"theta": release.released["gradient"]["theta"] + 0 * self._rows.sum(dim=0)}}
            return Release(**{**vars(release), "released": bad})

    with pytest.raises(AssertionError, match="not finite"):
        check_oracle(Poisoned)


def test_an_oracle_that_claims_nothing_is_none():
    with pytest.raises(AssertionError, match="claims epsilon inf"):
        check_oracle(given(poisson, noise_multiplier=0.0))


def test_an_oracle_without_any_guarantee_is_none():
    def refusing(rows, ledger):
        raise UnsupportedEventError("no guarantee is proved")

    with pytest.raises(AssertionError, match="under every relation"):
        check_oracle(refusing)


def test_a_claim_that_depends_on_the_data_is_seen():
    def hopeful(rows, ledger):
        return given(full, noise_multiplier=2.0 + (rows.abs().sum() > 0))(rows, ledger)

    with pytest.raises(AssertionError, match="what is claimed depends on the data"):
        check_oracle(hopeful)


def test_delta_is_checked():
    with pytest.raises(ValueError, match="delta must be in"):
        check_oracle(ORACLES["poisson"], delta=0.0)


# -- oracles that were changed after they were built


def quieter(oracle):
    """The gate's method adds a tenth of the noise."""
    whole = oracle.gate.release

    def release(dtypes=None, normals=None):
        _, values = oracle.gate._unreleased
        exact = {block: {name: x.clone() for name, x in tensors.items()} for block, tensors in values.items()}
        return {
            block: {name: exact[block][name] + 0.1 * (x - exact[block][name]) for name, x in tensors.items()}
            for block, tensors in whole(dtypes, normals).items()
        }

    oracle.gate.release = release


def quiet_gate_mechanism(oracle):
    oracle.gate._mechanism = GaussianMechanism(noise_multiplier=0.1)
    oracle.gate.noise_std = {block: std / 10 for block, std in oracle.gate.noise_std.items()}


def quiet_gate_std(oracle):
    oracle.gate.noise_std = {block: std / 10 for block, std in oracle.gate.noise_std.items()}


def quiet_everywhere(oracle):
    quiet_gate_std(oracle)
    oracle.noise_std = dict(oracle.gate.noise_std)


def quiet_mechanism(oracle):
    oracle.mechanism = oracle.gate._mechanism = GaussianMechanism(noise_multiplier=0.1)


def mechanism_in_place(oracle):
    object.__setattr__(oracle.mechanism, "noise_multiplier", 0.1)


def scaled_values(oracle):
    look = oracle.estimator.bound

    def wide(engine, state):
        values, state = look(engine, state)
        return {block: {name: 3 * x for name, x in xs.items()} for block, xs in values.items()}, state

    object.__setattr__(oracle.estimator, "bound", wide)


def wide_estimator(oracle):
    oracle.estimator = type(oracle.estimator)(FlatClipper(max_grad_norm=3.0))


def every_record(oracle):
    object.__setattr__(oracle.sampler, "draw", lambda query, coins, num_rows: np.arange(num_rows))


def every_record_by_another_sampler(oracle):
    oracle.sampler = full(oracle.draws.num_rows)


def query_on_the_instance(oracle):
    whole = oracle.query

    def query(params):
        release = whole(params)
        return replace(release, released={block: dict(xs) for block, xs in release.released.items()}, divisor=1.0)

    oracle.query = query


def same_noise(oracle):
    whole = oracle.gate._normals
    oracle.gate._normals = lambda query: whole(0)


def longer_plan(oracle):
    oracle.planned_queries *= 2


def a_row_twice(oracle):
    oracle.draws.rows = np.zeros(oracle.draws.num_rows, np.int64)


def one_batch_for_all(oracle):
    class Coins(QueryCoins):
        def for_query(self, query):
            return super().for_query(0)

    oracle.gate.coins = Coins(oracle.randomness, oracle.gate._name)


def known_key(oracle):
    oracle.randomness._key = Key.insecure(0)


def another_name(oracle):
    oracle.gate._name = "train"


def redone_for_free(oracle):
    oracle.gate._fingerprint = lambda query, values: "0"


CHANGES = {
    change.__name__: (change, says)
    for change, says in [
        (quieter, "has not the stated standard deviation"),
        (quiet_gate_mechanism, "the gate adds noise"),
        (quiet_gate_std, "the gate adds noise"),
        (quiet_everywhere, "the gate adds noise"),
        (quiet_mechanism, "the gate adds noise"),
        (mechanism_in_place, "the gate adds noise"),
        (scaled_values, "is claimed|not the estimator's|neither clipped nor dropped"),
        (wide_estimator, "the gate adds noise"),
        (every_record, "is claimed"),
        (every_record_by_another_sampler, "charges for another event"),
        (query_on_the_instance, "divisor"),
        (same_noise, "is not independent"),
        (longer_plan, "planned_queries is not the session's"),
        (one_batch_for_all, "other coins"),
        (known_key, "is seeded"),
        (another_name, "another name|other coins"),
        (redone_for_free, "another fingerprint"),
    ]
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_oracle_that_was_changed_after_it_was_built_is_seen(name, request):
    change, says = CHANGES[name]
    if "is claimed" not in says:
        request.getfixturevalue("nothing_simulated")
    make = given(poisson, noise_multiplier=1.0, queries=2)

    def make_oracle(rows, ledger):
        oracle = make(rows, ledger)
        change(oracle)
        return oracle

    with pytest.raises(AssertionError, match=says):
        check_oracle(make_oracle)


def test_a_row_that_stands_twice_in_an_oracle_is_seen():
    make = given(poisson, noise_multiplier=1.0, queries=2)

    def make_oracle(rows, ledger):
        oracle = make(rows, ledger)
        a_row_twice(oracle)
        return oracle

    with pytest.raises(ValueError, match="each row once"):
        check_oracle(make_oracle)


def test_whoever_changes_a_method_of_gate_or_parts_is_not_plain():
    from tacita.ledger import Ledger

    make = given(poisson, noise_multiplier=1.0, queries=2)

    def built():
        return make(torch.ones(3, 2), Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"))

    def owners(oracle):
        gate = oracle.gate
        return [
            (oracle.draws, "batch"),
            (oracle, "query"),
            (gate, "release"),
            (gate, "commit"),
            (gate, "query_stream"),
            (gate.session, "spend"),
            (gate.coins, "for_query"),
            (gate._randomness, "session_key"),
            (oracle.sampler, "draw"),
            (oracle.estimator, "bound"),
            (oracle.mechanism, "noise_std"),
            (oracle.source, "engine"),
        ]

    assert is_plain(built())
    for index in range(len(owners(built()))):
        oracle = built()
        owner, name = owners(oracle)[index]
        object.__setattr__(owner, name, getattr(owner, name))
        assert not is_plain(oracle), name
    oracle = built()
    oracle.gate._mechanism = GaussianMechanism(noise_multiplier=1.0)
    assert not is_plain(oracle)


def test_runs_are_drawn_by_a_draw_that_was_put_on_the_sampler():
    sampler = PoissonSampler(sample_rate=0.1, num_records=5)
    object.__setattr__(sampler, "draw", lambda query, coins, num_rows: np.arange(num_rows))
    assert masks_of(sampler)(0, QueryCoins(Randomness.insecure(0), "train"), 5, 40).all()


def test_runs_of_a_sampler_that_draws_otherwise_are_drawn_by_it():
    @dataclass(frozen=True)
    class Every(Sampler):
        num_records: int
        sample_rate = 0.1
        requires_public_count = False
        law = PoissonLaw(0.1)

        @property
        def expected_batch_size(self):
            return 0.1 * self.num_records

        def draw(self, query, coins, num_rows):
            return np.arange(num_rows)

    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(given(Every, noise_multiplier=1.0, queries=2))
