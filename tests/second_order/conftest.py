"""Fixtures that the tests of second-order methods share with those of gradients and of oracles."""

from tests.gradients.conftest import everything, network, small
from tests.oracles.conftest import device, make_oracle, problem

__all__ = ["device", "everything", "make_oracle", "network", "problem", "small"]
