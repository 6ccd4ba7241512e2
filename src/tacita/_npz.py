"""Arrays of an NPZ file, read without objects, and with errors that quote nothing of the file."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tacita.errors import DataStructureError

TOO_LARGE = "{!r} says that it holds more than fits into memory: take a larger machine, or a file that is not damaged."


def read_arrays(path: str | Path, says: str, choose: Callable[[list[str]], Iterable[str]]) -> dict[str, np.ndarray]:
    """Return arrays of an NPZ file by name.

    Args:
        path: The file.
        says: What the file must be, for the message: ``"data must be an NPZ file with features"``, say.
        choose: Returns the names that are wanted, given those in the file. Its ``DataStructureError`` propagates.

    Raises:
        DataStructureError: The file is not such a file, a name is not in it, a member is not an array, or they do not
            fit into memory: a forged header may say so, and a large file, and which of both it is does not show.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in choose(archive.files)}
        if not all(isinstance(values, np.ndarray) for values in found.values()):  # bytes, of a member of another kind
            raise TypeError
    except DataStructureError:
        raise
    except FileNotFoundError:
        raise DataStructureError(f"{says}: there is no file {str(path)!r}.") from None
    except MemoryError:
        raise DataStructureError(TOO_LARGE.format(str(path))) from None
    except Exception:  # NumPy raises errors of many kinds, whose words may quote the file
        raise DataStructureError(f"{says}, got {str(path)!r}.") from None
    return found
