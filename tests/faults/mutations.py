"""Valid files made wrong: bytes, lines, and values inside JSON; for hypothesis to choose among and to shrink."""

import copy
import json
from typing import Any

import hypothesis.strategies as st

HUGE = ("1" * 400).encode()
TOKENS = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    HUGE,
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\0" * 40,
    b"\xff\xfe",
    b"\n",
    b'"',
    b"{}",
]
VALUES = [
    None,
    True,
    -1,
    0,
    2**70,
    -(2**70),
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    "",
    "x" * 300,
    "\x00\ud800",
    [],
    {},
    [[[[[[]]]]]],
    [1, "2", None],
    {"kind": "other"},
]

edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "delete", "insert", "double", "cut", "lines", "token"]),
        st.integers(0, 2**20),
        st.integers(1, 40),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)
changes = st.lists(
    st.tuples(st.integers(0, 2**20), st.sampled_from(["replace", "remove", "add", "move"]), st.sampled_from(VALUES)),
    min_size=1,
    max_size=3,
)


def with_edits(data: bytes, chosen: list[tuple[str, int, int, int]]) -> bytes:
    """``data`` with a few bytes or lines changed."""
    for kind, place, length, byte in chosen:
        at = place % max(len(data), 1)
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << byte % 8)]) + data[at + 1 :]
        elif kind == "set":
            data = data[:at] + bytes([byte]) * length + data[at + length :]
        elif kind == "delete":
            data = data[:at] + data[at + length :]
        elif kind == "insert":
            data = data[:at] + bytes((byte + i * 37) % 256 for i in range(length)) + data[at:]
        elif kind == "double":
            data = data[: at + length] + data[at:]
        elif kind == "cut":
            data = data[:at]
        elif kind == "token":
            data = data[:at] + TOKENS[byte % len(TOKENS)] + data[at + length :]
        elif kind == "lines":
            lines = data.split(b"\n")
            i, j = at % len(lines), byte % len(lines)
            lines[i], lines[j] = lines[j], lines[i]
            data = b"\n".join(lines[: len(lines) - length % 2] if byte % 2 else [*lines, lines[i]])
    return data


def places(tree: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a tree of dicts and lists, the root left out."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = []
    for name, value in inner:
        found += [(*where, name), *places(value, (*where, name))]
    return found


def with_changes(tree: Any, chosen: list[tuple[int, str, Any]]) -> Any:
    """A copy of ``tree`` with a few values replaced, removed, added or put elsewhere."""
    tree = copy.deepcopy(tree)
    for number, kind, given in chosen:
        known, value = places(tree), copy.deepcopy(given)
        if not known:
            return tree
        *way, name = known[number % len(known)]
        owner = tree
        for step in way:
            owner = owner[step]
        if kind == "remove":
            del owner[name]
        elif kind == "add" and isinstance(owner, dict):
            owner["added"] = value
        elif kind == "add":
            owner.append(value)
        elif kind == "move":
            owner[name] = copy.deepcopy(_at(tree, known[(number * 7 + 1) % len(known)]))
        else:
            owner[name] = value
    return tree


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def as_json(tree: Any) -> bytes:
    """JSON as lax as Python's: NaN, infinities and lone surrogates included."""
    return json.dumps(tree).encode()
