import importlib
import re
from pathlib import Path

import pytest

from tacita.tables import defaults

PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"
ROWS = re.findall(r"^\| `([a-z_]+)\.(\w+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize(("module", "name", "value"), ROWS)
def test_the_page_says_what_the_code_does(module, name, value):
    assert getattr(importlib.import_module(f"tacita.tables.{module}"), name) == float(value)


def test_no_default_is_left_out_of_the_page():
    stated = {name for module, name, _ in ROWS if module == "defaults"}
    assert stated == {name for name in vars(defaults) if name.isupper()}
    assert len(ROWS) >= 25


def test_rates_and_divisors_ask_for_nothing_private():
    assert defaults.learning_rate("regression", 2.0, 1) == 0.5
    assert defaults.learning_rate("regression", 2.0, 199) == 0.01
    assert defaults.divisor(30_000) == pytest.approx(2700)
    assert defaults.divisor(0.0) == pytest.approx(0.09)
