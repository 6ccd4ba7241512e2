"""Traced steps where other parts of tacita meet them: ranks, views, containers, estimators, runs that resume."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import tacita
from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.gradients import NetworkSource, SeveralViews, mean_over_views
from tests.gradients.test_coverage import CASES, made
from tests.gradients.test_traced import ABOUT, CLIP, ROWS, Scaled, cross_entropy, ledger, pair, rows, same, sums
from tests.oracles.ranks import results, run_ranks
from tests.training import small_run

CLIPPERS = {
    "flat": FlatClipper(max_grad_norm=1.0),
    "per layer": PerLayerClipper(max_grad_norm=1.0),
    "automatic": AutomaticClipper(max_grad_norm=1.0, gamma=0.01),
}


def scaled():
    torch.manual_seed(0)
    return Scaled()


# --- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 8, 64])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_add_up_what_one_process_adds_up(ranks, size):
    """Batches of which ranks get unequal shares, or nothing; 3 and 8 rows are filled up in the last physical batch."""
    counts = (0, 1, 2, 7, ROWS)
    ghost, alone = pair(scaled(), max_physical_batch_size=size)

    def work(rank, group):
        source = NetworkSource(
            scaled(), cross_entropy, rows(), method="traced", max_physical_batch_size=size, process_group=group
        )
        found = [sums(source, np.arange(count)) for count in counts]
        assert len(source._lines._lines) == 1
        return [(dict(one.values[0]), len(one.norms)) for one in found]

    found = results(run_ranks(ranks, work))
    for k, count in enumerate(counts):
        assert sum(of_rank[k][1] for of_rank in found) == count
        for source in (ghost, alone):
            expected = dict(sums(source, np.arange(count)).values[0])
            for of_rank in found:
                torch.testing.assert_close(of_rank[k][0], expected, **ABOUT)


def test_each_rank_draws_dropout_of_its_own():
    model, data = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(0.5)), (torch.ones(64, 1),)

    def work(rank, group):
        source = NetworkSource(
            model,
            lambda model, batch: model(batch[0]).squeeze(1),
            data,
            method="traced",
            max_physical_batch_size=32,
            process_group=group,
        )
        engine = source.engine(dict(model.named_parameters()), np.arange(64), query=0, seed=7)
        return engine.norms({"all": ("0.weight",)}).flatten()

    first, second = results(run_ranks(2, work))
    assert first.shape == second.shape == (32,)
    assert not torch.equal(first, second)


# --- records and batches ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


BATCHES = {
    "mapping": (lambda x, y: {"x": x, "more": {"y": y}}, lambda batch: (batch["x"], batch["more"]["y"])),
    "list": (lambda x, y: [y, x], lambda batch: (batch[1], batch[0])),
    "dataclass": (Batch, lambda batch: (batch.x, batch.y)),
    "one tensor twice": (lambda x, y: {"x": x, "again": x, "y": y}, lambda batch: (batch["again"], batch["y"])),
}


@pytest.mark.parametrize(("hold", "columns"), BATCHES.values(), ids=BATCHES)
def test_batches_of_any_container(hold, columns):
    def loss_fn(model, batch):
        return cross_entropy(model, columns(batch))

    ghost, fast = (
        NetworkSource(scaled(), loss_fn, hold(*rows()), method=method, max_physical_batch_size=16)
        for method in ("ghost", "traced")
    )
    same(sums(fast), sums(ghost), **ABOUT)


def test_masks_are_rows_like_others():
    """The rows that fill up a batch are copies of the first, so that no mask is empty that would not be otherwise."""

    def loss_fn(model, batch):
        x, y, mask = batch
        kept = x * mask
        return cross_entropy(model, (kept / mask.sum(1, keepdim=True), y))

    x, y = rows()
    mask = torch.ones(ROWS, 6, dtype=torch.bool)
    mask[::2, 3:] = False
    ghost, fast = pair(scaled(), loss_fn, (x, y, mask), max_physical_batch_size=32)
    same(sums(fast), sums(ghost), **ABOUT)


def noisy(record):
    x, y = record
    return x + 0.3 * torch.randn(x.shape) + 0.1 * np.random.rand(), y


def test_several_views_of_a_record():
    data = SeveralViews(rows(), 3, noisy)
    ghost, fast = pair(scaled(), mean_over_views(cross_entropy), data, max_physical_batch_size=16)
    same(sums(fast), sums(ghost), **ABOUT)


def test_the_number_of_processes_that_read_changes_no_bit():
    found = []
    for num_workers in (0, 1):
        model = scaled()
        oracle = an_oracle(
            model, SeveralViews(rows(), 3, noisy), mean_over_views(cross_entropy), num_workers=num_workers
        )
        found.append([oracle.query(trainable(model)).gradient for _ in range(2)])
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_data_set_without_records_is_refused():
    class Nobody(torch.utils.data.Dataset):
        def __len__(self):
            return 0

    with pytest.raises(tacita.UnsupportedModuleError, match=r'needs a record, for its shapes. Use method="ghost"'):
        NetworkSource(scaled(), cross_entropy, Nobody(), method="traced", max_physical_batch_size=8)


# --- estimators and oracles ------------------------------------------------------------------------------------------


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def an_oracle(model, data, loss_fn=cross_entropy, *, kind=tacita.ClippedGradientOracle, method="traced", **changes):
    settings = dict(
        ledger=ledger(),
        sampler=tacita.PoissonSampler(sample_rate=0.4, num_records=ROWS),
        clipper=CLIP,
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=4,
        max_physical_batch_size=12,
        randomness=tacita.Randomness.insecure(3),
    )
    return kind(model, loss_fn, data, method=method, **{**settings, **changes})


def trained(model, oracle, steps=4):
    optimizer = torch.optim.SGD(trainable(model).values(), lr=0.1)
    for _ in range(steps):
        oracle.backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("clipper", CLIPPERS.values(), ids=CLIPPERS)
@pytest.mark.parametrize("unclipped", [False, True])
@pytest.mark.parametrize("size", [16, 64])
def test_clipped_gradient_sums(clipper, unclipped, size):
    ghost, fast = (
        tacita.clipped_gradient_sum(
            scaled(), cross_entropy, rows(), clipper, method, unclipped=unclipped, max_physical_batch_size=size
        )
        for method in ("ghost", "traced")
    )
    torch.testing.assert_close(fast.norms, ghost.norms, **ABOUT)
    torch.testing.assert_close(fast.sum, ghost.sum, **ABOUT)
    if unclipped:
        torch.testing.assert_close(fast.unclipped_sum, ghost.unclipped_sum, **ABOUT)


@pytest.mark.parametrize("clipper", CLIPPERS.values(), ids=CLIPPERS)
def test_an_oracle_takes_any_clipper(clipper):
    found = []
    for method in ("ghost", "traced"):
        model = scaled()
        found.append(trained(model, an_oracle(model, rows(), clipper=clipper, method=method)))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


FEEDBACKS = [
    tacita.PrivateFeedback(max_feedback_norm=0.5),
    tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0),
    tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0, every=2),
]


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=lambda one: type(one).__name__)
def test_error_feedback(feedback):
    found = []
    for method in ("ghost", "traced"):
        model = scaled()
        oracle = an_oracle(model, rows(), kind=tacita.ErrorFeedbackOracle, feedback=feedback, method=method)
        found.append(trained(model, oracle))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def without_size(kind, **more):
    if kind is tacita.fit:
        settings = small_run.SETTINGS | more
        return tacita.fit(nn.Linear(3, 1), small_run.loss_fn, small_run.rows(), epochs=1, method="traced", **settings)
    if kind is tacita.clipped_gradient_sum:
        return tacita.clipped_gradient_sum(scaled(), cross_entropy, rows(), CLIP, "traced")
    return an_oracle(scaled(), rows(), kind=kind, max_physical_batch_size=None, **more)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (tacita.fit, {}),
        (tacita.fit, {"feedback": FEEDBACKS[0]}),
        (tacita.clipped_gradient_sum, {}),
        (tacita.ClippedGradientOracle, {}),
        (tacita.ErrorFeedbackOracle, {"feedback": FEEDBACKS[0]}),
    ],
)
def test_everything_says_that_the_size_has_to_be_given(kind, more):
    with pytest.raises(ValueError, match='method="traced" needs max_physical_batch_size'):
        without_size(kind, **more)


# --- networks of other libraries -------------------------------------------------------------------------------------


def scale_adapters(model):
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.set_scale("default", 0.25)


def stop_dropout(model):
    model.eval()


def other_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.6


@pytest.mark.parametrize("change", [scale_adapters, stop_dropout, other_dropout])
def test_what_changes_in_an_adapted_transformer_is_seen(change):
    """A mapping instead of a tuple, dropout in attention and adapter, and a change between two queries."""
    case = CASES["peft_LoRA_of_GPT_2"]
    model, (tokens, mask, _) = made(case)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3

    def loss_fn(model, batch):
        return case.loss(model, (batch["tokens"], batch["mask"], None))

    ghost, fast = (
        NetworkSource(
            model.train(),
            loss_fn,
            {"tokens": tokens, "mask": mask},
            method=method,
            max_physical_batch_size=len(tokens),  # no rows are added, so that both draw the same
        )
        for method in ("ghost", "traced")
    )
    before = sums(fast)
    same(before, sums(ghost), **ABOUT)
    change(model)
    after = sums(fast)
    same(after, sums(ghost), **ABOUT)
    assert not torch.allclose(after.norms, before.norms)


def test_dropout_of_a_library_is_drawn_anew():
    case = CASES["timm_ViT"]
    model, data = made(case)
    for block in model.blocks:
        block.drop_path1 = type(block.mlp.drop1)(0.5)
    source = NetworkSource(model.train(), case.loss, data, method="traced", max_physical_batch_size=len(data[0]))
    found = [
        source.engine(trainable(model), np.arange(len(data[0])), seed=seed).norms({"all": tuple(source.shapes)})
        for seed in (1, 1, 2)
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


# --- runs ------------------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """A regression with dropout, so that a run shows which seeds it uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


class Stops(torch.utils.data.Dataset):
    """The rows of a small run; the process stops when ``stop`` rows were read."""

    def __init__(self, stop=None):
        (self.x, self.y), self.stop, self.read = small_run.rows(), stop, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read += 1
        if self.read == self.stop:
            raise KeyboardInterrupt
        return self.x[index], self.y[index]


def fit(folder=None, *, stop=None, model=None, **changes):
    model = model or Wide()
    settings = dict(
        **small_run.SETTINGS,
        epochs=2,
        folder=folder,
        method="traced",
        max_physical_batch_size=8,
        randomness=tacita.Randomness.insecure(0),
    )
    run = tacita.fit(model, small_run.loss_fn, Stops(stop), **{**settings, **changes})
    return run, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "changes",
    [
        {"clipper": CLIPPERS["per layer"], "max_grad_norm": None},
        {"clipper": CLIPPERS["automatic"], "max_grad_norm": None},
        {"feedback": FEEDBACKS[1]},
        {"hardened": True},
        {"views": 2, "augment": noisy},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fit_ends_where_the_ghost_engine_ends(changes):
    found = []
    for method in ("ghost", "traced"):
        model = Wide()
        model.layers[2].p = 0.0  # the engines draw in another order
        found.append(fit(model=model, method=method, **changes)[1])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("stop", [30, 61])
@pytest.mark.parametrize("changes", [{}, {"feedback": FEEDBACKS[0]}, {"hardened": True}], ids=["", "feedback", "grid"])
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(tmp_path, changes, stop):
    _, expected = fit(tmp_path / "whole", **changes)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "stopped", stop=stop, **changes)
    run, found = fit(tmp_path / "stopped", **changes)
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    (whole,) = tacita.Ledger.load(tmp_path / "whole" / "ledger.jsonl").sessions
    (session,) = run.ledger.sessions
    assert session.queries_made == whole.queries_made


def test_an_oracle_goes_on_from_its_state():
    """A session that goes on has a line of its own, and the releases of one that was not interrupted."""
    model = scaled()
    whole = an_oracle(model, rows())
    expected = [whole.query(trainable(model)).gradient for _ in range(4)]
    first = an_oracle(model, rows())
    found = [first.query(trainable(model)).gradient for _ in range(2)]
    again = an_oracle(model, rows(), ledger=first.ledger, session=first.session)
    again.load_state_dict(first.state_dict())
    found += [again.query(trainable(model)).gradient for _ in range(2)]
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
