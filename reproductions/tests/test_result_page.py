"""The page about results of experiments: what the record says, its figure inside, nothing loaded, nothing hidden."""

import itertools
import json
import re
from pathlib import Path

import pytest

from tacita.report.style import new_figure, styled
from tacita_reproductions import Check, Experiment, Result
from tacita_reproductions.result_cells import cell
from tacita_reproductions.result_files import as_json, as_record, read, write
from tacita_reproductions.result_page import ResultOnPage, result_page
from tacita_reproductions.runner import Paper
from tests.report.browser import CHROMIUM, accessibility, axe_script, opened
from tests.report.test_run_page import HOSTILE, Page

pytest.importorskip("matplotlib")

ROWS = [
    {"method": HOSTILE, "nominal epsilon": 8.0, "real epsilon": 53187.91, "accuracy": 0.22849},
    {"method": "clipped", "nominal epsilon": 8.0, "real epsilon": 8.00001, "accuracy": float("nan")},
    {"method": "clipped", "nominal epsilon": 8.0, "real epsilon": 8.00001, "accuracy": 0.1635},
    {"method": "SGD", "nominal epsilon": None, "real epsilon": float("inf"), "accuracy": 0.2285},
]
CHECKS = [
    Check("accuracy rises", True, found="0.110 (0.006), 0.201 (0.004)"),
    Check(f"{HOSTILE} is enough", False, found=HOSTILE),
    Check("one beats two", False, undecided=True),
]
LACKS = (f"Its weights are not public: {HOSTILE}.",)


def made(name: str, folder: Path, *, drawn: bool = True, rows=ROWS, checks=CHECKS) -> ResultOnPage:
    """A result as it lies in a folder."""

    @styled
    def draw():
        figure, axes = new_figure(size=(4, 2))
        axes.plot([0, 1])
        return figure

    experiment = Experiment(name=name, title=f"Shows {HOSTILE}.", source="A paper, Figure 1", run=lambda *_: None)
    paper = Paper(name="toys", title="On toys", experiments=(experiment,), not_reproduced=LACKS)
    result = Result(rows=rows, checks=checks, notes=["5 runs of each", HOSTILE], draw=draw if drawn else None)
    record = as_record(experiment, result, full=False, seed=3, paper=paper)
    write(folder, record, "text\n", result.draw)
    return read(folder, name)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return [made("toy-one", folder), made("toy-two", folder, drawn=False, rows=[], checks=[])]


@pytest.fixture(scope="module")
def text(results):
    return result_page(results, title="Reproduction: on toys", missing=["toy-three"])


def test_the_page_says_what_the_record_says(results, text):
    page = Page(text)
    record = results[0].record
    for said in (record["title"], record["source"], "Size reduced", "Seed 3", "made by the experiment"):
        assert " ".join(said.split()) in page.text
    for package, number in record["versions"].items():
        assert f"{package} {number}" in page.text
    for words in (*record["notes"], *record["not_reproduced"]):
        assert " ".join(words.split()) in page.text
    cells = [words for tag, words in page.words if tag in ("td", "th")]
    for row in record["rows"]:
        for column, value in row.items():
            assert {column, cell(column, value)} <= set(cells)
    for check in record["checks"]:
        assert {check["says"], check["found"] or "see the table of results", check["verdict"]} <= set(cells)
    (whole, _) = [json.loads(words) for tag, words in page.words if tag == "pre"]
    assert whole == record


def test_every_epsilon_is_there_once_and_still_a_bound(results):
    shown = result_page(results[:1])
    (part,) = re.findall(r"Every epsilon of toy-one</caption>(.*?)</table>", shown, re.DOTALL)
    found = [words for tag, words in Page(part).words if tag in ("td", "th")]
    assert found == [
        *("method", "nominal epsilon", "real epsilon"),
        *(HOSTILE, "8", "53190"),
        *("clipped", "8", "8.001"),
        *("SGD", "–", "inf"),
    ]
    assert "The table states no epsilon." in Page(result_page(results[1:])).text


def test_verdicts_are_counted(results, text):
    assert results[0].verdict == "1 of 3 claims holds; 1 depends; 1 fails"
    assert not results[0].holds
    assert 'class="verdict bad"><strong>1 of 3 claims holds' in text
    good = ResultOnPage({**results[0].record, "checks": results[0].record["checks"][:1]})
    assert good.holds
    assert 'class="verdict good"><strong>1 of 1 claims holds<' in result_page([good])
    assert results[1].verdict == "No claim is checked"
    twice = ResultOnPage({"checks": 2 * results[0].record["checks"]})
    assert twice.verdict == "2 of 6 claims hold; 2 depend; 2 fail"


def test_missing_results_are_named(text):
    assert "toy-three has no result in this folder: run tacita reproduce toy-three." in Page(text).text
    assert Page(text).text.count(LACKS[0]) == 1  # for the paper, not for each result


def test_nothing_is_loaded_and_nothing_given_becomes_markup(results, text):
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    (picture,) = page.of("img")
    assert set(picture) == {"alt", "src"}
    assert (picture["src"] or "").startswith("data:image/png;base64,")
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if tag != "img" and name in ("href", "xlink:href", "src", "data", "action"):
                assert (value or "").startswith("#")
    assert "url(" not in "".join(words for tag, words in page.words if tag == "style")
    assert HOSTILE in page.text
    assert HOSTILE not in text
    (policy,) = [one["content"] for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy


def test_figures_tables_and_sections_have_names(results, text):
    page = Page(text)
    (picture,) = page.of("img")
    assert picture["alt"] == f"Figure of toy-one: {results[0].record['title']} Its numbers are in the table of results."
    regions = [one["aria-label"] for tag, one in page.tags if one.get("role") == "region" or tag in ("section", "nav")]
    assert all(regions)
    assert len(regions) == len(set(regions))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(one.get("href") or "")[1:] for one in page.of("a")} <= set(ids)
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))


def test_the_page_of_one_run_lies_beside_it(tmp_path):
    made("toy-one", tmp_path)
    assert (tmp_path / "toy-one.html").read_text() == result_page([read(tmp_path, "toy-one")])
    assert read(tmp_path, "toy-one").figure == (tmp_path / "toy-one.png").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"rows": {}},
        {"rows": [{"a": 1}, {"b": 1}]},
        {"checks": [{"says": "x"}]},
        {"checks": ["x"]},
        {"versions": None},
        {"not_reproduced": None},
        {"title": 3},
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, changes):
    record = dict(made("toy-one", tmp_path).record)
    (tmp_path / "toy-one.json").write_text(as_json({**record, **changes}))
    with pytest.raises(ValueError, match="that is no result of toy-one: run tacita reproduce toy-one again"):
        read(tmp_path, "toy-one")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "3"])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "toy-one.json").write_text(text)
    with pytest.raises(ValueError, match="that is no result of toy-one"):
        read(tmp_path, "toy-one")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_it_without_complaints(text, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(text)
    shown = opened(path)
    assert shown.stdout.count("<img") == 1
    assert "CONSOLE" not in shown.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.skipif(axe_script() is None, reason="axe-core is not installed (axe-core-python)")
@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 1200), (False, 420)])
def test_a_screen_reader_and_weak_eyes_can_read_it(text, tmp_path, dark, width):
    passes, violations = accessibility(text, tmp_path / "page.html", dark=dark, width=width)
    assert {"color-contrast", "document-title", "image-alt", "page-has-heading-one"} <= passes
    assert violations == {}
