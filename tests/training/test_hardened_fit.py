"""fit(hardened=True): the words, and a resumed run with the same bits."""

import pytest
import torch

import tacita
from tacita.accounting import hardening
from tests.training.test_fit import SETTINGS, problem


def test_fit_is_hardened_on_request():
    run = tacita.fit(*problem(), **SETTINGS, hardened=True, max_physical_batch_size=1)
    assert run.ledger.epsilon(1e-3) <= 2.0
    assert hardening(run.ledger.sessions[0].event).sums == "alone"
    assert "Attacks on floating-point noise are closed" in " ".join(run.statement.text.split())


def test_the_default_method_makes_the_weaker_claim_and_says_so():
    run = tacita.fit(*problem(), **SETTINGS, hardened=True)
    assert hardening(run.ledger.sessions[0].event).sums == "capped"
    assert "weaker claim" in " ".join(run.statement.text.split())
    plain = tacita.fit(*problem(), **SETTINGS)
    assert hardening(plain.ledger.sessions[0].event) is None


def test_a_word_is_refused():
    with pytest.raises(ValueError, match="hardened must be True or False"):
        tacita.fit(*problem(), **SETTINGS, hardened="exact")


class Stopped(Exception):
    pass


@pytest.mark.parametrize("method", ["loop", "program"])
def test_a_stopped_run_ends_with_the_same_bits(tmp_path, monkeypatch, method):
    settings = {**SETTINGS, "hardened": True, "method": method}
    key = tacita.Randomness.insecure(7)
    whole = tacita.fit(*problem(), **settings, folder=tmp_path / "whole", randomness=key)

    backward, made = tacita.ClippedGradientOracle.backward, []

    def stopping(self):
        made.append(1)
        if len(made) == 9:
            raise Stopped
        return backward(self)

    with monkeypatch.context() as patch:
        patch.setattr(tacita.ClippedGradientOracle, "backward", stopping)
        with pytest.raises(Stopped):
            tacita.fit(*problem(), **settings, folder=tmp_path / "cut", randomness=tacita.Randomness.insecure(7))
    resumed = tacita.fit(*problem(), **settings, folder=tmp_path / "cut")
    assert resumed.ledger.sessions[0].queries_made == whole.ledger.sessions[0].queries_made
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
