"""The end of a message about an unknown name: the known names that are spelt nearly alike."""

import difflib
from collections.abc import Iterable

LONGEST = 200  # characters; no name of ours is near a longer one


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with up to three of the ``known`` names that are near ``name``, or an empty text.

    Near are those that hold it as one of their words, else those that are spelt nearly alike. The text begins with a
    space, so that it can follow the end of any message.

    Example:
        >>> did_you_mean("epsilom", ["epsilon", "delta"])
        " Did you mean 'epsilon'?"
        >>> did_you_mean("rows", ["epsilon", "delta"])
        ''
    """
    names = list(known)
    near = [one for one in names if name in one.split("_")][:3] or difflib.get_close_matches(name[:LONGEST], names)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
