"""The page of ``tacita plan --html``: its numbers are the accountant's, its noise is never rounded down."""

import json
import re
import shutil
import subprocess

import pytest

from tacita.accounting import Spend, epsilon, gaussian_sum_event, moved
from tacita.accounting.sampling_laws import PoissonLaw
from tacita.clipped_sgd import ConvexProblem, PlanSetting, plan_dp_clipped_sgd
from tacita.clipped_sgd.planner import noise_ratio
from tacita.clipped_sgd.rule_of_thumb import rule_of_thumb
from tacita.clipped_sgd.what_if import FACTORS, what_if
from tacita.report.what_if_page import MISSING, OUTPUTS, what_if_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBLEM = ConvexProblem(smoothness=1, radius=3, moment_scale=1, dim=50)


def setting(**changes):
    given = {"num_records": 2000, "batch_size": 100, "steps": 20, "epsilon": 2.0, "delta": 1e-5}
    return PlanSetting(problem=PROBLEM, **(given | {"relation": "replace_one", "sampling": "full_batch"} | changes))


@pytest.fixture(scope="module")
def poisson():
    """A plan and fewer neighbours than the command has, because each is a calibration."""
    plan = plan_dp_clipped_sgd(setting(sampling="poisson"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tacita.clipped_sgd.what_if.FACTORS", (0.25, 1.0, 2.0))
        return plan, what_if(plan)


def test_the_noise_that_is_shown_is_enough(poisson):
    plan, found = poisson
    page = what_if_page(plan, found)
    data = json.loads(re.search(r'id="plan">(.*?)</script>', page)[1])
    assert set(data["cells"]["0 0 0 0"]) == set(OUTPUTS) == set(data["outputs"])
    for place in ("1 1 1 1", "2 0 1 2", "0 2 2 0"):
        eps, steps, batch, c = (
            data["axes"][name][int(at)] for name, at in zip(data["axes"], place.split(), strict=True)
        )
        shown = float(data["cells"][place]["noise_multiplier"])
        event = gaussian_sum_event(PoissonLaw(batch / 2000), (1.0,), (shown * moved("replace_one"),), "replace_one")
        assert 0.98 * eps < epsilon([Spend(event, int(steps))], 1e-5).epsilon <= eps
        assert float(data["cells"][place]["coordinate"]) == pytest.approx(shown * 2 / batch * c, rel=1e-3)


def test_what_follows_is_the_rule_of_thumb_of_each_cell(poisson):
    plan, found = poisson
    cells = json.loads(re.search(r'id="plan">(.*?)</script>', what_if_page(plan, found))[1])["cells"]
    thresholds = sorted(found[0].by_threshold)
    for at, one in ((0, found[0]), (2, found[-1])):
        ratio = noise_ratio(one.setting, one.noise_multiplier)
        for c, threshold in enumerate(thresholds):
            rule = rule_of_thumb(
                PROBLEM,
                steps=one.setting.steps,
                noise_ratio=ratio,
                batch_size=one.setting.batch_size,
                max_grad_norm=threshold,
            )
            cell = cells[f"{at} {at} {at} {c}"]
            assert float(cell["length"]) == pytest.approx(ratio * threshold * 50**0.5, rel=6e-3)
            assert float(cell["lr"]) == pytest.approx(rule.lr, rel=6e-3)
            assert float(cell["estimate"]) == pytest.approx(rule.estimate, rel=6e-3)
            share = 100 * rule.estimate / PROBLEM.trivial_value
            assert float(cell["of_start"].removesuffix(" %")) == pytest.approx(share, rel=6e-3)


def test_each_slider_moves_around_the_plan():
    plan = plan_dp_clipped_sgd(setting(sampling="one_pass", num_records=200_000))
    found = what_if(plan)
    assert len(found) == len(FACTORS) ** 3
    axes = json.loads(re.search(r'id="plan">(.*?)</script>', what_if_page(plan, found))[1])["axes"]
    assert axes["epsilon"] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert axes["steps"] == [5, 10, 20, 40, 80]
    assert axes["batch_size"] == [25, 50, 100, 200, 400]
    assert axes["max_grad_norm"] == [factor * plan.thumb.max_grad_norm for factor in FACTORS]


def test_combinations_that_the_sampling_forbids_are_missing():
    plan = plan_dp_clipped_sgd(setting(sampling="one_pass"))
    found = what_if(plan)
    assert all(one.setting.steps * one.setting.batch_size <= 2000 for one in found)
    data = json.loads(re.search(r'id="plan">(.*?)</script>', what_if_page(plan, found))[1])
    assert "2 4 4 2" not in data["cells"]
    assert "2 2 2 2" in data["cells"]


def test_a_full_batch_has_one_size():
    plan = plan_dp_clipped_sgd(setting(batch_size=2000))
    assert {one.setting.batch_size for one in what_if(plan)} == {2000}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_sliders_work_in_a_browser(poisson, tmp_path):
    """The policy admits the page's own script, and no other: what follows is filled in."""
    plan, found = poisson
    text = what_if_page(plan, found)
    foreign = text.replace("</body>", "<script>document.title = 'foreign'</script></body>")
    for name, page in {"own": text, "foreign": foreign}.items():
        (tmp_path / f"{name}.html").write_text(page)
        seen = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", tmp_path / f"{name}.html"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert re.search(r'<dd id="noise_multiplier">[\d.]+</dd>', seen)
        assert re.search(rf'<p id="missing" class="bad" hidden="">{re.escape(MISSING)}', seen)
        assert "<title>foreign" not in seen
