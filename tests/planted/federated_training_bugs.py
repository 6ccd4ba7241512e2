"""Bugs of federations: local training, weights, quantile clipping, clipped records, settings that no hash covers."""

from tacita.clipping import FlatClipper
from tacita.federated import (
    FederatedAlgorithm,
    QuantileAveraging,
)
from tacita.federated import quantile_averaging as quantile
from tests.planted.plant import bug, put, swap

QUANTILE = "tests/federated/test_quantile_averaging.py::"


@bug(20, 23, caught_by=[QUANTILE + "test_no_client_leaves_the_ball",
                    QUANTILE + "test_a_session_is_one_query_of_the_joint_bound"])  # fmt: skip
def the_count_of_unclipped_updates_is_free():
    """With quantile clipping only the update is charged, and not the count that is sent beside it."""
    put(QuantileAveraging, "clipper", property(lambda self: FlatClipper(max_grad_norm=1.0)))
    whole = quantile.clipped_message
    swap(
        quantile.clipped_message, lambda x, clipper, shapes: x if quantile.UNCLIPPED in x else whole(x, clipper, shapes)
    )


@bug(20, caught_by=["tests/federated/test_algorithms.py::test_an_algorithm_inherits_no_bound_of_its_messages"])
def an_algorithm_inherits_the_bound_of_messages():
    """A class derived from Clip-SGD sends messages that are not clipped, and is charged for clipped ones."""
    put(FederatedAlgorithm, "__init_subclass__", classmethod(lambda cls: None))
