"""``tacita plan``: what is printed, plain when piped; files; the words for what is vacuous; refusals."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from tacita.clipped_sgd.plan_setting import PlanSetting
from tacita.clipped_sgd.planner import plan_dp_clipped_sgd
from tacita.clipped_sgd.problem import NonConvexProblem
from tacita.ledger.text_lines import rounded_up
from tacita.report.plan_figure import plan_figure
from tacita.report.plan_text import as_record, show

BASE = {
    "--epsilon": "8", "--delta": "1e-5", "--neighboring-relation": "replace_one", "--num-records": "4000",
    "--dim": "10", "--smoothness": "1", "--radius": "5", "--moment-scale": "6.36", "--moment-order": "1.4",
    "--batch-size": "1", "--steps": "4000", "--sampling": "one_pass",
}  # fmt: skip
TELLING = {
    **BASE, "--epsilon": "3", "--delta": "1e-9", "--neighboring-relation": "zero_out_one",
    "--num-records": "100000000", "--dim": "1", "--radius": "1", "--moment-scale": "1e-4", "--moment-order": "2",
    "--batch-size": "1000", "--steps": "100000",
}  # fmt: skip


@pytest.fixture
def plan(tacita_command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(base=BASE, *more, **change):
        settings = {**base, **{f"--{name.replace('_', '-')}": value for name, value in change.items()}}
        words = [word for name, value in settings.items() if value is not None for word in (name, value)]
        return tacita_command("plan", *words, *more)

    return run


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--json", "nowhere/plan.json"), "json must be in a folder that exists"),
        (("--json", "."), "json must be a file"),
        (("--plot", "nowhere/plan.png"), "plot must be in a folder that exists"),
        (("--plot", "plan.jpg"), "plot must end in .png, .svg or .pdf"),
    ],
)
def test_where_results_go_is_looked_at_first(plan, monkeypatch, more, says):
    monkeypatch.setattr("tacita.cli.planning.plan_dp_clipped_sgd", None)  # would fail otherwise
    done = plan(BASE, *more)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_it_prints_plain_text(plan):
    done = plan()
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    for word in ("clipping threshold C", "noise multiplier", "0.6", "Regime:", "What would help", "declared"):
        assert word in done.out


def test_it_says_in_words_that_the_theorem_is_vacuous(plan):
    done = plan()
    assert "The theorem says nothing here" in done.out
    assert "This guarantees nothing" in " ".join(done.out.split())
    assert "no guarantee" in done.out
    words = "Terms that are too large by themselves: bias of clipping, privacy noise, gradient noise"
    assert words in " ".join(done.out.split())
    assert "about " in done.out  # the rule of thumb


def test_it_says_what_the_theorem_promises_where_it_does(plan):
    done = plan(TELLING)
    text = " ".join(done.out.split())
    assert "The theorem says something here" in text
    assert "at most 0.154" in text
    assert "with probability at least 0.95" in text
    assert "the average of the iterates, at most 0.0743" in text


POISSON = {
    **TELLING, "--neighboring-relation": "add_or_remove_one", "--num-records": "60000", "--batch-size": "1200",
    "--steps": "500", "--sampling": None,
}  # fmt: skip


def test_a_poisson_plan_prints_no_bound(plan):
    """The default sampling: the theorem is not proved for it, so that no bound and no probability is printed."""
    done = plan(POISSON, "--json", "plan.json")
    text = " ".join(done.out.split())
    assert "The theorem is not proved here" in text
    assert "Poisson batches have a random size" in text
    assert "with probability" not in text
    assert "Regime" not in text
    assert "at most" not in text
    assert "clipping threshold C" in text  # the rule of thumb stands alone
    record = json.loads(Path("plan.json").read_text())
    assert record["theorem"] is None
    assert "Poisson" in record["no_theorem"]
    assert {help["theorem"] for help in record["what_would_help"]} == {None}


def test_a_poisson_plan_draws_no_bound(plan):
    pytest.importorskip("matplotlib")
    assert plan(POISSON, "--plot", "plan.png").code == 0
    setting = PlanSetting(
        problem=NonConvexProblem(smoothness=1, initial_gap=1, moment_scale=0.5, dim=3), num_records=1000,
        batch_size=10, steps=100, epsilon=1.0, delta=1e-5, relation="replace_one",
    )  # fmt: skip
    figure = plan_figure(plan_dp_clipped_sgd(setting))
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["rule of thumb"]
    assert "is not proved here" in figure.get_suptitle()


def test_what_a_non_convex_plan_promises_and_how_surely(plan):
    """0.95 is what is proved (half of 0.05 is handed to the theorem); the iterate drawn beforehand has half of it."""
    done = plan(TELLING, radius=None, initial_gap="1", moment_scale="1e-6")
    text = " ".join(done.out.split())
    assert "with probability at least 0.95. It is loose" in text
    assert "an iterate drawn before training, at most" in text
    assert "with probability at least 0.475 (1/2 where the theorem's event holds)" in text
    assert "An average of the iterates has no guarantee for a non-convex problem" in text
    assert "one iterate, drawn before training" in text


def test_the_file_of_numbers(plan):
    done = plan(BASE, "--json", "plan.json")
    record = json.loads(Path("plan.json").read_text())
    assert "written to plan.json" in done.err
    assert record["noise_multiplier"] == pytest.approx(1 / 1.66603, rel=1e-5)
    assert record["theorem"]["is_vacuous"] is True
    assert record["theorem"]["value"] == max(record["theorem"]["terms"].values())
    thumb = record["rule_of_thumb"]["settings"]
    assert thumb["noise_std"] == pytest.approx(record["noise_multiplier"] * 2 * thumb["max_grad_norm"])
    assert record["trivial_value"] == 12.5
    assert [help["change"] for help in record["what_would_help"]]


def test_the_figure(plan):
    pytest.importorskip("matplotlib")
    done = plan(BASE, "--plot", "plan.png")
    assert "written to plan.png" in done.err
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_shows_what_the_plan_says():
    """A report may use it: lines, dots and labels of the theorem, its terms, the rule of thumb."""
    pytest.importorskip("matplotlib")
    found = plan_dp_clipped_sgd(
        PlanSetting(
            problem=NonConvexProblem(smoothness=1, initial_gap=1, moment_scale=0.5, dim=3),
            num_records=1000,
            batch_size=1000,
            steps=100,
            epsilon=1.0,
            delta=1e-5,
            relation="zero_out_one",
            sampling="full_batch",
        )
    )
    figure = plan_figure(found)
    left, right = figure.axes
    assert "says nothing" in figure.get_suptitle()
    assert left.get_ylabel() == "|grad f(x)|^2"
    labels = left.get_legend_handles_labels()[1]
    assert {"bias of clipping", "privacy noise", "rule of thumb"} <= set(labels)
    dots = [line for axes in (left, right) for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == 4
    xs = [float(dot.get_xdata()[0]) for dot in dots[:2]]
    assert xs == pytest.approx([found.theorem.best.max_grad_norm, found.thumb.max_grad_norm])
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        show(found, console)
    assert "non-convex" in captured.get()
    assert as_record(found)["metric"] == "|grad f(x)|^2"


def test_delta_above_one_over_n_is_said(plan):
    assert "WARNING: delta = 0.01 is not below 1 / 4,000" in plan(delta="0.01").out
    assert "WARNING" not in plan().out


def test_batches_are_an_extension(plan):
    assert "an extension" not in plan().out
    assert "an extension" in plan(batch_size="2", steps="2000").out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"radius": None}, "give --radius for a convex problem"),
        ({"initial_gap": "1"}, "and not both"),
        ({"moment_order": "3"}, "moment_order must be in (1, 2], got 3.0"),
        ({"steps": "5000"}, "for sampling='one_pass', got 5000"),
        ({"delta": "2"}, "delta must be in (0, 1), got 2.0"),
        ({"neighboring_relation": "swap"}, "swap"),
        ({"epsilon": None}, "epsilon"),
    ],
)
def test_refusals_are_one_line(plan, change, says):
    done = plan(**change)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("tacita: error: ")
    assert done.err.count("\n") == 1
    assert says in done.err


SECOND_ORDER = {
    "--epsilon": "1", "--delta": "1e-5", "--neighboring-relation": "add_or_remove_one", "--num-records": "50000",
    "--dim": "1000", "--smoothness": "1", "--initial-gap": "1", "--moment-scale": "1", "--batch-size": "500",
    "--hessian-lipschitz": "1", "--gradient-bound": "2.5",
}  # fmt: skip


def test_second_order_prints_the_real_epsilon_beside_the_nominal_one(plan):
    done = plan(SECOND_ORDER, "--second-order", "--json", "plan.json")
    text, record = " ".join(done.out.split()), json.loads(Path("plan.json").read_text())
    assert done.code == 0
    assert record["nominal_epsilon"] == 1
    assert record["real_epsilon"] > 1.1
    assert (
        f"calls this epsilon = 1 at delta = 1e-05. The accountant's is at most {rounded_up(record['real_epsilon'])}"
        in text
    )
    assert record["accuracy"] == record["least_accuracy"] == pytest.approx(0.207222, rel=1e-5)
    assert all(record["conditions"].values())
    assert "Assumption B is taken for granted" in text


def test_second_order_says_which_conditions_fail(plan):
    done = plan(SECOND_ORDER, "--second-order", accuracy="0.25")
    assert "lr <= 1 / (sigma sqrt(T)), Lemma 3.2 NO" in " ".join(done.out.split())
    assert "Where a condition does not hold, the paper guarantees nothing." in done.out


def test_second_order_without_concentration(plan):
    text = " ".join(plan(SECOND_ORDER, "--second-order", "--no-concentration").out.split())
    assert "Assumption B is not used" in text
    assert "Appendix C yes" in text


@pytest.mark.parametrize(
    ("more", "change", "says"),
    [
        ((), {"accuracy": "0.1"}, "accuracy must be at least 0.2072"),
        ((), {"steps": "10"}, "steps cannot be given with --second-order"),
        ((), {"sampling": "one_pass"}, "sampling cannot be given with --second-order"),
        ((), {"hessian_lipschitz": None}, "--second-order needs --hessian-lipschitz"),
        ((), {"initial_gap": None}, "--second-order needs --initial-gap"),
        (("--no-concentration",), {"gradient_bound": None}, "gradient_bound must be given where"),
        ((), {"delta": "2"}, "delta must be in (0, 1), got 2.0"),
    ],
)
def test_second_order_refusals_are_one_line_in_the_words_of_the_command(plan, more, change, says):
    done = plan(SECOND_ORDER, "--second-order", *more, **change)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert says in done.err


def test_options_of_the_other_plan_are_refused(plan):
    assert "hessian_lipschitz can be given only with --second-order" in plan(hessian_lipschitz="1").err
    assert "steps is missing" in plan(steps=None).err


def test_a_full_batch_is_all_records(plan):
    whole = plan(batch_size=None, sampling="full_batch", steps="40")
    assert whole.code == 0, whole.err
    assert plan(batch_size="4000", sampling="full_batch", steps="40").out == whole.out
    other = plan(batch_size="3", sampling="full_batch", steps="40")
    assert other.code == 2
    assert "batch_size must be left out with --sampling full_batch, where every batch is all 4000 records" in other.err


def test_what_is_missing_is_named_with_what_to_give(plan):
    assert "batch_size is missing: give --batch-size, the expected number" in plan(batch_size=None).err
    assert (
        "delta is missing: give --delta NUMBER, well below 1 / (number of records); it is never" in plan(delta=None).err
    )
    assert "dim is missing: give --dim." in plan(dim=None).err
    typed = plan(delta=None, dleta="1e-5").err
    assert "Did you mean --delta instead of --dleta?" in typed


FEDERATED = {
    "--epsilon": "2", "--delta": "1e-5", "--neighboring-relation": "replace_one", "--num-records": "1000",
    "--dim": "10", "--smoothness": "1", "--moment-scale": "0.1", "--initial-gap": "1", "--largest-grad": "1",
    "--steps": "1000",
}  # fmt: skip


def test_a_plan_for_federated_clients(plan):
    done = plan(FEDERATED, "--federated", max_grad_norm="0.01", json="plan.json")
    assert (done.code, done.err) == (0, "written to plan.json\n")
    assert max(map(len, done.out.splitlines())) <= 100
    for word in ("1,000 clients", "Theorem 4", "vacuous", "noise of a message, per coordinate (exact)", "1.261"):
        assert word in done.out, word
    found = json.loads(Path("plan.json").read_text())
    assert found["noise_std"] == pytest.approx(1.26100, rel=1e-4)  # spec 7.2
    assert found["noise_multiplier"] == pytest.approx(63.05, rel=1e-4)
    assert found["models_epsilon"] < 0.06
    rules = {name.split(":")[0]: rule for name, rule in found["theorems"].items()}
    assert rules["Theorem 4"]["vacuous"]
    assert rules["Theorem 4"]["bound"] > rules["Theorem 3"]["bound"] > rules["Theorem 2"]["bound"] > 0


def test_without_a_threshold_a_rule_decides(plan):
    assert plan(FEDERATED, "--federated", json="plan.json").code == 0
    assert json.loads(Path("plan.json").read_text())["max_grad_norm"] == pytest.approx(1e-3)


def test_a_figure_of_a_federated_plan(plan):
    pytest.importorskip("matplotlib")
    assert plan(FEDERATED, "--federated", max_grad_norm="0.01", plot="plan.png").code == 0
    assert Path("plan.png").stat().st_size > 10_000


def test_a_large_threshold_leaves_theorems_that_do_not_apply(plan):
    assert plan(FEDERATED, "--federated", max_grad_norm="3").out.count("does not apply") == 3


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        ({"initial_gap": None}, ("--federated",), "initial_gap is missing: --federated needs --initial-gap"),
        ({"largest_grad": None}, ("--federated",), "largest_grad is missing: --federated needs"),
        ({"steps": None}, ("--federated",), "steps is missing: --federated needs"),
        ({"radius": "1"}, ("--federated",), "radius cannot be given with --federated: leave out radius."),
        ({"batch_size": "4"}, ("--federated",), "batch_size cannot be given with --federated"),
        (
            {},
            ("--federated", "--second-order"),
            "second_order and its options cannot be given with --federated: leave out these options.",
        ),
        (
            {"radius": "1", "batch_size": "4"},
            ("--federated",),
            "radius and batch_size cannot be given with --federated: leave out these options.",
        ),
        ({"batch_size": "4"}, (), "can be given only with --federated"),
        ({"max_grad_norm": "-1"}, ("--federated",), "max_grad_norm must be"),
    ],
)
def test_options_of_a_federated_plan_are_refused(plan, change, more, says):
    done = plan(FEDERATED, *more, **change)
    assert done.code == 2
    assert says in " ".join(done.err.split())
