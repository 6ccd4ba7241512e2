"""Float32 noise has the same bits wherever a query is made."""

import torch
from torch import nn

import tacita
from tacita.random import Key
from tests.devices import CPU, SIMULATED, get_device
from tests.distributed.ranks import results, run_ranks

COUNT = 40 * 30 + 30  # of parameters: noise of two groups, and of two stretches


def make_oracle(device, path, ledger, *, group=None, state=None):
    """An oracle whose batches are empty, so that what it releases is noise alone, of standard deviation 1.

    With ``state`` it goes on, in a process that has nothing but the private file at ``path``.
    """
    leads, model = group is None or group.rank() == 0, nn.Linear(40, 30, device=device)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    oracle = tacita.ClippedGradientOracle(
        model,
        lambda model, batch: model(batch[0]).square().sum(1),
        (torch.ones(6, 40),),
        ledger=ledger if leads else None,
        session=ledger.sessions[0] if leads and state else None,
        sampler=tacita.PoissonSampler(sample_rate=1e-9, num_records=6),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=4,
        randomness=tacita.Randomness.load(path) if leads else None,
        process_group=group,
    )
    if state is not None:
        oracle.load_state_dict(state if leads else {})
    return oracle


def released(oracle, path=None):
    """Return the noise of the next query, and the checkpoint after it if there is a ``path`` for the key."""
    release, states = oracle.backward(), []
    if path is not None:
        oracle.gate.checkpoint(states.append, path)
    return torch.cat([x.flatten() for x in release.released["all"].values()]).cpu(), *states


def begun(path):
    key = Key(bytes(range(32)), secure=False)
    tacita.Randomness(key).save(path)
    return key, tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")


def drawn(key, query):
    return key.stream("train-1", "noise", query, "all").normals(COUNT)


def test_a_run_that_moves_from_device_to_device_and_to_several_ranks_has_the_same_noise(tmp_path):
    path = tmp_path / "key"
    key, ledger = begun(path)
    cpu, simulated = get_device(CPU), get_device(SIMULATED)
    first, state = released(make_oracle(cpu, path, ledger), path)
    second, state = released(make_oracle(simulated, path, ledger, state=state), path)

    def rank(number, group):
        oracle = make_oracle(cpu, path, ledger, group=group, state=state)
        return released(oracle, path if number == 0 else None)

    (third, state), (other,) = results(run_ranks(2, rank))
    (fourth,) = released(make_oracle(simulated, path, ledger, state=state))
    assert torch.equal(third, other)
    for query, found in enumerate([first, second, third, fourth]):
        assert torch.equal(found, drawn(key, query))
        key = key.next()
