"""Noise by stretches of parameters: the same bits as at once, never twice, rounded last, and freed on the way."""

import weakref

import pytest
import torch

import tacita
from tacita._stream import Noise
from tacita.mechanisms import gaussian
from tacita.oracles import gate as gate_module
from tacita.oracles import trainable
from tacita.random import Key
from tests.around_mechanism import Spying
from tests.devices import on_each_device

device = on_each_device

PRIVATE = tacita.PrivateFeedback(max_feedback_norm=0.5)
BOUNDED = tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)
RELEASED = tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def made(feedback=None, mechanism=None, dtype=torch.float32, **more):
    """An oracle on a network of six parameters; all of them draw the same."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).to(dtype)
    x = torch.randn(30, 4, dtype=dtype)
    settings = dict(
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=30),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=mechanism or tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=5,
        randomness=tacita.Randomness.insecure(0),
        **more,
    )
    data = (x, torch.arange(30) % 4)
    if feedback is None:
        return tacita.ClippedGradientOracle(model, losses, data, **settings)
    return tacita.ErrorFeedbackOracle(model, losses, data, feedback=feedback, **settings)


def releases(oracle, queries=3):
    return [oracle.query(trainable(oracle.source.model)).released for _ in range(queries)]


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(x, second[block][name]) and x.dtype == second[block][name].dtype
        for block, tensors in first.items()
        for name, x in tensors.items()
    )


@pytest.mark.parametrize("feedback", [None, PRIVATE, BOUNDED, RELEASED], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stretches_have_the_noise_of_the_whole_bit_for_bit(monkeypatch, feedback, dtype):
    expected = releases(made(feedback, dtype=dtype))
    for stretch in (1, 5, 21):
        monkeypatch.setattr(gate_module, "STRETCH", stretch)
        assert all(same(*pair) for pair in zip(releases(made(feedback, dtype=dtype)), expected, strict=True))


def test_noise_of_another_law_comes_at_once_and_stays_on_its_grid(monkeypatch):
    """Float32 parameters, float64 multiples of a step: nothing is rounded, and no stream is read twice."""

    def build():
        return made(mechanism=tacita.RoundedGaussian(noise_multiplier=1.0), method="loop")

    expected = releases(build())
    monkeypatch.setattr(gate_module, "STRETCH", 1)
    oracle = build()
    assert all(same(*pair) for pair in zip(releases(oracle), expected, strict=True))
    for released in expected:
        for block, tensors in released.items():
            for x in tensors.values():
                steps = x / oracle.mechanism.steps[block]
                assert x.dtype == torch.float64
                assert torch.equal(steps, steps.round())


@pytest.mark.parametrize("feedback", [tacita.PrivateFeedback(max_feedback_norm=0.01), BOUNDED], ids=repr)
def test_hidden_sums_are_rounded_once_the_noise_is_in_them(monkeypatch, feedback):
    """To the dtype of the parameters, by the oracle: the float64 of sum plus noise, rounded once."""
    rounded, oracle = releases(made(feedback)), made(feedback)
    monkeypatch.setattr(oracle, "_dtypes", lambda params: {})
    for found, exact in zip(rounded, releases(oracle), strict=True):
        for name, x in exact["gradient"].items():
            assert x.dtype == torch.float64
            assert found["gradient"][name].dtype == torch.float32
            assert torch.equal(found["gradient"][name], x.float())
            assert not torch.equal(x, x.float().double())


def test_normals_of_a_query_are_never_given_twice():
    """Asked in parts, a block gives what it gives at once; another block has its own."""

    def noise():
        return Noise(lambda block: Key.insecure(0).stream("noise", block))

    like = {"a": torch.zeros(3, 2), "b": torch.zeros(1500), "c": torch.zeros(())}
    whole, parts = noise(), noise()
    expected = {block: whole(block, like) for block in ("x", "y")}
    for name, x in like.items():
        for block in ("y", "x"):
            assert torch.equal(parts(block, {name: x})[name], expected[block][name])
    again = torch.cat([z.flatten() for z in parts("x", like).values()])
    assert not set(again.tolist()) & set(torch.cat([z.flatten() for z in expected["x"].values()]).tolist())


def test_each_stretch_is_freed_once_it_has_its_noise(monkeypatch):
    monkeypatch.setattr(gate_module, "STRETCH", 20)
    oracle, alive, given = made(RELEASED), [], []

    def watching(values):
        alive.append(sum(reference() is not None for reference in given))
        given.extend(weakref.ref(x) for block in values.values() for x in block.values())

    oracle.gate._mechanism = Spying(oracle.gate._mechanism, watching)
    released = oracle.query(trainable(oracle.source.model)).released
    assert alive == [0] * 6  # weight and bias of three layers, in two blocks
    assert len(given) == 12
    assert [list(tensors) for tensors in released.values()] == [list(trainable(oracle.source.model))] * 2


MECHANISMS = [tacita.GaussianMechanism, tacita.RoundedGaussian]


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize("stretch", [5, 2**18])
def test_a_saved_release_holds_no_noise_of_other_values(monkeypatch, kind, stretch):
    """Whoever saves a tensor saves all of its memory, which streams fill by whole blocks of normals."""
    monkeypatch.setattr(gate_module, "STRETCH", stretch)
    monkeypatch.setattr(gaussian, "LARGE", 0)  # releases are written over their draws
    oracle = made(mechanism=kind(noise_multiplier=1.0))
    release = oracle.query(trainable(oracle.source.model))
    memories = {}
    for one in [*release.released["all"].values(), *release.gradient.values()]:
        memory = one.untyped_storage()
        whole = one.new_empty(0).set_(memory, 0, (memory.nbytes() // one.element_size(),))
        rest = memories.setdefault(memory.data_ptr(), whole.clone())
        rest[one.storage_offset() : one.storage_offset() + one.numel()] = 0
    assert not any(rest.any() for rest in memories.values())
