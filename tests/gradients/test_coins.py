"""One law for coins: a record's coins come from the query's secret and the record, or the model is refused.

Docs: docs/randomness.md. Each case is one that an outside check found, or a sibling of it.
"""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tacita.clipping import FlatClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tests.gradients.ordinary import LENGTH, WIDTH, Model, loss, out

ROWS = 9
CLIP = FlatClipper(max_grad_norm=1.0)
OWNED = torch.Generator().manual_seed(0)
OWNED_BY_NUMPY = np.random.default_rng(0)


def records():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, LENGTH, WIDTH, generator=generator), torch.randn(ROWS, generator=generator)


def source_of(forward, method, loss_fn=loss, data=None, **state):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = tuple(data or records())
        return NetworkSource(Model(forward, **state), loss_fn, data, method=method, max_physical_batch_size=4)


def clipped_sum(source, rows, seed=5):
    engine = source.engine(dict(source.model.named_parameters()), np.asarray(rows), seed=seed)
    total = engine.weighted_sums(CLIP.weights, CLIP.groups(source.shapes)).values[0]
    return torch.cat([t.double().flatten() for t in total.values()])


# --- what programs refuse, and the loop serves ------------------------------------------------------------------


def features_of_a_fresh_generator(m, x):
    return out(m, x * torch.randn(WIDTH, generator=torch.Generator().manual_seed(0)))


def features_of_a_seed_in_a_fork(m, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return out(m, x * torch.randn(WIDTH))


def mask_of_a_seed(m, x):
    torch.manual_seed(0)
    return out(m, x * F.dropout(torch.ones_like(x[:1]), 0.5))


def one_number(m, x):
    return out(m, x * torch.randn(1))


def of_a_constant(m, x):
    return out(m, x * torch.bernoulli(torch.full((LENGTH, WIDTH), 0.5)))


def in_place(m, x):
    return out(m, x * torch.empty(WIDTH).uniform_(0.5, 1.5))


def by_a_law(m, x):
    return out(m, torch.distributions.Normal(x, 1.0).rsample())


def python_mask(m, x):
    start = random.randint(0, LENGTH - 1)
    keep = torch.ones(LENGTH, 1)
    keep[start:] = 0
    return out(m, x * keep)


def numpy_mask(m, x):
    return out(m, x * torch.from_numpy(np.random.binomial(1, 0.5, (LENGTH, 1))).float())


SHARED = [python_mask, numpy_mask, mask_of_a_seed, features_of_a_seed_in_a_fork]


@pytest.mark.parametrize("forward", [*SHARED, features_of_a_fresh_generator])
def test_draws_that_records_share_are_refused_by_programs(forward):
    with pytest.raises(UnsupportedModuleError, match="once, in __init__"):
        source_of(forward, "program")


@pytest.mark.parametrize("forward", [of_a_constant, one_number, in_place, by_a_law])
def test_a_draw_that_no_record_enters_has_coins_by_record(forward):
    """Equal records have other coins, in each query anew, and one seed gives one answer."""
    source = source_of(forward, "program", data=[one[:1].expand(ROWS, *one.shape[1:]).clone() for one in records()])

    def norms(seed):
        params = {name: p for name, p in source.model.named_parameters() if p.requires_grad}
        return source.engine(params, np.arange(ROWS), seed=seed).norms({"all": tuple(params)}).flatten()

    first, again, other = norms(1), norms(1), norms(2)
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()
    assert len({round(one, 6) for one in first.tolist()}) == ROWS


@pytest.mark.parametrize("forward", [one_number, *SHARED])
def test_and_the_loop_serves_them_with_coins_by_record(forward):
    source = source_of(forward, "loop")
    everybody = np.arange(ROWS)
    single = [clipped_sum(source, [one]) for one in everybody]
    for gone in (0, 4):
        rows = everybody[everybody != gone]
        expected = sum(single[one] for one in rows)
        torch.testing.assert_close(clipped_sum(source, rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("forward", [one_number, python_mask, numpy_mask])
def test_coins_of_the_loop_are_secret(forward):
    """Neither a public seed nor what was drawn before decides them, and two secrets give two answers."""
    source = source_of(forward, "loop")
    rows = np.arange(ROWS)

    def answer(public, secret):
        random.seed(public)
        np.random.seed(public)
        torch.manual_seed(public)
        return clipped_sum(source, rows, seed=secret)

    assert torch.equal(answer(0, 5), answer(1, 5))
    assert not torch.equal(answer(0, 5), answer(0, 6))


@pytest.mark.parametrize("forward", [one_number, python_mask, numpy_mask])
def test_no_generator_tells_how_many_records_were_drawn(forward):
    source = source_of(forward, "loop")
    states = []
    for rows in (np.arange(ROWS), np.arange(2)):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        clipped_sum(source, rows)
        states.append((random.random(), np.random.rand(), torch.rand(1).item()))
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert states == [(random.random(), np.random.rand(), torch.rand(1).item())] * 2


# --- generators that somebody owns -----------------------------------------------------------------------------------


def of_a_torch_generator(m, x):
    return out(m, x * torch.randn(x.shape, generator=OWNED))


def of_a_numpy_generator(m, x):
    return out(m, x * float(OWNED_BY_NUMPY.normal()))


def of_the_model(m, x):
    return out(m, x * m.coins.random())


OWNERS = {
    "global of torch": (of_a_torch_generator, {}),
    "global of NumPy": (of_a_numpy_generator, {}),
    "Python, of the model": (of_the_model, {"coins": random.Random(0)}),
    "RandomState, of the model": (of_the_model, {"coins": np.random.RandomState(0)}),
}


@pytest.mark.parametrize("method", ["program", "loop"])
@pytest.mark.parametrize("name", OWNERS)
def test_generators_of_the_user_are_refused(name, method):
    forward, state = OWNERS[name]
    says = "draw from a generator of their own.*draw in __init__" if method == "loop" else ""
    with pytest.raises(UnsupportedModuleError, match=says):
        source_of(forward, method, **state)


def test_the_generators_of_the_process_are_no_ones_own():
    """They are seeded by the query, named or not."""
    source = source_of(lambda m, x: out(m, x + torch.randn(x.shape, generator=torch.default_generator)), "loop")
    first, again, other = (clipped_sum(source, np.arange(4), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# --- coins that are served -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward", [lambda m, x: out(m, F.dropout(x)), lambda m, x: out(m, x + torch.randn_like(x))], ids=["mask", "noise"]
)
@pytest.mark.parametrize("method", ["program", "loop"])
def test_coins_of_a_record_are_served_by_every_method(forward, method):
    source = source_of(forward, method)
    assert not torch.equal(clipped_sum(source, np.arange(4), seed=1), clipped_sum(source, np.arange(4), seed=2))


def test_a_buffer_drawn_once_is_served():
    source = source_of(lambda m, x: out(m, x * m.features), "auto", features=torch.randn(WIDTH))
    assert source.method == "program"
