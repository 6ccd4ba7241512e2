"""The statement: every number is the ledger's, and what is not guaranteed comes first."""

import json
import math

import pytest

from tacita.accounting import (
    ConditionalEvent,
    CoupledEvent,
    FixedSizeLaw,
    FullBatchLaw,
    GaussianSumEvent,
    HardenedEvent,
    HistogramGaussianEvent,
    LaplaceEvent,
    Part,
    PoissonLaw,
    Spend,
    attack_accuracy,
    epsilon,
)
from tacita.ledger import Ledger, statement
from tacita.ledger.run_sections import risk_in_words
from tacita.ledger.sections import write_text
from tacita.ledger.text_lines import rounded_up
from tacita.ledger.verdict import Verdict, verdict

DELTA = 1e-5
UNIT = "one row = one patient"
TRAIN = GaussianSumEvent(
    relation="add_or_remove_one", max_contribution=(2.0,), noise_std=(2.2,), sampling=PoissonLaw(0.02)
)
COUNTS = HistogramGaussianEvent(relation="add_or_remove_one", max_contribution=(2.0,), noise_std=(40.0,))


def book(path=None, relation="add_or_remove_one", **cap):
    return Ledger(path, neighboring_relation=relation, privacy_unit=UNIT, **cap)


@pytest.fixture
def ledger(tmp_path):
    """Bounds were bought, and 40 of 150 queries of training made."""
    with book(tmp_path / "ledger.jsonl") as ledger:
        bounds = ledger.register(COUNTS, planned_queries=1, purpose="bounds")
        train = ledger.register(TRAIN, planned_queries=150)
        for session, queries in ((bounds, 1), (train, 40)):
            session.open()
            session.reserve(0, queries - 1)
            for query in range(queries):
                session.spend(query, "aa")
        ledger.flush()
        yield ledger


FIELDS = {
    *("epsilon", "epsilon_spent", "delta", "neighboring_relation", "privacy_unit", "sampler", "sample_rate"),
    *("planned_queries", "queries_made", "noise_multiplier", "noise_std", "max_grad_norm", "accountant"),
    *("secure_randomness", "ledger_sha256", "ledger_lines", "holdout_score", "purchases", "chosen_by_tacita"),
    *("caveats", "assumptions", "conditions", "sessions"),
}


def test_the_numbers_are_the_ledgers(ledger):
    fields = statement(ledger, DELTA).to_json()
    assert set(fields) >= FIELDS
    assert fields["epsilon"] == ledger.epsilon(DELTA)
    assert fields["epsilon_spent"] == ledger.epsilon_spent(DELTA) < fields["epsilon"]
    assert (fields["ledger_sha256"], fields["ledger_lines"]) == (ledger.head, ledger.anchor.count)
    assert (fields["delta"], fields["privacy_unit"], fields["neighboring_relation"]) == (
        DELTA,
        UNIT,
        "add_or_remove_one",
    )
    assert fields["accountant"] == ledger.bound(DELTA).accountant
    assert fields["secure_randomness"] is True


def test_the_fields_of_one_session_are_those_of_training(ledger):
    fields = statement(ledger, DELTA).to_json()
    wanted = {"sample_rate": 0.02, "planned_queries": 150, "queries_made": 40, "noise_std": 2.2, "max_grad_norm": 2.0}
    assert {name: fields[name] for name in wanted} == wanted
    assert fields["noise_multiplier"] == pytest.approx(1.1)
    assert "Poisson" in fields["sampler"]
    assert [session["id"] for session in fields["sessions"]] == ["bounds-1", "train-1"]
    assert fields["sessions"][0]["event"] == COUNTS.describe()


@pytest.mark.parametrize(
    ("event", "noise_multiplier", "sample_rate"),
    [
        (
            GaussianSumEvent(
                sampling=FullBatchLaw(), relation="replace_one", max_contribution=(1.0,), noise_std=(3.0,)
            ),
            1.5,
            None,
        ),
        (
            GaussianSumEvent(
                relation="replace_one", max_contribution=(1.0,), noise_std=(3.0,), sampling=FixedSizeLaw(10, 1000)
            ),
            1.5,
            0.01,
        ),
        (HistogramGaussianEvent(relation="replace_one", max_contribution=(1.0,), noise_std=(3.0,)), 3 / 2**0.5, None),
        (
            GaussianSumEvent(
                sampling=FullBatchLaw(), relation="replace_one", max_contribution=(3.0, 4.0), noise_std=(5.0, 5.0)
            ),
            0.5,
            None,
        ),
        (LaplaceEvent(relation="replace_one", l1_sensitivity=1.0, scale=5.0), None, None),
    ],
)
def test_the_noise_multiplier_is_noise_over_sensitivity(event, noise_multiplier, sample_rate):
    ledger = book(relation="replace_one")
    ledger.register(event, planned_queries=1)
    fields = statement(ledger, DELTA).to_json()
    assert fields["noise_multiplier"] == pytest.approx(noise_multiplier)
    assert fields["sample_rate"] == sample_rate


def test_a_choice_registered_before_the_training_is_not_taken_for_it():
    with book() as ledger:
        ledger.register(
            LaplaceEvent(relation="add_or_remove_one", l1_sensitivity=1.0, scale=4.0),
            planned_queries=10,
            purpose="select",
        )
        ledger.register(TRAIN, planned_queries=150)
        assert statement(ledger, DELTA).to_json()["planned_queries"] == 150


def test_it_can_be_read_by_an_officer(ledger):
    text = str(statement(ledger, DELTA, chosen_by_tacita=["sample_rate = 0.02"], purchases=["bounds of 3 columns"]))
    assert max(map(len, text.splitlines())) <= 100
    for words in (
        UNIT,
        "add_or_remove_one",
        f"epsilon <= {rounded_up(ledger.epsilon(DELTA))} at delta = 1e-05",
        f"epsilon <= {rounded_up(ledger.epsilon_spent(DELTA))} at the same delta",
        "40 of 150 planned queries made",
        "sample_rate = 0.02",
        "bounds of 3 columns",
        "each record enters each query by an independent secret coin",
        "holds the key file",
        "floating-point",
        "several rows",
        ledger.head,
    ):
        assert words in " ".join(text.split()), words
    assert text.startswith("PRIVACY STATEMENT")


def test_what_is_printed_is_still_a_bound():
    for value in (1.00001, 3.99999, 0.000123451, 17.8566, 1e-300, 123456.7):
        assert value <= float(rounded_up(value)) <= value * 1.001


def test_the_numbers_of_the_text_are_bounds(ledger):
    stated = statement(ledger, DELTA).to_json()
    rows = {"value": 2000, "how": "declared"}
    text = write_text({**stated, "epsilon": 2.00001, "epsilon_spent": 1.00001, "rows": rows})
    words = " ".join(text.split())
    assert "with epsilon <= 2.001 at delta" in words
    assert "epsilon <= 1.001 at the same delta, for the queries that may have been released" in words
    assert "among 2,000 rows, one or more with probability 2 % at most" in words
    assert "one or more with probability 2.01 % at most" in " ".join(
        write_text({**stated, "rows": {**rows, "value": 2001}}).split()
    )


@pytest.mark.parametrize(
    ("relation", "guessed"),
    [
        ("add_or_remove_one", "whether one unit is in the data"),
        ("replace_one", "which of two possible values the data of one unit have"),
        ("zero_out_one", "whether the contribution of one unit is in the sums"),
    ],
)
def test_the_risk_is_said_in_plain_words(relation, guessed):
    ledger = book(relation=relation)
    event = GaussianSumEvent(sampling=FullBatchLaw(), relation=relation, max_contribution=(1.0,), noise_std=(9.0,))
    ledger.register(event, planned_queries=1)
    words = statement(ledger, DELTA)
    found = words.to_json()["attack_accuracy"]
    assert found == pytest.approx((1 + ledger.delta(0.0)) / 2, rel=1e-8)
    assert found < attack_accuracy(ledger.epsilon(DELTA), DELTA) - 0.05
    text = " ".join(words.text.split())
    said = f"50 : 50 before about {guessed} is right at most {rounded_up(100 * found, 3)} % of the time"
    assert said in text
    assert ("as with 2 epsilon" in text) is (relation != "replace_one")
    stated = {"neighboring_relation": relation, "attack_accuracy": found}
    assert said in risk_in_words(stated, Verdict("private"))


def test_the_page_comes_before_its_appendix_and_terms_are_explained_once(ledger):
    page, appendix = statement(ledger, DELTA).text.split("\nAPPENDIX\n")
    assert "Signature" in page
    assert "Sessions" not in page.split("\n")
    glossary = appendix.split("\nGlossary\n")[1]
    for meaning in ("Poisson sampling lets", "noise_std is", "max_contribution is", "Epsilon is", "A session is"):
        assert glossary.count(meaning) == 1
    assert "Shuffled epochs" not in appendix


def test_the_verdict_is_for_programs(ledger):
    assert statement(ledger, DELTA).to_json()["verdict"] == "private"
    assert statement(book(), DELTA).to_json()["verdict"] == "not private"
    conditional = book()
    event = ConditionalEvent(relation="add_or_remove_one", inner=TRAIN, condition_text="the Hessian is at most 3")
    conditional.register(event, planned_queries=150)
    words = statement(conditional, DELTA)
    assert words.to_json()["verdict"] == "private under conditions"
    assert "everything that was released, if the conditions hold" in " ".join(words.text.split())
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[: -len(whole.splitlines()[-1]) - 1])
    found = statement(Ledger.load(ledger.path), DELTA).to_json()
    assert (found["verdict"], found["attack_accuracy"]) == ("ledger not intact", None)
    ledger.path.write_bytes(whole)


def test_test_streams_are_said_first():
    ledger = book()
    ledger.register(TRAIN, planned_queries=10, secure_randomness=False)
    words = statement(ledger, DELTA)
    assert words.to_json()["verdict"] == "not private"
    assert words.to_json()["attack_accuracy"] is None
    assert words.text.splitlines()[0].startswith("NOT PRIVATE (test streams)")
    assert words.to_json()["secure_randomness"] is False


@pytest.mark.parametrize("secure", [(False, True), (True, False), (True, False, True)], ids=str)
def test_one_session_with_a_test_stream_is_enough(secure):
    ledger = book()
    for one in secure:
        ledger.register(TRAIN, planned_queries=10, secure_randomness=one)
    fields = statement(ledger, DELTA).to_json()
    assert fields["secure_randomness"] is False
    assert fields["verdict"] == "not private"


def test_what_failures_take_of_delta_is_of_both_data_sets_and_of_all_sessions():
    """The text promises that it is part of delta: what is left of delta then suffices for epsilon."""
    ledger, failures = book(), (1e-7, 3e-7)
    for failure in failures:
        event = CoupledEvent(relation="add_or_remove_one", inner=COUNTS, failure_probability=failure)
        ledger.register(event, planned_queries=1)
    fields = statement(ledger, DELTA).to_json()
    assert fields["failure_probability"] == pytest.approx(sum(failures))
    assert fields["failure_delta"] == pytest.approx(sum(failures) * (1 + math.exp(fields["epsilon"])))
    without = epsilon([Spend(COUNTS, 1)] * 2, DELTA - fields["failure_delta"]).epsilon
    assert fields["epsilon"] == pytest.approx(without, rel=1e-5)


def test_no_noise_is_no_guarantee():
    ledger = book()
    silent = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(math.inf,), noise_std=(0.0,)
    )
    session = ledger.register(silent, planned_queries=1)
    session.open()
    session.reserve(0, 0)
    session.spend(0)
    words = statement(ledger, DELTA)
    fields = words.to_json()
    assert words.text.startswith("NO PRIVACY GUARANTEE")
    assert "epsilon = infinity" in words.text
    assert (fields["epsilon"], fields["epsilon_spent"], fields["non_private"]) == (None, None, True)
    assert (fields["verdict"], fields["attack_accuracy"]) == ("not private", None)
    assert (fields["max_grad_norm"], fields["noise_std"]) == ("inf", 0.0)


def test_a_conditional_guarantee_has_no_unconditional_epsilon():
    ledger = book()
    event = ConditionalEvent(relation="add_or_remove_one", inner=TRAIN, condition_text="the Hessian is at most 3")
    ledger.register(event, planned_queries=150)
    words = statement(ledger, DELTA)
    fields = words.to_json()
    assert fields["epsilon"] is None
    assert fields["non_private"] is False
    assert fields["conditional_epsilon"] == ledger.conditional_bound(DELTA).epsilon
    assert fields["conditions"] == ["the Hessian is at most 3"]
    assert fields["max_grad_norm"] == 2.0
    assert "No unconditional epsilon" in words.text
    assert "the Hessian is at most 3" in words.text


def test_a_ledger_that_was_changed_is_said_first(ledger):
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[: -len(whole.splitlines()[-1]) - 1])
    words = statement(Ledger.load(ledger.path), DELTA)
    assert words.text.startswith("LEDGER NOT INTACT: the ledger has ")
    assert words.to_json()["ledger_verified"] is False
    ledger.path.write_bytes(whole)


def test_a_statement_is_an_anchor(ledger):
    words = statement(ledger, DELTA)
    found = ledger.verify(words.anchor)
    assert (found.ok, found.anchor) == (True, "statement")
    assert words.anchor[:2] == (words.to_json()["ledger_lines"], words.to_json()["ledger_sha256"])


def test_a_statement_says_what_was_when_it_was_made(ledger):
    words = statement(ledger, DELTA)
    before = words.text, words.to_bytes()
    ledger.sessions[1].close()
    assert (words.text, words.to_bytes()) == before


def test_a_crashed_session_counts_its_reservation(tmp_path):
    with book(tmp_path / "ledger.jsonl") as ledger:
        session = ledger.register(TRAIN, planned_queries=150)
        session.open()
        session.reserve(0, 9)
        session.spend(0, "aa")
    text = statement(Ledger.load(tmp_path / "ledger.jsonl"), DELTA).text
    assert "10 counted as spent" in " ".join(text.split())


@pytest.mark.parametrize("source", [None, {"epsilon": 1.0}, TRAIN])
def test_there_is_no_statement_without_a_ledger(source):
    with pytest.raises(TypeError, match="made from a Ledger"):
        statement(source, DELTA)
    with pytest.raises(TypeError, match="made from a Ledger"):
        statement(source, DELTA)


def test_only_a_ledger_with_a_file_is_verified_by_a_command(ledger):
    """In memory there is nothing that the command could read."""
    pages = [" ".join(statement(one, DELTA).text.split()) for one in (ledger, book())]
    assert ['Verified: by "tacita statement"' in page for page in pages] == [True, False]
    assert "Verified: as this was stated: that the ledger's lines" in pages[1]
    assert "has left no file to verify" in pages[1]


def test_an_empty_ledger_says_nothing_of_any_model():
    words = statement(book(), DELTA)
    assert "no session is registered" in words.text
    assert "epsilon <=" not in words.text
    assert words.to_json()["sessions"] == []


def test_delta_is_never_chosen(ledger):
    with pytest.raises(TypeError):
        statement(ledger)
    with pytest.raises(ValueError, match="delta must be in"):
        statement(ledger, 1.0)


def test_further_fields_are_printed_and_cannot_replace_the_ledgers(ledger):
    words = statement(ledger, DELTA, dataset_name="patients", holdout_score={"accuracy": 0.8}, caveats=["A note."])
    assert words.to_json()["dataset_name"] == "patients"
    assert words.to_json()["holdout_score"] == {"accuracy": 0.8}
    assert "A note." in words.to_json()["caveats"]
    assert "dataset_name: patients" in words.text
    with pytest.raises(ValueError, match="'epsilon' is a field that the statement takes from the ledger"):
        statement(ledger, DELTA, epsilon=0.1)
    with pytest.raises(ValueError, match="plain JSON"):
        statement(ledger, DELTA, model=object())


def test_the_document_is_strict_json(ledger):
    def refuse(name):
        raise AssertionError(name)

    document = statement(ledger, DELTA, limit=math.inf).to_bytes()
    assert json.loads(document, parse_constant=refuse)["limit"] == "inf"


def test_parts_and_shares_are_named():
    ledger = book()
    share = ledger.register_share(0.5, 1e-6)
    ledger.register(TRAIN, planned_queries=10, part=Part(split="phases", kind="coin", index=2))
    quiet = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(99.0,)
    )
    ledger.register(quiet, planned_queries=1, purpose="score", share=share)
    text = " ".join(statement(ledger, DELTA).text.split())
    assert "part 2 of split 'phases'" in text
    assert "paid from share-1" in text
    assert "share-1: set aside, epsilon 0.5 at delta 1e-06" in text


def test_sessions_that_are_not_hardened_are_named_beside_one_that_is():
    ledger = book()
    hard = HardenedEvent(relation=TRAIN.relation, inner=TRAIN, sums="alone")
    for event, purpose in ((COUNTS, "bounds"), (hard, "train"), (COUNTS, "score")):
        ledger.register(event, planned_queries=1, purpose=purpose)
    (said,) = [caveat for caveat in statement(ledger, DELTA).to_json()["caveats"] if "hardened" in caveat]
    assert "does not cover bounds-1, score-1: attacks on floating-point noise are out of scope there" in said


def test_a_statement_of_a_large_epsilon_says_so():
    ledger = book()
    loud = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(0.1,)
    )
    ledger.register(loud, planned_queries=10)
    assert "next to nothing" in " ".join(statement(ledger, DELTA).text.split())


@pytest.mark.parametrize(
    ("event", "delta", "says"),
    [
        (TRAIN, 0.009, None),  # the number of records is not the ledger's to know
        (TRAIN, 0.01, "Delta is 0.01: a method that publishes every record with that probability"),
        (TRAIN, 0.5, "Delta is 0.5: a method that publishes every record with that probability"),
        ("declared", 0.00049, None),
        ("declared", 0.0005, "Delta is 0.0005, which is not below 1 / 2,000, one over the number of records: a method"),
        ("declared", 0.5, "Delta is 0.5, which is not below 1 / 2,000, one over the number of records: a method"),
        ("fixed size", 0.00099, None),
        ("fixed size", 0.001, "Delta is 0.001, which is not below 1 / 1,000, one over the number of records: a method"),
    ],
)
def test_a_statement_at_a_large_delta_says_what_it_allows(event, delta, says):
    num_units = 2000 if event == "declared" else None
    event = TRAIN if event == "declared" else event
    if event == "fixed size":
        event = GaussianSumEvent(
            sampling=FixedSizeLaw(batch_size=10, num_records=1000),
            relation="replace_one",
            max_contribution=(1.0,),
            noise_std=(9.0,),
        )
    ledger = book(relation=event.relation)
    ledger.register(event, planned_queries=2)
    words = statement(ledger, delta, num_units=num_units)
    caveats = [caveat for caveat in words.to_json()["caveats"] if caveat.startswith("Delta is")]
    assert [caveat[: len(says)] for caveat in caveats] == [says] if says else not caveats
    warnings = words.to_json()["verdict_warnings"]  # what every short view shows beside "private"
    assert warnings == (["delta is so large that whole records may be published"] if says else [])


def test_the_rows_of_a_split_by_position_are_public():
    ledger = book(relation="replace_one")
    event = GaussianSumEvent(sampling=FullBatchLaw(), relation="replace_one", max_contribution=(1.0,), noise_std=(9.0,))
    part = Part(split="phases", kind="range", index=1, start=100, stop=4000)
    ledger.register(event, planned_queries=2, part=part)
    found = {
        delta: any("1 / 4,000, one over" in one for one in statement(ledger, delta).to_json()["caveats"])
        for delta in (2.4e-4, 2.5e-4)
    }
    assert found == {2.4e-4: False, 2.5e-4: True}


def test_a_whole_number_reads_as_one():
    words = statement(book(), DELTA, rows={"value": 302.0, "how": "bought"}, many=2_001_234.0, share=0.25)
    text = " ".join(words.text.split())
    assert "rows: value: 302; how: bought" in text
    assert "many: 2001234" in text
    assert "share: 0.25" in text


@pytest.mark.parametrize(
    ("score", "verdict"),
    [
        (None, "private"),
        ({"value": 0.8, "private": True}, "private"),
        ({"value": 0.8, "private": False, "of_rows": "public"}, "private"),
        ({"value": 0.8, "private": False, "of_rows": "private"}, "private model, exact score"),
        ({"value": 0.8, "private": False}, "private model, exact score"),  # nobody said that the rows are public
    ],
)
def test_an_exact_score_has_a_verdict_of_its_own(ledger, score, verdict):
    words = statement(ledger, DELTA, holdout_score=score)
    assert words.to_json()["verdict"] == verdict
    assert words.to_json()["attack_accuracy"] == statement(ledger, DELTA).to_json()["attack_accuracy"]
    assert words.text.startswith("EXACT SCORE: ") == verdict.endswith("exact score")


def test_the_price_of_a_choice_by_hand_stands_first_and_is_rounded_up(ledger):
    stated = statement(ledger, DELTA).to_json()
    first = " ".join(statement(ledger, DELTA, chosen_among=3).text.split("\n\n")[0].split())
    total = float(first.partition("epsilon <= ")[2].partition(" ")[0])
    assert 3 * stated["epsilon"] <= total < 3 * stated["epsilon"] * 1.001
    assert first.startswith("CHOSEN AMONG 3 RUNS")
    assert first.endswith(f"at delta = {3 * DELTA:g}.")
    assert "CHOSEN" not in statement(ledger, DELTA).text
    many = statement(ledger, DELTA, chosen_among=math.ceil(1 / DELTA)).text
    assert "nothing is guaranteed at such a delta" in " ".join(many.split())


def test_nothing_is_said_of_runs_without_noise_together():
    ledger = book()
    silent = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(0.0,)
    )
    ledger.register(silent, planned_queries=1)
    assert "Nothing is guaranteed of these runs together." in " ".join(
        statement(ledger, DELTA, chosen_among=2).text.split()
    )


@pytest.mark.parametrize(
    ("delta", "more", "warns"),
    [
        (DELTA, {}, ""),
        (0.01, {}, "delta is so large"),
        (1e-3, {"rows": {"value": 1000, "how": "public"}}, "delta is so large"),
        (1e-3, {"rows": {"value": 999, "how": "public"}}, ""),
        (1e-3, {"rows": {"value": None, "how": "protected"}}, ""),
        (DELTA, {"headline": "NOTHING LEARNED: no column stood out of the noise."}, "nothing was learned"),
    ],
)
def test_what_stands_beside_private_is_said_everywhere_and_no_badge_is_green(ledger, delta, more, warns):
    fields = statement(ledger, delta, **more).to_json()
    assert fields["verdict"] == "private"
    assert [warns in one for one in fields["verdict_warnings"]] == [True] * bool(warns)
    found = verdict(fields)
    assert (found.good, found.guaranteed, list(found.warnings)) == (not warns, True, fields["verdict_warnings"])
    assert warns in found.in_words("Private, as stated")
