"""An extension of the site's reference, which reads docstrings as :mod:`docs.sphinx_roles` writes them."""

from typing import Any

from griffe import Extension, Object

from docs.sphinx_roles import markdown


class SphinxRoles(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
