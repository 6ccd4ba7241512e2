"""Images as a column: scattering features in place of their pixels, from training to prediction; and the averages."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import tacita
import tacita.tables.encoded_rows as encoded_rows_module
from tacita.random import Randomness
from tacita.tables import train_table
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.features import ScatteringPiece
from tacita.tables.predict import predict_file

ROWS = 60


@pytest.fixture
def images(settings, table) -> np.ndarray:
    """Stripes, upright or level, at every place: no pixel tells the class, and wavelets do."""
    draw = np.random.default_rng(3)
    digit, phase = np.arange(ROWS) % 2, draw.integers(0, 4, ROWS)
    stripes = 200 * ((np.arange(12)[None, :] + phase[:, None]) % 4 < 2)
    pixels = np.where(digit[:, None, None], stripes[:, :, None], stripes[:, None, :]) * np.ones((ROWS, 12, 12))
    np.savez("images.npz", image=pixels.astype(np.uint8), digit=digit)
    return pixels.astype(np.uint8)


def trained(settings, **changes):
    wanted = {"data": "images.npz", "target": "digit", "drop": (), "epsilon": 100.0, "queries": 30, **changes}
    return train_table(settings(**wanted), randomness=Randomness.insecure(0))


def weights(output: str) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(Path(output) / "model.safetensors")


def test_one_flag_trains_on_features_and_a_prediction_takes_images(settings, images):
    run = trained(settings, features="scattering")
    model = tacita.load("run")
    (piece,) = model.encoder.pieces
    assert isinstance(piece, ScatteringPiece)
    assert (piece.shape, piece.groups) == ((12, 12), 27)
    assert (model.predict({"image": images}) == np.array(["0", "1"] * (ROWS // 2), dtype=object)).all()
    assert run.fields["features"] == "scattering"
    assert "features: scattering" in run.statement
    assert not (Path("run") / "private").exists()  # and with it any file of features
    predict_file(model, "images.npz", "scored.csv")
    assert len(Path("scored.csv").read_text().splitlines()) == ROWS + 1


def test_chunks_change_no_bit_of_what_is_trained_on(settings, images, monkeypatch):
    seen: dict[str, list[bytes]] = {"whole": [], "cut": []}
    append = EncodedFile.append
    for name, most in (("whole", 2**26), ("cut", 7 * 81 * 9)):

        def watched(file, encoded, rows, into=seen[name]):
            into.append(encoded.features[torch.from_numpy(rows)].numpy().tobytes())
            append(file, encoded, rows)

        monkeypatch.setattr(EncodedFile, "append", watched)
        monkeypatch.setattr(encoded_rows_module, "ENCODED_AT_ONCE", most)
        trained(settings, features="scattering", output=name)
    assert len(seen["cut"]) > 2 * ROWS // 7 > len(seen["whole"])
    for part in (0, 1):  # held out, and kept
        assert b"".join(seen["cut"][part::2]) == b"".join(seen["whole"][part::2])
    assert weights("cut")["weight"].tobytes() == weights("whole")["weight"].tobytes()


def test_a_table_without_images_is_refused(settings, table):
    with pytest.raises(ValueError, match="features belong to columns of images"):
        train_table(settings(features="scattering"))
    assert not Path("run").exists()


def test_an_array_that_is_no_image_is_refused(settings, table):
    np.savez("images.npz", image=np.zeros((9, 5), np.uint8), digit=np.arange(9) % 2)
    with pytest.raises(ValueError, match="shape must be that of an image"):
        trained(settings, features="scattering")


@pytest.mark.parametrize(("name", "value"), [("features", "wavelets"), ("average", "all")])
def test_a_wrong_setting_is_named(settings, name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        settings(**{name: value})


def test_the_average_is_as_asked_and_costs_nothing(settings, table):
    found = {}
    for average in (None, "half", "last", "ema"):
        run = train_table(settings(output=str(average), average=average, queries=40), randomness=Randomness.insecure(0))
        found[average] = weights(str(average))["weight"], run.fields["epsilon"]
        assert run.fields.get("average") == average
    assert found[None][0].tobytes() == found["half"][0].tobytes()
    assert len({weight.tobytes() for weight, _ in found.values()}) == 3
    assert len({epsilon for _, epsilon in found.values()}) == 1
