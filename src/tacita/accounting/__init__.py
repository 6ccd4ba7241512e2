"""Accounting: what sessions spend, and the epsilon and delta that follow.

Which module a name comes from stands in ``__init__.pyi``. It is imported when the name is first used, so that nobody
loads the events that they do not use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
