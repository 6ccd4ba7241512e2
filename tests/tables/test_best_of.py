"""The choice itself: what is on disk before the number is drawn, who wins, what is released; going on after a stop."""

import contextlib
import json
import math
import stat

import numpy as np
import pytest
import scipy.stats
import torch

from tacita import accounting as acc
from tacita.errors import LedgerError, ResumeError
from tacita.ledger import Ledger
from tacita.random import Key, Randomness
from tacita.tables import Grid, NumberOfRuns, Sweep
from tacita.tables.best_of import best_of, register
from tacita.tables.run_cost import selection_event
from tacita.tables.working_folder import RunResult, WorkingFolder

GRID = Grid({"lr": (0.1, 1.0, 2.0)})


def sweep(mean=4.0, shape=1.0, pad_to=None):
    return Sweep(grid=GRID, runs=NumberOfRuns(mean_runs=mean, shape=shape), pad_to=pad_to)


def opened(path=None, asked=None, settings=None):
    ledger = Ledger(path, neighboring_relation="add_or_remove_one", privacy_unit="one row")
    inner = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(9.0,)
    )
    asked = asked or sweep()
    event = selection_event(inner, asked.runs)
    try:
        return ledger, register(ledger, event, settings or asked.to_dict(), secure=False)
    except LedgerError:
        ledger.close()
        raise


def number_of(asked, randomness, session="select-1"):
    return asked.runs.draw(randomness.session_key(session).stream("number of runs"))


def seed_for(asked, wanted):
    """A test seed whose number of runs is ``wanted``."""
    return next(seed for seed in range(10_000) if number_of(asked, Randomness.insecure(seed)) == wanted)


class Runs:
    """Runs whose score is a word of their own key; counts them."""

    def __init__(self, levels=2**30, stop_at=None):
        self.levels, self.stop_at = levels, stop_at
        self.made = []

    def __call__(self, point, randomness):
        if len(self.made) == self.stop_at:
            raise KeyboardInterrupt
        value = int(randomness.key.stream("score").integers(1, self.levels)[0])
        self.made.append((point, value))
        return RunResult(
            point=point,
            score=float(value),
            facts={"v": value},
            weights={"w": torch.tensor([float(value)], dtype=torch.float64)},
        )


def choose(asked, seed, runs=None, path=None):
    runs = runs or Runs()
    ledger, session = opened(asked=asked)
    best = best_of(session, asked, Randomness.insecure(seed), runs, WorkingFolder(path))
    return best, runs, ledger


def test_the_session_is_on_disk_before_the_number_is_drawn(tmp_path, monkeypatch):
    path, seen = tmp_path / "ledger.jsonl", []
    draw = NumberOfRuns.draw

    def watching(self, stream):
        seen.append([json.loads(line)["kind"] for line in path.read_text().splitlines()])
        return draw(self, stream)

    monkeypatch.setattr(NumberOfRuns, "draw", watching)
    ledger, session = opened(path)
    assert not seen
    best_of(session, sweep(), Randomness.insecure(0), Runs(), WorkingFolder())
    assert seen == [["register", "open", "reserve"]]
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["register", "open", "reserve", "query", "close"]
    assert ledger.epsilon_spent(1e-5) == ledger.epsilon(1e-5) > 0


def test_the_best_of_the_runs_drawn_wins():
    asked = sweep()
    for wanted in (1, 2, 7):
        seed = seed_for(asked, wanted)
        best, runs, _ = choose(asked, seed)
        assert len(runs.made) == wanted == number_of(asked, Randomness.insecure(seed))
        assert (best.point, best.score) == max(runs.made, key=lambda run: run[1])
        assert best.weights["w"].item() == best.score


def test_of_equal_scores_the_first_wins():
    """As good as any rule that the order of the runs alone decides: they are alike."""
    asked = sweep()
    best, runs, _ = choose(asked, seed_for(asked, 9), Runs(levels=1))
    assert {value for _, value in runs.made} == {0}
    assert best.point == runs.made[0][0]


def test_a_score_that_is_no_number_loses():
    asked = sweep()
    scores = iter([math.nan, -1e300, math.inf, math.nan, 3.0])
    _, session = opened(asked=asked)
    seed = seed_for(asked, 5)
    best = best_of(
        session, asked, Randomness.insecure(seed), lambda p, r: RunResult(point=p, score=next(scores)), WorkingFolder()
    )
    assert best.score == math.inf
    _, session = opened(asked=asked)
    best = best_of(
        session, asked, Randomness.insecure(seed), lambda p, r: RunResult(point=p, score=math.nan), WorkingFolder()
    )
    assert best is not None


def test_no_run_is_none():
    asked = sweep(1.0, math.inf)
    best, runs, ledger = choose(asked, seed_for(asked, 0))
    assert best is None
    assert not runs.made
    assert ledger.sessions[0].closed
    assert ledger.epsilon_spent(1e-5) == ledger.epsilon(1e-5)


def test_padding_makes_runs_without_consequence():
    """The winner is the same, and padded runs that would win do not."""
    plain, padded = sweep(), sweep(pad_to=12)
    lost = 0
    for wanted in (1, 2, 3):
        seed = seed_for(plain, wanted)
        best, runs, _ = choose(padded, seed)
        assert len(runs.made) == 12
        assert best.score == choose(plain, seed)[0].score == max(value for _, value in runs.made[:wanted])
        lost += max(value for _, value in runs.made) > best.score
    assert lost
    assert len(choose(padded, seed_for(plain, 14))[1].made) == 14


def test_runs_have_points_and_coins_of_their_own():
    asked = sweep(100.0)
    _, runs, _ = choose(asked, seed_for(asked, 150))
    assert {point for point, _ in runs.made} == {0, 1, 2}
    assert len({value for _, value in runs.made}) > 145
    _, others, _ = choose(asked, seed_for(asked, 151))
    assert runs.made[:5] != others.made[:5]


LEVELS, TIMES = 8, 4000


def best_levels(asked):
    """The winner's level in many selections; the law of the best of K uniform levels is E[F^K], exactly."""
    found = []
    for seed in range(TIMES):
        best, _, _ = choose(asked, seed, Runs(levels=LEVELS))
        found.append(LEVELS if best is None else int(best.score))
    return np.bincount(found, minlength=LEVELS + 1)


def assert_best_of(counts, runs):
    chances = np.array(runs.chances(300))
    below = (np.arange(LEVELS + 1) / LEVELS)[:, None] ** np.arange(1, 300) @ chances[1:]
    wanted = TIMES * np.r_[np.diff(below), chances[0]]
    counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    statistic = float(((counts - wanted) ** 2 / wanted).sum())
    assert statistic < scipy.stats.chi2.isf(1e-6, len(wanted) - 1), "not the best of that many"


def test_the_winner_has_the_law_of_the_best():
    """End to end, geometric and Poisson; and a law with another mean is told from it."""
    for asked in (sweep(3.0, 1.0), sweep(2.0, math.inf)):
        counts = best_levels(asked)
        assert_best_of(counts, asked.runs)
        with pytest.raises(AssertionError, match="not the best of that many"):
            assert_best_of(counts, NumberOfRuns(mean_runs=asked.runs.mean_runs * 1.3, shape=asked.runs.shape))


def test_the_ledger_tells_nothing_of_the_number(tmp_path):
    """Line for line the same, but for the ledger's random name and the fingerprint (and what covers them)."""
    asked, found = sweep(), []
    for wanted in (1, 12):
        path = tmp_path / f"{wanted}.jsonl"
        _, session = opened(path)
        best_of(session, asked, Randomness.insecure(seed_for(asked, wanted)), Runs(), WorkingFolder())
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found.append([{k: v for k, v in line.items() if k not in ("ledger", "fingerprint", "prev")} for line in lines])
    assert found[0] == found[1]


# -- going on after a stop


@pytest.mark.parametrize("stop_at", [0, 1, 4, 6])
def test_stopped_it_goes_on_with_the_same_number_and_points(tmp_path, stop_at):
    asked = sweep()
    seed = seed_for(asked, 7)
    whole, all_runs, _ = choose(asked, seed)
    path, key = tmp_path / "ledger.jsonl", tmp_path / "key.json"
    randomness = Randomness.insecure(seed)
    randomness.save(key)
    ledger, session = opened(path)
    first = Runs(stop_at=stop_at)
    with pytest.raises(KeyboardInterrupt):
        best_of(session, asked, randomness, first, WorkingFolder(tmp_path / "work"))
    ledger.close()
    ledger, session = opened(path)
    rest = Runs()
    best = best_of(session, asked, Randomness.load(key), rest, WorkingFolder(tmp_path / "work"))
    assert first.made + rest.made == all_runs.made
    assert (best.point, best.score, dict(best.facts)) == (whole.point, whole.score, dict(whole.facts))
    assert torch.equal(best.weights["w"], whole.weights["w"])
    assert session.closed


def test_a_secret_number_is_the_same_in_every_process_and_what_runs_draw_anew_is_not(tmp_path):
    """The law of the number is part of the proof; two copies of the folder make runs of their own."""
    asked, key, made, keys = sweep(mean=20.0), tmp_path / "key.json", [], []
    ledger, session = opened(tmp_path / "ledger.jsonl")
    ledger.close()
    drawn = 0
    while not 6 <= drawn <= 40:
        randomness = Randomness.system()
        randomness.save(key)  # before the number is drawn
        drawn = number_of(asked, randomness, randomness.name_for(session.id, session.ledger))

    def attempt(point, randomness):
        if len(made) in (drawn // 3, drawn // 3 + 1) and len(keys) == len(made):
            keys.append(randomness.key._secret)
            raise KeyboardInterrupt
        keys.append(randomness.key._secret)
        made.append(point)
        return RunResult(point=point, score=float(len(made)), facts={}, weights={})

    for _ in range(3):
        ledger, session = opened(tmp_path / "ledger.jsonl")
        with ledger, contextlib.suppress(KeyboardInterrupt):
            best_of(session, asked, Randomness.load(key), attempt, WorkingFolder(tmp_path / "work"))
    assert len(made) == drawn
    assert len({*keys}) == len(keys)


def test_stopped_after_the_release_it_releases_the_same(tmp_path):
    asked, path = sweep(), tmp_path / "ledger.jsonl"
    seed = seed_for(asked, 3)
    ledger, session = opened(path)
    best = best_of(session, asked, Randomness.insecure(seed), Runs(), WorkingFolder(tmp_path / "work"))
    ledger.close()
    before = path.read_bytes()
    ledger, session = opened(path)
    again = best_of(session, asked, Randomness.insecure(seed), Runs(stop_at=0), WorkingFolder(tmp_path / "work"))
    assert again.score == best.score
    assert path.read_bytes() == before


def test_another_winner_than_the_one_released_is_refused(tmp_path):
    asked, path = sweep(), tmp_path / "ledger.jsonl"
    ledger, session = opened(path)
    best_of(session, asked, Randomness.insecure(1), Runs(), WorkingFolder())
    ledger.close()
    _, session = opened(path)
    with pytest.raises(ResumeError, match="released another winner before"):
        best_of(session, asked, Randomness.insecure(1), Runs(levels=77), WorkingFolder())


def test_another_selection_in_its_place_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    opened(path)[0].close()
    with pytest.raises(LedgerError, match="registered for another selection"):
        opened(path, sweep(5.0))
    with pytest.raises(LedgerError, match="registered for another selection"):
        opened(path, settings={"grid": "another"})
    assert opened(path)[1].id == "select-1"


def test_the_number_is_not_drawn_for_a_session_that_is_not_open(monkeypatch):
    _, session = opened()
    monkeypatch.setattr(type(session), "open", lambda self: None)
    monkeypatch.setattr(type(session), "reserve", lambda self, first, last: None)
    with pytest.raises(LedgerError, match="must be open before"):
        best_of(session, sweep(), Randomness.insecure(0), Runs(), WorkingFolder())


# -- the working folder


def test_the_working_folder_holds_the_best_alone_and_is_private(tmp_path):
    place = WorkingFolder(tmp_path / "work")
    for score in (1.0, 3.0, 2.0, math.nan):
        place.record(RunResult(point=0, score=score, weights={"w": torch.tensor(score)}))
    place.record(None)
    folder = tmp_path / "work"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"runs.json", "best-1.safetensors"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    again = WorkingFolder(folder)
    assert (again.done, again.best.score, again.best.weights["w"].item()) == (5, 3.0, 3.0)


@pytest.mark.parametrize("text", ["", "{}", "[", '{"format": "x", "done": 1, "best": null}', '"a"'])
def test_a_damaged_working_folder_is_an_error(tmp_path, text):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "runs.json").write_text(text)
    with pytest.raises(ResumeError, match="is damaged"):
        WorkingFolder(tmp_path / "work")


def test_keys_of_runs_lead_nowhere_else():
    """A run's key is none of the selection's own, nor another run's."""
    key = Randomness.insecure(0).session_key("select-1")
    found = [key.derive("run", number) for number in range(3)]
    assert all(isinstance(one, Key) and one != key for one in found)
    assert found[0] != found[1]


def test_a_saved_key_draws_no_selection_again_for_another_ledger(tmp_path):
    """The number of runs, the points and every run's noise would be the same, and the second release on other data."""
    randomness = Randomness.insecure(0)
    _, session = opened()
    best_of(session, sweep(), randomness, Runs(), WorkingFolder())
    randomness.save(tmp_path / "key.json")
    _, other = opened()
    with pytest.raises(LedgerError, match="could get the same noise twice"):
        best_of(other, sweep(), Randomness.load(tmp_path / "key.json"), Runs(), WorkingFolder())


def test_a_selection_cut_off_among_its_runs_has_drawn(tmp_path):
    randomness = Randomness.insecure(seed_for(sweep(), 5))
    _, session = opened()
    with pytest.raises(KeyboardInterrupt):
        best_of(session, sweep(), randomness, Runs(stop_at=0), WorkingFolder())
    randomness.save(tmp_path / "key.json")
    _, other = opened()
    with pytest.raises(LedgerError, match="could get the same noise twice"):
        best_of(other, sweep(), Randomness.load(tmp_path / "key.json"), Runs(), WorkingFolder())


def test_a_saved_key_draws_no_selection_again_for_an_older_copy_of_the_ledger(tmp_path):
    """The copy has the same name and says that nothing was drawn; the key says that it was."""
    path, randomness = tmp_path / "ledger.jsonl", Randomness.insecure(0)
    ledger, session = opened(path)
    ledger.flush()
    older = {one: one.read_bytes() for one in tmp_path.glob("ledger*") if one.suffix != ".lock"}
    best_of(session, sweep(), randomness, Runs(), WorkingFolder())
    randomness.save(tmp_path / "key.json")
    ledger.close()
    for one, content in older.items():
        one.write_bytes(content)
    _, session = opened(path)
    assert not session.opened
    with pytest.raises(ValueError, match="would get the same noise twice"):
        best_of(session, sweep(), Randomness.load(tmp_path / "key.json"), Runs(), WorkingFolder())
