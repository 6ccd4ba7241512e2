"""A statement checked: whatever is changed in a run's folder is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tacita
from tacita.accounting import attack_accuracy
from tacita.cli.files import statement as statement_command
from tacita.cli.runs import list_runs, show_run
from tacita.errors import LedgerError, TacitaError
from tacita.ledger import Ledger
from tacita.ledger.hash_chain import canonical, sha256
from tacita.ledger.statement import statement_bytes
from tacita.ledger.text_lines import attacker_in_words
from tacita.report.run_numbers import RunNumbers
from tacita.report.run_page import report_page
from tacita.runs.run_facts import tacita_version
from tacita.tables import TableSettings, check_run, train_table
from tacita.tables.run_check import compare_statements
from tests.tables.forging import resealed


@pytest.fixture
def run(settings, table) -> Path:
    return train_table(settings()).folder


def _lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


def _json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def _noise(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"noise_std":[', b'"noise_std":[9') for line in lines]


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def _crlf(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def _reanchored(run: Path, lines: list[bytes]) -> None:
    (run / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (run / "ledger.head.json").write_bytes(canonical({"count": len(lines), "head": sha256(lines[-1])}) + b"\n")


def _continued(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines()
    more = {"v": 1, "seq": len(lines), "prev": sha256(lines[-1]), "kind": "withdraw", "session": "train-1"}
    _reanchored(run, [*lines, canonical(more)])


def _unsealed(run: Path) -> None:
    _reanchored(run, (run / "ledger.jsonl").read_bytes().splitlines()[:-1])


def _swapped(run: Path, name: str) -> None:
    """What made the statement "verify" before there was a seal."""
    before = sha256((run / name).read_bytes())
    other = (_another(run) / name).read_bytes()
    (run / name).write_bytes(other if sha256(other) != before else other + b"\n")
    for stated in ("statement.json", "statement.txt"):
        text = (run / stated).read_text()
        assert stated == "statement.txt" or before in text
        (run / stated).write_text(text.replace(before, sha256((run / name).read_bytes())))


def _another(run: Path) -> Path:
    """A run with the same settings, and another key."""
    settings = TableSettings.from_toml((run / "config.toml").read_text())
    return train_table(replace(settings, output=str(run) + "-other")).folder


def _of_another_run(run: Path, *names: str) -> None:
    other = _another(run)
    for name in names:
        (run / name).write_bytes((other / name).read_bytes())


def _with_the_seal_of_another(run: Path) -> None:
    other = _another(run)
    lines = (run / "ledger.jsonl").read_bytes().splitlines()
    seal = (other / "ledger.jsonl").read_bytes().splitlines()[-1]
    _reanchored(run, [*lines[:-1], seal])


TAMPERED = {
    "a line edited": lambda run: _lines(run / "ledger.jsonl", _noise),
    "a line removed in the middle": lambda run: _lines(run / "ledger.jsonl", lambda lines: lines[:5] + lines[6:]),
    "the end cut off": lambda run: _lines(run / "ledger.jsonl", lambda lines: [*lines[:-3], b""]),
    "the ledger removed": lambda run: (run / "ledger.jsonl").unlink(),
    "the anchor removed": lambda run: (run / "ledger.head.json").unlink(),
    "a smaller epsilon": lambda run: _json(run / "statement.json", epsilon=0.1),
    "a smaller delta": lambda run: _json(run / "statement.json", delta=1e-9),
    "a caveat dropped": lambda run: _json(run / "statement.json", caveats=[]),
    "another unit": lambda run: _json(run / "statement.json", privacy_unit="one village"),
    "words edited": lambda run: _lines(run / "statement.txt", lambda lines: [*lines, b"It is safe."]),
    "a null added": lambda run: _json(run / "statement.json", added=None),
    "a null removed": lambda run: _lines(
        run / "statement.json", lambda lines: [line for line in lines if b'"conditional_epsilon": null' not in line]
    ),
    "1 for true": lambda run: _json(run / "statement.json", secure_randomness=1),
    "weights edited": lambda run: (run / "model.safetensors").write_bytes(b"x"),
    "preprocessing removed": lambda run: (run / "preprocessing.json").unlink(),
    "preprocessing edited": lambda run: _json(run / "preprocessing.json", rows=10.0),
    "the configuration edited": lambda run: _lines(run / "config.toml", lambda lines: [*lines[:-1], b"# x", b""]),
    "the configuration removed": lambda run: (run / "config.toml").unlink(),
    "a blank line after the seal": lambda run: _append(run / "ledger.jsonl", b"\n"),
    "a torn line after the seal": lambda run: _append(run / "ledger.jsonl", b'{"event":'),
    "zeros after the seal": lambda run: _append(run / "ledger.jsonl", bytes(3)),
    "a line after the seal, and the anchor": _continued,
    "the seal cut off, and the anchor": _unsealed,
    "another model, its hash in the statement": lambda run: _swapped(run, "model.safetensors"),
    "another preprocessing, its hash in the statement": lambda run: _swapped(run, "preprocessing.json"),
    "another configuration, its hash in the statement": lambda run: _swapped(run, "config.toml"),
    "another statement.txt": lambda run: (run / "statement.txt").write_text("It is safe.\n"),
    "the statement of another run": lambda run: _of_another_run(run, "statement.json", "statement.txt"),
    "statement.txt with other line ends": lambda run: _crlf(run / "statement.txt"),
    "the seal of another run": _with_the_seal_of_another,
}


@pytest.mark.parametrize("name", TAMPERED, ids=lambda name: name.replace(" ", "_"))
def test_tampering_is_found(run, name: str) -> None:
    assert check_run(run).faults == ()
    TAMPERED[name](run)
    checked = check_run(run)
    assert checked.faults
    assert checked.text
    with pytest.raises(TacitaError):
        tacita.load(run)


@pytest.mark.parametrize("data", [b"", b"x", b'{"count":-1,"head":"a"}', None])
def test_a_damaged_anchor_accuses_no_other_file(run, data) -> None:
    anchor = run / "ledger.head.json"
    anchor.unlink() if data is None else anchor.write_bytes(data)
    faults = check_run(run).faults
    assert [fault.partition(":")[0] for fault in faults] == ["ledger.jsonl against ledger.head.json"], faults
    (run / "model.safetensors").write_bytes(b"x")
    assert check_run(run).faults == (*faults, "model.safetensors is not the file that the ledger was sealed with")


def test_nothing_is_claimed_against_somebody_who_rewrites_them_all(run) -> None:
    """What the documentation says, and the twin of the test above: the forgery fails for the reason that it names."""
    (run / "config.toml").write_bytes((run / "config.toml").read_bytes() + b"# another\n")
    resealed(run)
    assert [fault for fault in check_run(run).faults if "config" in fault] == []


def test_nothing_is_added_to_a_sealed_ledger(run) -> None:
    with (
        Ledger.load(run / "ledger.jsonl", read_only=False) as ledger,
        pytest.raises(LedgerError, match="this ledger is sealed"),
    ):
        ledger.register(ledger.sessions[0].event, planned_queries=1)


def test_a_ledger_with_something_after_its_seal_is_not_opened_for_more(run) -> None:
    """A torn line would be cut off: here it is no torn line."""
    _append(run / "ledger.jsonl", b"\n")
    with pytest.raises(LedgerError, match="something was added after the seal"):
        Ledger.load(run / "ledger.jsonl", read_only=False)


def test_a_sound_run_gives_its_statement_again(run) -> None:
    checked = check_run(run)
    assert checked.faults == ()
    assert checked.text == (run / "statement.txt").read_text()


def test_a_delta_at_or_above_one_over_the_bought_rows_is_said(settings, table) -> None:
    small = train_table(settings())
    large = train_table(
        settings(delta=5e-3, output="large", dataset_name="others")
    )  # of about 400 rows, whose number is bought
    words = "which is not below 1 / "
    assert not any(words in caveat for caveat in small.fields["caveats"])
    (said,) = [caveat for caveat in large.fields["caveats"] if words in caveat]
    assert f"1 / {large.fields['rows']['value']:,}, one over" in said
    assert large.fields["verdict_warnings"] == ["delta is so large that whole records may be published"]
    assert check_run(large.folder).faults == ()


def test_the_noise_of_a_purchase_is_that_of_one_count(run) -> None:
    stated = json.loads((run / "statement.json").read_bytes())
    assert {one["session"] for one in stated["purchases"]} == {"rows", "survey", "refinement", "score"}
    assert all(one["noise_of"].startswith("one count") for one in stated["purchases"])
    assert "noise_of: one count" in " ".join((run / "statement.txt").read_text().split())


def test_an_unfinished_run_is_named(run) -> None:
    (run / "statement.json").unlink()
    with pytest.raises(TacitaError, match="holds no finished run"):
        check_run(run)


def _by_version(run: Path, version: str, **fields) -> None:
    """Rewrite the statement as another version would have written and sealed it; it names itself."""
    stated = json.loads((run / "statement.json").read_bytes())
    stated["run"]["versions"]["tacita"] = version
    (run / "statement.json").write_bytes(statement_bytes({**stated, **fields}))
    resealed(run)


def _stated(run: Path) -> dict:
    return json.loads((run / "statement.json").read_bytes())


def _other_words(run: Path) -> dict:
    stated = _stated(run)
    return {
        "caveats": ["Keep the key.", *stated["caveats"][2:]],
        "sampler": "coins",
        "assumptions": [],
        "accountant": "a looser one",
        "sessions": [{**one, "event": "some noise"} for one in stated["sessions"]],
        "epsilon": stated["epsilon"] * 1.01,
        "attack_accuracy": 1.0,
    }


def test_a_statement_in_the_words_of_another_version_holds(run, capsys) -> None:
    """Its numbers are those of the ledger, and a bound that was looser then is still a bound."""
    words = _other_words(run)
    _by_version(run, "0.0.9", **words)
    (run / "statement.txt").write_text("PRIVACY STATEMENT of another day\n")
    resealed(run)
    checked = check_run(run)
    assert checked.faults == ()
    (note,) = checked.notes
    assert note.startswith("written by another version of tacita (0.0.9); its numbers are those of the ledger")
    assert ", ".join(sorted(words)) in note
    assert checked.text.startswith("PRIVACY STATEMENT\n")  # the words of this version
    assert "Keep the key." in checked.text  # and no caveat of the other one is lost
    tacita.load(run)  # which refuses a run in which something was changed
    assert statement_command(str(run)) == 0
    assert "tacita: note: written by another version of tacita (0.0.9)" in capsys.readouterr().err


def _of_0_1(run: Path) -> None:
    """Rewrite the statement as 0.1.0 sealed it: no mu, the risk by epsilon and delta, an exact score without AUC.

    It had a list of disclaimers, which was empty but for the experiments of papers.
    """
    stated = _stated(run)
    text = (run / "statement.txt").read_text().replace(" Computed from the whole privacy curve.", "")
    stated["holdout_score"].pop("AUC", None)
    stated["attack_accuracy"] = attack_accuracy(stated["epsilon"], stated["delta"])
    stated["disclaimers"] = []
    for name in ("attack_accuracy_from", "gdp_mu"):
        del stated[name]
    (run / "statement.json").write_bytes(statement_bytes(stated))
    (run / "statement.txt").write_text(text)
    _by_version(run, "0.1.0")


@pytest.mark.parametrize("exact", [False, True])
def test_a_run_that_0_1_sealed_is_verified_and_shown(settings, table, capsys, exact) -> None:
    run = train_table(settings(non_private_holdout=exact)).folder
    now = _stated(run)
    _of_0_1(run)
    assert check_run(run).faults == ()
    assert statement_command(str(run)) == 0
    assert "mu:" in capsys.readouterr().out  # what follows from its ledger is said of it, too
    assert show_run(str(run)) == 0
    shown = capsys.readouterr().out
    assert "finished, verified" in shown
    known = attacker_in_words("add_or_remove_one", _stated(run)["attack_accuracy"])
    assert known[1:] in " ".join(shown.split())  # as it stands in the sealed file: a looser bound
    assert list_runs(str(run.parent)) == 0
    assert report_page([RunNumbers.of(run)]).count("TAMPERED") == 0
    for field in ("epsilon", "attack_accuracy", "verdict"):  # every statement of 0.1 had these
        stated = _stated(run)
        (run / "statement.json").write_bytes(statement_bytes({k: v for k, v in stated.items() if k != field}))
        resealed(run)
        assert check_run(run).faults, field
        (run / "statement.json").write_bytes(statement_bytes(stated))
    _by_version(run, "0.1.0", gdp_mu=now["gdp_mu"] / 2)  # and what it need not say, it may not say wrongly
    assert check_run(run).faults == ("statement.json does not follow from the ledger: gdp_mu",)
    _by_version(run, tacita_version(), gdp_mu=now["gdp_mu"])  # this version would have said where the risk is from
    assert any("attack_accuracy" in fault for fault in check_run(run).faults)


UNTRUE = {
    "a smaller epsilon": lambda stated: {"epsilon": stated["epsilon"] * 0.999},
    "no epsilon": lambda stated: {"epsilon": None},
    "an epsilon that is true": lambda stated: {"epsilon": True},
    "less spent": lambda stated: {"epsilon_spent": 0.0},
    "a better chance against attackers": lambda stated: {"attack_accuracy": 0.5},
    "more noise": lambda stated: {"noise_multiplier": 2 * stated["noise_multiplier"]},
    "another delta": lambda stated: {"delta": stated["delta"] / 10},
    "another unit": lambda stated: {"privacy_unit": "one village"},
    "fewer queries": lambda stated: {"sessions": [{**one, "queries_made": 0} for one in stated["sessions"]]},
    "a session less": lambda stated: {"sessions": stated["sessions"][1:]},
    "sessions without events": lambda stated: {
        "sessions": [{name: value for name, value in one.items() if name != "event"} for one in stated["sessions"]]
    },
    "another verdict": lambda stated: {"verdict": "not private"},
    "a verdict under conditions": lambda stated: {"verdict": stated["verdict"] + " under conditions"},
    "a condition": lambda stated: {"conditions": ["it rains"]},
    "no list of caveats": lambda stated: {"caveats": "none"},
    "a disclaimer that is no list": lambda stated: {"disclaimers": None},
    "a disclaimer": lambda stated: {"disclaimers": ["not private as claimed"]},
    "a field of its own": lambda stated: {"true_epsilon": 0.1},
    "another ledger": lambda stated: {"ledger_sha256": "0" * 64},
}


def test_other_numbers_are_no_words_of_another_version(run) -> None:
    """Even where it was sealed so, in a statement that names another version."""
    true = _stated(run)
    for name, untrue in UNTRUE.items():
        _by_version(run, "0.0.9", **untrue(true))
        faults = check_run(run).faults
        assert any(fault.startswith("statement.json does not follow from the ledger") for fault in faults), name
        (run / "statement.json").write_bytes(statement_bytes(true))
    _by_version(run, "0.0.9")
    assert check_run(run).faults == ()


def test_a_verdict_under_conditions_stays_one_in_other_words() -> None:
    run = {"run": {"versions": {"tacita": "0.0.9"}}}
    now = {**run, "verdict": "private under conditions, exact score"}
    for verdict, changed in {"private": ("verdict",), "private under conditions": ()}.items():
        assert compare_statements({**run, "verdict": verdict}, now, sealed=True).changed == changed


def test_other_words_of_the_same_version_or_without_a_seal_are_a_change(run) -> None:
    words, version = _other_words(run), tacita_version()
    _by_version(run, version, **words)
    assert any("does not follow from the ledger" in fault for fault in check_run(run).faults)
    _by_version(run, "0.0.9")
    assert check_run(run).faults == ()
    _json(run / "statement.json", **words)  # edited after the seal
    assert any("is not the statement that the ledger was sealed with" in fault for fault in check_run(run).faults)
    assert any("does not follow from the ledger" in fault for fault in check_run(run).faults)
