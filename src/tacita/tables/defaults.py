"""Defaults of ``tacita train``: public rules. The statement marks each one as chosen by tacita.

The same numbers stand in ``docs/defaults.md``; a test compares the two.
"""

SAMPLE_RATE = 0.1
PLANNED_QUERIES = 400
MAX_GRAD_NORM = 2.0
MOMENTUM = 0.9
AVERAGED_FROM = 0.5  # the model is the average of the iterates of the last half
WANDERING = 0.3  # how far noise alone may move a weight of a linear model that no gradient holds back
HELD_OUT = 0.1  # share of the records held out for the score, each by its own coin


def learning_rate(task: str, max_grad_norm: float, num_features: int) -> float:
    """Return the step size: 1/C for a classification, min(1/C, 2 / (1 + features)) for a regression.

    The curvature of a regression grows with the number of features.

    Example:
        >>> learning_rate("classification", 2.0, 100), learning_rate("regression", 2.0, 99)
        (0.5, 0.02)
    """
    if task == "classification":
        return 1 / max_grad_norm
    return min(1 / max_grad_norm, 2 / (1 + num_features))


def quiet_learning_rate(total_mu: float, rows: float, max_grad_norm: float, queries: int) -> float:
    r"""Return the step size at which noise alone moves a free weight by about ``WANDERING`` in the whole run.

    At a total mu the mean gradient has noise of about :math:`C \sqrt T / (\mu n)`, and :math:`T` steps with momentum m
    add up to :math:`lr / (1 - m) \cdot \sqrt T` times that. With many rows this step size is above 1/C.

    Example:
        >>> round(quiet_learning_rate(0.25, 500, 2.0, 400), 4), quiet_learning_rate(0.25, 30_000, 2.0, 400) > 0.5
        (0.0047, False)
    """
    return WANDERING * (1 - MOMENTUM) * total_mu * max(rows, 1.0) / (max_grad_norm * queries)


def divisor(rows: float, sample_rate: float = SAMPLE_RATE, held_out: float = HELD_OUT) -> float:
    """Return the public divisor of the sum: sample_rate x (1 - held_out) x max(rows, 1); rows are bought or declared.

    Example:
        >>> round(divisor(1000), 6), divisor(-3.0) == divisor(1)
        (90.0, True)
    """
    return sample_rate * (1 - held_out) * max(rows, 1.0)
