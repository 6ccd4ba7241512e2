"""Bugs of accounting: an epsilon that is too small, or that nothing stands behind."""

import dataclasses
import math

import numpy as np

from tacita.accounting import (
    _tilted,
    accountant,
    calibration,
    renyi_curve,
)
from tacita.accounting.events import event, gaussian_sums, laplace
from tacita.accounting.line_pairs import MixturePair, ReplacedPair
from tacita.accounting.renyi_curve import RenyiCurve
from tacita.ledger import sections
from tacita.ledger.statement import statement as make_statement
from tests.planted.plant import bug, put, swap

GAUSSIAN = "tests/accounting/events/test_gaussian_sums.py::"
ACCOUNTANT = "tests/accounting/test_accountant.py::"
READING = "tests/accounting/test_pld_accountant.py::"
TILTED = "tests/accounting/test_tilted.py::"
DOMINATION = "tests/accounting/test_domination.py::"
STATEMENT = "tests/ledger/test_statement.py::"
EVENTS = "tests/accounting/events/test_event.py::"


@bug(
    2,
    caught_by=[
        GAUSSIAN + "test_fixed_size",
        DOMINATION + "test_the_fixed_size_bound_is_above_the_envelope_where_the_factor_is_not_forgotten",
    ],
)
def fixed_size_without_the_factor_two():
    """Fixed-size sampling gets noise over C where its bound wants noise over 2C."""
    pair = gaussian_sums.EnvelopePair
    put(gaussian_sums, "EnvelopePair", lambda moved, rate: pair(moved / 2, rate))


@bug(3, caught_by=[GAUSSIAN + "test_full_batch", GAUSSIAN + "test_rdp_is_above_pld"])
def renyi_curve_of_another_convention():
    """The Rényi curve of a Gaussian takes C for the sensitivity where the other accountant takes 2C."""

    whole = gaussian_sums.moved_in_some_queries

    def other(event, queries):
        mu = event.ratio * math.sqrt(event.sampling.most_draws(queries))
        return dataclasses.replace(whole(event, queries), rdp=lambda orders: np.asarray(orders) * mu**2 / 2)

    proofs = gaussian_sums.GaussianSumEvent.proofs
    plain = [law for law, proof in proofs.items() if proof.guarantee is whole]
    wrong = {law: dataclasses.replace(proofs[law], guarantee=other) for law in plain}
    put(gaussian_sums.GaussianSumEvent, "proofs", {**proofs, **wrong})


@bug(
    3, caught_by=[GAUSSIAN + "test_rdp_of_the_replace_one_pair_against_a_plain_sum", GAUSSIAN + "test_rdp_is_above_pld"]
)
def replace_one_by_the_other_curve():
    """Poisson sampling under replace_one gets the Rényi curve of add_or_remove_one."""

    def added(pair, orders):
        return renyi_curve.divergences(MixturePair((0.0, pair.shift), (1 - pair.chance, pair.chance)), orders)

    renyi_curve.divergences.register(ReplacedPair, added)


@bug(3, caught_by=[GAUSSIAN + "test_poisson"])
def replace_one_by_the_other_pair():
    """Poisson sampling under replace_one gets the pair of add_or_remove_one."""
    put(gaussian_sums, "ReplacedPair", lambda ratio, chance: MixturePair((0.0, ratio), (1 - chance, chance)))


@bug(12, caught_by=["tests/mechanisms/test_gaussian.py::test_calibrated_never_overshoots_beside_other_sessions"])
def calibration_overshoots():
    """Calibration returns the noise on the wrong side of the target."""
    put(calibration, "_by_estimates", lambda *given: None)
    swap(calibration._narrowed, lambda reached, target, low, high: low[0] * 0.999 + high[0] * 0.001)


@bug(12, caught_by=["tests/accounting/test_profiles.py::test_calibration_reads_few_times_where_an_estimate_serves"])
def calibration_trusts_the_estimate():
    """Calibration returns the noise at which an estimate, not a bound, is the target."""

    def guessed(reached, expected, near, target):
        found = calibration._estimated(expected, target, 1.0)
        return None if found is None else found[0]

    put(calibration, "_by_estimates", guessed)


@bug(13, caught_by=[ACCOUNTANT + "test_a_nan_is_raised_and_never_reported"])
def not_a_number_reported():
    """Where no accountant works, what it gave is reported all the same."""

    def reported(spends, delta):
        return accountant.Bound(accountant._tightest(tuple(spends), delta)[0], delta, "any")

    swap(accountant.epsilon, reported)
    put(RenyiCurve, "epsilon", lambda self, delta: float(self.values[0]))
    put(accountant, "_closed_delta", lambda spend, epsilon: spend.guarantee.delta(epsilon))


@bug(13, caught_by=[TILTED + "test_below_a_window_nothing_is_known"])
def all_is_above_the_window():
    """Below a window delta is read as if nothing lay there."""
    whole = _tilted.TiltedTotal.deltas
    put(_tilted.TiltedTotal, "deltas", lambda self, epsilons: whole(self, np.maximum(epsilons, self.least)))


@bug(
    13,
    caught_by=[
        TILTED + "test_a_composition_is_an_upper_bound_with_relative_accuracy",
        READING + "test_gaussian_queries_within_a_tenth_of_a_percent_down_to_1e_15",
    ],
)
def the_tilt_is_forgotten():
    """Delta is read off the tilted law as if it had not been tilted."""
    whole = _tilted.TiltedTotal._at_points.func
    untilted = property(lambda self: whole(dataclasses.replace(self, theta=0.0, log_scale=0.0)))
    put(_tilted.TiltedTotal, "_at_points", untilted)


@bug(13, caught_by=[TILTED + "test_infinite_losses_count_whatever_the_tilt"])
def infinite_losses_dropped():
    """The chance of an infinite loss is left out of delta."""
    whole = _tilted.TiltedTotal._at_points.func
    finite = property(lambda self: whole(dataclasses.replace(self, infinity=0.0)))
    put(_tilted.TiltedTotal, "_at_points", finite)


@bug(13, caught_by=[ACCOUNTANT + "test_a_curve_that_rounding_took_to_nothing_is_not_free"])
def delta_vanishes_with_the_divergence():
    """The delta of a divergence below the rounding of 1 is taken for 0."""

    def vanishing(self, epsilon):
        return math.sqrt(max(0.0, 1 - math.exp(-float(np.nanmin(self.values)))))

    put(RenyiCurve, "delta", vanishing)


@bug(14, caught_by=["tests/accounting/events/test_pure.py::test_laplace_delta_in_closed_form"])
def laplace_scale_inverted():
    """The scale of Laplace noise is handed on as its inverse."""
    whole = laplace.LaplacePair
    put(laplace, "LaplacePair", lambda epsilon: whole(1 / epsilon))


@bug(18, caught_by=[STATEMENT + "test_delta_is_never_chosen"])
def delta_by_default():
    """A statement chooses its own delta."""
    whole = make_statement
    swap(whole, lambda ledger, delta=1e-5, **more: whole(ledger, delta, **more))


@bug(46, caught_by=[STATEMENT + "test_an_empty_ledger_says_nothing_of_any_model"])
def statement_of_an_empty_ledger():
    """Where nothing was registered, the statement says epsilon 0 of any model."""
    titles = dict(sections.SECTIONS)
    whole = titles["What is guaranteed"]
    titles["What is guaranteed"] = lambda fields: whole({**fields, "sessions": [{"state": "closed"}]})
    put(sections, "SECTIONS", tuple(titles.items()))


@bug(49, caught_by=[DOMINATION + "test_one_direction_composed_with_itself_is_caught"])
def fixed_size_one_direction_at_a_time():
    """Fixed-size sampling gets a pair whose directions are composed each with itself."""
    put(gaussian_sums, "EnvelopePair", lambda moved, q: MixturePair((0.0, moved), (1 - q, q)))


@bug(38, caught_by=[EVENTS + "test_turns_are_hardened_if_both_kinds_of_query_are"])
def hardened_by_the_main_component():
    """A session counts as hardened if its first kind of query is, whatever noise the others have."""
    put(event.Event, "hardened", property(lambda self: bool(self.components) and self.components[0].hardened))
