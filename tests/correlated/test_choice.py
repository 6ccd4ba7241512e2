"""The choice of batches and noise: the least predicted error at equal privacy, by public numbers alone."""

import re
import warnings

import pytest

import tacita
from tacita.correlated import CorrelatedGaussian, Strategy, choose_strategy, recommended_noise, recommended_power
from tacita.correlated.strategy import POWERS

RELATION, DELTA = "add_or_remove_one", 1e-5


def chosen(noise, batches, epochs, epsilon, relation=RELATION):
    poisson = tacita.PoissonSampler(sample_rate=1 / batches, num_records=10_000)
    target = {"relation": relation, "epsilon": epsilon, "delta": DELTA}
    return choose_strategy(noise, poisson, lambda sampler: sampler.queries_for(epochs), **target)


def error(batches, epochs, epsilon, bands, power):
    form = CorrelatedGaussian(noise_multiplier=1.0, bands=bands, power=power)
    sampler = tacita.CyclicSampler(batches_per_cycle=batches, num_records=10_000, assignment="coin")
    strategy = Strategy(words="", sampler=sampler, form=form, queries=batches * epochs)
    return strategy.error(RELATION, epsilon, DELTA)


@pytest.mark.parametrize(
    ("batches", "epochs", "epsilon", "sampler"),
    [
        (100, 1, 1, tacita.PoissonSampler),  # epochs by coin gain 3 %, which is not worth their restrictions
        (10, 1, 1, tacita.AllocatedSampler),
        (10, 5, 4, tacita.AllocatedSampler),
        (100, 1, 8, tacita.CyclicSampler),
        (100, 5, 4, tacita.CyclicSampler),
        (1, 5, 1, tacita.PoissonSampler),
    ],
)
def test_auto_takes_the_least_predicted_error(batches, epochs, epsilon, sampler):
    strategy, words = chosen("auto", batches, epochs, epsilon)
    assert type(strategy.sampler) is sampler
    assert isinstance(strategy.form, CorrelatedGaussian) == (sampler is tacita.CyclicSampler)
    assert words.startswith(f"noise = {strategy.words}; predicted error")
    assert strategy.queries == batches * epochs


@pytest.mark.parametrize(
    ("batches", "relation", "sampler"),
    [
        (10, "zero_out_one", tacita.AllocatedSampler),
        (10, "replace_one", tacita.PoissonSampler),
        (100, RELATION, tacita.PoissonSampler),
    ],
)
def test_independent_noise_takes_epochs_by_coin_where_they_are_better(batches, relation, sampler):
    strategy, words = chosen("independent", batches, 1, 4, relation)
    assert type(strategy.sampler) is sampler
    assert strategy.form is tacita.GaussianMechanism
    assert "correlated" not in words


@pytest.mark.parametrize(("batches", "epochs", "epsilon"), [(20, 1, 1), (20, 1, 8), (20, 5, 4)])
def test_the_recommended_noise_is_near_the_best_by_calibrated_noise(batches, epochs, epsilon):
    noise = recommended_noise(batches * epochs, batches, relation=RELATION, epsilon=epsilon, delta=DELTA)
    each = [error(batches, epochs, epsilon, bands, power) for bands in (2, 8) for power in POWERS[1:-1:2]]
    assert error(batches, epochs, epsilon, noise.bands, noise.power) < 1.06 * min(each)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_several_passes_over_many_batches_take_a_banded_matrix(relation):
    strategy, words = chosen("auto", 100, 5, 8, relation)
    assert strategy.form == recommended_noise(500, 100, relation=relation, epsilon=8.0, delta=DELTA, banded_matrix=True)
    assert strategy.form.banded_matrix
    assert strategy.sampler.batches_per_cycle == strategy.form.bands
    assert strategy.sampler.sample_rate == 0.01
    assert strategy.queries == 500
    assert "bands of the matrix" in words


@pytest.mark.parametrize(("batches", "epochs", "epsilon"), [(100, 5, 4), (50, 2, 8)])
def test_the_recommended_banded_matrix_is_near_the_best(batches, epochs, epsilon):
    target = {"relation": RELATION, "epsilon": epsilon, "delta": DELTA}
    noise = recommended_noise(batches * epochs, batches, **target, banded_matrix=True)

    def error(bands, power):
        form = CorrelatedGaussian(noise_multiplier=1.0, bands=bands, power=power, banded_matrix=True)
        sampler = tacita.CyclicSampler(
            batches_per_cycle=bands, num_records=10_000, assignment="coin", turn_rate=bands / batches
        )
        return Strategy(words="", sampler=sampler, form=form, queries=batches * epochs).error(RELATION, epsilon, DELTA)

    each = [error(bands, power) for bands in (2, 3, 4, 6, 8, 16) for power in (0.4, 0.5, 0.6, 0.7)]
    assert error(noise.bands, noise.power) < 1.06 * min(each)


@pytest.mark.parametrize(("batches", "epochs", "epsilon"), [(100, 1, 4), (30, 5, 8)])
def test_errors_that_are_estimated_are_near_those_of_calibrated_noise(batches, epochs, epsilon):
    """Those of cyclic batches, by a search that looks at some numbers of classes alone."""
    _, words = chosen("auto", batches, epochs, epsilon)
    noise = recommended_noise(batches * epochs, batches, relation=RELATION, epsilon=epsilon, delta=DELTA)
    usual = Strategy(
        words="",
        sampler=tacita.PoissonSampler(sample_rate=1 / batches, num_records=10_000),
        form=tacita.GaussianMechanism,
        queries=batches * epochs,
    ).error(RELATION, epsilon, DELTA)
    told = float(re.search(r"([\d.]+) \(correlated[^)]*cyclic batches", words).group(1))
    assert told == pytest.approx(error(batches, epochs, epsilon, noise.bands, noise.power) / usual, rel=0.03)


def test_a_power_chosen_without_amplification_is_too_large_at_small_epsilon():
    noise, power = chosen("correlated", 100, 1, 1)[0].form, recommended_power(100, 100)
    assert noise.power < power
    assert error(100, 1, 1, noise.bands, noise.power) < 0.9 * error(100, 1, 1, 2, power)


def test_without_a_secret_group_the_choice_is_that_of_the_whole_session():
    noise = recommended_noise(1000, 100, relation="replace_one", epsilon=4.0, delta=DELTA)
    assert abs(noise.power - recommended_power(1000, 100, noise.bands)) <= 0.1 + 1e-9
    assert type(chosen("auto", 100, 1, 1, "replace_one")[0].sampler) is tacita.PoissonSampler


def test_the_error_counts_what_shares_the_target():
    strategy, _ = chosen("correlated", 10, 1, 4)
    event = tacita.accounting.GaussianSumEvent(
        relation=RELATION, sampling=tacita.accounting.FullBatchLaw(), max_contribution=(1.0,), noise_std=(2.0,)
    )
    beside = [tacita.accounting.Spend(event, 1)]
    assert strategy.error(RELATION, 4.0, DELTA, beside) > 1.05 * strategy.error(RELATION, 4.0, DELTA)


@pytest.mark.parametrize(("epsilon", "worse"), [(0.5, True), (8, False)])
def test_correlated_noise_that_leaves_more_error_is_said_before_it_is_used(epsilon, worse):
    """Words are the statement's, which is read when the budget is spent."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, words = chosen("correlated", 100, 1, epsilon)
    told = min(map(float, re.findall(r"([\d.]+) \(correlated", words)))
    assert (told > 1) == worse
    assert [f"predicts {told:.2f} times the error" in str(one.message) for one in said] == [True] * worse


def test_an_epoch_of_a_single_batch_is_refused():
    with pytest.raises(ValueError, match=r"needs two batches an epoch or more.*sample rate of 1 there is one"):
        chosen("correlated", 1, 5, 1)


@pytest.mark.parametrize(
    "wrong", [{"queries": 0}, {"batches": 1}, {"relation": "swap"}, {"epsilon": 0.0}, {"delta": 1.0}]
)
def test_wrong_settings_are_refused(wrong):
    settings = {"queries": 10, "batches": 10, "relation": RELATION, "epsilon": 1.0, "delta": 1e-5, **wrong}
    with pytest.raises(ValueError, match="must be"):
        recommended_noise(settings.pop("queries"), settings.pop("batches"), **settings)
