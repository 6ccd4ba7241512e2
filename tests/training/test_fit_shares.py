"""``fit`` in a ledger of the caller's: beside other sessions, or from a share that was set aside for it."""

import pytest
import torch

import tacita
from tacita.accounting.gaussian import gaussian_epsilon
from tests.training.test_fit import SETTINGS, problem


def ledger_of(path=None, **settings) -> tacita.Ledger:
    return tacita.Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row", **settings)


def moments(ledger: tacita.Ledger, noise_multiplier: float = 10.0) -> tacita.MomentsOracle:
    return tacita.MomentsOracle(
        problem()[2][0],
        ledger=ledger,
        num_records=200,
        max_mean_norm=2.0,
        max_square_norm=4.0,
        mechanism=tacita.GaussianMechanism(noise_multiplier=noise_multiplier),
    )


def settings(**changes):
    return {**{k: v for k, v in SETTINGS.items() if k not in ("neighboring_relation", "privacy_unit")}, **changes}


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_training_after_a_release_is_paid_from_the_share(tmp_path, on_disk):
    ledger = ledger_of(tmp_path / "ledger.jsonl" if on_disk else None)
    share = ledger.register_share(SETTINGS["target_epsilon"], SETTINGS["target_delta"])
    moments(ledger).query()
    with pytest.raises(tacita.LedgerError, match="pass it as share="):
        tacita.fit(*problem(), **settings(ledger=ledger))
    run = tacita.fit(*problem(), **settings(ledger=ledger, share=share))
    assert run.ledger is ledger
    assert run.folder is None
    session = ledger.sessions[-1]
    assert (session.share, session.closed, session.remaining_queries) == (share.id, True, 0)
    assert "paid from share-1" in run.statement.text
    assert "moments-1" in run.statement.text
    whole = SETTINGS["target_epsilon"] + gaussian_epsilon(mu=0.1, delta=SETTINGS["target_delta"])
    assert SETTINGS["target_epsilon"] < run.statement.to_json()["epsilon"] <= whole * (1 + 1e-6)
    assert ledger.sealed is None
    ledger.close()
    if on_disk:
        assert [path.name for path in sorted(tmp_path.iterdir())] == ["ledger.head.json", "ledger.jsonl"]


def test_without_a_share_it_is_calibrated_beside_what_is_registered():
    alone = tacita.fit(*problem(), **settings(ledger=ledger_of()))
    ledger = ledger_of()
    first = moments(ledger, noise_multiplier=3.0)
    run = tacita.fit(*problem(), **settings(ledger=ledger))
    assert run.ledger.epsilon(SETTINGS["target_delta"]) <= SETTINGS["target_epsilon"] * (1 + 1e-9)
    noise = [one.ledger.sessions[-1].event.noise_std[0] for one in (alone, run)]
    assert noise[1] > noise[0]
    first.query()  # it was registered in time


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"folder": "run"}, "folder and ledger"),
        ({"privacy_unit": "one person"}, "privacy_unit"),
        ({"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({"ledger": None, "share": tacita.Ledger}, "share needs the ledger"),
    ],
)
def test_settings_that_contradict_the_ledger_are_named(changes, named, tmp_path):
    if "folder" in changes:
        changes = {"folder": tmp_path / "run"}
    with pytest.raises(ValueError, match=named):
        tacita.fit(*problem(), **{**settings(ledger=ledger_of()), **changes})
    assert not list(tmp_path.iterdir())


def test_the_model_is_the_one_that_was_handed_in():
    model, loss, data = problem()
    run = tacita.fit(model, loss, data, **settings(ledger=ledger_of()))
    assert run.model is model
    assert all(torch.isfinite(p).all() for p in model.parameters())
