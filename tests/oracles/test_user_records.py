"""A user is a record: a few of its rows by a coin of its own, their mean clipped once, nobody else's rows moved."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import tacita
from tacita.estimators import ClippedSum
from tacita.gradients import NetworkSource
from tacita.oracles import trainable
from tests.distributed.ranks import results, run_ranks
from tests.training.test_fit import SETTINGS, interrupted, problem

C = 0.5
SIZES = {"ann": 1, "bob": 3, "eve": 4, "joe": 9}
UNITS = [name for name, size in SIZES.items() for _ in range(size)]


def rows():
    x = torch.randn(len(UNITS), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x.sum(1)


def loss_fn(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).square()


def network():
    torch.manual_seed(0)
    return nn.Linear(3, 1).double()


def bounded(users, seed=1, which=None, **more):
    source = NetworkSource(network(), tacita.mean_over_views(loss_fn), users, **more)
    which = np.arange(len(users)) if which is None else np.array(which)
    engine = source.engine(dict(source.model.named_parameters()), which, query=0, seed=seed)
    values, _ = ClippedSum(tacita.FlatClipper(max_grad_norm=C))(engine, None)
    return torch.cat([value.flatten() for value in values["all"].values()])


def drawn(units, m, seed=1):
    """The rows that a query reads of each user, by the user's name."""
    users = tacita.UserRecords((torch.arange(len(units)),), units, m)
    (found,) = users.fetch(np.arange(len(users)), seed)
    return {name.removeprefix("text "): one.tolist() for name, one in zip(users.names, found, strict=True)}


@pytest.mark.parametrize("method", ["program", "loop"])
@pytest.mark.parametrize("m", [1, 4, 9])
def test_a_user_adds_the_clipped_mean_gradient_of_its_rows(m, method):
    x, y = rows()
    model, expected = network(), 0.0
    for chosen in drawn(UNITS, m).values():
        model.zero_grad()
        loss_fn(model, (x[chosen], y[chosen])).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        expected = expected + gradient * min(1.0, C / float(gradient.norm()))
    found = bounded(tacita.UserRecords(rows(), UNITS, m), method=method)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    in_pieces = bounded(tacita.UserRecords(rows(), UNITS, m), method=method, max_physical_batch_size=1)
    torch.testing.assert_close(in_pieces, found, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("m", [1, 2, 4, 6, 20])
@pytest.mark.parametrize("seed", range(5))
def test_each_row_of_a_user_is_read_as_often_as_any_other_but_for_one(m, seed):
    for name, chosen in drawn(UNITS, m, seed).items():
        own = [row for row, unit in enumerate(UNITS) if unit == name]
        times = [chosen.count(row) for row in own]
        assert len(chosen) == m == sum(times)
        assert max(times) - min(times) <= 1


def test_rows_are_drawn_uniformly():
    """Exact law, 4,000 queries, false alarm 1e-6 a user."""
    found = [drawn(UNITS, 2, seed) for seed in range(4000)]
    for name, size in (("bob", 3), ("eve", 4), ("joe", 9)):
        first = UNITS.index(name)
        times = np.zeros(size)
        pairs = {}
        for one in found:
            np.add.at(times, np.array(one[name]) - first, 1)
            pairs[frozenset(one[name])] = pairs.get(frozenset(one[name]), 0) + 1
        assert len(pairs) == size * (size - 1) // 2
        assert scipy.stats.chisquare(list(pairs.values())).pvalue > 1e-6


@pytest.mark.parametrize("m", [1, 2, 6])
def test_a_user_that_comes_or_goes_changes_nobody_elses_rows(m):
    """Their numbers change, and so do their places: named rows stand for themselves."""
    units = ["abe"] * 5 + UNITS  # the first of all by name, so that all others move
    more, fewer = drawn(units, m), drawn(UNITS, m)
    assert {name: [row - 5 for row in found] for name, found in more.items() if name != "abe"} == fewer


@pytest.mark.parametrize("hostile", [0.0, 1e30, torch.inf, torch.nan])
@pytest.mark.parametrize("m", [1, 3])
def test_a_user_moves_the_sum_by_at_most_the_threshold(m, hostile):
    x, y = (torch.cat([torch.full_like(one[:7], hostile), one]) for one in rows())
    more = bounded(tacita.UserRecords((x, y), ["abe"] * 7 + UNITS, m))
    assert float((more - bounded(tacita.UserRecords(rows(), UNITS, m))).norm()) <= C * (1 + 1e-12)


def test_another_query_draws_other_rows_and_the_same_query_the_same():
    assert drawn(UNITS, 2, 1) == drawn(UNITS, 2, 1) != drawn(UNITS, 2, 2)


def test_a_row_without_a_user_takes_no_part():
    users = tacita.UserRecords((torch.arange(3),), ["ann", None, float("nan")], 2)
    assert len(users) == 1
    assert users.fetch(np.array([0]), 0)[0].tolist() == [[0, 0]]


def test_a_dataset_is_read_by_row_and_workers_change_nothing():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(UNITS)

        def __getitem__(self, row):
            x, y = rows()
            return {"x": x[row] + 0.1 * torch.rand(3, dtype=torch.float64), "y": y[row]}

    def asked(workers):
        oracle = tacita.ClippedGradientOracle(
            network(),
            tacita.mean_over_views(lambda model, batch: loss_fn(model, (batch["x"], batch["y"]))),
            tacita.UserRecords(Rows(), UNITS, 2),
            ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one user"),
            sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=len(SIZES)),
            clipper=tacita.FlatClipper(max_grad_norm=C),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=3,
            num_workers=workers,
            randomness=tacita.Randomness.insecure(0),
        )
        return torch.cat([oracle.query(trainable(oracle.source.model)).gradient["weight"] for _ in range(3)])

    assert torch.equal(asked(0), asked(2))


def test_ranks_draw_what_one_process_draws():
    def asked(rank, group):
        oracle = tacita.ClippedGradientOracle(
            network(),
            tacita.mean_over_views(loss_fn),
            tacita.UserRecords(rows(), UNITS, 2),
            ledger=None if rank else tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one user"),
            sampler=tacita.FullBatchSampler(num_records=len(SIZES)),
            clipper=tacita.FlatClipper(max_grad_norm=C),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=3,
            process_group=group,
            randomness=tacita.Randomness.insecure(0),
        )
        return torch.cat([oracle.query(trainable(oracle.source.model)).gradient["weight"] for _ in range(3)])

    alone = asked(0, None)
    for found in results(run_ranks(2, asked)):
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-12)


def test_a_split_is_by_user():
    users = tacita.UserRecords(rows(), UNITS, 2)
    parts = tacita.split(users, [0.5, 0.5])
    assert sorted(np.concatenate([part.rows for part in parts])) == [0, 1, 2, 3]


OF_USERS = {**SETTINGS, "units": [row % 50 for row in range(200)], "num_records": 50, "expected_batch_size": 20}


def test_fit_trains_on_users_and_says_so(tmp_path):
    run = tacita.fit(*problem(), **{**OF_USERS, "privacy_unit": None})
    words = " ".join(str(run.statement).split())
    assert "one user: all rows with the same unit" in words
    assert "of a drawn user's rows each query draws 4 anew, and clips once" in words
    event = run.ledger.sessions[0].event
    assert (event.max_contribution, event.sampling.sample_rate) == ((1.0,), 20 / 50)


def test_a_run_on_users_resumes_bit_for_bit_and_with_the_same_users_alone(monkeypatch, tmp_path):
    whole = tacita.fit(*problem(), **OF_USERS, folder=tmp_path / "whole", randomness=tacita.Randomness.insecure(0))
    interrupted(monkeypatch, tmp_path / "run", 7, **OF_USERS)
    with pytest.raises(tacita.TacitaError):
        tacita.fit(*problem(), **{**OF_USERS, "units": [row * 7 % 50 for row in range(200)]}, folder=tmp_path / "run")
    with pytest.raises(tacita.TacitaError):
        tacita.fit(*problem(), **OF_USERS, rows_per_query=3, folder=tmp_path / "run")
    run = tacita.fit(*problem(), **OF_USERS, folder=tmp_path / "run")
    assert torch.equal(run.model.weight, whole.model.weight)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"views": 2, "augment": lambda one: one}, "units must go without views, augment and Records"),
        ({"units": None, "rows_per_query": 2}, "rows_per_query needs units"),
        ({"units": [1, 2]}, "one for every row of the data set"),
        ({"rows_per_query": 0}, "rows_per_query must be"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(changes, says):
    with pytest.raises(ValueError, match=says):
        tacita.fit(*problem(), **{**OF_USERS, **changes})
