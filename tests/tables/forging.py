"""What somebody can do to a finished run who rewrites statement, ledger and anchor: nothing shows then."""

import json
from pathlib import Path

from tacita.ledger import verify_file
from tacita.ledger.hash_chain import canonical, sha256
from tacita.ledger.records import statement_sha256
from tacita.ledger.statement import statement_bytes
from tacita.runs.sealed_run import STATEMENT


def resealed(folder: Path) -> None:
    """Make statement, seal and anchor fit the files as they are now."""
    path = folder / "ledger.jsonl"
    *lines, last = path.read_bytes().splitlines()
    seal = json.loads(last)
    seal["files"] = {name: sha256((folder / name).read_bytes()) for name in seal["files"]}
    stated = json.loads((folder / STATEMENT).read_bytes())
    stated["files"] = {name: seal["files"].get(name, digest) for name, digest in stated.get("files", {}).items()}
    (folder / STATEMENT).write_bytes(statement_bytes(stated))
    seal["statement"] = statement_sha256(stated)
    path.write_bytes(b"".join(line + b"\n" for line in [*lines, canonical(seal)]))
    anchor = {"count": len(lines) + 1, "head": sha256(canonical(seal))}
    (folder / "ledger.head.json").write_bytes(canonical(anchor) + b"\n")
    assert verify_file(path).ok
