"""Bugs that show only where the model is not on the CPU."""

import secrets
from contextlib import contextmanager

from tacita.gradients import seeds
from tacita.oracles import gradient_oracle
from tacita.oracles.gate import ReleaseGate
from tests.planted.plant import bug, put, swap

LINE = "tests/oracles/test_gate.py::"
DEVICES = "tests/gradients/test_devices.py::"


@bug(
    94,
    caught_by=[
        LINE + "test_a_matching_line_is_the_identical_release_and_free",
        LINE + "test_a_one_pass_session_refuses_a_line_that_does_not_match",
        LINE + "test_an_older_key_is_ratcheted_forward",
    ],
)
def no_fingerprint_off_the_cpu():
    """Values on another device get no fingerprint that matches: a query is never redone, but paid again or refused."""
    on_cpu = ReleaseGate._fingerprint

    def fingerprint(self, query, values, elsewhere=b""):
        here = all(value.device.type == "cpu" for block in values.values() for value in block.values())
        return on_cpu(self, query, values, elsewhere) if here else secrets.token_hex(16)

    put(ReleaseGate, "_fingerprint", fingerprint)


@bug(94, caught_by=[DEVICES + "test_dropout_follows_the_seed_and_leaves_both_generators"])
def generators_of_devices_without_a_seed():
    """The generator of a device that is neither the CPU nor CUDA is not seeded by the query, and not put back."""

    @contextmanager
    def only_the_cpus(device):
        yield None

    swap(seeds._generator_of, only_the_cpus)


@bug(94, caught_by=["tests/oracles/test_launches.py::test_a_query_stays_within_its_budget"])
def a_wait_for_the_device_more():
    """A query looks at a value once more than it has to, and so waits for the device."""
    query = gradient_oracle.GradientOracle.query

    def looking(self, params):
        release = query(self, params)
        next(iter(release.gradient.values())).sum().item()
        return release

    put(gradient_oracle.GradientOracle, "query", looking)
