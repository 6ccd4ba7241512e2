"""Federated training: clients that send clipped and noisy messages, whole federations simulated at once, or for real.

Which module a name comes from stands in ``__init__.pyi``. It is imported when the name is first used: a transport's
client app is a new process in every round, and needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
