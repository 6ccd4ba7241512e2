"""What a disk may hold after the power went: every legal state, by POSIX and no more.

A file's bytes are sure up to its last flush; of what was written since, any part may be there, torn or as zeros. A
name (made, renamed, removed) is sure once its *folder* was flushed; of the names changed since, any may have survived,
whatever became of the others. A rename is one change. That is harsher than ext4, and what a program may count on.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.calls import Call

Tree = dict[str, Any]  # name -> bytes, or the tree of a folder
MOST_CHANGES = 6  # of one folder; beyond it prefixes only


@dataclass(eq=False)
class File:
    """Its bytes when it was last flushed (none, for a new one), and after each change since."""

    versions: list[bytes] = field(default_factory=lambda: [b""])

    def change(self, content: bytes) -> None:
        self.versions.append(content)

    def flush(self) -> None:
        self.versions = self.versions[-1:]

    def survivors(self) -> list[bytes]:
        sure, last = self.versions[0], self.versions[-1]
        if len(self.versions) == 1:
            return [sure]
        found = list(self.versions)
        if last.startswith(sure):
            new = len(last) - len(sure)
            found += [last[: len(sure) + new // 2], sure + bytes(new)]
        return list(dict.fromkeys(found))


@dataclass(eq=False)
class Folder:
    """Its names when it was last flushed, and the changes since: each a mapping of names to what they now are."""

    sure: dict[str, "File | Folder"] = field(default_factory=dict)
    changes: list[dict[str, "File | Folder | None"]] = field(default_factory=list)

    def names(self, changes: Any = None) -> dict[str, "File | Folder"]:
        found = dict(self.sure)
        for change in self.changes if changes is None else changes:
            for name, node in change.items():
                if node is None:
                    found.pop(name, None)
                else:
                    found[name] = node
        return found

    def flush(self) -> None:
        self.sure, self.changes = self.names(), []

    def survivors(self) -> Iterator[Tree]:
        if len(self.changes) > MOST_CHANGES:
            chosen = [self.changes[:n] for n in range(len(self.changes) + 1)]
        else:
            chosen = [list(itertools.compress(self.changes, kept)) for kept in _subsets(len(self.changes))]
        for changes in chosen:
            names = self.names(changes)
            for contents in itertools.product(*(list(node.survivors()) for node in names.values())):
                yield dict(zip(names, contents, strict=True))


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    return itertools.product((1, 0), repeat=count)


class Recorder:
    """Follows the calls on one folder, and collects every state that a loss of power may leave.

    Attributes:
        states: Each distinct state, with the largest mark that was set when it could arise.
        mark: Set by the caller: how much had been released.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.top = root, Folder()
        self.mark = 0
        self.states: dict[Any, tuple[Tree, int]] = {}
        self._collect()

    def __call__(self, call: Call) -> Any:
        existed = call.path.exists() if call.name == "open" else True
        result = call.do()
        self._follow(call, result, existed)
        self._collect()
        return result

    def released(self, mark: int) -> None:
        """Something left the oracle: whatever the disk holds from now on must cover it."""
        self.mark = mark
        self._collect()

    def _follow(self, call: Call, result: Any, existed: bool) -> None:
        folder, name = self._folder(call.path.parent), call.path.name
        if call.name == "open":
            if not existed:
                folder.changes.append({name: File()})
            elif call.arguments[1] & os.O_TRUNC:
                self._node(call.path).change(b"")
        elif call.name == "mkdir":
            folder.changes.append({name: Folder()})
        elif call.name in ("unlink", "remove", "rmdir"):
            folder.changes.append({name: None})
        elif call.name in ("replace", "rename"):
            target = Path(os.path.abspath(call.arguments[1]))
            assert target.parent == call.path.parent
            folder.changes.append({name: None, target.name: folder.names()[name]})
        elif call.name == "fsync":
            self._node(call.path).flush()
        elif call.name == "write":
            file = self._node(call.path)
            file.change(file.versions[-1] + bytes(call.arguments[1][:result]))
        elif call.name == "ftruncate":
            file = self._node(call.path)
            file.change(file.versions[-1][: call.arguments[1]])
        else:
            raise AssertionError(
                f"the model of the disk does not know os.{call.name}: add to Recorder._follow what it changes, and "
                "which of that is sure after a loss of power."
            )

    def _node(self, path: Path) -> Any:
        node: Any = self.top
        for part in path.relative_to(self.root).parts:
            node = node.names()[part]
        return node

    def _folder(self, path: Path) -> Folder:
        return self._node(path) if path != self.root.parent else Folder({self.root.name: self.top})

    def _collect(self) -> None:
        for tree in self.top.survivors():
            key = _key(tree)
            self.states[key] = (tree, max(self.mark, self.states.get(key, (tree, 0))[1]))


def _key(tree: Any) -> Any:
    if isinstance(tree, bytes):
        return tree
    return frozenset((name, _key(node)) for name, node in tree.items())


def put(tree: Tree, folder: Path) -> None:
    """Make ``folder`` hold ``tree``; what stands in a folder called private is its owner's alone."""
    folder.mkdir(exist_ok=True, mode=0o700 if folder.name == "private" else 0o755)
    for name, node in tree.items():
        if isinstance(node, bytes):
            (folder / name).write_bytes(node)
            (folder / name).chmod(0o600 if folder.name == "private" else 0o644)
        else:
            put(node, folder / name)
