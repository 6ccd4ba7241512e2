"""Noisy SGD to second-order stationary points, and the private test of such a point.

Derivation: docs/derivations/noisy-sgd.md.
"""

from tacita.second_order.above_threshold import AboveThreshold, AboveThresholdEvent
from tacita.second_order.certificate import StationaryCertificate
from tacita.second_order.hessian import BatchHessian, Hessian
from tacita.second_order.lanczos import Ritz, lanczos, lanczos_error, lanczos_steps
from tacita.second_order.stationarity import PublicStationarity, is_second_order_stationary, public_stationarity
from tacita.second_order.stationarity_query import StationarityQuery
from tacita.second_order.stationary_test import StationaryTest

__all__ = [
    "AboveThreshold",
    "AboveThresholdEvent",
    "BatchHessian",
    "Hessian",
    "PublicStationarity",
    "Ritz",
    "StationarityQuery",
    "StationaryCertificate",
    "StationaryTest",
    "is_second_order_stationary",
    "lanczos",
    "lanczos_error",
    "lanczos_steps",
    "public_stationarity",
]
