"""A statement checked: whatever is changed in a run's folder is found."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tacita.errors import TacitaError
from tacita.pipeline import check_run, train_table


@pytest.fixture
def run(settings, table) -> Path:
    return train_table(settings()).folder


def _lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


def _json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def _noise(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"noise_std":[', b'"noise_std":[9') for line in lines]


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
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_found(run, name: str) -> None:
    assert check_run(run).faults == ()
    TAMPERED[name](run)
    checked = check_run(run)
    assert checked.faults
    assert checked.text


def test_a_sound_run_gives_its_statement_again(run) -> None:
    checked = check_run(run)
    assert checked.faults == ()
    assert checked.text == (run / "statement.txt").read_text()


def test_a_delta_at_or_above_one_over_the_bought_rows_is_said(settings, table) -> None:
    small = train_table(settings())
    large = train_table(settings(delta=1e-2, output="large"))  # of about 400 rows, whose number is bought
    words = "is at or above 1 / rows"
    assert not any(words in caveat for caveat in small.fields["caveats"])
    (said,) = [caveat for caveat in large.fields["caveats"] if words in caveat]
    assert f"{1 / large.fields['rows']['value']:.3g}" in said
    assert check_run(large.folder).faults == ()


def test_the_noise_of_a_purchase_is_that_of_one_count(run) -> None:
    stated = json.loads((run / "statement.json").read_bytes())
    assert {one["session"] for one in stated["purchases"]} == {"survey", "refinement", "score"}
    assert all(one["noise_of"].startswith("one count") for one in stated["purchases"])
    assert "noise_of: one count" in " ".join((run / "statement.txt").read_text().split())


def test_an_unfinished_run_is_named(run) -> None:
    (run / "statement.json").unlink()
    with pytest.raises(TacitaError, match="holds no finished run"):
        check_run(run)
