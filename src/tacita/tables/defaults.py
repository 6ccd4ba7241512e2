"""Defaults: what ``tacita train`` chooses for a table, by public rules. The statement marks each as chosen by tacita.

Place: [tables.defaults] -> command line. The same numbers stand in ``docs/defaults.md``; a test holds them together.
"""

SAMPLE_RATE = 0.1
PLANNED_QUERIES = 400
MAX_GRAD_NORM = 2.0
MOMENTUM = 0.9
AVERAGED_FROM = 0.5  # the model is the average of the iterates of the last half
HELD_OUT = 0.1  # share of the records held out for the score, each by its own coin


def learning_rate(task: str, max_grad_norm: float, num_features: int) -> float:
    """1/C for a classification; min(1/C, 2 / (1 + features)) for a regression, whose curvature grows with them.

    Example:
        >>> learning_rate("classification", 2.0, 100), learning_rate("regression", 2.0, 99)
        (0.5, 0.02)
    """
    if task == "classification":
        return 1 / max_grad_norm
    return min(1 / max_grad_norm, 2 / (1 + num_features))


def divisor(rows: float, sample_rate: float = SAMPLE_RATE, held_out: float = HELD_OUT) -> float:
    """The public divisor of the sum: sample_rate x (1 - held_out) x rows, rows bought or declared, at least 1.

    Example:
        >>> round(divisor(1000), 6), divisor(-3.0) == divisor(1)
        (90.0, True)
    """
    return sample_rate * (1 - held_out) * max(rows, 1.0)
