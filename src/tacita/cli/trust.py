"""The check that a configuration file which names code is trusted before that code is imported."""

from collections.abc import Mapping
from typing import Any

from tacita.errors import TacitaError

FLAG = "--trust-code"


def check_code(config: Mapping[str, Any], *, trusted: bool, given: Mapping[str, Any] | None = None) -> None:
    """Raise ``TacitaError`` if a configuration names code to import, unless it is ``trusted``.

    Args:
        config: The file's settings.
        trusted: Whether the user allows this code to run.
        given: The settings given on the command line, which replace the file's.

    Raises:
        TacitaError: The file names a model that is a callable to import.
    """
    from tacita.tables.models import is_code

    for name in _models({name: value for name, value in config.items() if name not in (given or {})}):
        if is_code(name) and not trusted:
            raise TacitaError(
                f"config names a model that is code, {name!r}, which would be imported and called. If you trust that "
                f"code, allow it with {FLAG}."
            )


def _models(config: Mapping[str, Any]) -> list[str]:
    models, sweep = [config.get("model", "linear")], config.get("sweep")
    if isinstance(sweep, str):
        from tacita.tables.settings import parse_toml

        grid = parse_toml(sweep).get("grid", {})
        found = grid.get("model", []) if isinstance(grid, Mapping) else []
        models += found if isinstance(found, list) else [found]
    return [name for name in models if isinstance(name, str)]
