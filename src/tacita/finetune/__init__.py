"""Private fine-tuning of language models: from a model and a file of texts to an adapter under a seal.

    lines -> TextRecord -> TokenEncoder -> EncodedTexts ──> fit, one loss a record ──┃──> adapter, statement, seal

Records and tokens are private. Settings, templates, lengths and the base model are public.
"""

import lazy_loader

# Where a name comes from stands in __init__.pyi. A module is imported when one of its names is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
