"""The answer of a stationary test, in the place of a mechanism on the line: does the value pass the threshold?

Place: mechanisms.above_threshold -> [oracles.threshold_answer] -> oracles.gate. Nothing but the answer leaves.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacita._stream import Noise
from tacita.accounting import Event
from tacita.accounting.events.event import parts_of
from tacita.errors import LedgerError
from tacita.mechanisms.mechanism import Blocks
from tacita.second_order.above_threshold import AboveThreshold, AboveThresholdEvent

ANSWER, PASSES = "answer", "passes"  # block and name of the one value that leaves


class ThresholdAnswer:
    """Turns the value into the answer, in the place of a mechanism on the line."""

    in_stretches: ClassVar[bool] = False

    def __init__(self, mechanism: AboveThreshold, threshold: float) -> None:
        self._mechanism, self._threshold = mechanism, threshold
        self.threshold_draw = math.nan  # which passes nothing

    def check_paid(self, event: Event, _noise_std: Any, _contribution: Any) -> None:
        """Raise ``LedgerError`` unless ``event`` is one of comparisons with no more noise than there is here."""
        added = self._mechanism.threshold_scale, self._mechanism.query_scale
        for part in parts_of(event):
            if not isinstance(part, AboveThresholdEvent) or not (
                self._mechanism.sensitivity <= part.sensitivity
                and added[0] >= part.threshold_scale
                and added[1] >= part.query_scale
            ):
                raise LedgerError(
                    f"the noise of comparisons has the scales {added[0]:.6g} and {added[1]:.6g}, and the session's "
                    f"event promises something else: {part.describe()}."
                )

    def __call__(self, values: Blocks, _noise_std: Any, noise: Noise) -> dict[str, dict[str, Tensor]]:
        passes = self._mechanism(
            float(values[ANSWER][PASSES]),
            threshold=self._threshold,
            threshold_draw=self.threshold_draw,
            query_draw=float(noise.stream(ANSWER).laplaces(1)[0]),
        )
        return {ANSWER: {PASSES: torch.tensor([bool(passes)])}}
