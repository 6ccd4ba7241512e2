"""The C++ kernel of float32 normals on CPUs, built once for each user and kind of processor."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacita._normals import definition
from tacita._normals.definition import GROUP

FLAGS = ("-O3", "-std=c++17", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-w")
_CONSTANTS = ("LANES", "PAIRS", "LOGARITHM", "COSINE", "SINE", "TWO_LN2", "SEED", "FACTOR", "SUMMAND")
_LONGEST_BUILD = 120  # seconds


def load() -> Callable[[bytes, int, np.ndarray], None]:
    """Return the kernel, ``(key, first group, float32 values of whole groups to write)``; build it if it is not cached.

    Raises:
        OSError, subprocess.SubprocessError: It cannot be built or loaded.
    """
    function = ctypes.CDLL(str(_library())).tacita_normals
    function.restype, function.argtypes = None, [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]

    def fill(key: bytes, first: int, out: np.ndarray) -> None:
        function(key, first, len(out) // GROUP, out.ctypes.data)

    return fill


def _library() -> Path:
    """Return the shared library, from the cache or newly built."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "c++", "clang++"]
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        raise OSError("no C++ compiler was found (g++, or the environment variable CXX).")
    source = _source()
    digest = hashlib.sha256(repr((source, compiler, FLAGS, _processor())).encode()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacita"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
        raise OSError(f"others may write to {folder}.")
    name = f"normals-{digest[:32]}-"
    library = next((one for one in folder.glob(f"{name}*.so") if one.name == _named(name, one)), None)
    if library is None:
        with tempfile.TemporaryDirectory(dir=folder) as place:  # the rename is atomic, whoever else builds it now
            text, built = Path(place, "normals.cpp"), Path(place, "normals.so")
            text.write_text(source, encoding="utf-8")
            command = [compiler, *FLAGS, str(text), "-o", str(built)]
            subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_BUILD)
            built.chmod(0o700)
            library = folder / _named(name, built)
            os.replace(built, library)
    return library


def _named(name: str, library: Path) -> str:
    """Return the name of a library in the cache, which says what it holds: a damaged one has another."""
    return f"{name}{hashlib.sha256(library.read_bytes()).hexdigest()[:32]}.so"


def _source() -> str:
    """Return the C++ source, begun with the constants of the definition."""
    lines = []
    for name in _CONSTANTS:
        value = getattr(definition, name)
        many = isinstance(value, tuple)
        text = ", ".join(f"{one!r}f" if isinstance(one, float) else repr(one) for one in (value if many else [value]))
        lines.append(f"static const float {name}[] = {{{text}}};" if many else f"#define {name} {text}")
    return "\n".join([*lines, Path(__file__).with_name("normals.cpp").read_text(encoding="utf-8")])


def _processor() -> str:
    """Return what ``-march=native`` depends on: a cache may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.node()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
