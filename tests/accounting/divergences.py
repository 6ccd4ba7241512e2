"""Divergences of one query, by closed forms and bisection: what the laws of losses are held against."""

import math

import numpy as np
from scipy.special import ndtr


def above(x, shifts, chances):
    return sum(p * ndtr(s - x) for s, p in zip(shifts, chances, strict=True))


def below(x, shifts, chances):
    return sum(p * ndtr(x - s) for s, p in zip(shifts, chances, strict=True))


def crossing(loss, epsilon):
    low, high = np.full(np.shape(epsilon), -60.0), np.full(np.shape(epsilon), 60.0)
    for _ in range(70):
        middle = (low + high) / 2
        larger = loss(middle) > epsilon
        low, high = np.where(larger, low, middle), np.where(larger, middle, high)
    return high


def mixture_loss(shifts, chances):
    return lambda x: np.log(sum(p * np.exp(s * x - s * s / 2) for s, p in zip(shifts, chances, strict=True)))


def mixture_divergence(shifts, chances, epsilon, swapped=False):
    loss = mixture_loss(shifts, chances)
    if swapped:
        x = crossing(loss, -epsilon)
        return below(x, (0.0,), (1.0,)) - np.exp(epsilon) * below(x, shifts, chances)
    x = crossing(loss, epsilon)
    return above(x, shifts, chances) - np.exp(epsilon) * above(x, (0.0,), (1.0,))


def replaced_divergence(shift, q, epsilon):
    up, down = mixture_loss((0.0, shift), (1 - q, q)), mixture_loss((0.0, -shift), (1 - q, q))
    x = crossing(lambda x: up(x) - down(x), epsilon)
    return above(x, (0.0, shift), (1 - q, q)) - np.exp(epsilon) * above(x, (0.0, -shift), (1 - q, q))


def envelope(moved, q, epsilon):
    """F of section 4: above 1 the mixture against the Gaussian, below 1 turned round."""
    one = mixture_divergence((0.0, moved), (1 - q, q), abs(epsilon))
    return one if epsilon >= 0 else -math.expm1(epsilon) + math.exp(epsilon) * one


def response(epsilon, at):
    odds = math.exp(-epsilon)
    return max(0.0, (1 - math.exp(at) * odds) / (1 + odds), 1 - math.exp(at))


def laplace(scale, at):
    if at >= scale or at <= -scale:
        return max(0.0, -math.expm1(at))
    return -math.expm1((at - scale) / 2)
