"""Whatever container holds a batch, the result has the same bits: everywhere where data are handed in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacita
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource, probe
from tacita.gradients.arrays import check_arrays, is_arrays, length
from tacita.gradients.batches import flatten, stacked
from tacita.testing.one_run.training import audit_one_run
from tests.containers import HOLDERS, Columns, Items, columns

ROWS = 60
EVERY = pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
SOME = pytest.mark.parametrize("kind", ["nested dict", "frozen dataclass"])  # for what takes long
TUPLE = HOLDERS["tuple"]


def loss_fn(model, batch):
    x, y = columns(batch)
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def table(rows=ROWS):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    return x, (x[:, 0] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("kind", "method"), [*((kind, "auto") for kind in HOLDERS), ("frozen dataclass", "loop")])
def test_a_clipped_sum(kind, method):
    hold = HOLDERS[kind]
    found, plain = (
        tacita.clipped_gradient_sum(network(), loss_fn, one(*table()), tacita.FlatClipper(max_grad_norm=0.5), method)
        for one in (hold, TUPLE)
    )
    assert torch.equal(found.norms, plain.norms)
    for name, value in plain.sum.items():
        assert torch.equal(found.sum[name], value)


@EVERY
def test_the_dry_run(hold):
    plan, plain = (tacita.explain(network(), loss_fn, one(*table())) for one in (hold, TUPLE))
    assert plan == plain
    assert plan.method == "program"


@EVERY
def test_the_probe(hold):
    """Synthetic rows, one row among others, a row alone: in the container of the batch."""
    x, y = table(4)
    batch = hold(x, y)
    made = probe.synthetic(batch, 3, fill="mixed", seed=0)
    assert type(made) is type(probe.row(made, 0)) is type(probe.row_repeated(made, 1))
    other = probe.synthetic(batch, 3, fill="mixed", seed=1)
    chosen = columns(probe.select(made, other, 2))[0]
    assert torch.equal(chosen[2], columns(made)[0][2])
    assert torch.equal(chosen[:2], columns(other)[0][:2])

    def mixing(model, rows):
        return loss_fn(model, rows) - loss_fn(model, rows).mean()

    with pytest.raises(UnsupportedModuleError, match="depends on other samples"):
        NetworkSource(network(), mixing, batch)


def released(dataset, *, kind=tacita.ClippedGradientOracle, num_records=ROWS, queries=2, loss=loss_fn, **changes):
    """The releases of a session on a data set, under one key."""
    model = network()
    settings = dict(
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=num_records),
        clipper=tacita.FlatClipper(max_grad_norm=0.5),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=queries,
        randomness=tacita.Randomness.insecure(0),
        **changes,
    )
    oracle = kind(model, loss, dataset, **settings)
    found = [oracle.query(dict(model.named_parameters())).gradient for _ in range(queries)]
    return torch.cat([value.flatten() for gradient in found for value in gradient.values()])


WAYS = {
    "arrays": lambda hold, x, y: (hold(x, y), {}),
    "items": lambda hold, x, y: (Items(x, y, hold), {}),
    "NumPy": lambda hold, x, y: (hold(x.numpy(), y.numpy()), {}),
    "collated": lambda hold, x, y: (Items(x, y, hold), {"collate_fn": stacked}),
    "arrays collated": lambda hold, x, y: (hold(x, y), {"collate_fn": stacked}),
    "padded": lambda hold, x, y: (Items(x, y, hold, lambda row: row[:2]), {"collate_fn": tacita.pad_to(3)}),
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in HOLDERS for way in ("arrays", "items")]
    + [(kind, way) for kind in ("nested dict", "tokenizer", "dataclass") for way in [*WAYS][2:]],
)
def test_an_oracle(kind, way):
    makers = HOLDERS[kind], TUPLE
    found, plain = (released(data, **more) for data, more in (WAYS[way](hold, *table()) for hold in makers))
    assert torch.equal(found, plain)


ORACLES = {
    "error feedback": dict(
        kind=tacita.ErrorFeedbackOracle,
        feedback=tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=0.5),
    ),
    "physical batches": dict(max_physical_batch_size=7),
    "workers": dict(num_workers=1),
}  # fmt: skip


@SOME
@pytest.mark.filterwarnings("ignore:declared_max_grad_norm")
@pytest.mark.parametrize("changes", ORACLES.values(), ids=ORACLES)
def test_every_oracle(kind, changes):
    found, plain = (released(one(*table()), **changes) for one in (HOLDERS[kind], TUPLE))
    assert torch.equal(found, plain)


@SOME
def test_a_stationary_test(kind):
    def certificate(hold):
        model = network()
        test = tacita.StationaryTest(
            model, loss_fn, hold(*table()), num_records=ROWS, epsilon=1e4, alpha=2.0, hessian_lipschitz=1.0,
            max_grad_norm=0.5, declared_max_hessian_norm=20.0, because="it is so", max_tests=2,
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
            failure_probability=0.1, randomness=tacita.Randomness.insecure(0),
        )  # fmt: skip
        assert test.test(dict(model.named_parameters()))
        return test.certificate()

    assert certificate(HOLDERS[kind]) == certificate(TUPLE)


@EVERY
def test_a_split(hold):
    """The same coins for the same arrays, whatever holds them; a split of items goes by their number."""
    x, y = table()
    key = tacita.Randomness.insecure(3)
    for sizes in ([0.5, 0.5], [20, 40]):
        found, plain = (tacita.split(one(x, y), sizes, randomness=key) for one in (hold, TUPLE))
        assert [part.part for part in found] == [part.part for part in plain]
        assert all(np.array_equal(a.rows, b.rows) for a, b in zip(found, plain, strict=True))
    assert torch.equal(*(released(tacita.split(one(x, y), [0.5, 0.5], randomness=key)[0]) for one in (hold, TUPLE)))
    other = tacita.split(hold(x + 1, y), [0.5, 0.5], randomness=key)
    assert other[0].part != tacita.split(hold(x, y), [0.5, 0.5], randomness=key)[0].part
    units = np.arange(ROWS) // 3
    assert len(tacita.cap_units(hold(x, y), units, 2, randomness=key).rows) == 40
    assert len(tacita.cap_units(Items(x, y, hold), units, 2, randomness=key).rows) == 40


def fitted(dataset, folder=None, **changes):
    return tacita.fit(
        network(), loss_fn, dataset, target_epsilon=3.0, target_delta=1e-3, epochs=2, num_records=ROWS,
        expected_batch_size=15, max_grad_norm=0.5, privacy_unit="one row", progress=False, folder=folder,
        randomness=tacita.Randomness.insecure(0), **changes,
    )  # fmt: skip


@SOME
@pytest.mark.parametrize(
    "of", [lambda hold, x, y: hold(x, y), lambda hold, x, y: Items(x, y, hold)], ids=["arrays", "items"]
)
def test_a_fit_with_its_loss_on_public_data(kind, of):
    found, plain = (fitted(of(one, *table()), public_data=of(one, *table(9))) for one in (HOLDERS[kind], TUPLE))
    assert torch.equal(weights(found.model), weights(plain.model))
    assert found.public_losses == plain.public_losses
    assert len(found.public_losses) == 8


class Stop(Exception):
    pass


@SOME
@pytest.mark.parametrize(
    "of", [lambda hold, x, y: hold(x, y), lambda hold, x, y: Items(x, y, hold)], ids=["arrays", "items"]
)
def test_a_run_in_a_folder_knows_its_data(monkeypatch, tmp_path: Path, kind, of):
    hold, (x, y) = HOLDERS[kind], table()
    step = torch.optim.Adam.step

    def stopping(self, *args, **kwargs):
        if len(self.state) and next(iter(self.state.values()))["step"] == 5:
            raise Stop
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", stopping)
        with pytest.raises(Stop):
            fitted(of(hold, x, y), tmp_path / "run")
    with pytest.raises(tacita.ResumeError):
        fitted(of(hold, x + 1, y), tmp_path / "run")
    whole = fitted(of(TUPLE, x, y), tmp_path / "whole")
    assert torch.equal(weights(fitted(of(hold, x, y), tmp_path / "run").model), weights(whole.model))


@SOME
@pytest.mark.parametrize("canaries", ["planted", "rows"])
@pytest.mark.parametrize(
    "of", [lambda hold, x, y: hold(x, y), lambda hold, x, y: Items(x, y, hold)], ids=["arrays", "items"]
)
def test_an_audit_in_one_run(kind, canaries, of):
    def found(hold):
        def make_oracle(model, loss, records):
            ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
            return tacita.ClippedGradientOracle(
                model, loss, records, ledger=ledger,
                sampler=tacita.FullBatchSampler(num_records=ROWS), clipper=tacita.FlatClipper(max_grad_norm=0.5),
                mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), planned_queries=2,
                randomness=tacita.Randomness.insecure(1),
            )  # fmt: skip

        return audit_one_run(
            network(), loss_fn, of(hold, *table()), 60 if canaries == "planted" else of(hold, *table(60)),
            make_oracle=make_oracle, optimizer=lambda params: torch.optim.SGD(params, lr=0.1), delta=1e-3,
            randomness=tacita.Randomness.insecure(2),
        ).scores  # fmt: skip

    assert np.array_equal(found(HOLDERS[kind]), found(TUPLE))


# -- what is an array, and what a record


def test_a_list_of_records_is_no_list_of_arrays():
    x, y = table()
    items = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    assert not is_arrays(items)
    assert length(items) == ROWS
    assert torch.equal(released(items), released((x, y)))
    assert [len(part.rows) for part in tacita.split(items, [20, 40])] == [20, 40]
    pairs = [(a, int(b)) for a, b in zip(x, y, strict=True)]
    assert length(pairs) == ROWS
    assert torch.equal(released(pairs), released((x, y)))


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        ({}, "found nothing"),
        ({"text": ["a", "b"]}, "found str"),
        ({"x": torch.zeros(3), "y": torch.zeros(4)}, "of the same length"),
        ({"x": torch.zeros(())}, "of the same length"),
        (Columns(torch.zeros(3), 7), "found int"),
        ({"x": np.array(["a"])}, "which torch does not have"),
    ],
)
def test_what_is_no_data_set_is_refused_with_the_way_out(dataset, says):
    with pytest.raises(ValueError, match=says):
        check_arrays(dataset)
    with pytest.raises(ValueError, match=says):
        NetworkSource(network(), loss_fn, dataset)


def test_a_dataclass_is_built_anew_for_other_rows():
    """Else a mask that it computed of the whole batch would stand beside one record."""
    x, y = table(5)
    tensors, rebuild = flatten(HOLDERS["frozen dataclass"](x, y), 5)
    assert len(tensors) == 2
    one = rebuild([tensor[2:3] for tensor in tensors])
    assert torch.equal(one.signs, x[2:3].sign())
