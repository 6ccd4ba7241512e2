"""The best that an (epsilon, delta)-private mechanism can do for an auditor of a few coins: a linear program."""

import itertools
import math

import numpy as np
import scipy.optimize
import scipy.sparse


def most_right_guesses(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest P(right guesses >= ``correct``), over all mechanisms from fair coins to ``guesses`` guesses.

    Variables: P(guess t | coins s), and for each two s, s' that differ in one coin the excess of t,
    (P(t | s) - e^epsilon P(t | s'))_+, which sums to at most delta.
    """
    coins = list(itertools.product([False, True], repeat=canaries))
    said = [t for t in itertools.product([-1, 0, 1], repeat=canaries) if np.abs(t).sum() == guesses]
    pairs = [(a, b) for a, b in itertools.permutations(range(len(coins)), 2) if _distance(coins[a], coins[b]) == 1]
    chances, per_pair = len(coins) * len(said), len(said)
    a, b = np.array(pairs).T[:, :, None]
    t = np.arange(per_pair)
    excess = np.arange(len(pairs) * per_pair).reshape(len(pairs), per_pair)
    one = np.ones(excess.size)
    entries = [
        (one, excess, a * per_pair + t),  # P(t | s) ...
        (-math.exp(epsilon) * one, excess, b * per_pair + t),  # ... - e^epsilon P(t | s') ...
        (-one, excess, chances + excess),  # ... <= excess
        (one, excess.size + np.arange(len(pairs))[:, None] + 0 * excess, chances + excess),  # sum of excess <= delta
    ]
    values, rows, columns = (np.concatenate([np.ravel(part) for part in parts]) for parts in zip(*entries, strict=True))
    sizes = (excess.size + len(pairs), chances + excess.size)
    one_law = np.kron(np.eye(len(coins)), np.ones(per_pair))
    found = scipy.optimize.linprog(
        c=np.concatenate([[-_wins(s, t, correct) / len(coins) for s in coins for t in said], np.zeros(excess.size)]),
        A_ub=scipy.sparse.csr_array((values, (rows, columns)), shape=sizes),
        b_ub=np.concatenate([np.zeros(excess.size), np.full(len(pairs), delta)]),
        A_eq=scipy.sparse.hstack([one_law, scipy.sparse.csr_array((len(coins), excess.size))]),
        b_eq=np.ones(len(coins)),
        bounds=(0, 1),
        method="highs",
    )
    assert found.success
    return -found.fun


def _distance(one: tuple, other: tuple) -> int:
    return sum(x != y for x, y in zip(one, other, strict=True))


def _wins(coins: tuple[bool, ...], said: tuple[int, ...], correct: int) -> bool:
    return sum(t != 0 and (t == 1) == s for s, t in zip(coins, said, strict=True)) >= correct
