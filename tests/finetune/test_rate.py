"""How often a record is drawn is public: declared by a number of records or by a rate, and never read from the file."""

import json

import pytest
import torch

from tacita.finetune import EncodedTexts
from tacita.finetune.looking import plan_in_words
from tacita.finetune.records import read_line
from tacita.finetune.text_run import fitted
from tacita.random import Randomness
from tests.finetune.toy import Model, prepared


def trained(folder, lines=40, **changes):
    own = prepared(**changes)
    rows = EncodedTexts(own.encoder, folder)
    rows.extend(read_line(json.dumps({"text": f"line {row}"}).encode()) for row in range(lines))
    return fitted(own, rows, [], Randomness.insecure(1), progress=False)


def test_without_a_declared_number_the_plan_does_not_follow_the_texts(tmp_path):
    (few,), (many,) = (trained(tmp_path, lines, rate=0.25).ledger.sessions for lines in (7, 40))
    assert few.registration == many.registration
    assert "sample rate 0.25" in few.event.describe()
    assert few.planned_queries == 4


def test_a_number_of_records_sets_the_rate_and_no_more(tmp_path):
    """The divisor scales the gradient, which AdamW does not see: so no number has to be declared or bought."""
    given, rate = trained(tmp_path, rows=400, batch=100.0), trained(tmp_path, rate=0.25)
    before = Model().state_dict()
    for name, value in rate.model.state_dict().items():
        moved, also = (other - before[name] for other in (value, given.model.state_dict()[name]))
        torch.testing.assert_close(moved, also, rtol=0.01, atol=1e-2 * float(moved.abs().max()))
        assert moved.abs().max() > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 0.0}, r"rate must be in \(0, 1\]"),
        ({"rate": 1.5}, r"rate must be in \(0, 1\]"),
        ({"rate": 0.1, "batch": 20.0, "rows": 200}, "rate goes without batch"),
        ({"batch": 20.0}, "batch counts records, and needs their public number"),
        ({"delta": 1e-4}, "delta must be below 1 / rows = 7.81e-05"),  # of 12,800 records at the default rate
        ({"windows": 0}, "windows must be"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        prepared(**changes)


def test_the_plan_of_a_number_and_a_rate():
    assert plan_in_words(prepared(rate=0.1, rows=1000)).startswith("10 steps of 100 records, as expected (rate 0.1)")
