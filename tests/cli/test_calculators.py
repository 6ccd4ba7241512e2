"""``tacita epsilon`` and ``tacita noise``: the accountant's numbers, under a relation that is said."""

import json

import pytest

from tacita.accounting import (
    GaussianSumEvent,
    PoissonLaw,
    Spend,
    attack_accuracy,
    delta,
    epsilon,
    gaussian_epsilon,
    gaussian_mu,
)

SETTING = ("--sample-rate", "0.01", "--steps", "1000", "--delta", "1e-5")


def answer(tacita_command, *words):
    done = tacita_command(*words, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.parametrize(("relation", "moved"), [("add_or_remove_one", 1), ("replace_one", 2), ("zero_out_one", 1)])
def test_epsilon_is_the_accountants_under_every_relation(tacita_command, relation, moved):
    found = answer(tacita_command, "epsilon", *SETTING, "--noise-multiplier", "1.1", "--neighboring-relation", relation)
    event = GaussianSumEvent(
        relation=relation, sampling=PoissonLaw(0.01), max_contribution=(2.0,), noise_std=(2.0 * 1.1 * moved,)
    )
    expected = epsilon([Spend(event, 1000)], 1e-5)
    assert found["epsilon"] == pytest.approx(expected.epsilon, rel=1e-12)
    assert found["neighboring_relation"] == relation
    assert found["noise_std_over_max_grad_norm"] == 1.1 * moved
    assert found["attack_accuracy"] == pytest.approx((1 + delta([Spend(event, 1000)], 0.0).delta) / 2, rel=1e-3)
    assert found["attack_accuracy"] < attack_accuracy(found["epsilon"], 1e-5) - 0.1
    assert 0 < found["gdp_mu"] < gaussian_mu(found["epsilon"], 1e-5) * 1.1
    assert set(found["same_noise_under"]) | {relation} == {"add_or_remove_one", "replace_one", "zero_out_one"}


def test_the_same_noise_is_worth_less_under_replace_one(tacita_command):
    words = ("epsilon", "--sample-rate", "1", "--steps", "1", "--delta", "1e-5", "--noise-multiplier", "3")
    found = answer(tacita_command, *words)
    assert found["epsilon"] == pytest.approx(gaussian_epsilon(1 / 3, 1e-5), rel=1e-9)
    assert found["same_noise_under"]["replace_one"] == pytest.approx(gaussian_epsilon(2 / 3, 1e-5), rel=1e-9)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_noise_is_the_inverse_and_never_too_little(tacita_command, relation):
    target = ("--epsilon", "2", "--neighboring-relation", relation)
    found = answer(tacita_command, "noise", *SETTING, *target)
    assert 2 * 0.998 <= found["epsilon"] <= 2
    back = answer(
        tacita_command,
        *("epsilon", *SETTING, "--noise-multiplier", repr(found["noise_multiplier"])),
        *("--neighboring-relation", relation),
    )
    assert back == found


def test_the_table_says_the_relation(tacita_command):
    done = tacita_command("epsilon", *SETTING, "--noise-multiplier", "1.1")
    assert "<= 1.516 at delta 1e-05" in done.out
    assert "add_or_remove_one: one record is there or not" in done.out
    assert "under replace_one: one record is exchanged for any other" in done.out
    assert "is right at most 57.1 % of the time" in done.out


def test_a_printed_noise_is_never_less_than_what_was_computed(tacita_command):
    done = tacita_command("epsilon", *SETTING, "--noise-multiplier", "1.00000004")
    assert "noise multiplier  1.00001 x sensitivity C, a noise_std of 1.00001 C" in done.out
    given = tacita_command("epsilon", *SETTING, "--noise-multiplier", "1.1")
    assert "noise multiplier  1.1 x sensitivity C, a noise_std of 1.1 C" in given.out  # as docs/statement.md has it


def test_next_to_no_noise_has_an_enormous_epsilon_and_no_error(tacita_command):
    words = ("--sample-rate", "0.5", "--steps", "100000", "--delta", "1e-5", "--noise-multiplier", "0.01")
    full = ("--sample-rate", "1", *words[2:])
    sampled, whole = (answer(tacita_command, "epsilon", *one)["epsilon"] for one in (words, full))
    assert 1e8 < sampled <= whole * (1 + 1e-9)


def test_a_wrong_epsilon_is_named_as_the_option_is(tacita_command):
    done = tacita_command("noise", *SETTING, "--epsilon", "-1")
    assert done.err.startswith("tacita: error: epsilon must be a finite number > 0")


def test_without_enough_noise_there_is_no_epsilon(tacita_command):
    found = answer(tacita_command, "epsilon", *SETTING, "--noise-multiplier", "1e-9")
    assert found["epsilon"] is None or found["epsilon"] > 1e6
    assert found["attack_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--sample-rate", "1.5"), "sample_rate must be in (0, 1]"),
        (("--steps", "0"), "steps must be an integer >= 1"),
        (("--delta", "1"), "delta must be in (0, 1)"),
        (("--noise-multiplier", "0"), "noise_multiplier must be a finite number > 0"),
    ],
)
def test_wrong_settings_are_one_line(tacita_command, wrong, named):
    given = dict(zip(SETTING[::2], SETTING[1::2], strict=True)) | {"--noise-multiplier": "1.1"} | dict([wrong])
    done = tacita_command("epsilon", *(word for pair in given.items() for word in pair))
    assert done.code == 2
    assert named in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("gone", ["--sample-rate", "--steps", "--delta", "--epsilon"])
def test_nothing_is_chosen_for_the_user(tacita_command, gone):
    words = ["noise", *SETTING, "--epsilon", "2"]
    i = words.index(gone)
    done = tacita_command(*words[:i], *words[i + 2 :])
    assert done.code == 2
    assert "is missing: give" in done.err


@pytest.mark.parametrize("steps", ["1e3", "1_000", "1000", "1E+3", "1000.0"])
def test_a_whole_number_may_have_an_exponent(tacita_command, steps):
    asked = ["--sample-rate", "0.01", "--noise-multiplier", "1.1", "--delta", "1e-5"]
    done = tacita_command("epsilon", *asked, "--steps", steps)
    assert done.code == 0
    assert "1,000, each with a sample rate" in done.out
    noise = tacita_command("noise", "--sample-rate", "0.01", "--epsilon", "2", "--delta", "1e-5", "--steps", steps)
    assert "1,000, each with a sample rate" in noise.out


@pytest.mark.parametrize("steps", ["1e2.5", "1.5", "many", "1e999", "nan", "inf", "1e-3"])
def test_what_is_no_whole_number_is_refused_with_words(tacita_command, steps):
    asked = ["--sample-rate", "0.01", "--noise-multiplier", "1.1", "--delta", "1e-5"]
    done = tacita_command("epsilon", *asked, "--steps", steps)
    assert done.code == 2
    assert f"--steps: it must be a whole number, such as 1000 or 1e3, got {steps!r}." in done.err


@pytest.mark.filterwarnings("error")
def test_an_absurd_number_of_steps_warns_of_nothing(tacita_command):
    words = ("--sample-rate", "0.01", "--steps", str(10**18), "--delta", "1e-5", "--noise-multiplier", "1")
    done = tacita_command("epsilon", *words)
    assert (done.code, done.err) == (0, "")
    assert "may be right more than 99.99 % of the time afterwards, having seen everything" in done.out
