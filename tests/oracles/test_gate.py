"""The rule for redone queries: every branch of it."""

import os
import shutil
import warnings
from functools import partial

import pytest
import torch

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import BudgetExceededError, LedgerError, ResumeError
from tacita.estimators import ClippedSum
from tacita.gradients import GivenSource
from tacita.oracles import GradientOracle, trainable
from tacita.oracles.gate import ReleaseGate
from tacita.testing.fidelity import check_every_query
from tests.around_mechanism import Spying
from tests.devices import on_each_device
from tests.forked import exit_code

device = on_each_device


def crashed(make_oracle, problem, tmp_path, queries, **changes):
    """An oracle whose process 'died' after some queries: its ledger reloaded, its key kept."""
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=ledger, **changes)
    state = oracle.state_dict()
    releases = [oracle.query(trainable(problem[0])) for _ in range(queries)]
    oracle.session.flush()
    ledger.close()
    return state, releases


def resumed(make_oracle, tmp_path, state, seed=0, **changes):
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=ledger, session=ledger.sessions[0], seed=seed, **changes)
    oracle.load_state_dict(state)
    return oracle


def same(a, b):
    return all(torch.equal(a.gradient[name], b.gradient[name]) for name in a.gradient)


def test_no_line_is_made_as_if_for_the_first_time(problem, make_oracle, tmp_path):
    state, _ = crashed(make_oracle, problem, tmp_path, 0)
    expected = make_oracle().query(trainable(problem[0]))
    oracle = resumed(make_oracle, tmp_path, state)
    assert same(oracle.query(trainable(problem[0])), expected)
    assert oracle.session.queries_made == 1


def test_a_matching_line_is_the_identical_release_and_free(problem, make_oracle, tmp_path):
    state, releases = crashed(make_oracle, problem, tmp_path, 3)
    oracle = resumed(make_oracle, tmp_path, state)
    again = [oracle.query(trainable(problem[0])) for _ in range(3)]
    assert all(same(a, b) for a, b in zip(again, releases, strict=True))
    assert [release.query for release in again] == [0, 1, 2]
    assert oracle.session.queries_made == 3
    assert oracle.remaining_queries == 7


def test_a_checkpoint_that_is_loaded_again_forgets_that_a_line_did_not_match(problem, make_oracle, tmp_path):
    """As after an interrupt between the line that did not match and the query under the next number."""
    state, releases = crashed(make_oracle, problem, tmp_path, 2)
    oracle = resumed(make_oracle, tmp_path, state)
    oracle.gate._other_values = True
    oracle.load_state_dict(state)
    assert same(oracle.query(trainable(problem[0])), releases[0])


def test_a_line_that_does_not_match_takes_the_next_unused_number(problem, make_oracle, tmp_path):
    state, _ = crashed(make_oracle, problem, tmp_path, 3)
    oracle = resumed(make_oracle, tmp_path, state)
    elsewhere = {name: p.detach() + 1.0 for name, p in trainable(problem[0]).items()}
    with pytest.warns(
        UserWarning, match=r"query 0 .* another value .* stays spent.* number 3, so that it lacks 3 of"
    ) as told:
        release = oracle.query(elsewhere)
    assert len(told) == 1
    assert release.query == 3
    assert oracle.session.queries_made == 4
    assert oracle.remaining_queries == 6
    fresh = make_oracle()
    for _ in range(4):
        expected = fresh.query(elsewhere)
    assert same(release, expected)  # batch and noise are those of number 3, never those of number 0


def test_a_plan_that_a_line_without_a_match_uses_up_says_so(problem, make_oracle, tmp_path):
    state, _ = crashed(make_oracle, problem, tmp_path, 10)
    oracle = resumed(make_oracle, tmp_path, state)
    elsewhere = {name: p.detach() + 1.0 for name, p in trainable(problem[0]).items()}
    with (
        pytest.warns(UserWarning, match="the session has no number left, so that it lacks 10 of"),
        pytest.raises(BudgetExceededError),
    ):
        oracle.query(elsewhere)


def test_a_sum_over_other_rows_in_memory_is_released_under_a_number_of_its_own(problem, make_oracle, tmp_path):
    """Sums of few rows at once and of all round differently, so that the line does not match, and nothing is redone."""
    state, releases = crashed(make_oracle, problem, tmp_path, 1, max_physical_batch_size=3)
    oracle = resumed(make_oracle, tmp_path, state, max_physical_batch_size=7)
    release = oracle.query(trainable(problem[0]))
    assert release.query == 1
    assert not same(release, releases[0])


FLAT = tacita.FlatClipper(max_grad_norm=1.0)
PER_LAYER = tacita.PerLayerClipper(max_grad_norm={"theta": 1.0})


@pytest.mark.parametrize(
    ("mechanism", "again", "refused"),
    [
        (tacita.GaussianMechanism(noise_multiplier=2.0), dict(clipper=PER_LAYER), False),
        (tacita.CorrelatedGaussian(noise_multiplier=2.0, bands=2, power=0.5), dict(name="renamed"), True),
    ],
    ids=["block", "name"],
)
def test_the_same_values_are_not_released_again_with_other_noise(tmp_path, mechanism, again, refused):
    """Noise follows from the names of a value and its block, which a session of the caller's own settings may change.

    A redone query would otherwise be a second release of the same values at no charge.
    """
    asked = dict(
        mechanism=mechanism, sampler=tacita.CyclicSampler(batches_per_cycle=2, num_records=9, assignment="coin")
    )
    if not refused:
        asked["sampler"] = tacita.PoissonSampler(sample_rate=0.5, num_records=9)
    terms = dict(neighboring_relation="add_or_remove_one", privacy_unit="one row", path=tmp_path / "ledger.jsonl")

    def oracle(ledger, session, name="theta", clipper=FLAT):
        return tacita.GradientOracle(
            GivenSource({name: torch.ones(9, 5)}),
            estimator=tacita.ClippedSum(clipper),
            ledger=ledger,
            planned_queries=4,
            settings={"lr": 1},
            session=session,
            randomness=tacita.Randomness.insecure(0),
            **asked,
        )

    point = {"theta": torch.zeros(5), "renamed": torch.zeros(5)}
    event = oracle(tacita.Ledger(**{**terms, "path": None}), None).event
    with tacita.Ledger(**terms) as ledger:
        own = dict(planned_queries=4, settings={"lr": 1}, secure_randomness=False)
        first = oracle(ledger, ledger.register(event, **own))
        state = first.state_dict()
        first.query(point)
    with tacita.Ledger(**terms) as ledger:
        second = oracle(ledger, ledger.sessions[0], **again)
        second.load_state_dict(state)
        if refused:
            with pytest.raises(ResumeError, match="was released with other values"):
                second.query(point)
        else:
            assert second.query(point).query == 1
            assert second.session.queries_made == 2


def test_a_line_without_a_tag_takes_the_next_unused_number(problem, make_oracle, tmp_path, monkeypatch):
    """Lines of queries on a GPU had none before values were copied from there: nobody knows what was released."""
    with monkeypatch.context() as earlier:
        earlier.setattr(ReleaseGate, "_fingerprint", lambda self, *given: "")
        state, releases = crashed(make_oracle, problem, tmp_path, 3)
    oracle = resumed(make_oracle, tmp_path, state)
    again = oracle.query(trainable(problem[0]))
    assert again.query == 3
    assert not any(same(again, release) for release in releases)


def test_what_was_committed_is_released_once(problem, make_oracle):
    oracle = make_oracle()
    values = {"all": {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}}
    assert oracle.gate.commit(oracle.gate.begin(), values)
    assert oracle.gate.release()["all"]["weight"].any()
    with pytest.raises(RuntimeError, match="released once"):
        oracle.gate.release()


@pytest.mark.parametrize("made", [1, 2])
def test_where_nothing_is_redone_every_number_with_a_line_is_left_behind(problem, make_oracle, tmp_path, made):
    state, releases = crashed(make_oracle, problem, tmp_path, made)
    oracle = resumed(make_oracle, tmp_path, state)
    oracle.gate.redo_nothing()
    assert oracle.gate.position == made
    again = oracle.query(trainable(problem[0]))  # at the same point, which would have been recognised
    assert again.query == made
    assert not any(same(again, release) for release in releases)


def test_a_one_pass_session_refuses_a_line_that_does_not_match(problem, make_oracle, tmp_path):
    one_pass = dict(sampler=tacita.AllocatedSampler(batches_per_epoch=10, num_records=60))
    state, releases = crashed(make_oracle, problem, tmp_path, 3, **one_pass)
    oracle = resumed(make_oracle, tmp_path, state, **one_pass)
    assert same(oracle.query(trainable(problem[0])), releases[0])  # the identical release is still free
    elsewhere = {name: p.detach() + 1.0 for name, p in trainable(problem[0]).items()}
    with pytest.raises(ResumeError, match="cannot be continued"):
        oracle.query(elsewhere)
    assert oracle.session.queries_made == 3


def test_a_session_is_not_continued_under_another_key(problem, make_oracle, tmp_path):
    """Batches of one pass would be dealt anew: a record in two of them, where the ledger charges one."""
    one_pass = dict(sampler=tacita.AllocatedSampler(batches_per_epoch=10, num_records=60))
    state, _ = crashed(make_oracle, problem, tmp_path, 3, **one_pass)
    with pytest.raises(ResumeError, match="begun with another key"):
        resumed(make_oracle, tmp_path, state, seed=1, **one_pass)


def test_a_newer_key_leaves_used_numbers_behind(problem, make_oracle, tmp_path):
    state, _ = crashed(make_oracle, problem, tmp_path, 3)
    randomness = tacita.Randomness.insecure(0)
    randomness.session_key("train-1")
    randomness.ratchet()
    oracle = resumed(make_oracle, tmp_path, state, randomness=randomness)
    assert oracle.query(trainable(problem[0])).query == 3


def test_under_a_newer_key_a_one_pass_session_is_refused_when_it_is_loaded(problem, make_oracle, tmp_path):
    one_pass = dict(sampler=tacita.AllocatedSampler(batches_per_epoch=10, num_records=60))
    state, _ = crashed(make_oracle, problem, tmp_path, 3, **one_pass)
    randomness = tacita.Randomness.insecure(0)
    randomness.session_key("train-1")
    randomness.ratchet()
    with pytest.raises(ResumeError, match="cannot be continued"):
        resumed(make_oracle, tmp_path, state, randomness=randomness, **one_pass)


def test_an_older_key_is_ratcheted_forward(problem, make_oracle, tmp_path):
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=ledger)
    oracle.query(trainable(problem[0]))
    oracle.ratchet()  # the checkpoint is written for the new key, the key file still holds the old one
    state = oracle.state_dict()
    expected = oracle.query(trainable(problem[0]))
    oracle.session.flush()
    ledger.close()
    again = resumed(make_oracle, tmp_path, state)
    assert again.randomness.generation == 1
    assert same(again.query(trainable(problem[0])), expected)


def test_a_resumed_session_is_refused_without_its_checkpoint(problem, make_oracle, tmp_path):
    crashed(make_oracle, problem, tmp_path, 2)
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=ledger, session=ledger.sessions[0])
    with pytest.raises(ResumeError, match="load its checkpoint"):
        oracle.query(trainable(problem[0]))


def test_the_ledger_has_the_line_before_the_release_is_returned(problem, make_oracle):
    oracle = make_oracle()
    seen = []
    oracle.gate._mechanism = Spying(oracle.gate._mechanism, lambda _: seen.append(oracle.session.lookup(0)))
    oracle.query(trainable(problem[0]))
    assert seen[0] is not None


def test_each_query_seeds_the_model_anew_and_the_same_query_alike(make_oracle):
    seeds, again = ([make_oracle(seed=3).draws.seed(query) for query in range(5)] for _ in range(2))
    assert seeds == again
    assert len(set(seeds)) == 5
    assert make_oracle(seed=4).draws.seed(0) not in seeds


def test_two_oracles_cannot_draw_the_same_noise(make_oracle):
    randomness = tacita.Randomness.insecure(0)
    make_oracle(randomness=randomness)
    with pytest.raises(LedgerError):
        make_oracle(randomness=randomness)  # another ledger, the same session name: the same streams


def test_a_query_is_reserved_before_its_batch_is_read(problem, make_oracle):
    oracle, seen = make_oracle(), []
    engine = oracle.source.engine

    def spying(*args, query, **settings):
        seen.append(oracle.session.is_reserved(query))
        return engine(*args, query=query, **settings)

    oracle.source.engine = spying
    oracle.query(trainable(problem[0]))
    assert seen == [True]


def test_no_noise_is_used_twice(make_oracle):
    """Two generations of the key, two sessions, three queries, two blocks, two parameters: no two values are equal."""
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    randomness = tacita.Randomness.insecure(0)
    gates = [make_oracle(ledger=ledger, randomness=randomness).gate for _ in range(2)]
    like = {"weight": torch.zeros(3, 2, dtype=torch.float64), "bias": torch.zeros(2, dtype=torch.float64)}
    drawn = []
    for _ in range(2):
        for gate in gates:
            for query in range(3):
                drawn += [z.flatten() for block in ("a", "b") for z in gate._normals(query)(block, like).values()]
        randomness.ratchet()
    noise = torch.cat(drawn)
    assert len(noise.unique()) == len(noise) == 2 * 2 * 3 * 2 * 8


@pytest.mark.parametrize(
    "sampler",
    [
        tacita.PoissonSampler(sample_rate=0.3, num_records=60),
        tacita.FullBatchSampler(num_records=60),  # no coins at all, and noise all the same
        tacita.AllocatedSampler(batches_per_epoch=10, num_records=60),
    ],
)
def test_a_saved_key_draws_no_noise_again_for_another_ledger(problem, make_oracle, tmp_path, sampler):
    randomness = tacita.Randomness.insecure(0)
    make_oracle(randomness=randomness, sampler=sampler).query(trainable(problem[0]))
    randomness.save(tmp_path / "key")
    with pytest.raises(LedgerError, match="same noise twice"):
        make_oracle(randomness=tacita.Randomness.load(tmp_path / "key"), sampler=sampler)


def test_a_randomness_serves_one_ledger(problem, make_oracle, tmp_path):
    """In memory or in files, whatever the sessions are called; the ledger that it serves goes on."""
    randomness = tacita.Randomness.system()
    book = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    oracle = make_oracle(ledger=book, randomness=randomness)
    for other in (None, tmp_path / "other.jsonl"):
        ledger = tacita.Ledger(other, neighboring_relation="add_or_remove_one", privacy_unit="one row")
        with pytest.raises(LedgerError, match="another ledger"):
            make_oracle(ledger=ledger, randomness=randomness, purpose="score")
    release, state = oracle.query(trainable(problem[0])), oracle.state_dict()
    randomness.save(tmp_path / "key")
    book.close()
    again = resumed(make_oracle, tmp_path, state, randomness=tacita.Randomness.load(tmp_path / "key"))
    assert again.query(trainable(problem[0])).query == release.query + 1


def test_a_copied_key_file_draws_other_noise_for_another_ledger(problem, make_oracle, tmp_path):
    tacita.Randomness.system().save(tmp_path / "key")
    shutil.copy(tmp_path / "key", tmp_path / "copy")
    copies = [tacita.Randomness.load(tmp_path / name) for name in ("key", "copy")]
    all_rows = {"sampler": tacita.FullBatchSampler(num_records=60)}
    released = [
        make_oracle(randomness=copy, **all_rows).query(trainable(problem[0])).gradient["weight"] for copy in copies
    ]
    assert (released[0] != released[1]).all()


@pytest.mark.parametrize("made", [0, 3])
def test_two_copies_of_a_run_release_the_same_only_where_they_redo(problem, make_oracle, tmp_path, made):
    """And a copy that is killed again redoes what it made, at no charge."""
    (tmp_path / "one").mkdir()
    randomness, all_rows = tacita.Randomness.system(), {"sampler": tacita.FullBatchSampler(num_records=60)}
    state, releases = crashed(make_oracle, problem, tmp_path / "one", made, randomness=randomness, **all_rows)
    randomness.save(tmp_path / "one" / "key")
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    def continued(folder, count):
        """Releases of the copy's queries: with the same values in both, so that noise alone tells them apart."""
        with tacita.Ledger(
            folder / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row"
        ) as ledger:
            key, session = tacita.Randomness.load(folder / "key"), ledger.sessions[0]
            oracle = make_oracle(ledger=ledger, session=session, randomness=key, **all_rows)
            oracle.load_state_dict(state)
            found = [oracle.query(trainable(problem[0])) for _ in range(count)]
            assert session.queries_made == count
            tags[folder.name] = [session.lookup(query) for query in range(count)]
        return found

    tags = {}
    one, two = (continued(tmp_path / name, 6) for name in ("one", "two"))
    assert [a == b for a, b in zip(tags["one"], tags["two"], strict=True)] == [True] * made + [False] * (6 - made)
    assert [same(*pair) for pair in zip(one, two, strict=True)] == [True] * made + [False] * (6 - made)
    assert all(same(*pair) for pair in zip(one, releases, strict=False))
    assert all(same(*pair) for pair in zip(one, continued(tmp_path / "one", 7), strict=False))


@pytest.mark.parametrize("more", [1.0, 2.0])
def test_another_noise_is_drawn_anew(tmp_path, more):
    """The same bits twice as large would tell the value: two releases, less their noise."""
    event = GaussianSumEvent(
        relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(5.0,)
    )
    found, values = [], {"all": {"x": torch.tensor([[3.0, 0], [1.0, 0], [4.0, 0]], dtype=torch.float64)[:, 0]}}
    tacita.Randomness.system().save(tmp_path / "key")
    for std in (5.0, 5.0 * more):
        ledger = tacita.Ledger(tmp_path / "book", neighboring_relation="add_or_remove_one", privacy_unit="one row")
        session = ledger.sessions[0] if ledger.sessions else ledger.register(event, planned_queries=4)
        randomness = tacita.Randomness.load(tmp_path / "key")
        gate = ReleaseGate(session, tacita.GaussianMechanism(noise_multiplier=1.0), {"all": std}, randomness)
        if session.opened:
            gate.resume(0, randomness.generation, gate.identity)
        with gate.lock, gate.turn(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            query, given = gate.begin(), {block: dict(named) for block, named in values.items()}
            while not gate.commit(query, given):
                gate.redo_nothing()
                query = gate.begin()
            found.append(gate.release()["all"]["x"])
        assert session.queries_made == (1 if std == 5.0 else 2)
        ledger.close()
    first, second = found
    assert torch.equal(first, second) == (more == 1.0)
    assert more == 1.0 or not torch.allclose(more * first - second, (more - 1) * values["all"]["x"])


def test_what_a_resumed_run_draws_anew_has_all_of_its_noise(tmp_path):
    """Under the new key of its process, of which no earlier release is left to compare with."""
    tacita.Randomness.system().save(tmp_path / "key")
    state, drawn, std = {}, [], 2.0
    for _ in range(4):
        book = tacita.Ledger(tmp_path / "book", neighboring_relation="add_or_remove_one", privacy_unit="one row")
        oracle = GradientOracle(
            GivenSource(torch.zeros(20, 2500)),
            estimator=ClippedSum(tacita.FlatClipper(max_grad_norm=1.0)),
            ledger=book,
            sampler=tacita.FullBatchSampler(num_records=20),
            mechanism=tacita.GaussianMechanism(noise_multiplier=std),
            planned_queries=8,
            randomness=tacita.Randomness.load(tmp_path / "key"),
            **({"session": book.sessions[0]} if book.sessions else {}),
        )
        if state:
            oracle.load_state_dict(state)
        drawn += [oracle.query({"theta": torch.zeros(2500)}).released["all"]["theta"] for _ in range(2)]
        state = oracle.state_dict()
        book.close()
    check_every_query(torch.stack(drawn)[None] / std, 1e-6)


@pytest.mark.parametrize("sampler", [tacita.FullBatchSampler, partial(tacita.AllocatedSampler, batches_per_epoch=10)])
def test_a_key_that_moves_on_when_it_is_loaded_is_written_before_it_is_used(problem, make_oracle, tmp_path, sampler):
    """Killed between the first checkpoint and its key, and again before the next checkpoint: nothing is lost."""
    state, found = {}, []
    tacita.Randomness.system().save(tmp_path / "key")
    for count in (0, 3, 5):
        book = tacita.Ledger(tmp_path / "book", neighboring_relation="add_or_remove_one", privacy_unit="one row")
        session = {"session": book.sessions[0]} if book.sessions else {}
        key = tacita.Randomness.load(tmp_path / "key")
        oracle = make_oracle(ledger=book, randomness=key, sampler=sampler(num_records=60), **session)
        oracle.load_state_dict(state) if state else oracle.checkpoint(state.update, tmp_path / "lost")
        found.append([oracle.query(trainable(problem[0])) for _ in range(count)])
        book.close()
    assert all(same(*pair) for pair in zip(found[1], found[2], strict=False))
    assert [one.query for one in found[2]] == [0, 1, 2, 3, 4]


def test_assignments_survive_a_kill_between_checkpoint_and_key(problem, make_oracle, tmp_path):
    """The key file is of generation 0 and was saved before any session; the checkpoint is of generation 1."""
    one_pass = dict(sampler=tacita.AllocatedSampler(batches_per_epoch=10, num_records=60))
    ledger = tacita.Ledger(tmp_path / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row")
    randomness = tacita.Randomness.insecure(0)
    randomness.save(tmp_path / "key.json")
    oracle = make_oracle(ledger=ledger, randomness=randomness, **one_pass)
    oracle.query(trainable(problem[0]))
    expected = oracle.draws.batch(1)
    oracle.ratchet()
    state = oracle.state_dict()
    oracle.session.flush()
    ledger.close()
    again = resumed(make_oracle, tmp_path, state, randomness=tacita.Randomness.load(tmp_path / "key.json"), **one_pass)
    assert again.draws.batch(1).tolist() == expected.tolist()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_cannot_draw_the_same_noise(problem, make_oracle):
    oracle = make_oracle()

    def child():
        with pytest.raises(RuntimeError, match="forked"):
            oracle.query(trainable(problem[0]))

    assert exit_code(child) == 0
    assert oracle.query(trainable(problem[0])).query == 0


def test_a_registered_session_is_of_its_part_and_its_randomness(problem, make_oracle):
    first, second = tacita.split(problem[2], [0.5, 0.5])
    event = make_oracle(dataset=first).event
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    session = ledger.register(event, planned_queries=10, part=second.part)
    with pytest.raises(LedgerError, match="part of the records"):
        make_oracle(ledger=ledger, session=session, dataset=first, randomness=tacita.Randomness.system())
    with pytest.raises(LedgerError, match="part of the records"):
        make_oracle(ledger=ledger, session=session, randomness=tacita.Randomness.system())
    with pytest.raises(LedgerError, match="secure randomness"):
        make_oracle(ledger=ledger, session=session, dataset=second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_query_is_recognised_by_every_value_of_every_block(make_oracle, dtype):
    gate = make_oracle().gate

    def values():
        return {
            "first": {"a": torch.zeros(2, 3, dtype=dtype), "b": torch.zeros(4, dtype=dtype)},
            "second": {"c": torch.zeros(1, dtype=dtype), "d": torch.zeros((), dtype=dtype)},
        }

    tags = {gate._fingerprint(0, values()), gate._fingerprint(1, values())}
    for block, name in (("first", "a"), ("first", "b"), ("second", "c"), ("second", "d")):
        other = values()
        other[block][name].view(-1)[-1] = 1.0
        tags.add(gate._fingerprint(0, other))
    assert len(tags) == 6
    assert gate._fingerprint(0, values()) in tags
