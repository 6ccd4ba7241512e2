"""Ranks exchange what they must, and none waits for one that failed."""

import itertools

import numpy as np
import pytest
import torch

from tacita.distributed.process_group import Ranks, hashed, tensors_digest
from tacita.errors import BudgetExceededError, RankError
from tacita.gradients import NetworkSource
from tacita.gradients.processes import ALONE
from tests.devices import SIMULATED, get_device
from tests.distributed.ranks import results, run_ranks


def on_ranks(size, work):
    """``work(ranks)`` on every rank."""
    return run_ranks(size, lambda rank, group: work(Ranks(group)))


def test_without_a_group_there_is_one_rank_and_nothing_is_exchanged():
    rows = np.arange(5)
    assert (ALONE.size, ALONE.leads) == (1, True)
    assert ALONE.share(rows).tolist() == rows.tolist()
    assert [ALONE.number(chunk) for chunk in range(3)] == [0, 1, 2]
    assert ALONE.broadcast("step", {"a": 1}, b"data") == ({"a": 1}, b"data")


@pytest.mark.parametrize("group", [object(), True, "gloo", -100])
def test_what_is_no_group_is_refused(group):
    with pytest.raises(ValueError, match="process_group must be None, or a process group"):
        Ranks(group)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_a_partition_and_chunks_have_numbers_of_their_own(size):
    rows = np.arange(20) * 3
    found = on_ranks(size, lambda ranks: (ranks.share(rows).tolist(), [ranks.number(chunk) for chunk in range(4)]))
    shares, numbers = zip(*results(found), strict=True)
    assert sorted(itertools.chain(*shares)) == rows.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert len({*itertools.chain(*numbers)}) == 4 * size


def test_sums_are_added_up_whole_numbers_exactly_and_others_in_the_wider_dtype():
    large = 2**53 + 1

    def work(ranks):
        real = torch.full((2,), 0.5, dtype=torch.float64 if ranks.rank == 1 else torch.float32)
        sums = [{"a": torch.tensor([large + ranks.rank]), "b": real}, {"a": torch.tensor([1]), "b": real}]
        return ranks.add_up(sums), sums

    for (first, second), given in results(on_ranks(3, work)):
        assert first["a"].tolist() == [3 * large + 3]
        assert second["a"].tolist() == [3]
        assert first["b"].dtype == torch.float64
        assert first["b"].tolist() == second["b"].tolist() == [1.5, 1.5]
        assert given[0]["b"].tolist() == [0.5, 0.5]  # what a rank gave is not overwritten


def test_tensors_that_share_memory_are_added_up_once_each():
    def work(ranks):
        shared = torch.ones(3)
        return ranks.add_up([{"a": shared}, {"a": shared}])

    for first, second in results(on_ranks(2, work)):
        assert first["a"].tolist() == second["a"].tolist() == [2.0, 2.0, 2.0]


def test_rank_zero_tells_plain_settings_and_bytes():
    def work(ranks):
        return ranks.broadcast("step", {"n": 3, "x": [0.1]} if ranks.leads else None, b"\0data" if ranks.leads else b"")

    assert results(on_ranks(3, work)) == [({"n": 3, "x": [0.1]}, b"\0data")] * 3


def test_ranks_that_differ_all_hear_of_it():
    found = on_ranks(3, lambda ranks: ranks.check_equal("settings", b"same" if ranks.rank < 2 else b"other"))
    assert all(isinstance(error, RankError) and "different settings" in str(error) for error in found)
    assert results(on_ranks(3, lambda ranks: ranks.check_equal("settings", b"same"))) == [None] * 3


def test_ranks_at_different_steps_all_hear_of_it():
    def work(ranks):
        if ranks.leads:
            ranks.broadcast("one step", {})
        else:
            ranks.add_up([{"a": torch.ones(2)}])

    found = on_ranks(2, work)
    assert all(isinstance(error, RankError) and "not at the same step" in str(error) for error in found)


def test_sums_of_other_shapes_are_not_added_up():
    found = on_ranks(2, lambda ranks: ranks.add_up([{"a": torch.ones(2 + ranks.rank)}]))
    assert all(isinstance(error, RankError) for error in found)


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_on_one_rank_is_an_error_on_all_and_they_go_on(failing, kind):
    def work(ranks):
        caught = None
        try:
            with ranks.fail_together(), ranks.fail_together():  # the inner one tells
                if ranks.rank == failing:
                    raise kind("the secret 4711")
                ranks.add_up([{"a": torch.ones(2)}])
        except BaseException as error:
            caught = error
        return caught, ranks.add_up([{"a": torch.ones(2)}])

    for rank, (caught, (sums,)) in enumerate(results(on_ranks(3, work))):
        assert type(caught) is (kind if rank == failing else RankError)
        assert rank == failing or "4711" not in str(caught)
        assert sums["a"].tolist() == [3.0, 3.0]


def test_a_plan_that_is_used_up_is_the_same_error_on_every_rank():
    def work(ranks):
        with ranks.fail_together():
            if ranks.leads:
                raise BudgetExceededError("planned_queries is 3 and all are used")
            ranks.broadcast("step", None)

    assert [type(error) for error in on_ranks(3, work)] == [BudgetExceededError] * 3


def test_a_rank_that_is_gone_is_an_error_and_the_group_is_not_used_again():
    def work(ranks):
        if ranks.rank == 1:
            return None
        caught = []
        for _ in range(2):
            with pytest.raises(RankError, match="have lost each other") as info, ranks.fail_together():
                ranks.add_up([{"a": torch.ones(2)}])
            caught.append(str(info.value))
        return caught

    assert all("resume the run" in message for message in results(on_ranks(2, work))[0])


def test_the_digest_of_another_device_sees_values_of_equal_sums():
    """Their bits are not copied to the CPU: sums and sums of squares stand for them."""
    device = get_device(SIMULATED)
    one, other = (torch.tensor(values, device=device) for values in ([1, 4, 0], [2, 3, 0]))
    assert tensors_digest([("w", one)]) == tensors_digest([("w", one.clone())]) != tensors_digest([("w", other)])


def test_a_hash_has_bits_enough():
    assert max(hashed(bytes([k])) for k in range(64)) > 2**54


def test_the_digest_sees_names_shapes_dtypes_and_values():
    one = torch.tensor([[1.0, -2.0]])
    others = [("w", one.T), ("v", one), ("w", one.double()), ("w", one + 3e-7), ("w", -one), ("w", one.flip(1))]
    digests = {tensors_digest([given]) for given in [("w", one), *others]}
    assert len(digests) == 1 + len(others)
    assert tensors_digest([("w", one.clone())]) == tensors_digest([("w", one)]) == tensors_digest([("w", one.numpy())])
    tensors_digest([("a", torch.zeros(0)), ("b", torch.tensor(True)), ("c", torch.zeros(3, dtype=torch.bfloat16))])


def test_each_rank_draws_dropout_of_its_own():
    """Equal masks would couple records on different ranks by where an absent record leaves them."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Dropout(0.5))
    groups, data = {"all": ("0.weight",)}, (torch.ones(64, 1),)

    def loss_fn(model, batch):
        return model(batch[0]).squeeze(1)

    def work(rank, group):
        source = NetworkSource(model, loss_fn, data, process_group=group)
        engine = source.engine(dict(model.named_parameters()), np.arange(64), query=0, seed=7)
        return engine.norms(groups).flatten()

    first, second = results(run_ranks(2, work))
    assert first.shape == second.shape == (32,)
    assert not torch.equal(first, second)


def test_workers_that_read_ahead_are_refused():
    def work(rank, group):
        return NetworkSource(
            torch.nn.Linear(1, 1), lambda model, batch: model(batch[0])[:, 0], (torch.ones(4, 1),),
            num_workers=1, process_group=group,
        )  # fmt: skip

    assert all("num_workers must be 0 with a process_group" in str(error) for error in run_ranks(2, work))


def test_sums_in_another_order_of_names_are_added_up_by_name():
    """A rank without rows has zeros in the order of parameters, and the ghost engine's sums are in that of calls."""

    def work(ranks):
        names = ["a", "b"] if ranks.leads else ["b", "a"]
        (found,) = ranks.add_up([{name: torch.full((2,), 1.0 if name == "a" else 10.0) for name in names}])
        return list(found) == names, found["a"].tolist(), found["b"].tolist()

    assert results(on_ranks(2, work)) == [(True, [2.0, 2.0], [20.0, 20.0])] * 2


@pytest.mark.parametrize("step", ["sums", "message", "tensors"])
def test_a_rank_that_fails_amid_a_step_never_goes_on(step, monkeypatch):
    """Its status would be added to the values that the others give: it says nothing, and the ranks are lost."""

    def work(ranks):
        steps = {
            "sums": lambda: ranks.add_up([{"a": torch.ones(6, dtype=torch.int64)}]),
            "message": lambda: ranks.broadcast("step", {"n": 1} if ranks.leads else None),
            "tensors": lambda: ranks.broadcast_tensors([torch.ones(6, dtype=torch.int64)]),
        }
        if not ranks.leads:
            place = "_sent" if step == "tensors" else "_collective"
            monkeypatch.setattr(ranks, place, fails if step == "tensors" else later(ranks._collective))
        raised = []
        for _ in range(2):
            try:
                with ranks.fail_together():
                    steps[step]()
            except BaseException as error:
                raised.append(type(error))
        return raised, ranks.group.world.rounds[ranks.rank]

    def fails(*args, **options):
        raise KeyboardInterrupt

    def later(whole):
        calls = []

        def collective(*args, **options):
            calls.append(1)
            return fails() if len(calls) == 2 else whole(*args, **options)

        return collective

    (of_zero, _), (of_one, given) = results(on_ranks(2, work))
    assert of_zero == [RankError] * 2
    assert (of_one, given) == ([KeyboardInterrupt, RankError], 1)  # the first status alone


def test_an_error_while_another_is_handled_is_told_too():
    """The mark that an error was told is that of this block, not of whatever was raised before it."""

    def work(ranks):
        try:
            with ranks.fail_together():
                ranks.check_equal("settings", bytes([ranks.rank]))
        except RankError:
            expected = (
                pytest.raises(RankError, match="another rank failed") if ranks.leads else pytest.raises(ValueError)
            )
            with expected, ranks.fail_together():
                if not ranks.leads:
                    raise ValueError("on this rank alone")  # noqa: B904 - as a user's handler may
                ranks.check_equal("settings", b"")
        return True

    assert results(on_ranks(2, work)) == [True, True]
