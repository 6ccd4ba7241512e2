"""From a raw table to a private model: read, buy what is needed, train, score, state, predict."""

import lazy_loader

# Where a name comes from stands in __init__.pyi. A module is imported when one of its names is first used: the command
# line reads the settings, whose help needs neither torch nor numpy.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
