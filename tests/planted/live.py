"""Put a changed text of a module into a process that has imported it.

Importing tacita takes seconds, a fork of a process that has done so takes milliseconds. What the change leaves alone
stays as it is; functions whose code it changes get the new code, wherever they are held, and names that a module or a
class binds to a value get the new value. A change of anything else (a base class, a decorator, a field of a dataclass)
needs an import of its own.
"""

import ast
import gc
import importlib.abc
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import _lru_cache_wrapper
from importlib.machinery import ModuleSpec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


class NeedsImportError(Exception):
    """The change cannot be put into modules that are imported already."""


class Live:
    """The functions of a package that live in this process: made once, before it is forked."""

    def __init__(self, package: str, source: Path) -> None:
        self._package, self._source = package, source
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)
        self._caches: list[Any] = []
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename.startswith(str(source)):
                self._functions[one.__code__.co_filename].append(one)
            elif type(one) is _lru_cache_wrapper and str(one.__module__).startswith(package):
                self._caches.append(one)

    def change(self, file: str, old: str, new: str) -> None:
        """Let ``file``, whose text is ``old``, be ``new`` from now on.

        Raises:
            NeedsImportError: It is imported, and more than functions and values changes.
        """
        path = self._source / file
        name = ".".join([self._package, *Path(file).with_suffix("").parts]).removesuffix(".__init__")
        module = sys.modules.get(name)
        if module is None:
            sys.meta_path.insert(0, _Changed(name, path, new))
            return
        before, after = ast.parse(old), ast.parse(new)
        _keep_lines(after, old.splitlines(), new.splitlines())
        values = list(_take_values(before, after, []))
        compiled = [compile(tree, str(path), "exec", dont_inherit=True) for tree in (before, after)]
        codes = {_place(code): changed for code, changed in _changed_functions(*compiled)}
        found = [function for function in self._functions[str(path)] if _place(function.__code__) in codes]
        if not found and not values:
            raise NeedsImportError(f"nothing that lives changes in {file}")
        for function in found:
            _give(function, codes[_place(function.__code__)])
        for place, value in values:
            _bind(module, place, eval(compile(ast.Expression(value), str(path), "eval"), vars(module)))
        for cache in self._caches:
            cache.cache_clear()


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds one module, with the text that it has now."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def get_source(self, fullname: str) -> str:
        return self._text

    def get_filename(self, fullname: str) -> str:
        return str(self._path)


def _keep_lines(tree: ast.Module, old: Sequence[str], new: Sequence[str]) -> None:
    """Give what stands behind the change the numbers of the lines that it had, for code says where it stands."""
    pairs = zip(reversed(old), reversed(new), strict=False)
    same = next((count for count, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))
    last, last_old, shift = len(new) - same, len(old) - same, len(new) - len(old)
    for node in ast.walk(tree):
        for number, column in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
            line = getattr(node, number, None)
            if line is None:
                continue
            if line > last:
                setattr(node, number, line - shift)
            elif line > last_old:
                setattr(node, number, last_old)
                setattr(node, column, 0)


def _take_values(before: Any, after: Any, place: list[str]) -> Iterator[tuple[list[str], ast.expr]]:
    """Put names that are bound to other values back to what they were, and yield where they are and the new values."""
    if len(before.body) != len(after.body):
        return
    for number, (one, other) in enumerate(zip(before.body, after.body, strict=True)):
        if isinstance(one, ast.ClassDef) and isinstance(other, ast.ClassDef) and one.name == other.name:
            yield from _take_values(one, other, [*place, one.name])
        elif place and isinstance(one, ast.AnnAssign):
            continue  # a field of a dataclass
        elif ast.dump(one) != ast.dump(other) and (name := _bound(one)) and name == _bound(other):
            after.body[number] = one
            yield [*place, name], other.value


def _bound(statement: ast.stmt) -> str | None:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _changed_functions(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code of functions before and after; of one that makes functions, of these too."""
    inside = [[const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new)]
    shells = [
        code.replace(
            co_consts=tuple(const for const in code.co_consts if not isinstance(const, CodeType)), co_linetable=b""
        )
        for code in (old, new)
    ]
    if not old.co_flags & CO_OPTIMIZED and (shells[0] != shells[1] or len(inside[0]) != len(inside[1])):
        raise NeedsImportError(f"what {old.co_name} does when it is imported changes")
    if old.co_flags & CO_OPTIMIZED and len(inside[0]) != len(inside[1]):
        return
    for one, other in zip(*inside, strict=True):
        if one != other:
            if one.co_flags & CO_OPTIMIZED:
                yield one, other
            yield from _changed_functions(one, other)


def _place(code: CodeType) -> tuple[str, int, bytes | None]:
    """Tell functions of one file apart. Lambdas may share a line; pytest writes asserts of ``*_test.py`` anew."""
    return code.co_qualname, code.co_firstlineno, code.co_code if code.co_name == "<lambda>" else None


def _give(function: FunctionType, code: CodeType) -> None:
    if len(function.__code__.co_freevars) != len(code.co_freevars):
        raise NeedsImportError(f"{function.__qualname__} uses other names of what surrounds it")
    function.__code__ = code


def _bind(module: ModuleType, place: list[str], value: Any) -> None:
    *classes, name = place
    if classes:
        owner: Any = module
        for one in classes:
            owner = getattr(owner, one)
        setattr(owner, name, value)
        return
    before = getattr(module, name)
    for where, other in list(sys.modules.items()):
        if where.split(".")[0] in (module.__name__.split(".")[0], "tests") and vars(other).get(name, other) is before:
            setattr(other, name, value)
