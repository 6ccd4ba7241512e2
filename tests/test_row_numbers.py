"""Row numbers that are not in memory are the same rows as those that are, whoever reads them and in what pieces."""

import numpy as np
import pytest
import scipy.sparse
import torch

import tacita
from tacita import _row_numbers
from tacita._row_numbers import ChosenRows, RowNumbers, RowRange, RowsAt, is_ascending, kept, pieces, rows_at
from tacita.convex import MedianOfMeans
from tacita.linear import source as linear_source
from tacita.linear.losses import SquaredLoss
from tacita.linear.source import LinearSource
from tacita.oracles.records import OracleData
from tacita.random import QueryCoins, Randomness

ROWS = 1000


@pytest.fixture
def many(monkeypatch):
    """From eight rows on, row numbers are not kept, and are looked at seven at a time."""
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", 8)
    monkeypatch.setattr(_row_numbers, "BLOCK", 7)
    monkeypatch.setattr(linear_source, "IN_MEMORY", 8)


def thirds(num_rows=100):
    return ChosenRows(num_rows, lambda first, count: np.flatnonzero(np.arange(first, first + count) % 3 == 1))


@pytest.mark.parametrize("rows", [RowRange(5, 40), RowRange(4, 4), thirds(), thirds(0)], ids=repr)
def test_they_are_read_alike_in_pieces_of_any_size(rows, many):
    whole = np.asarray(rows)
    assert whole.dtype == np.int64
    assert len(rows) == len(whole)
    assert (np.diff(whole) > 0).all()
    for size in (1, 6, 7, 8, 1000):
        found = list(pieces(rows, size))
        assert [len(piece) for piece in found[:-1]] == [size] * (len(found) - 1)
        assert np.concatenate([whole[:0], *found]).tolist() == whole.tolist()
        assert all(len(piece) for piece in found)
    assert [piece.tolist() for piece in pieces(whole, 6)] == [piece.tolist() for piece in pieces(rows, 6)]


def test_few_are_kept_as_an_array_and_many_are_not(many):
    assert isinstance(kept(RowRange(0, 8)), np.ndarray)
    assert isinstance(kept(RowRange(0, 9)), RowRange)
    assert isinstance(kept(thirds(24)), np.ndarray)
    assert isinstance(kept(thirds(27)), ChosenRows)


@pytest.mark.parametrize("rows", [RowRange(50, 150), thirds(300), np.arange(7, 107)], ids=["range", "coins", "array"])
@pytest.mark.parametrize(
    "places", [RowRange(3, 99), thirds(90), np.array([0, 6, 7, 8, 50, 99]), np.empty(0, np.int64)],
    ids=["range", "coins", "array", "none"],
)  # fmt: skip
def test_rows_at_places_are_those_of_arrays(rows, places, many):
    found = rows_at(rows, places)
    assert np.asarray(found).tolist() == np.asarray(rows)[np.asarray(places)].tolist()
    if not isinstance(rows, np.ndarray) and isinstance(places, RowNumbers):
        assert isinstance(found, RowNumbers)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (6, 5)])
def test_a_range_has_no_row_before_the_first(start, stop):
    with pytest.raises(ValueError, match="start must be in"):
        RowRange(start, stop)


def test_what_a_caller_makes_is_read_and_checked():
    """A class that says of itself that its rows are ascending is read like an array: rows that stand twice raise."""

    class Twice(RowRange):
        def blocks(self):
            yield np.array([1, 1])

    for rows in (Twice(0, 2), RowsAt(RowRange(0, 5), np.array([1, 1])), RowRange(0, 11)):
        with pytest.raises(ValueError, match="rows must"):
            tacita.Records(dataset=(torch.zeros(10),), rows=rows)
    assert not is_ascending(Twice(0, 2))
    assert not is_ascending(RowsAt(RowRange(0, 5), np.array([1, 1])))


# -- Samplers

SAMPLERS = [
    tacita.FullBatchSampler(num_records=ROWS),
    tacita.PoissonSampler(sample_rate=0.3, num_records=ROWS),
    tacita.PoissonSampler(sample_rate=0.3, num_records=ROWS, max_batch_size=11),
    tacita.CyclicSampler(batches_per_cycle=4, num_records=ROWS, assignment="coin", turn_rate=0.5),
    tacita.CyclicSampler(batches_per_cycle=4, num_records=ROWS, assignment="index", turn_rate=0.5),
    tacita.UnitPoissonSampler(sample_rate=0.3, num_records=ROWS, max_rows_per_unit=1),
    tacita.FixedSizeSampler(batch_size=30, num_records=ROWS),
    tacita.DisjointSampler(num_batches=7, num_records=ROWS),
    tacita.AllocatedSampler(batches_per_epoch=7, num_records=ROWS),
    tacita.ShuffledEpochsSampler(batches_per_epoch=7, num_records=ROWS),
    *(tacita.CyclicSampler(batches_per_cycle=4, num_records=ROWS, assignment=by) for by in ("coin", "index")),
]


def drawn(sampler, how, queries=(0, 3, 6)):
    coins = QueryCoins(Randomness.insecure(5), "session")
    return [getattr(sampler, how)(query, coins, ROWS) for query in queries]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_batch_is_the_same_rows_as_a_draw(sampler, many, monkeypatch):
    by_block = drawn(sampler, "batch")
    again = [rows.tolist() for rows in drawn(sampler, "draw")]
    monkeypatch.undo()  # a whole assignment is kept
    assert [np.asarray(rows).tolist() for rows in by_block] == again
    assert [rows.tolist() for rows in drawn(sampler, "draw")] == again
    large = not isinstance(sampler, tacita.FixedSizeSampler) and getattr(sampler, "assignment", "") != "permutation"
    large &= getattr(sampler, "max_batch_size", None) is None
    assert all(isinstance(rows, RowNumbers) == large for rows in by_block)


@pytest.mark.parametrize("in_memory", [200, 300, 999])
@pytest.mark.parametrize("sampler", [one for one in SAMPLERS if getattr(one, "assignment", "") == "coin"], ids=repr)
def test_batches_are_the_same_however_many_are_kept(sampler, in_memory, monkeypatch):
    whole = [rows.tolist() for rows in drawn(sampler, "draw", range(7))]
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", in_memory)
    monkeypatch.setattr(_row_numbers, "BLOCK", 7)
    assert [np.asarray(rows).tolist() for rows in drawn(sampler, "batch", range(7))] == whole


@pytest.mark.parametrize("sampler", [one for one in SAMPLERS if hasattr(one, "batches_per_epoch")], ids=repr)
def test_a_later_epoch_has_the_same_batch_too(sampler, many, monkeypatch):
    late = [np.asarray(rows).tolist() for rows in drawn(sampler, "batch", (7, 15))]
    monkeypatch.undo()
    assert [rows.tolist() for rows in drawn(sampler, "draw", (7, 15))] == late


# -- Splits


@pytest.mark.parametrize("sizes", [[300, 700], [0.3, 0.7]])
def test_a_split_of_many_rows_has_the_same_parts(sizes, many, monkeypatch):
    data = (torch.arange(ROWS),)
    parts = tacita.split(data, sizes, randomness=Randomness.insecure(1))
    assert all(isinstance(part.rows, RowNumbers) for part in parts)
    found = [(np.asarray(part.rows).tolist(), len(part.rows)) for part in parts]
    monkeypatch.undo()
    same = tacita.split(data, sizes, randomness=Randomness.insecure(1))
    assert [part.part for part in same] == [part.part for part in parts]
    assert all(isinstance(part.rows, np.ndarray) for part in same)
    assert found == [(part.rows.tolist(), len(part.rows)) for part in same]


def test_a_part_of_other_positions_is_refused_without_an_array(many):
    first, second = tacita.split((torch.zeros(100),), [50, 50])
    with pytest.raises(ValueError, match="rows must be those of the part"):
        tacita.Records(dataset=(torch.zeros(100),), rows=first.rows, part=second.part)


def matrix():
    return scipy.sparse.random(200, 9, density=0.2, format="csr", rng=np.random.default_rng(3))


def test_a_sparse_matrix_is_split_and_stays_sparse():
    x, y = matrix(), np.arange(200.0)
    for data in (x, (x, y), {"x": x, "y": y}, (x.tocsc(), y)):
        parts = tacita.split(data, [0.5, 0.5], randomness=Randomness.insecure(2))
        assert parts[0].dataset is data
        assert len(parts[0].rows) + len(parts[1].rows) == 200
        assert tacita.split(data, [150, 50])[1].part.stop == 200


def test_the_tag_of_a_split_depends_on_what_a_sparse_matrix_stores():
    x = matrix()
    other, wider = x.copy(), scipy.sparse.csr_matrix((x.data, x.indices, x.indptr), shape=(200, 10))
    other.data[3] += 1
    names = [
        tacita.split((one,), [100, 100], randomness=Randomness.insecure(2))[0].part.split
        for one in (x, x.copy(), other, wider)
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_network_refuses_a_sparse_matrix_and_names_the_way_out():
    with pytest.raises(ValueError, match=r"a sparse matrix is for tacita\.linear\.LinearSource"):
        tacita.NetworkSource(torch.nn.Linear(9, 1), lambda model, batch: model(batch[0]).sum(1), (matrix(),))


# -- Oracles


def network(method):
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    return tacita.NetworkSource(
        model,
        lambda model, batch: model(batch[0]).squeeze(1).square(),
        (x,),
        method=method,
        max_physical_batch_size=130,
    )


def linear():
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return LinearSource(x, torch.zeros(ROWS), SquaredLoss(), intercept=None)


SOURCES = {"program": lambda: network("program"), "loop": lambda: network("loop"), "linear": linear}
ESTIMATORS = {
    "sum": tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=2.0)),
    "medians": MedianOfMeans(max_coordinate=1.0, num_groups=3),
}
SIZES = {"all": None, "range": [400, 600], "coin": [0.4, 0.6]}


def oracle_on(source, estimator, sampling, sizes):
    source = SOURCES[source]()
    part = None if sizes is None else tacita.split((torch.zeros(ROWS),), sizes, randomness=Randomness.insecure(3))[1]
    rows = None if part is None else part.rows
    records = ROWS if rows is None else len(rows)
    sampler = {
        "full": lambda: tacita.FullBatchSampler(num_records=records),
        "one pass": lambda: tacita.DisjointSampler(num_batches=3, num_records=records),
        "Poisson": lambda: tacita.PoissonSampler(sample_rate=0.5, num_records=records),
    }[sampling]()
    return tacita.GradientOracle(
        source, estimator=ESTIMATORS[estimator], mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        sampler=sampler, ledger=tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row"),
        planned_queries=3, rows=rows, part=None if part is None else part.part, randomness=Randomness.insecure(4),
    )  # fmt: skip


def released(*settings):
    oracle = oracle_on(*settings)
    point = {"weight": torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)}
    return [oracle.query(point).gradient["weight"] for _ in range(2)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("sampling", ["full", "one pass", "Poisson"])
@pytest.mark.parametrize("pair", [("program", "sum"), ("loop", "medians"), ("linear", "sum")], ids=" ".join)
@pytest.mark.usefixtures("many")
def test_an_oracle_releases_the_same_from_row_numbers(pair, sampling, sizes, monkeypatch):
    at_once = OracleData.__init__

    def not_an_array(self, source, rows=None, *more):
        assert rows is None or isinstance(rows, RowNumbers)
        at_once(self, source, rows, *more)

    monkeypatch.setattr(OracleData, "__init__", not_an_array)
    found = released(*pair, sampling, SIZES[sizes])
    monkeypatch.undo()
    for mine, other in zip(found, released(*pair, sampling, SIZES[sizes]), strict=True):
        assert torch.allclose(mine, other, rtol=1e-12, atol=1e-12)  # blocks are added in another order


@pytest.mark.usefixtures("many")
def test_a_sampler_of_row_numbers_past_the_end_is_refused(monkeypatch):
    draws = oracle_on("linear", "sum", "full", SIZES["all"]).draws
    assert len(draws.batch(0)) == ROWS
    monkeypatch.setattr(type(draws.sampler), "batch", lambda *_: RowRange(0, ROWS + 1))
    with pytest.raises(RuntimeError, match="of existing rows"):
        draws.batch(0)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("sampling", ["full", "one pass", "Poisson"])
@pytest.mark.parametrize("kept", [8, ROWS], ids=["many", "few"])
def test_a_batch_of_a_part_reads_rows_of_that_part(kept, sampling, sizes, monkeypatch):
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", kept)
    draws = oracle_on("linear", "sum", sampling, SIZES[sizes]).draws
    places = draws.sampler.draw(1, draws._gate.coins, draws.num_rows)
    expected = places if draws.rows is None else np.asarray(draws.rows)[places]
    found = draws.batch(1)
    assert np.asarray(found).tolist() == expected.tolist()
    assert isinstance(found, RowNumbers) == (kept == 8)


@pytest.mark.parametrize("source", SOURCES)
def test_norms_and_labels_of_a_large_batch_are_there_when_asked_for(source, many, monkeypatch):
    made = SOURCES[source]()
    point = {"weight": torch.ones(1, 3, dtype=torch.float64)}
    groups = {"all": ("weight",)}
    whole = made.engine(point, RowRange(100, 200))
    sums = whole.weighted_sums(torch.ones_like, groups)
    array = made.engine(point, np.arange(100, 200))
    assert torch.equal(sums.norms, array.norms(groups))
    assert torch.equal(whole.labels, torch.arange(100, 200))
    chunks = list(made.engine(point, RowRange(100, 200)).labelled())
    assert torch.cat([labels for labels, _ in chunks]).tolist() == list(range(100, 200))
    assert torch.allclose(
        torch.cat([grads["weight"] for _, grads in chunks]).double(),
        torch.cat([grads["weight"] for grads in array.materialise()]).double(),
    )


def test_a_source_that_takes_arrays_gets_arrays(many, monkeypatch):
    """Sources of others, workers and process groups read arrays, however many rows there are."""
    seen = []
    source = linear()
    monkeypatch.setattr(LinearSource, "takes_row_numbers", False)
    engine = LinearSource.engine
    monkeypatch.setattr(
        LinearSource, "engine", lambda self, params, rows, **more: seen.append(rows) or engine(self, params, rows)
    )
    oracle = tacita.GradientOracle(
        source, estimator=ESTIMATORS["sum"], mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        sampler=tacita.FullBatchSampler(num_records=ROWS), planned_queries=1,
        ledger=tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row"),
    )  # fmt: skip
    oracle.query({"weight": torch.ones(1, 3, dtype=torch.float64)})
    assert isinstance(seen[0], np.ndarray)
    assert len(seen[0]) == ROWS
