"""Least squares with coefficients that are not negative. In: the normal equations. Out: the coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations


def not_negative_least_squares(gram: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Returns the x >= 0 that minimises x'Gx - 2x'r: the best of the solutions with some coefficients 0 and the others
    free."""
    count = len(right)
    best, least = [0.0] * count, 0.0
    for size in range(count, 0, -1):
        for free in combinations(range(count), size):
            solved = _solve([[gram[i][j] for j in free] for i in free], [right[i] for i in free])
            if solved is None or min(solved) < 0:
                continue
            gain = -sum(x * right[i] for x, i in zip(solved, free))  # the value of the quadratic at its minimum
            if gain < least:
                best, least = [0.0] * count, gain
                for x, i in zip(solved, free):
                    best[i] = x
            if size == count:
                return best  # the minimum of all, so nothing on the border is better
    return best


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """Gauss's elimination with the largest pivot; None where the matrix is as good as singular."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    count = len(rows)
    largest = max(abs(value) for row in matrix for value in row)
    for column in range(count):
        pivot = max(range(column, count), key=lambda n: abs(rows[n][column]))
        if abs(rows[pivot][column]) <= 1e-10 * largest:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in range(column + 1, count):
            factor = rows[below][column] / rows[column][column]
            rows[below] = [a - factor * b for a, b in zip(rows[below], rows[column])]
    found = [0.0] * count
    for row in reversed(range(count)):
        known = sum(rows[row][n] * found[n] for n in range(row + 1, count))
        found[row] = (rows[row][count] - known) / rows[row][row]
    return found
