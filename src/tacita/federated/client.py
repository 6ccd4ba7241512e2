"""A client over its own data: an oracle whose state moves when the server has acknowledged its message.

Place: oracles -> [federated.client] -> the wire. Nothing but :class:`Message` leaves a client.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tacita.federated.clipped_difference import ClippedDifference, ClippedMean
from tacita.federated.released_difference import ReleasedDifference
from tacita.oracles import GradientOracle

NOTHING = -1  # the number of a message before the first


@dataclass(frozen=True)
class Message:
    """What a client sends: noisy, and paid for in its ledger.

    Attributes:
        number: Number of the query; the server names the last one that it accepted in its next broadcast.
        values: The noisy clipped message, by parameter name.
        noise_std: Standard deviation of the noise, by block.
    """

    number: int
    values: dict[str, Tensor]
    noise_std: dict[str, float]


class Client:
    """Answers broadcasts from one client's data, in two phases.

    The momentum and the shift of the client must be those of the messages that the server has added up. If they moved
    with a message that was lost, the server would miss that message for good. So a client keeps the state from before
    its last message until a broadcast shows whether it was accepted; if not, it goes back. Sending again is a new query
    with new noise and a charge of its own. Going back changes no guarantee: a message moves by at most 2 C whatever the
    state is.

    Args:
        oracle: The oracle over the client's data, with a :class:`~tacita.federated.ClippedDifference`, a
            :class:`~tacita.federated.ReleasedDifference` or a :class:`~tacita.federated.ClippedMean`. Build it with
            ``reservation=1``, so that a process that lives for one round pays for one query.

    Raises:
        TypeError: The oracle has another estimator.
        ValueError: The estimator clips samples: its guarantee needs a state that moves with every message.

    Example:
        >>> import torch, tacita
        >>> from tacita.federated import ClippedDifference
        >>> from tacita.gradients import GivenSource
        >>> oracle = tacita.GradientOracle(
        ...     GivenSource(torch.ones(10, 2)),
        ...     estimator=ClippedDifference(
        ...         clipper=tacita.FlatClipper(max_grad_norm=1.0), momentum_weight=0.5, divisor=10.0),
        ...     mechanism=tacita.GaussianMechanism(noise_multiplier=4.0), planned_queries=3, reservation=1,
        ...     sampler=tacita.FullBatchSampler(num_records=10),
        ...     ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="all data of one client"))
        >>> client = Client(oracle)
        >>> first = client.answer({"theta": torch.zeros(2)}, accepted=None)
        >>> second = client.answer({"theta": torch.zeros(2)}, accepted=first.number)
        >>> first.number, second.number, second.values["theta"].shape
        (0, 1, torch.Size([2]))
    """

    def __init__(self, oracle: GradientOracle) -> None:
        estimator = oracle.estimator
        if not isinstance(estimator, ClippedDifference | ClippedMean | ReleasedDifference):
            raise TypeError(
                f"oracle must have a ClippedDifference or a ClippedMean, got {type(estimator).__name__}: the guarantee "
                "of another estimator may not hold once its state is set back."
            )
        if not estimator.any_change:
            raise ValueError(
                "sample_clipper must be None for a client whose messages may be lost: its guarantee is proved only for "
                "a state that changes with every message."
            )
        self._oracle = oracle
        self._before: Any = None  # the state before the last message; private
        self._sent = self._accepted = NOTHING

    @property
    def remaining_queries(self) -> int:
        """Number of planned messages that are left."""
        return self._oracle.remaining_queries

    @property
    def remembers(self) -> bool:
        """Whether a message depends on those before it, as that of a clipped difference does."""
        return self._oracle.state_dict()["estimator_state"] is not None

    def answer(self, params: Mapping[str, Tensor], *, accepted: int | None) -> Message:
        """Return the message to a broadcast. Save :meth:`state_dict` before you send it.

        Args:
            params: The broadcast model.
            accepted: Number of this client's last message that the server has accepted; ``None`` if it has none.

        Raises:
            BudgetExceededError: The plan is used up.
            ValueError: ``accepted`` is not a number that this client has sent.
        """
        self._settle(NOTHING if accepted is None else accepted)
        before = self._oracle.state_dict()["estimator_state"]
        release = self._oracle.query(params)
        self._before, self._sent = before, release.query
        return Message(release.query, release.gradient, dict(release.noise_std))

    def _settle(self, accepted: int) -> None:
        """Keep the state of the last message if it was accepted; go back to the one before if it was not."""
        if isinstance(accepted, bool) or accepted not in (self._sent, self._accepted):
            raise ValueError(
                "accepted must be the number of the last message, or of the one that was accepted before it, got "
                f"{accepted!r}."
            )
        if accepted != self._sent:
            state = self._oracle.state_dict()
            self._oracle.load_state_dict({**state, "estimator_state": copy.deepcopy(self._before)})
        self._sent = self._accepted = accepted
        self._before = None

    def state_dict(self) -> dict[str, Any]:
        """Return what the client keeps on its own disk between rounds. Private: never send it."""
        numbers = {"sent": self._sent, "accepted": self._accepted}
        return {"oracle": self._oracle.state_dict(), "before": copy.deepcopy(self._before), **numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`, for example in the process of the next round."""
        self._oracle.load_state_dict(state["oracle"])
        self._before, self._sent, self._accepted = copy.deepcopy(state["before"]), state["sent"], state["accepted"]

    def close(self) -> None:
        """Close the client's ledger; numbers that were reserved and not begun are given back."""
        self._oracle.ledger.close()

    def __repr__(self) -> str:
        return f"Client(sent={self._sent}, remaining_queries={self.remaining_queries})"
