"""Programs where other parts of tacita meet them: ranks, views, containers, estimators, autocast, runs that resume."""

import copy
import dataclasses
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tacita
from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource, SeveralViews, mean_over_views
from tests.distributed.ranks import results, run_ranks

ROWS = 40
ABOUT = {"rtol": 2e-5, "atol": 2e-5}
CLIPPERS = {
    "flat": FlatClipper(max_grad_norm=1.0),
    "per layer": PerLayerClipper(max_grad_norm=1.0),
    "automatic": AutomaticClipper(max_grad_norm=1.0, gamma=0.01),
}
CLIP = CLIPPERS["flat"]


def rows(count=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Scaled(nn.Module):
    """A network with a buffer, a frozen parameter, a plain number and dropout that drops nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.zeros(8))
        self.gain = nn.Parameter(torch.ones(8), requires_grad=False)
        self.power, self.drop = 1.0, nn.Dropout(0.0)

    def forward(self, x):
        return self.last(self.drop(self.first(x).tanh() * self.gain + self.shift)) * self.power


def source(method, loss_fn=cross_entropy, data=None, model=None, **options):
    return NetworkSource(model or Scaled(), loss_fn, rows() if data is None else data, method=method, **options)


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def sums(one, numbers=None):
    engine = one.engine(trainable(one.model), np.arange(ROWS) if numbers is None else numbers, query=0, seed=5)
    return engine.weighted_sums(CLIP.weights, CLIP.groups(one.shapes))


def same(found, expected, **about):
    about = about or ABOUT
    finite = expected.norms.isfinite() & (expected.norms < 1e15)
    torch.testing.assert_close(found.norms[finite], expected.norms[finite], **about)
    torch.testing.assert_close(dict(found.values[0]), dict(expected.values[0]), **about)


# --- ranks, rows and containers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 64])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_add_up_what_one_process_adds_up(ranks, size):
    """Batches of which ranks get unequal shares, or nothing."""
    counts = (0, 1, 2, 7, ROWS)
    alone = source("loop")

    def work(rank, group):
        one = source("program", max_physical_batch_size=size, process_group=group)
        return [dict(sums(one, np.arange(count)).values[0]) for count in counts]

    for of_rank in results(run_ranks(ranks, work)):
        for count, found in zip(counts, of_rank, strict=True):
            torch.testing.assert_close(found, dict(sums(alone, np.arange(count)).values[0]), **ABOUT)


def test_each_rank_draws_dropout_of_its_own():
    model, data = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(0.5)), (torch.ones(64, 1),)

    def work(rank, group):
        one = NetworkSource(
            model, lambda model, batch: model(batch[0]).squeeze(1), data, method="program", process_group=group
        )
        engine = one.engine(dict(model.named_parameters()), np.arange(64), query=0, seed=7)
        return engine.norms({"all": ("0.weight",)}).flatten()

    first, second = results(run_ranks(2, work))
    assert first.shape == second.shape == (32,)
    assert not torch.equal(first, second)


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

    program, loop = (source(method, loss_fn, hold(*rows())) for method in ("program", "loop"))
    same(sums(program), sums(loop))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("row", [0, 3])
def test_a_row_that_is_not_ordinary_adds_at_most_the_threshold(value, row):
    data = rows()
    data[0][row] = value
    program, loop = source("program", data=data), source("loop", data=data)
    others = np.delete(np.arange(ROWS), row)
    found, without = sums(program).values[0], sums(program, others)
    assert torch.stack([(found[name] - one).norm() for name, one in without.values[0].items()]).norm() <= 1 + 1e-5
    same(without, sums(loop, others))
    if value != 1e30:  # the loop's norm of that is a number
        same(sums(program), sums(loop))


def noisy(record):
    x, y = record
    return x + 0.3 * torch.randn(x.shape) + 0.1 * np.random.rand(), y


def test_several_views_of_a_record():
    data = SeveralViews(rows(), 3, noisy)
    program, loop = (
        source(method, mean_over_views(cross_entropy), data, max_physical_batch_size=16)
        for method in ("program", "loop")
    )
    same(sums(program), sums(loop))


def test_a_data_set_without_records_has_empty_queries():
    class Nobody(torch.utils.data.Dataset):
        def __len__(self):
            return 0

    one = source("program", data=Nobody())
    assert not any(total.any() for total in sums(one, np.arange(0)).values[0].values())


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_inside_and_around(inside):
    def loss_fn(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return cross_entropy(model, batch)

    program, loop = source("program", loss_fn), source("loop", loss_fn)
    plain = sums(program)
    same(plain, sums(loop), rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(sums(program), sums(loop), rtol=2e-2, atol=2e-2)
    same(sums(program), plain)


# --- estimators and oracles ------------------------------------------------------------------------------------------


def an_oracle(method, *, kind=tacita.ClippedGradientOracle, data=None, loss_fn=cross_entropy, **changes):
    settings: dict[str, Any] = dict(
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.4, num_records=ROWS),
        clipper=CLIP,
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=4,
        max_physical_batch_size=12,
        randomness=tacita.Randomness.insecure(3),
    )
    return kind(Scaled(), loss_fn, rows() if data is None else data, method=method, **{**settings, **changes})


def trained(oracle):
    optimizer = torch.optim.SGD(trainable(oracle.source.model).values(), lr=0.1)
    for _ in range(4):
        oracle.backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in oracle.source.model.named_parameters()}


FEEDBACKS = [
    tacita.PrivateFeedback(max_feedback_norm=0.5),
    tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0),
    tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0, every=2),
]
ORACLES: dict[str, dict[str, Any]] = {
    **{f"{name} clipper": dict(clipper=clipper) for name, clipper in CLIPPERS.items()},
    **{type(one).__name__: dict(kind=tacita.ErrorFeedbackOracle, feedback=one) for one in FEEDBACKS},
    "rounded noise": dict(mechanism=tacita.RoundedGaussian(noise_multiplier=1.0)),
    "views": dict(data=SeveralViews(rows(), 3, noisy), loss_fn=mean_over_views(cross_entropy)),
}


@pytest.mark.parametrize("changes", ORACLES.values(), ids=ORACLES)
def test_an_oracle_ends_where_the_loop_ends(changes):
    program, loop = (trained(an_oracle(method, **changes)) for method in ("program", "loop"))
    torch.testing.assert_close(program, loop, rtol=1e-4, atol=1e-4)


def test_an_oracle_goes_on_from_its_state():
    """A session that goes on writes a program of its own down, and has the releases of one that was not interrupted."""
    whole, first = an_oracle("program"), an_oracle("program")
    expected = [whole.query(trainable(whole.source.model)).gradient for _ in range(4)]
    found = [first.query(trainable(first.source.model)).gradient for _ in range(2)]
    again = an_oracle("program", ledger=first.ledger, session=first.session)
    again.load_state_dict(first.state_dict())
    found += [again.query(trainable(again.source.model)).gradient for _ in range(2)]
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


# --- what code may try, and threads ----------------------------------------------------------------------------------


def test_memory_that_an_operator_shares_unannounced_is_not_written():
    class Splits(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            first, second = x.unsafe_chunk(2, -1)
            first.mul_(2.0)
            return self.layer(first + second)

    data = rows()
    before = data[0].clone()
    same(sums(source("program", data=data, model=Splits())), sums(source("loop", data=data, model=Splits())))
    assert torch.equal(data[0], before)


DRAWS: dict[str, Callable[[], Any]] = {
    "NumPy": lambda: float(np.random.rand()),
    "Python": random.random,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_numbers_that_would_be_drawn_once_are_refused(draw):
    with pytest.raises(UnsupportedModuleError, match='method="program" cannot serve this model'):
        source("program", lambda model, batch: cross_entropy(model, batch) * draw())


def test_a_source_can_be_copied():
    one = source("program")
    expected = sums(one)
    other = copy.deepcopy(one)
    assert other.digest == one.digest
    same(sums(other), expected)


def test_threads_take_turns_in_tracing():
    model = Scaled()  # drawn here: threads share PyTorch's generator

    def work(k):
        of_its_own = copy.deepcopy(model)
        return tuple(sums(source(method, data=rows(seed=k), model=of_its_own)) for method in ("program", "loop"))

    with ThreadPoolExecutor(3) as pool:
        for program, loop in pool.map(work, range(6)):
            same(program, loop)


def test_the_digest_is_the_same_whatever_the_records_hold():
    nothing = torch.full((ROWS, 6), torch.nan), torch.zeros(ROWS, dtype=torch.long)
    assert len({source("program", data=data).digest for data in (rows(), rows(seed=1), nothing)}) == 1


class Recurrent(nn.Module):
    """PyTorch's recurrent layers keep a list of their weights, which a forward pass with other tensors renews."""

    def __init__(self):
        super().__init__()
        self.steps, self.last = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.steps(x[:, None])[0][:, -1])


def test_a_recurrent_network_keeps_its_weights():
    torch.manual_seed(0)
    model = Recurrent()
    program, loop = (NetworkSource(model, cross_entropy, rows(), method=method) for method in ("program", "loop"))
    model(rows()[0])
    listed = [*model.steps._flat_weights]
    for _ in range(2):
        same(sums(program), sums(loop))
        cross_entropy(model, rows()).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(one is other for one, other in zip(model.steps._flat_weights, listed, strict=True))


def test_another_name_of_a_tensor_keeps_its_axes():
    def loss_fn(model, batch):
        y = batch[0].reshape(-1, 2, 3)[:, :, :2] * 1.0
        before = y.detach()
        y.transpose_(1, 2)
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") * before[:, 0].sum(1)

    same(sums(source("program", loss_fn)), sums(source("loop", loss_fn)))
