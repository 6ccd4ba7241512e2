"""An oracle on several ranks releases what it releases on one, and no rank but the first pays, draws or adds noise."""

import itertools
import math
import threading
import time

import numpy as np
import pytest
import torch

import tacita
from tacita.clipping import Clipper
from tacita.convex import MedianOfMeans
from tacita.distributed.gates import LeaderGate
from tacita.errors import BudgetExceededError, LedgerError, RankError
from tacita.estimators import Estimator
from tacita.gradients import NetworkSource
from tests.distributed.processes import run_processes
from tests.distributed.ranks import results, run_ranks
from tests.oracles.conftest import squared_error

ROWS, RATE, QUERIES = 60, 0.3, 5
NOISE = tacita.GaussianMechanism(noise_multiplier=1.0)
CORRELATED = dict(
    sampler=tacita.CyclicSampler(batches_per_cycle=3, num_records=ROWS, assignment="coin"),
    mechanism=tacita.CorrelatedGaussian(noise_multiplier=1.0, bands=3, power=0.6),
)
BANDED = dict(
    sampler=tacita.CyclicSampler(batches_per_cycle=3, num_records=ROWS, assignment="coin", turn_rate=0.9),
    mechanism=tacita.CorrelatedGaussian(noise_multiplier=1.0, bands=3, power=0.6, banded_matrix=True),
)
FEEDBACK = {
    "private": tacita.PrivateFeedback(max_feedback_norm=0.02),
    "bounded": tacita.BoundedFeedback(max_feedback_norm=0.1, max_residual_norm=0.5),
    "released": tacita.ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=0.5, every=2),
}


class Rows(torch.utils.data.Dataset):
    """The rows of a regression, which notes what is read; reading row ``broken`` raises."""

    def __init__(self, broken=None, noted=None):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(ROWS, 4, dtype=torch.float64, generator=generator)
        self.broken, self.noted = broken, [] if noted is None else noted

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.noted.append(index)
        if index == self.broken:
            raise LookupError("row 4711 of Ada Lovelace")
        return self.x[index], self.x[index].sum()


def make_model(fill=0.3):
    model = torch.nn.Linear(4, 1).double()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(fill)
    return model


def make_ledger(rank, path=None):
    return tacita.Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row") if rank == 0 else None


def make_oracle(
    rank, group, *, kind="clipped", model=None, data=None, ledger=None, rate=RATE, loss=squared_error, **more
):
    settings = dict(
        ledger=ledger or make_ledger(rank),
        sampler=tacita.PoissonSampler(sample_rate=rate, num_records=ROWS),
        mechanism=NOISE,
        planned_queries=QUERIES,
        process_group=group,
        randomness=tacita.Randomness.insecure(0) if rank == 0 else None,
    )
    model, data = model or make_model(), data or (Rows().x, Rows().x.sum(1))
    settings |= {"correlated": CORRELATED, "banded": BANDED}.get(kind, {})
    settings["clipper"] = tacita.FlatClipper(max_grad_norm=1.0)
    if kind in FEEDBACK:
        return tacita.ErrorFeedbackOracle(model, loss, data, feedback=FEEDBACK[kind], **{**settings, **more})
    return tacita.ClippedGradientOracle(model, loss, data, **{**settings, **more})


def flat(release):
    return flatten(release.released)


def flatten(values):
    return torch.cat([x.flatten() for block in values.values() for x in block.values()])


def ask(oracle):
    return oracle.query(dict(oracle.source.model.named_parameters()))


def trained(oracle):
    """What the oracle releases while its model is trained, and the estimator's last state."""
    optimizer, released = torch.optim.SGD(oracle.source.model.parameters(), lr=0.1), []
    while oracle.remaining_queries:
        released.append(flat(oracle.backward()))
        optimizer.step()
    return torch.cat(released), oracle.gate.state


def on_ranks(size, **settings):
    return run_ranks(size, lambda rank, group: trained(make_oracle(rank, group, **settings)))


@pytest.mark.parametrize("kind", ["clipped", "correlated", "banded", *FEEDBACK])
def test_ranks_release_what_one_process_releases(kind):
    alone, state = trained(make_oracle(0, None, kind=kind))
    found = results(on_ranks(2, kind=kind))
    for released, following_state in found:
        torch.testing.assert_close(released, alone, rtol=1e-12, atol=1e-12)
        assert torch.equal(released, found[0][0])  # to the last bit, as their parameters must be
        torch.testing.assert_close(following_state, state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sums_on_a_grid_and_their_noise_have_the_bits_of_one_process(size):
    settings = dict(mechanism=tacita.RoundedGaussian(noise_multiplier=1.0), method="loop")
    alone, _ = trained(make_oracle(0, None, **settings))
    assert all(torch.equal(released, alone) for released, _ in results(on_ranks(size, **settings)))


def test_a_capped_sum_is_rounded_to_the_grid_once_over_all_ranks():
    settings = dict(mechanism=tacita.RoundedGaussian(noise_multiplier=1.0), method="program")
    alone, _ = trained(make_oracle(0, None, **settings))
    assert all(torch.equal(released, alone) for released, _ in results(on_ranks(3, **settings)))


@pytest.mark.parametrize("size", [2, 4])
def test_the_noise_is_one_draw_of_the_stated_size(size):
    """Gradients are zero, so that a release is noise alone."""
    coordinates = 20_000
    generator = torch.Generator().manual_seed(0)
    data = (torch.randn(ROWS, 2, generator=generator),)

    def pure_noise(rank, group):
        model = torch.nn.Linear(2, coordinates // 2, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.1)
        loss = lambda model, batch: 0.0 * model(batch[0]).sum(1)  # noqa: E731
        oracle = make_oracle(rank, group, model=model, data=data, loss=loss)
        return flat(oracle.backward()), oracle.noise_std["all"]

    alone, std = pure_noise(0, None)
    assert alone.numel() == coordinates
    for released, stated in results(run_ranks(size, pure_noise)):
        assert stated == std
        assert torch.equal(released, alone)
        share = released.double().square().mean().item() / std**2  # chi-square over its degrees of freedom
        assert abs(share - 1) < 5 * math.sqrt(2 / coordinates)


def test_ranks_without_rows_stay_in_step():
    rate, sizes = 1 / ROWS, []
    settings = dict(rate=rate, planned_queries=12)
    oracle = make_oracle(0, None, **settings)
    sizes = [len(oracle.draws.batch(query)) for query in range(12)]
    assert 0 in sizes
    assert any(0 < size < 3 for size in sizes)  # some ranks have rows, some have none
    alone, _ = trained(oracle)
    for released, _ in results(on_ranks(3, **settings)):
        torch.testing.assert_close(released, alone, rtol=1e-12, atol=1e-12)


def test_the_ranks_read_the_one_draw_of_rank_zero_each_row_once():
    def read(rank, group):
        rows = Rows()
        oracle = make_oracle(rank, group, data=rows)
        batches = []
        for _ in range(QUERIES):
            rows.noted.clear()
            ask(oracle)
            batches.append(sorted(rows.noted))
        return batches

    (alone,) = results([read(0, None)])
    shares = results(run_ranks(3, read))
    together = [sorted(itertools.chain(*parts)) for parts in zip(*shares, strict=True)]
    assert together == alone
    assert all(max(map(len, parts)) - min(map(len, parts)) <= 1 for parts in zip(*shares, strict=True))


@pytest.mark.parametrize("value", [1.0, 1e30, math.nan])
def test_one_record_moves_the_sum_over_all_ranks_by_at_most_the_threshold(value):
    """Without it the records after it are on other ranks."""
    x = Rows().x[:11].clone()
    x[3] = value
    worlds = [(x, x.sum(1)), (torch.cat([x[:3], x[4:]]), torch.cat([x[:3], x[4:]]).sum(1))]

    def bounded_sum(rank, group, data):
        mechanism = tacita.GaussianMechanism(noise_multiplier=0.0)
        return flat(ask(make_oracle(rank, group, data=data, rate=1.0, mechanism=mechanism)))

    present, absent = (
        results(run_ranks(3, lambda rank, group, data=data: bounded_sum(rank, group, data)))[0] for data in worlds
    )
    moved = (present - absent).norm().item()
    assert moved <= 1 + 1e-12
    assert moved > 0.99 or not math.isfinite(value)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_on_one_rank_stops_all_releases_nothing_and_can_be_mended(failing):
    params = dict(make_model().named_parameters())
    alone = flat(make_oracle(0, None).query(params))

    def work(rank, group):
        rows = Rows()
        oracle = make_oracle(rank, group, data=rows)
        if rank == failing:
            read, oracle.source.read = oracle.source.read, lambda *args: 1 / 0
            with pytest.raises(ZeroDivisionError):
                oracle.query(params)
            oracle.source.read = read
        else:
            with pytest.raises(RankError, match="another rank failed") as info:
                oracle.query(params)
            assert "zero" not in str(info.value)
        lines = oracle.session.queries_made if rank == 0 else 0
        return lines, flat(oracle.query(params))

    for lines, released in results(run_ranks(2, work)):
        assert lines == 0
        torch.testing.assert_close(released, alone, rtol=1e-12, atol=1e-12)  # the same number, as if for the first time


def test_a_plan_that_is_used_up_ends_on_every_rank():
    def work(rank, group):
        oracle = make_oracle(rank, group, planned_queries=1)
        ask(oracle)
        assert oracle.remaining_queries == 0
        with pytest.raises(BudgetExceededError):
            ask(oracle)

    results(run_ranks(2, work))


@pytest.mark.parametrize(
    ("differs", "says"),
    [
        (dict(clipper=tacita.FlatClipper(max_grad_norm=2.0)), "different settings"),
        (dict(mechanism=tacita.GaussianMechanism(noise_multiplier=0.1)), "different settings"),
        (dict(rate=0.2), "different settings"),
        (dict(planned_queries=QUERIES + 1), "different settings"),
        (dict(method="loop"), "different settings"),
        (dict(data=(Rows().x[:-1], Rows().x[:-1].sum(1))), "different data sets"),
        (dict(data=(Rows().x.flip(0), Rows().x.flip(0).sum(1))), "different data sets"),
        (dict(data=(Rows().x, Rows().x.sum(1).add(torch.arange(ROWS) == 7))), "different data sets"),  # one row
        (dict(data=(Rows().x.numpy(), Rows().x.sum(1).numpy())), None),  # the same rows
        (dict(data=tacita.Records(dataset=(Rows().x, Rows().x.sum(1)), rows=torch.arange(50).numpy())), "data sets"),
        (dict(fill=0.31), "different parameters"),
    ],
)
def test_ranks_that_differ_are_refused_before_anything_is_registered(differs, says):
    ledger = make_ledger(0)

    def work(rank, group):
        mine = dict(differs) if rank == 1 else {}
        model = make_model(mine.pop("fill", 0.3))
        make_oracle(rank, group, model=model, ledger=ledger if rank == 0 else None, **mine)

    found = run_ranks(2, work)
    if says is None:
        results(found)
        return
    assert [type(error) for error in found] == [RankError, RankError]
    assert all(says in str(error) for error in found)
    assert not list(ledger.sessions)


def test_rows_of_a_dataset_are_compared():
    def work(rank, group):
        rows = Rows()
        rows.x += 1e-9 * rank
        make_oracle(rank, group, data=rows)

    assert all("different data sets" in str(error) for error in run_ranks(2, work))


class Untold(Clipper):
    """A threshold that no setting tells."""

    def __init__(self, bound):
        self._rule = tacita.FlatClipper(max_grad_norm=bound)

    def groups(self, shapes):
        return self._rule.groups(shapes)

    def weights(self, norms):
        return self._rule.weights(norms)

    def max_contribution(self, shapes):
        return self._rule.max_contribution(shapes)


def test_sensitivities_are_compared_where_no_setting_tells_them():
    ledger = make_ledger(0)

    def work(rank, group):
        make_oracle(rank, group, ledger=ledger if rank == 0 else None, clipper=Untold(1.0 + rank))

    found = run_ranks(2, work)
    assert ["different settings" in str(error) for error in found] == [True, True]
    assert not list(ledger.sessions)


def test_buffers_that_drift_apart_are_refused_before_a_release():
    def work(rank, group):
        model = make_model()
        model.register_buffer("shift", torch.zeros(3))
        oracle = make_oracle(rank, group, model=model)
        ask(oracle)
        model.shift[1] = float(rank)
        with pytest.raises(RankError, match="different parameters or buffers"):
            ask(oracle)

    results(run_ranks(2, work))


def test_parameters_that_drift_apart_are_refused_before_a_release():
    def work(rank, group):
        oracle = make_oracle(rank, group)
        ask(oracle)
        if rank == 1:
            with torch.no_grad():
                oracle.source.model.weight[0, 0] += 1e-9
        with pytest.raises(RankError, match="different parameters"):
            ask(oracle)
        return oracle.session.queries_made if rank == 0 else 1

    assert results(run_ranks(2, work)) == [1, 1]


@pytest.mark.parametrize("changed", [0, 1])
def test_a_threshold_that_is_changed_on_one_rank_stops_all_before_a_release(changed):
    """That rank's records would move the sum by more than the noise is for."""

    def work(rank, group):
        oracle = make_oracle(rank, group)
        ask(oracle)
        if rank == changed:
            object.__setattr__(oracle.estimator.clipper, "max_grad_norm", 50.0)
        with pytest.raises(RankError if rank != changed else (LedgerError, RankError)):
            ask(oracle)
        return oracle.session.queries_made if rank == 0 else 1

    assert results(run_ranks(2, work)) == [1, 1]


def test_ranks_that_ask_different_oracles_are_refused():
    def work(rank, group):
        ledger = make_ledger(rank)
        first, second = (make_oracle(rank, group, ledger=ledger, randomness=None) for _ in range(2))
        with pytest.raises(RankError, match="not at the same step"):
            (first, second)[rank].backward()

    results(run_ranks(2, work))


@pytest.mark.parametrize("ledgers", [1, 2])
def test_two_oracles_are_asked_in_one_order(ledgers):
    """The sessions of two ledgers have the same id: nothing of one oracle is taken for the other's."""

    def work(rank, group):
        own = [make_ledger(rank) for _ in range(ledgers)]
        large = tacita.FlatClipper(max_grad_norm=50.0)
        oracles = [make_oracle(rank, group, ledger=own[0]), make_oracle(rank, group, ledger=own[-1], clipper=large)]
        with pytest.raises(RankError, match="ask the same oracle at a time"):
            ask(oracles[rank])
        asked = [oracle.session.queries_made for oracle in oracles] if rank == 0 else [0, 0]
        return asked, [flat(ask(oracle)) for oracle in oracles]  # they go on

    (asked, found), (_, others) = results(run_ranks(2, work))
    assert asked == [0, 0]
    assert all(map(torch.equal, found, others))


def test_threads_that_ask_two_oracles_never_mix_them():
    """The second asks while the first one's batch is shared, which takes longer on one rank."""

    def work(rank, group):
        small, large = (
            make_oracle(rank, group, ledger=make_ledger(rank), clipper=tacita.FlatClipper(max_grad_norm=c))
            for c in (1.0, 50.0)
        )
        ranks, begun, found = small.source.ranks, threading.Event(), {}
        share = type(ranks).share

        def slow(self, rows):
            if self is ranks:
                begun.set()
            time.sleep(0.4 if self is not ranks else 0.8 * rank)
            return share(self, rows)

        def asked(oracle):
            found[oracle] = ask(oracle)

        type(ranks).share = slow
        threads = [threading.Thread(target=asked, args=(oracle,)) for oracle in (small, large)]
        threads[0].start()
        begun.wait()
        threads[1].start()
        for thread in threads:
            thread.join()
        return [flat(found[oracle]) for oracle in (small, large)]

    def alone(max_grad_norm):
        return flat(ask(make_oracle(0, None, clipper=tacita.FlatClipper(max_grad_norm=max_grad_norm))))

    for small, large in results(run_processes(2, work)):
        torch.testing.assert_close(small, alone(1.0))
        torch.testing.assert_close(large, alone(50.0))


def test_only_rank_zero_has_a_ledger_and_a_session():
    def with_ledger(rank, group):
        make_oracle(rank, group, ledger=make_ledger(0))

    first, second = run_ranks(2, with_ledger)
    assert isinstance(first, RankError)
    assert "ledger and session must be None on rank 1" in str(second)

    def without(rank, group):
        tacita.ClippedGradientOracle(
            make_model(), squared_error, (Rows().x, Rows().x.sum(1)), ledger=None, process_group=group,
            sampler=tacita.PoissonSampler(sample_rate=RATE, num_records=ROWS), mechanism=NOISE, planned_queries=1,
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
        )  # fmt: skip

    def with_session(rank, group):
        registered = make_oracle(0, None).session if rank == 1 else None
        make_oracle(rank, group, session=registered)

    first, second = run_ranks(2, with_session)
    assert isinstance(first, RankError)
    assert "ledger and session must be None on rank 1" in str(second)

    first, second = run_ranks(2, without)
    assert "ledger must be a Ledger on rank 0" in str(first)
    assert isinstance(second, RankError)


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_a_median_is_taken_of_the_groups_sums_over_all_ranks(rows):
    def values(rank, group):
        data = (Rows().x, Rows().x.sum(1))
        source = NetworkSource(make_model(), squared_error, data, method="loop", process_group=group)
        engine = source.engine(dict(source.model.named_parameters()), np.arange(rows))
        return flatten(MedianOfMeans(max_coordinate=2.0, num_groups=5)(engine, None)[0])

    alone = values(0, None)
    assert alone.any() == (rows == ROWS)
    assert all(torch.equal(found, alone) for found in results(run_ranks(3, values)))


def test_an_estimator_that_sums_its_own_rows_alone_is_refused():
    class OwnSum(Estimator):
        def sensitivity(self, relation, shapes):
            return {"all": 1.0}

        def event(self, sampler, noise_std, relation, shapes):
            return tacita.accounting.gaussian_sum_event(sampler.law, (1.0,), (noise_std["all"],), relation)

        def block_sizes(self, shapes):
            return {"all": 5}

        def __call__(self, engine, state):
            total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in engine.shapes.items()}
            for chunk in engine.materialise():
                total = {name: total[name] + (0 * rows).sum(0) for name, rows in chunk.items()}
            return {"all": total if not self.mended else engine.over_ranks([total])[0]}, state

        def gradient(self, released, divisor):
            return released["all"]

        mended = False

    def work(rank, group):
        estimator = OwnSum()
        source = NetworkSource(make_model(), squared_error, (Rows().x, Rows().x.sum(1)), process_group=group)
        sampler = tacita.PoissonSampler(sample_rate=RATE, num_records=ROWS)
        oracle = tacita.GradientOracle(
            source, estimator=estimator, mechanism=NOISE, sampler=sampler, ledger=make_ledger(rank), planned_queries=2
        )
        with pytest.raises((RuntimeError, RankError), match=r"over_ranks|another rank failed"):
            ask(oracle)
        OwnSum.mended = True
        return ask(oracle).query

    assert results(run_ranks(2, work)) == [0, 0]


def test_what_rank_zero_holds_is_not_to_be_had_elsewhere():
    def work(rank, group):
        oracle = make_oracle(rank, group)
        release = oracle.backward()
        if rank == 0:
            return release.session
        for ask in (
            lambda: oracle.ledger.epsilon(1e-5),
            lambda: oracle.session.queries_made,
            lambda: oracle.event.per_query,
        ):
            with pytest.raises(AttributeError, match="known to rank 0 alone"):
                ask()
        with pytest.raises(RuntimeError, match="rank 0"):
            oracle.state_dict()
        assert "rank 0" in repr(oracle.ledger)
        return release.session

    assert len(set(results(run_ranks(2, work)))) == 1


def test_a_calibrated_mechanism_is_resolved_by_rank_zero_beside_its_other_sessions():
    def work(rank, group):
        ledger = make_ledger(rank)
        mechanism = tacita.CalibratedGaussian(target_epsilon=8.0, target_delta=1e-5)
        oracles = [make_oracle(rank, group, ledger=ledger, randomness=None, mechanism=NOISE)]
        oracles.append(make_oracle(rank, group, ledger=ledger, randomness=None, mechanism=mechanism))
        return [oracle.noise_multiplier for oracle in oracles], oracles[1].noise_std

    first, second = results(run_ranks(2, work))
    assert first == second


def test_a_query_from_within_a_query_is_refused_on_every_rank_and_they_go_on():
    """Rank 0's line sees the query that asks through the gate around it."""

    def work(rank, group):
        oracle = make_oracle(rank, group)
        engine, oracle.source.engine = oracle.source.engine, lambda *args, **settings: ask(oracle)
        with pytest.raises((RuntimeError, RankError), match=("from within one", "another rank failed")[rank]):
            ask(oracle)
        oracle.source.engine = engine
        return len(trained(oracle)[0]) / QUERIES, oracle.remaining_queries

    assert results(run_ranks(2, work)) == [(5.0, 0)] * 2


def test_the_line_is_on_disk_before_its_release_leaves_rank_zero(tmp_path, monkeypatch):
    handed, send = [], LeaderGate._send

    def noted(self, released):
        lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
        handed.append((any('"query"' in one for one in lines[-1:]), flushed[-1] == len(lines)))
        send(self, released)

    flushed = []

    def work(rank, group):
        ledger = make_ledger(rank, tmp_path / "ledger.jsonl")
        oracle = make_oracle(rank, group, ledger=ledger)
        if rank == 0:
            journal = ledger._registry.journal
            flush = journal.sync
            journal.sync = lambda: (
                flush(), flushed.append(len((tmp_path / "ledger.jsonl").read_text().splitlines()))
            )  # fmt: skip
        for _ in range(3):
            ask(oracle)
        if ledger is not None:
            ledger.close()

    monkeypatch.setattr(LeaderGate, "_send", noted)
    results(run_ranks(2, work))
    assert handed == [(True, True)] * 3


@pytest.mark.parametrize("kind", ["clipped", "correlated", "banded", "private", "released"])
@pytest.mark.parametrize("sizes", [(1, 3), (3, 2)])
def test_another_number_of_ranks_continues_with_the_same_batches_and_noise(kind, sizes):
    def until(rank, group, saved):
        """Make three queries, or take up the checkpoint after them and make the rest."""
        mine = Shared if rank == 0 else None
        oracle = make_oracle(
            rank, group, kind=kind, ledger=mine and mine.ledger, randomness=mine and mine.randomness,
            session=mine and mine.session, model=make_model(),
        )  # fmt: skip
        optimizer = torch.optim.SGD(oracle.source.model.parameters(), lr=0.1)
        if rank == 0:
            Shared.session = oracle.session
        if saved:
            oracle.load_state_dict(Shared.saved if rank == 0 else {})
            oracle.source.model.load_state_dict(Shared.weights)
        released = []
        while oracle.remaining_queries > (0 if saved else 2):
            released.append(flat(oracle.backward()))
            optimizer.step()
        if rank == 0 and not saved:
            Shared.saved = oracle.state_dict()
            Shared.weights = {name: p.clone() for name, p in oracle.source.model.state_dict().items()}
        return torch.cat(released), oracle.gate.state

    class Shared:
        ledger, randomness, session, saved, weights = make_ledger(0), tacita.Randomness.insecure(0), None, None, None

    alone, state = trained(make_oracle(0, None, kind=kind))
    before = results(run_ranks(sizes[0], lambda rank, group: until(rank, group, False)))
    after = results(run_ranks(sizes[1], lambda rank, group: until(rank, group, True)))
    for first, _ in before:
        for second, last in after:
            torch.testing.assert_close(torch.cat([first, second]), alone, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(last, state, rtol=1e-11, atol=1e-11)


def test_parameters_spread_over_ranks_are_refused():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import distribute_tensor

        model = make_model()
        mesh = init_device_mesh("cpu", (1,))
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
        with pytest.raises(tacita.UnsupportedModuleError, match=r"DTensor.*hold the whole model on every rank"):
            make_oracle(0, None, model=model)
    finally:
        torch.distributed.destroy_process_group()
