"""Mechanisms on a line that do what the one inside does, but tell a test of it, or add other noise than they state."""

from collections.abc import Callable
from typing import Any


class _Around:
    def __init__(self, mechanism: Any) -> None:
        self._inner = mechanism
        self.in_stretches, self.check_paid = mechanism.in_stretches, mechanism.check_paid


class Spying(_Around):
    """Call ``seen`` with the values of each call, then the mechanism inside."""

    def __init__(self, mechanism: Any, seen: Callable[[Any], object]) -> None:
        super().__init__(mechanism)
        self._seen = seen

    def __call__(self, values: Any, noise_std: Any, normals: Any) -> Any:
        self._seen(values)
        return self._inner(values, noise_std, normals)


class Scaled(_Around):
    """Add ``factor`` times the stated noise. The line cannot know: only a test of the released values does."""

    def __init__(self, mechanism: Any, factor: float) -> None:
        super().__init__(mechanism)
        self._factor = factor

    def __call__(self, values: Any, noise_std: Any, normals: Any) -> Any:
        return self._inner(values, {block: self._factor * std for block, std in noise_std.items()}, normals)
