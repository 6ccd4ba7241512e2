"""``tacita federate simulate``: a run from a TOML file, continued after an interruption, and what is refused."""

import math

import numpy as np
import pytest
from safetensors.torch import load_file

import tacita
from tacita.errors import DataStructureError, ResumeError
from tacita.federated import (
    Clip21SGDM,
    QuantileAveraging,
    RecordPrivacy,
    ReleasedShiftSGDM,
    ServerAdam,
    simulated_run,
)
from tacita.federated.settings import SimulationSettings
from tacita.federated.simulated_run import UNITS, read_clients, read_weights, run_simulation

PLAIN = {
    "epsilon": 8.0, "delta": 1e-5, "trust": "clients", "max_grad_norm": 0.1, "lr": 0.5, "rounds": 6,
    "momentum_weight": 0.5,
}  # fmt: skip


@pytest.fixture
def clients(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    owners, weights = rng.permutation(np.arange(60) % 7), np.linspace(0.0, 2.0, 7)
    np.savez(tmp_path / "clients.npz", features=features, labels=features[:, 0] > 0, owners=owners, weights=weights)
    return tmp_path


RECORDS = {"unit": "record", "max_sample_norm": 0.5, "divisor": 2.5}


def settings_of(folder, **change):
    return {"data": str(folder / "clients.npz"), "output": str(folder / "run"), **PLAIN, **change}


def ledger_of(folder):
    path = folder / "run" / "ledger.jsonl"
    return tacita.Ledger(path, neighboring_relation="replace_one", privacy_unit="all data of one client")


def toml(values):
    """The text of a settings file; a value of ``None`` is left out."""
    shown = {name: f'"{value}"' if isinstance(value, str) else value for name, value in values.items()}
    return "".join(f"{name} = {value}\n" for name, value in shown.items() if value is not None)


def test_a_run_writes_the_model_and_its_statement(clients, tacita_command):
    (clients / "federation.toml").write_text(toml(settings_of(clients)))
    done = tacita_command("federate", "simulate", str(clients / "federation.toml"), "--quiet")
    assert "PRIVACY STATEMENT" in done.out
    assert "6 of 6 planned queries made" in " ".join(done.out.split())
    run = clients / "run"
    assert load_file(run / "model.safetensors")["x"].shape == (3,)
    assert (run / "statement.txt").read_text() == done.out[:-1]
    assert not (run / "private").exists()
    refused = tacita_command("predict", str(run), str(clients / "federation.toml"))
    words = " ".join(refused.err.split())
    assert refused.code
    assert "no model of a table (clip21-sgdm on logistic regression, 6 rounds)" in words
    assert "safetensors.torch.load_file(" in words
    with ledger_of(clients) as book:
        assert 7.9 < book.epsilon_spent(1e-5) <= 8.0


VARIANTS = [
    {"trust": "server", "sample_rate": 0.5, "neighboring_relation": "zero_out_one"},
    {"algorithm": "clip-sgd", "momentum_weight": None, "clients_per_round": 3, "loss_rate": 0.2, "batch_size": 4},
    {"algorithm": "clip21-sgd", "momentum_weight": None, "split": "label", "clients": 5},
    {"split": "dirichlet", "clients": 5, "concentration": 0.3, "regularisation": 1e-3},
    {"algorithm": "federated-averaging", "momentum_weight": None, "local_steps": 2, "local_lr": 0.1, "split": "even",
     "clients": 4, "trust": "server"},
    {"algorithm": "quantile-averaging", "max_grad_norm": None, "momentum_weight": None, "threshold": 0.1,
     "quantile": 0.5, "threshold_lr": 0.2, "count_share": 0.1, "local_steps": 2, "local_lr": 0.1},
    {"algorithm": "released-shift-sgdm", "clients_per_round": 3, "loss_rate": 0.2},
    {"adam_betas": [0.9, 0.99], "adam_eps": 0.1, "total_weight": 5.0},
    {"unit": "record", "sample_rate": 0.3, "max_sample_norm": 0.5, "divisor": 2.5},
]  # fmt: skip


@pytest.mark.parametrize("change", VARIANTS)
def test_every_kind_of_run(clients, change):
    settings = SimulationSettings.from_toml(toml(settings_of(clients, **change)))
    words = " ".join(run_simulation(settings).split())
    assert "epsilon <= " in words
    assert UNITS[change.get("unit", "client")] in words


@pytest.mark.parametrize(
    ("change", "built"),
    [
        (VARIANTS[5], QuantileAveraging(threshold=0.1, quantile=0.5, threshold_lr=0.2, count_share=0.1, lr=0.5,
                                        local_steps=2, local_lr=0.1)),
        (VARIANTS[6], ReleasedShiftSGDM(clipper=tacita.FlatClipper(max_grad_norm=0.1), lr=0.5, momentum_weight=0.5)),
        (VARIANTS[7], Clip21SGDM(clipper=tacita.FlatClipper(max_grad_norm=0.1), lr=0.5, momentum_weight=0.5,
                                 adam=ServerAdam(betas=(0.9, 0.99), eps=0.1))),
    ],
)  # fmt: skip
def test_the_algorithm_is_the_one_that_is_named(clients, change, built):
    assert SimulationSettings.from_toml(toml(settings_of(clients, **change))).build_algorithm() == built


def test_records_are_clipped_and_drawn_as_stated(clients):
    settings = SimulationSettings.from_toml(toml(settings_of(clients, **VARIANTS[8])))
    target = tacita.CalibratedGaussian(target_epsilon=8.0, target_delta=1e-5)
    assert settings.build_privacy() == RecordPrivacy(
        mechanism=target, sample_rate=0.3, max_sample_norm=0.5, divisor=2.5
    )


def test_weights_are_those_of_the_file(clients):
    settings = SimulationSettings.from_toml(toml(settings_of(clients, total_weight=5.0)))
    weights = read_weights(settings, 7)
    assert weights is not None
    assert weights.tolist() == np.linspace(0.0, 2.0, 7).tolist()
    with pytest.raises(DataStructureError, match="one number a client, 8 in all, got an array of shape"):
        read_weights(settings, 8)
    assert read_weights(SimulationSettings.from_toml(toml(settings_of(clients))), 7) is None


def test_clients_of_weight_zero_move_nothing(clients):
    with np.load(clients / "clients.npz") as archive:
        np.savez(clients / "clients.npz", **{**archive, "weights": np.zeros(7)})
    for change, least, most in (({}, 1e-2, 1e2), ({"total_weight": 5.0}, 0.0, 1e-4)):
        settings = settings_of(clients, epsilon=1e13, output=str(clients / str(least)), **change)
        run_simulation(SimulationSettings.from_toml(toml(settings)))
        assert least <= float(load_file(clients / str(least) / "model.safetensors")["x"].norm()) <= most


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trust": "server", "neighboring_relation": "replace_one"}, True),
        ({"trust": "clients"}, True),
        ({"sample_rate": 0.3, **RECORDS}, False),  # the unit is no client, and the number of records is not public
    ],
)
def test_a_delta_above_one_over_the_public_number_of_clients_is_said(clients, change, said):
    features = np.random.default_rng(0).standard_normal((240, 3))
    np.savez(clients / "clients.npz", features=features, labels=features[:, 0] > 0)
    settings = settings_of(clients, split="even", clients=120, delta=0.0099, **change)
    words = run_simulation(SimulationSettings.from_toml(toml(settings)))
    assert ("Delta is 0.0099, which is not below 1 / 120" in " ".join(words.split())) is said


DRAWN = {"trust": "server", "sample_rate": 1 / 3}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {**DRAWN, "noise": "correlated", "neighboring_relation": "zero_out_one"},  # groups that take turns
        {**DRAWN, "noise": "correlated"},  # a banded matrix
        {"adam_betas": [0.9, 0.99], "adam_eps": 0.1},
    ],
)
def test_an_interrupted_run_is_continued_and_charged_once(clients, change):
    settings = SimulationSettings.from_toml(toml(settings_of(clients, **change)))

    def stop(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_simulation(settings, stop)
    assert not (clients / "run" / "model.safetensors").exists()
    assert "epsilon <= " in run_simulation(settings)
    lines = (clients / "run" / "ledger.jsonl").read_text()
    assert lines.count('"kind":"query"') == 6
    with pytest.raises(ResumeError, match="output must be a new folder"):
        run_simulation(settings)


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({"neighboring_relation": "zero_out_one"}, "independent, 3 batches an epoch by secret coin"),
        ({}, "independent, Poisson sampling"),  # a secret round amplifies nothing under replace_one
        ({"neighboring_relation": "zero_out_one", "noise": "correlated"}, "correlated, 2 bands, power"),
    ],
)
def test_a_trusted_server_draws_its_clients_by_the_public_rule(clients, change, chosen):
    settings = SimulationSettings.from_toml(toml(settings_of(clients, **DRAWN, **change)))
    strategy, words = settings.choose_strategy(7)
    assert strategy.words.startswith(chosen)
    assert words.startswith(f"noise = {chosen}")
    assert settings.build_privacy(strategy).expected_clients(7) == pytest.approx(7 / 3)
    stated = " ".join(run_simulation(settings).split())
    assert f"noise = {chosen}" in stated
    assert "The server draws who takes part in a round, and shows it to nobody." in stated


def test_a_run_that_stopped_before_its_first_round_is_continued(clients, monkeypatch):
    settings = SimulationSettings.from_toml(toml(settings_of(clients)))

    real = simulated_run.Simulation

    def stop(*args, **options):
        if options["ledger"].path is None:  # the one in memory, before there is a folder
            return real(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(simulated_run, "Simulation", stop)  # where noise is calibrated, which takes seconds
        with pytest.raises(KeyboardInterrupt):
            run_simulation(settings)
    assert (clients / "run" / "ledger.jsonl").exists()
    assert "6 of 6 planned queries made" in " ".join(run_simulation(settings).split())


def test_a_second_simulation_in_a_folder_leaves_the_first_one_its_key(clients, monkeypatch):
    """The second one found the folder empty, and read its clients while the first one began."""
    settings = SimulationSettings.from_toml(toml(settings_of(clients)))

    def killed(share):
        raise KeyboardInterrupt

    def slow(given):
        monkeypatch.undo()
        with pytest.raises(KeyboardInterrupt):
            run_simulation(settings, killed)
        return read_clients(given)

    monkeypatch.setattr(simulated_run, "read_clients", slow)
    with pytest.raises(ResumeError, match="another process has begun"):
        run_simulation(settings)
    assert "6 of 6 planned queries made" in " ".join(run_simulation(settings).split())


@pytest.mark.parametrize(
    ("change", "differ"),
    [
        ({"lr": 0.1}, "lr is 0.5 there and 0.1 here"),
        (
            {"epsilon": 4.0, "neighboring_relation": "zero_out_one"},
            "epsilon is 8.0 .* 4.0 here, neighboring_relation is",
        ),
        ({"adam_betas": [0.9, 0.99], "adam_eps": 0.1}, r"adam_betas is None there and \[0.9, 0.99\] here, adam_eps is"),
    ],
)
def test_an_interrupted_run_keeps_its_settings(clients, change, differ):
    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_simulation(SimulationSettings.from_toml(toml(settings_of(clients))), stop)
    with pytest.raises(tacita.ResumeError, match=rf"holds a run with other settings: {differ}"):
        run_simulation(SimulationSettings.from_toml(toml(settings_of(clients, **change))))


def test_an_interrupted_run_keeps_its_data(clients):
    """Rounds that are made again would have other values under the same noise."""

    def stop(share):
        raise KeyboardInterrupt

    settings = SimulationSettings.from_toml(toml(settings_of(clients)))
    with pytest.raises(KeyboardInterrupt):
        run_simulation(settings, stop)
    with np.load(clients / "clients.npz") as archive:
        kept = dict(archive)
    np.savez(clients / "clients.npz", **{**kept, "features": kept["features"] + np.eye(*kept["features"].shape)})
    with pytest.raises(tacita.ResumeError, match="data are not those that the run in output 'run' started with"):
        run_simulation(settings)
    np.savez(clients / "clients.npz", **kept)


def test_cells_that_are_no_number_decide_no_message(clients):
    features = np.full((60, 3), np.nan)
    np.savez(clients / "clients.npz", features=features, labels=np.full(60, np.inf), owners=np.arange(60) % 7)
    settings = SimulationSettings.from_toml(toml(settings_of(clients)))
    with pytest.warns(UserWarning, match="labels should be 0 and 1"):
        assert "epsilon <= 7.9" in run_simulation(settings)
    assert load_file(clients / "run" / "model.safetensors")["x"].isfinite().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"trust": "nobody"}, "trust must be one of 'clients', 'server', got 'nobody'"),
        (
            {"algorithm": "fedavg"},
            "algorithm must be one of .*'federated-averaging', 'quantile-averaging'.*got 'fedavg'",
        ),
        ({"epsilonn": 1.0}, r"config has no setting 'epsilonn': it must be .*\. Did you mean 'epsilon'\?$"),
        ({"algorithm": "quantile-averaging"}, "max_grad_norm must be left out of .*which needs threshold, quantile"),
        ({"adam_eps": 0.1}, "adam_betas is missing: give it with adam_eps"),
        ({"algorithm": "released-shift-sgdm", "trust": "server"}, "needs trust = 'clients'"),
        ({"algorithm": "released-shift-sgdm", "total_weight": 3.0}, "needs trust = 'clients' and no total_weight"),
        ({"max_sample_norm": 0.5}, "max_sample_norm must be left out of unit = 'client'"),
        ({"unit": "record", "max_sample_norm": 0.5}, "divisor is missing: give it with unit = 'record'"),
        ({**RECORDS, "trust": "server"}, "unit = 'record' needs trust = 'clients'"),
        ({**RECORDS, "algorithm": "clip-sgd", "momentum_weight": None}, "unit = 'record' needs algorithm"),
        ({**RECORDS, "batch_size": 4}, "batch_size must be left out of unit = 'record'"),
        ({**RECORDS, "loss_rate": 0.1}, "loss_rate must be left out of unit = 'record'"),
        ({**RECORDS, "split": "label", "clients": 5}, "split = 'label' must be left out of unit = 'record'"),
        ({**RECORDS, "neighboring_relation": "add_or_remove_one"}, "must be zero_out_one or replace_one with unit"),
        (
            {"neighboring_relation": "add_or_remove_one"},
            "with LocalPrivacy, got add_or_remove_one: under it the number",
        ),
        ({"trust": "server", "neighboring_relation": "add_or_remove_one"}, "with a TrustedServer, got add_or_remove"),
        ({"noise": "auto"}, "noise = 'auto' needs trust = 'server' and a sample_rate below 1"),
        ({"trust": "server", "noise": "correlated"}, "needs trust = 'server' and a sample_rate below 1"),
        ({**RECORDS, "divisor": 0.0}, "divisor must be a finite number > 0"),
        ({**RECORDS, "max_sample_norm": 1e153, "divisor": 1.0}, "the threshold of a record's gradient must be at most"),
        ({"rounds": 0}, "^rounds must be an integer >= 1"),
        ({"rounds": 10**10}, "^rounds must be at most 1000000000"),
        ({"loss_rate": math.nan}, "^loss_rate must be"),
        ({"regularisation": math.inf}, "^regularisation must be"),
        ({"total_weight": 0.0}, "^total_weight must be"),
        ({"batch_size": 0}, "^batch_size must be"),
        ({"split": "even", "clients": 0}, "^clients must be"),
        ({"split": "dirichlet", "clients": 5, "concentration": -1.0}, "^concentration must be"),
        ({"split_seed": -1}, "^split_seed must be"),
        ({"epsilon": None}, "required field `epsilon`"),
        ({"rounds": "many"}, "Expected `int`"),
        ({"momentum_weight": None}, "momentum_weight is missing: give it with algorithm = 'clip21-sgdm'"),
        ({"clients": 4}, "clients must be left out of"),
        ({"split": "even"}, "clients is missing: give it with"),
        ({"trust": "server", "clients_per_round": 3}, "clients_per_round needs"),
        ({"sample_rate": 0.5}, "sample_rate needs trust"),
        ({"epsilon": -1.0}, "^epsilon must be"),
        ({"delta": 2.0}, "^delta must be in"),
    ],
)
def test_settings_are_refused(clients, change, says):
    with pytest.raises(ValueError, match=says):
        SimulationSettings.from_toml(toml(settings_of(clients, **change)))


def test_settings_that_were_built_in_python_are_checked_too(clients):
    settings = SimulationSettings(**settings_of(clients, **RECORDS, split="label", clients=5))
    with pytest.raises(ValueError, match="split = 'label' must be left out"):
        run_simulation(settings)
    assert not (clients / "run").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"delta": 5e-324}, "delta must be >= 1e-300"),
        ({"max_grad_norm": 1e308}, r"max_grad_norm must be at most 2\^400"),
        ({"max_grad_norm": 1e-200}, r"max_grad_norm must be >= 2\^-40"),
        ({**VARIANTS[5], "threshold": 1e308}, r"threshold must be at most 2\^400"),
        ({**VARIANTS[5], "threshold": 1e-200}, r"threshold must be >= 2\^-40"),
        ({"clients_per_round": 8}, "clients_per_round must be at most the number of clients, 7"),
    ],
)
def test_what_has_no_noise_is_refused_before_there_is_a_folder(clients, change, says):
    with pytest.raises(ValueError, match=says):
        run_simulation(SimulationSettings(**settings_of(clients, **change)))
    assert not (clients / "run").exists()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"labels": np.zeros(3)}, "with the arrays features, labels, owners"),
        ({"features": np.zeros(3), "labels": np.zeros(3), "owners": np.zeros(3)}, "must hold numbers"),
        ({"features": np.zeros((3, 1)), "labels": np.zeros(2), "owners": np.zeros(3)}, "one label"),
        ({"features": np.array([["secret"]] * 3), "labels": np.zeros(3), "owners": np.zeros(3)}, "must hold numbers"),
    ],
)
def test_files_of_another_structure_are_refused(clients, arrays, says):
    np.savez(clients / "clients.npz", **arrays)
    with pytest.raises(DataStructureError, match=says) as found:
        read_clients(SimulationSettings.from_toml(toml(settings_of(clients))))
    assert "secret" not in str(found.value)
