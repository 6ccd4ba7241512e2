"""What a record can move, whatever rows hold: the bounds that the accounting of error feedback rests on."""

import copy
import math
from fractions import Fraction

import pytest
import torch

from tacita.accounting import FullBatchLaw
from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.error_feedback import BoundedFeedback, PrivateFeedback, ReleasedFeedback
from tacita.error_feedback.bounded import bounded_residual_weights
from tacita.error_feedback.error import injected, no_error, share_of_norm, share_within, succeeding
from tacita.errors import UnsupportedEventError
from tacita.gradients.given import GivenEngine
from tacita.sampling import AllocatedSampler, FixedSizeSampler, FullBatchSampler, PoissonSampler, ShuffledEpochsSampler
from tests.error_feedback.dice import UNIT
from tests.rounding import assert_close_in

SHAPES = {"theta": torch.Size([2])}
FEEDBACKS = [
    PrivateFeedback(max_feedback_norm=0.5),
    BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0),
    ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=2.0),
]


WHOLE = BoundedFeedback(max_feedback_norm=math.inf, max_residual_norm=2.0)  # what is injected is not clipped


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def clip(vector, threshold):
    return vector * FlatClipper(max_grad_norm=threshold).weights(vector.norm().reshape(1))


# --- clipping, and what clipping removes -----------------------------------------------------------------------------


def test_clipping_contracts_by_no_factor():
    """The published proof takes the clipping factor for a Lipschitz constant."""
    moved = (clip(rows(10.0, 0.0), 1.0) - clip(rows(0.0, 1.0), 1.0)).norm()
    assert moved.item() == pytest.approx(1.41421, abs=5e-6)
    assert 0.1 * (rows(10.0, 0.0) - rows(0.0, 1.0)).norm().item() == pytest.approx(1.00499, abs=5e-6)


@pytest.mark.parametrize("size", [0.0, 0.3, 1.0, 1.5, 3.0, 3.5, 1e3, 1e30])
def test_clipped_gradient_and_clipped_residual_are_one_clipped_gradient(size):
    gradient = size * rows(0.6, -0.8)
    residual = clip(gradient - clip(gradient, 1.0), 2.0)
    torch.testing.assert_close(clip(gradient, 1.0) + residual, clip(gradient, 3.0), rtol=1e-12, atol=0)
    norms = rows(size).unsqueeze(-1)
    weights = UNIT.weights(norms)
    torch.testing.assert_close(
        bounded_residual_weights(weights, norms, 2.0) * gradient, residual.unsqueeze(0), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_residual_passes_its_threshold(dtype):
    most = torch.finfo(dtype).max
    sizes = [0.0, 1e-300, 1e-30, 1.0, 1.0 + 1e-7, 1.1, 1.3, 1.31, 3.7, 1e7 / 3, 1e30, most, math.inf, math.nan]
    norms = torch.tensor(sizes, dtype=dtype).unsqueeze(-1)
    found = bounded_residual_weights(UNIT.weights(norms), norms, 0.3)
    assert (found >= 0).all()
    assert (found[~norms.isfinite()] == 0).all()
    for weight, norm in zip(found.flatten().tolist(), norms.flatten().tolist(), strict=True):
        assert weight == 0 or Fraction(weight) * Fraction(norm) <= Fraction(0.3)


def test_no_row_adds_more_than_its_residual_threshold_in_float32():
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(2000, 1, 7, generator=generator)
    grads = direction * torch.logspace(-3, 8, 2000).view(-1, 1, 1)
    estimator = BoundedFeedback(max_feedback_norm=0.0, max_residual_norm=0.3).estimator(UNIT, 1.0)
    _, state = estimator(GivenEngine(grads), estimator.initial_state({"theta": torch.Size([7])}, lead=(2000,)))
    norms = state["error"]["theta"].norm(dim=-1)
    assert norms.max() <= 0.3
    assert norms.max() > 0.3 * (1 - 1e-5)  # and no less than need be


# --- what is injected ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [0.0, 1e-3, 0.1, 1.0, 1e3])
@pytest.mark.parametrize("share", [share_within, share_of_norm])
def test_what_is_injected_is_bounded_whatever_the_error(dtype, bound, share):
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([0.0, 1e-30, 1e-3, 0.3, 1.0, 1e7 / 3, 1e30, math.inf, math.nan], dtype=dtype)
    direction = torch.randn(9, 5, generator=generator, dtype=dtype)
    arrived = {"theta": direction / direction.norm(dim=-1, keepdim=True) * sizes.unsqueeze(-1)}
    before = no_error({"theta": torch.Size([5])}, (9,), dtype)
    state = succeeding(arrived, before["error"], torch.ones(9, dtype=dtype), math.inf)
    assert state["error"]["theta"].isfinite().all()
    assert state["norm"].isfinite().all()
    factor = share(state["norm"], bound, dtype)
    given = injected({"theta": torch.zeros(9, 5, dtype=dtype)}, state["error"], factor)["theta"]
    assert given.isfinite().all()
    assert (given.double().norm(dim=-1) <= bound * (1 + 1e-15)).all()
    whole = state["error"]["theta"].double().norm(dim=-1) <= bound * (1 - 1e-9)
    if share is share_within:
        assert torch.equal(given[whole], state["error"]["theta"][whole])


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_absent_from_both_sums(feedback, dtype, hostile):
    ordinary = torch.tensor([[3.0, 1.0], [0.1, -0.2]], dtype=dtype)
    poisoned = torch.cat([ordinary, torch.tensor([[hostile, 1.0]], dtype=dtype)])
    estimator = feedback.estimator(UNIT, 2.0)
    states = [estimator.initial_state(SHAPES) for _ in range(2)]
    for _ in range(3):
        for index, grads in enumerate((ordinary, poisoned)):
            values, states[index] = estimator(GivenEngine(grads), states[index])
            states[index] = estimator.after(states[index], values)
        assert_close_in(dtype, states[0]["error"]["theta"], states[1]["error"]["theta"])
    assert states[0]["error"]["theta"].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_huge_row_leaves_everything_finite(dtype):
    most = torch.finfo(dtype).max
    grads = torch.tensor([[most, -most], [most, 0.5 * most], [1e30, 1.0], [1.0, 1.0]], dtype=dtype)
    estimator = PrivateFeedback(max_feedback_norm=0.5).estimator(UNIT, 4.0)
    state = estimator.initial_state(SHAPES)
    for _ in range(4):
        values, state = estimator(GivenEngine(grads), state)
        assert values["gradient"]["theta"].isfinite().all()
        assert values["gradient"]["theta"].norm() <= 4 + 2 + 1e-5
        assert state["error"]["theta"].isfinite().all()


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_an_empty_batch_is_an_ordinary_query(feedback):
    estimator = feedback.estimator(UNIT, 2.0)
    values, state = estimator(GivenEngine(rows([5.0, 0.0])), estimator.initial_state(SHAPES))
    state = estimator.after(state, values)
    values, state = estimator(GivenEngine(torch.zeros(0, 2, dtype=torch.float64)), state)
    assert values["gradient"]["theta"].tolist() == pytest.approx([1.0, 0.0])  # what the first query left


# --- one pure function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
def test_a_query_changes_no_state_that_it_was_given(feedback):
    """A query that does not match its line is made again from the same state."""
    estimator = feedback.estimator(UNIT, 2.0)
    values, state = estimator(GivenEngine(rows([5.0, 1.0], [-2.0, 3.0])), estimator.initial_state(SHAPES))
    state = estimator.after(state, values)
    before = copy.deepcopy(state)
    again = []
    for _ in range(2):
        values, following = estimator(GivenEngine(rows([7.0, 1.0])), state)
        released = copy.deepcopy(values)
        following = estimator.after(following, values)
        assert all(torch.equal(values[block]["theta"], released[block]["theta"]) for block in values)
        again.append((values["gradient"]["theta"].clone(), following["error"]["theta"].clone()))
    assert torch.equal(state["error"]["theta"], before["error"]["theta"])
    assert state["query"] == before["query"]
    assert all(torch.equal(a, b) for a, b in zip(*again, strict=True))


@pytest.mark.parametrize("feedback", [*FEEDBACKS, PrivateFeedback(max_feedback_norm=0.5, anti_windup=0.7)], ids=repr)
def test_runs_side_by_side_are_runs_one_by_one(feedback):
    generator = torch.Generator().manual_seed(2)
    grads = 3 * torch.randn(4, 2, 3, 5, 2, generator=generator, dtype=torch.float64)  # step, lead, lead, batch, d
    masks = torch.rand(4, 2, 3, 5, generator=generator) < 0.7
    estimator = feedback.estimator(UNIT, 2.0)

    def last(state, select):
        for step in range(4):
            values, state = estimator(GivenEngine(grads[step][select], mask=masks[step][select]), state)
            state = estimator.after(state, values)
        return values["gradient"]["theta"], state["error"]["theta"]

    together = last(estimator.initial_state(SHAPES, lead=(2, 3)), ...)
    for i in range(2):
        for j in range(3):
            alone = last(estimator.initial_state(SHAPES), (i, j))
            for all_of_them, one in zip(together, alone, strict=True):
                torch.testing.assert_close(all_of_them[i, j], one, rtol=1e-12, atol=1e-12)


def test_released_feedback_remembers_releases_alone():
    estimator = FEEDBACKS[2].estimator(UNIT, 2.0)
    noise = torch.Generator().manual_seed(3)
    released = [
        {block: {"theta": torch.randn(2, generator=noise, dtype=torch.float64)} for block in ("gradient", "residual")}
        for _ in range(5)
    ]
    ends = []
    for data in (rows([5.0, 1.0]), rows([-9.0, 3.0], [0.0, 1.0])):
        state = estimator.initial_state(SHAPES)
        for release in released:
            _, state = estimator(GivenEngine(data), state)
            state = estimator.after(state, release)
        ends.append(state)
        assert estimator.shareable(state) is state
    assert torch.equal(ends[0]["error"]["theta"], ends[1]["error"]["theta"])
    assert ends[0]["error"]["theta"].abs().sum() > 0


@pytest.mark.parametrize("feedback", FEEDBACKS[:2], ids=repr)
def test_a_hidden_error_is_not_for_sharing(feedback):
    estimator = feedback.estimator(UNIT, 2.0)
    _, state = estimator(GivenEngine(rows([5.0, 1.0])), estimator.initial_state(SHAPES))
    assert estimator.shareable(state) is None


# --- two worlds: hidden error ----------------------------------------------------------------------------------------


def two_worlds(estimator, others, canary, drawn):
    """Differences of the values between the worlds with and without the canary: (steps, runs, d).

    ``others`` (steps, runs, batch, d) are in every batch, ``canary`` (steps, runs, d) where ``drawn`` (steps, runs).
    """
    grads = torch.cat([others, canary.unsqueeze(2)], dim=2)
    state = estimator.initial_state({"theta": grads.shape[-1:]}, lead=(2, grads.shape[1]))
    moved = []
    for step in range(len(grads)):
        mask = torch.ones(2, *grads.shape[1:3], dtype=torch.bool)
        mask[0, :, -1], mask[1, :, -1] = False, drawn[step]
        values, state = estimator(GivenEngine(grads[step].expand(2, *grads[step].shape), mask=mask), state)
        block = values["gradient"]["theta"]
        moved.append(block[1] - block[0])
    return torch.stack(moved)


def heavy(*shape, generator):
    """Gradients of all sizes, from far below the thresholds to far above."""
    direction = torch.randn(*shape, generator=generator, dtype=torch.float64)
    scale = 10 ** (3 * torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64) - 1)
    return scale * direction / direction.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(
    "feedback",
    [
        PrivateFeedback(max_feedback_norm=0.5),
        PrivateFeedback(max_feedback_norm=0.5, leak=0.3, anti_windup=2.0),
        PrivateFeedback(max_feedback_norm=0.5, normalised=True),
    ],
    ids=repr,
)
def test_one_record_moves_a_hidden_sum_by_its_sensitivity_at_most(feedback):
    generator = torch.Generator().manual_seed(4)
    estimator = feedback.estimator(UNIT, 3.0)
    others, canary = heavy(12, 400, 3, 2, generator=generator), 30 * heavy(12, 400, 2, generator=generator)
    drawn = torch.rand(12, 400, generator=generator) < 0.4
    moved = two_worlds(estimator, others, canary, drawn).norm(dim=-1)
    (sensitivity,) = estimator.sensitivity("add_or_remove_one", SHAPES).values()
    assert sensitivity == 1 + 2 * 3 * 0.5
    assert moved.max() <= sensitivity * (1 + 1e-12)
    assert moved[~drawn].max() > 0.9 * 3  # as much without the record in the batch
    assert moved[~drawn].max() <= 3 * (1 + 1e-12)


def test_the_published_counterexample_moves_every_later_query():
    """Records against the canary drive the error to the other side: 0, then C1/B, then 2 C2 or 2 C2 + C1/B."""
    estimator = PrivateFeedback(max_feedback_norm=1.0).estimator(UNIT, 1000.0)
    generator = torch.Generator().manual_seed(5)
    others = torch.full((40, 50, 1000, 1), -3.0, dtype=torch.float64)
    drawn = torch.rand(40, 50, generator=generator) < 0.02
    canary = torch.full((40, 50, 1), 1.5e6, dtype=torch.float64)
    moved = two_worlds(estimator, others, canary, drawn).squeeze(-1) / 1000
    before = torch.cat([torch.zeros(1, 50, dtype=torch.bool), drawn.cumsum(0)[:-1] > 0])
    torch.testing.assert_close(moved, 2.0 * before.double() + 0.001 * drawn.double(), rtol=0, atol=1e-9)


def test_a_record_of_the_first_batch_alone_speaks_in_every_later_query():
    """No later batch holds the record: what it changed in the error cannot be amplified by sampling."""
    estimator = PrivateFeedback(max_feedback_norm=1.0).estimator(UNIT, 10.0)
    others = torch.full((20, 1, 10, 1), -3.0, dtype=torch.float64)
    drawn = torch.zeros(20, 1, dtype=torch.bool)
    drawn[0] = True
    moved = two_worlds(estimator, others, torch.full((20, 1, 1), 1e5, dtype=torch.float64), drawn).squeeze() / 10
    torch.testing.assert_close(moved, torch.tensor([0.1] + [2.0] * 19, dtype=torch.float64), rtol=0, atol=1e-12)


# --- two worlds: bounded residuals -----------------------------------------------------------------------------------


def bounded(residual, feedback_norm, **more):
    return BoundedFeedback(max_feedback_norm=feedback_norm, max_residual_norm=residual, **more)


@pytest.mark.parametrize(
    "feedback",
    [
        bounded(2.0, 0.5),
        bounded(0.5, 0.1),
        bounded(2.0, math.inf),
        bounded(2.0, 0.5, leak=0.2),
        bounded(2.0, 0.5, anti_windup=0.6),
    ],
    ids=repr,
)
def test_a_record_moves_the_transcript_by_its_participations(feedback):
    generator = torch.Generator().manual_seed(6)
    runs, steps = 500, 30
    estimator = feedback.estimator(FlatClipper(max_grad_norm=0.7), 2.0)
    others, canary = heavy(steps, runs, 2, 3, generator=generator), heavy(steps, runs, 3, generator=generator)
    drawn = torch.rand(steps, runs, generator=generator) < 0.1
    moved = two_worlds(estimator, others, canary, drawn)
    k = drawn.sum(0)
    total = moved.square().sum((0, 2)).sqrt()
    assert (total <= 0.7 * k.sqrt() + feedback.max_residual_norm * k + 1e-9).all()
    assert (moved[:, k == 0].abs() <= 1e-12).all()  # batches of other lengths may be summed in another order
    injected_only = torch.where(drawn.unsqueeze(-1), 0.0, moved).square().sum((0, 2)).sqrt()
    assert (injected_only <= feedback.max_residual_norm * k + 1e-9).all()


def charged(feedback, participations, sampler, threshold=0.7):
    """What the event says that so many participations move."""
    estimator = feedback.estimator(FlatClipper(max_grad_norm=threshold), sampler.expected_batch_size)
    event = estimator.event(sampler, {"gradient": 3.0}, "add_or_remove_one", {"theta": torch.Size([3])})
    return estimator, event.session_mu(participations) * 3.0


@pytest.mark.parametrize("share", [1.0, 0.4, 0.05])
@pytest.mark.parametrize("leak", [0.0, 0.2])
def test_a_fixed_share_moves_the_transcript_by_what_is_charged(share, leak):
    generator = torch.Generator().manual_seed(8)
    runs, steps = 500, 30
    sampler = PoissonSampler(sample_rate=0.1, num_records=20)
    feedback = bounded(2.0, math.inf, injected_share=share, leak=leak)
    others, canary = heavy(steps, runs, 2, 3, generator=generator), heavy(steps, runs, 3, generator=generator)
    drawn = torch.rand(steps, runs, generator=generator) < 0.1
    estimator, _ = charged(feedback, 1, sampler)
    total = two_worlds(estimator, others, canary, drawn).square().sum((0, 2)).sqrt()
    most = torch.tensor([charged(feedback, int(k), sampler)[1] for k in drawn.sum(0)], dtype=torch.float64)
    assert (total <= most + 1e-9).all()


@pytest.mark.parametrize("share", [1.0, 0.4, 0.05])
def test_a_fixed_share_is_charged_no_more_than_it_moves(share):
    """Two participations in neighbouring queries, as under Poisson sampling, and in neighbouring epochs of 4."""
    drawn = torch.zeros(400, 2, dtype=torch.bool)
    drawn[[3, 4], 0], drawn[3, 1] = True, True
    canary = torch.tensor([0, 50.0, 0], dtype=torch.float64).expand(400, 2, 3)
    feedback = bounded(2.0, math.inf, injected_share=share)
    poisson = PoissonSampler(sample_rate=0.1, num_records=20)
    epochs = AllocatedSampler(batches_per_epoch=4, num_records=20)
    estimator, twice = charged(feedback, 2, poisson)
    moved = two_worlds(estimator, torch.zeros(400, 2, 1, 3, dtype=torch.float64), canary, drawn)
    total = moved.square().sum((0, 2)).sqrt()
    assert total.tolist() == pytest.approx([twice, charged(feedback, 1, poisson)[1]], rel=1e-6)
    assert charged(feedback, 2, epochs)[1] == pytest.approx(twice)


@pytest.mark.parametrize(
    ("feedback", "dtype"),
    [
        (bounded(2.0, math.inf, injected_share=0.01), torch.float64),
        (bounded(2.0, 0.5), torch.float64),
        (PrivateFeedback(max_feedback_norm=0.49), torch.float64),
        (PrivateFeedback(max_feedback_norm=0.5), torch.float32),  # each query is charged with more than a record
        (PrivateFeedback(max_feedback_norm=0.0), torch.float32),  # a plain clipped sum
    ],
)
def test_the_sum_of_a_hidden_error_is_rounded_after_the_noise(feedback, dtype):
    """Errors that differ make sums that are rounded differently, in every query: in float32 that adds up."""
    estimator = feedback.estimator(UNIT, 2.0)
    assert estimator.rounded_last == (dtype is torch.float64)
    state = estimator.initial_state(SHAPES)
    for _ in range(2):
        values, state = estimator(GivenEngine(rows([5.0, 1.0], dtype=torch.float32)), state)
    assert values["gradient"]["theta"].dtype == dtype


def test_float32_gradients_move_no_more_than_is_charged():
    """A small share of a large error: 3,000 sums that could be rounded otherwise after one participation."""
    steps, share, batch = 3000, 1e-3, 64
    sampler = PoissonSampler(sample_rate=0.1, num_records=10 * batch)
    feedback = bounded(1 - share / 2, math.inf, injected_share=share)
    estimator, once = charged(feedback, 1, sampler, threshold=share / 2)
    direction = torch.randn(1, 1, 1, 3, generator=torch.Generator().manual_seed(9))
    direction = direction / direction.norm()
    others = (5.0 * batch * direction).expand(steps, 1, 1, 3)  # clipped to one record's share: few stand for many
    state = {"theta": torch.Size([3])}
    moved = []
    states = estimator.initial_state(state, lead=(2, 1))
    states["error"]["theta"] += 3e8 * direction[0]  # what many others have left
    for step in range(steps):
        grads = torch.cat([others[step], 50.0 * direction[0]], dim=1).expand(2, 1, 2, 3)
        mask = torch.tensor([[[True, False]], [[True, step == 3]]])
        values, states = estimator(GivenEngine(grads, mask=mask), states)
        moved.append((values["gradient"]["theta"][1] - values["gradient"]["theta"][0]).double())
    assert torch.stack(moved).norm().item() <= once * (1 + 1e-9)


def test_an_error_that_is_clipped_is_charged_as_such():
    sampler = PoissonSampler(sample_rate=0.1, num_records=20)
    for feedback_norm, expected in ((0.5, 0.7 * math.sqrt(5) + 2.0 * 5), (1e300, 0.7 * math.sqrt(5) + 2.0 * 5)):
        assert charged(bounded(2.0, feedback_norm), 5, sampler)[1] == pytest.approx(expected)
    assert charged(bounded(2.0, math.inf), 5, sampler)[1] <= math.sqrt(5) * 2.7


@pytest.mark.parametrize("leak", [0.0, 0.5])
def test_one_participation_reaches_its_residual_threshold(leak):
    """Flushed in one query, where the error is not longer than what may be injected; a leak leaves nothing behind."""
    estimator = bounded(2.0, 5.0, leak=leak).estimator(UNIT, 1.0)
    others = 0.1 * heavy(6, 1, 2, 3, generator=torch.Generator().manual_seed(7)) / 100
    drawn = torch.zeros(6, 1, dtype=torch.bool)
    drawn[2] = True
    canary = torch.tensor([50.0, 0, 0], dtype=torch.float64).expand(6, 1, 3)
    moved = two_worlds(estimator, others, canary, drawn).norm(dim=-1).squeeze()
    torch.testing.assert_close(moved, torch.tensor([0, 0, 1.0, 2.0, 0, 0], dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_error_of_bounded_residuals_is_held_in_float64():
    """In float32 its rounding would differ between the worlds in every query, and add up."""
    estimator = bounded(2.0, 0.5).estimator(UNIT, 2.0)
    _, state = estimator(GivenEngine(rows([5.0, 1.0], dtype=torch.float32)), estimator.initial_state(SHAPES))
    assert state["error"]["theta"].dtype == torch.float64


# --- settings that are refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PrivateFeedback(max_feedback_norm=math.inf), "max_feedback_norm must be a finite number >= 0"),
        (lambda: PrivateFeedback(max_feedback_norm=-1.0), "max_feedback_norm must be a finite number >= 0"),
        (lambda: PrivateFeedback(max_feedback_norm=math.nan), "max_feedback_norm"),
        (lambda: PrivateFeedback(max_feedback_norm=True), "max_feedback_norm"),
        (lambda: bounded(2.0, math.nan), "max_feedback_norm must be a number >= 0"),
        (lambda: bounded(2.0, 0.5, injected_share=0.5), "max_feedback_norm must be inf with injected_share = 0.5"),
        (lambda: bounded(2.0, math.inf, injected_share=0.0), "injected_share must be in"),
        (lambda: bounded(2.0, math.inf, injected_share=1e-7), "injected_share must be in"),
        (lambda: bounded(2.0, math.inf, injected_share=1.5), "injected_share must be in"),
        (lambda: bounded(0.0, 1.0), "max_residual_norm must be a finite number > 0"),
        (lambda: bounded(math.inf, 1.0), "max_residual_norm must be a finite number > 0"),
        (lambda: bounded(1.0, 1.0, leak=1.0), "leak must be in"),
        (lambda: bounded(1.0, 1.0, leak=-0.1), "leak must be in"),
        (lambda: bounded(1.0, 1.0, anti_windup=0.5), "anti_windup must be >= max_feedback_norm"),
        (lambda: bounded(1.0, 1.0, anti_windup=math.nan), "anti_windup must be >= max_feedback_norm"),
        (lambda: PrivateFeedback(max_feedback_norm=1.0, every=0), "every must be an integer >= 1"),
        (lambda: ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0, every=1.5), "every must be"),
        (
            lambda: ReleasedFeedback(max_feedback_norm=1.0, max_residual_norm=1.0, allocation="equal"),
            "allocation must be one of",
        ),
        (lambda: FEEDBACKS[0].estimator(UNIT, 0.0), "divisor must be a finite number > 0"),
        (lambda: FEEDBACKS[0].estimator(PerLayerClipper(max_grad_norm=1.0), 1.0), "clipper must be a FlatClipper"),
        (
            lambda: FEEDBACKS[1].estimator(AutomaticClipper(max_grad_norm=1.0, gamma=0.1), 1.0),
            "clipper must be a FlatClipper with BoundedFeedback",
        ),
        (
            lambda: FEEDBACKS[2].estimator(AutomaticClipper(max_grad_norm=1.0, gamma=0.1), 1.0),
            "clipper must be a FlatClipper with ReleasedFeedback",
        ),
    ],
)
def test_settings_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


POISSON = PoissonSampler(sample_rate=0.1, num_records=20)
NOISE = {"gradient": 1.0, "residual": 1.0}


@pytest.mark.parametrize("feedback", FEEDBACKS, ids=repr)
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_the_divisor_is_the_samplers(feedback, divisor):
    estimator = feedback.estimator(UNIT, divisor)
    with pytest.raises(ValueError, match="divisor must be the sampler's expected batch size, 2"):
        estimator.event(POISSON, NOISE, "add_or_remove_one", SHAPES)


@pytest.mark.parametrize(
    ("feedback", "sampler", "relation", "says"),
    [
        (FEEDBACKS[0], FixedSizeSampler(batch_size=2, num_records=20), "add_or_remove_one", "replace_one and zero_out"),
        (FEEDBACKS[1], FixedSizeSampler(batch_size=2, num_records=20), "replace_one", "under any relation"),
        (
            FEEDBACKS[1],
            ShuffledEpochsSampler(batches_per_epoch=10, num_records=20),
            "add_or_remove_one",
            "replace_one and zero_out_one",
        ),
        (FEEDBACKS[2], FixedSizeSampler(batch_size=2, num_records=20), "zero_out_one", "replace_one"),
        (PrivateFeedback(max_feedback_norm=1.0, first_draw=True), POISSON, "replace_one", "first_draw is proved for"),
        (
            PrivateFeedback(max_feedback_norm=1.0, first_draw=True),
            FullBatchSampler(num_records=2),
            "zero_out_one",
            "first_draw is proved for",
        ),
        (
            PrivateFeedback(max_feedback_norm=1.0, first_draw=True, every=2),
            POISSON,
            "add_or_remove_one",
            "first_draw is proved for",
        ),
    ],
)
def test_cells_without_a_proof_are_refused(feedback, sampler, relation, says):
    estimator = feedback.estimator(UNIT, sampler.expected_batch_size)
    with pytest.raises(UnsupportedEventError, match=says):
        estimator.event(sampler, NOISE, relation, SHAPES)


@pytest.mark.parametrize(
    ("feedback", "relation", "expected"),
    [
        (FEEDBACKS[0], "add_or_remove_one", {"gradient": 1 + 2 * 2 * 0.5}),
        (FEEDBACKS[0], "zero_out_one", {"gradient": 1 + 2 * 2 * 0.5}),
        (FEEDBACKS[0], "replace_one", {"gradient": 2 + 2 * 2 * 0.5}),
        (FEEDBACKS[1], "add_or_remove_one", {"gradient": 3.0}),
        (FEEDBACKS[1], "replace_one", {"gradient": 6.0}),
        (WHOLE, "add_or_remove_one", {"gradient": pytest.approx(5**0.5, rel=1e-8)}),
        (WHOLE, "replace_one", {"gradient": pytest.approx(2 * 5**0.5, rel=1e-8)}),
        (FEEDBACKS[2], "add_or_remove_one", {"gradient": 1.0, "residual": 2.0}),
        (FEEDBACKS[2], "replace_one", {"gradient": 2.0, "residual": 4.0}),
    ],
)
def test_sensitivities(feedback, relation, expected):
    assert feedback.estimator(UNIT, 2.0).sensitivity(relation, SHAPES) == expected


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out_one"])
@pytest.mark.parametrize("divisor", [2.0, 7.0])
def test_a_query_of_a_hidden_error_is_charged_with_its_sensitivity(relation, divisor):
    """The event has the numbers by which it is computed: they must be those that the noise is made for."""
    estimator = PrivateFeedback(max_feedback_norm=0.5).estimator(UNIT, divisor)
    (stated,) = estimator.sensitivity(relation, SHAPES).values()
    sampler = PoissonSampler(sample_rate=0.1, num_records=round(10 * divisor))
    for one in (sampler, FullBatchSampler(num_records=round(divisor))):
        event = estimator.event(one, NOISE, relation, SHAPES)
        assert event.sensitivity == pytest.approx(stated)
        assert event.max_error_change == pytest.approx(2 * divisor * 0.5)  # from one end to the other


def test_the_full_batch_law_is_served_under_every_relation():
    for feedback in FEEDBACKS:
        sampler = FullBatchSampler(num_records=2)
        assert isinstance(sampler.law, FullBatchLaw)
        for relation in ("add_or_remove_one", "replace_one", "zero_out_one"):
            feedback.estimator(UNIT, 2.0).event(sampler, NOISE, relation, SHAPES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_norm", [math.inf, 2.0])
def test_the_stated_norm_is_never_below_the_errors(dtype, max_norm):
    """In exact arithmetic: what is injected is scaled by this number, so a norm rounded down injects too much."""
    generator = torch.Generator().manual_seed(9)
    residuals = torch.randn(300, 6, generator=generator, dtype=dtype)
    before = no_error({"theta": torch.Size([6])}, (300,), dtype)
    state = succeeding({"theta": residuals}, before["error"], torch.ones(300, dtype=dtype), max_norm)
    for error, norm in zip(state["error"]["theta"].tolist(), state["norm"].tolist(), strict=True):
        square = sum(Fraction(x) ** 2 for x in error)
        assert square <= Fraction(norm) ** 2 <= square * Fraction(1 + 1e-5) + Fraction(1e-30)


# --- settings reach the event and the state


@pytest.mark.parametrize("leak", [0.0, 0.25])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_event_has_the_share_and_the_leak_of_the_settings(leak, share):
    feedback = BoundedFeedback(max_feedback_norm=math.inf, max_residual_norm=2.0, injected_share=share, leak=leak)
    estimator = feedback.estimator(UNIT, 10.0)
    event = estimator.event(PoissonSampler(sample_rate=0.1, num_records=100), {"gradient": 5.0}, "replace_one", SHAPES)
    assert (event.injected_share, event.leak) == (share, leak)
    assert event.session_mu(1) == pytest.approx(estimator.sensitivity("replace_one", SHAPES)["gradient"] / 5.0)


def test_the_error_of_a_sum_is_clipped_at_its_divisor_times_the_threshold_of_the_mean():
    feedback = BoundedFeedback(max_feedback_norm=0.1, max_residual_norm=2.0, anti_windup=0.5)
    estimator = feedback.estimator(UNIT, 10.0)
    _, state = estimator(GivenEngine(100 * torch.ones(20, 2, dtype=torch.float64)), estimator.initial_state(SHAPES))
    assert float(state["norm"]) == pytest.approx(10.0 * 0.5)
    assert float(state["error"]["theta"].norm()) == pytest.approx(10.0 * 0.5)
