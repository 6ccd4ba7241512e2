"""One training with canaries: what a canary adds, exactly; all relations; scores that know the releases alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.ledger import Ledger
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import ClippedGradientOracle, Records
from tacita.random import Randomness
from tacita.sampling import FullBatchSampler, PoissonSampler, UnitPoissonSampler
from tacita.testing.one_run.attacks import FinalLoss, GradientMatch, OwnParameter
from tacita.testing.one_run.bound import strict_delta
from tacita.testing.one_run.canaries import EMBEDDING, fair_coins, insert, plant, planted_collate
from tacita.testing.one_run.training import audit_one_run, train_with_canaries
from tests.around_mechanism import Scaled

FALSE_ALARM = 1e-6
ROWS, C = 60, 0.5
RELATIONS = ("add_or_remove_one", "zero_out_one", "replace_one")


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def table(rows=ROWS):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 3, generator=generator), torch.randint(0, 2, (rows,), generator=generator)


def oracle_of(model, loss, records, *, relation="add_or_remove_one", noise=1.0, queries=4, rate=None, **more):
    count = len(records.rows)
    sampler = (
        FullBatchSampler(num_records=count) if rate is None else PoissonSampler(sample_rate=rate, num_records=count)
    )
    settings = {"clipper": FlatClipper(max_grad_norm=C), "sampler": sampler, **more}
    return ClippedGradientOracle(
        model,
        loss,
        records,
        ledger=Ledger(neighboring_relation=relation, privacy_unit="one row"),
        mechanism=GaussianMechanism(noise_multiplier=noise),
        planned_queries=queries,
        randomness=Randomness.insecure(1),
        **settings,
    )


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def planted(canaries=200, relation="add_or_remove_one", dataset=None, **settings):
    """A trial with planted canaries, and its oracle."""
    data = table() if dataset is None else dataset
    trial = plant(nn.Linear(3, 2), loss_fn, data, canaries, relation=relation, randomness=Randomness.insecure(0))
    return trial, oracle_of(trial.model, trial.loss_fn, trial.records, relation=relation, **settings)


def audit(**changes):
    """An audit of full batches, whose claim is tight."""
    how = {"noise": 1.0, "queries": 1, "relation": "add_or_remove_one", "rate": None}
    how |= {name: changes.pop(name) for name in list(changes) if name in how}
    settings = {"canaries": 1000, "delta": 1e-5, "randomness": Randomness.insecure(2), **changes}
    canaries = settings.pop("canaries")
    return audit_one_run(
        nn.Linear(3, 2),
        loss_fn,
        table(),
        canaries,
        make_oracle=lambda model, loss, records: oracle_of(model, loss, records, **how),
        optimizer=sgd,
        neighboring_relation=how["relation"],
        **settings,
    )


# -- what a canary adds


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("method", ["loop", "program"])
def test_a_planted_canary_moves_its_own_parameter_by_the_threshold(relation, method):
    trial, oracle = planted(20, relation, noise=0.0, method=method)
    released = oracle.query(dict(trial.model.named_parameters())).released["all"]
    left_out = -C if relation == "replace_one" else 0.0
    expected = torch.where(torch.from_numpy(trial.included), C, left_out)
    torch.testing.assert_close(released[EMBEDDING][:-1, 0], expected, rtol=1e-5, atol=0)
    assert released[EMBEDDING][-1] == 0


@pytest.mark.parametrize("clipper", [AutomaticClipper(max_grad_norm=C, gamma=0.01), FlatClipper(max_grad_norm=C)])
def test_the_model_trains_as_it_would_without(clipper):
    trial, oracle = planted(20, noise=0.0, clipper=clipper)
    inner = {name.removeprefix("model."): p for name, p in trial.model.named_parameters() if name != EMBEDDING}
    alone = nn.Linear(3, 2)
    alone.load_state_dict({name: p.detach() for name, p in inner.items()})
    without = oracle_of(alone, loss_fn, Records(dataset=table(), rows=np.arange(ROWS)), noise=0.0, clipper=clipper)
    expected = without.query(dict(alone.named_parameters())).released["all"]
    found = oracle.query(dict(trial.model.named_parameters())).released["all"]
    for name, value in expected.items():
        torch.testing.assert_close(found[f"model.{name}"], value)


def test_a_threshold_a_layer_gives_canaries_their_own():
    trial, oracle = planted(20, noise=0.0, clipper=PerLayerClipper(max_grad_norm={"model": 1.0, "canaries": C}))
    released = oracle.query(dict(trial.model.named_parameters())).released
    block = next(values for values in released.values() if EMBEDDING in values)
    torch.testing.assert_close(
        block[EMBEDDING][:-1, 0], C * torch.from_numpy(trial.included).float(), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("wrong", [1.0, 0.85, 1.15])
def test_scores_have_the_law_that_the_claim_says(wrong):
    """Full batches, T queries: the scores of canaries are normal, T C^2 / s^2 apart, of that variance."""
    canaries, queries = 4000, 4
    trial, oracle = planted(canaries, queries=queries, noise=2.0)
    attack = OwnParameter(oracle)
    oracle.gate._mechanism = Scaled(oracle.gate._mechanism, wrong)
    train_with_canaries(oracle, sgd(trial.model.parameters()), attack)
    apart = queries / 2.0**2
    scores = attack.scores({})
    centred = (scores - apart * (trial.included - 0.5)) / math.sqrt(apart)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=canaries)
    assert (low < np.square(centred).sum() < high) == (wrong == 1.0)  # the two others: that the check can fail
    distance = scores[trial.included].mean() - scores[~trial.included].mean()
    allowed = stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(4 * apart / canaries) * 1.05 * wrong
    assert abs(distance - apart) < allowed


def test_coins_are_fair_and_of_their_own_stream():
    heads = sum(int(fair_coins(1000, Randomness.insecure(seed)).sum()) for seed in range(40))
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 40_000, 0.5)
    assert low <= heads <= high
    first, second = (fair_coins(1000, Randomness.insecure(seed)) for seed in (0, 1))
    assert 350 < int((first == second).sum()) < 650


# -- records of every form


def test_a_data_set_and_arrays_give_the_same():
    _, arrays = planted(20, noise=0.0, dataset=table())
    trial, items = planted(20, noise=0.0, dataset=TensorDataset(*table()))
    params = dict(trial.model.named_parameters())
    torch.testing.assert_close(arrays.query(params).released["all"], items.query(params).released["all"])


def test_a_collate_fn_of_ones_own():
    def collate(items):
        x, y = default_collate(items)
        return 2 * x, y

    _, doubled = planted(20, noise=0.0, dataset=TensorDataset(2 * table()[0], table()[1]))
    trial, own = planted(20, noise=0.0, dataset=TensorDataset(*table()), collate_fn=planted_collate(collate))
    params = dict(trial.model.named_parameters())
    torch.testing.assert_close(doubled.query(params).released["all"], own.query(params).released["all"])


def test_a_canary_is_a_unit_with_all_the_rows_it_may_have():
    records = Records(dataset=table(), rows=np.arange(0, ROWS, 2), max_rows_per_unit=3)
    trial = plant(
        nn.Linear(3, 2), loss_fn, records, 50, relation="add_or_remove_one", randomness=Randomness.insecure(0)
    )
    assert len(trial.records.rows) == 30 + 3 * trial.included.sum()
    sampler = UnitPoissonSampler(sample_rate=1.0, num_records=100, max_rows_per_unit=3)
    oracle = oracle_of(trial.model, trial.loss_fn, trial.records, noise=0.0, sampler=sampler)
    found = oracle.query(dict(trial.model.named_parameters())).released["all"][EMBEDDING][:-1, 0]
    torch.testing.assert_close(found, 3 * C * torch.from_numpy(trial.included).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("relation", RELATIONS)
def test_rows_are_in_by_their_coins_alone(relation):
    rows, others = (torch.full((50, 3), 7.0), torch.zeros(50, dtype=torch.int64)), (torch.zeros(50, 3), table(50)[1])
    substitutes = None if relation == "add_or_remove_one" else others
    trial = insert(
        nn.Linear(3, 2),
        loss_fn,
        table(),
        rows,
        relation=relation,
        randomness=Randomness.insecure(0),
        substitutes=substitutes,
    )
    x = trial.records.dataset[0][torch.from_numpy(trial.records.rows)]
    assert (x == 7.0).all(1).sum() == trial.included.sum()
    assert (x == 0.0).all(1).sum() == (0 if substitutes is None else (~trial.included).sum())
    torch.testing.assert_close(x[:ROWS], table()[0])
    assert set(trial.records.rows[ROWS:] % 50) == set((np.flatnonzero(trial.included) + ROWS) % 50) or substitutes


@pytest.mark.parametrize("attack", [GradientMatch, FinalLoss])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_rows_that_share_nothing_are_all_found_without_noise(attack, relation):
    """One-hot rows: whatever a row's gradient moves, no other row does."""
    count = 60

    def linear(model, batch):
        return -model(batch[0]).squeeze(1)

    rows, substitutes = (torch.eye(2 * count)[:count],), (torch.eye(2 * count)[count:],)
    given = substitutes if relation == "replace_one" else None
    found = audit_one_run(
        nn.Linear(2 * count, 1, bias=False),
        linear,
        (torch.zeros(10, 2 * count),),
        rows,
        make_oracle=lambda model, loss, records: oracle_of(model, loss, records, relation=relation, noise=0.0),
        optimizer=sgd,
        delta=1e-5,
        neighboring_relation=relation,
        substitutes=given,
        black_box=attack is FinalLoss,
        randomness=Randomness.insecure(5),
    )
    assert found.membership.auc.value == 1.0
    assert found.adversary == attack.words


# -- the scores know the releases, and nothing else


def test_scores_are_a_function_of_the_releases():
    """Other coins, the same releases: the same scores."""
    scores = []
    one, oracle = planted(100, queries=3)
    params = {name: p.detach() for name, p in one.model.named_parameters()}
    releases = [oracle.query(params) for _ in range(3)]
    for seed in (0, 9):
        trial = plant(
            nn.Linear(3, 2), loss_fn, table(), 100, relation="add_or_remove_one", randomness=Randomness.insecure(seed)
        )
        attack = OwnParameter(oracle_of(trial.model, trial.loss_fn, trial.records))
        for release in releases:
            attack.see(params, release)
        scores.append(attack.scores(params))
    np.testing.assert_array_equal(*scores)


def test_noise_without_end_hides_every_coin():
    found = audit(noise=1e6, canaries=4000)
    low, high = found.membership.auc.low, found.membership.auc.high
    assert low <= 0.5 <= high
    assert found.bound.epsilon < 0.3


# -- verdicts


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_true_claim_stands_and_much_of_it_is_found(relation):
    found = audit(relation=relation, noise=1.0)
    assert found.verdict == "consistent"
    assert 0.25 * found.epsilon_claimed < found.bound.epsilon < found.epsilon_claimed
    assert found.epsilon_claimed == found.ledger_epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_noise_is_no_claim_and_a_large_bound(relation):
    found = audit(relation=relation, noise=0.0, rate=0.5, queries=20)
    assert found.epsilon_claimed == math.inf
    assert found.membership.auc.value > 0.999
    assert found.bound.epsilon > 4.5
    assert found.to_json()["epsilon_claimed"] is None


def test_noise_ten_times_too_small_refutes_the_claim():
    def make_oracle(model, loss, records):
        oracle = oracle_of(model, loss, records, noise=4.0, queries=4)
        oracle.gate._mechanism = Scaled(oracle.gate._mechanism, 0.1)
        return oracle

    found = audit_one_run(
        nn.Linear(3, 2), loss_fn, table(), 1000, make_oracle=make_oracle, optimizer=sgd, delta=1e-5,
        randomness=Randomness.insecure(3),
    )  # fmt: skip
    assert found.epsilon_claimed < 3 < found.bound.epsilon
    assert found.verdict == "refuted"
    assert found.text.startswith("AUDIT IN ONE RUN: REFUTED")
    assert not found.powerless


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_bound_a_little_above_a_true_claim_refutes_nothing(relation):
    """By chance in one audit of 20: the verdict has a confidence of its own."""
    found = audit(relation=relation, noise=1.0)
    unlucky = replace(found, epsilon_claimed=0.9 * found.bound.epsilon, strict_claim=1.1 * found.strict.epsilon)
    assert unlucky.verdict == "consistent"
    assert replace(found, strict_claim=0.9 * found.strict.epsilon).verdict == "refuted"
    assert found.strict.delta == strict_delta(1000, 1e-5)
    assert found.strict.confidence == 1 - FALSE_ALARM
    assert found.strict_claim > found.epsilon_claimed
    assert found.strict.epsilon < found.bound.epsilon


def test_a_claim_that_so_few_canaries_cannot_refute_is_said_to_be_so():
    found = audit(canaries=50, noise=0.3)
    assert found.powerless
    assert "use more canaries" in found.text


def test_the_json_has_what_every_audit_has():
    found = audit(canaries=100).to_json()
    assert {
        "verdict", "epsilon_claimed", "delta", "epsilon_lower_bound", "confidence", "runs", "adversary",
    } <= found.keys()  # fmt: skip
    assert found["runs"] == 1
    assert "not a model that was exported" in found["holds_for"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"canaries": 49}, "canaries must be >= 50, got 49"),
        ({"delta": 0.0}, "delta"),
        ({"confidence": 1.5}, "confidence"),
        ({"guesses": 2000}, "guesses must be <= canaries"),
        ({"black_box": True}, "belong to canaries that are rows"),
        ({"substitutes": table()}, "belong to canaries that are rows"),
        ({"canaries": table(), "relation": "replace_one"}, "substitutes must be given"),
        ({"canaries": table(), "substitutes": table()}, "substitutes must be given"),
        ({"canaries": table(), "relation": "replace_one", "substitutes": table(5)}, "as many as the canaries"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_spent(changes, says):
    with pytest.raises(ValueError, match=says):
        audit(**changes)


def test_an_oracle_of_something_else_is_refused():
    def other(model, loss, records):
        return oracle_of(nn.Linear(3, 2), loss_fn, Records(dataset=table(), rows=np.arange(ROWS)))

    with pytest.raises(ValueError, match="make_oracle must build"):
        audit_one_run(nn.Linear(3, 2), loss_fn, table(), 100, make_oracle=other, optimizer=sgd, delta=1e-5)
    with pytest.raises(ValueError, match="neighboring_relation must be the ledger's"):
        audit_one_run(
            nn.Linear(3, 2), loss_fn, table(), 100, make_oracle=oracle_of, optimizer=sgd, delta=1e-5,
            neighboring_relation="zero_out_one",
        )  # fmt: skip
