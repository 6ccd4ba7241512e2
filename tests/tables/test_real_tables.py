"""The whole flow on real tables: buy, encode, train with the calibrated noise, score. One seed each, fixed.

The training here is a plain loop over NumPy arrays (Poisson batches, clipped gradients of a linear model, Gaussian
noise, momentum, the average of the last half): the library's own training is tested elsewhere.
"""

import numpy as np
import pytest

from tacita.errors import DataStructureError
from tacita.random import Key
from tacita.tables import (
    FileFormat,
    PurchasePlan,
    Schema,
    Target,
    held_out,
    make_encoder,
    public_rows,
    read_table,
    refined_columns,
    rules,
)
from tests.tables.buying import buy_refinement, buy_score, buy_survey

PLAN = PurchasePlan(epsilon=1.0, delta=1e-5, relation="add_or_remove_one")
MULTIPLIER = 7.98  # q 0.1, T 400, beside the purchases: tests/tables/test_budget.py
SCORE_NOISE = {"score": 4.4, "classes": 8.8}  # what a plan at (1, 1e-5) has: tests/tables/test_plan.py
BANK = (
    *("age", "job", "marital", "education", "default", "balance", "housing", "loan", "contact", "day", "month"),
    *("duration", "campaign", "pdays", "previous", "poutcome", "y"),
)


def bought_encoder(table, schema, normals):
    columns = schema.to_buy(table.names)
    survey = buy_survey(
        table,
        schema,
        columns,
        noise_std=PLAN.survey_noise_std(len(columns)),
        threshold=PLAN.threshold(len(columns)),
        normals=normals,
    )
    noise_std = PLAN.refinement_noise_std(len(refined_columns(survey)), of=len(columns))
    survey = buy_refinement(table, schema, survey, noise_std=noise_std, normals=normals)
    return make_encoder(schema, survey, columns=table.names), public_rows(schema, survey)


def train(features, target, encoder, rows, generator):
    """Weights of a linear or logistic model by DP-SGD with the public rules."""
    x = np.c_[features, np.ones(len(features), dtype=np.float32)]
    clip, divisor = rules.MAX_GRAD_NORM, rules.SAMPLE_RATE * (1 - rules.HOLDOUT) * max(rows, 1.0)
    rate = rules.linear_learning_rate(encoder.task, clip, encoder.num_features)
    weights, velocity, mean = (np.zeros(x.shape[1], dtype=np.float32) for _ in range(3))
    for query in range(rules.PLANNED_QUERIES):
        rows_of_batch = np.flatnonzero(generator.random(len(x)) < rules.SAMPLE_RATE)
        batch, wanted = x[rows_of_batch], target[rows_of_batch]
        scores = batch @ weights
        fitted = 1 / (1 + np.exp(-scores)) if encoder.task == "classification" else scores
        error = fitted - wanted
        norms = np.abs(error) * np.linalg.norm(batch, axis=1)
        total = (error * np.minimum(1, clip / np.maximum(norms, 1e-12))) @ batch
        total += MULTIPLIER * clip * generator.standard_normal(len(total))
        velocity = (rules.MOMENTUM * velocity + total / divisor).astype(np.float32)
        weights = weights - rate * velocity
        if query >= 0.5 * rules.PLANNED_QUERIES:
            mean += weights
    return mean / (rules.PLANNED_QUERIES * (1 - 0.5))


def flow(table, encoder, rows, normals):
    """Weights; held-out target, model output and prediction; the bought score."""
    hold = held_out(table, rules.HOLDOUT, Key.insecure(1))
    encoded = encoder.encode(table)
    features, target, valid = (t.numpy() for t in (encoded.features, encoded.target, encoded.valid))
    used, kept = valid & ~hold, valid & hold
    weights = train(features[used], target[used], encoder, rows, np.random.default_rng(2))
    scores = np.c_[features[kept], np.ones(kept.sum())] @ weights
    predicted = (scores > 0).astype(int) if encoder.task == "classification" else scores
    outputs = np.c_[-scores, scores] / 2 if encoder.task == "classification" else scores[:, None]
    score = buy_score(encoder, outputs, target[kept], valid[kept], noise_std=SCORE_NOISE, normals=normals)
    return weights, target[kept], scores, predicted, score


def auc(scores, target):
    ranks = np.argsort(np.argsort(scores)) + 1
    positive = target == 1
    return (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum())


def accuracy_on_the_test_part(folder, encoder, weights):
    """Accuracy on the published test part of Adult, whose labels end with a full stop."""
    table = read_table(folder / "adult.test.gz", encoder.reading)
    codes, texts = table.column("Y").texts()
    labels = np.array([encoder.classes.index(text.rstrip(".")) for text in texts])[codes]
    features = encoder.encode(table, with_target=False).features.numpy()
    return ((np.c_[features, np.ones(len(features))] @ weights > 0) == labels).mean()


def test_adult_with_nothing_declared(tabular, normals):
    table, draws = read_table(tabular / "adult.data.gz"), normals(0)
    schema = Schema(target=Target(column="Y"))
    encoder, rows = bought_encoder(table, schema, draws)
    assert rows == pytest.approx(32_561, rel=0.02)
    assert encoder.classes == ("<=50K", ">50K")
    assert encoder.dropped == ()
    weights, target, _, predicted, score = flow(table, encoder, rows, draws)
    accuracy = (predicted == target).mean()
    assert accuracy_on_the_test_part(tabular, encoder, weights) >= 0.852
    assert accuracy >= 0.845
    assert score.value.lower < accuracy < score.value.upper < score.value.lower + 0.03


def test_bank_without_a_header(tabular, normals):
    reading = FileFormat(header=False, columns=BANK)
    table, draws = read_table(tabular / "bank_full.csv.gz", reading), normals(0)
    schema = Schema(target=Target(column="y"), reading=reading)
    encoder, rows = bought_encoder(table, schema, draws)
    _, target, scores, _, _ = flow(table, encoder, rows, draws)
    assert auc(scores, target) >= 0.90


def test_california_housing_is_a_regression(tabular, normals):
    table, draws = read_table(tabular / "cal_housing.csv.gz"), normals(0)
    schema = Schema(target=Target(column="median_house_value"))
    encoder, rows = bought_encoder(table, schema, draws)
    assert encoder.task == "regression"
    _, target, _, predicted, score = flow(table, encoder, rows, draws)
    r2 = 1 - np.mean((predicted - target) ** 2) / target.var()
    assert r2 >= 0.60
    assert score.value.lower < r2 < score.value.upper < score.value.lower + 0.25


PUBLIC = {  # what anybody may know of the 1994 census extract
    "age": (17, 90), "fnlwgt": (10_000, 1_500_000), "education-num": (1, 16), "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000), "hours-per-week": (1, 99),
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "sex": "Female Male",
}  # fmt: skip


def test_adult_with_a_public_schema(tabular, normals):
    columns = {
        name: {"kind": "category", "values": known.split()}
        if isinstance(known, str)
        else {"kind": "number", "lower": known[0], "upper": known[1]}
        for name, known in PUBLIC.items()
    }
    target = {"column": "Y", "classes": ["<=50K", ">50K"]}
    schema = Schema.from_dict({"rows": 30_000, "target": target, "columns": columns})
    table = read_table(tabular / "adult.data.gz", only=schema.needed())
    schema.check_structure(table)
    assert schema.to_buy(schema.columns) == ()
    encoder = make_encoder(schema)
    weights, *_ = flow(table, encoder, public_rows(schema, None), normals(0))
    assert accuracy_on_the_test_part(tabular, encoder, weights) >= 0.85


def test_taxis_read_timestamps_as_numbers(tabular, normals):
    table = read_table(tabular / "nyc_taxis.csv.gz")
    schema = Schema.loads("[target]\ncolumn = 'fare'\n[columns.total]\nkind = 'identifier'")
    encoder, _ = bought_encoder(table, schema, normals(0))
    (bare,) = (piece for piece in encoder.pieces if piece.column == "pickup")
    assert 16_384 <= bare.lower < bare.upper <= 32_768  # ISO timestamps need no declaration
    assert "total" not in encoder.columns()
    dated = Schema.loads("[target]\ncolumn = 'fare'\n[columns.pickup]\nkind = 'date'\nformat = '%Y-%m-%d %H:%M:%S'")
    encoder, _ = bought_encoder(table, dated, normals(1))
    (pickup,) = (piece for piece in encoder.pieces if piece.column == "pickup")
    assert 16_384 <= pickup.lower < pickup.upper <= 32_768  # the dyadic bin of the days of 2019
    assert encoder.encode(table).features.isfinite().all()


def test_wine_needs_another_delimiter_and_says_nothing_of_the_file(tabular):
    with pytest.raises(DataStructureError, match="'quality'") as raised:
        read_table(tabular / "winequality-white.csv.gz").column("quality")
    assert "acidity" not in str(raised.value)
    assert "quality" in read_table(tabular / "winequality-white.csv.gz", FileFormat(delimiter=";")).names
