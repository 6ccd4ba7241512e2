"""Noise is compared with what the session's event promises, block by block, whatever the event is made of."""

import math

import pytest

from tacita import accounting as acc
from tacita.error_feedback import InterleavedEvent
from tacita.errors import LedgerError
from tacita.hardened import RoundedGaussian
from tacita.mechanisms.paid_noise import check_gaussian_noise
from tacita.tables.selection_events import ComposedEvent

RELATION = "add_or_remove_one"


def sums(*noise_std, bounds=None):
    return acc.GaussianSumEvent(
        relation=RELATION,
        sampling=acc.FullBatchLaw(),
        max_contribution=bounds or (1.0,) * len(noise_std),
        noise_std=noise_std,
    )


def around(event):
    hardened = acc.HardenedEvent(relation=RELATION, inner=event, sums="alone")
    return acc.ConditionalEvent(relation=RELATION, inner=hardened, condition_text="it holds")


def taking_turns(*noise_std):
    return InterleavedEvent(relation=RELATION, inner=sums(*noise_std), between=sums(noise_std[0]), every=2)


ENOUGH = [
    (sums(2.0), {"all": 2.0}),
    (sums(2.0, 3.0), {"a": 2.0, "b": 3.0}),
    (sums(2.0), {"a": 2.0, "b": 5.0}),  # an event of one block, of which a noise of several is at least that
    (sums(2.0, 0.0), {"a": 2.0}),  # a block of the event that is counted without noise
    (around(sums(2.0)), {"all": 2.0}),
    (taking_turns(3.0, 2.0), {"a": 3.0, "b": 2.0}),
    (ComposedEvent(relation=RELATION, parts=(sums(2.0), sums(3.0)), part_queries=(1, 1)), {"all": 3.0}),
]


@pytest.mark.parametrize(("event", "noise_std"), ENOUGH)
def test_noise_that_is_promised_passes_and_less_on_any_block_does_not(event, noise_std):
    check_gaussian_noise(event, noise_std)
    RoundedGaussian(noise_multiplier=1.0).check_paid(event, {block: 2 * std for block, std in noise_std.items()})
    for block, std in noise_std.items():
        if std == 5.0:
            continue  # more than is promised
        for less in (std * (1 - 2.0**-52), std / 2, 0.0, -std, math.nan):
            with pytest.raises(
                LedgerError, match=f"noise_std of block '{block}' is .* would be less than what is spent"
            ):
                check_gaussian_noise(event, {**noise_std, block: less})


def test_more_blocks_than_are_paid_for_are_refused():
    with pytest.raises(LedgerError, match="has 3 blocks, and the session's event pays for 2"):
        check_gaussian_noise(sums(2.0, 2.0), {"a": 2.0, "b": 2.0, "c": 2.0})


def test_a_smaller_contribution_may_have_noise_in_proportion():
    """The ratio is what is paid for: a survey of one histogram a column in place of two."""
    event, added = sums(2.0, 3.0, bounds=(math.sqrt(6), 1.0)), {"a": math.sqrt(3), "b": 1.0}
    noise_std = {"a": 2.0 * math.sqrt(0.5), "b": 3.0}
    check_gaussian_noise(event, noise_std, added)
    with pytest.raises(LedgerError, match="'a'"):
        check_gaussian_noise(event, noise_std)  # as if nothing were known of the contribution
    for wrong in ({"a": 0.999 * noise_std["a"]}, {"b": 0.999 * 3.0}):
        with pytest.raises(LedgerError):
            check_gaussian_noise(event, {**noise_std, **wrong}, added)
    with pytest.raises(LedgerError, match="'b'"):
        check_gaussian_noise(event, noise_std, {**added, "b": 1.001})  # adds more than the event has


def test_an_event_without_gaussian_noise_promises_none():
    check_gaussian_noise(acc.ZCDPEvent(relation=RELATION, rho=0.1), {"all": 0.0})
