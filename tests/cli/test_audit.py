"""``tacita audit``: the list, the verdict, the files, the exit code."""

import json

import pytest

import tacita.cli.audit as audit_command
from tacita.cli.app import main
from tacita.cli.named_audits import READY


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["audit", *arguments])
    captured = capsys.readouterr()
    return left.value.code, captured.out, captured.err


def test_without_a_name_it_lists_what_there_is(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert all(f"  {name} " in out for name in READY)
    assert all(f"--noise {' | '.join(ready.noises)}\n" in out for ready in READY.values())
    assert "tacita audit one-run RUN" in out


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
        (["gaussian", "--noise", "haf"], "Did you mean 'half'?"),
        (["gaussian", "--delta", "0"], "delta must be in"),
        (["gaussian", "--confidence", "95"], "confidence must be in"),
        (["gaussian", "--runs", "3"], "runs must be an integer >= 20"),
        (["gaussian", "--runs", "2e1.5"], "must be a whole number, such as 1000 or 1e3, got '2e1.5'"),
        (["gaussian", "--runs", "20.5"], "must be a whole number, such as 1000 or 1e3, got '20.5'"),
        (["gaussian", "--json", "nowhere/audit.json"], "json must be in a folder that exists"),
        (["gaussian", "--json", "."], "json must be a file, got the folder '.'"),
        (["gaussian", "--plot", "nowhere/audit.png"], "plot must be in a folder that exists"),
        (["gaussian", "--plot", "audit.gif"], "plot must end in .png, .svg or .pdf"),
    ],
)
def test_settings_are_checked_before_anything_is_run(capsys, arguments, message, monkeypatch):
    monkeypatch.setattr(audit_command, "_measured", _unless_runs)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "number of records" not in err


def _unless_runs(*_, runs, **__):
    assert runs == 3, "it ran"
    raise ValueError("runs must be an integer >= 20")


def test_a_round_number_of_runs_may_be_written_short(capsys):
    code, out, _ = run(capsys, "gaussian", "--runs", "2e3", "--quiet")
    assert code == 0
    assert "2,000 in each world" in out


def test_it_says_where_results_are(capsys, tmp_path):
    path = tmp_path / "audit.json"
    assert f"written to {path}\n" in run(capsys, "gaussian", "--runs", "100", "--json", str(path))[2]


def test_its_help_has_an_example_of_its_own(capsys):
    _, out, _ = run(capsys, "--help")
    assert "Example: tacita audit dp-sgd" in out
    assert "compared at their own delta, 1e-5" in " ".join(out.replace("│", " ").split())
    assert "In short" not in out
