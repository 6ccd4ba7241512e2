"""Weights of the clients' messages: private numbers in [0, 1], over a public divisor."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacita import _validate


@dataclass(frozen=True)
class ClientWeights:
    r"""Multiply every message by its client's weight, before the noise.

    A weight in [0, 1] leaves a message in its ball, which holds zero: its bound C, and 2 C between any two, are those
    of an unweighted message, even if the weight itself depends on the client's data. A client of Clip21 moves its shift
    by the unweighted message, so that the server's estimate is the weighted mean of the shifts, and the noise.

    Attributes:
        total: Public divisor in place of the number of clients; ``None`` for that number.
        share: ``total`` over the number of clients.
    """

    _values: Tensor | None
    total: float | None
    share: float

    @classmethod
    def of(cls, weights: Tensor | None, total_weight: float | None, num_clients: int) -> "ClientWeights":
        """Check what is public, and take the weights into [0, 1]; their values raise nothing."""
        if weights is None:
            if total_weight is not None:
                raise ValueError("total_weight needs weights.")
            return cls(None, None, 1.0)
        if weights.shape != (num_clients,):
            raise ValueError(f"weights must have shape ({num_clients},), got {tuple(weights.shape)}.")
        if total_weight is None:
            raise ValueError("total_weight is missing: weights are private, and the divisor of their sum is public.")
        values = weights.detach().double().nan_to_num(nan=0.0, posinf=1.0, neginf=0.0).clamp(0.0, 1.0)
        return cls(values, _validate.positive("total_weight", total_weight), total_weight / num_clients)

    def times(self, messages: Mapping[str, Tensor], clients: Tensor | None) -> Mapping[str, Tensor]:
        """Return weight times message of the clients that take part, (clients, ...) by name."""
        if self._values is None:
            return messages
        weights = self._values if clients is None else self._values[clients]
        return {
            name: message * weights.to(message.dtype).reshape(-1, *[1] * (message.ndim - 1))
            for name, message in messages.items()
        }

    def __repr__(self) -> str:
        return f"ClientWeights(total={self.total})"  # the weights are private
