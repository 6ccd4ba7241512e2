"""What a statement says of its run: who and why as given, versions, files, columns, risk, and whether it is private."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from tacita.accounting import attack_accuracy, gaussian_mu
from tacita.tables import TableSettings, check_run, train_table
from tests.tables.forging import resealed

ABOUT = {
    "responsible": "A. Clerk",
    "contact": "privacy@example.org",
    "data_period": "2024",
    "purpose": "to plan beds",
    "recipients": "the ward",
    "retention": "two years",
}
TRAIN = ("train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--drop", "patient")
QUICK = (*TRAIN, "--sample-rate", "0.5", "--queries", "4")


def words(run) -> str:
    return " ".join(run.statement.split())


def test_the_page_says_what_an_annex_needs(settings, table):
    run = train_table(settings(about=ABOUT, dataset_name="patients", epsilon=1.0, delta=1e-5))
    page, appendix = run.statement.split("\nAPPENDIX\n")
    page = " ".join(page.split())
    assert run.fields["about"] == ABOUT
    for said in (*ABOUT.values(), run.fields["run"]["id"], "2023-11-14", "patients (the name that was given"):
        assert said in page
    versions = run.fields["run"]["versions"]
    assert versions["torch"] == torch.__version__
    assert f"dp_accounting {version('dp-accounting')}" in page
    assert f"tacita {version('tacita')}" in page
    assert "Not given" not in page
    rows = run.fields["rows"]["value"]
    assert f"about {rows:,.0f} rows (bought)" in page
    assert "Covered: model.safetensors" in page
    assert "Must stay: the table itself; the folder private/" in page
    assert "Signature: ____" in page
    for name in run.fields["columns"]["used"]:
        assert name in appendix
    assert check_run("run").faults == ()


def test_what_was_not_given_is_said(settings, table):
    run = train_table(settings(about={"purpose": "to plan beds"}))
    assert "Not given: made by, contact, period, recipients, retention." in words(run)
    assert "about" not in train_table(settings(output="other")).fields


def test_the_risk_is_that_of_the_stated_epsilon(settings, table):
    run = train_table(settings(epsilon=1.0, delta=1e-5))
    found = run.fields["attack_accuracy"]
    assert 0.7309 < attack_accuracy(run.fields["epsilon"], 1e-5) < 0.7311  # what epsilon and delta alone say
    assert 0.5529 < found < 0.5531
    assert run.fields["attack_accuracy_from"] == "the whole privacy curve"
    assert run.fields["gdp_mu"] == pytest.approx(gaussian_mu(run.fields["epsilon"], 1e-5), rel=2e-3)
    assert "is right at most 55.3 % of the time" in words(run)
    assert run.fields["verdict"] == "private"


def test_columns_are_counted_and_listed(settings, table):
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0] + ",note", *(f"{line},unique{i}" for i, line in enumerate(lines[1:]))]))
    run = train_table(settings())
    columns = run.fields["columns"]
    assert (columns["without_signal"], columns["dropped_by_option"]) == (["note"], ["patient"])
    assert columns["target"] == ["label"]
    page, appendix = run.statement.split("\nAPPENDIX\n")
    assert "note" not in page.replace("noted", "")
    assert "without signal (1): note" in appendix
    assert "1 without signal, 1 dropped by option" in " ".join(page.split())


def test_exact_scores_are_named_as_not_anonymised(settings, table):
    Path("public.csv").write_text(table.read_text())
    public = train_table(settings(output="public", test_file="public.csv"))
    exact = train_table(settings(output="exact", non_private_holdout=True))
    assert any("public.csv, declared public" in one for one in public.fields["not_anonymised"])
    assert any(one.startswith("The held-out rows") for one in exact.fields["not_anonymised"])
    assert "The held-out rows of the table: their exact score stands in statement.txt" in words(exact)
    assert "after seeing everything that was released but the held-out score" in words(exact)
    assert "whoever sees everything that was released but the held-out score, and knows" in words(exact)


def test_a_text_in_place_of_the_table_about_is_refused(table, tacita_command):
    Path("given.toml").write_text('about = "Ward analytics"\n')
    done = tacita_command(*QUICK, "--output", "run", "--config", "given.toml")
    assert done.code == 2
    assert "about must be a table of texts, got 'Ward analytics'" in done.err


@pytest.mark.parametrize("field", ["run", "about", "columns", "files_policy", "not_anonymised", "attack_accuracy"])
def test_the_seal_covers_what_was_given(settings, table, field):
    run = train_table(settings(about=ABOUT))
    path = run.folder / "statement.json"
    stated = json.loads(path.read_bytes())
    path.write_text(json.dumps({**stated, field: 0.5 if field == "attack_accuracy" else {}}))
    assert check_run(run.folder).faults


def test_a_smaller_risk_does_not_follow_from_the_ledger(settings, table):
    """Even where the statement was sealed anew."""
    run = train_table(settings())
    path = run.folder / "statement.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "attack_accuracy": 0.5}))
    resealed(run.folder)
    assert any("does not follow from the ledger: attack_accuracy" in fault for fault in check_run(run.folder).faults)


def test_a_seed_repeats_a_run_and_is_not_private(table, tacita_command):
    done = tacita_command(*QUICK, "--output", "a", "--seed", "7")
    assert done.code == 1
    assert "tacita: the verdict is: not private. Exit code 1." in done.err
    assert done.out.startswith("NOT PRIVATE (test streams): the noise of a session came from a seed")
    assert "may be right 100 % of the time afterwards: no limit is guaranteed" in " ".join(done.out.split())
    tacita_command(*QUICK, "--output", "b", "--seed", "7")
    tacita_command(*QUICK, "--output", "c", "--seed", "8")
    models = [Path(run, "model.safetensors").read_bytes() for run in "abc"]
    assert models[0] == models[1] != models[2]
    stated = json.loads(Path("a/statement.json").read_bytes())
    assert (stated["verdict"], stated["attack_accuracy"]) == ("not private", None)
    assert TableSettings.from_toml(Path("a/config.toml").read_text()).seed == 7


def test_options_come_before_the_table_about(table, tacita_command):
    Path("given.toml").write_text('[about]\npurpose = "to plan beds"\ncontact = "nobody"\n')
    done = tacita_command(*QUICK, "--output", "run", "--config", "given.toml", "--contact", "privacy@example.org")
    assert done.code == 0
    stated = json.loads(Path("run/statement.json").read_bytes())
    assert stated["about"] == {"purpose": "to plan beds", "contact": "privacy@example.org"}
    again = TableSettings.from_toml(Path("run/config.toml").read_text())
    assert again.about == stated["about"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"about": {"owner": "me"}}, "about must hold responsible, contact.*got 'owner'"),
        ({"about": {"contact": "a\nb"}}, "about.contact must be one line of text"),
        ({"about": {"contact": " "}}, "about.contact must be one line of text"),
        ({"about": {"contact": 3}}, "about.contact must be one line of text"),
        ({"about": {"contact": "\x1b[1m"}}, "about.contact must be one line of text"),
        ({"about": "me"}, "about must be a table of texts"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"seed": True}, "seed must be an integer"),
    ],
)
def test_wrong_settings(settings, wrong, named):
    with pytest.raises(ValueError, match=named):
        settings(**wrong)
