"""Float32 noise has the same bits wherever a query is made, and a run ends with the streams that it began with."""

import json

import pytest
import torch
from torch import nn

import tacita
from tacita._stream import AES, CHACHA20, Stream
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


def begun(path, version=CHACHA20):
    key = Key(bytes(range(32)), secure=False, version=version)
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


@pytest.mark.parametrize(("named", "version"), [("tacita randomness 2", AES), ("tacita randomness 3", CHACHA20)])
def test_a_run_ends_with_the_streams_it_began_with(tmp_path, named, version):
    """A private file of format 2 began under AES: its run goes on so, through every ratchet and every file."""
    path = tmp_path / "key"
    key, ledger = begun(path, version)
    state = None
    for query in range(4):
        assert json.loads(path.read_text())["format"] == named
        found, state = released(make_oracle(get_device(CPU), path, ledger, state=state), path)
        assert torch.equal(found, drawn(key, query))
        other = Stream(key.stream("train-1", "noise", query, "all")._secret, AES + CHACHA20 - version)
        assert not (other.normals(COUNT) == found).any()
        key = key.next()


def test_keys_that_come_from_a_key_are_of_its_version():
    for version in (AES, CHACHA20):
        key = Key(bytes(32), secure=False, version=version)
        assert {one.version for one in (key.derive("a"), key.next(), key.derive("a").next())} == {version}
        assert key.stream("a")._version == key.derive("a").stream("b")._version == version
    assert Key.system().version == Key.insecure(0).version == CHACHA20
