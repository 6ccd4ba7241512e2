"""The second verifier, ``docs/verify.mjs``, asked about many folders in one process of Node.js."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

VERIFIER = Path(__file__).parents[2] / "docs" / "verify.mjs"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not here")
_ASK = """
import { createInterface } from "node:readline";
const { main } = await import(process.argv[1]);
const said = console.log;
for await (const line of createInterface({ input: process.stdin })) {
  const words = [];
  console.log = (text) => words.push(text);
  const code = main(JSON.parse(line));
  said(JSON.stringify([code, words.join("; ")]));
}
"""


def asked(calls: Iterable[Sequence[object]]) -> list[tuple[int, str]]:
    """Return exit code and words for each list of arguments."""
    lines = "".join(json.dumps([str(one) for one in call]) + "\n" for call in calls)
    command = [NODE, "--input-type=module", "-e", _ASK, VERIFIER.as_uri()]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)  # type: ignore[arg-type]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
