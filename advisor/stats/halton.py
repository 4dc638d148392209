"""Computes the scrambled Halton sequence (A. B. Owen, "A randomized Halton algorithm in R", 2017).

The points are bit-identical to the points of `scipy.stats.qmc.Halton` in SciPy 1.17. We have our own version because SciPy's
scrambling may change, and `advisor sample` must draw the same trials with every version of SciPy.
"""

from __future__ import annotations

import math
from itertools import count, islice

import numpy as np

from advisor.model.space import FloatArray, IntArray


class Halton:
    """A Halton sequence of points in `dimensions` dimensions, scrambled with `rng`."""

    def __init__(self, dimensions: int, rng: np.random.Generator) -> None:
        (child,) = rng.spawn(1)
        self._digits = [_digit_permutations(base, child) for base in _first_primes(dimensions)]

    def points(self, first: int, number: int) -> FloatArray:
        """Return the points with the numbers `first` to `first + number - 1`, shape (number, dimensions), in [0, 1)."""
        point_numbers = np.arange(first, first + number)
        return np.stack([_radical_inverse(point_numbers, digits) for digits in self._digits], axis=1)


def _first_primes(number: int) -> list[int]:
    return list(islice((n for n in count(2) if all(n % d for d in range(2, math.isqrt(n) + 1))), number))


def _digit_permutations(base: int, rng: np.random.Generator) -> IntArray:
    """Return a random permutation of the digits for each digit position that a double can represent, shape (positions, base)."""
    permutations = np.repeat(np.arange(base)[None], math.ceil(54 / math.log2(base)) - 1, axis=0)
    for row in permutations:
        rng.shuffle(row)
    return permutations


def _radical_inverse(remaining_numbers: IntArray, digits: IntArray) -> FloatArray:
    digit_base = digits.shape[1]
    inverse, weight = np.zeros(len(remaining_numbers)), 1.0 / digit_base
    for permutation in digits:
        inverse += permutation[remaining_numbers % digit_base] * weight
        weight /= digit_base
        remaining_numbers = remaining_numbers // digit_base
    return inverse
