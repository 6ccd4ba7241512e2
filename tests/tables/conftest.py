"""What the tests of tables share: files made of bytes, noise from a seed, the real data."""

import os
from pathlib import Path

import numpy as np
import pytest

import tacita
from tacita.tables import FileFormat, read_table, train_table


@pytest.fixture
def csv_file(tmp_path):
    """Write bytes (or lines) to a file and give its path."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
        return path

    return write


@pytest.fixture
def table_of(csv_file):
    """A table from lines of CSV, the first the header."""
    return lambda *lines, **reading: read_table(csv_file(lines), FileFormat(**reading))


@pytest.fixture
def normals():
    """Noise from a seed; asking for a label twice is the bug that reuses noise."""

    def make(seed=0, factor=1.0):
        generator, labels = np.random.default_rng(seed), set()

        def draw(label, count):
            assert label not in labels, f"the noise of {label!r} was asked for twice"
            labels.add(label)
            return factor * generator.standard_normal(count)

        return draw

    return make


@pytest.fixture(scope="session")
def tabular():
    """The folder of real tables."""
    root = Path(os.environ.get("TACITA_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (root / "tabular").is_dir():
        pytest.skip("the real tables are not here: set TACITA_DATA")
    return root / "tabular"


@pytest.fixture
def train_until(monkeypatch):
    """Train a table as its settings say, and stop before the query of a number."""

    class Stop(Exception):
        pass

    def until(settings, number):
        query = tacita.GradientOracle.query

        def stopping(self, params):
            if self.gate.position == number:
                raise Stop
            return query(self, params)

        with monkeypatch.context() as patch:
            patch.setattr(tacita.GradientOracle, "query", stopping)
            with pytest.raises(Stop):
                train_table(settings, randomness=tacita.Randomness.insecure(0))

    return until
