"""The page about runs: numbers of the statement, tables behind charts, nothing loaded, nothing hidden."""

import itertools
import json
import math
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tacita.accounting import epsilon, gaussian_delta, gaussian_epsilon
from tacita.ledger import Ledger
from tacita.ledger.statement import main_session
from tacita.ledger.text_lines import rounded_up
from tacita.random import Randomness
from tacita.report.run_charts import MOST_SHAPES, charts_of, score_charts, shape_charts
from tacita.report.run_numbers import RATES, RunNumbers
from tacita.report.run_page import WITHHELD, report_page
from tacita.tables import train_table
from tacita.tables.editing import edit_run
from tacita.tables.run_audit import UNREADABLE, RunAudit
from tacita.tables.shapes import in_json, lowest_and_highest, units
from tests.report.browser import CHROMIUM, accessibility, axe_script, height_of_first_page, lost_in_print, opened

pytest.importorskip("matplotlib")
HOSTILE = '<script>alert("x")</script> & "quoted"'


class Page(HTMLParser):
    """What a test asks of a page: attributes, texts by tag, and tags that are open at its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "img"):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append((self._open[-1] if self._open else "", data))

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(words for tag, words in self.words if tag != "style").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs on one table, the first with hostile words."""
    from tests.conftest import table_text

    place = tmp_path_factory.mktemp("reported")
    before = Path.cwd()
    os.chdir(place)
    try:
        (place / "table.csv").write_text(table_text())
        from tacita.tables import TableSettings

        quick = {"data": "table.csv", "target": "label", "delta": 1e-3, "drop": ("patient",)}
        quick |= {"sample_rate": 0.5, "queries": 4, "epsilon": 4.0}
        train_table(TableSettings(**quick, output="first", about={"purpose": HOSTILE}, dataset_name="patients"))
        train_table(TableSettings(**quick, output="second"))
    finally:
        os.chdir(before)
    return place


@pytest.fixture(scope="module")
def runs(folder):
    return [RunNumbers.of(folder / name) for name in ("first", "second")]


@pytest.fixture(scope="module")
def text(runs):
    return report_page(runs)


def test_the_page_says_what_the_statement_says(runs, text):
    page = Page(text)
    for run in runs:
        stated = json.loads((run.folder / "statement.json").read_bytes())
        assert run.faults == ()
        for said in (rounded_up(stated["epsilon"]), stated["run"]["id"], stated["ledger_sha256"], *stated["caveats"]):
            assert " ".join(said.split()) in page.text
        assert f"right at most {rounded_up(100 * stated['attack_accuracy'], 3)} %" in page.text
        whole = [words for tag, words in page.words if tag == "pre"]
        assert (run.folder / "statement.txt").read_text() in whole
    assert page.text.count("Private, as stated") == 4  # for each run in the comparison, and above its facts


def test_nothing_is_loaded_and_nothing_given_becomes_markup(text):
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "img", "base", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "xlink:href", "src", "data", "action"):
                assert (value or "").startswith("#")
            for place in re.findall(r"url\(([^)]*)\)", value or ""):
                assert place.startswith("#")
    assert "url(" not in "".join(words for tag, words in page.words if tag == "style")
    assert "@import" not in text
    assert HOSTILE in page.text
    (policy,) = [one["content"] for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_ids_are_unique_and_references_lead_somewhere(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = [value for _, one in page.tags for name, value in one.items() if name in ("href", "xlink:href")]
    assert {(reference or "")[1:] for reference in references} <= set(ids)


def test_every_chart_has_words_tooltips_and_a_table(runs, text):
    page, charts = Page(text), [chart for run in runs for chart in (*charts_of(run), *shape_charts(run.model))]
    assert len(page.of("figure")) == len(charts) + 1  # and the comparison of scores
    assert len(page.of("table")) == len(charts) + 2 + len(runs)  # and the importances
    pictures = [one for one in page.of("div") if one.get("role") == "img"]
    assert all(one["aria-label"] for one in pictures)
    assert len(pictures) == len(page.of("figure")) == len(page.of("svg"))
    for chart in charts:
        assert len(re.findall(r'<g class="tip"', chart.svg)) == len(chart.rows)
        assert all(len(row) == len(chart.header) for row in chart.rows)
    assert page.of("html")[0].get("lang") == "en"
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))


def test_the_page_says_what_the_model_says(runs, text):
    """The numbers of ``tacita explain``: an importance for every column, and a bar and a line for every cell."""
    assert Page(text).text.count("There are no bands of noise: a shape has the privacy noise in it.") == len(runs)
    for run in runs:
        model, charts = run.model, shape_charts(run.model)
        shown = Page(report_page([run])).text
        said = shown[shown.index("What the model says") : shown.index("Bought from the data")]
        assert units(model.encoder) in said
        for shape in model.shapes():
            assert f"{shape.column} {shape.importance:.3g} {lowest_and_highest(shape, 0.0)[:3]}" in said
        assert [chart.title for chart in charts] == [f"Shape of {shape.column}" for shape in model.shapes()][
            :MOST_SHAPES
        ]
        for chart, shape in zip(charts, model.shapes(), strict=False):
            assert [row[:2] for row in chart.rows] == [
                (cell, f"{own[0]:+.3g}") for cell, own in zip(shape.cells, shape.values, strict=True)
            ]
            assert len(re.findall('class="tip"', chart.svg)) == len(chart.rows)


def test_an_edited_run_shows_its_shapes_as_edited(folder, tmp_path):
    before = RunNumbers.of(folder / "second")
    shape = before.model.shapes()[0]
    written = json.loads(in_json(shape))
    for cell in written["cells"]:
        cell["values"] = [7 * value for value in cell["values"]]
    edit_run(folder / "second", tmp_path / "edited", {shape.column: json.dumps(written).encode()}, who="A", reason="b")
    run = RunNumbers.of(tmp_path / "edited")
    (chart,) = [one for one in shape_charts(run.model) if one.title == f"Shape of {shape.column}"]
    for row, cell in zip(chart.rows, written["cells"], strict=True):
        assert float(row[1]) == pytest.approx(cell["values"][0], rel=0.01)
    said = Page(report_page([run])).text.split("What the model says")[1]
    assert f"{shape.column} {7 * shape.importance:.3g}" in said
    assert run.model.statement["headline"] in said


def test_a_run_without_shapes_has_no_such_section(folder, settings, table, tmp_path):
    train_table(settings(model="mlp", width=2))
    assert RunNumbers.of("run").model is None
    copy = Path(shutil.copytree(folder / "second", tmp_path / "changed"))
    (copy / "model.safetensors").write_bytes(b"")
    assert RunNumbers.of(copy).model is None
    for run in (RunNumbers.of("run"), RunNumbers.of(copy)):
        assert "What the model says" not in report_page([run])


def test_cells_with_hostile_words_are_drawn_and_escaped(runs):
    """A dollar starts no formula, and a class or a cell becomes no markup; three classes have a bar each."""
    model = runs[0].model
    cells = ("$5 & $6", HOSTILE, "x\ny", "a" * 90, "\u6570")
    shape = msgspec.structs.replace(
        model.shapes()[0], cells=cells, rows=(1e9, 0.0, 1e9, 1e9, 1e9), values=((1.0, 0.5, -1.0),) * 5
    )
    encoder = SimpleNamespace(classes=("$", HOSTILE, "c"))
    odd = SimpleNamespace(encoder=encoder, preprocessing=model.preprocessing, shapes=lambda: (shape,))
    (chart,) = shape_charts(odd)
    assert HOSTILE not in chart.svg
    assert len(re.findall('class="tip"', chart.svg)) == 3 * len(cells)
    assert [row[0] for row in chart.rows][2:4] == ["x y", "a" * 90]  # whole: two may begin alike
    assert "Pale: a cell of few rows" in chart.says


def test_curves_are_bounds_that_fit_the_guarantee(runs):
    run = runs[0]
    delta, stated = run.fields["delta"], run.fields["epsilon"]
    assert dict(run.by_delta)[delta] == stated
    epsilons = [value for _, value in sorted(run.by_delta)]
    assert epsilons == sorted(epsilons, reverse=True)
    steps, values = zip(*run.by_steps, strict=True)
    assert steps[-1] == run.fields["planned_queries"]
    assert list(values) == sorted(values)
    assert values[-1] <= stated
    assert set(run.by_session) == {one["id"] for one in run.fields["sessions"]}
    assert max(run.by_session.values()) <= stated
    rates = np.linspace(0, 1, 201)
    most = run.most_true_positives(rates)
    assert np.all(most >= rates)
    assert most[-1] == 1
    assert np.max((1 + most - rates) / 2) <= run.fields["attack_accuracy"] + 1e-12


def test_printed_numbers_are_still_bounds(runs):
    """Rounded to the nearest, about half of all numbers on the page would be too small."""
    run = replace(
        runs[0],
        fields={**runs[0].fields, "epsilon": 1.23401},
        by_delta=[(1e-9, 3.00001), (1e-5, 2.00001)],
        by_steps=[(1, 1.00001), (4, 2.00001)],
        by_session={"one": 1.50001, "two": 0.50001},
    )
    assert "at most 1.235" in Page(report_page([run])).text
    curves = {
        "Epsilon against delta": run.by_delta,
        "Epsilon against steps": run.by_steps,
        "Where the budget went": run.by_session.items(),
        "What an attack can find": [(None, 100 * x) for x in run.most_true_positives(np.array(RATES))],
    }
    for chart in charts_of(run):
        if chart.title in curves:
            for row, (_, value) in zip(chart.rows, curves[chart.title], strict=True):
                assert value <= float(row[1].removesuffix(" %")) <= 1.01 * value


def test_purchases_are_in_the_curve_over_steps(runs):
    for run in runs:
        ledger = Ledger.load(run.folder / "ledger.jsonl")
        main = main_session(ledger)
        together = epsilon(ledger.spends(main.part), run.fields["delta"]).epsilon
        assert run.by_steps[-1] == (main.planned_queries, together)
        assert together > run.by_session[main.id]


def test_the_trade_off_of_gaussian_pairs_stays_above_the_exact_one(runs):
    """A curve drawn too low would promise too much."""
    from scipy.stats import norm

    mu = 1.3
    pairs = [(gaussian_delta(mu, epsilon), epsilon) for epsilon in (0.1, 0.5, 1.0, 3.0, 6.0)]
    rates = np.linspace(1e-4, 1 - 1e-4, 50)
    exact = norm.cdf(norm.ppf(rates) + mu)
    assert np.all(replace(runs[0], by_delta=pairs, curve=None).most_true_positives(rates) >= exact - 1e-12)


def test_each_measure_has_a_chart_of_its_own(runs):
    score = runs[1].fields["holdout_score"] | {"measure": "R2"}
    other = replace(runs[1], fields=runs[1].fields | {"holdout_score": score})
    assert runs[0].fields["holdout_score"]["measure"] == "accuracy"
    charts = score_charts([runs[0], other, runs[0]])
    assert [(chart.title, len(chart.rows)) for chart in charts] == [("Score: accuracy", 2), ("Score: R2", 1)]


def test_auc_stands_beside_accuracy(runs):
    score = runs[0].fields["holdout_score"] | {"value": 0.8, "AUC": {"value": 0.912, "interval": [0.9, 0.93]}}
    run = replace(runs[0], fields=runs[0].fields | {"holdout_score": score})
    assert re.search(
        r"accuracy 0\.800 \([0-9.]+ to [0-9.]+\), AUC 0\.912 \(0\.9 to 0\.93\)", Page(report_page([run])).text
    )
    assert score_charts([run])[0].rows[0][-2:] == ("0.912", "0.9 to 0.93")
    (without,) = score_charts([replace(run, fields=run.fields | {"holdout_score": score | {"AUC": 0}})])
    assert without.rows[0][-1] == "-"


def test_a_changed_run_is_not_shown_as_private(folder, tmp_path):
    copy = Path(shutil.copytree(folder / "second", tmp_path / "changed"))
    stated = json.loads((copy / "statement.json").read_bytes())
    (copy / "statement.json").write_text(json.dumps({**stated, "epsilon": 0.1, "attack_accuracy": 0.5}))
    run = RunNumbers.of(copy)
    shown = Page(report_page([run])).text
    assert "TAMPERED: something was changed" in shown
    assert "statement.json is not the statement that the ledger was sealed with" in shown
    assert "No limit is guaranteed" in shown
    assert "Private, as stated" not in shown
    assert "Epsilon not verified" in shown
    before, _ = shown.split(WITHHELD)
    assert not [words for words in ("May leave", "Conditions", "Score", "Signature") if words in before]
    assert not charts_of(run)
    assert "TAMPERED: what follows does not hold, because something was changed." in shown.split(WITHHELD)[1]
    (copy / "ledger.jsonl").write_bytes(b"{")
    assert "TAMPERED" in Page(report_page([RunNumbers.of(copy)])).text


def test_a_seeded_run_is_not_shown_as_private(settings, table):
    train_table(settings(), randomness=Randomness.insecure(3))
    run = RunNumbers.of("run")
    shown = Page(report_page([run])).text
    assert "Epsilon none (at most " in shown
    assert "There are no curves of epsilon, because nothing is guaranteed." in shown
    assert not {chart.title for chart in charts_of(run)} - {"Score: accuracy"}
    assert "NOT PRIVATE No limit is guaranteed" in shown
    assert "Private, as stated" not in shown


def test_an_exact_score_is_left_out_of_the_risk(settings, table):
    train_table(settings(non_private_holdout=True))
    assert (
        "of the time afterwards, having seen everything that was released but the score."
        in Page(report_page([RunNumbers.of("run")])).text
    )


def test_the_command_writes_the_page(folder, tmp_path, tacita_command):
    path = tmp_path / "report.html"
    done = tacita_command("report", str(folder / "first"), "--output", str(path))
    assert (done.code, done.err) == (0, f"written to {path}\n")
    assert Page(path.read_text()).of("figure")
    for of in ((), (str(folder / "tacita-runs.jsonl"),)):
        assert "runs must name one folder" in tacita_command("report", *of, "--output", str(path)).err
    assert "output is missing: give --output FILE" in tacita_command("report", str(folder / "first")).err
    assert "holds no finished run" in tacita_command("report", str(tmp_path), "--output", str(path)).err


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_it_without_complaints(text, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(text)
    shown = opened(path)
    assert shown.stdout.count("<svg") == len(Page(text).of("svg"))
    assert "CONSOLE" not in shown.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    "broken",
    ["", "details::details-content", "white-space: pre-wrap", ".4rem; overflow-wrap: anywhere"],
    ids=lambda one: one or "none",
)
def test_nothing_on_the_page_is_lost_in_print(runs, tmp_path, broken):
    """Whoever signs the page on paper has read all of the statement; without one of its rules of style, not all."""
    run = replace(
        runs[0], folder=tmp_path / "a_name_of_a_run_that_is_longer_than_a_cell", text=f"{runs[0].text}{'word ' * 90}"
    )
    text = report_page([run, runs[1]])
    assert broken in text
    lost = lost_in_print(text.replace(broken, "--no-rule") if broken else text, tmp_path / "report.html")
    assert bool(lost) == bool(broken)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.skipif(axe_script() is None, reason="axe-core is not installed (axe-core-python)")
@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 390)], ids=["light", "dark on a phone"])
def test_nothing_on_the_page_is_kept_from_anyone(runs, tmp_path, dark, width):
    """Names of charts, order of headings, colours, regions that scroll: the rules of axe-core."""
    run = audited(replace(runs[0], folder=tmp_path / "first"))
    held, broken = accessibility(report_page([run, runs[1]]), tmp_path / "report.html", dark=dark, width=width)
    assert {"color-contrast", "heading-order", "role-img-alt", "html-has-lang", "document-title"} <= held
    assert not broken


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.skipif(axe_script() is None, reason="axe-core is not installed (axe-core-python)")
def test_the_check_of_a_page_can_fail(text, tmp_path):
    pale = text.replace("--ink: #1d2329", "--ink: #bbbbbb").replace(
        'role="img" aria-label="', 'role="img" title="" x="'
    )
    _, broken = accessibility(pale, tmp_path / "pale.html")
    assert {"color-contrast", "role-img-alt"} <= set(broken)


def test_printed_bounds_are_never_below_the_computed_ones(runs):
    from dataclasses import replace

    run = replace(
        runs[0],
        by_delta=[(1e-5, 1.00004), (1e-3, 0.50004)],
        by_steps=[(1.0, 0.50004), (2.0, 1.00004)],
        by_session={"train-1": 1.00004, "score-1": 0.20004},
    )
    titles = {}
    for chart in charts_of(run):
        titles[chart.title] = chart.rows
    assert titles["Epsilon against delta"] == (("1e-05", "1.001"), ("0.001", "0.5001"))
    assert titles["Epsilon against steps"] == (("1", "0.5001"), ("2", "1.001"))
    assert [row[:2] for row in titles["Where the budget went"]] == [("train-1", "1.001"), ("score-1", "0.2001")]
    rates = [float(words.removesuffix(" %")) / 100 for _, words in titles["What an attack can find"]]
    assert np.all(np.array(rates) >= run.most_true_positives(np.array([1e-4, 1e-3, 1e-2, 0.1, 0.5])))


def test_the_bars_of_sessions_are_left_out_where_there_is_only_one(runs):
    def titles(run):
        return [chart.title for chart in charts_of(run)]

    several = {"purchases": 0.1, "train-1": 1.0}
    alone = titles(replace(runs[0], by_session={"train-1": 1.0}))
    assert titles(replace(runs[0], by_session=several)) == [*alone[:3], "Where the budget went", *alone[3:]]
    assert "Where the budget went" not in alone


def test_the_bars_of_sessions_are_to_scale(runs):
    """Two Gaussian sessions of mu 0.3 and 0.4 take 36 and 64 % of the run's mu of 0.5, whatever epsilon says."""
    one, two, both = (gaussian_epsilon(mu, 1e-5) for mu in (0.3, 0.4, 0.5))
    fields = {**runs[0].fields, "epsilon": both, "delta": 1e-5}
    charts = charts_of(replace(runs[0], fields=fields, by_session={"one": one, "two": two}))
    (rows,) = (chart.rows for chart in charts if chart.title == "Where the budget went")
    assert [row[2] for row in rows] == ["36.0 %", "64.0 %"]


def test_infinite_epsilons_are_left_out_of_curves(runs):
    assert all(math.isfinite(value) for run in runs for _, value in run.by_delta)


# --- what lies beside a run, or is stated by some runs only ----------------------------------------------------------


def audited(run, **changes):
    """A run with an audit's file beside it; ``changes`` go into the audit's result."""
    at = {"delta": 1e-11, "epsilon_claimed": 9.00001, "epsilon_lower_bound": 0.69999, **changes.pop("verdict_at", {})}
    audit = {
        "verdict": "consistent", "epsilon_claimed": 3.50001, "epsilon_lower_bound": 1.23459, "delta": 1e-3,
        "confidence": 0.95, "correct_guesses": 70, "guesses": 100, "canaries": 1000, "adversary": HOSTILE,
        "epsilon_of_the_audit": None, "verdict_at": {"largest_possible_lower_bound": 5.0, **at},
    }  # fmt: skip
    of = {name: run.fields[name] for name in ("neighboring_relation", "privacy_unit")}
    of |= changes.pop("of", {})
    place = run.folder.with_name(f"{run.folder.name}-audit")
    place.mkdir(exist_ok=True)
    (place / "audit.json").write_text(json.dumps({**of, "audit": {**audit, **changes}}))
    return with_what_lies_beside(run)


def with_what_lies_beside(run):
    return replace(run, audit=RunAudit.beside(run.folder, run.fields))


@pytest.fixture
def alone(runs, tmp_path):
    return replace(runs[1], folder=tmp_path / "alone")


def test_an_audit_beside_the_run_is_shown(alone):
    assert alone.audit is None
    assert "Audit" not in Page(report_page([alone])).text
    run = audited(alone)
    shown = Page(report_page([run])).text
    assert "epsilon is at least 1.234 with confidence 0.95, and at most 3.501 is claimed" in shown
    assert "epsilon at least 0.6999 measured, at most 9.001 claimed" in shown
    assert "It says nothing of this model, and spent the privacy stated here in addition." in shown
    assert "is claimed of the training, at delta 0.001. It is not part of the sealed ledger." in shown
    assert "whoever can write its file can change it, and no check of this run would notice." in shown
    assert "epsilon at most infinity at delta 0.001" in shown
    assert HOSTILE in shown
    assert "Private, as stated" in shown
    assert run.verdict.guaranteed


@pytest.mark.parametrize(
    "changes", [{"verdict": "refuted"}, {"verdict": "sure"}, {"verdict_at": {"epsilon_lower_bound": 9.1}}]
)
def test_a_refuted_run_is_not_shown_as_private(alone, changes):
    run = audited(alone, **changes)
    shown = Page(report_page([run])).text
    assert "REFUTED: an audit measured more than is claimed No limit is guaranteed" in shown
    assert "Epsilon refuted (at most " in shown
    assert "Private, as stated" not in shown
    assert not run.verdict.guaranteed


def test_the_command_says_that_an_audit_refuted(folder, runs, tmp_path, tacita_command):
    run = replace(runs[1], folder=Path(shutil.copytree(folder / "second", tmp_path / "alone")))
    audited(run, verdict="refuted")
    path = tmp_path / "a.html"
    assert tacita_command("report", str(run.folder), "--output", str(path)).code == 1
    assert "REFUTED: an audit measured" in Page(path.read_text()).text


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon_lower_bound": math.nan},
        {"epsilon_claimed": -1.0},
        {"epsilon_claimed": "small"},
        {"correct_guesses": None},
        {"verdict_at": {"epsilon_claimed": True}},
    ],
)
def test_an_audit_that_cannot_be_read_is_named_as_such(alone, changes):
    run = audited(alone, **changes)
    assert (run.audit.refuted, run.audit.words) == (None, UNREADABLE)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"audit": 3}'])
def test_a_broken_audit_stops_no_page(alone, text):
    place = alone.folder.with_name("alone-audit")
    place.mkdir()
    (place / "audit.json").write_text(text)
    run = with_what_lies_beside(alone)
    assert run.audit.words == UNREADABLE
    assert "is not part of this run's sealed ledger" in Page(report_page([run])).text


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"neighboring_relation": "replace_one"}, "is about another neighboring relation."),
        ({"privacy_unit": "one person"}, "is about another privacy unit."),
    ],
)
def test_an_audit_of_something_else_is_not_taken_for_one_of_this(alone, of, words):
    run = audited(alone, of=of, verdict="refuted")
    assert run.verdict.word != "refuted"
    assert words in Page(report_page([run])).text


def test_losses_on_public_rows_are_a_chart(runs):
    losses = [[1, 0.75], [2, 0.5], [3, "nan"], [4, 0.25]]
    run = replace(runs[1], fields={**runs[1].fields, "public_losses": losses})
    (chart,) = [one for one in charts_of(run) if one.title == "Loss on public rows"]
    assert chart.rows == (("1", "0.75"), ("2", "0.5"), ("4", "0.25"))
    assert chart.svg.count('class="tip"') == 3
    assert runs[1].public_losses == []
    for broken in (None, "x", [1, 2], [["a", "b"]], [[1, math.inf], [2, 1.0]]):
        odd = replace(runs[1], fields={**runs[1].fields, "public_losses": broken})
        assert len(odd.public_losses) < 2


def test_a_federation_has_clients_and_rounds(tmp_path):
    from tacita.federated.settings import SimulationSettings
    from tacita.federated.simulated_run import run_simulation

    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3))
    np.savez(tmp_path / "clients.npz", features=features, labels=features[:, 0] > 0, owners=rng.integers(0, 7, 60))
    settings = {"epsilon": 8.0, "delta": 1e-5, "trust": "clients", "max_grad_norm": 0.1, "lr": 0.5, "rounds": 6}
    for relation in ("replace_one", "zero_out_one"):
        place = tmp_path / relation
        run_simulation(
            SimulationSettings(
                data=str(tmp_path / "clients.npz"), output=str(place), neighboring_relation=relation,
                momentum_weight=0.5, **settings,
            )
        )  # fmt: skip
        run = RunNumbers.of(place)
        assert run.faults == ()
        assert "Data: 7 clients (public)" in " ".join(run.text.split())
        shown = Page(report_page([run])).text.split("The whole statement")[0]
        assert "Clients 7 clients (public)" in shown
        assert "What the model says" not in shown
        assert not re.search(
            r"\b(Columns|steps?|rows|records?)\b", re.sub("with several rows is|one record as the unit", "", shown)
        )
    steps = replace(run, by_steps=[(1, 1.0), (6, 2.0)])
    (chart,) = [one for one in charts_of(steps) if one.header[0] == "rounds"]
    assert chart.title == "Epsilon against rounds"
    assert "for a client that takes part" in chart.says


ABOUT = {"responsible": "Ward analytics", "contact": "privacy@example.org", "purpose": "to plan beds"}


def signable(run):
    """A run on which all is said, so that there are lines to sign on."""
    more = {"data_period": "2026", "recipients": "the ward", "retention": "a year"}
    return replace(run, fields={**run.fields, "about": {**ABOUT, **more}})


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("size", ["8pt", "12pt"])
def test_the_page_to_sign_is_one_page(alone, tmp_path, size):
    text = report_page([signable(alone)])
    own = "break-after: page; font-size: "
    assert text.count(f"{own}8pt") == 1
    shown = height_of_first_page(text.replace(f"{own}8pt", f"{own}{size}"), tmp_path / "report.html")
    assert (shown <= 1046) == (size == "8pt")


def test_caveats_and_the_lines_to_sign_on_stay_together(alone):
    """Where a run has more to say than a page holds, the break is before the caveats, and no signature is alone."""
    text = report_page([signable(alone)])
    (block,) = re.findall(r"<div><h3>Caveats</h3>.*?<h2>Charts", text, re.DOTALL)
    assert block.count('<div class="sign">') == 1
    assert ".first > div { break-inside: avoid; }" in text


def test_what_was_not_given_is_one_line(alone):
    shown = Page(report_page([replace(alone, fields={**alone.fields, "about": ABOUT})])).text
    assert "Not given period, recipients, retention" in shown
