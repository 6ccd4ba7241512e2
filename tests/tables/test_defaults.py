import importlib
import re
from pathlib import Path

import pytest

from tacita.tables import rules

PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"
ROWS = re.findall(r"^\| `([a-z_]+)\.(\w+)` \| (\S+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize(("module", "name", "value"), ROWS)
def test_the_page_says_what_the_code_does(module, name, value):
    assert getattr(importlib.import_module(f"tacita.tables.{module}"), name) == float(value)


def test_no_default_is_left_out_of_the_page():
    stated = {name for module, name, _ in ROWS if module == "rules"}
    assert stated == {name for name, value in vars(rules).items() if name.isupper() and isinstance(value, int | float)}
    assert len(ROWS) >= 25


def test_rates_ask_for_nothing_private():
    assert rules.linear_learning_rate("regression", 2.0, 1) == 0.5
    assert rules.linear_learning_rate("regression", 2.0, 199) == 0.01
