"""tacita: differentially private training in PyTorch whose epsilon can be trusted.

One idea holds it together: a private gradient oracle with a line through it. Raw data only inside, ordinary
optimization outside, the ledger on the line.
"""

from pkgutil import iter_modules

import lazy_loader

__version__ = "0.2.0"

# Which room a name comes from stands in __init__.pyi, which type checkers read too. A room is imported when one of its
# names is first used: torch takes seconds, and `tacita --help` needs none of it.
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = list(sorted(set(_names) - {room.name for room in iter_modules(__path__)}))  # pyright: ignore
