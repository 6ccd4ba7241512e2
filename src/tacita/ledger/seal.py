"""The seal: the last line of a ledger, which ties the ledger to the files of its run.

The seal holds the SHA-256 of each file of a finished run and of the fields of its statement. The ledger's hash chain
covers the seal, so that an exchanged model, configuration or statement shows, even if the hash in the statement was
changed as well. It claims nothing against somebody who rewrites the ledger and every copy of its anchor.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tacita.errors import LedgerError
from tacita.ledger.hash_chain import Anchor, canonical, sha256

NAME = re.compile(r"\w[\w. +-]*", re.ASCII)  # no folder, no drive: the file stands beside the ledger


@dataclass(frozen=True)
class Seal:
    """The hashes of what was made with a ledger.

    Attributes:
        files: SHA-256 by file name, of files in the ledger's folder.
        statement: SHA-256 of the statement's fields, as canonical JSON.
        after: How far the ledger had come before the seal; the statement holds the same.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"files", "statement"})

    files: Mapping[str, str]
    statement: str
    after: Anchor = field(compare=False)

    def __post_init__(self) -> None:
        for name, digest in self.files.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"a sealed file must have a plain name, without its folder, got {name!r}.")
            if not (isinstance(digest, str) and len(digest) == 64):
                raise ValueError(f"files must give the SHA-256 of {name!r} in hexadecimal.")

    @classmethod
    def of(cls, statement: Mapping[str, Any], files: Mapping[str, str], after: Anchor) -> "Seal":
        """Return the seal over ``statement`` and ``files``."""
        return cls(dict(sorted(files.items())), statement_sha256(statement), after)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a ``seal`` line."""
        return {"files": dict(self.files), "statement": self.statement}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], after: Anchor) -> "Seal":
        """Read what :meth:`to_fields` wrote, strictly."""
        files, statement = fields["files"], fields["statement"]
        if not isinstance(files, dict) or not isinstance(statement, str):
            raise LedgerError("a seal holds the hashes of files, and of a statement.")
        return cls(files, statement, after)


def statement_sha256(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a statement's fields.

    Example:
        >>> statement_sha256({"epsilon": 1.0, "delta": 1e-5}) == statement_sha256({"delta": 1e-5, "epsilon": 1.0})
        True
    """
    return sha256(canonical(dict(fields)))
