import pytest
import torch

from tacita.gradients.loop import LoopEngine
from tacita.gradients.program import ProgramEngine


def test_equals_the_loop(network, engine_of, everything):
    fast, plain = engine_of(ProgramEngine, network), engine_of(LoopEngine, network)
    (got,), (expected,) = fast.materialise(), plain.materialise()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-10, atol=1e-12)
    for per_layer in (False, True):
        groups = everything(plain, per_layer)
        torch.testing.assert_close(fast.norms(groups), plain.norms(groups), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", [LoopEngine, ProgramEngine])
@pytest.mark.parametrize("chunk_size", [1, 2, 5])
def test_the_physical_batch_changes_nothing(network, engine_of, everything, kind, chunk_size):
    whole, parts = engine_of(kind, network), engine_of(kind, network, chunk_size=chunk_size)
    groups = everything(whole)

    def rule(norms):
        return 1 / (1 + norms), torch.ones_like(norms)

    expected, got = whole.weighted_sums(rule, groups), parts.weighted_sums(rule, groups)
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-12, atol=1e-14)
    for mine, theirs in zip(got.values, expected.values, strict=True):
        for name in theirs:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [LoopEngine, ProgramEngine])
def test_an_empty_batch_gives_zeros_and_never_calls_the_loss(small, engine_of, everything, kind):
    def never(model, batch):
        raise AssertionError("called with no rows")

    seen = []

    def rule(norms):
        seen.append(norms.shape)
        return norms, norms

    small.loss_fn, small.data = never, tuple(t[:0] for t in small.data)
    engine = engine_of(kind, small, seed=0)
    sums = engine.weighted_sums(rule, everything(engine, per_layer=True))
    assert seen == [(0, 4)]
    assert len(sums.values) == 2
    assert sums.norms.shape == (0, 4)
    assert list(engine.materialise()) == []
    for values in sums.values:
        assert {n: v.shape for n, v in values.items()} == dict(engine.shapes)
        assert all((v == 0).all() for v in values.values())


@pytest.mark.parametrize("kind", [LoopEngine, ProgramEngine])
@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, -torch.inf, 1e200])
def test_a_hostile_row_of_weight_zero_is_absent(small, engine_of, everything, kind, hostile):
    small.loss_fn = lambda model, batch: model(batch[0]).square().sum(dim=1) * batch[1]
    small.data = (small.data[0], torch.tensor([1.0, 1.0, hostile, 1.0, 1.0, 1.0], dtype=torch.float64))
    engine = engine_of(kind, small, chunk_size=4)

    def rule(norms):
        return torch.where(norms < 1e30, 1.0, 0.0).double()  # NaN compares false

    sums = engine.weighted_sums(rule, everything(engine))
    assert not (sums.norms[2] < 1e30).any()
    small.data = tuple(t[[0, 1, 3, 4, 5]] for t in small.data)
    without = engine_of(kind, small).weighted_sums(rule, everything(engine))
    for name, expected in without.values[0].items():
        torch.testing.assert_close(sums.values[0][name], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [LoopEngine, ProgramEngine])
def test_dropout_follows_the_seed_and_leaves_the_global_generator(with_dropout, engine_of, everything, kind):
    def norms(seed, chunk_size=None):
        engine = engine_of(kind, with_dropout, seed=seed, chunk_size=chunk_size)
        return engine.norms(everything(engine))

    before = torch.get_rng_state()
    first = norms(5)
    torch.randn(3)
    assert torch.equal(first, norms(5))
    assert not torch.equal(first, norms(6))
    assert len(set(norms(5, chunk_size=1).flatten().tolist())) == 6
    torch.set_rng_state(before)
    norms(5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", [LoopEngine, ProgramEngine])
def test_identical_rows_draw_different_dropout(with_dropout, engine_of, everything, kind):
    with_dropout.data = tuple(t[:1].expand(8, *t.shape[1:]) for t in with_dropout.data)
    engine = engine_of(kind, with_dropout, seed=1)
    assert len(set(engine.norms(everything(engine)).flatten().tolist())) > 4
    one_each = engine_of(kind, with_dropout, seed=1, chunk_size=1)
    assert len(set(one_each.norms(everything(engine)).flatten().tolist())) > 4


@pytest.mark.parametrize("kind", [LoopEngine, ProgramEngine])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_and_norms_are_float32_or_better(small, engine_of, everything, kind, dtype):
    small.model.to(dtype)
    small.data = (small.data[0].to(dtype), small.data[1])
    engine = engine_of(kind, small)
    sums = engine.weighted_sums(torch.ones_like, everything(engine))
    assert sums.norms.dtype == torch.float64
    assert all(v.dtype == torch.float32 for v in sums.values[0].values())
    (grads,) = engine.materialise()
    exact = torch.cat([g.double().flatten(1) for g in grads.values()], dim=1).norm(dim=1, keepdim=True)
    assert (sums.norms >= exact * (1 - 1e-15)).all()
    torch.testing.assert_close(sums.norms, exact, rtol=1e-12 if kind is LoopEngine else 1e-2, atol=0)


def test_float64_stays_float64(small, engine_of, everything):
    engine = engine_of(ProgramEngine, small)
    sums = engine.weighted_sums(torch.ones_like, everything(engine))
    assert all(v.dtype == torch.float64 for v in sums.values[0].values())


def test_a_batch_may_be_nested(small, engine_of, everything):
    from tacita.gradients.chunked import Chunk

    x, y = small.data
    plain = engine_of(LoopEngine, small)
    small.loss_fn, flat = (lambda model, b: plain.loss_fn(model, (b["x"][0], b["y"]))), everything(plain)
    batch = {"x": [x, None], "y": y}
    nested = ProgramEngine(small.model, small.loss_fn, plain.params, [Chunk(batch, 6, 0)], torch.arange(6))
    torch.testing.assert_close(nested.norms(flat), plain.norms(flat), rtol=1e-10, atol=0)
