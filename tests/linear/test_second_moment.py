"""Second moments of clipped rows: the matrix, how far one record moves it, what is refused, an audit."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import tacita
from tacita.accounting import RELATIONS, GaussianSumEvent, Spend, epsilon
from tacita.estimators import Estimator
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.linear import SecondMoment, SecondMomentEvent, row_blocks, symmetric_entries, symmetric_matrix, table_rows
from tacita.linear import source as linear_source
from tacita.linear.row_blocks import WithColumns, as_row_blocks
from tacita.oracles import ReleaseGate
from tacita.testing.adversaries import CONSTANT
from tacita.testing.audit import audit_oracle
from tests.testing.linear import full, given

HOSTILE = [0.0, 1.0, -3.0, 1e30, -1e30, 1e-30, math.inf, math.nan]


def entries(rows, max_row_norm=1.0, **more):
    found, state = SecondMoment(max_row_norm=max_row_norm)(GivenEngine(rows, **more), None)
    assert state is None
    return found["second_moment"]["entries"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_sum_of_products_of_clipped_rows(dtype):
    rows = torch.randn(50, 6, dtype=dtype)
    clipped = rows.double() / rows.double().norm(dim=1, keepdim=True).div(1.5).clamp(min=1.0)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(
        symmetric_matrix(entries(rows, 1.5)), clipped.t() @ clipped, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_matrix_is_a_vector_of_the_same_norm(size):
    half = torch.randn(4, size, size, dtype=torch.float64)
    matrix = half + half.transpose(-1, -2)
    vector = symmetric_entries(matrix)
    assert vector.shape == (4, size * (size + 1) // 2)
    torch.testing.assert_close(vector.norm(dim=-1), torch.linalg.matrix_norm(matrix), rtol=1e-12, atol=0)
    torch.testing.assert_close(symmetric_matrix(vector), matrix, rtol=1e-12, atol=1e-12)


def test_many_runs_at_once_and_several_parameters():
    grads = {"a": torch.randn(4, 7, 2), "b": torch.randn(4, 7, 3)}
    grads["b"][1, 3, 0] = math.nan
    together, _ = SecondMoment(max_row_norm=1.0)(GivenEngine(grads), None)
    for run in range(4):
        alone, _ = SecondMoment(max_row_norm=1.0)(GivenEngine({n: g[run] for n, g in grads.items()}), None)
        torch.testing.assert_close(
            alone["second_moment"]["entries"], together["second_moment"]["entries"][run], rtol=1e-6, atol=1e-6
        )


def test_what_is_not_finite_and_what_is_absent_counts_as_zero():
    rows = torch.randn(5, 3)
    for hostile in (math.nan, math.inf, -math.inf):
        bad = rows.clone()
        bad[2, 1] = hostile
        torch.testing.assert_close(entries(bad), entries(rows[[0, 1, 3, 4]]))
    assert not entries(torch.zeros(0, 3)).any()
    assert not entries(rows, mask=torch.zeros(5, dtype=torch.bool)).any()


# -- sensitivity


def test_no_record_moves_the_values_farther_than_stated():
    others = torch.randn(3, 2, dtype=torch.float64)
    settings = [torch.tensor(row, dtype=torch.float64) for row in itertools.product(HOSTILE, repeat=2)]
    alone = torch.stack([entries(row.unsqueeze(0)) for row in settings])
    stated = {r: SecondMoment(max_row_norm=1.0).sensitivity(r, {"theta": torch.Size([2])}) for r in RELATIONS}
    assert alone.norm(dim=1).max() <= stated["zero_out_one"]["second_moment"]
    replaced = torch.cdist(alone, alone).max()
    assert replaced <= stated["replace_one"]["second_moment"] * (1 + 1e-12)
    with_one = entries(torch.cat([others, settings[20].unsqueeze(0)])) - entries(others)
    torch.testing.assert_close(with_one, alone[20], rtol=0, atol=1e-12)


def test_long_rows_of_float32_do_not_overflow():
    """The square of a number of float32 may be too large for float32, and what is infinite no noise hides."""
    rows = torch.tensor([[3e25, 4e25], [1e38, 1e38]], dtype=torch.float32)
    found = entries(rows, 1e30)
    assert found.isfinite().all()
    assert float(found.norm()) <= 1e60 * (1 + 1e-6)


def test_the_sensitivity_is_reached():
    first, second = torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    shapes = {"theta": torch.Size([2])}
    for norm in (1.0, 3.0):
        estimator = SecondMoment(max_row_norm=norm)
        one = estimator.sensitivity("add_or_remove_one", shapes)["second_moment"]
        assert one == norm**2
        assert entries(first, norm).norm() == pytest.approx(one, rel=1e-5)
        two = estimator.sensitivity("replace_one", shapes)["second_moment"]
        assert two == pytest.approx(math.sqrt(2) * norm**2)
        assert (entries(first, norm) - entries(second, norm)).norm() == pytest.approx(two, rel=1e-5)


@pytest.mark.parametrize("row", [[0.3, 0.4], [3.0, 4.0], [1e-20, 1e-20], [1e19, 1.0], [1 / 3, 1 / 7]])
def test_rounding_carries_no_row_past_the_norm(row):
    for dtype in (torch.float32, torch.float64):
        matrix = symmetric_matrix(entries(torch.tensor([row], dtype=dtype)))
        assert math.sqrt(float(matrix.trace())) <= 1.0  # the norm of the clipped row


# -- the event


@pytest.mark.parametrize("relation", RELATIONS)
def test_it_is_charged_as_a_sum_that_moves_as_far(relation):
    mechanism = tacita.GaussianMechanism(noise_multiplier=2.0)
    sampler = tacita.FullBatchSampler(num_records=10)
    event = SecondMoment(max_row_norm=3.0).session_event(mechanism, sampler, relation, {"w": torch.Size([4])})
    assert isinstance(event, SecondMomentEvent)
    assert event.query_mu == pytest.approx(0.5)
    alike = GaussianSumEvent(relation="zero_out_one", sampling=sampler.law, max_contribution=(1.0,), noise_std=(2.0,))
    assert epsilon([Spend(event, 3)], 1e-5).epsilon == pytest.approx(epsilon([Spend(alike, 3)], 1e-5).epsilon)
    assert "to which one record adds at most 9" in event.describe()


def test_other_samplers_are_refused():
    with pytest.raises(tacita.UnsupportedEventError, match="no guarantee is proved for second moments"):
        given(lambda n: tacita.PoissonSampler(sample_rate=0.5, num_records=n), estimator=lambda c: MOMENT)(
            torch.zeros(4, 2), tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
        )


MOMENT = SecondMoment(max_row_norm=1.0)


def test_a_release_is_the_matrix_with_noise_of_two_sizes():
    columns = 200
    ledger = tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row")
    oracle = tacita.GradientOracle(
        GivenSource(torch.zeros(10, columns)), estimator=MOMENT, sampler=tacita.FullBatchSampler(num_records=10),
        mechanism=tacita.GaussianMechanism(noise_multiplier=30.0), ledger=ledger, planned_queries=1,
    )  # fmt: skip
    matrix = oracle.query({}).gradient["matrix"]
    assert torch.equal(matrix, matrix.t())
    rows, above = torch.triu_indices(columns, columns, 1)
    assert float(matrix.diagonal().std()) == pytest.approx(3.0, rel=0.25)  # five standard errors
    assert float(matrix[rows, above].std()) == pytest.approx(3.0 / math.sqrt(2), rel=0.025)


def test_wrong_settings():
    with pytest.raises(ValueError, match="max_row_norm must be a finite number > 0"):
        SecondMoment(max_row_norm=0.0)
    with pytest.raises(ValueError, match="noise_std must have one entry"):
        SecondMomentEvent(
            relation="zero_out_one", sampling=tacita.FullBatchSampler(num_records=3).law,
            max_contribution=(1.0, 1.0), noise_std=(1.0, 1.0),
        )  # fmt: skip


# -- audited


class Understated(Estimator):
    """States half of how far a record moves the values."""

    def sensitivity(self, relation, shapes):
        return {block: bound / 2 for block, bound in MOMENT.sensitivity(relation, shapes).items()}

    def event(self, sampler, noise_std, relation, shapes):
        return MOMENT.event(sampler, {block: 2 * std for block, std in noise_std.items()}, relation, shapes)

    def block_sizes(self, shapes):
        return MOMENT.block_sizes(shapes)

    def __call__(self, engine, state):
        return MOMENT(engine, state)

    def gradient(self, released, divisor):
        return MOMENT.gradient(released, divisor)


@pytest.mark.parametrize(("estimator", "verdict"), [(MOMENT, "consistent"), (Understated(), "refuted")])
def test_an_audit_nearly_reaches_the_claim_and_refutes_half_of_it(estimator, verdict, monkeypatch):
    monkeypatch.setattr(ReleaseGate, "_check_paid", lambda self: None)  # else the gate refuses half of the noise
    make = given(full, noise_multiplier=1.0, queries=1, estimator=lambda clipper: estimator)
    found = audit_oracle(make, relation="add_or_remove_one", delta=1e-2, runs=8000, adversaries=[CONSTANT], columns=2)
    assert found.verdict == verdict
    assert found.epsilon_lower_bound > 0.6 * found.claim.epsilon


def test_rows_of_numpy_draw_the_same_matrix():
    rows = np.random.default_rng(0).standard_normal((20, 3))
    expected = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    found = symmetric_matrix(entries(torch.from_numpy(rows))).numpy()
    assert found == pytest.approx(expected.T @ expected, rel=1e-9)


def wider(rows, more):
    return WithColumns(as_row_blocks(rows), more)


def engines(rows):
    """Engines of two columns: a tensor, and tables in one unit, in two, with a constant, with further entries."""
    scale = torch.tensor([0.37, 0.37, 0.61], dtype=torch.float64)
    tables = [table_rows(as_row_blocks(rows), scale=scale[k:2], intercept=None) for k in (0, 1)]
    more = table_rows(wider(rows[:, :1], rows[:, 1:]), scale=torch.tensor([0.3, 1.0]), intercept=0.7)
    uneven = table_rows(rows, scale=scale[1:], intercept=0.1)
    return [GivenEngine(rows), *(source.engine({}, np.arange(len(rows))) for source in (*tables, more, uneven))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", range(5))
def test_no_row_is_longer_than_its_bound_after_rounding(dtype, kind):
    """Lengths are summed without rounding of their own."""
    rows = 3 + 10 * torch.rand(4000, 2, dtype=dtype)
    clipped = list(SecondMoment(max_row_norm=1.0)._clipped(engines(rows)[kind]))
    assert len(clipped) == 1, "a chunk's memory serves the next one"
    lengths = [sum(Fraction(entry) ** 2 for entry in row) for row in clipped[0].tolist()]
    assert max(lengths) <= 1
    assert min(lengths) > 1 - 1e-5


@pytest.mark.parametrize("more", [None, torch.rand(700, 2, dtype=torch.float64)])
@pytest.mark.parametrize("scale", [0.4, torch.tensor([0.3, 0.5, 0.7])])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
def test_a_table_gives_the_matrix_of_its_rows(dtype, tolerance, scale, more, monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 300)
    monkeypatch.setattr(linear_source, "CHUNK_NUMBERS", 0)
    rows = torch.randn(700, 3, dtype=dtype)
    rows[17, 1], rows[450, 0] = math.nan, math.inf
    table = as_row_blocks(rows)
    if more is not None:
        table, scale = WithColumns(table, more), torch.cat([torch.as_tensor(scale).expand(3), torch.ones(2)])
    source = table_rows(table, scale=scale, intercept=0.2)
    for chosen in (np.arange(700), np.arange(0, 700, 3), np.empty(0, np.int64)):
        chunks = [torch.cat([c["weight"][:, 0], c["bias"]], dim=1) for c in source.engine({}, chosen).materialise()]
        found, _ = SecondMoment(max_row_norm=1.0)(source.engine({}, chosen), None)
        expected = entries(torch.cat(chunks) if chunks else torch.empty(0, 4 if more is None else 6))
        torch.testing.assert_close(found["second_moment"]["entries"], expected, rtol=tolerance, atol=10 * tolerance)


def test_an_array_that_changes_between_queries_is_not_read_again():
    rows = np.full((5, 2), 0.1)
    source = table_rows(rows, intercept=None)
    estimator = SecondMoment(max_row_norm=1.0)
    before, _ = estimator(source.engine({}, np.arange(5)), None)
    rows[:] = 100.0
    found, _ = estimator(source.engine({}, np.arange(5)), None)
    assert torch.equal(found["second_moment"]["entries"], before["second_moment"]["entries"])


def test_norms_that_are_kept_are_those_of_the_scale_and_the_constant():
    """Several sources share the rows of a fit, each in units of its own."""
    rows = as_row_blocks(torch.randn(20, 2, dtype=torch.float64))
    for scale in (torch.tensor([0.5, 2.0]), torch.tensor([0.5, 3.0])):
        for constant in (0.0, 1.0, 0.0):
            expected = rows.norms(scale.double(), constant)
            for _ in range(2):
                assert torch.equal(rows.kept_norms(scale.double(), constant), expected)
