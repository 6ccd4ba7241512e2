"""Settings: checked when built, and a TOML file that says the same."""

import dataclasses
import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacita.tables import TableSettings
from tacita.tables.readers import FileFormat
from tacita.tables.settings import TEXT_FORMAT, flags

BASE = {"data": "a.csv", "output": "run", "target": "y", "epsilon": 1.0, "delta": 1e-5}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.fixed_dictionaries(
        {
            "target": TEXT,
            "privacy_unit": TEXT,
            "columns": st.lists(TEXT, max_size=4, unique=True).map(tuple),
            "epsilon": st.floats(min_value=1e-12, max_value=1e12),
            "queries": st.none() | st.integers(1, 10**6),
            "allow_large_delta": st.booleans(),
            "seed": st.none() | st.integers(0, 2**70),
            "about": st.dictionaries(
                st.sampled_from(["contact", "purpose"]), TEXT.filter(lambda text: text.isprintable() and text.strip())
            ),
        }
    )
)
def test_toml_gives_the_same_settings_back(values: dict) -> None:
    settings = TableSettings(**{**BASE, **values})
    assert TableSettings.from_toml(settings.to_toml()) == settings


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0, got 0"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon must be a finite number > 0, got inf"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"sample_rate": 1.5}, r"sample_rate must be in \(0, 1\], got 1.5"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be a finite number > 0, got 0"),
        ({"max_grad_norm": -2.0}, "max_grad_norm"),
        ({"lr": math.nan}, "lr"),
        ({"queries": 0}, "queries must be an integer >= 1"),
        ({"rows": 0}, "rows"),
        ({"delta": 1e-2}, r"delta must be below 0\.01, got 0\.01.*--allow-large-delta"),
        ({"rows": 10_000, "delta": 1e-4}, "delta must be below 1 / rows = 0.0001.*--allow-large-delta"),
        ({"model": "forest"}, "model must be linear, additive, mlp or package.module:callable"),
        ({"width": 8}, "width belongs to model = mlp"),
        ({"task": "ranking"}, "task must be classification or regression, got 'ranking'"),
        ({"average": "mean"}, "average must be last, half or ema, got 'mean'"),
        ({"feedback": "hidden"}, "feedback must be released or bounded, got 'hidden'. With a hidden, unbounded error"),
        ({"features": "pixels"}, "features must be scattering, or left out, got 'pixels'"),
        ({"hardened": "rounded"}, "hardened must be true or false, got 'rounded'"),
        ({"about": "me"}, "about must be a table of texts, got 'me'"),
        ({"chosen_among": 1}, "chosen_among must be an integer >= 2, got 1. Leave it out"),
        ({"neighboring_relation": "add_one"}, "neighboring_relation must be one of"),
        ({"delimiter": "||"}, "delimiter must be one ASCII character"),
        ({"encoding": "utf-16"}, "encoding must be one that contains ASCII"),
        ({"test_file": "t.csv", "non_private_holdout": True}, "give one of them"),
        ({"epsilon": "1"}, "epsilon must be an integer or a number"),
        ({"rows": True}, "rows must be an integer"),
        ({"output": "ru\udcffn"}, r"output must be text that UTF-8 can hold.*got 'ru\\udcffn'"),
        ({"drop": ("a", "\ud800")}, "drop must be text that UTF-8 can hold"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TableSettings(**{**BASE, **wrong})


def test_a_setting_is_written_once() -> None:
    """Its flag and the flag's help are made of the field; ``about`` has a flag for each of its entries."""
    options = typing.get_type_hints(flags(), include_extras=True)
    assert options.keys() == {field.name for field in dataclasses.fields(TableSettings)} - {"data", "about"}
    assert all(hint.__metadata__[-1].help for hint in options.values())
    assert typing.get_type_hints(flags(TEXT_FORMAT)).keys() == set(TEXT_FORMAT)


def test_a_large_delta_is_accepted_when_asked_for() -> None:
    assert TableSettings(**{**BASE, "delta": 1e-2}, rows=1000, allow_large_delta=True).rows == 1000


def test_config_is_strict() -> None:
    with pytest.raises(ValueError, match=r"unknown setting 'epsilom'\. Did you mean 'epsilon'\?$"):
        TableSettings.from_dict({**BASE, "epsilom": 1.0})
    with pytest.raises(ValueError, match=r"unknown setting 'x'\.$"):
        TableSettings.from_dict({**BASE, "x": 1.0})
    with pytest.raises(ValueError, match="delta is missing: give --delta"):
        TableSettings.from_dict({name: value for name, value in BASE.items() if name != "delta"})
    with pytest.raises(ValueError, match="config must be a TOML file"):
        TableSettings.from_toml("epsilon = = 1")


def test_how_to_read_is_overridden_one_by_one() -> None:
    declared = FileFormat(delimiter=";", encoding="latin-1")
    assert TableSettings(**BASE).reading(declared) == declared
    found = TableSettings(**BASE, delimiter="\t", columns=("a", "b")).reading(declared)
    assert (found.delimiter, found.encoding, found.header, found.columns) == ("\t", "latin-1", False, ("a", "b"))
