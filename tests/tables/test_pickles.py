"""A file of data is never unpickled: an object in it is refused before it can run anything."""

import os

import numpy as np
import pytest

from tacita.errors import DataStructureError
from tacita.tables import read_table


class _Runs:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_an_object_in_an_npz_file_is_refused_and_not_run(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.array([_Runs(str(tmp_path / "ran"))], dtype=object))
    with pytest.raises(DataStructureError, match="without objects"):
        read_table(tmp_path / "t.npz")
    assert not (tmp_path / "ran").exists()
