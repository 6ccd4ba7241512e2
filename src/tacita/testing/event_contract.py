"""The contract test of every event: it survives the ledger, composes, and never costs less for more queries.

Place: accounting, ledger -> [audit.event_contract] -> tests, ours and third parties'. Whether an event is *true* of
what an oracle releases is measured by :func:`tacita.testing.check_oracle`, not here.
"""

import copy
import dataclasses
import itertools
import json
import math

import numpy as np

from tacita.accounting import ApproximateDPEvent, Event, FullBatchLaw, GaussianSumEvent, Spend, epsilon
from tacita.ledger import Ledger

COUNTS = (1, 2, 10)
ORDERS = np.array([1.01, 1.5, 2.0, 3.0, 8.0, 64.0])
SLACK = 1e-3  # relative: what discretisation may add to a smaller number of queries


def check_event(event: Event, *, at_delta: float = 1e-5) -> None:
    """Check that an event keeps its contract, whatever the guarantee that it states.

    The checks are:

    * It is frozen, hashable and equal to its copy. It survives a line of the ledger, and a ledger can register it,
      state it and read it back.
    * It describes itself in one line, with no number that a line could not hold.
    * More queries never cost less. Nothing is NaN or negative.
    * It composes: beside a Gaussian query, or a share of (epsilon, delta), the total is at least the cost of either
      alone, and finite where both are.

    Args:
        event: The event to check; its guarantee of 1 to 10 queries is asked for.
        at_delta: Where epsilon is computed.

    Raises:
        AssertionError: Names what is broken.

    Example:
        >>> from tacita.accounting import LaplaceEvent
        >>> check_event(LaplaceEvent(relation="replace_one", l1_sensitivity=1.0, scale=10.0))
    """
    assert isinstance(event, Event), f"an event must be an Event, got {type(event).__name__}."
    _check_plain(event)
    _check_words(event)
    _check_costs(event, at_delta)
    _check_forms(event)
    _check_composes(event, at_delta)
    _check_ledger(event, at_delta)


def _check_plain(event: Event) -> None:
    assert dataclasses.is_dataclass(event), "an event must be a frozen dataclass."
    try:
        event.relation = "replace_one"  # type: ignore[misc]
    except dataclasses.FrozenInstanceError:
        pass
    else:
        raise AssertionError("an event must be a frozen dataclass: its fields can be changed.")
    line = json.dumps(event.to_dict(), allow_nan=False)
    read = Event.from_dict(json.loads(line))
    assert read == event, f"a ledger reads back {read!r}, and {event!r} was written."
    assert hash(read) == hash(event), "equal events must have equal hashes."
    assert copy.deepcopy(event) == event, "a copy must equal the event."


def _check_words(event: Event) -> None:
    words = (event.describe(), event.sampler, *event.assumptions, event.condition)
    for text in words:
        assert text is None or (isinstance(text, str) and text.strip()), f"words must be a text, got {text!r}."
        assert text is None or "\n" not in text, f"words must stand on one line, got {text!r}."
    assert event.describe() != repr(event), "describe() must be plain words for the statement, not the repr."


def _check_costs(event: Event, at_delta: float) -> None:
    costs = [epsilon([Spend(event, queries)], at_delta).epsilon for queries in COUNTS]
    for queries, cost in zip(COUNTS, costs, strict=True):
        assert cost >= 0, f"{queries} queries cost epsilon {cost}."
    for (fewer, less), (more, cost) in itertools.pairwise(zip(COUNTS, costs, strict=True)):
        assert cost >= less * (1 - SLACK), f"{more} queries cost {cost:.6g}, and {fewer} cost {less:.6g}."


def _check_forms(event: Event) -> None:
    for queries in COUNTS:
        found = event.guarantee(queries)
        for name in ("mu", "pure_epsilon", "unsampled_mu", "additive_delta", "coupling_gap"):
            value = getattr(found, name)
            assert value is None or value >= 0, f"{name} must be >= 0, got {value}."
        if found.rdp is not None:
            curve = np.asarray(found.rdp(ORDERS), dtype=float)
            assert curve.shape == ORDERS.shape, f"rdp must give one value an order, got shape {curve.shape}."
            assert not np.isnan(curve).any(), "rdp must not be NaN: infinite is the word for unknown."
            assert (curve >= 0).all(), "rdp must be >= 0."


def _check_composes(event: Event, at_delta: float) -> None:
    gaussian = GaussianSumEvent(
        relation=event.relation, sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(2.0,)
    )
    share = ApproximateDPEvent(relation=event.relation, epsilon=0.5, delta_share=at_delta / 4)
    alone = epsilon([Spend(event, 2)], at_delta).epsilon
    for other in (gaussian, share):
        single = epsilon([Spend(other, 1)], at_delta).epsilon
        total = epsilon([Spend(event, 2), Spend(other, 1)], at_delta).epsilon
        words = f"beside {type(other).__name__} of epsilon {single:.6g} the total is {total}, and alone it is {alone}."
        assert total >= max(alone, single) * (1 - SLACK), words
        possible = (
            math.isfinite(alone) and not event.guarantee(2).additive_delta and not event.guarantee(2).coupling_gap
        )
        assert math.isfinite(total) or not possible, words


def _check_ledger(event: Event, at_delta: float) -> None:
    ledger = Ledger(neighboring_relation=event.relation, privacy_unit="one record of a contract test")
    ledger.register(event, planned_queries=COUNTS[-1], purpose="contract")
    planned, alone = ledger.epsilon(at_delta), epsilon([Spend(event, COUNTS[-1])], at_delta).epsilon
    conditional = event.condition is not None
    assert planned == (math.inf if conditional else alone), f"a ledger states {planned}, and the event costs {alone}."
