"""The oracle: exact identities first, then what must hold whatever the data are."""

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch

import tacita
from tacita.errors import BudgetExceededError, LedgerError, ResumeError, UnsupportedEventError
from tacita.oracles import trainable
from tests.devices import on_each_device

device = on_each_device

FULL = dict(
    sampler=tacita.FullBatchSampler(num_records=60),
    clipper=tacita.FlatClipper(max_grad_norm=1e9),
    mechanism=tacita.GaussianMechanism(noise_multiplier=0.0),
)


def mean_gradient(model, loss_fn, data):
    there = next(model.parameters()).device
    loss = loss_fn(model, [tensor.to(there) for tensor in data]).mean()
    return dict(zip(trainable(model), torch.autograd.grad(loss, list(trainable(model).values())), strict=True))


def test_without_noise_and_clipping_it_is_the_mean_gradient(problem, make_oracle):
    release = make_oracle(**FULL).query(trainable(problem[0]))
    for name, expected in mean_gradient(*problem).items():
        torch.testing.assert_close(release.gradient[name], expected, rtol=1e-12, atol=1e-12)


def test_without_noise_and_clipping_training_is_plain_sgd(problem, make_oracle):
    model, loss_fn, data = problem
    plain = copy.deepcopy(model)
    oracle = make_oracle(**FULL)
    private_sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    plain_sgd = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for _ in range(oracle.planned_queries):
        oracle.backward()
        private_sgd.step()
        plain_sgd.zero_grad()
        loss_fn(plain, [tensor.to(plain.weight.device) for tensor in data]).mean().backward()
        plain_sgd.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_release_is_the_clipped_sum_plus_the_stated_noise(problem, make_oracle):
    """The noise is the stream's, times noise_std: the same query without noise is subtracted."""
    params = trainable(problem[0])
    noisy = make_oracle().query(params)
    bare = make_oracle(mechanism=tacita.GaussianMechanism(noise_multiplier=0.0)).query(params)
    randomness = tacita.Randomness.insecure(0)
    draws = randomness.key.stream("train-1", "noise", 0, "all").normals((5,), dtype=torch.float64)
    difference = torch.cat([(noisy.released["all"][n] - bare.released["all"][n]).flatten() for n in params])
    torch.testing.assert_close(difference.cpu(), 1.0 * draws, rtol=1e-9, atol=1e-12)
    assert noisy.noise_std == {"all": 1.0}


def test_query_has_no_side_effect_on_the_model(problem, make_oracle):
    model = problem[0]
    before = copy.deepcopy(model.state_dict())
    make_oracle().query(trainable(model))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training


def test_query_at_a_point_that_is_not_the_models(problem, make_oracle):
    model, loss_fn, data = problem
    elsewhere = {name: p.detach() + 1.0 for name, p in trainable(model).items()}
    release = make_oracle(**FULL).query(elsewhere)
    moved = copy.deepcopy(model)
    moved.load_state_dict(elsewhere)
    for name, expected in mean_gradient(moved, loss_fn, data).items():
        torch.testing.assert_close(release.gradient[name], expected, rtol=1e-12, atol=1e-12)


def test_backward_assigns_and_never_adds(problem, make_oracle):
    oracle = make_oracle()
    for p in problem[0].parameters():
        p.grad = torch.full_like(p, 1e6)
    release = oracle.backward()
    for name, p in trainable(problem[0]).items():
        assert torch.equal(p.grad, release.gradient[name])


def test_divisor_is_public_and_not_the_realised_size(problem, make_oracle):
    params = trainable(problem[0])
    for guess in (10, 60, 1000):  # a declared guess only sets the divisor
        oracle = make_oracle(sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=guess))
        release = oracle.query(params)
        assert release.divisor == pytest.approx(0.3 * guess)
        for name in params:
            assert torch.equal(release.gradient[name], release.released["all"][name] / release.divisor)


def test_the_scale_of_the_noise_does_not_tell_how_many_records_there_are(problem, make_oracle):
    """Without a record drawn, what is released has the same bits for neighbouring data sets."""
    params = trainable(problem[0])
    never = tacita.PoissonSampler(sample_rate=1e-9, num_records=60)
    fewer = tuple(tensor[:-1] for tensor in problem[2])
    found = [make_oracle(dataset=rows, sampler=never).query(params).gradient for rows in (problem[2], fewer)]
    for name in params:
        assert torch.equal(found[0][name], found[1][name])


def test_a_divisor_that_follows_the_number_of_records_tells_neighbours_apart():
    """Noise divided by 20 or by 19, in 10,000 coordinates: the sum of squares alone is right with advantage 0.999.

    The exact law is chi-squared, times the square of a scale. Where epsilon 1 and delta 1e-5 are claimed, the advantage
    is at most (e - 1 + 2e-5) / (e + 1) = 0.462. Source: arXiv 2605.15648.
    """
    claimed, squares, scale = (math.e - 1 + 2e-5) / (math.e + 1), scipy.stats.chi2(10_000), 20 / 19
    between = 2 * math.log(scale) / (1 - scale**-2) * 10_000  # where both densities are equal
    assert squares.cdf(between) - squares.cdf(between / scale**2) > 0.998 > claimed


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_batch_is_a_query_of_pure_noise(problem, make_oracle, rows):
    data = tuple(tensor[:rows] for tensor in problem[2])
    oracle = make_oracle(dataset=data, sampler=tacita.PoissonSampler(sample_rate=1e-9, num_records=60))
    release = oracle.query(trainable(problem[0]))
    draws = tacita.Randomness.insecure(0).key.stream("train-1", "noise", 0, "all").normals((5,), dtype=torch.float64)
    assert torch.equal(torch.cat([g.flatten() for g in release.released["all"].values()]).cpu(), draws)
    assert oracle.ledger.sessions[0].queries_made == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_hostile_row_adds_at_most_the_threshold(problem, make_oracle, bad):
    """Neighbours under the same coins: the release moves by at most the sensitivity (here both see all rows)."""
    params = trainable(problem[0])
    x, y = problem[2]
    hostile = (torch.cat([x, torch.full((1, 4), bad, dtype=x.dtype)]), torch.cat([y, y.new_zeros(1)]))
    settings = dict(sampler=tacita.FullBatchSampler(num_records=60), mechanism=FULL["mechanism"])
    with_row = make_oracle(dataset=hostile, **settings).query(params).released["all"]
    without = make_oracle(**settings).query(params).released["all"]
    moved = torch.cat([(with_row[n] - without[n]).flatten() for n in params]).norm()
    assert moved <= 1.0 + 1e-9


def test_physical_batches_change_nothing_but_the_order_of_summation(problem, make_oracle):
    params = trainable(problem[0])
    whole = make_oracle().query(params)
    for size in (1, 7, 1000):
        chunked = make_oracle(max_physical_batch_size=size).query(params)
        for name in params:
            torch.testing.assert_close(chunked.gradient[name], whole.gradient[name], rtol=1e-12, atol=1e-13)
        assert chunked.noise_std == whole.noise_std
        assert chunked.divisor == whole.divisor


def test_a_query_is_one_draw_however_many_physical_batches_it_has(problem, make_oracle):
    """A draw for each physical batch would put a record into several of them, each time with a whole threshold."""
    params = trainable(problem[0])
    x, y = problem[2]
    huge = torch.cat([x, torch.full((1, 4), 1e6, dtype=x.dtype)]), torch.cat([y, y.new_zeros(1)])
    settings = dict(
        sampler=tacita.PoissonSampler(sample_rate=0.9, num_records=60),
        mechanism=FULL["mechanism"],
        max_physical_batch_size=20,
    )
    with_row, without = make_oracle(dataset=huge, **settings), make_oracle(**settings)
    for _ in range(with_row.planned_queries):
        found, expected = (oracle.query(params).released["all"] for oracle in (with_row, without))
        assert torch.cat([(found[n] - expected[n]).flatten() for n in params]).norm() <= 1.0 + 1e-9


@pytest.mark.parametrize("method", ["loop", "program", "auto"])
def test_every_engine_gives_the_same_release(problem, make_oracle, method):
    params = trainable(problem[0])
    expected = make_oracle(method="loop").query(params)
    found = make_oracle(method=method).query(params)
    for name in params:
        torch.testing.assert_close(found.gradient[name], expected.gradient[name], rtol=1e-9, atol=1e-9)


def test_queries_differ_in_batch_and_noise(problem, make_oracle):
    params = trainable(problem[0])
    oracle = make_oracle()
    first, second = oracle.query(params), oracle.query(params)
    assert (first.query, second.query) == (0, 1)
    assert not torch.equal(first.gradient["weight"], second.gradient["weight"])


def test_plan_is_fixed_and_counted_down(problem, make_oracle):
    params = trainable(problem[0])
    oracle = make_oracle(planned_queries=2)
    assert oracle.remaining_queries == 2
    oracle.query(params)
    oracle.query(params)
    with pytest.raises(BudgetExceededError, match="planned_queries is 2 and all are used"):
        oracle.query(params)
    assert oracle.ledger.sessions[0].queries_made == 2


def test_calibrated_noise_meets_the_target_beside_what_is_registered(make_oracle):
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    first = make_oracle(
        ledger=ledger, mechanism=tacita.CalibratedGaussian(target_epsilon=1.0, target_delta=1e-5), planned_queries=50
    )
    assert 0.995 <= ledger.epsilon(1e-5) <= 1.0
    randomness = tacita.Randomness.insecure(1)
    second = make_oracle(
        ledger=ledger,
        mechanism=tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-5),
        planned_queries=50,
        randomness=randomness,
    )
    assert 2.0 * 0.995 <= ledger.epsilon(1e-5) <= 2.0
    assert second.noise_multiplier != first.noise_multiplier


def test_replace_one_has_twice_the_noise_at_the_same_multiplier(make_oracle):
    oracle = make_oracle("replace_one")
    assert oracle.noise_std == {"all": 2.0}


def test_per_layer_blocks_share_the_noise(problem, make_oracle):
    oracle = make_oracle(
        clipper=tacita.PerLayerClipper(max_grad_norm={"weight": 1.0, "bias": 0.5}),
        mechanism=tacita.GaussianMechanism(noise_multiplier=2.0, allocation="least_power"),
    )
    bounds = oracle.estimator.sensitivity("add_or_remove_one", oracle.source.shapes)
    assert bounds == {"weight": 1.0, "bias": 0.5}
    assert sum((bounds[b] / oracle.noise_std[b]) ** 2 for b in bounds) == pytest.approx(1 / 4.0)
    assert set(oracle.query(trainable(problem[0])).gradient) == {"weight", "bias"}


def test_a_cell_without_a_proof_is_refused_with_the_relations_that_work(make_oracle):
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        make_oracle(sampler=tacita.FixedSizeSampler(batch_size=10, num_records=60))


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_a_public_count_must_be_the_datas(make_oracle, relation):
    with pytest.raises(ValueError, match=r"num_records must be the number of records.*got 61\. Pass len\(data\)"):
        make_oracle(relation, sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=61))


def test_more_queries_than_the_sampler_has_batches_are_refused(make_oracle):
    with pytest.raises(ValueError, match="planned_queries must be <= 5"):
        make_oracle("zero_out_one", sampler=tacita.DisjointSampler(num_batches=5, num_records=60))


def test_a_loader_is_refused_as_sampler(problem, make_oracle):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*problem[2]), batch_size=10, shuffle=True)
    with pytest.raises((TypeError, ValueError), match="PoissonSampler"):
        make_oracle(sampler=loader)


def test_parameters_the_optimizer_misses_are_named_after_the_first_step(problem, make_oracle):
    model = problem[0]
    oracle = make_oracle()
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    oracle.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="not updated after the first step: bias"):
        oracle.backward()


def test_a_learning_rate_of_zero_is_no_missing_parameter(problem, make_oracle):
    oracle = make_oracle()
    optimizer = torch.optim.SGD(problem[0].parameters(), lr=0.0)
    for _ in range(3):
        oracle.backward()
        optimizer.step()
    assert oracle.remaining_queries == 7


def test_an_oracle_that_is_not_used_spends_nothing_and_can_be_withdrawn(make_oracle):
    oracle = make_oracle()
    assert oracle.ledger.epsilon_spent(1e-5) == 0.0
    assert oracle.ledger.epsilon(1e-5) > 0.0
    oracle.session.withdraw()
    assert oracle.ledger.epsilon(1e-5) == 0.0


def test_a_users_error_propagates_and_the_query_can_be_made_again(problem, make_oracle):
    model, _, data = problem
    fail = [False]

    def loss_fn(model, batch):
        if fail[0]:
            raise KeyError("the user's own")
        return (model(batch[0]).squeeze(-1) - batch[1]).square()

    oracle = tacita.ClippedGradientOracle(
        model,
        loss_fn,
        data,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=60),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=3,
        method="loop",  # a program runs no code of the user's in a query
    )
    fail[0] = True
    with pytest.raises(KeyError, match="the user's own"):
        oracle.query(trainable(model))
    fail[0] = False
    assert oracle.query(trainable(model)).query == 0


def test_printing_an_oracle_shows_settings_and_no_data(problem, make_oracle):
    text = repr(make_oracle(dataset=tuple(t * 0 + 12345.678 for t in problem[2])))
    assert "FlatClipper" in text
    assert "12345" not in text


def test_a_session_registered_before_must_be_this_oracles(make_oracle):
    first = make_oracle()
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    session = ledger.register(first.event, planned_queries=10, purpose="train", secure_randomness=False)
    oracle = make_oracle(ledger=ledger, session=session)
    assert oracle.session is session
    with pytest.raises(LedgerError, match=r"registered for another event.*\(noise_std was \(1.0,\) and is \(0.5,\)\)"):
        make_oracle(ledger=ledger, session=session, mechanism=tacita.GaussianMechanism(noise_multiplier=0.5))
    with pytest.raises(LedgerError, match=r"\(planned_queries was 10 and is 11\)"):
        make_oracle(ledger=ledger, session=session, planned_queries=11)


@pytest.mark.parametrize(("before", "after"), [(None, 7), (7, None), (16, 4)])
def test_rows_in_memory_may_be_others_when_a_session_goes_on(make_oracle, before, after):
    """They bound the memory, and who ran out of it must be able to lower them."""
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    session = make_oracle(ledger=ledger, max_physical_batch_size=before).session
    assert make_oracle(ledger=ledger, session=session, max_physical_batch_size=after).session is session


def test_sampler_sees_the_rows_of_its_part_only(problem, make_oracle):
    model, loss_fn, data = problem
    first, second = tacita.split(data, [40, 20])
    oracle = make_oracle("zero_out_one", dataset=second, **{**FULL, "sampler": tacita.FullBatchSampler(num_records=20)})
    release = oracle.query(trainable(model))
    expected = mean_gradient(model, loss_fn, tuple(t[40:] for t in data))
    torch.testing.assert_close(release.gradient["weight"], expected["weight"], rtol=1e-12, atol=1e-12)
    assert np.array_equal(first.rows, np.arange(40))


def test_a_tied_weight_is_one_parameter(problem, make_oracle):
    """Under one name, with one clipped gradient: that of all its uses."""
    x, y = problem[2]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)).double()
    model[1].weight = model[0].weight

    def loss_fn(model, batch):
        return (model(batch[0]).sum(1) - batch[1]).square()

    oracle = tacita.ClippedGradientOracle(
        model,
        loss_fn,
        (100 * x[:1], y[:1]),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        planned_queries=1,
        **{**FULL, "clipper": tacita.FlatClipper(max_grad_norm=1.0), "sampler": tacita.FullBatchSampler(num_records=1)},
    )
    release = oracle.query(trainable(model))
    (expected,) = mean_gradient(model, loss_fn, (100 * x[:1], y[:1])).values()
    assert list(release.gradient) == ["0.weight"]
    torch.testing.assert_close(release.gradient["0.weight"], expected / expected.norm(), rtol=1e-6, atol=0)


def test_an_error_shows_no_value_of_the_data(problem):
    """A loss that is one a sample on synthetic rows, and a mean on these."""
    data = tuple(torch.full_like(tensor, 12345.678) for tensor in problem[2])

    def loss_fn(model, batch):
        losses = model(batch[0]).squeeze(-1) * 0 + batch[1]
        return losses if (batch[1] < 1).all() else losses.mean()

    oracle = tacita.ClippedGradientOracle(
        problem[0],
        loss_fn,
        data,
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        planned_queries=1,
        method="loop",  # a program is never told a value
        **FULL,
    )
    with pytest.raises(tacita.UnsupportedModuleError, match="one floating-point loss a sample") as caught:
        oracle.query(trainable(problem[0]))
    assert "12345" not in str(caught.value)


def test_an_opened_session_is_not_continued_with_another_clipper(problem, make_oracle):
    first = make_oracle()
    first.query(trainable(problem[0]))
    with pytest.raises(ResumeError, match="other settings"):
        make_oracle(
            ledger=first.ledger, session=first.session, clipper=tacita.AutomaticClipper(max_grad_norm=1.0, gamma=0.01)
        )


def test_a_complex_point_is_refused_whatever_the_source():
    from tacita.gradients.given import GivenSource

    with pytest.raises(ValueError, match="floating-point"):
        GivenSource(torch.ones(3, 2, dtype=torch.complex64))
    oracle = tacita.GradientOracle(
        GivenSource(torch.ones(3, 2)),
        estimator=tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=1.0)),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        sampler=tacita.FullBatchSampler(num_records=3),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        planned_queries=1,
    )
    with pytest.raises(ValueError, match="must be real, and are complex: theta"):
        oracle.query({"theta": torch.zeros(2, dtype=torch.complex64)})
    assert oracle.session.queries_made == 0


@pytest.mark.parametrize(
    ("relation", "sampler", "public"),
    [
        ("replace_one", tacita.PoissonSampler(sample_rate=0.3, num_records=60), True),
        ("zero_out_one", tacita.PoissonSampler(sample_rate=0.3, num_records=60), True),
        ("add_or_remove_one", tacita.PoissonSampler(sample_rate=0.3, num_records=60), False),
    ],
)
def test_a_delta_that_publishes_a_record_is_refused_where_their_number_is_public(
    make_oracle, relation, sampler, public
):
    def built(delta):
        mechanism = tacita.CalibratedGaussian(target_epsilon=1.0, target_delta=delta)
        return make_oracle(relation=relation, sampler=sampler, mechanism=mechanism)

    built(0.99 / 60)
    if not public:
        built(1 / 60)  # the number of records is secret, and compared with nothing
        return
    with pytest.raises(ValueError, match=r"target_delta must be below 1 / num_records = 0\.0167"):
        built(1 / 60)


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_a_cap_whose_delta_publishes_a_record_is_refused(relation):
    def built(delta):
        return tacita.ClippedGradientOracle(
            torch.nn.Linear(2, 1),
            lambda model, batch: model(batch[0]).sum(1),
            (torch.zeros(60, 2),),
            ledger=tacita.Ledger(
                neighboring_relation=relation, privacy_unit="one row", max_epsilon=100.0, max_delta=delta
            ),
            sampler=tacita.FullBatchSampler(num_records=60),
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=1,
        )

    built(0.01)
    with pytest.raises(ValueError, match=r"max_delta must be below 1 / num_records = 0\.0167"):
        built(0.02)


@pytest.mark.parametrize("how", ["an entry", "a field"])
def test_a_threshold_that_is_changed_after_the_build_is_refused(how):
    """The noise and the session's event are those of the old one."""
    clipper = tacita.PerLayerClipper(max_grad_norm={"": 1.0})
    model = torch.nn.Linear(2, 1)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: model(batch[0]).squeeze(1),
        (torch.ones(10, 2),),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.5, num_records=10),
        clipper=clipper,
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=2,
    )
    if how == "an entry":
        with pytest.raises(TypeError, match="cannot be changed"):
            clipper.max_grad_norm[""] = 50.0
        assert clipper.max_grad_norm == {"": 1.0}
        return
    object.__setattr__(clipper, "max_grad_norm", {"": 50.0})
    with pytest.raises(LedgerError, match="changed after the oracle was built"):
        oracle.query(dict(model.named_parameters()))
    assert oracle.session.queries_made == 0
