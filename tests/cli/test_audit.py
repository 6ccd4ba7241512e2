"""``tacita audit``: the list, the verdict, the files, the exit code."""

import json

import pytest

from tacita.audit.ready import READY
from tacita.cli.app import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["audit", *arguments])
    captured = capsys.readouterr()
    return left.value.code, captured.out, captured.err


def test_without_a_name_it_lists_what_there_is(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert all(f"  {name} " in out for name in READY)


def test_a_consistent_audit_writes_its_json_and_exits_with_0(capsys, tmp_path):
    path = tmp_path / "audit.json"
    code, out, err = run(capsys, "gaussian", "--runs", "20000", "--json", str(path), "--quiet")
    assert code == 0
    assert "consistent with the claim of epsilon 2.318 at delta 0.01" in out
    assert err == ""
    found = json.loads(path.read_text())
    assert found["verdict"] == "consistent"
    assert found["epsilon_claimed"] == pytest.approx(2.318, abs=1e-3)
    assert 1.5 < found["epsilon_lower_bound"] < 2.318
    assert (found["delta"], found["confidence"], found["runs"]) == (0.01, 0.95, 20000)
    assert found["adversary"] == "empty data set"


def test_a_refuted_claim_exits_with_1(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "audit.png"
    code, out, _ = run(capsys, "gaussian", "--noise", "half", "--runs", "20000", "--plot", str(path))
    assert code == 1
    assert "refuted: epsilon 2.318 at delta 0.01 is claimed" in out
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gauss"], "name must be one of gaussian"),
        (["gaussian", "--noise", "none"], "noise must be one of stated, half"),
        (["gaussian", "--delta", "0"], "delta must be in"),
        (["gaussian", "--confidence", "95"], "confidence must be in"),
        (["gaussian", "--runs", "3"], "runs must be an integer >= 20"),
    ],
)
def test_settings_are_checked(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
