"""The held-out rows are counted by secret coins that follow from their places, whatever the file is cut into."""

import numpy as np
import pytest
import torch
from torch import nn

from tacita.ledger.constant_guess import like_a_guess
from tacita.random import Randomness
from tacita.tables import Schema, make_encoder
from tacita.tables.encoding import Encoded
from tacita.tables.held_out_score import _coins, exact, exact_counts, not_stated
from tacita.tables.intervals import ScoreInterval
from tacita.tables.plan import SPLIT
from tacita.tables.score import CLASSES, COINS, LARGEST_ERROR, SCORES, Score

NUMBER = make_encoder(Schema.loads("[target]\ncolumn='y'\nlower=0\nupper=1"))
ROWS = 50


@pytest.fixture
def stream():
    return Randomness.insecure(0).session_key(SPLIT).stream("rounding", "score")


def held_out(count=ROWS):
    generator = torch.Generator().manual_seed(0)
    features, answers = (torch.randn(count, *shape, generator=generator) for shape in [(2,), ()])
    return Encoded(features, answers, torch.ones(count, dtype=torch.bool), answers, torch.ones(count, dtype=torch.bool))


def counted(stream, chunks):
    torch.manual_seed(0)
    return exact_counts(nn.Linear(2, 1), NUMBER, chunks, coins=stream, largest=LARGEST_ERROR)


@pytest.mark.parametrize("sizes", [[50], [1, 49], [20, 0, 30], [49, 1]], ids=str)
def test_the_counts_do_not_depend_on_how_the_file_is_cut(stream, sizes):
    rows, first = held_out(), 0
    chunks = []
    for size in sizes:
        chunks.append(rows.take(np.arange(first, first + size)))
        first += size
    found, expected = counted(stream, chunks), counted(stream, [rows])
    assert {name: values.tolist() for name, values in found.items()} == {
        name: values.tolist() for name, values in expected.items()
    }
    assert [found[name].sum().item() for name in (SCORES, CLASSES)] == [ROWS, ROWS]


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_an_exact_score_is_weighed_against_a_constant_as_a_bought_one_is(task, learned):
    classes = task == "classification"
    encoder = make_encoder(Schema.loads("[target]\ncolumn='y'\nclasses=['a', 'b']")) if classes else NUMBER
    answers = torch.arange(10) % 3 % 2 if classes else torch.linspace(-1.0, 1.0, 10)
    everywhere = torch.ones(10, dtype=torch.bool)
    rows = Encoded((2.0 * answers - 1 if classes else answers)[:, None], answers, everywhere, answers, everywhere)
    model = nn.Linear(1, 1 + classes, bias=False)
    model.weight.data = torch.tensor([[-1.0], [1.0]] if classes else [[1.0]]) * learned
    found = exact(model, encoder, [rows], "on a file", public=True)
    guess = {"label": "a", "value": 0.7} if classes else {"label": "the mean", "value": 0.0}
    assert found["constant_guess"] == guess
    assert found["value"] == pytest.approx(1.0 if learned else guess["value"], abs=1e-6)
    assert like_a_guess(found) is not learned


@pytest.mark.parametrize(("noise", "like"), [(0.0, False), (0.03, True)])
def test_a_constant_may_be_as_good_as_its_own_noise_allows(noise, like):
    guess = {"label": "no", "value": 0.975, "noise": noise}
    assert like_a_guess({"value": 0.987, "interval": [0.977, 0.995], "constant_guess": guess}) is like


def test_no_held_out_row_is_a_count_of_zero(stream):
    """Nothing would be released otherwise, and that nobody is held out could be seen."""
    found = counted(stream, [held_out(0)])
    assert [found[name].sum().item() for name in (SCORES, CLASSES)] == [0, 0]
    assert {name: tuple(values.shape) for name, values in found.items()} == {
        name: tuple(values.shape) for name, values in counted(stream, [held_out()]).items()
    }


def test_each_row_has_coins_of_its_own(stream):
    """20,000 coins; that two agree by chance has a probability below 1e-7."""
    coins = _coins(stream, 0, 20_000 // COINS)
    assert len(np.unique(coins)) == coins.size
    assert coins.min() >= 0
    assert coins.max() < 1


def test_another_session_has_other_coins(stream):
    other = Randomness.insecure(0).session_key(SPLIT).stream("rounding", "another score")
    assert np.intersect1d(_coins(stream, 0, 1000), _coins(other, 0, 1000)).size == 0


@pytest.mark.parametrize(
    ("balanced", "area", "classes", "words"),
    [
        (False, False, 2, "a balanced accuracy or an AUC"),
        (True, False, 2, "an AUC"),
        (False, False, 5, "a balanced accuracy"),
        (True, True, 2, ""),
        (False, False, 0, ""),
    ],
)
def test_a_measure_that_is_not_stated_is_said_to_be(balanced, area, classes, words):
    one = ScoreInterval(value=0.7, lower=0.6, upper=0.8)
    score = Score(
        rows=9.0,
        value=one,
        balanced=one if balanced else None,
        auc=one if area else None,
        sizes=(3.0,) * classes,
    )
    assert not_stated(score).removeprefix(". At this noise, a class has too few of these rows for ") == words
