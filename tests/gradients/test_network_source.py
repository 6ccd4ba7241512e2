import mmap
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import tacita
from tacita.errors import UnsupportedModuleError
from tacita.gradients import LoopEngine, NetworkSource, ProgramEngine, network_source
from tacita.gradients.data import ArrayRows, BatchRows
from tacita.gradients.rules.linear import LinearRule
from tacita.gradients.rules.registry import RULES
from tests.rounding import assert_close_in


def squared(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]) ** 2


class Items(Dataset):
    """A dataset that counts its reads and augments with every generator there is."""

    def __init__(self, rows=40, augment=False):
        generator = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(rows, 4, generator=generator), torch.randn(rows, generator=generator)
        self.augment, self.reads = augment, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        noise = torch.rand(4) + np.random.rand() + random.random() if self.augment else 0
        return self.x[index] + noise, self.y[index]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def sums_of(source, indices, query=None, seed=None):
    params = {n: p for n, p in source.model.named_parameters() if p.requires_grad}
    engine = source.engine(params, np.asarray(indices, dtype=np.int64), query=query, seed=seed)
    sums = engine.weighted_sums(torch.ones_like, {"all": tuple(engine.shapes)})
    return torch.cat([v.flatten() for v in sums.values[0].values()]), sums.norms


def test_the_sum_is_that_of_plain_autograd(model):
    items = Items()
    source = NetworkSource(model, squared, items, method="loop")
    total, norms = sums_of(source, [3, 7, 8])
    squared(model, (items.x[[3, 7, 8]], items.y[[3, 7, 8]])).sum().backward()
    torch.testing.assert_close(total, torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert norms.shape == (3, 1)
    assert source.num_rows == 40


def test_every_way_to_hand_in_data_gives_the_same_bits(model, tmp_path):
    items = Items()
    x, y = items.x.numpy(), items.y.numpy()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    datasets = [items, TensorDataset(items.x, items.y), (items.x, items.y), (x, y), (mapped, y), (mapped, items.y)]
    results = [sums_of(NetworkSource(model, squared, dataset), [0, 5, 39])[0] for dataset in datasets]
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_collate_fn_is_used_for_arrays_too(model):
    items = Items()

    def doubled(rows):
        x, y = zip(*rows, strict=True)
        return 2 * torch.stack(x), torch.stack(y)

    plain, _ = sums_of(NetworkSource(model, squared, (2 * items.x, items.y)), [1, 2])
    for dataset in (items, (items.x, items.y)):
        assert torch.equal(sums_of(NetworkSource(model, squared, dataset, collate_fn=doubled), [1, 2])[0], plain)


def test_labels_are_the_indices_whatever_their_position(model):
    source = NetworkSource(model, squared, Items())
    assert source.engine(dict(model.named_parameters()), np.array([9, 2, 30])).labels.tolist() == [9, 2, 30]


def test_an_empty_batch_reads_nothing(model):
    items = Items()
    source = NetworkSource(model, squared, items)
    items.reads = 0
    total, norms = sums_of(source, [], query=0, seed=1)
    assert items.reads == 0
    assert norms.shape == (0, 1)
    assert torch.equal(total, torch.zeros(5))


def test_an_empty_dataset_is_an_ordinary_dataset(model):
    source = NetworkSource(model, squared, (torch.zeros(0, 4), torch.zeros(0)))
    assert torch.equal(sums_of(source, [])[0], torch.zeros(5))


@pytest.mark.parametrize("collate_fn", [None, torch.utils.data.default_collate])
@pytest.mark.parametrize("array", [torch.zeros, lambda *shape: np.zeros(shape, np.float32)])
def test_method_and_refusals_do_not_tell_whether_there_is_a_record(model, array, collate_fn):
    def centred(model, batch):
        return squared(model, batch) - squared(model, batch).mean()

    for rows in (0, 1, 2):
        data = array(rows, 4), array(rows)
        assert NetworkSource(model, squared, data, collate_fn=collate_fn).method == "program"
        with pytest.raises(UnsupportedModuleError, match="depends on other samples"):
            NetworkSource(model, centred, data, collate_fn=collate_fn)


def test_no_record_of_an_array_is_read_to_learn_its_shape(model):
    seen = []

    def collate(rows):
        x, y = zip(*rows, strict=True)
        seen.extend(row.tolist() for row in x)
        return torch.stack(x), torch.stack(y)

    NetworkSource(model, squared, (torch.full((2, 4), 7.0), torch.zeros(2)), collate_fn=collate)
    assert seen == [[1.0] * 4]


def test_a_collate_fn_that_takes_no_record_of_ones_is_told_the_way_out(model):
    def collate(rows):
        return {7.0: torch.zeros(1, 4)}[float(rows[0][0][0])]

    with pytest.raises(ValueError, match=r"record of ones.*KeyError. Pass a map-style Dataset"):
        NetworkSource(model, squared, (torch.full((2, 4), 7.0),), collate_fn=collate)


def test_a_dataset_without_records_leaves_the_model_untried(model):
    source = NetworkSource(model, squared, Items(rows=0))
    assert source.method == "program"
    assert torch.equal(sums_of(source, [])[0], torch.zeros(5))


@pytest.mark.parametrize("method", ["loop", "program"])
def test_the_physical_batch_changes_no_more_than_rounding(model, method):
    whole, norms = sums_of(NetworkSource(model, squared, Items(), method=method), range(20))
    for size in (1, 3, 20, 50):
        source = NetworkSource(model, squared, Items(), method=method, max_physical_batch_size=size)
        total, parts = sums_of(source, range(20))
        assert_close_in(torch.float32, total, whole)
        assert_close_in(torch.float32, parts, norms)


SCHEDULE = [np.arange(3 * q, 3 * q + 5) if q % 3 else np.arange(0) for q in range(9)]


class Given:
    """A schedule of batches that are given, and of seeds."""

    def __init__(self, batches=SCHEDULE, seed=lambda query: None):
        self.batches, self.seed = batches, seed

    def batch(self, query):
        return self.batches[query]


def run(source, queries, schedule=SCHEDULE):
    source.follow(Given(schedule, lambda query: query))
    found = [sums_of(source, SCHEDULE[q], query=q, seed=q)[0] for q in queries]
    source.follow(None)
    return found


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("queries", [range(9), [4, 5, 1, 2, 2, 8]])
def test_workers_change_no_bit(model, size, queries):
    def source(workers):
        return NetworkSource(model, squared, Items(augment=True), num_workers=workers, max_physical_batch_size=size)

    expected = run(source(0), queries)
    assert not torch.equal(expected[0], expected[1])
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with_workers = run(source(2), queries)
    assert all(torch.equal(a, b) for a, b in zip(expected, with_workers, strict=True))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_workers_read_ahead(model):
    items = Items()
    source = NetworkSource(model, squared, items, num_workers=1)
    items.reads = 0
    run(source, range(9))
    assert items.reads == 0  # all of them were read by the worker, in its own copy


def test_a_batch_that_is_not_the_scheduled_one_is_read_anew(model):
    plain = run(NetworkSource(model, squared, Items()), range(9))
    other = [batch + 1 for batch in SCHEDULE]
    wrong = run(NetworkSource(model, squared, Items(), num_workers=1), range(9), other)
    assert all(torch.equal(a, b) for a, b in zip(plain, wrong, strict=True))


def test_a_chunk_read_ahead_under_another_seed_is_not_used(model):
    def found(workers, seeds):
        source = NetworkSource(model, squared, Items(augment=True), num_workers=workers, max_physical_batch_size=2)
        source.follow(Given(seed=seeds))
        sums = [sums_of(source, SCHEDULE[q], query=q, seed=q)[0] for q in range(5)]
        source.follow(None)
        return sums

    expected = found(0, lambda query: None)
    for seeds in (lambda query: None, lambda query: query + (query > 1), lambda query: query + 2**200):
        assert all(torch.equal(a, b) for a, b in zip(expected, found(1, seeds), strict=True))


def test_without_a_seed_workers_read_ahead_what_is_read_here(model):
    items = Items(augment=True)
    source = NetworkSource(model, squared, items, num_workers=1)
    expected = [sums_of(source, SCHEDULE[q], query=q)[0] for q in range(9)]
    items.reads = 0
    source.follow(Given())
    ahead = [sums_of(source, SCHEDULE[q], query=q)[0] for q in range(9)]
    source.follow(None)
    assert items.reads == 0
    assert all(torch.equal(a, b) for a, b in zip(expected, ahead, strict=True))


def test_a_batch_read_twice_is_the_same(model):
    source = NetworkSource(model, squared, Items(augment=True), num_workers=1, max_physical_batch_size=2)
    source.follow(Given())
    engine = source.engine(dict(model.named_parameters()), SCHEDULE[1], query=1)
    groups = {"all": ("weight", "bias")}
    assert torch.equal(engine.norms(groups), engine.norms(groups))
    source.follow(None)


def test_augmentation_of_a_record_does_not_depend_on_the_others(model):
    source = NetworkSource(model, squared, Items(augment=True))
    _, together = sums_of(source, [1, 5, 9], query=3)
    _, alone = sums_of(source, [9], query=3)
    _, later = sums_of(source, [9], query=4)
    assert_close_in(torch.float32, together[2:], alone)
    assert not torch.allclose(alone, later)


class Flips(Dataset):
    """Ones with a random sign, as images are flipped: it is the gradient of the model's output."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.tensor([1.0 if torch.rand(()) < 0.5 else -1.0])


def flips(**settings):
    source = NetworkSource(nn.Linear(1, 1, bias=False), lambda model, x: model(x).squeeze(1), Flips())
    engine = source.engine(dict(source.model.named_parameters()), np.arange(200), **settings)
    return torch.cat([grads["weight"].flatten() for grads in engine.materialise()])


def test_nobody_without_the_secret_knows_the_augmentation():
    # if one did, a record removed would tell of itself by what is drawn for all records after it
    torch.manual_seed(0)
    drawn = [flips(query=0, seed=seed) for seed in (1, 2, 2**200 + 1, None, None)]
    drawn += [flips(seed=seed) for seed in (None, None)]
    for k, first in enumerate(drawn):
        assert abs(first.sum()) < 90
        for second in drawn[:k]:
            assert abs(first @ second) < 90  # 6.4 standard deviations
    assert torch.equal(drawn[0], flips(query=0, seed=1))


def test_a_collate_fn_draws_from_the_secret_too(model):
    def noisy(rows):
        x, y = zip(*rows, strict=True)
        return torch.stack(x) + torch.randn(len(x), 4), torch.stack(y)

    def found(seed, workers=0):
        source = NetworkSource(
            model, squared, Items(), collate_fn=noisy, max_physical_batch_size=2, num_workers=workers
        )
        source.follow(Given(seed=lambda query: seed))
        torch.manual_seed(0)
        sums = torch.stack([sums_of(source, SCHEDULE[q], query=q, seed=seed)[0] for q in (1, 2)])
        source.follow(None)
        return sums

    assert torch.equal(found(1), found(1, workers=1))
    assert not torch.isclose(found(1), found(2)).any()


@pytest.mark.parametrize("method", ["loop", "program"])
def test_records_and_model_draw_apart(model, method):
    """The gradient of a loss that multiplies a weight by what it draws is what it draws."""
    drawn = []

    class Noisy(Items):
        def __getitem__(self, index):
            drawn.append(torch.rand(4))
            return super().__getitem__(index)

    def drawing(model, batch):
        return model(torch.rand_like(batch[0])).squeeze(1)

    source = NetworkSource(model, drawing, Noisy(), method=method)
    drawn.clear()
    engine = source.engine(dict(model.named_parameters()), np.array([0]), query=0, seed=7)
    (gradient,) = engine.weighted_sums(torch.ones_like, {"all": ("weight", "bias")}).values
    assert len(drawn) == 1
    assert not torch.isclose(gradient["weight"][0], drawn[0]).any()


def test_records_of_one_query_are_augmented_apart(model):
    items = Items(augment=True)
    items.x[:], items.y[:] = 1.0, 1.0
    _, norms = sums_of(NetworkSource(model, squared, items), range(10), query=3)
    assert len(set(norms.flatten().tolist())) == 10


def test_a_parameter_without_a_rule_does_not_lose_the_model_its_engine():
    model = nn.Sequential(nn.Linear(4, 1), nn.PReLU())
    rows = [0, 5, 7]
    program, loop = (
        sums_of(NetworkSource(model, squared, Items(), method=method), rows) for method in ("auto", "loop")
    )
    assert NetworkSource(model, squared, Items()).method == "program"
    torch.testing.assert_close(program, loop, rtol=1e-5, atol=1e-6)


def test_a_mode_that_is_changed_later_is_tried_again():
    """Row 57 of the pitfalls: a model that was tried in one mode computes something else in the other."""

    class Changing(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if not self.training and x.sum() > 0 else 1.0)

    model = Changing(4, 1)
    source = NetworkSource(model, squared, Items(), method="program")
    source.engine(dict(model.named_parameters()), np.array([1])).norms({"all": ("weight", "bias")})
    model.eval()
    with pytest.raises(UnsupportedModuleError, match="looks at values of a record"):
        source.engine(dict(model.named_parameters()), np.array([1]))


@pytest.mark.parametrize("method", ["auto", "program"])
def test_the_code_of_a_model_never_meets_a_record_unless_the_loop_is_asked_for(branching, method):
    """What cannot be written down is refused with both ways out; nothing falls back to the loop."""
    given = branching.model, branching.loss_fn, branching.data
    says = (
        r'method="program" cannot serve this model: its code looks at values of a record.*Rewrite that; or pass method='
    )
    with pytest.raises(UnsupportedModuleError, match=says):
        NetworkSource(*given, method=method)
    source = NetworkSource(*given, method="loop")
    (condition,) = source.conditions
    assert "ran on records, one at a time, keeps nothing" in condition


@pytest.mark.parametrize(
    ("method", "kind"), [("loop", LoopEngine), ("program", ProgramEngine), ("auto", ProgramEngine)]
)
def test_a_method_asked_for_is_the_one_used(model, method, kind):
    source = NetworkSource(model, squared, Items(), method=method)
    assert isinstance(source.engine(dict(model.named_parameters()), np.array([1])), kind)


def test_a_mode_that_mixes_samples_is_refused_later_too():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).eval()
    source = NetworkSource(model, squared, Items())
    sums_of(source, [1, 2])
    model.train()
    with pytest.raises(UnsupportedModuleError, match="BatchNorm1d '1' by GroupNorm"):
        sums_of(source, [1, 2])


class Switched(nn.Module):
    """A second layer that some steps use and others do not."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.both = nn.Linear(4, 4), nn.Linear(4, 4), True

    def forward(self, x):
        x = self.first(x)
        return self.second(x) if self.both else x


@pytest.mark.parametrize("method", ["loop", "program"])
def test_a_layer_not_used_in_a_step_leaves_nothing_of_an_earlier_one(method):
    model, items = Switched(), Items()
    source = NetworkSource(model, lambda model, batch: model(batch[0]).square().sum(dim=1), items, method=method)
    groups = {name: (name,) for name, _ in model.named_parameters()}
    for both in (True, False, True):
        model.both = both
        source.retrace()
        engine = source.engine(dict(model.named_parameters()), np.arange(6))
        sums = engine.weighted_sums(torch.ones_like, groups)
        assert (sums.norms[:, :2] > 0).all()
        assert (sums.norms[:, 2:] > 0).all() == bool(sums.values[0]["second.weight"].any()) == both


def test_other_parameters_than_those_at_the_start_are_refused(model):
    source = NetworkSource(model, squared, Items())
    model.bias.requires_grad_(False)
    with pytest.raises(
        ValueError, match=r"these differ: bias\. .* backward\(updates=...\); .* an oracle for each on the same ledger"
    ):
        sums_of(source, [1])


def test_shown_in_print_is_nothing_of_the_data(model):
    assert repr(NetworkSource(model, squared, Items())) == ("NetworkSource(model=Linear, method='program')")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(method="fast"), "method must be one of auto, program, loop, got 'fast'"),
        (dict(num_workers=-1), "num_workers must be an integer >= 0"),
        (dict(max_physical_batch_size=0), "max_physical_batch_size must be an integer >= 1"),
        (dict(process_group=object()), "process_group must be None"),
        (dict(dataset=iter([])), "must be a map-style Dataset"),
        (dict(dataset=torch.ones(3, 4)), "tuple of arrays, got one Tensor"),
        (dict(dataset=(torch.ones(3, 4), torch.ones(2))), "same length"),
        (dict(dataset=(np.array(["a", "b"]),)), "which torch does not have"),
        (dict(model=nn.ReLU()), "at least one trainable parameter"),
    ],
)
def test_settings_are_checked(model, settings, message):
    arguments = dict(model=model, loss_fn=squared, dataset=Items()) | settings
    with pytest.raises(ValueError, match=message):
        NetworkSource(**arguments)


@pytest.mark.parametrize(
    ("collate_fn", "message"),
    [
        (lambda rows: ["text", torch.ones(len(rows), 4)], "found str"),
        (lambda rows: (torch.ones(len(rows), 4), torch.tensor(1.0)), "batch axis first"),
        (lambda rows: (torch.ones(7, 4), torch.ones(len(rows))), "batch axis first"),
    ],
)
def test_a_batch_that_has_no_rows_to_take_apart_is_refused(model, collate_fn, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        NetworkSource(model, squared, Items(), collate_fn=collate_fn)


class Sequences(Dataset):
    """Sequences of many lengths, and one that is much longer."""

    lengths = (2, 5, 3, 40, 4)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.arange(1.0, self.lengths[index] + 1), float(index)


def to_the_longest(items):
    """What pitfall 58 is about: one long record stretches all others."""
    longest = max(len(x) for x, _ in items)
    rows = [nn.functional.pad(x, (0, longest - len(x))) for x, _ in items]
    return torch.stack(rows).mean(dim=1, keepdim=True).expand(-1, 4), torch.tensor([y for _, y in items])


def test_a_record_is_collated_without_the_others(model):
    """A long companion does not change what a record is padded to."""
    source = NetworkSource(model, squared, Sequences(), collate_fn=to_the_longest)
    alone, _ = sums_of(source, [0])
    both, _ = sums_of(source, [0, 3])
    other, _ = sums_of(source, [3])
    torch.testing.assert_close(both, alone + other)


def test_records_of_different_shapes_are_told_to_be_padded(model):
    def as_it_is(items):
        ((x, y),) = items
        return x[None], torch.tensor([y])

    def loss_fn(model, batch):
        return squared(model, (batch[0].mean(dim=1, keepdim=True).expand(-1, 4), batch[1]))

    for collate_fn in (as_it_is, None):
        with pytest.raises(ValueError, match=r"Pad to a public length: collate_fn=tacita\.pad_to") as error:
            sums_of(NetworkSource(model, loss_fn, Sequences(), collate_fn=collate_fn), [0, 3])
        assert not any(number in str(error.value) for number in ("40", "2 ", "5 "))


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_a_loss_of_outputs_and_targets_is_told_what_to_write(model, loss_fn):
    with pytest.raises(
        ValueError, match=r"def loss_fn\(model, batch\): return (nn|partial).*\(model\(batch\[0\]\), batch\[1\]"
    ):
        NetworkSource(model, loss_fn, (torch.zeros(3, 4), torch.zeros(3)))


def test_records_that_are_padded_have_one_shape(model):
    def loss_fn(model, batch):
        return squared(model, (batch[0].mean(dim=1, keepdim=True).expand(-1, 4), batch[1]))

    padded = NetworkSource(model, loss_fn, Sequences(), collate_fn=tacita.pad_to(8))
    assert sums_of(padded, [0, 3])[0].isfinite().all()


def test_pad_to_cuts_and_fills_every_sequence_of_a_record():
    record = {"tokens": [5, 6], "mask": np.ones(2), "pair": (torch.ones(3, 2), 7)}
    batch = tacita.pad_to(3, value=-1)([record])
    assert batch["tokens"].tolist() == [[5, 6, -1]]
    assert batch["mask"].tolist() == [[1, 1, -1]]
    assert batch["pair"][0].shape == (1, 3, 2)
    assert batch["pair"][1].tolist() == [7]
    with pytest.raises(ValueError, match="length must be"):
        tacita.pad_to(0)


def test_pad_to_fills_a_named_field_with_a_value_of_its_own():
    record = {"tokens": [5, 6], "labels": [5, 6], "parts": {"labels": [[1]], "other": (np.ones(1), [2])}}
    batch = tacita.pad_to(3, value={"labels": -100})([record])
    assert batch["tokens"].tolist() == [[5, 6, 0]]
    assert batch["labels"].tolist() == [[5, 6, -100]]
    assert batch["parts"]["labels"].tolist() == [[[1], [-100], [-100]]]
    assert [part.tolist() for part in batch["parts"]["other"]] == [[[1, 0, 0]], [[2, 0, 0]]]


@pytest.mark.parametrize("method", ["loop", "program"])
def test_no_message_counts_the_records_of_a_batch(model, method):
    """Row 59 of the pitfalls: "12 for 38 samples" tells the secret size of a batch."""
    bad = [False]

    def loss_fn(model, batch):
        losses = squared(model, batch)
        return losses.repeat(3) if bad[0] else losses

    said = []
    for rows in (range(7), range(8)):
        bad[0] = False
        source = NetworkSource(model, loss_fn, Items(), method=method)
        bad[0] = True
        with pytest.raises(UnsupportedModuleError) as error:
            sums_of(source, rows)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_batches_may_be_dictionaries(model):
    class Named(Items):
        def __getitem__(self, index):
            return {"x": self.x[index], "y": {"target": self.y[index]}}

    def loss_fn(model, batch):
        return squared(model, (batch["x"], batch["y"]["target"]))

    expected, _ = sums_of(NetworkSource(model, squared, Items()), [1, 2])
    for method in ("loop", "program"):
        found, _ = sums_of(NetworkSource(model, loss_fn, Named(), method=method), [1, 2])
        torch.testing.assert_close(found, expected)


def test_a_batch_that_is_there_already_is_a_dataset(model):
    items = Items()

    def loss_fn(model, batch):
        return squared(model, (batch["x"], batch["y"]))

    expected, _ = sums_of(NetworkSource(model, squared, items), [1, 2])
    found, _ = sums_of(NetworkSource(model, loss_fn, BatchRows({"x": items.x, "y": items.y})), [1, 2])
    assert torch.equal(found, expected)
    with pytest.raises(UnsupportedModuleError, match="batch axis first"):
        BatchRows((items.x, items.y[:3]))


def test_an_object_with_length_and_items_is_a_dataset(model):
    items = Items()
    records = list(zip(items.x, items.y, strict=True))
    assert torch.equal(
        sums_of(NetworkSource(model, squared, records), [1, 2])[0],
        sums_of(NetworkSource(model, squared, items), [1, 2])[0],
    )


def memory_of(source, indices):
    """Where the first tensor of each physical batch lies."""
    engine = source.engine({n: p for n, p in source.model.named_parameters()}, np.asarray(indices, np.int64))
    return [chunk.batch[0].data_ptr() for chunk in engine._chunks]


@pytest.fixture
def small_batches_lent(monkeypatch):
    monkeypatch.setattr(network_source, "LENT_FROM", 0)


@pytest.mark.usefixtures("small_batches_lent")
@pytest.mark.parametrize("as_array", [False, True])
def test_rows_side_by_side_are_read_where_they_lie(model, as_array):
    x, y = torch.randn(12, 4), torch.randn(12)
    source = NetworkSource(model, squared, (x.numpy(), y.numpy()) if as_array else (x, y), max_physical_batch_size=5)
    assert memory_of(source, range(12)) == [x[k].data_ptr() for k in (0, 5, 10)]
    for copied in ([3, 5, 6], [4, 3], [0, 0, 2]):
        assert memory_of(source, copied)[0] not in [row.data_ptr() for row in x]
    whole = NetworkSource(model, squared, (x, y), method="loop")
    torch.testing.assert_close(sums_of(source, range(12))[0], sums_of(whole, range(12))[0])


@pytest.mark.usefixtures("small_batches_lent")
def test_rows_on_disk_and_rows_that_nobody_may_write_are_copied(model, tmp_path):
    x, y = np.memmap(tmp_path / "x", np.float32, "w+", shape=(6, 4)), np.ones(6, np.float32)
    assert memory_of(NetworkSource(model, squared, (x, y)), range(6)) != [x.ctypes.data]
    x = np.ones((6, 4), np.float32)
    x.flags.writeable = False
    assert memory_of(NetworkSource(model, squared, (x, y)), range(6)) != [x.ctypes.data]


class Watched(mmap.mmap):
    """A file in memory that notes the pages which are asked for."""

    def madvise(self, option, start, length):
        assert option == mmap.MADV_WILLNEED
        self.asked |= {*range(start // mmap.PAGESIZE, (start + length) // mmap.PAGESIZE)}


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the system takes no advice")
@pytest.mark.parametrize("width", [1, 300])
def test_rare_rows_of_a_memory_map_are_asked_for_and_no_other(tmp_path, width):
    rows, skipped = 2_000_000 // width, 500
    np.arange(width * rows, dtype=np.float32).tofile(tmp_path / "x")
    with (tmp_path / "x").open("rb") as file:
        watched = Watched(file.fileno(), 0, access=mmap.ACCESS_READ)
    watched.asked = set()
    whole = np.frombuffer(watched, np.float32).reshape(rows, width).view(np.memmap)
    whole._mmap = watched
    x = whole[skipped:]
    drawn = np.array([0, 1, 7, len(x) // 2, len(x) - 1])
    batch = ArrayRows((x,)).fetch(drawn, seed=0)
    assert torch.equal(batch[0], torch.from_numpy(x[drawn]))
    size = 4 * width
    ends = [(start, start + size - 1) for start in (skipped + drawn) * size]
    assert watched.asked == {page for a, b in ends for page in range(a // mmap.PAGESIZE, b // mmap.PAGESIZE + 1)}
    watched.asked.clear()
    ArrayRows((x,)).fetch(np.arange(0, len(x), 3), seed=0)
    assert not watched.asked  # of many rows the system reads what lies between them, too


@pytest.mark.usefixtures("small_batches_lent")
def test_a_model_that_writes_its_batch_leaves_the_data_set_as_it_is(model):
    x, y = torch.randn(12, 4), torch.randn(12)
    before = x.clone()
    source = NetworkSource(nn.Sequential(nn.ReLU(inplace=True), model), squared, (x, y))
    assert source.method == "program"
    sums_of(source, range(12))
    assert torch.equal(x, before)


@pytest.mark.usefixtures("small_batches_lent")
@pytest.mark.parametrize("name", ["split", "grads", "squared_norms", "sums"])
def test_a_rule_of_the_users_own_never_gets_the_data_themselves(model, name, monkeypatch):
    """It may write what it is given: a copy."""

    def writing(self, use, *given, **switches):
        use.x.mul_(2.0)
        return getattr(LinearRule, name)(self, use, *given, **switches)

    monkeypatch.setitem(RULES, nn.functional.linear, type("Writing", (LinearRule,), {name: writing})())
    monkeypatch.setattr("tacita.gradients.engine_choice._difference", lambda pairs: "")
    x, y = torch.randn(12, 4), torch.randn(12)
    before = x.clone()
    for loss_fn in (squared, lambda model, batch: nn.functional.linear(batch[0], model.weight.view(4, 1).t()).sum(1)):
        sums_of(NetworkSource(model, loss_fn, (x, y)), range(12))
        assert torch.equal(x, before)


class Echo(torch.autograd.Function):
    """Returns what it was given beside its input as the gradient of that."""

    generate_vmap_rule = True

    @staticmethod
    def forward(found, x):
        return found.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0], None


@pytest.mark.usefixtures("small_batches_lent")
@pytest.mark.parametrize("made", [nn.Linear(4, 4), nn.LayerNorm(4)])
def test_no_rule_writes_a_gradient_that_is_the_batch_itself(made):
    x = torch.randn(12, 4)
    before, names = x.clone(), tuple(dict(made.named_parameters()))

    def echoing(model, batch):
        return Echo.apply(model(batch[0]), batch[0]).flatten(1).sum(dim=1)

    def added(model, batch):
        return Echo.apply(batch[0] + model.bias, batch[0]).flatten(1).sum(dim=1)

    for loss_fn in (echoing, added):
        source = NetworkSource(made, loss_fn, (x, torch.ones(12)))
        engine = source.engine(dict(made.named_parameters()), np.arange(12), query=0)
        engine.weighted_sums(lambda norms: norms.reciprocal(), {"all": names})
        (grads,) = engine.materialise()
        for grad in grads.values():
            grad.zero_()
        assert torch.equal(x, before)
