"""``tacita federate simulate``: a run from a TOML file, continued after an interruption, and what is refused."""

import numpy as np
import pytest
from safetensors.torch import load_file

import tacita
from tacita.errors import DataStructureError, ResumeError
from tacita.federated.settings import SimulationSettings, read_clients, run_simulation

PLAIN = {
    "epsilon": 8.0, "delta": 1e-5, "trust": "clients", "max_grad_norm": 0.1, "lr": 0.5, "rounds": 6,
    "momentum_weight": 0.5,
}  # fmt: skip


@pytest.fixture
def clients(tmp_path):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    np.savez(tmp_path / "clients.npz", features=features, labels=features[:, 0] > 0, owners=rng.integers(0, 7, 60))
    return tmp_path


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
    with ledger_of(clients) as book:
        assert 7.9 < book.epsilon_spent(1e-5) <= 8.0


VARIANTS = [
    {"trust": "server", "sample_rate": 0.5, "neighboring_relation": "zero_out_one"},
    {"algorithm": "clip-sgd", "momentum_weight": None, "clients_per_round": 3, "loss_rate": 0.2, "batch_size": 4},
    {"algorithm": "clip21-sgd", "momentum_weight": None, "split": "label", "clients": 5},
    {"split": "dirichlet", "clients": 5, "concentration": 0.3, "regularisation": 1e-3},
    {"algorithm": "federated-averaging", "momentum_weight": None, "local_steps": 2, "local_lr": 0.1, "split": "even",
     "clients": 4, "trust": "server"},
]  # fmt: skip


@pytest.mark.parametrize("change", VARIANTS)
def test_every_kind_of_run(clients, change):
    settings = SimulationSettings.from_toml(toml(settings_of(clients, **change)))
    assert "epsilon <= " in run_simulation(settings)


@pytest.mark.parametrize(
    ("trust", "relation", "said"), [("server", "replace_one", True), ("clients", "add_or_remove_one", False)]
)
def test_a_delta_above_one_over_the_public_number_of_clients_is_said(clients, trust, relation, said):
    features = np.random.default_rng(0).standard_normal((240, 3))
    np.savez(clients / "clients.npz", features=features, labels=features[:, 0] > 0)
    change = {"split": "even", "clients": 120, "delta": 0.0099, "trust": trust, "neighboring_relation": relation}
    words = run_simulation(SimulationSettings.from_toml(toml(settings_of(clients, **change))))
    assert ("Delta is 0.0099, which is not below 1 / 120" in " ".join(words.split())) is said


def test_an_interrupted_run_is_continued_and_charged_once(clients):
    settings = SimulationSettings.from_toml(toml(settings_of(clients)))

    def stop(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_simulation(settings, stop)
    assert not (clients / "run" / "model.safetensors").exists()
    assert "epsilon <= " in run_simulation(settings)
    with ledger_of(clients) as book:
        assert [session.queries_made for session in book.sessions] == [6]
    with pytest.raises(ResumeError, match="output must be a new folder"):
        run_simulation(settings)


def test_an_interrupted_run_keeps_its_settings(clients):
    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_simulation(SimulationSettings.from_toml(toml(settings_of(clients))), stop)
    with pytest.raises(tacita.LedgerError, match="registered for another event"):
        run_simulation(SimulationSettings.from_toml(toml(settings_of(clients, lr=0.1))))


def test_cells_that_are_no_number_decide_no_message(clients):
    features = np.full((60, 3), np.nan)
    np.savez(clients / "clients.npz", features=features, labels=np.full(60, np.inf), owners=np.arange(60) % 7)
    settings = SimulationSettings.from_toml(toml(settings_of(clients)))
    assert "epsilon <= 7.9" in run_simulation(settings)
    assert load_file(clients / "run" / "model.safetensors")["x"].isfinite().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"trust": "nobody"}, "Invalid enum value"),
        ({"epsilonn": 1.0}, "unknown field"),
        ({"epsilon": None}, "required field `epsilon`"),
        ({"rounds": "many"}, "Expected `int`"),
        ({"momentum_weight": None}, "momentum_weight is missing: give it with algorithm"),
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
