"""The loop on records: user code meets them here, one at a time, and what it keeps or draws is looked for.

``method="loop"`` alone loads this room. What it sees is refused; that it sees everything is an assumption of the
guarantee, and the statement says so. Proof of the rest: docs/derivations/per-record-engine.md, section 8.
"""

from tacita.gradients.watched.operators import declare_operator
from tacita.gradients.watched.retention import RemembersError
from tacita.gradients.watched.watched_loop import WatchedLoop, choose

__all__ = ["RemembersError", "WatchedLoop", "choose", "declare_operator"]
