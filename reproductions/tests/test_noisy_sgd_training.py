"""Figures 1 to 3 of the noisy SGD paper on tiny data: networks, data, the ways to train, and that runs are kept."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import tacita
from tacita_reproductions import find
from tacita_reproductions.noisy_sgd_data import WORDS, cifar, cola
from tacita_reproductions.noisy_sgd_networks import Transformer, convnet, resnet18
from tacita_reproductions.noisy_sgd_runs import (
    EXACT,
    PAPER_NOISE,
    SGD,
    NoisySGDTask,
    accuracy,
    multiplier_of,
    oracle_of,
)
from tacita_reproductions.noisy_sgd_training import FULL, REDUCED, SMALL, _checks, pessimistic, sentences

FIGURES = ["1a", "1b", "2a", "2b", "3a", "3b"]


def names():
    return [f"noisy-sgd-figure-{name}" for name in FIGURES]


def tiny(**changes):
    settings = dict(
        build=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 4)),
        data=cifar(None, 10, 64, 32),
        max_grad_norm=2.5,
        lr=0.1,
        batch_size=16,
        epochs=1,
    )
    return NoisySGDTask(**{**settings, **changes})


def test_the_convolutional_network_has_the_papers_parameters_and_sizes():
    whole = convnet()
    assert sum(p.numel() for p in whole.parameters()) == 2_274_880
    sizes = []
    x = torch.zeros(1, 3, 32, 32)
    for layer in whole:
        x = layer(x)
        sizes.append(x.shape[-1])
    assert sizes == [32, 16, 16, 16, 8, 8, 6, 1, 128, 10, 10]


@pytest.mark.parametrize("network", [convnet, resnet18])
def test_no_network_mixes_records(network):
    """A record's output does not depend on the others, as it would with batch normalisation."""
    model, x = network(1 / 8, 10), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


def test_padding_does_not_reach_the_transformers_output():
    model = Transformer(20, WORDS, 16, 1).double()
    words = torch.tensor([[3, 4, 5, 0, 0, 0]])
    assert torch.allclose(model(words), model(words[:, :3]), atol=1e-12)
    assert torch.isfinite(model(torch.tensor([[3, 0]]))).all()
    assert not torch.allclose(model(words), model(torch.tensor([[3, 4, 6, 0, 0, 0]])))


def test_the_ways_to_train_have_the_noise_they_say():
    task = tiny()
    for method, clips in ((PAPER_NOISE, False), (EXACT, True)):
        oracle = oracle_of(task, task.build(), method, 8.0, 0)
        assert oracle.noise_std["all"] == pytest.approx(multiplier_of(task, method, 8.0) * 2.5)
        assert isinstance(oracle.estimator, tacita.ClippedSum) == clips
        if clips:
            assert oracle.ledger.epsilon(0.01) <= 8.0
        else:
            assert oracle.ledger.epsilon(0.02) == float("inf")
            assert oracle.ledger.conditional_bound(0.02).epsilon > 8.0


def test_accuracy_is_the_share_that_is_right():
    model = torch.nn.Identity()
    scores = torch.eye(4).repeat(200, 1)
    labels = torch.arange(800) % 4
    labels[:80] = (labels[:80] + 1) % 4
    assert accuracy(model, (scores, labels)) == pytest.approx(0.9)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    kept = tmp_path_factory.mktemp("kept") / "runs.jsonl"
    return kept, find("noisy-sgd-figure-2b")(kept=kept)


def test_a_figure_has_a_line_for_each_way_and_epsilon(small):
    result = small[1]
    assert [row["method"] for row in result.rows] == [SGD, *[PAPER_NOISE] * 2, *[EXACT] * 2]
    for row in result.rows:
        assert 0 <= row["test, least"] <= row["test after 100%"] <= row["test, most"] <= 1
        assert 0 <= row["longer than C"] <= 1
        assert row["largest gradient"] > 0
        if row["method"] == EXACT:
            assert 0.99 * row["nominal epsilon"] < row["real epsilon"] <= row["nominal epsilon"]
    assert result.rows[2]["real epsilon"] > 8 > result.rows[1]["real epsilon"]
    assert [check.verdict for check in result.checks] == ["depends"] * 3 + ["FAILS"] * 2  # one run of each kind


def test_a_figure_is_drawn(small, tmp_path):
    pytest.importorskip("matplotlib")
    figure = small[1].draw()
    assert all(axes.lines for axes in figure.axes)
    figure.savefig(tmp_path / "figure.png")


def test_runs_that_are_kept_are_not_made_again(small, monkeypatch):
    kept, first = small

    def refused(*settings):
        raise InterruptedError

    monkeypatch.setattr("tacita_reproductions.noisy_sgd_training.one_run", refused)
    again = find("noisy-sgd-figure-2b")(kept=kept)
    assert again.rows == first.rows
    with pytest.raises(InterruptedError):
        find("noisy-sgd-figure-2b")(kept=kept, seed=1)


@pytest.mark.parametrize(
    ("plain", "with_noise", "verdicts"),
    [
        (0.60, (0.30, 0.45, 0.59), ["holds"] * 3),
        (0.60, (0.30, 0.45, 0.50), ["holds", "holds", "FAILS"]),
        (0.60, (0.59, 0.58, 0.59), ["holds", "depends", "holds"]),  # flat: neither rises nor falls
        (0.60, (0.59, 0.45, 0.60), ["holds", "FAILS", "holds"]),
        (0.26, (0.25, 0.25, 0.26), ["depends"] * 3),  # SGD is a guess among four classes
    ],
)
def test_accuracies_are_judged_only_where_sgd_learns(plain, with_noise, verdicts):
    labels = torch.arange(4000) % 4
    data = replace(tiny().data, test=(torch.zeros(4000, 1), labels))
    entries = [(SGD, None, plain), *((PAPER_NOISE, 2.0**place, value) for place, value in enumerate(with_noise))]
    rows = [
        {
            "method": method, "nominal epsilon": nominal, "real epsilon": 100.0, "largest gradient": 1.0,
            "longer than C": 0.0,
            "test after 100%": value, "test, least": value - 0.01, "test, most": value + 0.01,
        }
        for method, nominal, value in entries
    ]  # fmt: skip
    found = _checks(rows, REDUCED, tiny(data=data), "test")
    assert [check.verdict for check in found][:3] == verdicts
    assert [check.verdict for check in found][3:] == ["holds", "holds"]
    once = _checks(rows, replace(REDUCED, seeds=1), tiny(data=data), "test")
    assert [check.verdict for check in once][:3] == ["depends"] * 3


def test_another_network_or_threshold_is_another_run():
    task = tiny()
    assert task.settings == tiny().settings
    assert task.settings != tiny(max_grad_norm=1.0).settings
    assert task.settings != tiny(build=lambda: torch.nn.Linear(2, 2)).settings
    images, labels = task.data.train
    for part in ("train", "test"):
        other = replace(task.data, **{part: (images, labels.roll(1))})
        assert task.settings != replace(task, data=other).settings


@pytest.mark.parametrize("name", names())
def test_the_full_size_needs_data_and_a_folder_without_them_says_which(name, tmp_path):
    with pytest.raises(ValueError, match="data must be given for the full size"):
        find(name)(full=True)
    with pytest.raises(ValueError, match=r"data must be a folder with .*(cifar10|cifar100|cola)"):
        find(name)(data=tmp_path)


def test_c_by_lemma_3_2_is_larger_than_the_papers():
    assert pessimistic(SMALL, None).max_grad_norm > 3 * 2.5


def test_a_folder_of_images_is_read(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    np.savez(tmp_path / "cifar10_subset.npz", x_train=x, y_train=np.arange(20) % 10, x_test=x[:8], y_test=np.arange(8))
    found = cifar(tmp_path, 10, 12, 5)
    assert [len(part) for part in (*found.train, *found.test)] == [12, 12, 5, 5]
    assert float(found.train[0][3, 1, 2, 3]) == pytest.approx((x[3, 1, 2, 3] / 255 - 0.4822) / 0.2435, abs=1e-5)
    assert found.classes == 10


def test_all_images_of_cifar_10_are_read_from_jpeg(tmp_path):
    image = pytest.importorskip("PIL.Image")
    import io

    files = []
    for shade in (10, 200):
        file = io.BytesIO()
        image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(file, "JPEG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    ends = np.cumsum([0, *map(len, files)])
    joined = {f"jpeg_{part}": np.concatenate(files) for part in ("train", "test")}
    offsets = {f"offset_{part}": ends for part in ("train", "test")}
    labels = {f"y_{part}": np.array([3, 7]) for part in ("train", "test")}
    np.savez(tmp_path / "cifar10_jpeg_full.npz", **joined, **offsets, **labels)
    found = cifar(tmp_path, 10, 50_000, 10_000)
    assert found.train[0].shape == (2, 3, 32, 32)
    assert found.train[1].tolist() == [3, 7]
    dark, light = found.test[0].mean((1, 2, 3)).tolist()
    assert dark < -1
    assert light > 1


def test_sentences_are_numbered_by_the_words_of_the_training_part(tmp_path):
    (tmp_path / "cola").mkdir()
    for part in ("train", "dev"):
        with (tmp_path / f"cola/in_domain_{part}.tsv").open("w", newline="") as file:
            lines = [["a", "1", "", "The cat sat."], ["a", "0", "*", 'Sat "the the']]
            csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None).writerows(lines)
    found = cola(tmp_path, 10, 10)
    assert found.train[0].shape == (2, WORDS)
    assert sorted(found.train[1].tolist()) == [0, 1]
    good = found.train[0][found.train[1] == 1][0].tolist()
    assert good[1] == 1
    assert good[2] > 1
    assert good[3:] == [1, *[0] * (WORDS - 4)]  # cat and the full stop are there once
    assert found.vocabulary == 4  # padding, another word, the, sat


def test_the_scales():
    assert sentences(FULL, None).data.vocabulary == 20
    assert FULL.seeds == 10
    assert len(FULL.epsilons) == 7
    assert REDUCED.seeds > 1
