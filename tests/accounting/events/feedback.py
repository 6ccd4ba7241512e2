"""Settings and helpers that the tests of error feedback share."""

import math

import numpy as np

from tacita import accounting as acc
from tacita.error_feedback import proved_events

RATE, QUERIES, BATCH = 0.02, 150, 1000


WHOLE = np.arange(2.0, 33.0)


def session_epsilon(event, queries=QUERIES, delta=1e-5):
    return acc.epsilon([acc.Spend(event, queries)], delta).epsilon


def through_orders(divergences, delta=1e-5):
    """Canonne, Kamath and Steinke (2020), Proposition 12, at whole orders."""
    return np.min(divergences + np.log1p(-1 / WHOLE) - (math.log(delta) + np.log(WHOLE)) / (WHOLE - 1))


TABLE = [  # C2, O1 add/remove, O1 replace-one, O2, O3 by whole orders, the error alone; mean level, C1 = 1
    (1, 48.8627, 48.8871, 48.8388, 41.9076, 48.8382),
    (0.1, 4.90824, 4.93266, 4.88432, 4.19122, 4.88382),
    (0.01, 0.512801, 0.537221, 0.488872, 0.419585, 0.488382),
    (0.001, 0.0732573, 0.0976765, 0.0493282, 0.0424236, 0.0488382),
]


def hidden_every(every, std=500.0, law=None, relation="add_or_remove_one"):
    return proved_events.hidden_error_event(
        law or acc.PoissonLaw(RATE),
        relation,
        max_contribution=1.0,
        max_error_change=20.0,
        noise_std=std,
        every=every,
    )
