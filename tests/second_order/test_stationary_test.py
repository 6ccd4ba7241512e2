"""The private test of stationarity: its value and sensitivity, what leaves, what the ledger says, what is certified."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import tacita
from tacita import accounting as acc
from tacita._stream import Noise
from tacita.errors import BudgetExceededError, LedgerError, ResumeError, UnsupportedModuleError
from tacita.second_order import AboveThresholdEvent
from tacita.second_order.above_threshold import AboveThreshold
from tacita.second_order.threshold_answer import ThresholdAnswer
from tests.around_mechanism import Spying

DIM, ROWS = 4, 500


class Point(nn.Module):
    """Parameters are a point x of the space."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim, dtype=torch.float64))


def component(model, batch):
    """-(a x)^2 / 2 + |x|^4 / 4: a saddle at 0, minima along the leading eigenvector of the mean of a a^T."""
    (a,) = batch
    x = model.x
    return -(a @ x).square() / 2 + x.square().sum().square() / 4 + 0 * a[:, 0]


def rows(seed=0, count=ROWS, dim=DIM):
    """Unit vectors, the first direction preferred."""
    draws = torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    draws[:, 0] *= 8
    return draws / draws.norm(dim=1, keepdim=True)


SADDLE = {"x": torch.zeros(DIM, dtype=torch.float64)}


def minimum(data):
    values, vectors = torch.linalg.eigh(data.T @ data / len(data))
    return {"x": values[-1].sqrt() * vectors[:, -1]}


def build(data=None, relation="replace_one", model=None, loss_fn=component, **changes):
    data = rows() if data is None else data
    settings = dict(
        ledger=changes.pop("ledger", None)
        or tacita.Ledger(neighboring_relation=relation, privacy_unit="one row = one patient"),
        num_records=ROWS,
        epsilon=4.0,
        alpha=0.2,
        hessian_lipschitz=1.0,
        max_grad_norm=1.0,
        declared_max_hessian_norm=2.5,
        because="rows are unit vectors and |x| <= 0.9",
        max_tests=8,
        failure_probability=0.05,
        randomness=tacita.Randomness.insecure(0),
    )
    dataset = data if isinstance(data, tacita.Records) else (data,)
    return tacita.StationaryTest(model or Point(), loss_fn, dataset, **{**settings, **changes})


def private_value(test, params, number=0):
    return test._value(params, number)


# -- the value and its sensitivity


def exact_value(data, params, query):
    x = params["x"]
    grads = -(data @ x)[:, None] * data + x.square().sum() * x
    norms = grads.norm(dim=1, keepdim=True)
    clipped = grads * (query.max_grad_norm / norms).clamp(max=1.0)
    eye = torch.eye(len(x), dtype=torch.float64)
    hessian = -(data.T @ data) + len(data) * (x.square().sum() * eye + 2 * torch.outer(x, x))
    gradient_norm = clipped.sum(dim=0).norm().item() / query.num_records
    smallest = torch.linalg.eigvalsh(hessian / query.num_records)[0].item()
    return max(gradient_norm / query.alpha, -smallest / math.sqrt(query.hessian_lipschitz * query.alpha))


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.1])
@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("chunk", [None, 64])
def test_the_value_is_the_definition(max_grad_norm, scale, chunk):
    data = rows()
    params = {"x": scale * torch.linspace(-1, 1, DIM, dtype=torch.float64)}
    test = build(data, max_grad_norm=max_grad_norm, epsilon=4000.0, max_physical_batch_size=chunk)
    assert private_value(test, params) == pytest.approx(exact_value(data, params, test.query), rel=1e-9)


RECOMMENDED = dict(
    alpha=0.1, hessian_lipschitz=1.0, max_grad_norm=2.5, declared_max_hessian_norm=10.0, num_records=50_000
)


@pytest.mark.parametrize(
    ("changes", "relation", "sensitivity"),
    [
        ({}, "replace_one", 0.00126491),
        ({"eigenvalue_error": 0.001, "solver_failure": 1e-9}, "replace_one", 0.00442719),
        ({}, "add_or_remove_one", 0.00126491 / 2),
        ({}, "zero_out_one", 0.00126491 / 2),
        ({"declared_max_hessian_norm": 0.1}, "replace_one", 2 * 2.5 / (50_000 * 0.1)),  # the gradient decides
    ],
)
def test_the_sensitivity_by_the_formula(changes, relation, sensitivity):
    query = tacita.StationarityQuery(**{**RECOMMENDED, **changes})
    assert query.sensitivity(relation) == pytest.approx(sensitivity, rel=1e-5)
    assert query.sensitivity(relation, 3) > query.sensitivity(relation)


def test_the_recommended_scales():
    mechanism = AboveThreshold(
        epsilon=1.0, sensitivity=tacita.StationarityQuery(**RECOMMENDED).sensitivity("replace_one")
    )
    assert mechanism.threshold_scale == pytest.approx(0.00252982, rel=1e-5)
    assert mechanism.query_scale == pytest.approx(0.00505964, rel=1e-5)
    assert mechanism.accuracy(20, 0.05) == pytest.approx(0.0676435, rel=1e-5)


class Quadratic(Point):
    """Row i is the diagonal of its Hessian; its gradient is that times x, plus a vector of its own."""


def quadratic(model, batch):
    h, b = batch
    return (h * model.x.square()).sum(dim=1) / 2 + b @ model.x


def neighbours(relation, hessian, gradient):
    """Data sets that differ in one record, as far apart as the bounds allow, at the saddle of the first direction."""
    h, b = torch.zeros(ROWS, DIM, dtype=torch.float64), torch.zeros(ROWS, DIM, dtype=torch.float64)
    h[:, 0], b[:, 1] = -0.5, 0.3
    one, other = (h.clone(), b.clone()), (h.clone(), b.clone())
    one[0][0, 0], one[1][0, 1] = -hessian, gradient
    if relation == "replace_one":
        other[0][0, 0], other[1][0, 1] = hessian, -gradient
    elif relation == "zero_out_one":
        other[0][0], other[1][0] = 0.0, 0.0
    else:
        other = (other[0][1:], other[1][1:])
    return one, other


def value_of(data, relation, **changes):
    test = tacita.StationaryTest(
        Quadratic(),
        quadratic,
        data,
        ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
        num_records=ROWS,
        epsilon=4000.0,
        hessian_lipschitz=1.0,
        max_tests=8,
        failure_probability=0.05,
        **changes,
    )
    return private_value(test, SADDLE), test.mechanism.sensitivity


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("decisive", ["gradient", "curvature"])
def test_one_record_moves_the_value_by_just_the_stated_sensitivity(relation, decisive):
    alpha, hessian = (0.2, 1.5) if decisive == "gradient" else (0.9, 40.0)
    changes = dict(alpha=alpha, max_grad_norm=1.0, declared_max_hessian_norm=hessian)
    values = []
    for data in neighbours(relation, hessian, 1.0):
        value, stated = value_of(data, relation, **changes)
        values.append(value)
    assert abs(values[0] - values[1]) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize("length", [1e30, math.inf, math.nan])
def test_a_hostile_gradient_needs_no_condition(relation, length):
    values = []
    for data in neighbours(relation, 1.0, length):
        value, stated = value_of(data, relation, alpha=0.2, max_grad_norm=1.0, declared_max_hessian_norm=1.0)
        values.append(value)
    assert abs(values[0] - values[1]) <= stated * (1 + 1e-9)


def mixes(model, h):
    """Let each record's Hessian be that of the record that is farthest out."""
    return h.min(dim=0, keepdim=True).values.expand_as(h)


def keeps(model, h):
    model.kept.append(h[:1].clone())
    return h


def writes(model, h):
    model.buffer.data.copy_(h[0])
    return h


class Hostile(Quadratic):
    def __init__(self):
        super().__init__()
        self.kept = []
        self.register_buffer("buffer", torch.zeros(DIM, dtype=torch.float64))


@pytest.mark.parametrize("method", ["auto", "loop"])
@pytest.mark.parametrize("does", [mixes, keeps, writes])
def test_model_and_loss_never_see_several_records(does, method):
    """They behave in trials, which have three rows at most, and mix records, keep one or write one in a query."""
    relation, curvature = "replace_one", 40.0
    values, hostile = [], Hostile()

    def loss(model, batch):
        h, b = batch
        return quadratic(model, (does(model, h) if len(h) > 3 else h, b))

    for data in neighbours(relation, curvature, 0.3):
        test = tacita.StationaryTest(
            hostile,
            loss,
            data,
            ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
            num_records=ROWS,
            epsilon=4000.0,
            alpha=0.9,
            hessian_lipschitz=1.0,
            max_grad_norm=1.0,
            declared_max_hessian_norm=curvature,
            max_tests=8,
            failure_probability=0.05,
            method=method,
        )
        values.append(private_value(test, SADDLE))
    assert abs(values[0] - values[1]) <= test.mechanism.sensitivity * (1 + 1e-9)
    assert not hostile.kept
    assert not hostile.buffer.any()


def test_the_smoothness_of_the_mean_is_no_sensitivity():
    """One record of curvature +-1000 among zeros: both means are 1-smooth, and the value moves by 1, not 2 / n."""
    n = 1000
    h = torch.zeros(n, DIM, dtype=torch.float64)
    values = []
    for curvature in (1000.0, -1000.0):
        h[0] = curvature
        query = tacita.StationarityQuery(
            **{**RECOMMENDED, "alpha": 1.0, "declared_max_hessian_norm": 1.0, "num_records": n}
        )
        source = tacita.NetworkSource(Quadratic(), quadratic, (h.clone(), torch.zeros_like(h)))
        values.append(query(source.engine(SADDLE, np.arange(n)), torch.ones(DIM)))
    assert abs(values[0] - values[1]) == pytest.approx(1.0)
    assert abs(values[0] - values[1]) > 100 * query.sensitivity("replace_one")


def test_a_curvature_that_is_not_finite_is_rejected_and_no_error():
    def broken(model, batch):
        return component(model, batch) + model.x.abs().sum().pow(1.5)  # its second derivative at 0 is infinite

    test = build(loss_fn=broken)
    assert test.test(SADDLE) is False


# -- what leaves


def test_good_points_pass_and_bad_ones_do_not():
    data = rows()
    test = build(data)
    assert [test.test(SADDLE) for _ in range(3)] == [False] * 3
    assert test.test(minimum(data)) is True
    assert test.accepted == 3


def test_answers_are_the_mechanism_s_with_the_secret_draws(monkeypatch):
    """The threshold's draw is one for the session; a value's is its own."""
    test = build(alpha=0.45, epsilon=4.0)
    seen = []

    def watched(self, value, *, threshold, threshold_draw, query_draw):
        seen.append((value, threshold, threshold_draw, query_draw))
        return len(seen) == 5

    monkeypatch.setattr(AboveThreshold, "__call__", watched)
    points = [{"x": s * minimum(rows())["x"]} for s in (0.3, 0.1, 0.5, 0.0, 0.2)]
    assert [test.test(params) for params in points] == [False] * 4 + [True]
    randomness = tacita.Randomness.insecure(0)
    of_threshold = randomness.session_key("select-1").stream("threshold").laplaces(1)[0]
    for number, (value, threshold, threshold_draw, query_draw) in enumerate(seen):
        assert value == pytest.approx(exact_value(rows(), points[number], test.query), rel=1e-9)
        assert threshold == 1 + test.mechanism.accuracy(8, 0.05)
        assert threshold_draw == of_threshold
        assert query_draw == randomness.key.stream("select-1", "noise", number, "answer").laplaces(1)[0]
    assert len({draws[3] for draws in seen}) == 5


@pytest.mark.parametrize("threshold_draw", [-1.5, 0.0, 0.75])
def test_an_answer_has_the_noise_of_the_threshold_and_its_own(threshold_draw):
    """The answer turns at the value that both draws, each in its own scale, carry to the threshold."""
    mechanism = AboveThreshold(epsilon=2.0, sensitivity=0.5)
    answering = ThresholdAnswer(mechanism, 3.0)
    answering.threshold_draw = threshold_draw
    for number in range(20):
        noise = Noise(partial(tacita.Randomness.insecure(0).key.stream, "select-1", "noise", number))
        own = 4 * 0.5 / 2.0 * noise.stream("answer").laplaces(1)[0]
        turns = 3.0 + 2 * 0.5 / 2.0 * threshold_draw - own
        for value, passes in ((turns - 1e-9, True), (turns + 1e-9, False)):
            values = {"answer": {"passes": torch.tensor([value], dtype=torch.float64)}}
            assert bool(answering(values, {}, noise)["answer"]["passes"]) == passes


def test_no_record_is_a_data_set_like_any_other(monkeypatch):
    """Its value is 0: compared with full noise, written down, charged."""
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    test, seen, compare = build(rows()[:0], ledger=ledger), [], AboveThreshold.__call__

    def watched(self, value, **draws):
        seen.append((value, draws["threshold_draw"], draws["query_draw"], test.session.queries_made))
        return compare(self, value, **draws) and len(seen) == 3

    monkeypatch.setattr(AboveThreshold, "__call__", watched)
    assert [test.test(SADDLE) for _ in range(3)] == [False, False, True]
    randomness = tacita.Randomness.insecure(0)
    of_threshold = randomness.session_key("select-1").stream("threshold").laplaces(1)[0]
    own = [randomness.key.stream("select-1", "noise", n, "answer").laplaces(1)[0] for n in range(3)]
    assert seen == [(0.0, of_threshold, own[n], n + 1) for n in range(3)]
    assert ledger.spent_bound(1e-9).epsilon == pytest.approx(4.0, rel=1e-6)


def test_the_threshold_s_draw_survives_a_ratchet():
    randomness = tacita.Randomness.insecure(3)
    test = build(randomness=randomness)
    before = test._answering.threshold_draw
    randomness.ratchet()
    test.test(SADDLE)
    assert test._answering.threshold_draw == before
    assert before == tacita.Randomness.insecure(3).session_key("select-1").stream("threshold").laplaces(1)[0]


def test_the_draws_are_the_run_s_own():
    firsts = {build(randomness=tacita.Randomness.insecure(seed))._answering.threshold_draw for seed in range(20)}
    assert len(firsts) == 20
    assert build(randomness=None).ledger.sessions[0].registration.secure_randomness


def test_nothing_of_the_data_is_printed():
    test = build()
    test.test(SADDLE)
    value = f"{private_value(test, SADDLE):.4f}"
    assert value not in repr(test)
    assert repr(test) == repr(build(rows(seed=9)))


# -- the ledger


def test_one_session_is_charged_once_however_many_are_rejected():
    test = build()
    assert [session.id for session in test.ledger.sessions] == ["select-1"]
    assert test.ledger.conditional_bound(1e-9).epsilon == pytest.approx(4.0, rel=1e-6)
    spent = []
    for _ in range(4):
        test.test(SADDLE)
        spent.append(test.ledger.spent_bound(1e-9).epsilon)
    assert spent == pytest.approx([4.0] * 4, rel=1e-6)
    assert test.ledger.conditional_bound(1e-9).epsilon == pytest.approx(4.0, rel=1e-6)
    assert not test.event.per_query
    assert test.session.queries_made == 4
    assert test.ledger.verify().ok


def test_every_answer_has_its_line_before_it_is_known(monkeypatch):
    test = build()
    seen = []
    spying = Spying(test._gate._mechanism, lambda _: seen.append(test.session.queries_made))
    monkeypatch.setattr(test._gate, "_mechanism", spying)
    for _ in range(3):
        test.test(SADDLE)
    assert seen == [1, 2, 3]
    assert test.session.reserved_queries == 8


def test_the_first_accepted_point_ends_the_session():
    data = rows()
    test = build(data)
    assert test.first_accepted([SADDLE, SADDLE, minimum(data), minimum(data)]) == 2
    assert test.session.closed
    assert test.remaining_tests == 0
    with pytest.raises(BudgetExceededError, match="test 3 accepted a point, which ends the session"):
        test.test(minimum(data))
    assert test.first_accepted([minimum(data)]) is None


def test_the_plan_of_tests_is_kept():
    test = build()
    assert test.first_accepted([SADDLE] * 100) is None
    assert test.remaining_tests == 0
    assert test.session.closed
    with pytest.raises((BudgetExceededError, LedgerError)):
        test.test(SADDLE)


def test_the_statement_has_the_condition_and_no_unconditional_epsilon():
    test = build()
    said = tacita.statement(test.ledger, delta=1e-6)
    text = " ".join(said.text.split())
    assert said.to_json()["epsilon"] is None
    assert said.to_json()["conditional_epsilon"] == pytest.approx(4.0, rel=1e-5)
    assert "every record's loss has a Hessian of spectral norm at most 2.5 at every point that is tested" in text
    assert "declared because rows are unit vectors" in text
    assert test.ledger.epsilon(1e-6) == math.inf


@pytest.mark.parametrize("method", ["loop", "program"])
def test_the_statement_of_the_loop_says_that_its_code_meets_records(method):
    said = " ".join(tacita.statement(build(method=method).ledger, delta=1e-9).text.split())
    assert ("keeps nothing of a record" in said) == (method == "loop")


def test_it_stands_beside_a_training_registered_with_it():
    data = rows()
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    test = build(data, ledger=ledger, epsilon=2.0, alpha=0.45)
    oracle = tacita.ClippedGradientOracle(
        Point(),
        component,
        (data,),
        ledger=ledger,
        sampler=tacita.FullBatchSampler(num_records=ROWS),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=5.0),
        planned_queries=10,
    )
    alone = acc.epsilon([acc.Spend(oracle.event, 10)], 1e-5).epsilon
    both = ledger.conditional_bound(1e-5).epsilon
    assert alone < both <= alone + 2.0
    oracle.backward()
    test.test(SADDLE)  # after a release, for it was registered before
    with pytest.raises(LedgerError, match="queries were made on these records already"):
        build(data, ledger=ledger)


def test_a_share_pays_for_a_test_that_is_chosen_later():
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    share = ledger.register_share(5.0, 1e-6)
    draft = build()
    session = ledger.register(
        draft.event, planned_queries=8, purpose="select", settings=draft.settings, share=share, secure_randomness=False
    )
    assert build(ledger=ledger, session=session).test(SADDLE) is False


def test_a_test_is_not_resumed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    settings = dict(neighboring_relation="replace_one", privacy_unit="one row")
    with tacita.Ledger(path, **settings) as ledger:
        test = build(ledger=ledger)
        test.test(SADDLE)
    with tacita.Ledger(path, **settings) as ledger:
        (session,) = ledger.sessions
        assert ledger.spent_bound(1e-9).epsilon == pytest.approx(4.0, rel=1e-6)
        with pytest.raises(ResumeError, match="a test is not continued"):
            build(ledger=ledger, session=session)


def test_a_session_registered_before_must_be_this_test_s():
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    first = build(ledger=ledger)
    for changes in ({"alpha": 0.25}, {"max_tests": 5}, {"epsilon": 5.0}, {"because": "else"}):
        with pytest.raises(LedgerError, match=r"registered for another event, .* than this test's"):
            build(ledger=ledger, session=first.session, **changes)


def test_two_tests_cannot_draw_the_same_noise():
    randomness = tacita.Randomness.insecure(0)
    build(randomness=randomness)
    with pytest.raises(tacita.LedgerError, match="same noise twice"):
        build(randomness=randomness)


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_the_relation_sets_the_noise(relation):
    test = build(relation=relation)
    moved = 2 if relation == "replace_one" else 1
    assert test.mechanism.sensitivity == pytest.approx(moved * max(1 / (ROWS * 0.2), 2.5 / ROWS / math.sqrt(0.2)))
    assert test.event.inner == test.mechanism.event(relation)


def test_units_of_several_rows_have_more_noise():
    records = tacita.cap_units((rows(),), [i // 5 for i in range(ROWS)], 3, randomness=tacita.Randomness.insecure(0))
    capped = build(records, relation="add_or_remove_one", num_records=ROWS)
    assert capped.mechanism.sensitivity == pytest.approx(3 * build(relation="add_or_remove_one").mechanism.sensitivity)


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_units_of_several_rows_are_refused_where_their_rows_would_be_public(relation):
    records = tacita.cap_units((rows(),), [i // 5 for i in range(ROWS)], 3, randomness=tacita.Randomness.insecure(0))
    with pytest.raises(tacita.UnsupportedEventError, match="no guarantee is proved"):
        build(records, relation=relation, num_records=len(records.rows))


def test_a_part_of_a_split_is_tested_beside_the_others():
    parts = tacita.split((rows(),), [300, 200])
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    for part, count in zip(parts, (300, 200), strict=True):
        build(part, ledger=ledger, num_records=count, alpha=0.45)
    assert ledger.conditional_bound(1e-9).epsilon == pytest.approx(4.0, rel=1e-6)


# -- the eigen-solver


WIDE = 80


def wide(epsilon=400.0, **changes):
    given = dict(model=Point(WIDE), declared_max_hessian_norm=1.5, alpha=0.4, epsilon=epsilon)
    return build(rows(dim=WIDE), **given, **changes)


def test_many_parameters_need_an_error_and_its_failure_probability():
    with pytest.raises(ValueError, match="solver_failure_probability must be"):
        wide(eigenvalue_error=0.3)
    assert wide(eigenvalue_error=0.0).query.is_exact(WIDE)
    with pytest.raises(ValueError, match=re.escape("eigenvalue_error must be > 0 for a model with 1001 parameters")):
        build(rows(dim=1001), model=Point(1001))


def test_failures_of_the_solver_are_paid_for_in_delta(monkeypatch):
    monkeypatch.setattr("tacita.second_order.stationary_test.LARGEST_SLACK", 100.0)
    test = wide(epsilon=4.0, eigenvalue_error=0.3, solver_failure_probability=1e-8)
    assert test.query.steps(WIDE) < WIDE
    assert test.query.solver_failure == 1e-8 / 8
    assert test.event.guarantee(8).coupling_gap == pytest.approx(1e-8)
    spends = [acc.Spend(test.event, 8)]
    assert acc.delta(spends, 4.0).delta == pytest.approx(1e-8 * (1 + math.exp(4.0)))
    assert 4.0 <= test.ledger.conditional_bound(1e-6).epsilon < 4.0001
    with pytest.raises((ArithmeticError, AssertionError)):
        assert math.isfinite(test.ledger.conditional_bound(1.5e-8).epsilon)


def test_small_models_have_exact_eigenvalues_and_no_failure():
    test = build(eigenvalue_error=0.001, solver_failure_probability=1e-8)
    assert test.query.solver_failure == 0
    assert test.event.guarantee(8).coupling_gap == 0


def test_the_solver_is_within_its_error():
    data, x = rows(dim=WIDE), 0.2 * torch.linspace(-1, 1, WIDE, dtype=torch.float64) / WIDE**0.5
    exact = private_value(wide(), {"x": x})
    for seed in range(20):
        test = wide(eigenvalue_error=0.3, solver_failure_probability=1e-3, randomness=tacita.Randomness.insecure(seed))
        found = private_value(test, {"x": x})
        assert exact - 0.3 / test.query.curvature_limit <= found <= exact + 1e-9
    assert exact == pytest.approx(exact_value(data, {"x": x}, test.query), rel=1e-9)


def test_the_solver_draws_from_the_secret_anew_for_each_test():
    test = wide(eigenvalue_error=0.6, solver_failure_probability=1e-3)
    x = {"x": torch.zeros(WIDE, dtype=torch.float64)}
    assert private_value(test, x, 0) == private_value(test, x, 0)
    assert private_value(test, x, 0) != private_value(test, x, 1)


def test_the_bound_on_the_number_of_records_is_a_condition_where_it_is_private():
    words = "at most 500 records"
    random = dict(eigenvalue_error=0.3, solver_failure_probability=1e-8)
    assert words in wide(relation="add_or_remove_one", **random).ledger.conditions[0]
    assert words not in wide(relation="replace_one", **random).ledger.conditions[0]
    assert words not in wide(relation="add_or_remove_one").ledger.conditions[0]


# -- accuracy and certificates


def test_the_certificate_says_what_is_bounded_and_what_was_assumed():
    data = rows()
    test = build(data)
    with pytest.raises(ValueError, match=r"test\(\) has accepted no point"):
        test.certificate()
    test.first_accepted([SADDLE, minimum(data)])
    found = test.certificate()
    excess = 1 + 2 * test.slack
    assert found.gradient_norm == pytest.approx(excess * 0.2)
    assert found.eigenvalue == pytest.approx(-excess * math.sqrt(0.2))
    assert found.certified_alpha == pytest.approx(excess**2 * 0.2)
    assert found.failure_probability == 0.05
    assert (found.test, found.session) == (1, "select-1")
    text = " ".join(str(found).split())
    assert "Accepted by test 2 of at most 8 (session select-1)" in text
    assert "no record's gradient at the point is longer than 1 (else the gradient bound is about the clipped" in text
    assert "every record's loss has a Hessian of spectral norm at most 2.5" in text
    assert "divided by num_records = 500: not about other data" in text
    exact = minimum(data)
    query = test.query
    assert exact_value(data, exact, query) <= excess


def test_a_slack_of_a_half_certifies_four_alpha():
    query = tacita.StationarityQuery(**RECOMMENDED)
    settings = {"gradient_norm": 2 * query.alpha, "eigenvalue": -2 * query.curvature_limit}
    certificate = tacita.StationaryCertificate(
        **settings,
        alpha=query.alpha,
        hessian_lipschitz=query.hessian_lipschitz,
        slack=0.5,
        failure_probability=0.05,
        max_grad_norm=2.5,
        num_records=50_000,
        conditions=(),
        session="select-1",
        test=0,
        max_tests=1,
    )
    assert certificate.certified_alpha == pytest.approx(4 * query.alpha)
    assert tacita.is_second_order_stationary(
        certificate.gradient_norm * (1 - 1e-9),
        certificate.eigenvalue * (1 - 1e-9),
        alpha=certificate.certified_alpha,
        hessian_lipschitz=query.hessian_lipschitz,
    )


def test_the_certificate_counts_the_solver_s_error_and_failure():
    data = rows(dim=WIDE)
    test = build(
        data,
        model=Point(WIDE),
        alpha=0.9,
        eigenvalue_error=0.3,
        solver_failure_probability=1e-3,
        epsilon=400.0,
    )
    test.test({"x": 0.01 * torch.ones(WIDE, dtype=torch.float64)})
    found = test.certificate()
    assert found.eigenvalue == pytest.approx(-(1 + 2 * test.slack) * math.sqrt(0.9) - 0.3)
    assert found.failure_probability == pytest.approx(0.05 + 1e-3)


def test_answers_too_noisy_to_mean_anything_are_refused():
    with pytest.raises(ValueError, match=r"the slack must be at most 0\.5, and answers would be off by up to"):
        build(epsilon=0.1)


# -- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": math.inf}, "epsilon must be"),
        ({"alpha": 0.0}, "alpha must be"),
        ({"hessian_lipschitz": math.nan}, "hessian_lipschitz must be"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be"),
        ({"declared_max_hessian_norm": 0.0}, "declared_max_hessian_norm must be"),
        ({"declared_max_hessian_norm": math.inf}, "declared_max_hessian_norm must be"),
        ({"num_records": 499}, "num_records must be the number of records under replace_one"),
        ({"num_records": 0}, "num_records must be"),
        ({"max_tests": 0}, "max_tests must be"),
        ({"failure_probability": 0.0}, "failure_probability must be"),
        ({"solver_failure_probability": 1.0}, "solver_failure_probability must be"),
        ({"eigenvalue_error": -1.0}, "eigenvalue_error must be"),
        ({"because": "two\nlines"}, "because must"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_a_private_number_of_records_is_never_compared():
    for count in (1, ROWS - 1, 10 * ROWS):
        assert build(relation="add_or_remove_one", num_records=count, epsilon=1e6).query.num_records == count


# -- what draws at random


class Drawing(Point):
    """A point beside a layer; what the layer drops is seen in the loss."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def through_the_layer(model, batch):
    return component(model, (model.layer(batch[0]),))


def dropped_in_every_mode(model, batch):
    return component(model, (nn.functional.dropout(batch[0], 0.5),))


def noise_of_numpy(model, batch):
    return component(model, batch) * (1 + 0 * np.random.rand())


class Drawn(torch.utils.data.Dataset):
    """Entries of each record are dropped, drawn anew for each value; row 0 is all ``first``."""

    def __init__(self, first):
        self.rows = rows()
        self.rows[0] = first

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return (self.rows[index] * torch.randint(0, 2, (DIM,)),)


def test_a_model_that_draws_is_refused_whatever_the_data():
    for data in (rows(), torch.full((ROWS, DIM), math.nan, dtype=torch.float64)):
        for layer in (nn.Dropout(0.5), nn.Dropout(1e-9), nn.AlphaDropout(0.1), nn.RReLU()):
            with pytest.raises(UnsupportedModuleError, match="draws at random"):
                build(data, model=Drawing(layer), loss_fn=through_the_layer, method="loop")
        for loss_fn in (dropped_in_every_mode, noise_of_numpy):
            with pytest.raises(UnsupportedModuleError, match="draws at random"):
                build(data, model=Point().eval(), loss_fn=loss_fn, method="loop")


@pytest.mark.parametrize(
    ("model", "loss_fn", "says"),
    [
        (Drawing(nn.Dropout(0.5)), through_the_layer, "draws at random"),
        (Drawing(nn.RReLU()), through_the_layer, "rrelu"),  # of which no program is made
        (Point().eval(), dropped_in_every_mode, "draws at random"),
        (Point().eval(), noise_of_numpy, "draws numbers that do not come from a tensor of the batch"),
    ],
)
def test_so_it_is_where_it_would_be_written_down(model, loss_fn, says):
    with pytest.raises(UnsupportedModuleError, match=says):
        build(rows(), model=model, loss_fn=loss_fn)


def test_a_model_put_back_into_training_mode_is_refused_and_spends_nothing():
    model = Drawing(nn.Dropout(0.5)).eval()
    test = build(model=model, loss_fn=through_the_layer)
    assert test.test(SADDLE) is False
    model.train()
    with pytest.raises(UnsupportedModuleError, match=re.escape("model.eval()")):
        test.test(SADDLE)
    assert (test.session.queries_made, test.remaining_tests) == (1, 7)
    model.eval()
    assert test.test(SADDLE) is False


def test_dropout_of_nothing_is_served():
    assert build(model=Drawing(nn.Dropout(0.0)), loss_fn=through_the_layer).test(SADDLE) is False


def test_the_check_leaves_generators_alone():
    source = tacita.NetworkSource(Point(), noise_of_numpy, (rows(),), method="loop")
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    with pytest.raises(UnsupportedModuleError):
        source.check_draws_nothing()
    assert (torch.rand(1).item(), np.random.rand()) == expected


@pytest.mark.parametrize("chunk", [None, 64])
def test_what_a_data_set_draws_is_the_record_s_own(chunk):
    """A row that is not finite counts as zero, and moves no draw of another record: the value stays, to the bit."""
    settings = dict(
        ledger=None, num_records=ROWS, epsilon=4.0, alpha=0.2, hessian_lipschitz=1.0, max_grad_norm=1.0, max_tests=8
    )
    point, values = {"x": torch.linspace(0.1, 0.5, DIM, dtype=torch.float64)}, []
    for first in (0.0, math.nan):
        settings["ledger"] = tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row")
        test = tacita.StationaryTest(
            Point(),
            lambda model, batch: -(batch[0] @ model.x).square() / 2,
            Drawn(first),
            declared_max_hessian_norm=1.0,
            failure_probability=0.05,
            max_physical_batch_size=chunk,
            randomness=tacita.Randomness.insecure(0),
            **settings,
        )
        values.append((private_value(test, point), private_value(test, point, 1)))
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert values[0][0] != pytest.approx(values[0][1], rel=1e-6)  # each value has draws of its own


# -- one test a session


def test_a_second_test_on_the_same_session_is_refused():
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    first = build(ledger=ledger)
    second = build(ledger=ledger, session=first.session, randomness=tacita.Randomness.insecure(1))
    assert first.test(SADDLE) is False
    for _ in range(2):
        with pytest.raises(ResumeError, match="belongs to another test, which has tested a point already"):
            second.test(SADDLE)
    assert first.session.queries_made == 1
    assert first.test(minimum(rows())) is True
    with pytest.raises(ResumeError):
        second.test(SADDLE)


def test_after_a_test_that_was_interrupted_another_goes_on_that_was_registered_with_it(tmp_path):
    path, settings = (
        tmp_path / "l.jsonl",
        dict(neighboring_relation="replace_one", privacy_unit="one row = one patient"),
    )
    with tacita.Ledger(path, **settings) as ledger:
        first, _ = (build(ledger=ledger, reservation=2) for _ in range(2))
        assert ledger.conditional_bound(1e-9).epsilon == pytest.approx(8.0, rel=1e-6)  # each costs a whole test
        first.test(SADDLE)
        assert first.session.reserved_queries == 2
    with tacita.Ledger(path, **settings) as ledger:
        assert build(ledger=ledger, session=ledger.sessions[1]).test(SADDLE) is False
        assert ledger.conditional_bound(1e-9).epsilon == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize(
    "mechanism",
    [AboveThreshold(epsilon=8.0, sensitivity=0.01), AboveThreshold(epsilon=4.0, sensitivity=1e3)],
    ids=["half the noise", "a larger sensitivity"],
)
def test_answers_with_less_noise_than_is_paid_for_are_not_given(mechanism):
    test = build()
    test._answering._mechanism = mechanism
    with pytest.raises(LedgerError, match="event promises something else: AboveThreshold"):
        test.test(SADDLE)
    test._answering._mechanism = test.mechanism
    assert not test.test(SADDLE)


@pytest.mark.parametrize(
    ("paid", "enough"),
    [
        ((1.0, 2.0, 4.0), True),
        ((2.0, 2.0, 4.0), True),
        ((0.9, 2.0, 4.0), False),
        ((1.0, 2.1, 4.0), False),
        ((1.0, 2.0, 4.1), False),
        ((1.0, 1.9, 3.9), True),
    ],
    ids=str,
)
def test_every_scale_of_the_noise_is_held_against_the_event(paid, enough):
    """Here the threshold has noise of scale 2, an answer of scale 4, and values a sensitivity of 1."""
    sensitivity, threshold_scale, query_scale = paid
    event = AboveThresholdEvent(
        relation="replace_one", sensitivity=sensitivity, threshold_scale=threshold_scale, query_scale=query_scale
    )
    answering = ThresholdAnswer(AboveThreshold(epsilon=1.0, sensitivity=1.0), 3.0)
    if enough:
        answering.check_paid(event, None, None)
        return
    with pytest.raises(LedgerError, match="event promises something else: AboveThreshold"):
        answering.check_paid(event, None, None)
