"""The peak of a step as a function of its size. Pure."""

from __future__ import annotations

import statistics
from typing import Dict, List, NamedTuple, Optional, Tuple

# Sizes that are kept; the smallest are dropped first.
MOST_SIZES = 256
# A term in the square of the length must leave at most this share of the line's error, so that it is kept.
_HELPS = 0.5
# The error of an extrapolation, as a share of the part of the peak that depends on the size.
_EXTRAPOLATION = 0.04
# From the median to the 90th percentile, in standard deviations, and from the median deviation to the standard one.
_P90, _DEVIATION = 1.28, 1.48


class Batch(NamedTuple):
    """A micro-batch: its tokens, or its samples where it has no tokens."""

    units: int
    samples: Optional[int] = None
    length: Optional[int] = None


class Curve(NamedTuple):
    """`fixed + per_unit * units + per_square * units * length` bytes; `error` is the median deviation of the fit."""

    fixed: float
    per_unit: float
    per_square: float
    error: float

    def at(self, batch: Batch) -> float:
        return self.fixed + batch.units * (self.per_unit + self.per_square * (batch.length or 0))


class Sizes:
    """Bytes of micro-batches, by their size."""

    def __init__(self) -> None:
        self._most: Dict[Batch, float] = {}

    def add(self, batch: Batch, value: float) -> None:
        if batch not in self._most and len(self._most) == MOST_SIZES:
            del self._most[min(self._most, key=lambda each: each.units)]
        self._most[batch] = max(value, self._most.get(batch, value))

    def __len__(self) -> int:
        return len(self._most)

    def seen(self, batch: Batch) -> Optional[float]:
        """The most of exactly this size."""
        return self._most.get(batch)

    def most(self) -> Optional[int]:
        return int(max(self._most.values())) if self._most else None

    def curve(self, fixed: Optional[float] = None) -> Optional[Curve]:
        """The fit. Of one size, the line from `fixed`, the memory of a batch of no size."""
        points = sorted(self._most.items(), key=lambda point: point[0].units)
        if not points:
            return None
        slopes = [
            (high - low) / (two.units - one.units)
            for place, (one, low) in enumerate(points)
            for two, high in points[place + 1 :]
            if two.units > one.units
        ]
        if not slopes:
            batch, peak = max(points, key=lambda point: point[1])
            if fixed is None or not batch.units:
                return None
            fixed = min(fixed, peak)
            return Curve(fixed, (peak - fixed) / batch.units, 0.0, 0.0)
        slope = max(0.0, statistics.median(slopes))
        base = max(0.0, statistics.median(peak - slope * batch.units for batch, peak in points))
        line = _with_error(base, slope, 0.0, points)
        return self._bent(points, line) or line

    def _bent(self, points: List[Tuple[Batch, float]], line: Curve) -> Optional[Curve]:
        """The least squares fit with the square of the length, where it helps."""
        if len(points) < 4 or len({batch.length for batch, _ in points}) < 3 or line.error <= 0.0:
            return None
        scale = max(batch.units for batch, _ in points) or 1
        reach = max(batch.length or 0 for batch, _ in points) or 1
        rows = [(1.0, batch.units / scale, batch.units * (batch.length or 0) / scale / reach) for batch, _ in points]
        solved = _least_squares(rows, [peak for _, peak in points])
        if solved is None or solved[1] < 0.0 or solved[2] <= 0.0:
            return None
        bent = _with_error(max(0.0, solved[0]), solved[1] / scale, solved[2] / scale / reach, points)
        return bent if bent.error <= _HELPS * line.error else None


def predicted(curve: Curve, batch: Batch, exact: Optional[float]) -> Tuple[float, float]:
    """The median and the 90th percentile of the peak; `exact` is the peak of a batch of the same size."""
    if exact is not None:
        return exact, exact
    peak = curve.at(batch)
    return peak, peak + _EXTRAPOLATION * (peak - curve.fixed) + _P90 * _DEVIATION * curve.error


def _with_error(fixed: float, slope: float, square: float, points: List[Tuple[Batch, float]]) -> Curve:
    curve = Curve(fixed, slope, square, 0.0)
    return curve._replace(error=statistics.median(abs(peak - curve.at(batch)) for batch, peak in points))


def _least_squares(rows: List[Tuple[float, float, float]], values: List[float]) -> Optional[List[float]]:
    """The normal equations of three unknowns; None where they have no unique solution."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    right = [sum(row[i] * value for row, value in zip(rows, values)) for i in range(3)]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda row: abs(matrix[row][i]))
        if abs(matrix[pivot][i]) < 1e-9:
            return None
        matrix[i], matrix[pivot], right[i], right[pivot] = matrix[pivot], matrix[i], right[pivot], right[i]
        for row in range(3):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [one - factor * two for one, two in zip(matrix[row], matrix[i])]
                right[row] -= factor * right[i]
    return [right[i] / matrix[i][i] for i in range(3)]
