"""Clipping, as the formulas of the theory's tests have it."""

import numpy as np


def clip(vectors, threshold):
    """Scale each vector along the last axis to a norm of at most ``threshold``."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors * np.minimum(1.0, threshold / np.maximum(norms, np.finfo(float).tiny))
