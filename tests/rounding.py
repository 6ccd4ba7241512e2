"""Comparisons up to the rounding of the arithmetic: a float64 tensor may hold what was computed in float32."""

import torch

UNITS = 256  # roundings of a small network's forward and backward pass, in any order that a processor may choose


def assert_close_in(dtype, found, expected, units=UNITS):
    """Fail if ``found`` differs by more than ``units`` roundings in ``dtype`` of the largest expected number."""
    largest = max(expected.abs().max().item(), torch.finfo(dtype).tiny) if expected.numel() else 0.0
    tolerance = units * torch.finfo(dtype).eps / 2 * largest
    torch.testing.assert_close(found.double(), expected.double(), rtol=0.0, atol=tolerance)
