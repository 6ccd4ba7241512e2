"""Averages, the random iterate and error feedback in the five-line path: a resumed run's bits, and what is released."""

import pytest
import torch

import tacita
from tacita.training.chosen_settings import EMA_SHARE
from tests.training.test_fit import SETTINGS, Stop, interrupted, loss_fn, problem

AVERAGES = ["last", "all", "half", "ema", "random"]
FEEDBACK = {
    "released": tacita.ReleasedFeedback(max_feedback_norm=0.5, max_residual_norm=0.5),
    "bounded": tacita.BoundedFeedback(max_feedback_norm=0.5, max_residual_norm=0.5),
    "hidden": tacita.PrivateFeedback(max_feedback_norm=0.1),
}
STEPS = 16


def sgd(params):
    return torch.optim.SGD(params, lr=0.5, momentum=0.9)


def resumed_and_whole(monkeypatch, folder, **changes):
    """A run that was stopped twice, between checkpoints, and one that was not."""
    settings = {**SETTINGS, **changes, "max_grad_norm": 0.3, "optimizer": sgd}
    whole = tacita.fit(*problem(), **settings, randomness=tacita.Randomness.insecure(0), folder=folder / "whole")
    interrupted(monkeypatch, folder / "run", 7, **{name: value for name, value in settings.items()})
    query = tacita.GradientOracle.query

    def stopping(self, params):
        if self.gate.position == 12:
            raise Stop
        return query(self, params)

    with monkeypatch.context() as patch:
        patch.setattr(tacita.GradientOracle, "query", stopping)
        with pytest.raises(Stop):
            tacita.fit(*problem(), **settings, folder=folder / "run")
    return tacita.fit(*problem(), **settings, folder=folder / "run"), whole


@pytest.mark.parametrize("average", AVERAGES)
def test_every_average_resumes_bit_for_bit(monkeypatch, tmp_path, average):
    resumed, whole = resumed_and_whole(monkeypatch, tmp_path, average=average)
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert resumed.ledger.sessions[0].queries_made == STEPS


@pytest.mark.parametrize("average", ["last", "ema"])
@pytest.mark.parametrize("kind", FEEDBACK)
def test_every_feedback_resumes_bit_for_bit(monkeypatch, tmp_path, kind, average):
    resumed, whole = resumed_and_whole(monkeypatch, tmp_path, feedback=FEEDBACK[kind], average=average)
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert torch.equal(resumed.model.bias, whole.model.bias)
    assert resumed.ledger.epsilon(1e-3) <= 2.0 * (1 + 1e-9)


def replayed(average, releases, index=None):
    """What the average must be as a function of releases alone: plain arithmetic on the iterates they lead to."""
    model, _, _ = problem()
    optimizer, iterates = sgd(model.parameters()), []
    params = dict(model.named_parameters())
    iterates.append({name: p.detach().clone() for name, p in params.items()})
    for release in releases:
        for name, p in params.items():
            p.grad = release[name].clone()
        optimizer.step()
        iterates.append({name: p.detach().clone() for name, p in params.items()})
    steps = len(releases)
    decay = 1 - 1 / (EMA_SHARE * steps)
    weights = {
        "last": [0.0] * steps + [1.0],
        "all": [0.0] + [1.0] * steps,
        "half": [0.0] * (steps // 2 + 1) + [1.0] * (steps - steps // 2),
        "ema": [0.0] + [decay ** (steps - t) for t in range(1, steps + 1)],
        "random": [float(t == index) for t in range(steps + 1)],
    }[average]
    total = sum(weights)
    return {
        name: sum(w / total * x[name].double() for w, x in zip(weights, iterates, strict=True)) for name in iterates[0]
    }


def with_releases(monkeypatch, **changes):
    """A run, and the gradients that it released."""
    releases, query = [], tacita.GradientOracle.query

    def seen(self, params):
        release = query(self, params)
        releases.append({name: value.clone() for name, value in release.gradient.items()})
        return release

    monkeypatch.setattr(tacita.GradientOracle, "query", seen)
    run = tacita.fit(*problem(), **{**SETTINGS, "optimizer": sgd, **changes})
    return run, releases


@pytest.mark.parametrize("feedback", [None, "released", "bounded", "hidden"])
@pytest.mark.parametrize("average", AVERAGES)
def test_what_a_run_ends_at_is_a_function_of_its_releases(monkeypatch, average, feedback):
    """Whatever is averaged: no value from above the line is in it."""
    chosen = {}
    if average == "random":
        drawn = tacita.RandomIterate.__init__

        def recording(self, *args, **kwargs):
            drawn(self, *args, **kwargs)
            chosen["index"] = self.index

        monkeypatch.setattr(tacita.RandomIterate, "__init__", recording)
    run, releases = with_releases(monkeypatch, average=average, feedback=FEEDBACK.get(feedback))
    assert len(releases) == STEPS
    expected = replayed(average, releases, **chosen)
    for name, value in run.model.named_parameters():
        assert torch.allclose(value.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_averages_end_at_different_points(monkeypatch):
    """So that none of the checks above compares one thing with itself."""
    ends = {}
    for average in AVERAGES[:-1]:
        run = tacita.fit(*problem(), **{**SETTINGS, "optimizer": sgd}, average=average,
                         randomness=tacita.Randomness.insecure(0))  # fmt: skip
        ends[average] = run.model.weight.detach().clone()
    names = list(ends)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not torch.allclose(ends[one], ends[other], atol=1e-3), (one, other)


def test_the_random_iterate_is_drawn_apart_from_the_noise():
    """Same key, same index; keys of the system: another one each time."""
    found = set()
    for seed in range(12):
        run = tacita.fit(*problem(), **{**SETTINGS, "optimizer": lambda params: torch.optim.SGD(params, lr=0.0)},
                         average="random", randomness=tacita.Randomness.insecure(seed))  # fmt: skip
        assert torch.equal(run.model.weight, problem()[0].weight)
        stream = tacita.Randomness.insecure(seed).session_key(run.ledger.sessions[0].id).stream("random iterate")
        found.add(tacita.RandomIterate({}, num_steps=STEPS, stream=stream).index)
    assert len(found) > 4


@pytest.mark.parametrize(
    ("started", "resumed"), [("last", "ema"), ("ema", "last"), ("all", "half"), ("half", "random")]
)
def test_another_average_does_not_resume(monkeypatch, tmp_path, started, resumed):
    interrupted(monkeypatch, tmp_path / "run", 7, average=started)
    with pytest.raises(tacita.ResumeError):
        tacita.fit(*problem(), **SETTINGS, average=resumed, folder=tmp_path / "run")
    tacita.fit(*problem(), **SETTINGS, average=started, folder=tmp_path / "run")


def test_other_feedback_does_not_resume(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path / "run", 7, feedback=FEEDBACK["released"])
    for other in (None, FEEDBACK["bounded"]):
        with pytest.raises(tacita.TacitaError):
            tacita.fit(*problem(), **SETTINGS, feedback=other, folder=tmp_path / "run")
    tacita.fit(*problem(), **SETTINGS, feedback=FEEDBACK["released"], folder=tmp_path / "run")


def test_what_was_chosen_is_said():
    run = tacita.fit(*problem(), **SETTINGS, average="ema")
    assert "decay of the average" in " ".join(run.statement.to_json()["chosen_by_tacita"])
    plain = tacita.fit(*problem(), **SETTINGS)
    assert "decay" not in " ".join(plain.statement.to_json()["chosen_by_tacita"])


def test_feedback_is_paid_for():
    """Two blocks in the place of one, at the same epsilon."""
    run, plain = (tacita.fit(*problem(), **SETTINGS, feedback=one) for one in (FEEDBACK["released"], None))
    assert len(run.ledger.sessions[0].event.noise_std) == 2
    assert len(plain.ledger.sessions[0].event.noise_std) == 1
    assert 2.0 * 0.995 <= run.ledger.epsilon(1e-3) <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (dict(average="mean"), ValueError, "average must be one of last, all, half, ema, random, got 'mean'"),
        (dict(feedback="released"), TypeError, "got 'released'. For example feedback=tacita.ReleasedFeedback"),
        (dict(feedback=FEEDBACK["released"], hardened=True), ValueError, "feedback must go without hardened"),
    ],
)
def test_wrong_variants_raise_before_anything_is_spent(tmp_path, wrong, error, says):
    with pytest.raises(error, match=says):
        tacita.fit(*problem(), **SETTINGS, **wrong, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def feedback_oracle(model, data, ledger, randomness, session=None):
    return tacita.ErrorFeedbackOracle(
        model, loss_fn, data, ledger=ledger,
        sampler=tacita.PoissonSampler(expected_batch_size=50, num_records=200),
        clipper=tacita.FlatClipper(max_grad_norm=0.3), feedback=FEEDBACK["bounded"],
        mechanism=tacita.CalibratedGaussian(target_epsilon=2.0, target_delta=1e-3), planned_queries=6,
        randomness=randomness, session=session,
    )  # fmt: skip


def test_ones_own_loop_with_a_hidden_error_resumes_through_public_names(tmp_path):
    """``oracle.state_dict()``, the randomness and the ledger: all that is needed, and all of it in ``tacita``."""

    def start(name):
        model, _, data = problem()
        ledger = tacita.Ledger(tmp_path / name, neighboring_relation="add_or_remove_one", privacy_unit="one row")
        session = next(iter(ledger.sessions), None)
        key = tmp_path / "key.json"
        randomness = tacita.Randomness.insecure(0) if session is None else tacita.Randomness.load(key)
        return model, ledger, feedback_oracle(model, data, ledger, randomness, session)

    def steps(model, oracle, count):
        for _ in range(count):
            oracle.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.5 * p.grad)

    whole, ledger, oracle = start("whole.jsonl")
    steps(whole, oracle, 6)
    ledger.close()
    model, ledger, oracle = start("ledger.jsonl")
    steps(model, oracle, 3)
    ledger.flush()
    torch.save({"model": model.state_dict(), "oracle": oracle.state_dict()}, tmp_path / "checkpoint.pt")  # private
    oracle.randomness.save(tmp_path / "key.json")
    steps(model, oracle, 1)  # lost: it is redone, with the same bits, and not charged again
    ledger.close()
    model, ledger, oracle = start("ledger.jsonl")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    oracle.load_state_dict(saved["oracle"])
    steps(model, oracle, 3)
    assert torch.equal(model.weight, whole.weight)
    assert ledger.sessions[0].queries_made == 6
    ledger.close()
