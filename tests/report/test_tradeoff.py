"""The plot of an audit."""

import sys

import pytest

from tacita.audit.audit import audit_oracle
from tacita.audit.ready import READY
from tacita.errors import TacitaError
from tacita.report.tradeoff import save_tradeoff


@pytest.fixture(scope="module")
def result():
    case = READY["gaussian"]
    return audit_oracle(
        case.make("half"), relation=case.relation, delta=1e-2, runs=2000, adversaries=case.adversaries, columns=1
    )


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_it_is_saved_by_its_ending(result, tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve.{ending}"
    save_tradeoff(result, path)
    assert path.stat().st_size > 5000


def test_it_shows_claim_verdict_and_bound(result, tmp_path):
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    path = tmp_path / "curve.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        save_tradeoff(result, path)
    text = path.read_text()
    for words in ("refuted", "claimed at most (ε 2.32 at δ 0.01)", "measured, 2,000 runs a world", "95 % confidence"):
        assert words in text


def test_without_matplotlib_it_says_what_to_install(result, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TacitaError, match=r"pip install 'tacita\[report\]'"):
        save_tradeoff(result, tmp_path / "curve.png")
