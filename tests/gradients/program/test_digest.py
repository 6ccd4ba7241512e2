"""What was trained is this function: its digest stands in the settings, and who goes on must have it again."""

from typing import Any

import pytest
import torch
from torch import nn

import tacita
from tacita.errors import LedgerError, RankError, ResumeError, UnsupportedModuleError
from tacita.gradients import NetworkSource, engine_choice
from tacita.gradients.rules import linear
from tests.distributed.ranks import results, run_ranks
from tests.training import small_run


def loss_of(factor):
    def loss_fn(model, batch):
        return small_run.loss_fn(model, batch) * factor

    return loss_fn


def an_oracle(factor, *, method="program", ledger=None, **more):
    """An oracle of a linear model; ``ledger=False`` gives it none, as ranks but the first have none."""
    torch.manual_seed(0)
    own = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row") if ledger is None else ledger
    return tacita.ClippedGradientOracle(
        nn.Linear(3, 1),
        loss_of(factor),
        small_run.rows(),
        ledger=own or None,
        sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=40),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=3,
        method=method,
        **more,
    )


def test_the_digest_stands_in_the_settings():
    one, again, other = (an_oracle(factor) for factor in (1.0, 1.0, 2.0))
    assert one.settings["program"] == again.settings["program"] != other.settings["program"]
    hashes = [oracle.session.registration.settings_sha256 for oracle in (one, again, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert "program" not in an_oracle(1.0, method="loop").settings


def test_a_session_goes_on_with_the_same_function_alone():
    first = an_oracle(1.0)
    an_oracle(1.0, ledger=first.ledger, session=first.session)
    with pytest.raises(ResumeError, match="other settings"):
        an_oracle(2.0, ledger=first.ledger, session=first.session)


def test_ranks_compare_it():
    def work(rank, group):
        with pytest.raises(RankError, match="different settings"):
            an_oracle(1.0 + rank, ledger=None if rank == 0 else False, process_group=group)

    results(run_ranks(2, work))


class Stops(torch.utils.data.Dataset):
    """The rows of a small run; the process stops when ``stop`` rows were read."""

    def __init__(self, stop=None):
        (self.x, self.y), self.stop, self.read = small_run.rows(), stop, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read += 1
        if self.read == self.stop:
            raise KeyboardInterrupt
        return self.x[index], self.y[index]


def fit(folder, factor, stop=None):
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        **small_run.SETTINGS,
        "epochs": 2,
        "method": "program",
        "randomness": tacita.Randomness.insecure(0),
    }
    model = nn.Linear(3, 1)
    tacita.fit(model, loss_of(factor), Stops(stop), folder=folder, **settings)
    return model


def test_a_resumed_run_has_the_same_function(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "stopped", 1.0, stop=61)
    with pytest.raises((ResumeError, LedgerError)):
        fit(tmp_path / "stopped", 2.0)
    found, expected = fit(tmp_path / "stopped", 1.0), fit(tmp_path / "whole", 1.0)
    assert torch.equal(found.weight, expected.weight)


def test_modes_and_retracing_leave_it():
    """It is that of the model as the oracle was built: a mode that is met later has a program of its own."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    source = NetworkSource(model, small_run.loss_fn, small_run.rows(), method="program")
    before = source.digest
    model.eval()
    source.engine(dict(model.named_parameters()), torch.arange(3).numpy())
    assert source.digest == before is not None
    model.train()
    assert NetworkSource(model, small_run.loss_fn, small_run.rows(), method="program").digest == before


def test_every_processor_has_the_same(monkeypatch):
    """A client of a federation, or who resumes a run, may have another one."""
    model, digests = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), set()
    for name in ("Intel(R) Xeon(R)", "AMD EPYC"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=name: {"cpu_name": name})
        linear._on_intel.cache_clear()
        digests.add(NetworkSource(model, small_run.loss_fn, small_run.rows(), method="program").digest)
    linear._on_intel.cache_clear()
    assert len(digests) == 1


def noisy_loss(model, batch):
    """It draws in every mode, as those of diffusion models do."""
    return small_run.loss_fn(model, (batch[0] + torch.randn_like(batch[0]), *batch[1:]))


@pytest.mark.parametrize("loss_fn", [small_run.loss_fn, noisy_loss])
def test_a_program_that_differs_from_the_loop_is_refused(loss_fn, monkeypatch):
    class Wrong(engine_choice.ProgramEngine):
        def _chunk_sums(self, chunk, rule, groups):
            sums, norms = super()._chunk_sums(chunk, rule, groups)
            return [{name: 0.5 * one for name, one in of_array.items()} for of_array in sums], norms

    model = nn.Linear(3, 1)
    NetworkSource(model, loss_fn, small_run.rows())
    monkeypatch.setattr(engine_choice, "ProgramEngine", Wrong)
    with pytest.raises(UnsupportedModuleError, match="does not give the gradient"):
        NetworkSource(model, loss_fn, small_run.rows())
