"""Error feedback in place: what the oracle runs is what calling the estimator gives, to the bit, in half the memory."""

import math

import pytest
import torch

from tacita.error_feedback import BoundedFeedback, PrivateFeedback, ReleasedFeedback, error
from tacita.error_feedback.error import injected, no_error, succeeding
from tacita.gradients.given import GivenEngine
from tests.error_feedback.dice import UNIT

HIDDEN = [
    PrivateFeedback(max_feedback_norm=0.5),
    PrivateFeedback(max_feedback_norm=0.5, leak=0.3, anti_windup=0.7, every=2),
    PrivateFeedback(max_feedback_norm=0.5, normalised=True),
    BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0),
    BoundedFeedback(max_feedback_norm=math.inf, max_residual_norm=2.0, anti_windup=math.inf),
]
SHAPES = {"a": torch.Size([3]), "b": torch.Size([7])}
QUERIES = 6


def gradients(*lead, dtype=torch.float32):
    """(query, *lead, 5 rows, coordinates) by name."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: 3 * torch.randn(QUERIES, *lead, 5, *shape, generator=generator, dtype=dtype)
        for name, shape in SHAPES.items()
    }


def engines(grads):
    return [GivenEngine({name: g[query] for name, g in grads.items()}) for query in range(QUERIES)]


def as_called(estimator, grads, lead=()):
    """Values of all queries and the last state, by calling the estimator."""
    state, values = estimator.initial_state(SHAPES, lead), []
    for engine in engines(grads):
        found, state = estimator(engine, state)
        values.append(found["gradient"])
    return values, state


def in_place(estimator, grads, lead=()):
    """The same as an oracle goes about it."""
    state, values = estimator.initial_state(SHAPES, lead), []
    for engine in engines(grads):
        found, update = estimator.bound(engine, state)
        state = estimator.apply(state, update)
        values.append(found["gradient"])
    return values, state


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("feedback", HIDDEN, ids=repr)
@pytest.mark.parametrize("lead", [(), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_place_is_what_calling_gives_bit_for_bit(feedback, lead, dtype):
    estimator, grads = feedback.estimator(UNIT, 2.0), gradients(*lead, dtype=dtype)
    (expected, whole), (found, state) = as_called(estimator, grads, lead), in_place(estimator, grads, lead)
    assert all(same(one, other) for one, other in zip(expected, found, strict=True))
    assert same(whole["error"], state["error"])
    assert torch.equal(whole["norm"], state["norm"])
    assert whole["query"] == state["query"] == QUERIES
    assert all(e.abs().sum() > 0 for e in state["error"].values())


@pytest.mark.parametrize("feedback", HIDDEN, ids=repr)
def test_looking_changes_nothing(feedback):
    estimator = feedback.estimator(UNIT, 2.0)
    _, state = as_called(estimator, gradients())
    before = {name: e.clone() for name, e in state["error"].items()}
    for engine in engines(gradients()):
        estimator.bound(engine, state)
    assert same(state["error"], before)
    assert state["query"] == QUERIES


@pytest.mark.parametrize("feedback", HIDDEN, ids=repr)
def test_remembering_takes_no_memory_and_frees_the_residuals(feedback):
    estimator = feedback.estimator(UNIT, 2.0)
    state = estimator.initial_state(SHAPES)
    places = {name: e.data_ptr() for name, e in state["error"].items()}
    for engine in engines(gradients()):
        _, update = estimator.bound(engine, state)
        state = estimator.apply(state, update)
        assert update.residuals == {}
    assert {name: e.data_ptr() for name, e in state["error"].items()} == places


def test_a_query_without_residuals_makes_no_zeros():
    """``every`` = 2: the error is what is kept of it, and the user's release stays as it was."""
    estimator = ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0, every=2).estimator(UNIT, 2.0)
    state = {**no_error(SHAPES, (), torch.float32), "query": 2}
    state["error"] = {name: torch.full(shape, 4.0) for name, shape in SHAPES.items()}
    state["norm"] = torch.tensor(16.0, dtype=torch.float64)  # more than its norm, so that the share is 1/16
    released = {"gradient": {name: torch.randn(shape) for name, shape in SHAPES.items()}}
    following = estimator.after(state, released)
    for name, shape in SHAPES.items():
        torch.testing.assert_close(following["error"][name], torch.full(shape, 4.0 * 15 / 16), rtol=1e-6, atol=0)
        assert torch.equal(state["error"][name], torch.full(shape, 4.0))
    assert following["query"] == 3


@pytest.mark.parametrize(
    "feedback", [*HIDDEN, ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0)], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pieces_are_the_whole(feedback, dtype, monkeypatch):
    """Parameters of more coordinates than a piece has; the last piece is shorter."""
    estimator, ends = feedback.estimator(UNIT, 2.0), []
    for piece in (2, 3, 100):
        monkeypatch.setattr(error, "PIECE", piece)
        state = estimator.initial_state(SHAPES)
        for engine in engines(gradients(dtype=dtype)):
            values, state = estimator(engine, state)
            state = estimator.after(state, values)
        ends.append((values["gradient"], state["error"], state["norm"]))
    values, whole, _ = ends[-1]
    exact = math.sqrt(sum(e.double().square().sum().item() for e in whole.values()))
    for found, parts, upper in ends:
        for name in SHAPES:  # shares come from norms, whose last bits differ
            torch.testing.assert_close(found[name], values[name], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(parts[name], whole[name], rtol=1e-6, atol=1e-6)
        own = math.sqrt(sum(e.double().square().sum().item() for e in parts.values()))
        assert own <= upper.item() <= own * (1 + 1e-13) or feedback.anti_windup < math.inf
        assert own == pytest.approx(exact, rel=1e-6)


def test_a_sum_is_rounded_once_with_an_error_in_float64():
    """float32 of (sum + share * error in float64), piece by piece, in the memory of the sum."""
    generator = torch.Generator().manual_seed(1)
    total = {"w": torch.randn(200_000, generator=generator)}
    held = {"w": 1e4 * torch.randn(200_000, generator=generator, dtype=torch.float64)}
    share = torch.tensor(0.3, dtype=torch.float64)
    expected = (total["w"].double() + 0.3 * held["w"]).float()
    place = total["w"].data_ptr()
    found = injected(total, held, share)["w"]
    assert found.data_ptr() == place
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2**-23, atol=0)
    assert (found == expected).double().mean() > 0.999  # rounded twice, a quarter would differ


def test_an_error_of_a_sum_that_is_not_contiguous():
    total = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)).mT
    held = torch.arange(24.0).view(6, 4)
    expected = total + 0.5 * held
    assert torch.equal(injected({"w": total}, {"w": held}, torch.tensor(0.5))["w"], expected)
    state = succeeding({"w": total}, {"w": held.clone()}, torch.tensor(0.5), math.inf)
    assert torch.equal(state["error"]["w"], total + 0.5 * held)
