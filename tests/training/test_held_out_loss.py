"""The bought loss of held-out records: its sums, its intervals, what the ledger charges, and runs that were killed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

import tacita
from tacita.ledger.verdict import verdict
from tacita.random import Randomness
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.tables import check_run
from tacita.training import held_out_loss
from tacita.training.held_out_loss import BOUND, SQUARE, HeldOutLoss, _means, _numbers

N = 2000


def data(generator=0):
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(generator))
    return x, (x @ torch.tensor([1.0, -1.0, 2.0]) > 0).long()


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def wrong(model, batch):
    return (model(batch[0]).argmax(1) != batch[1]).float()


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))


def run(score=None, *, epsilon=1e4, seed=3, **changes):
    given = {"epochs": 3.0, "num_records": N, "max_grad_norm": 1.0, "progress": False}
    score = score or HeldOutLoss(upper=1.0, loss_fn=wrong, share=0.2, name="share of wrong answers")
    return tacita.fit(
        changes.pop("model", None) or model(), losses, data(), target_epsilon=epsilon, target_delta=1e-5, score=score,
        randomness=Randomness.insecure(seed), **{**given, **changes},
    )  # fmt: skip


def exact(trained, seed=3, loss=wrong, upper=1.0):
    x, y = data()
    rows = tacita.split((x, y), [0.8, 0.2], randomness=Randomness.insecure(seed), name="holdout")[1].rows
    rows = np.asarray(rows)
    with torch.no_grad():
        return [loss(one.eval(), (x[rows], y[rows])).clamp(0, upper).mean().item() for one in (model(), trained)]


@pytest.mark.parametrize("hardened", [False, True])
def test_the_score_is_that_of_the_held_out_records_before_and_after(hardened):
    done = run(hardened=hardened)
    assert done.model.training
    score, (before, after) = done.statement.to_json()["holdout_score"], exact(done.model)
    assert score["value"] == pytest.approx(after, abs=3e-3)
    assert score["before"]["value"] == pytest.approx(before, abs=3e-3)
    assert score["lowered_by"]["value"] == pytest.approx(before - after, abs=3e-3)
    assert score["interval"][0] < after < score["interval"][1]


def test_the_trained_loss_is_the_default_and_is_bounded():
    done = run(HeldOutLoss(upper=0.5, share=0.2), seed=4)
    score, (before, after) = done.statement.to_json()["holdout_score"], exact(done.model, 4, losses, 0.5)
    assert (score["before"]["value"], score["value"]) == pytest.approx((before, after), abs=3e-3)


def test_training_and_score_see_other_records_and_may_each_spend_the_target():
    done = run(epsilon=1.0)
    ledger = done.ledger
    train, score = ledger.sessions
    assert [(one.purpose, getattr(one.part, "index", None), one.closed) for one in (train, score)] == [
        ("train", 0, True),
        ("score", 1, True),
    ]
    assert train.part.split == score.part.split  # pyright: ignore
    assert 0.99 < ledger.epsilon(1e-5) <= 1.0
    noise = done.statement.to_json()["purchases"][0]["noise_std"]
    alone = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one")
    alone.register(score.event, planned_queries=1)
    assert 0.99 < alone.epsilon(1e-5) <= 1.0
    (settings,) = [one for one in (score.event.noise_settings,) if one is not None]
    assert (settings.noise_std, settings.max_contribution) == ((noise,), (BOUND,))
    assert done.statement.to_json()["purchases"][0]["session"] == score.id


def test_a_record_adds_at_most_the_bound_whatever_its_losses_are():
    odd = torch.tensor([math.nan, math.inf, -math.inf, -3.0, 0.0, 0.5, 1.0, 2.0, 9.0])
    first, second = (one.flatten() for one in torch.meshgrid(odd, odd, indexing="ij"))
    weights = torch.zeros(5, requires_grad=True)
    pair = SimpleNamespace(before=0, after=1, weights=weights)
    found = _numbers(lambda one, batch: batch[one], 2.0, pair, (first, second))  # pyright: ignore
    rows = torch.stack([torch.autograd.grad(one, weights, retain_graph=True)[0] for one in found])
    assert rows.norm(dim=1).max() == pytest.approx(BOUND, abs=1e-6)
    assert (rows[first.isnan()] == 0).all()
    assert (rows[second.isnan() & ~first.isnan()][:, 1] == 1.0).all()
    assert (rows[:, 1] >= 0).all()
    assert (rows[:, 1] + rows[:, 2]).max() <= 1


LAWS = {
    "share": lambda draws, size: (draws.random(size) < 0.3).astype(float),
    "rare": lambda draws, size: (draws.random(size) < 0.01).astype(float),
    "skewed": lambda draws, size: np.minimum(0.1 * draws.lognormal(0, 1, size), 1.0),
}
RUNS = 2000


def covered(law, rows, noise_std, seed=0):
    """Return in how many runs the intervals of the means after, before and of their difference hold the truth."""
    draws = np.random.default_rng(seed)
    after, before = (LAWS[law](draws, 10**6).mean() for _ in range(2))
    hits = np.zeros(3)
    for _ in range(RUNS):
        a, b = (LAWS[law](draws, rows) for _ in range(2))
        v = np.array([np.ones(rows), a, b - a, SQUARE * a**2, SQUARE * (b - a) ** 2])
        number, *sums = v.sum(1) + draws.normal(0, noise_std, 5)
        found = _means(number, sums, noise_std)
        hits += [
            low <= true <= high for (_, low, high), true in zip(found, (after, before, before - after), strict=True)
        ]
    return hits


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("rows", "noise_std"), [(200, 1.0), (200, 8.0), (3000, 2.0)])
def test_intervals_cover_sampling_and_noise(law, rows, noise_std):
    fewest = stats.binom.ppf(1e-6, RUNS, held_out_loss.LEVEL)
    assert (covered(law, rows, noise_std) >= fewest).all()


def test_the_check_of_coverage_can_fail(monkeypatch):
    monkeypatch.setattr(held_out_loss, "Z", 1.6)
    monkeypatch.setattr(held_out_loss, "SKEW", 0.0)
    assert (covered("share", 3000, 2.0) < stats.binom.ppf(1e-6, RUNS, held_out_loss.LEVEL)).any()


def test_where_nothing_was_learned_the_statement_begins_with_it(tmp_path):
    done = run(optimizer=lambda params: torch.optim.SGD(params, lr=0.0), folder=tmp_path / "a")
    assert not check_run(tmp_path / "a").faults
    fields = done.statement.to_json()
    assert done.statement.text.startswith("NOTHING LEARNED that held-out records show")
    assert "nothing was learned" in verdict({**fields, "secure_randomness": True}).warnings
    assert "headline" not in run().statement.to_json()


def test_a_gain_shows_from_the_size_on_that_was_said_before():
    score = HeldOutLoss(upper=5.0, loss_fn=losses, share=0.2)
    least, held_out = score.smallest_gain(N, 2.0, 1e-5), 0.2 * N
    (bought,) = run(score, epsilon=2.0).statement.to_json()["purchases"]

    def low(lowered_by):
        mean = lowered_by / score.upper
        sums = [held_out * one for one in (0.3, mean, SQUARE * 0.3**2, SQUARE * mean**2)]
        return _means(held_out, sums, bought["noise_std"])[2][1]

    assert low(0.999 * least) < 0.0 < low(1.001 * least)


def test_too_few_records_for_the_noise_give_no_number():
    fields = run(epsilon=0.05).statement.to_json()
    assert fields["holdout_score"]["value"] is None
    assert fields["headline"].startswith("NOTHING LEARNED")


def test_that_nobody_was_held_out_does_not_show():
    """The query is made, paid for and stated as any other: what it releases is noise."""
    coins, score = Randomness.insecure(3), HeldOutLoss(upper=1.0, loss_fn=wrong, share=0.001)
    few = tuple(part[:3] for part in data())
    assert len(tacita.split(few, [0.999, 0.001], randomness=coins, name="holdout")[1].rows) == 0
    given = {"epochs": 1.0, "num_records": N, "max_grad_norm": 1.0, "progress": False, "score": score}
    done = tacita.fit(model(), losses, few, target_epsilon=1.0, target_delta=1e-5, randomness=coins, **given)
    assert [one.queries_made for one in done.ledger.sessions if one.purpose == "score"] == [1]
    assert done.statement.to_json().keys() == run(epsilon=0.05).statement.to_json().keys()


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("where", ["before the query", "after the query", "after the seal"])
def test_a_run_killed_around_its_score_ends_with_the_same_statement(where, tmp_path, monkeypatch):
    whole = run(folder=tmp_path / "whole")
    real, done = held_out_loss.HeldOutScore.fields, []

    def fields(self):
        if where == "after the query":
            done.append(real(self))
        raise KilledError

    def killed(*_, **__):
        raise KilledError

    with monkeypatch.context() as patch:
        if where == "after the seal":
            patch.setattr(RunLifecycle, "finish", killed)
        else:
            patch.setattr(held_out_loss.HeldOutScore, "fields", fields)
        with pytest.raises(KilledError):
            run(folder=tmp_path / "a")
    again = run(folder=tmp_path / "a")
    for name in ("holdout_score", "purchases", "headline", "epsilon"):
        assert again.statement.to_json().get(name) == whole.statement.to_json().get(name)


def test_a_score_is_never_bought_twice_from_other_values(tmp_path, monkeypatch):
    real = held_out_loss.HeldOutScore.fields

    def fields(self):
        real(self)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(held_out_loss.HeldOutScore, "fields", fields)
        with pytest.raises(KilledError):
            run(folder=tmp_path / "a")
    other = model()
    torch.nn.init.zeros_(
        next(other.parameters())
    )  # the training goes on from its checkpoint; the model before it is another
    found = run(folder=tmp_path / "a", model=other)
    assert "it is not bought twice" in found.statement.to_json()["holdout_score"]["how"]
    assert [one.queries_made for one in found.ledger.sessions][1] == 1


def test_a_user_is_in_one_part_with_all_rows():
    users = tacita.UserRecords((torch.arange(60.0),), [row % 20 for row in range(60)], rows_per_query=3)
    parts = HeldOutLoss(upper=1.0, share=0.3).split(users, Randomness.insecure(0))
    seen = [{float(one) for one in users.fetch(np.asarray(part.rows), seed=0)[0].flatten()} for part in parts]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(map(float, range(60)))
    assert all({row % 20 for row in map(int, part)} == {int(r) % 20 for r in part} for part in seen)


def test_users_are_scored_by_the_mean_of_their_rows():
    x, y = data()
    users = [row // 4 for row in range(N)]
    done = tacita.fit(
        model(), losses, (x, y), target_epsilon=1e4, target_delta=1e-5, epochs=3, num_records=N // 4, max_grad_norm=1.0,
        units=users, rows_per_query=4, score=HeldOutLoss(upper=1.0, loss_fn=wrong, share=0.4), progress=False,
        randomness=Randomness.insecure(3),
    )  # fmt: skip
    records = tacita.UserRecords((x, y), users, rows_per_query=4)
    rows = HeldOutLoss(upper=1.0, share=0.4).split(records, Randomness.insecure(3))[1].rows
    of_users = [one.flatten(0, 1) for one in records.fetch(np.asarray(rows), seed=0)]  # all rows of each
    with torch.no_grad():
        after = wrong(done.model.eval(), of_users).mean().item()
    assert done.statement.to_json()["holdout_score"]["value"] == pytest.approx(after, abs=5e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"neighboring_relation": "replace_one"}, "score must go with add_or_remove_one"),
        (
            {"score": HeldOutLoss(upper=1.0, loss_fn=lambda model, batch: losses(model, batch).mean())},
            "not one floating-point loss a sample",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_spent(changes, words):
    ledger = tacita.Ledger(
        neighboring_relation=changes.get("neighboring_relation", "add_or_remove_one"), privacy_unit="u"
    )
    with pytest.raises((ValueError, tacita.TacitaError), match=words):
        run(**changes, ledger=ledger)
    assert not any(one.queries_made for one in ledger.sessions)


@pytest.mark.parametrize(
    "changes", [{"upper": 0.0}, {"upper": math.inf}, {"upper": 1.0, "share": 0.0}, {"upper": 1, "share": 1}]
)
def test_a_wrong_setting_is_refused(changes):
    with pytest.raises(ValueError, match="must be"):
        HeldOutLoss(**changes)


def test_a_part_of_a_split_is_not_split_again():
    part, _ = tacita.split(data(), [0.5, 0.5])
    with pytest.raises(ValueError, match="without the part of a split"):
        HeldOutLoss(upper=1.0).split(part, Randomness.insecure(0))
