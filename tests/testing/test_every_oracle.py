"""No oracle without its contract: each public class, kind of feedback and noise passes check_oracle, or says why not.

The oracles of ``ORACLES`` are checked in test_oracle_contract.py, those that stand ready for an audit here.
"""

import importlib
import os
import pkgutil

import pytest
import torch

import tacita
from tacita.accounting import RELATIONS
from tacita.cli.named_audits import READY
from tacita.error_feedback import Feedback
from tacita.errors import UnsupportedEventError
from tacita.mechanisms import Mechanism
from tacita.oracles import GradientOracle
from tacita.testing import check_oracle
from tacita.testing.sessions import in_memory
from tests.testing.linear import ORACLES

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
KINDS = (GradientOracle, Feedback, Mechanism)
EXEMPT = {
    "StationaryTest": "answers yes or no, and no gradient; test_above_threshold.py audits its answers, exactly",
    "ShuffleMeanOracle1": "releases counts of a known law; tests/convex/test_shuffled_sum_event.py has it, exactly",
    "ShuffleMeanOracle2": "as ShuffleMeanOracle1; make audit runs their contract: tests/convex/test_shuffle_oracles.py",
    "MomentsOracle": "asks a ClippedGradientOracle of its own; test_moments.py has what a record adds",
    "HalfTheNoise": "adds half of what it states, so that an audit has something to refute",
}


def classes():
    """Every class of tacita that is an oracle, a kind of feedback or a mechanism, by name, but for abstract ones."""
    for module in pkgutil.walk_packages(tacita.__path__, "tacita."):
        importlib.import_module(module.name)
    found, below = {}, list(KINDS)
    while below:
        kind = below.pop()
        below += kind.__subclasses__()
        if kind.__module__.split(".")[0] == "tacita" and not getattr(kind, "__abstractmethods__", None):
            found[kind.__name__] = kind
    return found


def answers(kind):
    """Whether it, or a class of ours that it derives from, has ``query`` or ``test``; a protocol has no more."""
    return any({"query", "test"} & vars(each).keys() for each in kind.__mro__)


def others():
    """Public classes that answer queries and are no gradient oracles."""
    public = {name: getattr(tacita, name) for name in tacita.__all__}
    return {
        name
        for name, kind in public.items()
        if isinstance(kind, type) and not issubclass(kind, KINDS) and answers(kind)
    }


def built(make_oracle):
    """The oracle on three rows, under the first relation that it has a guarantee for."""
    for relation in RELATIONS:
        try:
            return make_oracle(torch.ones(3, 4), in_memory(relation))
        except UnsupportedEventError:
            continue
    raise AssertionError("no relation is supported")


def checked(oracles):
    """Names of the classes that ``oracles`` are made of."""
    made = [built(make) for make in oracles]
    parts = [part for one in made for part in (one, one.mechanism, getattr(one.estimator, "feedback", None))]
    return {type(part).__name__ for part in parts if part is not None}


def missing(known, covered, exempt):
    """What is neither checked nor exempt, and exemptions of what is not there or is checked after all."""
    return sorted(known - covered - exempt.keys()), sorted(name for name in exempt if name not in known - covered)


def test_every_oracle_has_its_contract_or_a_reason():
    unchecked, needless = missing(classes().keys() | others(), checked(ORACLES.values()), EXEMPT)
    assert not unchecked, "these are in no oracle of ORACLES (tests/testing/linear.py), and EXEMPT gives no reason"
    assert not needless, "these are exempt, and are not there or checked after all"


def test_what_is_known_is_not_nothing():
    known = classes().keys() | others()
    assert {"ClippedGradientOracle", "ErrorFeedbackOracle", "GradientOracle"} <= known
    assert {"PrivateFeedback", "BoundedFeedback", "ReleasedFeedback"} <= known
    assert {"GaussianMechanism", "RoundedGaussian", "StationaryTest"} <= known


def test_an_oracle_without_its_contract_is_found():
    class Another(GradientOracle):
        __module__ = "tacita.oracles.another"

    try:
        assert "Another" in classes()
        covered = {"GradientOracle"}
        assert missing({"Another", "GradientOracle"}, covered, {}) == (["Another"], [])
        assert missing({"Another", "GradientOracle"}, covered, {"Another": "why"}) == ([], [])
        assert missing({"GradientOracle"}, covered, {"GradientOracle": "why"}) == ([], ["GradientOracle"])
        assert missing({"GradientOracle"}, covered, {"Gone": "why"}) == ([], ["Gone"])
    finally:
        Another.__module__ = __name__  # __subclasses__ may keep it


def under_its_relation(ready):
    """An audit's oracle; its number of records is declared for one relation alone."""
    make = ready.make(ready.noises[0])

    def make_oracle(rows, ledger):
        if ledger.neighboring_relation != ready.relation:
            raise UnsupportedEventError("audited under another relation")
        return make(rows, ledger)

    return make_oracle


def kinds(make_oracle):
    one = built(make_oracle)
    parts = (one.estimator, one.mechanism, one.sampler, getattr(one.estimator, "feedback", None))
    return {type(part) for part in parts}


@pytest.mark.parametrize("name", READY)
def test_oracles_that_stand_ready_keep_their_contract(name):
    """But in make audit: that one of ``ORACLES`` has the same classes of estimator, noise, sampler and memory."""
    make_oracle = under_its_relation(READY[name])
    if AUDIT or kinds(make_oracle) not in list(map(kinds, ORACLES.values())):
        check_oracle(make_oracle)
