"""Public rules: the page says what the code does, and what is given is never overridden."""

import re
from pathlib import Path

import msgspec
import pytest

from tacita.tables import rules
from tacita.tables.encoding import Encoder
from tacita.tables.features import ClassTarget, NumberTarget

PAGE = (Path(__file__).parents[2] / "docs" / "defaults.md").read_text(encoding="utf-8")
CLASSES = Encoder(pieces=(), missing=(), target=ClassTarget(column="y", classes=("a", "b")))
NUMBER = msgspec.structs.replace(CLASSES, target=NumberTarget(column="y", lower=0.0, upper=1.0, centre=0.5, scale=1.0))


def test_the_page_says_what_the_code_does() -> None:
    stated = dict(re.findall(r"^\| `NETWORK\.(\w+)` \| (\S+) \|", PAGE, flags=re.MULTILINE))
    assert {name: float(value) for name, value in stated.items()} | {"chosen": ()} == vars(rules.NETWORK)
    lr = rules.NETWORK_LR
    assert f"The learning rate is {lr['classification']:g}/C, for a regression {lr['regression']:g}/C" in PAGE


@pytest.mark.parametrize("model", ["linear", "mlp", "package.module:net"])
def test_what_is_given_is_kept_and_what_is_chosen_is_said(settings, model: str) -> None:
    training = rules.training(settings(model=model, max_grad_norm=3.0))
    assert (training.sample_rate, training.queries, training.max_grad_norm) == (0.5, 4, 3.0)
    assert not any("=" in word and word.split(" = ")[0] in ("queries", "max_grad_norm") for word in training.chosen)
    bare = rules.training(settings(model=model, sample_rate=None, queries=None))
    assert {"sample_rate = 0.1", "queries = 400"} <= set(bare.chosen)
    assert (bare.width is None) == (model != "mlp")


def test_step_sizes(settings) -> None:
    many = 1e6
    assert rules.learning_rate(settings(lr=0.3), CLASSES, 10) == 0.3
    assert rules.learning_rate(settings(), CLASSES, many) == 0.5
    assert rules.learning_rate(settings(max_grad_norm=4.0), CLASSES, many) == 0.25
    assert rules.learning_rate(settings(model="mlp"), CLASSES, many) == 2.0
    assert rules.learning_rate(settings(model="mlp"), NUMBER, 10) == 0.5


def test_where_rows_are_few_the_step_is_small(settings) -> None:
    """So that noise alone carries no weight further than a number on the page."""
    chosen = settings(epsilon=1.0, delta=1e-5, queries=None)
    few, more = (rules.learning_rate(chosen, CLASSES, rows) for rows in (500, 1000))
    assert few == pytest.approx(more / 2)
    assert few == pytest.approx(0.005, rel=0.1)
    assert rules.learning_rate(settings(epsilon=2.0, delta=1e-5, queries=None), CLASSES, 500) > 1.8 * few
    assert rules.learning_rate(chosen, NUMBER, 500) == pytest.approx(few / 1.5)  # a line explains one deviation at most
