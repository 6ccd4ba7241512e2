"""The random iterate: chosen before the run, uniform, the same after a resume."""

import numpy as np
import pytest
import scipy.stats
import torch

import tacita
from tacita.errors import ResumeError
from tacita.methods import RandomIterate, SuffixAverage
from tacita.oracles import trainable
from tacita.runs import checkpoint
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.training.loop import Checkpoints, train

FALSE_ALARM = 1e-6


def stream(seed):
    return tacita.Randomness.insecure(seed).key.stream("test")


def walked(steps, total=None, seed=0):
    """After ``steps`` steps of a walk that is at t after step t."""
    w = {"w": torch.zeros(2)}
    chosen = RandomIterate(w, num_steps=total or steps, stream=stream(seed))
    for t in range(1, steps + 1):
        chosen.update({"w": torch.full((2,), float(t))})
    return chosen, w


@pytest.mark.parametrize("seed", range(8))
def test_it_keeps_the_iterate_of_its_index(seed):
    chosen, w = walked(10, seed=seed)
    assert 0 <= chosen.index < 10
    chosen.copy_to(w)
    assert w["w"].tolist() == [chosen.index] * 2


def test_one_step_keeps_the_start():
    chosen, w = walked(1)
    w["w"].fill_(7.0)
    chosen.copy_to(w)
    assert w["w"].tolist() == [0.0, 0.0]  # x_0 as it was when the run began


def uniformity(indices, steps):
    return scipy.stats.chisquare(np.bincount(indices, minlength=steps)).pvalue


def test_the_index_is_uniform():
    steps, runs = 20, 20_000
    w = {"w": torch.zeros(1)}
    indices = np.array([RandomIterate(w, num_steps=steps, stream=stream(seed)).index for seed in range(runs)])
    assert uniformity(indices, steps) > FALSE_ALARM
    late = np.where(np.arange(runs) % 20 == 0, steps - 1, indices)  # 5 % of the runs take the last one
    assert uniformity(late, steps) < FALSE_ALARM


def test_by_default_it_is_the_system_s_draw():
    w = {"w": torch.zeros(1)}
    assert len({RandomIterate(w, num_steps=10**9).index for _ in range(20)}) == 20


def test_the_iterates_do_not_change_the_index():
    """Two runs on other data, and so other iterates, keep the one of the same number."""
    for seed in range(5):
        runs = [RandomIterate({"w": torch.zeros(1)}, num_steps=50, stream=stream(seed)) for _ in range(2)]
        before = [run.index for run in runs]
        for t in range(50):
            runs[0].update({"w": torch.tensor([float(t)])})
            runs[1].update({"w": torch.tensor([torch.nan])})
        assert before[0] == before[1] == runs[0].index == runs[1].index


def test_an_iterate_not_reached_is_no_other_one():
    chosen, w = walked(0, total=10, seed=1)
    assert chosen.index > 0
    with pytest.raises(RuntimeError, match=f"the iterate after step {chosen.index} was chosen before the run"):
        chosen.copy_to(w)


def test_it_holds_one_copy_of_its_own():
    chosen, w = walked(10, seed=3)
    assert sum(t.numel() for t in chosen.state_dict()["kept"].values()) == 2
    chosen.copy_to(w)
    w["w"].fill_(-1.0)
    again = {"w": torch.zeros(2)}
    chosen.copy_to(again)
    assert again["w"].tolist() == [chosen.index] * 2


@pytest.mark.parametrize("broken_off", [0, 3, 10])
def test_a_resumed_run_keeps_the_iterate_that_was_chosen(broken_off):
    for seed in range(5):
        whole, w = walked(10, seed=seed)
        part, _ = walked(broken_off, total=10, seed=seed)
        resumed = RandomIterate({"w": torch.zeros(2)}, num_steps=10, stream=stream(seed + 100))
        resumed.load_state_dict(part.state_dict())
        for t in range(broken_off + 1, 11):
            resumed.update({"w": torch.full((2,), float(t))})
        other = {"w": torch.zeros(2)}
        resumed.copy_to(other)
        whole.copy_to(w)
        assert resumed.index == whole.index
        assert torch.equal(other["w"], w["w"])


def test_a_run_of_another_length_is_not_continued():
    chosen, _ = walked(3, total=10)
    with pytest.raises(ResumeError, match="num_steps must be"):
        RandomIterate({"w": torch.zeros(2)}, num_steps=11).load_state_dict(chosen.state_dict())


def test_numbers_left_behind_stand_for_the_iterate_before_them():
    """Numbers 3 to 5 are left behind: their iterate is the one after step 3."""
    kept = {}
    for seed in range(60):
        w = {"w": torch.zeros(1)}
        chosen = RandomIterate(w, num_steps=10, stream=stream(seed))
        for used in (1, 2, 3, 7, 8, 9, 10):
            chosen.update({"w": torch.tensor([float(used)])}, used)
        chosen.copy_to(w)
        kept[chosen.index] = w["w"].item()
    assert kept == {0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 3, 6: 3, 7: 7, 8: 8, 9: 9}


def test_numbers_used_do_not_fall():
    chosen, w = walked(3, total=10)
    chosen.update(w, 3)
    with pytest.raises(ValueError, match="used must be at least its last value, 3, got 2"):
        chosen.update(w, 2)


@pytest.mark.parametrize("bad", [0, -1, 2.5, True])
def test_wrong_num_steps(bad):
    with pytest.raises(ValueError, match="num_steps must be"):
        RandomIterate({"w": torch.zeros(1)}, num_steps=bad)


# -- in the training loop


def state(seed, average, optimizer=torch.optim.SGD, **continued):
    """A run of 12 queries on its own model, or another process of the same run."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    x = torch.randn(30, 3, dtype=torch.float64)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]).square(),
        (x, x.sum(1)),
        ledger=continued.pop("ledger", None)
        or tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=30),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=12,
        randomness=continued.pop("randomness", None) or tacita.Randomness.insecure(seed),
        **continued,
    )
    return TrainingState(model, optimizer(model.parameters(), lr=0.1), oracle, average(trainable(model)))


def chosen_by(seed):
    return lambda params: RandomIterate(params, num_steps=12, stream=stream(seed))


def path(seed):
    """All iterates of the run."""
    iterates, run = [], state(seed, lambda params: None)
    iterates.append(run.model.weight.detach().clone())
    train(run, on_step=lambda made: iterates.append(run.model.weight.detach().clone()))
    return iterates


@pytest.mark.parametrize("seed", range(4))
def test_the_training_ends_at_the_chosen_iterate(seed):
    run = state(0, chosen_by(seed))
    train(run)
    assert torch.equal(run.model.weight, path(0)[run.average.index])


class Killed(Exception):
    """The process is gone."""


@pytest.mark.parametrize("method", [chosen_by(11), lambda params: SuffixAverage(params, skip=2)])
def test_a_checkpoint_holds_what_the_method_needs(tmp_path, method):
    whole = state(0, method)
    train(whole)
    run = state(0, method)
    tree = {}

    def stop(made):
        if made == 5:
            checkpoint.save(tmp_path / "state", run.to_tree(), {})
            raise Killed

    with pytest.raises(Killed):
        train(run, on_step=stop)
    tree, _ = checkpoint.load(tmp_path / "state")
    again = state(0, chosen_by(4) if isinstance(run.average, RandomIterate) else method)
    again.from_tree(tree)
    train(again)
    assert torch.equal(again.model.weight, whole.model.weight)


def test_checkpoints_along_the_way_take_it(tmp_path):
    run = state(0, chosen_by(5))
    folder = RunFolder(tmp_path / "run")
    folder.private.mkdir(parents=True)
    train(run, checkpoints=Checkpoints(folder=folder, every=4, binding="x"))
    tree, _ = checkpoint.load(folder.checkpoint)
    assert tree["average"]["index"] == run.average.index


@pytest.mark.parametrize("killed", [8, 12])
@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_left_numbers_behind_has_its_iterate(tmp_path, seed, killed):
    """Resumed at 5 with another optimizer: what was made after that stays paid for, and is not redone."""
    run, made = state(0, chosen_by(seed)), {}

    def stop(position):
        made[position] = run.model.weight.detach().clone()
        if position == 5:
            checkpoint.save(tmp_path / "state", run.to_tree(), {})
        if position == killed:
            raise Killed

    made[0] = run.model.weight.detach().clone()
    with pytest.raises(Killed):
        train(run, on_step=stop)
    tree, _ = checkpoint.load(tmp_path / "state")
    oracle = run.oracle
    again = state(
        0,
        chosen_by(99),
        torch.optim.Adam,
        ledger=oracle.ledger,
        session=oracle.session,
        randomness=oracle.randomness,
    )
    again.from_tree(tree)
    here = {position: weight for position, weight in made.items() if position <= 5}
    train(again, on_step=lambda position: here.update({position: again.model.weight.detach().clone()}))
    index = run.average.index
    assert again.average.index == index
    assert again.average.seen == 12
    assert sorted(here) == [0, 1, 2, 3, 4, 5, *range(killed + 1, 13)]
    assert torch.equal(again.model.weight, here[max(p for p in here if p <= index)])


def test_the_seeds_choose_before_in_and_behind_the_gap():
    found = {chosen_by(seed)({"w": torch.zeros(1)}).index for seed in range(12)}
    assert min(found) <= 5
    assert found & {6, 7, 8}
    assert max(found) > 8
