"""All planted bugs, by the room they are planted in; importing this registers them."""

from importlib import import_module
from pathlib import Path

from tests.planted.plant import BUGS

for file in sorted(Path(__file__).parent.glob("*_bugs.py")):
    import_module(f"tests.planted.{file.stem}")

__all__ = ["BUGS"]
