"""The only query of a session: values that were computed at once go in, and noisy ones come out.

Place: oracles.gate -> [oracles.single_query] -> tables, linear_model, which buy counts and scores this way.
"""

from collections.abc import Mapping

from tacita.errors import ResumeError
from tacita.estimators.estimator import Values
from tacita.ledger import Session
from tacita.mechanisms.mechanism import AddsNoise, Blocks
from tacita.oracles.gate import ReleaseGate
from tacita.random import Randomness


def answer_once(
    session: Session,
    mechanism: AddsNoise,
    noise_std: Mapping[str, float],
    values: Blocks,
    randomness: Randomness,
    *,
    contribution: Mapping[str, float] | None = None,
) -> Values:
    """Make the only query of ``session``: write the ledger, return the noisy values, and close the session.

    If an earlier process made it, with the same values, the same release is returned at no charge.

    Args:
        session, mechanism, noise_std, randomness, contribution: As in :class:`ReleaseGate`.
        values: The bounded values by block.

    Raises:
        LedgerError: The noise is less than what the session's event promises.
        ResumeError: An earlier process released other values: the data or the settings were changed.
    """
    gate = ReleaseGate(session, mechanism, noise_std, randomness, contribution=contribution)
    if session.opened:
        gate.resume(0, randomness.generation, gate.identity)
    with gate.lock, gate.turn():
        if not gate.commit(gate.begin(), {block: dict(named) for block, named in values.items()}):
            raise ResumeError(
                f"session {session.id!r} was released before with other counts: the data are not those that the run "
                "started with. Restore them."
            )
        released = gate.release()
    if not session.closed:
        session.close()
    return released
