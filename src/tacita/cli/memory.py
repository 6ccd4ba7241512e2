"""How the command's own process keeps memory."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_SETTINGS = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_THRESHOLD: 2**30}  # bytes


def keep_freed_memory() -> bool:
    """Let the C library keep memory that was freed, up to 2 GiB, and return whether it does.

    A private step holds the gradients of all outputs at once. By default glibc hands such memory back to the system
    when it is freed, and each step then pays for clearing it again, page by page. Nothing changes where the C library
    is another one, or where the environment has settings for the allocator already.
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return all([mallopt(option, size) for option, size in _SETTINGS.items()])
