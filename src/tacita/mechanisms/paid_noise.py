"""Compare the noise that is about to be added with the noise that the session's event promises.

Place: accounting -> [mechanisms.paid_noise] -> oracles.gate, which asks before it adds noise.
"""

from collections.abc import Mapping

from tacita.accounting import Event
from tacita.accounting.events.event import NoiseSettings, parts_of
from tacita.errors import LedgerError

ROUNDING = 1 - 2.0**-48  # of a quotient of two computed numbers, where a contribution is less than in the event


def check_gaussian_noise(
    event: Event, noise_std: Mapping[str, float], contribution: Mapping[str, float] | None = None
) -> None:
    """Raise ``LedgerError`` if a block would get less Gaussian noise than ``event`` promises.

    An event of one block promises the same noise for each block. An event of several parts, such as queries that take
    turns, must be kept in each part, and a part that releases fewer blocks promises noise for the first ones. Nothing
    is compared where the event has no Gaussian noise (:attr:`Event.noise_settings
    <tacita.accounting.Event.noise_settings>` is ``None`` in every part).

    Args:
        event: What the session pays for.
        noise_std: Standard deviation of the noise on each block, in the order of the event's blocks.
        contribution: Largest L2 norm that one record adds to each block, if it is not the event's. The noise may then
            be smaller in the same proportion.
    """
    promises = [settings for part in parts_of(event) if (settings := part.noise_settings) is not None]
    if not promises:
        return
    blocks = max(len(settings.noise_std) for settings in promises)
    if blocks > 1 and len(noise_std) > blocks:
        raise LedgerError(f"noise_std has {len(noise_std)} blocks, and the session's event pays for {blocks}.")
    for settings in promises:
        for place, (block, std) in enumerate(noise_std.items()):
            of = 0 if blocks == 1 else place
            if of < len(settings.noise_std):
                _check_block(block, std, settings, of, None if contribution is None else contribution[block])


def _check_block(block: str, std: float, settings: NoiseSettings, of: int, contribution: float | None) -> None:
    promised = settings.noise_std[of]
    if contribution is not None and contribution != settings.max_contribution[of]:
        promised *= contribution / settings.max_contribution[of] * ROUNDING
    if not std >= promised:  # written so that NaN is refused too
        raise LedgerError(
            f"noise_std of block {block!r} is {std:.6g}, and the session's event promises {promised:.6g}: what is in "
            "the ledger would be less than what is spent. Register the session with the noise that is added."
        )
