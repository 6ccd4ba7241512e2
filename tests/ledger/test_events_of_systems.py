"""An event of a system is read where nobody has imported that system, as a ledger from another process is."""

import json
import subprocess
import sys

from tacita.accounting.plain_data import SYSTEMS

READ = """
import json, sys
import tacita.ledger
from tacita.accounting import Event
early = [name for name in {systems!r} if name in sys.modules]
assert not early, early
for line in sys.stdin:
    print(type(Event.from_dict(json.loads(line))).__module__)
"""


def test_events_of_systems_are_read_without_them(events):
    every = events.one_of_each()
    systems = [f"tacita.{system}" for system in SYSTEMS]
    found = subprocess.run(
        [sys.executable, "-c", READ.format(systems=systems)],
        input="".join(json.dumps(event.to_dict()) + "\n" for event in every),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout.splitlines() == [type(event).__module__ for event in every], found.stderr[-500:]
    assert {type(event).__module__.split(".")[1] for event in every} >= {"convex", "error_feedback", "federated"}
