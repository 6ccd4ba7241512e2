"""What every gradient oracle has, and all that a method below the line needs of it."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from tacita.oracles.gradient_oracle import Release


class Queryable(Protocol):
    """The protocol of every gradient oracle; a :class:`~tacita.GradientOracle` keeps it."""

    def query(self, params: Mapping[str, Tensor], /) -> Release:
        """Return a private gradient at ``params``."""
        ...
