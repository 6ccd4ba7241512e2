"""A changed text acts in modules that are imported as it would in modules that are imported anew."""

import importlib
import sys

import pytest

from tests.planted.live import Live, NeedsImportError

TEXT = """
from dataclasses import dataclass
from functools import cache

MOST = 3


def doubled(function):
    def twice(x):
        return 2 * function(x)

    return twice


@doubled
def plus(x):
    return x + 1


@cache
def most():
    return MOST


@dataclass(frozen=True)
class Box:
    size: int = 4
    HEAVY = True

    @property
    def volume(self):
        return self.size**3

    def later(self):
        return lambda: self.size
"""
BORROWER = "from planted_live.inner import MOST, plus\nfrom planted_live import inner\n"
CHANGES = {
    "a function's body": ("return x + 1", "more = 2\n    return x + more", lambda it: it.plus(1) == 6),
    "what a decorator makes": ("return 2 * function(x)", "return function(x)", lambda it: it.plus(1) == 2),
    "a value": ("MOST = 3", "MOST = 5", lambda it: it.MOST == 5 and it.inner.most() == 5),
    "a property": ("self.size**3", "self.size**2", lambda it: it.inner.Box().volume == 16),
    "an attribute of a class": ("HEAVY = True", "HEAVY = False", lambda it: not it.inner.Box.HEAVY),
    "a lambda": ("lambda: self.size", "lambda: -self.size", lambda it: it.inner.Box().later()() == -4),
    "another function behind": ("MOST = 3", "MOST = 3\nLEAST = 1", None),
    "a field": ("size: int = 4", "size: int = 5", None),
    "an argument's default": ("def most():", "def most(more=1):", None),
    "nothing": ("return x + 1", "return x + 1  # one", None),
}


@pytest.fixture
def borrower(tmp_path, monkeypatch):
    (tmp_path / "planted_live").mkdir()
    (tmp_path / "planted_live" / "__init__.py").write_text("")
    (tmp_path / "planted_live" / "inner.py").write_text(TEXT)
    (tmp_path / "planted_live" / "borrower.py").write_text(BORROWER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield lambda: importlib.import_module("planted_live.borrower")
    for name in [name for name in sys.modules if name.startswith("planted_live")]:
        del sys.modules[name]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_acts_where_it_is_held(tmp_path, borrower, change):
    old, new, seen = CHANGES[change]
    module = borrower()
    assert module.inner.most() == 3
    assert seen is None or not seen(module)
    live = Live("planted_live", tmp_path / "planted_live")
    if seen is None:
        with pytest.raises(NeedsImportError):
            live.change("inner.py", TEXT, TEXT.replace(old, new))
    else:
        live.change("inner.py", TEXT, TEXT.replace(old, new))
        assert seen(module)


def test_a_module_that_is_not_imported_yet_is_imported_changed(tmp_path, borrower):
    Live("planted_live", tmp_path / "planted_live").change("inner.py", TEXT, TEXT.replace("x + 1", "x + 2"))
    assert borrower().plus(1) == 6
