"""The end of a message about an unknown name: the known names that are spelt nearly alike."""

import difflib
from collections.abc import Iterable

LONGEST = 200  # characters; no name of ours is near a longer one


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with up to three of the ``known`` names that are near ``name``, or an empty text.

    Near are those that are spelt nearly alike, then those that hold it as one of their words. The text begins with a
    space, so that it can follow the end of any message.

    Example:
        >>> did_you_mean("epsilom", ["epsilon", "delta"])
        " Did you mean 'epsilon'?"
        >>> did_you_mean("rows", ["epsilon", "delta"])
        ''
    """
    names = list(known)
    holding = [one for one in names if name in one.split("_")]
    near = [*dict.fromkeys([*difflib.get_close_matches(name[:LONGEST], names), *holding])][:3]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
