"""What to install where an optional library is missing. It names no distribution ``tacita`` on any index."""

import re
from importlib.metadata import PackageNotFoundError, requires


def not_installed(library: str, extra: str) -> str:
    """Return the message for a missing library: the extra, as a clone installs it, and the packages that it brings.

    Example:
        >>> not_installed("matplotlib", "report")
        "matplotlib is not installed: pip install '.[report]' in the clone of tacita, or pip install 'matplotlib>=3.9'."
    """
    try:
        found = [re.fullmatch(rf"""([^;]+?) *; *extra == ["']{extra}["']""", one) for one in requires("tacita") or []]
    except PackageNotFoundError:  # run from its source, without an installation
        found = []
    packages = " ".join(f"'{one[1]}'" for one in found if one)
    alone = f", or pip install {packages}" if packages else ""
    return f"{library} is not installed: pip install '.[{extra}]' in the clone of tacita{alone}."
