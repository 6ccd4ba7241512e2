"""A number of things in words."""


def counted(number: float, noun: str) -> str:
    """Return ``number``, rounded to a whole one, with its noun in singular or plural.

    Example:
        >>> counted(1, "row"), counted(0, "query"), counted(1234.0, "row"), counted(2, "class")
        ('1 row', '0 queries', '1,234 rows', '2 classes')
    """
    shown = f"{number:,.0f}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return f"{shown} {noun if shown == '1' else plural}"
