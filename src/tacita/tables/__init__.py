"""Tables: from a raw table to a private model: read, buy what is needed, train, score, state, predict, select.

    file -> readers -> Table ──> survey_counts ──┃──> Survey ──> make_encoder ──> Encoder ──> training, score
                         │        (exact counts) ┃ noise            public rules     │
                         └───────────────────────┃───────────────> encode: features, target, valid rows

The exact counts and the encoded table are private. The survey, the encoder and everything in the schema are public.
"""

import lazy_loader

# Where a name comes from stands in __init__.pyi. A module is imported when one of its names is first used: the command
# line reads the settings, whose help needs neither torch nor numpy.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
